"""Parameter servers in time-only runs: all seeds at once, by one script and a compiled loop.

The programs are run once, with stand-ins for who sends (`traced`, `script`); when all of it happens
is then worked out for each seed by itself (`loop`), so that nothing depends on which seeds are run
together, or on how many threads do it.
"""

from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from simulator import objective
from simulator.effects import Node
from simulator.engines import values
from simulator.engines.handover import HandOver
from simulator.engines.loaded import Costs
from simulator.engines.script import ServerScript
from simulator.engines.traced import WorkerScript
from simulator.engines.world import World
from simulator.programs import Program
from simulator.programs.program import Function
from simulator.scenario import Algorithm, Scenario
from simulator.trace import Run

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

    Times equal those of the reference engine to rounding, counts exactly. Raises HandOver where the
    program or the objective needs that engine.
    """
    if program.server is None:
        raise HandOver("it has no server")
    if objective.dimension_of(scenario.objective) is not None:
        raise HandOver("its gradients have values")
    costs = Costs(scenario)

    def begin(function: Function, node: Node) -> Coroutine[Any, Any, None]:
        return program.start(function, costs.on(node), algorithm.parameters)

    meter = values.Meter(scenario.model.bytes, objective.Nothing.dimension)
    worker = WorkerScript(scenario, partial(begin, program.worker), meter)
    worker.trace(1)
    server = ServerScript(scenario, partial(begin, program.server), worker.payload)

    from simulator.engines.lane import Lane  # noqa: PLC0415 - numba takes half a second

    world = World(program, algorithm, scenario, worker, len(seeds))
    running = lanes = [Lane(world, seed) for seed in seeds]
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
            list(pool.map(partial(Lane.follow, script=script, gate=server.gate), running))
            running = [lane for lane in running if not lane.done]
            if running:
                script = ahead.result() if ahead else write()
    return [lane.result() for lane in lanes]
