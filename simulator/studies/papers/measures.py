"""Measure the papers' claims by functions of a `Lab`; `[measure]` tables name them.

Most claims are a `compare`: a quantity of one algorithm against that of another, seed by seed. A
`series` reduces several comparisons, a row each, to one number per seed by one of `REDUCTIONS`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from ... import theory as theories
from ...load.load import load
from ...results.intervals import signed
from ...results.run import Run
from ...results.statistics import at, crossing, number, sampled, seconds_per_step
from ...scenario.scenario import Scenario
from .. import size
from ..execution import Execution
from ..executors import Place
from ..result import Result
from ..simulate import run_on


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    IN_SIGN = "holds in sign"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    INCONSISTENT = "inconsistent in the paper"


class Kind(StrEnum):
    """The source of a claim's number; only printed numbers test a prediction."""

    PRINTED = "printed"  # the paper prints this number or order, and nothing was fitted to it
    FITTED = "fitted"  # a free parameter was fitted to it, or to its sign or order
    DERIVED = "derived"  # it follows from the paper's stated setting or results
    DEFINITION = "definition"  # true by construction
    NOTES = "notes"  # only course notes state it, which nobody can check here
    ADDED = "added"  # the paper omits the claim or its setting; the basis says why we ask


@dataclass(frozen=True)
class Finding:
    """The result of our runs: a value, its 95 % interval over seeds (None: exact), and a note."""

    value: float
    ci95: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """One claim: `says` states it, `measure` checks it by runs, `why` explains it.

    `place`: its place in the paper, such as "figure 5a; section 5". `basis`: the free parameter of
    a fitted claim, the formula of a derived one, the reason why a definition is true, the source of
    an added one. `expected` is the claimed number, None if the paper only gives an order.
    `given_by`: its source, which is the paper, a formula, or the notes named by `basis`. `within`:
    the relative error up to which our number counts as equal. `neutral` is the value that means "no
    effect": an order holds if our number is above it (or `below` it), and a sign holds if both
    numbers are on the same side. `inconsistent`: in our judgement the paper contradicts the claim.
    `timing`: the claim needs no learning and takes seconds. `assumptions`: other choices where the
    paper leaves one open, with `what` and the `sets` of overrides. `stand_in`: for a claim on real
    data, the same claim on a stand-in, as "paper: claim".
    """

    name: str
    says: str
    measure: Callable[[Any], Finding]
    why: str
    kind: Kind = Kind.PRINTED
    place: str = ""
    basis: str = ""
    expected: float | None = None
    given_by: Literal["paper", "formula", "notes"] = "paper"
    within: float = 0.05
    neutral: float | None = None
    below: bool = False
    inconsistent: bool = False
    timing: bool = False
    unit: str = ""
    assumptions: Sequence[Mapping[str, Any]] = ()
    stand_in: str = ""

    def verdict(self, finding: Finding) -> Verdict:
        """Return the verdict on the claim by `finding`.

        A number holds within our interval or its tolerance. Otherwise the claimed side of `neutral`
        decides (without it, the tolerance): all of the interval there, none of it, or a part.
        """
        low, high = finding.ci95 or (finding.value, finding.value)
        if self.expected is not None and (
            low <= self.expected <= high or close(finding.value, self.expected, self.within)
        ):
            return Verdict.HOLDS
        sides = {self._right(value) for value in (low, finding.value, high)}
        if sides == {True}:
            return Verdict.HOLDS if self.expected is None else Verdict.IN_SIGN
        if self.inconsistent:
            return Verdict.INCONSISTENT
        return Verdict.FAILS if sides == {False} else Verdict.UNDECIDED

    @property
    def falling(self) -> bool:
        """Whether the claimed side of `neutral` lies below."""
        if self.expected is None or self.neutral is None:
            return self.below
        return self.expected < self.neutral

    def _right(self, value: float) -> bool:
        if self.neutral is not None:
            return value < self.neutral if self.falling else value > self.neutral
        return self.expected is not None and close(value, self.expected, self.within)


@dataclass(frozen=True)
class Paper:
    """A paper and its claims.

    `settings`: a paragraph on our substitutes for the paper's networks, data and machines.
    `figures`: figures to draw from a scenario's runs, by file name.
    """

    name: str
    title: str
    source: str
    settings: str
    claims: tuple[Claim, ...]
    figures: Mapping[str, Mapping[str, Any]]


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the claims by kind and verdict; `rows` are those of claims.json."""
    count = Counter((row["kind"], row["verdict"]) for row in rows)
    return {kind: {verdict: count[kind, verdict] for verdict in Verdict} for kind in Kind}


def close(value: float, expected: float, within: float) -> bool:
    """Return whether our number equals the paper's within a relative error."""
    return bool(np.isclose(value, expected, rtol=within, atol=0))


