"""Compare predictions with measurements: `paceline compare`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import value_at
from paceline.simulator.inputs.toml_text import differing
from paceline.simulator.reports.terminal import headed
from paceline.simulator.results import read, store
from paceline.simulator.results.figures import curves, drawing
from paceline.simulator.results.figures.chart import Chart, Look
from paceline.simulator.results.figures.style import FORMATS
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.read import RunDirectory
from paceline.simulator.results.statistics import human, jsonable, number
from paceline.simulator.studies.display import Display, without_tables

from ..host import machine
from . import quantities
from .quantities import EQUAL_STEPS, PACE, TARGET, Row

UNMEASURED = "Simulation against simulation"
RANKED = 3  # fewest algorithms for a rank correlation
NAMED = 6  # most keys that a note on different scenarios names
# tables that labels already distinguish, or that only predictions contain
UNCOMPARED = ("title", "algorithm", "tune", "theory", "overhead", "codec", "calibration")
WRITTEN = (
    "kendall_tau", "kendall_over", "regret", "attribution", "not_counted", "sentence", "notes",
)  # fmt: skip
"""Attributes of a `Comparison` that are keys of its document."""
NEGLIGIBLE = 0.01  # relative errors below this need no explanation
LOOSE = 0.05  # the same limit for a loss of unknown noise
MEANS = {
    "contention": "computing, and waiting in proportion to it, takes {}",
    "compute tail": "waiting for the slowest, beyond what computing explains, takes {}",
    "link": "communicating takes {}",
    "overlap": "communication that computing should hide takes {}",
    "failures": "downtime and lost work take {}",
}


class ComparisonDirectory(store.Directory):
    """The directory of a comparison; see `store.Directory`."""

    whole, parts = "comparison.json", ".comparison"
    names = (whole, *(f"comparison.{kind}" for kind in FORMATS))
    lasting = True


@dataclass(frozen=True, repr=False)
class Comparison(Display):
    """A comparison of two run directories; `labels`: the algorithms that both contain."""

    predicted: RunDirectory
    measured: RunDirectory
    labels: list[str]

    @property
    def title(self) -> str:
        """Return the title of the measured scenario."""
        return str(self.measured.summary["scenario"]["title"])

    @property
    def basis(self) -> str:
        """Return the kind of the second side: "measured" or "simulated".

        The JSON document's keys always say "measured".
        """
        return "measured" if self.measured.is_measured else "simulated"

    def marked(self, sentence: str) -> str:
        """Return a sentence, preceded by a warning if nothing was measured."""
        return sentence if self.basis == "measured" else f"{UNMEASURED}: {sentence}"

    @property
    def target(self) -> float | None:
        """Return the loss to reach in the measured scenario."""
        target: float | None = self.measured.table["run"].get("target_loss")
        return target

    @cached_property
    def not_counted(self) -> dict[str, list[str]]:
        """Return the reasons, by label, why measured runs are not evidence."""
        evidence = self.measured.summary.get("evidence") or {}
        judged = {label: evidence.get(label, {"admitted": True}) for label in self.labels}
        return {label: row["reasons"] for label, row in judged.items() if not row["admitted"]}

    @cached_property
    def disturbed(self) -> dict[str, float]:
        """Return the share of the machine, by label, that other programs used."""
        evidence = self.measured.summary.get("evidence") or {}
        shares = {label: evidence.get(label, {}).get("disturbed", 0.0) for label in self.counted}
        return {label: share for label, share in shares.items() if share}

    @property
    def counted(self) -> list[str]:
        """Return the labels whose measured runs are evidence."""
        return [label for label in self.labels if label not in self.not_counted]

    @cached_property
    def rows(self) -> list[Row]:
        """Return a row per algorithm and quantity; an unknown `error` is None."""
        return [
            {
                **row,
                "counted": label not in self.not_counted,
                **quantities.expected(row, self.predicted.rows[label].get("interval90")),
            }
            for label in self.labels
            for row in quantities.rows(
                label,
                (self.predicted.rows[label], self.measured.rows[label]),
                (self.predicted.runs[label], self.measured.runs[label]),
                self.target,
                self.basis,
            )
        ]

    def of(self, quantity: str, *, counted: bool = True) -> dict[str, Row]:
        """Return the rows of a quantity by label; `counted`: only those that are evidence."""
        return {
            row["algorithm"]: row
            for row in self.rows
            if row["quantity"] == quantity and (row["counted"] or not counted)
        }

    @cached_property
    def attribution(self) -> dict[str, dict[str, Any]]:
        """Return the causes of errors by label; see `attribute`."""
        losses = self.of(EQUAL_STEPS, counted=False)
        causes = {
            label: attribute(
                self.predicted.rows[label], self.measured.rows[label], row, losses.get(label)
            )
            for label, row in self.of(PACE, counted=False).items()
        }
        return {
            label: cause | {"sentence": self.marked(cause["sentence"])}
            for label, cause in causes.items()
        }

    @cached_property
    def medians(self) -> dict[str, float | None]:
        """Return the median absolute error of each quantity."""
        counted = [row for row in self.rows if row["counted"]]
        errors = {row["quantity"]: list[float]() for row in counted}
        for row in (row for row in counted if row["error"] is not None):
            errors[row["quantity"]].append(row["error"])
        return {
            quantity: float(np.median(np.abs(values))) if values else None
            for quantity, values in errors.items()
        }

    @property
    def kendall_over(self) -> str:
        """Return the quantity by which algorithms are ranked: time to target if three have it."""
        return self._over(RANKED)

    def _over(self, least: int) -> str:
        reached = sum(map(quantities.complete, self.of(TARGET).values()))
        return TARGET if reached >= least else PACE

    @cached_property
    def kendall_tau(self) -> float | None:
        """Return the rank correlation of predicted and measured, from -1 to 1."""
        return quantities.ranks(self.of(self.kendall_over))

    @cached_property
    def regret(self) -> Row | None:
        """Return the cost of picking the predicted best."""
        over, rows = self._over(2), self.predicted.rows
        cost = quantities.regret({k: v for k, v in self.of(over).items() if not rows[k]["bound"]})
        return cost and {"over": over, **cost}

    @cached_property
    def notes(self) -> list[str]:
        """Return sentences on omissions and their reasons."""
        return [*_notes(self)]

    @cached_property
    def sentence(self) -> str:
        """Return errors and ranks in a few sentences."""
        if not self.counted:
            return self.marked(
                f"No {self.basis} run counts as evidence, so errors are not reported."
            )
        parts = [*_doubts(self), *_pace(self), *_covered(self), *_ranks(self)]
        return self.marked(" ".join(parts))

    # What is shown and written

    def records(self) -> list[dict[str, Any]]:
        """Return a flat row per algorithm and quantity."""
        return [without_tables(jsonable(row)) for row in self.rows]

    @property
    def _head(self) -> str:
        return f"{self.predicted.path} against {self.measured.path}, {self.basis}"

    @property
    def _in_words(self) -> str:
        return self.sentence

    def _chart(self) -> Chart:
        """Chart losses by time: predicted as lines, measured as marks (hollow: no evidence)."""
        lines = []
        for index, label in enumerate(self.labels):
            predicted, measured = self.predicted.runs[label], self.measured.runs[label]
            look = Look.at(index)
            marked = look._replace(dash="solid", width=0.5, hollow=label in self.not_counted)
            lines += [
                curves.Curves(label, predicted, look, row=self.predicted.rows.get(label, {})),
                curves.Curves(f"{label}, {self.basis}", measured, marked, apart=True),
            ]
        panel = curves.error_panel(lines, None, "loss")
        plain = [replace(line, marks="none") if line.named else line for line in panel.lines]
        several = any(len(line.runs) > 1 for line in lines)
        bands = f"; bands: {USUAL}" if several else "; one seed each"
        caption = f"lines: predicted, dots: {self.basis}{bands}"
        hollow = "; hollow: not counted" if self.not_counted else ""
        return Chart(self.marked(self.title), caption + hollow, [replace(panel, lines=plain)])

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline compare --json`."""
        sides = {"predicted": self.predicted, "measured": self.measured}
        document = {
            "scenario": self.measured.summary["scenario"],
            "basis": self.basis,
            "engines": {name: side.summary["engine"] for name, side in sides.items()},
            "seeds": {name: side.seeds for name, side in sides.items()},
            "rows": self.rows,
            "median_absolute_error": self.medians.get(PACE),
            "median_absolute_errors": self.medians,
        }
        return dict(jsonable(document | {key: getattr(self, key) for key in WRITTEN}))

    def save(self, out: Path | str, overwrite: bool = False) -> Path:
        """Write the document and the figure to `out`.

        A comparison of other directories is replaced only with `overwrite`. Raises InputError.
        """
        sides = {"predicted": self.predicted, "measured": self.measured}
        settings = {"command": "compare"}
        settings |= {name: store.identity(side.path) for name, side in sides.items()}
        with (
            store.writing(out, "choose a directory with --out"),
            ComparisonDirectory(Path(out), settings, overwrite=overwrite) as directory,
        ):
            self.write(directory)
        return Path(out)

    def write(self, directory: ComparisonDirectory) -> None:
        """Write the document and the figure."""
        files = drawing.files({"comparison": self._chart()})
        directory.finish(files, self.json())


