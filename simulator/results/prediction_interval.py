"""Compute prediction intervals of runs from the errors of models of time and loss.

Two errors add up, both estimated from few values. Bootstrap replicates show the errors of
calibrated numbers and of chance; programs without fitted runs show the model's error. Draws of all
algorithms are joint, so that errors that two of them share cancel in their ratio.
"""

import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, expm1, hypot, inf, isfinite, log, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..inputs import untrusted
from ..network import tcp
from ..network.closed_form import ClosedForm
from ..network.libraries import NVLINK
from ..scenario import hardware
from ..scenario.overhead import MeasuredRange, ModelError
from ..scenario.scenario import Algorithm, Scenario
from . import statistics
from .intervals import LEVEL, NORMAL, USUAL
from .order import MARGIN
from .run import Run
from .statistics import at, crossing

MODEL_ERROR = Path(__file__).with_name("model_error.toml")
PUBLISHED = Path(__file__).with_name("published.csv")
FEWEST = 20  # published measurements of one kind, below which those of a wider kind are used
PACE, TARGET = "seconds_per_step", "time_to_target"
DRAWS = 200  # as many draws as of a learning curve, because they are drawn together
WIDE = 0.4  # logarithm of the slowest over the predicted time, from which its cause is named
TELLING = 0.05  # share of the time above which a measurement says something about collectives
ON_GPUS = ("nccl", "byteps")  # libraries that compute on the devices of their programs
FITTED = "standard errors of the profile, which was fitted to this program under similar conditions"
WHY_NOT = (
    "none: ideal links without a library or card describe no machine; "
    'write network.transport = "tcp", a network.library or a network.card, or extend a profile'
)
ALONE = "standard errors of the profile alone: it states no error of the model"


@dataclass(frozen=True)
class Spread:
    """A variance of logarithms, estimated with `freedom` degrees of freedom."""

    variance: float
    freedom: float

    def __add__(self, other: "Spread") -> "Spread":
        """Add an independent spread; degrees of freedom by Welch and Satterthwaite."""
        whole = self.variance + other.variance
        if not 0 < whole < inf:
            return replace(self, variance=whole)
        parts = self.variance**2 / self.freedom + other.variance**2 / other.freedom
        return Spread(whole, whole**2 / parts)

    def within(self) -> float:
        """Return half the width of Student's interval of logarithms."""
        from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s

        return float(stdtrit(self.freedom, (1 + LEVEL) / 2) * sqrt(self.variance))


@dataclass(frozen=True)
class Unfitted:
    """The model's error for a program of some `family` without fitted runs."""

    error: ModelError
    family: str | None

    def spreads(self, quantity: str) -> tuple[Spread, Spread]:
        """Return how far measured values lie below and above predictions with equal delays."""
        model = Spread(self.error.of(quantity, self.family) ** 2, self.error.programs - 1)
        return model, model

    @property
    def basis(self) -> str:
        """The source of the error, in words."""
        has_family = self.family in self.error.seconds_per_step
        kind = f"{self.family} programs" if has_family else "the family with the largest errors"
        source = f" ({self.error.source})" if self.error.source else ""
        return (
            "standard errors of the profile, and the model's error, learnt from "
            f"{self.error.programs} programs without fitted runs{source}: that of {kind}"
        )


def model_errors() -> Mapping[str, Any]:
    """Return the model's errors in the validation matrix, by kind of network.

    Tables [calibration.model_error] for "emulated" delays and "real" links; the file is written by
    `python -m tests.lab.evidence.model_error`.
    """
    errors: Mapping[str, Any] = untrusted.packaged(__file__, MODEL_ERROR.name)
    return errors


