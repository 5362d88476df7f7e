"""Run parameter servers of time alone: one trace, a compiled loop.

The programs run once, with stand-ins for the senders (`trace`); the loop
then works out the times of each seed by itself, so that nothing depends on which seeds are run
together or on the number of threads.
"""

import sys
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from ...objectives import objective
from ...programs import Program
from ...programs.effects import Node
from ...programs.program import Function
from ...results.run import Run
from ...scenario.scenario import Algorithm, Scenario
from .. import payloads
from ..overheads import EffectCosts
from .trace import ServerTrace, WorkerTrace

CHUNK = (256, 16384)  # arrivals that are traced at once, at first and at most
SWITCH = 1e-4  # seconds that a thread waits for the GIL; Python's 5 ms are those of a whole piece
EACH = 64  # the most is so many of each worker, if more: changing to another seed has its price


def run(
    program: Program,
    algorithm: Algorithm,
    scenario: Scenario,
    seeds: Sequence[int],
    *,
    threads: int = 1,
) -> list[Run]:
    """Simulate a parameter-server program with each of the seeds.

    Times equal those of the reference engine to rounding, counts exactly. Raises Unsupported where
    the program turns out to need another engine.
    """
    costs = EffectCosts(scenario)

    def begin(function: Function, node: Node) -> Coroutine[Any, Any, None]:
        return program.start(function, costs.on(node), algorithm.parameters)

    meter = payloads.Meter(scenario.model.bytes, objective.Nothing.dimension)
    assert program.server is not None
    worker = WorkerTrace(scenario, partial(begin, program.worker), meter)
    worker.trace(1)
    server = ServerTrace(scenario, partial(begin, program.server), worker.payload)

    from .seed_run import SeedRun, SharedRun  # noqa: PLC0415 - numba takes half a second

    shared = SharedRun(program, algorithm, scenario, worker, len(seeds))
    running = runs = [SeedRun(shared, seed) for seed in seeds]
    needed, most = shared.limit, max(CHUNK[1], EACH * shared.workers)
    arrivals = CHUNK[0]
    with ThreadPoolExecutor(threads) as pool, ExitStack() as after:
        after.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH)
        trace = server.write(arrivals)
        while running:
            needed -= arrivals
            arrivals = max(min(2 * arrivals, most, needed), shared.workers)
            write = partial(server.write, arrivals)
            # traced ahead of need: if it fails, that counts only once it is needed
            ahead = pool.submit(write) if threads > 1 else None
            follow = partial(SeedRun.follow, trace=trace, gate=server.gate)
            list(pool.map(follow, running))
            running = [each for each in running if not each.done]
            if running:
                trace = ahead.result() if ahead else write()
    return [each.result() for each in runs]
