"""Parameter servers in time-only runs: all seeds at once, by one script and a compiled loop.

The programs are run once, with stand-ins for who sends (`traced`, `script`); when all of it happens
is then worked out for each seed by itself (`loop`), so that nothing depends on which seeds are run
together, or on how many threads do it.
"""

from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from paceline.simulator.engines import payloads
from paceline.simulator.engines.compiled.server_trace import ServerTrace
from paceline.simulator.engines.compiled.shared import SharedRun
from paceline.simulator.engines.compiled.worker_trace import WorkerTrace
from paceline.simulator.engines.overheads import EffectCosts
from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.objectives import bound, build
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import Node
from paceline.simulator.programs.program import Function
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.scenario import Algorithm, Scenario

CHUNK = (256, 16384)  # arrivals that are scripted at once, at first and at most
EACH = 64  # but so many of each worker: going over to another seed costs what its workers hold


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
    the program or the objective needs that engine.
    """
    if program.server is None:
        raise Unsupported("it has no server")
    if build.dimension_of(scenario.objective) is not None:
        raise Unsupported("its gradients have values")
    costs = EffectCosts(scenario)

    def begin(function: Function, node: Node) -> Coroutine[Any, Any, None]:
        return program.start(function, costs.on(node), algorithm.parameters)

    meter = payloads.Meter(scenario.model.bytes, bound.Nothing.dimension)
    worker = WorkerTrace(scenario, partial(begin, program.worker), meter)
    worker.trace(1)
    server = ServerTrace(scenario, partial(begin, program.server), worker.payload)

    from paceline.simulator.engines.compiled.seed_run import SeedRun  # noqa: PLC0415 - numba takes half a second

    world = SharedRun(program, algorithm, scenario, worker, len(seeds))
    running = lanes = [SeedRun(world, seed) for seed in seeds]
    needed, most = world.limit, max(CHUNK[1], EACH * world.workers)
    arrivals = CHUNK[0]
    with ThreadPoolExecutor(threads) as pool:
        script = server.write(arrivals)
        while running:
            needed -= arrivals
            arrivals = max(min(2 * arrivals, most, needed), world.workers)
            write = partial(server.write, arrivals)
            # what is written ahead may not be needed, nor that it fails
            ahead = pool.submit(write) if threads > 1 else None
            list(pool.map(partial(SeedRun.follow, script=script, gate=server.gate), running))
            running = [lane for lane in running if not lane.done]
            if running:
                script = ahead.result() if ahead else write()
    return [lane.result() for lane in lanes]