def mean(values: Sequence[float] | np.ndarray, note: str = "") -> Finding:
    """Return the mean of one value per seed, with Student's interval."""
    estimate = signed(values)
    return Finding(round(estimate.value, 9), estimate.ci95, note)  # without rounding errors


SAMPLES, POINTS = 50, 1000  # points at which to average a part of a curve, or all of it
COUNTS = (4, 8, 12, 16)  # HPSGD's numbers of workers
SCALARS = ("bytes", "settled")  # quantities with one value for all seeds

Values = np.ndarray
"""One value per seed."""
QUICK = 4
"""Seeds of a quick reproduction; a full one uses all seeds of the scenario."""


@dataclass(frozen=True)
class Lab:
    """The runs of claims. `sets`: overrides of every scenario, from an assumption.

    `place`: of all runs, because processes take longer to start than most runs. `trained`:
    overrides of scenarios that train something, such as the user's data; `changed`: files of
    scenarios that had them.
    """

    full: bool = False
    place: Place = field(default_factory=lambda: Place(Execution()))
    sets: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    changed: list[str] = field(default_factory=list)
    _results: dict[tuple[str, ...], Result] = field(default_factory=dict)

    def scenario(self, name: str, *sets: str) -> Scenario:
        """Load a shipped scenario with overrides, the assumption's last."""
        scenario = load(name, [*sets, *self.sets])
        if not self.trained or scenario.objective.kind not in ("softmax", "torch"):
            return scenario
        self.changed.append(scenario.file)
        return load(name, [*self.trained, *sets, *self.sets])

    def runs(self, name: str, *sets: str, labels: Sequence[str] = ()) -> Result:
        """Run the algorithms of a shipped scenario with overrides; `labels`: only these."""
        key, scenario = (name, *sets, *self.sets, *labels), self.scenario(name, *sets)
        if key not in self._results:
            if labels:
                chosen = tuple(one for one in scenario.algorithm if one.label in labels)
                scenario = scenario.model_copy(update={"algorithm": chosen})
            seeds = range(scenario.run.seeds if self.full else min(QUICK, scenario.run.seeds))
            size.demand([(scenario, seeds)], self.place.execution)
            self._results[key] = run_on(self.place, scenario, seeds)
        return self._results[key]

    def theory(self, name: str, *sets: str) -> dict[str, Any]:
        """Return the document of `paceline theory` for a shipped scenario with overrides."""
        return theories.theory(self.scenario(name, *sets))


def _reach(run: Run, level: float, by: str) -> float:
    """Return the time (or step) that first reaches a test accuracy; inf if never."""
    accuracy = np.array(run.curve["accuracy"])
    curve = {"time": run.curve[by], "loss": (-accuracy).tolist()}
    return crossing(replace(run, curve=curve), -level)


def _part(run: Run, low: float, high: float, until: float) -> float:
    """Return the mean loss between two shares of the time `until`."""
    return float(np.mean([at(run, share * until) for share in np.linspace(low, high, SAMPLES)]))


def _averaged(run: Run, until: float, metric: str) -> float:
    """Return a column of the curve, averaged from 0 to `until` (seconds); accuracy in points."""
    times, there = np.linspace(0, until, POINTS), np.isfinite(run.curve[metric])
    column, time = (np.array(run.curve[key])[there] for key in (metric, "time"))
    return (100 if metric == "accuracy" else 1) * float(np.interp(times, time, column).mean())


def _settled(run: Run) -> float:
    """Return the seconds per step of the second half of a run."""
    time, step = run.curve["time"], run.curve["step"]
    half = len(time) // 2
    return (time[-1] - time[half]) / (step[-1] - step[half])


QUANTITIES: Mapping[str, Callable[..., float]] = {
    "pace": seconds_per_step,
    "settled": _settled,
    "time": lambda run, level: min(crossing(run, level), run.duration),
    "end": lambda run: _part(run, 0.8, 1.0, run.duration),
    "accuracy": lambda run: 100 * run.curve["accuracy"][-1],
    "reach": _reach,
    "averaged": _averaged,
    "communicating": lambda run: run.seconds["communicate"] / sum(run.seconds.values()),
    "average per gradient": lambda run: run.seconds["communicate"] / run.seconds["compute"],
    "roughness": lambda run: np.abs(np.diff(run.curve["accuracy"][1:], n=2)).mean(),
}
OPERATIONS: Mapping[str, Callable[[Values, Values], Values]] = {
    "ratio": lambda one, other: one / other,
    "difference": lambda one, other: one - other,
    "percent": lambda one, other: 100 * (one / other - 1),
}


