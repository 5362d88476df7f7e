"""Sentences about a comparison: its summary, and notes on what was left out."""

import re
from collections.abc import Iterator

from paceline.simulator.inputs.tables import differing
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.statistics import human

from ..host import machine
from ..measurement.fingerprints import fitted_to
from .quantities import PACE, TARGET, median
from .statistics import ComparisonStatistics

NAMED = 6  # keys in which scenarios differ
SHORT = 0.020  # seconds per step, below which a note says what they consist of
PARTS = {
    "compute": "computing", "launch": "launching work", "copy": "copying results",
    "collective": "waiting for collectives or messages", "rest": "the program's own",
}  # fmt: skip
# tables that labels already distinguish, or that only predictions contain
UNCOMPARED = ("title", "algorithm", "tune", "theory", "overhead", "codec", "calibration")


def summary(result: ComparisonStatistics) -> str:
    """Summarize errors, excess, ranks and main cause in a few sentences."""
    if not result.counted:
        return result.marked(
            f"No {result.basis} run counts as evidence, so errors are not reported."
        )
    said = [
        _fitted(result),
        _disturbed(result),
        _pace(result),
        _excess(result),
        _covered(result),
        *_ranks(result),
    ]
    return " ".join([*map(result.marked, filter(None, said)), result.overall["sentence"]])


def _fitted(result: ComparisonStatistics) -> str:
    if not fitted_to(result.predicted.table, result.measured.path):
        return ""
    return "These very runs made the profile, so agreement proves nothing: compare others."


def _disturbed(result: ComparisonStatistics) -> str:
    shares = result.disturbed.values()
    if not shares:
        return ""
    runs = "all" if len(shares) == len(result.counted) else f"{len(shares)} algorithms'"
    return (
        f"Others used up to {max(shares):.0%} of the machine during {runs} runs, which may be that "
        "much too long: their intervals are wider by it, and errors in brackets are within them."
    )


def _pace(result: ComparisonStatistics) -> str:
    rows = result.of(PACE).values()
    found = {row["algorithm"]: row["error"] for row in rows if row["error"] is not None}
    middle = result.medians.get(PACE)
    if middle is None:
        return ""
    worst = max(found, key=lambda label: abs(found[label]))
    if len(found) == 1:
        return f"Seconds per step of {worst}: error {100 * found[worst]:+z.1f} %."
    return (
        f"Seconds per step: median error {100 * middle:.1f} % over {len(found)} algorithms, "
        f"at most {100 * abs(found[worst]):.1f} % ({worst})."
    )


def _excess(result: ComparisonStatistics) -> str:
    """Say how much of a step is beyond the nominal: its error may hide in a small total error."""
    known = [result.excess[label] for label in result.of(PACE)]
    shares = [row["share"] for row in known if row["share"] is not None]
    seconds = median([row["measured"] for row in known if row["measured"] is not None])
    share = median(shares)
    if share is None or seconds is None:
        return ""
    sign = "-" if seconds < 0 else ""
    said = (
        f"The nominal delays are in both by construction; beyond them {result.basis} runs take "
        f"{sign}{human(abs(seconds))} ({100 * share:+z.1f} %) per step, median, "
    )
    error = result.medians["excess"]
    if error is None:
        return said + "of which the prediction has nothing."
    return said + f"and on that the prediction errs by {100 * error:.0f} %."


def _covered(result: ComparisonStatistics) -> str:
    """Say how many measured values lie in the predicted intervals, if there are any."""
    rows = [*result.of(PACE).values(), *result.of(TARGET).values()]
    known = [row["covered"] for row in rows if row["covered"] is not None]
    if not known:
        return ""
    return f"{sum(known)} of {len(known)} {result.basis} values are within their {USUAL} intervals."


def _ranks(result: ComparisonStatistics) -> list[str]:
    said, tau, regret = [], result.kendall_tau, result.regret
    if tau is not None:
        said.append(f"Kendall's tau over {result.kendall_over.replace('_', ' ')}: {tau:.2f}.")
    if regret and len(result.counted) > 1:
        picking = f"Picking {regret['picked']}, the predicted best,"
        share = regret["value"]
        said.append(
            f"{picking} never reaches the target."
            if share is None
            else f"{picking} costs {100 * share:.1f} % more than {regret['best']}."
            if share
            else f"{picking} is right."
        )
    return said


def notes(result: ComparisonStatistics) -> list[str]:
    """Return what was left out and why, in sentences."""
    said = [*_differences(result), *_odd(result), *_short(result)]
    files = []
    if "gpu" in (about := result.measured.summary.get("machine") or {}):
        files.append(f"{result.basis} on: {machine.describe(about)}")
    if result.basis != "measured":
        files.append(f"{result.measured.path}: a simulation, given as measured (--as-measured)")
    return [*files, *map(result.marked, said)]


def _short(result: ComparisonStatistics) -> Iterator[str]:
    """Say of short steps what they consist of: there, overheads are no small share."""
    found = result.measured.summary.get("evidence") or {}
    for label, row in result.of(PACE, counted=False).items():
        parts = found.get(label, {}).get("parts")
        if parts and row["measured"] is not None and row["measured"] < SHORT:
            shares = ", ".join(f"{parts[k]:.0%} {text}" for k, text in PARTS.items())
            yield f"{label}: of {human(row['measured'])} per step, {shares}"


def _odd(result: ComparisonStatistics) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for label, why in result.not_counted.items():
        alike.setdefault(re.sub(r"[\d.]+ ?%", "%", ", ".join(why)), []).append(label)
    for labels in alike.values():  # which differ in percentages at most
        texts = [", ".join(result.not_counted[label]) for label in labels]
        worst = max(texts, key=lambda text: [*map(float, re.findall(r"\d+", text))])
        yield f"{', '.join(labels)}: not counted: {worst}"
    for label, row in result.of(TARGET, counted=False).items():
        if (row["predicted"] is None) != (row["measured"] is None):
            yield f"{label}: time to loss {result.target:g}: {row['note']}"


def _differences(result: ComparisonStatistics) -> Iterator[str]:
    predicted, measured = result.predicted, result.measured
    for name, one, other in (
        ("predicted", predicted, measured),
        (result.basis, measured, predicted),
    ):
        if alone := [label for label in one.rows if label not in other.rows]:
            yield f"{', '.join(alone)}: only {name}, so not compared"
        if one.stalled:
            yield f"{', '.join(one.stalled)}: {name} to stall for good, so not compared"
    if predicted.seeds != measured.seeds:
        yield f"predicted and {result.basis} runs have different seeds, hence different draws"
    tables = [
        {key: each for key, each in side.table.items() if key not in UNCOMPARED}
        for side in (predicted, measured)
    ]
    if apart := [f"{key} ({one} against {other})" for key, one, other in differing(tables)]:
        more = [f"{len(apart) - NAMED} more"] if len(apart) > NAMED else []
        yield f"the scenarios differ in {', '.join([*apart[:NAMED], *more])}"
