"""Predicted against measured: errors, ranks, what the real system adds, and who is to blame."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.results import read, store, timeline
from paceline.simulator.results.read import RunDirectory
from paceline.simulator.results.statistics import jsonable
from paceline.validate.comparison import attribution, quantities, sentences
from paceline.validate.comparison.quantities import EQUAL_STEPS, PACE, TARGET, Row

RANKED = 3  # algorithms whose order is worth a rank correlation


@dataclass(frozen=True)
class Comparison:
    """Two run directories, algorithm by algorithm; `labels` are those that both have."""

    predicted: RunDirectory
    measured: RunDirectory
    labels: list[str]

    @property
    def title(self) -> str:
        """The title of what was measured."""
        return str(self.measured.summary["scenario"]["title"])

    @property
    def target(self) -> float | None:
        """The loss to reach; that of the measured run holds for both."""
        target: float | None = self.measured.table["run"].get("target_loss")
        return target

    @cached_property
    def not_counted(self) -> dict[str, list[str]]:
        """Why algorithms' measured runs are no evidence, by label; statistics leave them out."""
        evidence = self.measured.summary.get("evidence") or {}
        found = {label: evidence.get(label, {"admitted": True}) for label in self.labels}
        return {label: each["reasons"] for label, each in found.items() if not each["admitted"]}

    @property
    def counted(self) -> list[str]:
        """The labels whose runs are evidence."""
        return [label for label in self.labels if label not in self.not_counted]

    @cached_property
    def rows(self) -> list[Row]:
        """One row per algorithm and quantity; `error` is null where there is none."""
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
            )
        ]

    def of(self, quantity: str, *, counted: bool = True) -> dict[str, Row]:
        """Return the rows of one quantity by label; `counted`: only those that are evidence."""
        return {
            row["algorithm"]: row
            for row in self.rows
            if row["quantity"] == quantity and (row["counted"] or not counted)
        }

    @cached_property
    def excess(self) -> dict[str, Row]:
        """What is beyond the nominal seconds per step, by label; see `quantities.excess`."""
        nominal = self.predicted.summary.get("nominal") or {}
        paces = self.of(PACE, counted=False)
        return {label: quantities.excess(nominal.get(label), row) for label, row in paces.items()}

    @cached_property
    def attribution(self) -> dict[str, dict[str, Any]]:
        """What is to blame for each algorithm's errors, by label; see `blame.attribute`."""
        losses = self.of(EQUAL_STEPS, counted=False)
        return {
            label: attribution.attribute(
                self.predicted.rows[label], self.measured.rows[label], row, losses.get(label)
            )
            for label, row in self.of(PACE, counted=False).items()
        }

    @cached_property
    def overall(self) -> dict[str, Any]:
        """What is to blame for most of all errors."""
        return attribution.overall({k: v for k, v in self.attribution.items() if k in self.counted})

    @cached_property
    def medians(self) -> dict[str, float | None]:
        """The median absolute error of each quantity, and of the excess, over what counts."""
        found = quantities.medians([row for row in self.rows if row["counted"]])
        beyond = [self.excess[label]["error"] for label in self.of(PACE)]
        return {**found, "excess": quantities.median([abs(e) for e in beyond if e is not None])}

    def over(self, least: int) -> str:
        """The quantity that ranks: time to target, where at least so many algorithms have it."""
        reached = sum(map(quantities.complete, self.of(TARGET).values()))
        return TARGET if reached >= least else PACE

    @property
    def kendall_over(self) -> str:
        """What the algorithms are ranked by."""
        return self.over(RANKED)

    @cached_property
    def kendall_tau(self) -> float | None:
        """How far predicted and measured agree on the order of the algorithms, from -1 to 1."""
        return quantities.ranks(self.of(self.kendall_over))

    @cached_property
    def regret(self) -> Row | None:
        """What picking the predicted best costs; see `quantities.regret`."""
        over = self.over(2)
        found = quantities.regret(self.of(over))
        return found and {"over": over, **found}

    @cached_property
    def notes(self) -> list[str]:
        """What a reader of the numbers should know."""
        return sentences.notes(self)

    @cached_property
    def sentence(self) -> str:
        """All of it in a few sentences."""
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

    Raises InputError where one of them is no run directory, or they have no algorithm in common.
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
