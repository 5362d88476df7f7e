"""Choose the engine of a run: `batched` where it takes the run and pays off, else `virtual`."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from threadpoolctl import ThreadpoolController

from ..load.load import Programs, known_programs
from ..programs import Program, awaits
from ..results.run import Run
from ..scenario.redraw import factor, measured, redrawn
from ..scenario.scenario import Algorithm, Scenario
from .batched import run as batched
from .normalisation import normalised
from .unsupported import attempt
from .virtual import run as virtual

ENGINES = ("auto", "batched", "virtual")
WORTH_COMPILING = 50_000  # gradients of one seed from which the compiled loop saves time


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
    """Run one algorithm with each of `seeds` in this process; keep `spans` spans of the first.

    The numbers do not depend on `threads`, nor on which seeds are run together. If the engine asked
    for cannot run the algorithm, `virtual` does, and the runs' `handed_over` says why.
    """
    known = known_programs(programs)
    scenario, algorithm = taken(scenario.under(algorithm), algorithm, programs)
    # Sums must not depend on how many cores a process may use.
    with deferred_interrupts():
        libraries = ThreadpoolController()
    program = known[algorithm.name]
    with libraries.limit(limits=1), awaits.explained(program):
        reason: str | None = ""
        if engine == "batched" or (engine == "auto" and pays_off(scenario, program)):
            reason = batched.supports(program, algorithm, scenario)
            if reason is None:
                run_all = partial(batched.run, spans=spans, threads=threads, programs=known)
                runs, reason = attempt(partial(run_all, algorithm, scenario, seeds))
                if runs is not None:
                    return runs
                if len(seeds) > 1:  # one seed alone may have stopped them all
                    again = partial(run_seeds, scenario, algorithm, engine=engine, threads=threads)
                    alone = partial(again, programs=programs)
                    first, *others = [[seed] for seed in seeds]
                    return [*alone(first, spans=spans), *chain.from_iterable(map(alone, others))]
        runs = [
            virtual.run(algorithm, scenario, seed, spans=0 if number else spans, programs=known)
            for number, seed in enumerate(seeds)
        ]
    for run in runs:
        run.handed_over = reason or ""
        if engine == "batched":
            run.notes.append(f"run by the virtual engine, not the batched one: {reason}")
    return runs


def taken(
    scenario: Scenario, algorithm: Algorithm, programs: Programs = None
) -> tuple[Scenario, Algorithm]:
    """Return what engines run: under a learning curve, the program at its tuned rate."""

    def one(scenario: Scenario, algorithm: Algorithm) -> Run:
        alone = algorithm.model_copy(update={"recovery": None})  # nothing fails in a probe
        unheard = partial(run_seeds, scenario, alone, [0], programs=programs)
        return Context().run(unheard)[0]

    return normalised(scenario, algorithm, known_programs(programs), one)


def run_replicates(
    scenario: Scenario,
    algorithm: Algorithm,
    seeds: Sequence[int],
    replicates: Sequence[int],
    **options: Any,
) -> list[Run]:
    """Run one algorithm with each of `seeds`, and with the replicate of the same index.

    A parametric bootstrap: a replicate redraws every measured number within its standard error, and
    the pace of the whole run within the spread of equal runs. Draws are keyed by the replicate
    alone, so that all algorithms meet the same ones, and comparisons between them stay paired.

    `options`: those of `run_seeds`.
    """
    assert scenario.calibration is not None
    spread = scenario.calibration.run_to_run
    found = []
    scenario, algorithm = taken(scenario, algorithm, options.get("programs"))  # as written
    for seed, number in zip(seeds, replicates, strict=True):
        own = measured(scenario, algorithm, number)
        (run,) = run_seeds(redrawn(scenario, number), own, [seed], **options)
        found.append(_slowed(run, factor(number, 0, spread)))
    return found


def _slowed(run: Run, factor: float) -> Run:
    """Return the same run with all times of its curve multiplied by `factor`."""
    times = [time * factor for time in run.curve["time"]]
    return replace(run, duration=run.duration * factor, curve=run.curve | {"time": times})


def pays_off(scenario: Scenario, program: Program) -> bool:
    """Whether `batched` pays off: no server, or a run long enough to load the compiled loop.

    Depends on the scenario alone, so that the same engine runs all seeds, however grouped.
    """
    if program.server is None:
        return True
    run = scenario.run
    gradients = scenario.cluster.workers * run.steps if run.steps else inf
    rate = scenario.team.ideal_rate or inf  # zero where a mean is infinite
    return min(gradients, (run.duration or inf) * rate) >= WORTH_COMPILING


def batches_seeds(
    scenario: Scenario, algorithm: Algorithm, engine: str, programs: Programs
) -> bool:
    """Whether an engine runs several seeds at once, as far as that is known beforehand."""
    program = known_programs(programs)[algorithm.name]
    if engine == "virtual" or (engine == "auto" and not pays_off(scenario, program)):
        return False
    return batched.supports(program, algorithm, scenario) is None


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay a Ctrl-C inside the block to its end.

    Searching the loaded libraries calls back from C, where an exception would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are for the main thread
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if received:
        signal.raise_signal(signal.SIGINT)
