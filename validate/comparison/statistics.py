"""Numbers of a comparison: each quantity predicted and measured, ranks, and causes of errors."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.simulator.results.read import RunDirectory

from . import attribution, quantities
from .quantities import EQUAL_STEPS, PACE, TARGET, Row

UNMEASURED = "Simulation against simulation"
RANKED = 3  # algorithms whose order is worth a rank correlation


@dataclass(frozen=True)
class ComparisonStatistics:
    """Numbers from two run directories; `labels`: the algorithms that both contain."""

    predicted: RunDirectory
    measured: RunDirectory
    labels: list[str]

    @property
    def title(self) -> str:
        """Return the title of the measured scenario."""
        return str(self.measured.summary["scenario"]["title"])

    @property
    def basis(self) -> str:
        """Return what the second side is: "measured", or "simulated" where it was only said to be.

        Numbers and keys of the JSON document are called measured all the same.
        """
        return "measured" if self.measured.is_measured else "simulated"

    def marked(self, sentence: str) -> str:
        """Return a sentence that says itself where nothing was measured."""
        return sentence if self.basis == "measured" else f"{UNMEASURED}: {sentence}"

    @property
    def target(self) -> float | None:
        """Return the loss to reach, as the measured scenario states it."""
        target: float | None = self.measured.table["run"].get("target_loss")
        return target

    @cached_property
    def not_counted(self) -> dict[str, list[str]]:
        """Return, by label, why measured runs are not evidence; statistics leave these out."""
        evidence = self.measured.summary.get("evidence") or {}
        found = {label: evidence.get(label, {"admitted": True}) for label in self.labels}
        return {label: each["reasons"] for label, each in found.items() if not each["admitted"]}

    @cached_property
    def disturbed(self) -> dict[str, float]:
        """Return, by label, the share of the machine that others used, where runs count with it."""
        found = self.measured.summary.get("evidence") or {}
        shares = {label: found.get(label, {}).get("disturbed", 0.0) for label in self.counted}
        return {label: share for label, share in shares.items() if share}

    @property
    def counted(self) -> list[str]:
        """Return the labels whose measured runs are evidence."""
        return [label for label in self.labels if label not in self.not_counted]

    @cached_property
    def rows(self) -> list[Row]:
        """Return one row per algorithm and quantity; `error` is None if it cannot be computed."""
        return [
            {
                **quantities.widened(row, self.disturbed.get(label, 0.0)),
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
        """Return the rows of one quantity by label; `counted`: only those that are evidence."""
        return {
            row["algorithm"]: row
            for row in self.rows
            if row["quantity"] == quantity and (row["counted"] or not counted)
        }

    @cached_property
    def excess(self) -> dict[str, Row]:
        """Return, by label, the seconds per step beyond the nominal; see `quantities.excess`."""
        nominal = self.predicted.summary.get("nominal") or {}
        paces = self.of(PACE, counted=False)
        return {label: quantities.excess(nominal.get(label), row) for label, row in paces.items()}

    @cached_property
    def attribution(self) -> dict[str, dict[str, Any]]:
        """Return, by label, what explains the errors; see `attribution.attribute`."""
        losses = self.of(EQUAL_STEPS, counted=False)
        found = {
            label: attribution.attribute(
                self.predicted.rows[label], self.measured.rows[label], row, losses.get(label)
            )
            for label, row in self.of(PACE, counted=False).items()
        }
        return {label: self._marked(each) for label, each in found.items()}

    def _marked(self, found: dict[str, Any]) -> dict[str, Any]:
        return found | {"sentence": self.marked(found["sentence"])}

    @cached_property
    def overall(self) -> dict[str, Any]:
        """Return what explains most of all errors; see `attribution.overall`."""
        found = {k: v for k, v in self.attribution.items() if k in self.counted}
        return self._marked(attribution.overall(found))

    @cached_property
    def medians(self) -> dict[str, float | None]:
        """Return the median absolute error of each quantity and of the excess, over evidence."""
        found = quantities.medians([row for row in self.rows if row["counted"]])
        beyond = [self.excess[label]["error"] for label in self.of(PACE)]
        return {**found, "excess": quantities.median([abs(e) for e in beyond if e is not None])}

    def over(self, least: int) -> str:
        """Return the ranking quantity: time to target if `least` algorithms have it, else pace."""
        reached = sum(map(quantities.complete, self.of(TARGET).values()))
        return TARGET if reached >= least else PACE

    @property
    def kendall_over(self) -> str:
        """Return the quantity by which algorithms are ranked."""
        return self.over(RANKED)

    @cached_property
    def kendall_tau(self) -> float | None:
        """Return the rank correlation of predicted and measured, from -1 to 1."""
        return quantities.ranks(self.of(self.kendall_over))

    @cached_property
    def regret(self) -> Row | None:
        """Return the cost of picking the predicted best, bounds apart; see `quantities.regret`."""
        over, rows = self.over(2), self.predicted.rows
        found = quantities.regret({k: v for k, v in self.of(over).items() if not rows[k]["bound"]})
        return found and {"over": over, **found}