def values(
    lab: Lab, name: str, what: str, of: str | int, sets: Sequence[str] = (), **how: Any
) -> Values:
    """Return a quantity of one algorithm of a scenario, one value per seed.

    `of`: its label, its index in the scenario, or "best" (the lowest mean, but not of the last).
    """
    result = lab.runs(name, *sets, labels=how.pop("labels", ()))
    if what == "bytes":
        sent = {row["label"]: row["bytes_per_step"] for row in result.algorithms}
        return np.array([sent[of]])
    if what == "time":
        how.setdefault("level", result.scenario.run.target_loss)
    if what == "averaged":
        how.setdefault("until", result.scenario.run.duration)
    groups = [*result.groups.values()]
    if of == "best":
        rows = [[QUANTITIES[what](run, **how) for run in runs] for runs in groups[:-1]]
        return np.array(min(rows, key=np.mean))
    runs = groups[of] if isinstance(of, int) else result.groups[of]
    quantities = np.array([QUANTITIES[what](run, **how) for run in runs])
    return quantities[:1] if what in SCALARS else quantities


def tuned(
    lab: Lab, *, rates: Sequence[str] = (), sets: Sequence[str] = (), **how: Any
) -> tuple[Values, str]:
    """Return a quantity at the override of `rates` that is best for it, and its mean in words."""
    tried = [[rate] for rate in rates] or [[]]
    rows = [(values(lab, sets=[*sets, *rate], **how), rate) for rate in tried]
    best, rate = (max if "accuracy" in how.values() else min)(rows, key=lambda row: row[0].mean())
    return best, " ".join([number(float(best.mean())), *(f"({text})" for text in rate)])


def compared(
    lab: Lab, *, a: str | int, b: str | int = "", op: str = "ratio", **how: Any
) -> tuple[Values, str]:
    """Return a quantity of `a`, combined by `op` with any `b`'s, and both means in words."""
    one, shown = tuned(lab, of=a, **how)
    if b == "":
        return one, ""
    other, against = tuned(lab, of=b, **how)
    apart = np.round(OPERATIONS[op](one, other), 9)  # no rounding errors
    return apart, f"{shown} against {against}."


def compare(lab: Lab, *, scale: float = 1.0, **how: Any) -> Finding:
    """Return the result of `compared`, times `scale`."""
    apart, note = compared(lab, **how)
    if how["what"] in SCALARS:
        return Finding(float(scale * apart[0]), note=note)
    return mean(scale * apart, note)


def series(lab: Lab, *, parts: Sequence[Mapping[str, Any]], reduce: str) -> Finding:
    """Return several comparisons, reduced to one number per seed."""
    return _reduced([compared(lab, **part)[0] for part in parts], reduce)


def _reduced(parts: Sequence[Values], reduce: str) -> Finding:
    means = ", ".join(number(float(part.mean())) for part in parts)
    return mean(REDUCTIONS[reduce](np.array(parts)), f"Of {means}.")


def _lowest(rows: Values) -> Values:
    return np.asarray(rows[np.argmin(rows.mean(axis=1))])


REDUCTIONS: Mapping[str, Callable[[Values], Values]] = {
    "lowest": _lowest,  # lowest mean over seeds
    "each seed's lowest": lambda rows: rows.min(axis=0),
    "rise": lambda rows: _lowest(np.diff(rows, axis=0)),
    "span": lambda rows: rows[-1] - rows[0],
    "ratio": lambda rows: rows[0] / rows[1],
    "slope": lambda rows: np.polyfit(range(len(rows)), rows, 1)[0],
}


def qualified(lab: Lab, *, names: Sequence[str], least: float) -> Finding:
    """Return AdaComm's largest speed-up where tau = 1's final loss is `least` times its own."""
    low = [
        name for name in names if compared(lab, name=name, what="end", a=0, b=-1)[0].mean() >= least
    ]
    speedups = [compare(lab, name=name, what="time", a=0, b=-1) for name in low]
    return max(speedups, key=lambda finding: finding.value)


def theory(lab: Lab, *, name: str, path: str) -> Finding:
    """Return a number of `paceline theory --json` by its path of keys, indices or "key=value"."""
    here: Any = lab.theory(name)
    for part in path.split("."):
        key, _, wanted = part.partition("=")
        if wanted:
            here = next(row for row in here if f"{row[key]:g}" == wanted)
        else:
            here = here[int(key)] if isinstance(here, list) else here[key]
    return Finding(here)


