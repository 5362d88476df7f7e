"""`paceline compare`: how far predictions are from measurements, and what explains the errors."""

from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.results import read, store, timeline
from paceline.simulator.results.statistics import jsonable
from paceline.validate.comparison import sentences
from paceline.validate.comparison.quantities import PACE
from paceline.validate.comparison.statistics import ComparisonStatistics


class Comparison(ComparisonStatistics):
    """Two run directories compared algorithm by algorithm: numbers, sentences, JSON and figures."""

    @cached_property
    def notes(self) -> list[str]:
        """Return what was left out and why, in sentences."""
        return sentences.notes(self)

    @cached_property
    def sentence(self) -> str:
        """Return errors, excess, ranks and main cause in a few sentences."""
        return sentences.summary(self)

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline compare --json`."""
        document = {
            "scenario": self.measured.summary["scenario"],
            "engines": {
                "predicted": self.predicted.summary["engine"],
                "measured": self.measured.summary["engine"],
            },
            "seeds": {"predicted": self.predicted.seeds, "measured": self.measured.seeds},
            "rows": self.rows,
            "median_absolute_error": self.medians.get(PACE),
            "median_absolute_errors": self.medians,
            "kendall_tau": self.kendall_tau,
            "kendall_over": self.kendall_over,
            "regret": self.regret,
            "excess": self.excess,
            "attribution": self.attribution,
            "overall": self.overall,
            "not_counted": self.not_counted,
            "sentence": self.sentence,
            "notes": self.notes,
        }
        return dict(jsonable(document))

    def save(self, out: Path | str) -> None:
        """Write comparison.json, the figures and both timelines in one to the directory `out`.

        Raises InputError.
        """
        from paceline.validate.comparison import figures  # noqa: PLC0415 - matplotlib, half a second

        sides = {"predicted": self.predicted, "measured": self.measured}
        spans = timeline.together({name: timeline.read(each.path) for name, each in sides.items()})
        files = {
            "comparison.json": store.dump(self.json()),
            timeline.FILE: store.dump(spans, indent=None),
            **figures.figures(self),
        }
        try:
            for name, data in files.items():
                store.write(Path(out) / name, data)
        except OSError as error:
            raise InputError(
                f"{out}: cannot write here ({error.strerror}); choose a directory with --out"
            ) from None


def compare(predicted: Path | str, measured: Path | str) -> Comparison:
    """Compare two run directories by the labels of their algorithms.

    Raises InputError if one of them is not a run directory, or they have no algorithm in common.
    """
    one, other = read.read(predicted), read.read(measured)
    labels = [label for label in other.runs if label in one.runs]
    if not labels:
        raise InputError(
            f"{predicted} and {measured}: no algorithm with points in both; they have "
            f"{', '.join(one.rows) or 'none'} and {', '.join(other.rows) or 'none'}: "
            "give directories of one scenario, whose labels are the same"
        )
    return Comparison(one, other, labels)
