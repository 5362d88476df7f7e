"""Which engine runs an algorithm: the fastest that takes it."""

from collections.abc import Sequence

from threadpoolctl import threadpool_limits

from simulator.engines import batched, virtual
from simulator.engines.handover import HandOver
from simulator.load import Programs, known_programs
from simulator.scenario import Algorithm, Scenario
from simulator.trace import Run

ENGINES = ("auto", "batched", "virtual")


def run_seeds(  # noqa: PLR0913 - what is run, and how
    scenario: Scenario,
    algorithm: Algorithm,
    seeds: Sequence[int],
    *,
    engine: str = "auto",
    spans: int = 0,
    threads: int = 1,
    programs: Programs = None,
) -> list[Run]:
    """Run one algorithm with each of `seeds` in this process; keep so many spans of the first.

    The numbers do not depend on `threads`, nor on which seeds are run together. Where the engine
    asked for does not take the algorithm, `virtual` does, and the runs say why.
    """
    known = known_programs(programs)
    # Sums must not depend on how many cores a process may use.
    with threadpool_limits(limits=1):
        reason = ""
        if engine != "virtual":
            try:
                return batched.run(
                    algorithm, scenario, seeds, spans=spans, threads=threads, programs=known
                )
            except HandOver as why:
                reason = str(why)
        runs = [
            virtual.run(algorithm, scenario, seed, spans=0 if number else spans, programs=known)
            for number, seed in enumerate(seeds)
        ]
    for run in runs:
        run.handed_over = reason
        if engine == "batched":
            run.notes.append(f"run by the virtual engine, not the batched one: {reason}")
    return runs


def takes_many(scenario: Scenario, algorithm: Algorithm, engine: str, programs: Programs) -> bool:
    """Whether seeds are to be run together, as far as that can be known beforehand."""
    if engine == "virtual":
        return False
    try:
        batched.refuse(known_programs(programs)[algorithm.name], algorithm, scenario)
    except HandOver:
        return False
    return True