# AdaComm


def plateau(lab: Lab, *, name: str, steps: int, sets: Sequence[str] = ()) -> Finding:
    """Return AdaComm's fall in loss in the second half of `steps` of tau = 1, relative to its."""
    one, *_, adaptive = lab.runs(name, *sets).groups.values()
    ends = [float(np.interp(steps, run.curve["step"], run.curve["time"])) for run in one]
    falls = [
        np.array([_part(run, 0.4, 0.6, end) / _part(run, 0.8, 1.0, end)
                  for run, end in zip(runs, ends, strict=True)])
        for runs in (one, adaptive)
    ]  # fmt: skip
    return mean(falls[1] / falls[0])


# DTS


def scales(lab: Lab, *, name: str, label: str, sets: Sequence[str] = ()) -> Finding:
    """Return the share of a settled step that is spent computing."""
    step = float(values(lab, name, "settled", label, sets)[0])
    compute = lab.scenario(name, *sets).cluster.compute.expectation
    return Finding(compute / step, note=f"A step takes {step:.4g} s.")


# HPSGD


def across(lab: Lab, *, reduce: str, sets: Sequence[str] = (), **how: Any) -> Finding:
    """Return how a comparison changes with the number of workers."""
    parts = [{**how, "sets": [f"cluster.workers={count}", *sets]} for count in COUNTS]
    return series(lab, parts=parts, reduce=reduce)


def kept(lab: Lab, *, of: str, over: str = "", **how: Any) -> Finding:
    """Return the percentage of scale efficiency kept from 4 to 16 workers, minus `over`'s."""
    left = [
        100 * np.divide(*(compared(lab, a=label, b="psgd", sets=[f"cluster.workers={count}"], **how)
                          [0] for count in (COUNTS[0], COUNTS[-1])))
        for label in (of, over) if label
    ]  # fmt: skip
    shares = " and ".join(f"{float(share.mean()):.1f} %" for share in left)
    return mean(np.round(left[0] - left[1] if over else left[0], 9), f"Kept: {shares}.")


def by_then(lab: Lab, *, name: str, than: str) -> Finding:
    """Return HPSGD's smallest lead in accuracy (points) at three times."""
    runs = lab.runs(name).groups
    times = np.array([0.25, 0.5, 1.0]) * min(run.duration for run in runs["hpsgd"])
    ours, theirs = (100 * sampled(runs[label], "accuracy", times) for label in ("hpsgd", than))
    leads = np.round(ours - theirs, 9)
    least = int(np.argmin(leads.mean(axis=0)))
    return mean(leads[:, least], f"The smallest is after {times[least]:.3g} s.")


# Hybrid: tables of cells, each a scenario with settings


def leads(
    lab: Lab, table: Sequence[Mapping[str, Any]], metric: str = "accuracy", other: str = "asgd",
    sets: Sequence[str] = (),
) -> np.ndarray:  # fmt: skip
    """Return hybrid's metrics minus another algorithm's, averaged over time: (cells, seeds)."""
    rows = []
    for cell in table:
        hybrid = f"hybrid, s = {cell.get('step_size', 500)}"
        how: dict[str, Any] = {"labels": (hybrid, other), "metric": metric, "what": "averaged"}
        how |= {"sets": [*cell.get("sets", ()), *sets], "op": "difference"}
        rows.append(compared(lab, a=hybrid, b=other, name=cell["scenario"], **how)[0])
    return np.array(rows)


def least(
    lab: Lab, *, table: Sequence[Mapping[str, Any]], metric: str = "accuracy", other: str = "asgd"
) -> Finding:
    """Return the smallest lead of a table's means over seeds."""
    better = 1 if metric == "accuracy" else -1
    return _reduced([*better * leads(lab, table, metric, other)], "lowest")


def cell(lab: Lab, *, table: Sequence[Mapping[str, Any]], name: str, **how: Any) -> Finding:
    """Return one number of a table."""
    return mean(leads(lab, [row for row in table if row["cell"] == name], **how)[0])


def step(
    lab: Lab, *, table: Sequence[Mapping[str, Any]], before: Sequence[int], after: Sequence[int]
) -> Finding:
    """Return the difference between the mean leads of two sets of cells."""
    return harder(lab, tables=[[table[at] for at in places] for places in (before, after)])


def harder(lab: Lab, *, tables: Sequence[Sequence[Mapping[str, Any]]]) -> Finding:
    """Return the difference between the mean leads of two tables."""
    one, other = (leads(lab, table).mean(axis=0) for table in tables)
    return mean(one - other)