@dataclass(frozen=True)
class Uncalibrated(Unfitted):
    """The error of a prediction over TCP without a profile.

    `faster`, `slower`: logarithms of the time with links at the 5 and 95 % quantiles of `source`,
    over the predicted time. `conditions`: the number of conditions behind the quantiles. `cause`:
    the largest part of `slower`.
    """

    faster: float
    slower: float
    conditions: int
    source: str
    cause: str = ""

    def spreads(self, quantity: str) -> tuple[Spread, Spread]:
        """Return the spreads due to the model and to the time in links."""
        model, freedom = super().spreads(quantity)[0], self.conditions - 1
        below, above = (Spread((x / NORMAL) ** 2, freedom) for x in (self.faster, self.slower))
        return model + below, model + above

    def factors(self, program: str, quantity: str) -> np.ndarray:
        """Draw factors of times, jointly for all programs.

        All programs use the same links, so an error of the links affects them together. The model's
        error is the same for all parameters of a program.
        """
        links = _student("links", self.conditions - 1) / NORMAL
        model = self.error.of(quantity, self.family) * _student(program, self.error.programs - 1)
        factors: np.ndarray = np.exp(np.where(links > 0, self.slower, -self.faster) * links + model)
        return factors

    @property
    def basis(self) -> str:
        """The source of the error, and the largest cause of a wide one."""
        wide = bool(self.cause) and self.slower > WIDE
        return (
            f"no profile: {self.source} (docs/transport.md), and the validation matrix in "
            f"{self.error.programs} programs ({self.error.source}); calibrate to narrow them"
        ) + f"; a run may take {exp(self.slower):.2g} times as long, mostly by {self.cause}" * wide


@dataclass(frozen=True)
class Calibrated(Unfitted):
    """The error of times from a profile, and of the model for unfitted programs.

    `logs`: logarithm of each replicate's step time over the one as written; inf if it stalls.
    """

    logs: Sequence[float]

    def spreads(self, quantity: str) -> tuple[Spread, Spread]:
        """Return the spreads due to the model and to replicates; infinite if a replicate stalls."""
        model, ended = super().spreads(quantity)[0], [log for log in self.logs if log < inf]
        variance = float(np.var(ended, ddof=1)) + float(np.mean(ended)) ** 2
        variances = variance, variance if len(ended) == len(self.logs) else inf
        below, above = (Spread(x, len(ended) - 1) for x in variances)
        return model + below, model + above

    def factors(self, program: str, quantity: str) -> np.ndarray:
        """Draw factors of times from replicates, jointly for all programs.

        If one of `count` replicates stalls, that share of the draws is infinite.
        """
        rng, count = np.random.default_rng([*b"profile"]), len(self.logs)
        normal, logs = rng.standard_normal((count, DRAWS)), np.array(self.logs)
        drawn, ended = normal / np.sqrt(rng.chisquare(count, DRAWS)), logs < inf
        factors = np.exp(logs[ended] @ drawn[ended] * sqrt(count / ended.sum()))
        stalls = normal[~ended] > np.quantile(normal, 1 - 1 / count)
        return np.where(stalls.any(axis=0), inf, factors)


TimeModel = Uncalibrated | Calibrated


def _student(source: str, freedom: float) -> np.ndarray:
    """Draw Student's numbers; the name of their source determines them."""
    return np.random.default_rng([*source.encode()]).standard_t(freedom, DRAWS)


class Kind(NamedTuple):
    """The fields that group published measurements, the most specific first."""

    place: str
    transport: str
    library: str


class Published(NamedTuple):
    """A published measurement: its kind, and the logarithm of measured over predicted time.

    `below` and `above`: logarithms for the ends of the prediction's 90 % interval without `beyond`.
    `held`: the share of the time that collectives take, hidden or not.
    """

    source: str
    kind: Kind
    residual: float
    below: float
    above: float
    held: float


@cache
def published() -> list[Published]:
    """Return prediction errors of published measurements, as `make published` writes them.

    Scenarios state only what the sources state, so these errors include omissions of the sources.
    """
    rows = csv.DictReader(untrusted.text(PUBLISHED).splitlines())
    return [
        Published(
            row["source"],
            Kind(row["place"], row["transport"], row["library"]),
            *(float(row[key]) for key in Published._fields[2:]),
        )
        for row in rows
    ]


def kind(scenario: Scenario) -> Kind | None:
    """Return the kind of a scenario's means; None for links and libraries without a name."""
    network, workers = scenario.network, scenario.cluster.workers
    boxes = [group.inner for group in scenario.cluster.group if group.inner is not None]
    lines: list[Any] = [*boxes] if workers == 1 else [network, *network.link, *boxes]
    if not any(line.card for line in lines) and (network.library == "ideal" or workers == 1):
        return None
    if len(ClosedForm(scenario).hosts(range(workers))) == 1:
        return Kind("box", "", network.library)
    return Kind("cluster", network.transport, network.library)


