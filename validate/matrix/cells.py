"""Cells of the validation matrix: one algorithm under one condition, predicted and measured.

They are read from run directories alone, so that a report can be remade without measuring.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.simulator.load.load import known_programs
from paceline.simulator.results.statistics import jsonable
from paceline.simulator.scenario.overhead import Overhead

from ..calibration import overheads, sources
from ..calibration.overheads import TERMS, Nominal, RunEvents
from ..comparison import quantities
from ..comparison.compare import Comparison, compare
from ..comparison.quantities import PACE, TARGET, Row

Cell = dict[str, Any]
"""One program under one condition; see `cells`."""


@dataclass(frozen=True)
class Sides:
    """The run directories of one condition.

    `paired`: predicted with the seeds of `measured`, hence the same delays; `independent`: with
    other seeds; `quadratic`: likewise, with the calibrated quadratic; None if data are uneven.
    """

    measured: Path
    paired: Path
    independent: Path
    quadratic: Path | None = None


def cells(name: str, sides: Sides, costs: Overhead, loss: float | None = None) -> list[Cell]:
    """Return a cell for every algorithm of the condition `name`.

    `costs`: overheads of the profile for this number of workers; `loss`: the lowest that the
    quadratic was fitted to. Each cell has `counted` and `reasons`; errors are relative, times in
    seconds;
    `seconds_per_step` and `time_to_target` of the paired prediction, with `nominal` and the share
    of the excess over it that is `explained`; both again under `independent`, with the stated
    interval and whether the measured value is `inside`; `quadratic`; `terms`, of which
    `attribution` names the one with the largest error per step.
    """
    paired, apart = (compare(each, sides.measured) for each in (sides.paired, sides.independent))
    quadratic = compare(sides.quadratic, sides.measured) if sides.quadratic else None
    (source,) = sources.read([sides.measured], allow_paths=True)
    runs = {run.algorithm.label: run for run in source.runs}
    scenario, programs = source.scenario, known_programs(None)
    found = []
    for label in paired.labels:
        pace = paired.of(PACE, counted=False)[label]
        cell = {
            "condition": name,
            "workers": scenario.cluster.workers,
            "network": scenario.validation.network,
            "program": label,
            "asynchronous": programs[paired.measured.rows[label]["name"]].asynchronous,
            "counted": label in paired.counted and label not in paired.disturbed,
            "reasons": paired.not_counted.get(label, ["disturbed"] * (label in paired.disturbed)),
            PACE: _brief(pace) | {"nominal": paired.excess[label]["nominal"]},
            TARGET: _brief(paired.of(TARGET, counted=False).get(label)),
            "independent": {each: _interval(apart, label, each) for each in (PACE, TARGET)},
            "quadratic": _quadratic(quadratic, label, loss),
            "to_blame": paired.attribution[label]["to_blame"],
            "terms": terms(runs[label], costs) if label in runs else {},
        }
        cell[PACE]["explained"] = explained([cell])
        found.append(dict(jsonable(cell)))
    return found


def explained(found: Sequence[Cell]) -> float | None:
    """Return the share of the measured excess over nominal that is predicted.

    1 - sum |measured - predicted| / sum |measured - nominal|, of seconds per step.
    """
    whole = [
        (each["measured"], each["predicted"], each["nominal"])
        for each in (cell[PACE] for cell in found)
        if None not in (each["measured"], each["predicted"], each["nominal"])
    ]
    beyond = sum(abs(measured - nominal) for measured, _, nominal in whole)
    rest = sum(abs(measured - predicted) for measured, predicted, _ in whole)
    return 1 - rest / beyond if beyond else None


def terms(run: RunEvents, costs: Overhead) -> dict[str, dict[str, float]]:
    """Compare each overhead term of a held-out run with the profile: seconds per event and step.

    `per_step`: seconds of a term beyond the profile's, over all nodes, per worker's step, whether
    or not other nodes waited for them.
    """
    shown = overheads.fit([run])
    steps = shown["step"].samples if "step" in shown else 0
    found = {}
    for name, term in ((each, shown[each]) for each in ("step", *TERMS) if each in shown and steps):
        known = _known(name, costs, run)
        found[name] = {
            "profile": known,
            "measured": term.mean,
            "se": term.se,
            "per_step": (term.mean - known) * term.samples / steps,
        }
    return found


def _known(name: str, costs: Overhead, run: RunEvents) -> float:
    if name == "step":
        return costs.step.expectation
    nominal = Nominal(run.scenario)
    more = {
        "collective": (costs.latency_factor - 1) * nominal.latency,
        "agree": costs.agree_latencies / 2 * nominal.question,
    }
    return float(getattr(costs, name)) + more.get(name, 0.0)


def attribution(cell: Cell) -> str | None:
    """Return the term with the largest error per step, None if no term is known."""
    sizes = {name: abs(term["per_step"]) for name, term in cell["terms"].items()}
    return max(sizes, key=sizes.__getitem__) if sizes else None


def _brief(row: Row | None) -> dict[str, Any]:
    return {key: row and row[key] for key in ("predicted", "measured", "error")}


def _interval(apart: Comparison, label: str, quantity: str) -> dict[str, Any]:
    """Return what independent seeds predict, with its interval, and whether that covers it."""
    row = apart.of(quantity, counted=False).get(label)
    measured = (apart.measured.rows[label].get(quantity) or {}).get("mean")
    stated = (apart.predicted.rows[label].get("interval90") or {}).get(quantity)
    inside = None
    if stated is not None and measured is not None:
        low, high = stated
        inside = low <= measured and (high is None or measured <= high)
    return _brief(row) | {"interval90": stated, "inside": inside}


def _quadratic(found: Comparison | None, label: str, lowest: float | None) -> dict[str, Any]:
    """Return the time to target predicted by the quadratic, or `why` there is none."""
    if found is None or lowest is None:
        why = "uneven data, or no error model"
    elif found.target is None or found.target < lowest:
        why = f"out of range: fitted to losses down to {lowest:.3g}"
    else:
        return _brief(found.of(TARGET, counted=False).get(label)) | {"why": None}
    return _brief(None) | {"why": why}


def kendall(found: Sequence[Cell], *where: str) -> float | None:
    """Return Kendall's tau over times to target; `where`: keys of the prediction in a cell."""
    rows = {}
    for cell in (each for each in found if each["counted"]):
        row: Any = cell
        for key in where:
            row = row[key]
        rows[cell["program"]] = row
    return quantities.ranks(rows)


def regret(found: Sequence[Cell]) -> dict[str, Any] | None:
    """Return the cost of trusting the prediction of independent seeds, over cells that count.

    `value`: the measured time to target of `picked`, predicted to be first, over that of `best`,
    minus 1; None if the picked one never reaches it. `ties`: labels whose stated intervals overlap
    that of the picked one; `top`: the first two. None if there is nothing to pick from.
    """
    goal = {cell["program"]: cell["independent"][TARGET] for cell in found if cell["counted"]}
    predicted = {k: row["predicted"] for k, row in goal.items() if row["predicted"] is not None}
    ranked = sorted(predicted, key=predicted.__getitem__)
    cost = quantities.regret(goal)
    if cost is None or len(ranked) < 2:
        return None
    ties = [label for label in ranked if _overlap(goal[cost["picked"]], goal[label])]
    top = ranked[:2]
    return cost | {"ties": ties, "top": top, "among": cost["best"] in {*ties, *top}}


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["interval90"] is None or other["interval90"] is None:
        return one is other
    (low, high), (least, most) = one["interval90"], other["interval90"]
    return (most is None or low <= most) and (high is None or least <= high)
