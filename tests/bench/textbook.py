"""The models a SimPy textbook would write for the same clusters: what we measure ourselves against.

Processes and resources as in SimPy's own examples, drawing from `random` as they do.
"""

import random

import simpy


def local_sgd(workers: int, tau: int, rounds: int, duration: float) -> float:
    """Local SGD: fresh processes and one AllOf per round. Returns simulated seconds."""
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


def parameter_server(workers: int, updates: int, transit: float, service: float) -> float:
    """Asynchronous SGD: the server is a Resource. Returns simulated seconds.

    With `transit` zero the messages take no time and their timeouts are left out.
    """
    env = simpy.Environment()
    server = simpy.Resource(env, capacity=1)
    draw = random.Random(0).expovariate
    done = env.event()
    count = 0

    def worker():
        nonlocal count
        while True:
            yield env.timeout(draw(1.0))
            if transit:
                yield env.timeout(transit)
            with server.request() as request:
                yield request
                yield env.timeout(service)
            count += 1
            if count == updates:
                done.succeed()
            if transit:
                yield env.timeout(transit)

    for _ in range(workers):
        env.process(worker())
    env.run(done)
    return env.now