def beyond(scenario: Scenario, rows: Sequence[Published]) -> float:
    """Return the error that published measurements show beyond an interval's other parts.

    It is the least share of the time in collectives, added in quadrature to both sides, with which
    90 % of measurements of the same kind lie inside their intervals (split conformal prediction;
    sources count equally). If a kind has fewer than `FEWEST`, a wider kind counts. Steps that spend
    almost all their time on computing are left out.
    """
    rows = [row for row in rows if row.held >= TELLING]
    if not rows or (wanted := kind(scenario)) is None:
        return 0.0
    levels = ([row for row in rows if row.kind[:depth] == wanted[:depth]] for depth in (3, 2, 1, 0))
    alike = next((level for level in levels if len(level) >= FEWEST), rows)
    counts = Counter(row.source for row in alike)
    ends = (row.above if row.residual > 0 else row.below for row in alike)
    scores = sorted(
        (expm1(sqrt(max(0.0, row.residual**2 - end**2))) / row.held, row.source)
        for row, end in zip(alike, ends, strict=True)
    )
    mass = np.cumsum([1 / counts[source] for _, source in scores]) / len(counts)
    level = LEVEL * (1 + 1 / len(alike))
    return scores[min(int(np.searchsorted(mass, level)), len(alike) - 1)][0]


def links(scenario: Scenario) -> tuple[tcp.Missed, str] | None:
    """Return the error of predicted link times, and the sources of this error in words.

    Return None with a profile, or for ideal links of no catalogued kind. For links of GPUs, the
    error is only the spread of their kind; computing of GPUs has an error of its own.
    """
    network, facts = scenario.network, tcp.measured()
    if scenario.calibration:
        return None
    fast, slow, kind = hardware_spread(scenario)
    missed, sources = tcp.Missed(1.0, 1.0, 1.0, int(facts["collectives"])), [*filter(None, [kind])]
    gpus = "what published GPUs add to computing beside"
    if network.transport == "tcp":
        missed = tcp.missed(scenario)
        sources += [f"what network.transport missed in {facts['collectives']} conditions of links"]
        if network.library == "nccl":  # whose version and settings also choose the algorithm
            other = ClosedForm(scenario).way("mean", scenario.model.bytes, None).other
            low, high = missed.low * min(1, other), missed.high * max(1, other)
            missed = missed._replace(low=low, high=high)
            sources[-1] += " (with gloo and plain sockets)"
            sources += [
                f"what {facts['hosts']} published hosts move through NCCL's",
                f"NCCL's other algorithm, and {gpus} it",
            ]
    elif network.library in ON_GPUS:
        sources += [f"{gpus} collectives"]
    if not sources:
        return None
    low = missed.median * exp(-hypot(log(missed.median / missed.low), log(fast)))
    high = missed.median * exp(hypot(log(missed.high / missed.median), log(slow)))
    return missed._replace(low=low, high=high), ", ".join(sources)


def hardware_spread(scenario: Scenario) -> tuple[float, float, str]:
    """Return the least and largest factor of the time on a mean's slowest line, and why.

    A hand-written link inside a host does not tell whether GPUs transfer peer to peer.
    """
    settings, nothing = scenario.network, (1.0, 1.0, "")
    named = any(line.card for line in (settings, *settings.link))
    if not named and settings.library != "nccl":  # nothing to look up, for any number of workers
        return nothing
    formula = ClosedForm(scenario)
    if formula.given is not None or not formula.mean_plan.path or settings.platform is not None:
        return nothing
    slowest = min(formula.mean_plan.path, key=lambda link: link.bandwidth)
    ends = slowest.name.split("->")
    if len(ends) != 2:
        return nothing
    line = formula.places.link(ends[0], ends[1]) or settings
    if line.card is not None and line.bandwidth == hardware.link_kind(line.card).bandwidth:
        fast, slow = hardware.link_kind(line.card).slowdowns
        return fast, slow, f"the spread of {line.card} (list hardware)" if slow > 1 else ""
    staged = hardware.link_kind("pcie3-host").bandwidth
    if ends[0] == ends[1] and settings.library == "nccl" and staged < slowest.bandwidth <= NVLINK:
        return 1.0, slowest.bandwidth / staged, "PCIe, perhaps staged through the host"
    return nothing


