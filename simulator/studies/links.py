"""Estimate errors of a run's time due to links, kinds of hardware, or a profile."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, hypot, inf, isfinite, log, log1p
from typing import Any, NamedTuple

from ..network import tcp
from ..network.closed_form import ClosedForm
from ..results import prediction_interval
from ..results.prediction_interval import Calibrated, TimeModel, Uncalibrated
from ..results.run import Run
from ..results.statistics import Groups, breakdown, held_up
from ..results.usage import held_share
from ..scenario import hardware
from ..scenario.cluster import Group
from ..scenario.overhead import ModelError
from ..scenario.scenario import Algorithm, Scenario
from ..scenario.tables import NoObjective
from .execution import Execution

PERIODS, FEWEST = 50, 100  # averages and steps that suffice to measure a steady step time
PAIRED = 10  # averages that suffice if two runs share all random numbers
BESIDE = 0.40  # most by which GPUs compute longer beside collectives (Lee et al., arXiv:2507.03114)
DIFFERING = -0.04, 0.08  # of the fastest and slowest GPU of a kind (arXiv:2208.11035)
COPIES = 0.06  # share that copies to DDP's buckets add on a GPU (docs/network.md)

INSIDE, ONE_KIND = "links inside workers", "GPUs of one kind"


def time_error_models(
    scenario: Scenario, groups: Groups, execution: Execution
) -> Mapping[str, TimeModel]:
    """Return the error of every algorithm's times, by label."""
    if (profile := scenario.calibration) is None:
        return uncalibrated(scenario, groups, execution)
    models, programs = dict[str, TimeModel](), scenario.programs
    for algorithm in (algorithm for algorithm in scenario.algorithm if groups.get(algorithm.label)):
        program, run = programs[algorithm.name], groups[algorithm.label][0]
        alone, seed = scenario.under(algorithm), run.seed
        short = _short(alone, run, looks=program.needs_loss, periods=PAIRED)
        (whole,) = _pace(short, algorithm, seed, execution)
        paces = _pace(short, algorithm, seed, execution, range(profile.replicates))
        logs = [log(pace / whole) if 0 < pace < inf and 0 < whole < inf else inf for pace in paces]
        model = prediction_interval.unfitted(scenario, algorithm, program.family)
        if sum(change < inf for change in logs) > 1:
            error = model.error if model else ModelError(programs=2)  # an average of nothing
            models[algorithm.label] = Calibrated(error, program.family, logs)
    return models


def uncalibrated(
    scenario: Scenario, groups: Groups, execution: Execution
) -> dict[str, Uncalibrated]:
    """Return the error of times without a profile, by label, from the likely ends of links."""
    spreads = {
        INSIDE: hardware.inner_spread(group.inner for group in scenario.cluster.group),
        "the usual utilisation of devices": hardware.compute_spread(scenario.table),
    }
    uneven = [name for name, spread in spreads.items() if spread != (1.0, 1.0)]
    missed, varies = prediction_interval.links(scenario), prediction_interval.kind(scenario)
    uneven += [ONE_KIND] * (varies is not None)
    if missed is None and (scenario.calibration or not uneven):
        return {}
    count = int(tcp.measured()["collectives"])
    ends, source = missed or (tcp.Missed(1.0, 1.0, 1.0, count), "")
    source = ", ".join([*filter(None, [source]), *(f"the spread of {name}" for name in uneven)])
    rows = prediction_interval.published()
    others = prediction_interval.beyond(scenario, rows)
    if others:
        source += f", what predictions of {len(rows)} published measurements missed"
    slowest = prediction_interval.hardware_spread(scenario)[2] or "the speed of links"
    error = ModelError.model_validate(prediction_interval.model_errors()["real"])
    models, programs = {}, scenario.programs
    for algorithm in (algorithm for algorithm in scenario.algorithm if groups.get(algorithm.label)):
        program, runs = programs[algorithm.name], groups[algorithm.label]
        alone, computing = scenario.under(algorithm), breakdown(runs)["compute"]
        case = _Case(alone, algorithm, runs, execution)
        causes = {slowest: _by_links(case, ends), **case.by_hardware(spreads, computing)}
        if varies:
            causes[ONE_KIND] = [log1p(computing * change) for change in DIFFERING]
        unseen = log1p(others * collective_share(alone, algorithm, runs))
        causes["what published sources leave out"] = [unseen, unseen]
        faster, slower = (hypot(*side) for side in zip(*causes.values(), strict=True))
        largest = max(causes, key=lambda name: causes[name][1])
        model = Uncalibrated(error, program.family, -faster, slower, ends.number, source, largest)
        models[algorithm.label] = model
    return models