def compare(
    predicted: Path | str, measured: Path | str, *, as_measured: bool = False
) -> Comparison:
    """Compare two run directories by the labels of their algorithms.

    `as_measured`: `measured` may be a simulation, and every sentence says so. Raises InputError if
    either is not a run directory, if `predicted` is measured or `measured` is not, or if they have
    no algorithm in common.
    """
    one, other = read.read(predicted), read.read(measured)
    _demand_sides(one, other, as_measured)
    labels = [label for label in other.runs if label in one.runs]
    if not labels:
        raise InputError(
            f"{predicted} and {measured}: no algorithm with points in both; they have "
            f"{', '.join(one.rows) or 'none'} and {', '.join(other.rows) or 'none'}: "
            "give directories of one scenario, with equal labels"
        )
    return Comparison(one, other, labels)


def _demand_sides(one: RunDirectory, other: RunDirectory, as_measured: bool) -> None:
    """Refuse anything but a prediction and a measurement. Raises InputError."""
    allow = (
        "give a directory of real runs (paceline validate); to compare two simulations, add "
        "--as-measured (in Python: as_measured=True)"
    )
    if one.is_measured:
        raise InputError(
            f"{one.path}: measured, so it predicts nothing; give a directory of paceline simulate "
            "first, and one of real runs second"
        )
    if other.is_measured or as_measured:
        return
    if store.identity(one.path) == store.identity(other.path):
        raise InputError(
            f"{other.path}: the same run as {one.path}, which always agrees with itself; {allow}"
        )
    raise InputError(f"{other.path}: simulated, not measured; {allow}")