def outside(scenario: Scenario, measured: MeasuredRange) -> list[str]:
    """Return the quantities outside the measured ranges, and these ranges.

    Steps, payloads and latencies may be half below the smallest measured value, or half above the
    largest.
    """
    beyond = []
    steps = scenario.team.mean_compute
    quantities = (  # the predicted value, the measured values, words for them, relative slack
        (scenario.cluster.workers, measured.workers, "{:.0f} workers", 0.0),
        (sum(steps) / len(steps), measured.step, "steps of {:.3g} s", 0.5),
        (scenario.model.bytes, measured.bytes, "payloads of {:.3g} bytes", 0.5),
        (ClosedForm(scenario).hop, measured.latency, "latencies of {:.3g} s", 0.5),
    )
    for value, limits, text, slack in quantities:
        if limits and not (1 - slack) * min(limits) <= value <= (1 + slack) * max(limits):
            ends = dict.fromkeys(text.format(end) for end in (min(limits), max(limits)))
            beyond.append(f"{text.format(value)}, measured at {' to '.join(ends)}")
    return beyond


def extrapolation(scenario: Scenario) -> list[str]:
    """Return a note that names the quantities outside the calibrated range."""
    if scenario.calibration is None:
        return []
    beyond = outside(scenario, scenario.calibration.measured)
    return [f"outside the calibrated range: {'; '.join(beyond)}"] if beyond else []


def unfitted(scenario: Scenario, algorithm: Algorithm, family: str | None) -> Unfitted | None:
    """Return the model's error for an algorithm of a scenario.

    None if the profile states none, or was fitted to this program under similar conditions.
    """
    profile = scenario.calibration
    if profile is None or profile.model_error is None:
        return None
    if algorithm.words in profile.fitted and not outside(scenario, profile.measured):
        return None
    return Unfitted(profile.model_error, family)


def basis(scenario: Scenario, model: Unfitted | None) -> str:
    """Return, in words, the errors that an interval contains, or why there is none."""
    if scenario.calibration is None and model is None:
        return WHY_NOT
    stated = scenario.calibration is not None and scenario.calibration.model_error is not None
    return model.basis if model else FITTED if stated else ALONE


