"""Compare predictions with measurements: `paceline compare`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from paceline.simulator.errors import InputError
from paceline.simulator.reports.terminal import headed
from paceline.simulator.results import read, store
from paceline.simulator.results.figures import curves, drawing
from paceline.simulator.results.figures.chart import Chart, Look
from paceline.simulator.results.figures.style import FORMATS
from paceline.simulator.results.intervals import USUAL
from paceline.simulator.results.read import RunDirectory
from paceline.simulator.results.statistics import human, jsonable, number
from paceline.simulator.studies.display import Display, without_tables

from .quantities import EQUAL_STEPS, PACE, TARGET, Row
from .statistics import ComparisonStatistics

WRITTEN = ("kendall_tau", "kendall_over", "regret", "excess", "attribution",
           "not_counted", "sentence", "notes")  # fmt: skip
"""Attributes of a `Comparison` that are keys of its document."""


class ComparisonDirectory(store.Directory):
    """The directory of a comparison; see `store.Directory`."""

    whole, parts = "comparison.json", ".comparison"
    names = (whole, *(f"comparison.{kind}" for kind in FORMATS))
    lasting = True


class Comparison(Display, ComparisonStatistics):
    """A comparison of two run directories: numbers, sentences, JSON and figures."""

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
        """Chart the loss, or without one the steps, against wall-clock time.

        Each prediction is a line, and its measured runs are marks of the same colour, hollow if the
        runs are not evidence.
        """
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
    """Refuse anything but a prediction and a measurement. Raises InputError.

    A prediction compared with itself would always agree.
    """
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


def table(result: ComparisonStatistics) -> Table:
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
