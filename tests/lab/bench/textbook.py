"""Models that a SimPy textbook would write for the same clusters, for comparison.

Processes and resources as in SimPy's own examples, drawing from `random` as they do.
"""

import random
from collections import defaultdict

import simpy


def local_sgd(workers: int, tau: int, rounds: int, duration: float) -> float:
    """Run local SGD with fresh processes and one AllOf per round; return simulated seconds."""
    env = simpy.Environment()
    draw = random.Random(0).expovariate

    def worker():
        for _ in range(tau):
            yield env.timeout(draw(1.0))

    def training():
        for _ in range(rounds):
            yield env.all_of([env.process(worker()) for _ in range(workers)])
            yield env.timeout(duration)

    env.run(env.process(training()))
    return env.now


def parameter_server(workers: int, updates: int, transit: float, service: float) -> list[float]:
    """Run asynchronous SGD, with the server as a Resource.

    With `transit` zero the messages take no time, and their timeouts are left out. Like our engine
    it measures staleness, the longest queue and the seconds that all workers computed, waited and
    communicated, which it returns.
    """
    env = simpy.Environment()
    server = simpy.Resource(env, capacity=1)
    draw = random.Random(0).expovariate
    done = env.event()
    count = longest = 0
    seconds = [0.0, 0.0, 0.0]
    staleness = defaultdict(int)

    def worker():
        nonlocal count, longest
        while True:
            begun, version = env.now, count
            yield env.timeout(draw(1.0))
            sent = env.now
            if transit:
                yield env.timeout(transit)
            with server.request() as request:
                longest = max(longest, len(server.queue))
                yield request
                yield env.timeout(service)
            served = env.now
            staleness[count - version] += 1
            count += 1
            if count == updates:
                done.succeed()
            if transit:
                yield env.timeout(transit)
            seconds[0] += sent - begun
            seconds[1] += served - sent - transit
            seconds[2] += 2 * transit

    for _ in range(workers):
        env.process(worker())
    env.run(done)
    return seconds
