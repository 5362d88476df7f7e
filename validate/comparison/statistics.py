"""Numbers of a comparison: each quantity predicted and measured, ranks, and causes of errors."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.simulator.results.read import RunDirectory
from paceline.validate.comparison import attribution, quantities
from paceline.validate.comparison.quantities import EQUAL_STEPS, PACE, TARGET, Row

RANKED = 3  # algorithms whose order is worth a rank correlation


@dataclass(frozen=True)
class ComparisonStatistics:
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