def table(result: Comparison) -> Table:
    """Tabulate step time, time to target, loss after equal steps, and causes.

    A cell has the prediction, the measurement and the error, in brackets if it is within noise.
    """
    heads = {PACE: "per step", EQUAL_STEPS: "loss, equal steps"}
    if result.target is not None:
        heads[TARGET] = f"to loss {result.target:g}"
    shown = {key: result.of(key, counted=False) for key in heads}
    shown = {key: rows for key, rows in shown.items() if rows}
    sides = f"predicted\n{result.basis}\nerror"
    cells = headed("algorithm", *(f"{heads[key]}\n{sides}" for key in shown), "explained by")
    for label, pace in shown[PACE].items():
        cells.add_row(
            f"{label}\nnot counted" if label in result.not_counted else label,
            *(_cell(key, rows.get(label)) for key, rows in shown.items()),
            result.attribution[label]["to_blame"],
            style=None if pace["counted"] else "dim",
        )
    return cells


def _cell(quantity: str, row: Row | None) -> str:
    say = number if quantity == EQUAL_STEPS else human
    values = [row[side] if row else None for side in ("predicted", "measured")]
    lines = ["-" if value is None else say(value) for value in values]
    if row and row["error"] is not None:
        error = f"{100 * row['error']:+z.1f} %"
        lines.append(f"({error})" if row["within_noise"] else error)
    return "\n".join(lines)


def _doubts(result: Comparison) -> Iterator[str]:
    fitted = value_at(result.predicted.table, ("calibration", "fingerprints")) or ()
    if not {*fitted}.isdisjoint(store.fingerprints([result.measured.path])):
        yield "The profile was fitted to these runs, so agreement proves nothing: compare others."
    if shares := result.disturbed.values():
        runs = "all" if len(shares) == len(result.counted) else f"{len(shares)} algorithms'"
        yield (
            f"Others used up to {max(shares):.0%} of the machine during {runs} runs, whose times "
            "may be too long by that share."
        )


def _pace(result: Comparison) -> Iterator[str]:
    """Yield a sentence on the errors of the step time."""
    paces = result.of(PACE)
    errors = {label: row["error"] for label, row in paces.items() if row["error"] is not None}
    if len(errors) == 1:
        (label,) = errors
        yield f"Seconds per step of {label}: error {100 * errors[label]:+z.1f} %."
    elif errors:
        worst = max(errors, key=lambda label: abs(errors[label]))
        yield (
            f"Seconds per step: median error {100 * (result.medians[PACE] or 0.0):.1f} % over "
            f"{len(errors)} algorithms, at most {100 * abs(errors[worst]):.1f} % ({worst})."
        )


def _covered(result: Comparison) -> Iterator[str]:
    """Yield a sentence with the number of measured values inside predicted intervals."""
    rows = [*result.of(PACE).values(), *result.of(TARGET).values()]
    covered = [row["covered"] for row in rows if row["covered"] is not None]
    if covered:
        yield (
            f"{sum(covered)} of {len(covered)} {result.basis} values are within their {USUAL} "
            "intervals."
        )


def _ranks(result: Comparison) -> Iterator[str]:
    tau, regret = result.kendall_tau, result.regret
    if tau is not None:
        yield f"Kendall's tau over {result.kendall_over.replace('_', ' ')}: {tau:.2f}."
    if regret and len(result.counted) > 1:
        outcome = "is right"
        if regret["value"] is None:
            outcome = "never reaches the target"
        elif regret["value"]:
            outcome = f"costs {100 * regret['value']:.1f} % more than {regret['best']}"
        yield f"Picking {regret['picked']}, the predicted best, {outcome}."