def collective_share(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float:
    """Return the share of the time that collectives take, hidden or not."""
    return max(held_share(scenario, algorithm, runs) or 0.0, breakdown(runs)["communicate"])


class _Case(NamedTuple):
    """An algorithm's runs of a scenario, with its recovery and overheads."""

    alone: Scenario
    algorithm: Algorithm
    runs: Sequence[Run]
    execution: Execution

    def by_hardware(
        self, spreads: Mapping[str, tuple[float, float]], computing: float
    ) -> dict[str, list[float]]:
        """Return the logarithms by which other devices change the step time, by cause."""
        library, alone = self.alone.network.library, self.alone
        causes = {
            name: [log1p(computing * _longer(alone, name, factor)) for factor in spread]
            for name, spread in spreads.items()
        }
        if library == "byteps":  # devices pass gradients on within the means
            causes[INSIDE] = self.moved(_by_inner, spreads[INSIDE])
        if library in prediction_interval.ON_GPUS:  # whatever the links
            slower = log1p(_on_gpus(alone, self.algorithm, self.runs))
            causes["computing beside collectives"] = [0.0, slower]
        return causes

    def moved(
        self, change: Callable[[Scenario, float], Scenario], factors: Sequence[float]
    ) -> list[float]:
        """Return logarithms of step times with links that `change` slows by factors."""
        algorithm, seed = self.algorithm, self.runs[0].seed
        looks = self.alone.programs[algorithm.name].needs_loss
        short = _short(self.alone, self.runs[0], looks=looks)
        (whole,) = _pace(change(short, 1.0), algorithm, seed, self.execution)
        moves = []
        for factor in factors:
            (again,) = _pace(change(short, factor), algorithm, seed, self.execution)
            moves.append(log(again / whole) if 0 < again < inf and 0 < whole < inf else log(factor))
        return moves


def _by_links(case: _Case, ends: tcp.Missed) -> list[float]:
    """Return the logarithms by which runs end earlier with the fastest links, or later."""
    if ends.low >= ends.high:
        return [0.0, 0.0]
    working = 1 - sum(map(held_up, case.runs)) / len(case.runs)
    share = breakdown(case.runs)["communicate"] / (working or 1.0)
    factors = ends.low / ends.median, ends.high / ends.median
    # NCCL's transmission beyond the plan counts as latency, but slow hosts lengthen it.
    way = ClosedForm(case.alone).way("mean", case.alone.model.bytes, None)
    part = way.extra / (way.extra + (way.delay or 0.0)) if way.extra else 0.0
    pairs = zip(factors, ends.latency or factors, strict=True)
    latency = {factor: part * factor + (1 - part) * bare for factor, bare in pairs} | {1.0: 1.0}

    def slowed(scenario: Scenario, factor: float) -> Scenario:
        overhead, rest = tcp.costs(scenario), {"latency_factor": latency[factor]}
        times = dict.fromkeys(("transmission_factor", "message_factor"), factor) | rest
        update = {key: times[key] * getattr(overhead, key) for key in times}
        return scenario.model_copy(update={"overhead": (overhead.model_copy(update=update),)})

    moves = []
    for factor, moved in zip(factors, case.moved(slowed, factors), strict=True):
        # NCCL's latencies stay the same: at least the visible time changes.
        least, most = sorted((log1p(share * (latency[factor] - 1)), log(factor)))
        moves.append(min(max(moved, least), most))
    return moves


def _longer(scenario: Scenario, name: str, factor: float) -> float:
    """Return the share by which steps lengthen if the named part takes `factor` times as long."""
    before = max(scenario.team.mean_compute)
    if factor == 1 or not 0 < before < inf:
        return 0.0
    inner = max(worker.inner for worker in scenario.team.workers)
    if name != INSIDE:
        return (1 - inner / before) * (factor - 1)
    return max(_by_inner(scenario, factor).team.mean_compute) / before - 1


def _by_inner(scenario: Scenario, factor: float) -> Scenario:
    """Return a scenario whose links inside workers take `factor` times as long per byte."""

    def slowed(group: Group) -> Group:
        inner = group.inner
        slower = inner and inner.model_copy(update={"bandwidth": inner.bandwidth / factor})
        return group.model_copy(update={"inner": slower})

    cluster = scenario.cluster
    groups = tuple(map(slowed, cluster.group))
    return scenario.model_copy(update={"cluster": cluster.model_copy(update={"group": groups})})


def _on_gpus(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float:
    """Return the largest share by which computing on GPUs may lengthen the time."""
    share = breakdown(runs)
    held = held_share(scenario, algorithm, runs) or 0.0
    hidden = min(max(held - share["communicate"], 0.0), share["compute"])
    if "beside_collectives" in scenario.cluster.model_fields_set:
        hidden = 0.0  # the simulation includes it
    return BESIDE * hidden + COPIES * share["compute"] * (algorithm.name == "ssgd-bucketed")


def _short(scenario: Scenario, run: Run, *, looks: bool, periods: int = PERIODS) -> Scenario:
    """Return a scenario with enough steps for the step time; `looks`: with the loss."""
    taus = {tau for tau in run.curve["tau"] if isfinite(tau)} or {1.0}
    update: dict[str, Any] = {} if looks else {"objective": NoObjective(kind="none")}
    steps = int(max(periods * max(taus), FEWEST))
    if len(taus) == 1 and (steps < run.steps or scenario.calibration):  # which may be cut early
        steps = max(1, min(steps, int(run.steps)))
        ends = {"steps": steps, "duration": None, "evaluate_every": steps}
        update["run"] = scenario.run.model_copy(update=ends)
    return scenario.model_copy(update=update)


def short_pace(scenario: Scenario, algorithm: Algorithm, run: Run, most: float) -> float | None:
    """Return the seconds per step of a run of at most `most` gradients; None if it needs more."""
    tau = max((one for one in run.curve["tau"] if isfinite(one)), default=1.0)
    periods = max(PAIRED, ceil(FEWEST / tau))  # whole ones
    short = _short(scenario.under(algorithm), run, looks=False, periods=periods)
    steps = short.run.steps or inf
    if short.run.duration is not None or steps * short.cluster.workers > most:
        return None
    (pace,) = _pace(short, algorithm, run.seed, Execution())
    return pace if 0 < pace < inf else None


def _pace(
    scenario: Scenario, algorithm: Algorithm, seed: int, execution: Execution,
    replicates: Sequence[int] | None = None,
) -> list[float]:  # fmt: skip
    """Return the seconds per step without crashes, for every replicate if there are any."""
    seeds = [seed for _ in replicates or [0]]
    runs = execution.run(scenario, algorithm, seeds, replicates=replicates)
    return [prediction_interval.pace(run) * (1 - held_up(run)) for run in runs]