def sources(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in words the errors that intervals contain, by the labels of `rows`."""
    labels = dict[str, list[str]]()
    for row in rows:
        if row["seconds_per_step"].get("interval90"):
            labels.setdefault(row["interval90_basis"], []).append(row["label"])
    return [f"{USUAL} intervals of {', '.join(names)}: {basis}." for basis, names in labels.items()]


def pace(run: Run) -> float:
    """Return a run's seconds per step; infinite if it stalls."""
    return inf if run.stall else statistics.seconds_per_step(run)


def intervals(
    runs: Sequence[Run],
    replicates: Sequence[Run],
    *,
    target: float | None,
    paired: bool,
    model: Unfitted | None = None,
) -> dict[str, list[float] | None]:
    """Return intervals, by quantity, that contain a measured run at `LEVEL`.

    `runs` use the calibrated numbers; `replicates` use redrawn numbers, and are empty without a
    profile. `paired`: the measured run has the same delays as `runs`, seed by seed; otherwise its
    delays are independent. `model`: the error of the model itself.
    """
    quantities: dict[str, Callable[[Run], float]] = {PACE: pace}
    if target is not None:
        quantities[TARGET] = lambda run: statistics.crossing(run, target)

    places = {run.seed: place for place, run in enumerate(runs)}
    partners = [places[run.seed] for run in replicates] if paired else None
    lost, again = ([*map(statistics.held_up, same)] for same in (runs, replicates))
    return {
        name: of_one_run(
            [*map(of, runs)],
            model.spreads(name) if model else (),
            lost,
            _without_crashes([*map(of, replicates)], again)[0],
            partners,
        )
        for name, of in quantities.items()
    }


def of_one_run(
    values: Sequence[float],
    spreads: Sequence[Spread],
    held_up: Sequence[float],
    again: Sequence[float] = (),
    partners: Sequence[int] | None = None,
) -> list[float] | None:
    """Return Student's interval of one measured, lognormal value around the mean of `values`.

    Crashes never save time, so no lower end is below that of a run without crashes, even if seeds
    have few crashes. None if the spread is unknown; the upper end is infinite if some replicate has
    no value.

    Args:
        values: one for each seed.
        spreads: see `Unfitted.spreads`, or none.
        held_up: see `statistics.held_up`, one for each value.
        again: values of replicates without the time of crashes.
        partners: for each replicate, the place of the value with the same delays, if the measured
            run has these delays, too.
    """
    times, added = _without_crashes(values, held_up)
    count, paired = len(times), partners is not None
    centre = sum(times) / count
    bases = [centre] * len(again) if partners is None else [times[place] for place in partners]
    logs = _logs(again, bases)
    seeded = _logs(times, [centre] * count)
    if not again and len(seeded) > 1 and not paired:  # without a profile: independent delays
        logs = seeded
    if (again and len(logs) < 2) or not isfinite(centre):
        return None
    variance = float(np.var(logs, ddof=1)) if logs else 0.0
    if again:  # Replicates may centre elsewhere: seeds are few, or measurements ambiguous.
        variance += float(np.mean(logs)) ** 2
    elif logs:  # The centre is a mean over seeds, and itself uncertain.
        variance *= 1 + 1 / len(logs)
    chance = Spread(variance, max(len(logs) - 1, 1))
    below, above = ((chance + of if of else chance).within() for of in spreads or (None, None))
    high = centre * exp(above) if len(logs) >= len(again) else inf
    low, cost = centre * exp(-below), sum(added) / count
    if not cost or paired:  # the measured run has the same crashes
        return [low + cost, high + cost]
    variance = cost**2 if count == 1 else float(np.var(added, ddof=1)) * (1 + 1 / count)
    half = sqrt(variance) if count == 1 else Spread(variance, count - 1).within()
    return [low + max(cost - half, 0.0), centre + cost + float(np.hypot(high - centre, half))]


def _without_crashes(
    values: Sequence[float], held_up: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Split times by the shares that crashes cost: the times without, and what crashes add."""
    pairs = zip(values, held_up, strict=True)
    added = [time * share if share else 0.0 for time, share in pairs]
    return [time - lost if lost else time for time, lost in zip(values, added, strict=True)], added


def _logs(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Return the logarithms of the ratios that are positive and finite."""
    pairs = zip(values, bases, strict=True)
    return [log(a / b) for a, b in pairs if 0 < a < inf and 0 < b < inf]


class Errors(NamedTuple):
    """Errors of an algorithm's predictions: of its `loss`, and draws of a factor of times.

    `links`: the source of these draws. `stated`: 90 % intervals of one run in tables, by measure.
    """

    loss: Any = None  # an `Expected` of objectives.learning_curve
    times: np.ndarray | None = None
    links: TimeModel | None = None
    stated: Mapping[str, Any] = MappingProxyType({})

    def of_loss(self, runs: Sequence[Run], time: float) -> np.ndarray:
        """Draw a factor of the loss at `time` (seconds); slower runs have done fewer steps."""
        result = np.ones(1)
        if self.loss is not None:
            result = self.loss.factors(step_at(runs, time))[:, 0]
        if self.times is None:
            return result
        times = time / np.append(1.0, np.minimum(self.times, sys.float_info.max))
        losses = [np.interp(times, run.curve["time"], run.curve["loss"]) for run in runs]
        there = np.mean(losses, axis=0)
        moved: np.ndarray = result * there[1:] / there[0]
        return moved

    def to_target(self, runs: Sequence[Run], target: float) -> np.ndarray:
        """Draw a factor of the time to reach a loss or, if no run reaches it, of the time spent."""
        factors = np.ones(1)
        if self.loss is not None:
            times = [crossing(run, target) for run in runs]
            pairs = zip(runs, times, strict=True)
            steps = [at(run, time, "step") for run, time in pairs if isfinite(time)]
            step, gain = runs[0].curve["step"][-1], target / runs[0].curve["loss"][-1]
            if steps:
                step, gain = sum(steps) / len(steps), 1.0
            if step > 0 and isfinite(gain):
                factors = self.loss.stretches(step, gain)
        moved: np.ndarray = factors if self.times is None else factors * self.times
        return moved

    def worth(self, runs: Sequence[Run], time: float) -> float:
        """Return the relative change of the loss at `time` (s) for `MARGIN` of the steps."""
        return MARGIN if self.loss is None else self.loss.worth(step_at(runs, time), MARGIN)


NO_ERRORS = Errors()
Models = Mapping[str, Errors]
"""Errors of algorithms by label; empty if neither losses nor times have any."""
NO_MODELS: Models = {}


def step_at(runs: Sequence[Run], time: float) -> float:
    """Return the mean step of runs at `time` (seconds)."""
    return sum(at(run, time, "step") for run in runs) / len(runs)