def _notes(result: Comparison) -> Iterator[str]:
    predicted, measured = result.predicted, result.measured
    if "gpu" in (about := measured.summary.get("machine") or {}):
        yield f"{result.basis} on: {machine.describe(about)}"
    if result.basis != "measured":
        yield f"{measured.path}: a simulation, given as measured (--as-measured)"
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
        {key: value for key, value in side.table.items() if key not in UNCOMPARED}
        for side in (predicted, measured)
    ]
    if apart := [f"{key} ({one} against {other})" for key, one, other in differing(tables)]:
        more = [f"{len(apart) - NAMED} more"] if len(apart) > NAMED else []
        yield f"the scenarios differ in {', '.join([*apart[:NAMED], *more])}"
    for label, reasons in result.not_counted.items():
        yield f"{label}: not counted: {', '.join(reasons)}"
    for label, row in result.of(TARGET, counted=False).items():
        if (row["predicted"] is None) != (row["measured"] is None):
            yield f"{label}: time to loss {result.target:g}: {row['note']}"


def attribute(predicted: Row, measured: Row, pace: Row, loss: Row | None) -> dict[str, Any]:
    """Return the main cause of an algorithm's errors, and all causes' sizes.

    `predicted`, `measured`: the algorithm's summaries; `pace`, `loss`: the rows of its seconds per
    step and of its loss after equal steps. The causes' `seconds_per_step` (measured - predicted)
    add up to the whole difference. `sizes` are relative to the measured step or loss; the largest
    is the main cause, or "none" if the whole error is within noise or below 1 % (5 % for a loss of
    unknown noise).
    """
    seconds = causes(predicted, measured, pace)
    sizes: dict[str, float] = {}
    if _counts(pace, NEGLIGIBLE):
        sizes |= {cause: abs(extra) / pace["measured"] for cause, extra in seconds.items()}
    if loss is not None and _counts(loss, LOOSE if loss["within_noise"] is None else NEGLIGIBLE):
        sizes["error model"] = abs(loss["error"])
    to_blame = max(sizes, key=sizes.__getitem__) if sizes else "none"
    return {
        "to_blame": to_blame,
        "seconds_per_step": seconds,
        "loss_at_equal_steps": loss and {key: loss[key] for key in ("predicted", "measured")},
        "sizes": sizes,
        "sentence": _sentence(to_blame, seconds, pace, loss),
    }


def causes(predicted: Row, measured: Row, pace: Row) -> dict[str, float]:
    """Return the seconds per step that each cause adds; {} if unknown.

    If all compute times grow by a factor, waiting for the slowest worker grows by the same factor.
    That part is attributed to contention, and only the rest to the tail.
    """
    shares = predicted["breakdown"], measured["breakdown"]
    if pace["error"] is None or any(None in side.values() for side in shares):
        return {}
    was, now = (
        {kind: share * pace[name] for kind, share in side.items()}
        for name, side in zip(("predicted", "measured"), shares, strict=True)
    )
    slower = now["compute"] / was["compute"] if was["compute"] else 1.0
    waiting = slower * was["wait"]
    seconds = {
        "contention": now["compute"] - was["compute"] + waiting - was["wait"],
        "compute tail": now["wait"] - waiting,
        _hidden(measured): now["communicate"] - was["communicate"],
    }
    for kind in sorted({*was, *now} - {"compute", "wait", "communicate"}):
        seconds["failures"] = seconds.get("failures", 0.0) + now.get(kind, 0.0) - was.get(kind, 0.0)
    return seconds


def _hidden(measured: Row) -> str:
    """Name the cause of longer communication: "overlap" if averages are stale."""
    stale = measured["staleness"]
    return "overlap" if stale and stale["unit"] == "steps" and stale["mean"] > 0 else "link"


def _counts(row: Row, floor: float) -> bool:
    error = row["error"]
    return error is not None and abs(error) >= floor and not row["within_noise"]


def _sentence(to_blame: str, seconds: Mapping[str, float], pace: Row, loss: Row | None) -> str:
    if to_blame == "none":
        return "none: the errors are within noise, or negligible."
    if to_blame == "error model":
        assert loss is not None
        loss_text = f"loss {number(loss['measured'])} after the same steps"
        return f"error model: {loss_text}, predicted {number(loss['predicted'])}."
    extra = seconds[to_blame]
    apart = f"{human(abs(extra))} {'more' if extra > 0 else 'less'} per step than predicted"
    return f"{to_blame}: {MEANS[to_blame].format(apart)}, of {human(pace['measured'])} in all."
