"""What the model misses: residuals of all cells, and of each rate when it is left out.

All but two numbers of the model are of standards or of Linux. They are fitted here: how late the
kernel wakes for a token bucket, and what a mean costs gloo itself; for each rate, to the other
rates alone.
"""

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline import simulate
from paceline.simulator.load.load import parse
from paceline.simulator.network import tcp
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.overhead import GIGABIT, Overhead
from tests.lab.transport import measure, model
from tests.lab.transport.cells import CELLS, CONTROLS, KINDS, Cell, design
from tests.lab.transport.model import SHIPPED, Fitted

__all__ = ["CELLS", "CONTROLS", "KINDS"]

PUBLISHED = Path(__file__).with_name("published.csv")
OUT = (5.0, 20.0, 50.0, 200.0)  # Mbit/s left out in turn
TRIED = {
    "late": [1e-6 * each for each in range(0, 41, 2)],
    "gloo": [1e-4 * each for each in range(0, 31)],
}  # seconds


@dataclass(frozen=True)
class Measured:
    """A cell and its record."""

    cell: Cell
    record: Mapping[str, Any]

    @property
    def calm(self) -> bool:
        """Whether the record counts: other processes did not disturb it."""
        return not measure.disturbed(dict(self.record))

    def predicted(self, fitted: Fitted | None = SHIPPED) -> float:
        """Return the median seconds of its repetitions, without the first; None: without TCP."""
        known = self.record
        count = len(known["each"])
        found = model.seconds(self.cell, count, known["gap"], known["ping"], fitted)
        return statistics.median(found[1:])

    @property
    def lasted(self) -> float:
        """Return the mean seconds of all repetitions, of which the first is on new connections."""
        return statistics.fmean(self.record["each"])

    @property
    def plain(self) -> bool:
        """Whether a scenario can describe the cell: its collective, and TCP as Linux has it."""
        cell = self.cell
        usual = cell.after_idle and cell.congestion != "bbr"
        return cell.kind in ("ring", "tree", "gloo") and bool(usual or not cell.idle)

    def simulated(self) -> float:
        """Return the mean seconds of all repetitions that the simulator states, in closed form.

        A worker computes for as long as the cell pauses between two of them. What all collectives
        took in the median is left out.
        """
        cell, known = self.cell, self.record
        own = {"library": "gloo"} if cell.kind == "gloo" else {"collective": cell.kind}
        added = tcp.gloo() if cell.kind == "gloo" else {}
        overhead = Overhead.model_construct(**added)
        table = {
            "model": {"parameters": cell.payload, "bytes_per_parameter": 1},
            "objective": {"kind": "none"},
            "optimizer": {"lr": 0.1},
            "cluster": {"workers": cell.ranks, "compute": f"{known['gap']} s"},
            "network": own | {
                "transport": "tcp", "latency": f"{known['ping']} s",
                "bandwidth": f"{cell.rate} Mbit/s", "mtu": cell.mtu, "burst": f"{cell.burst} B",
            },
            "run": {"steps": len(known["each"])},
            "algorithm": [{"name": "ssgd"}],
        }  # fmt: skip
        scenario = parse(table, file=f"cell {cell.number}")
        scenario = scenario.model_copy(update={"overhead": (overhead,)})
        pace = simulate(scenario).algorithms[0]["seconds_per_step"]
        return float(pace["mean"] - known["gap"])

    def missed(self, fitted: Fitted = SHIPPED) -> float:
        """Return the logarithm of measured over predicted seconds."""
        return math.log(self.record["seconds"] / self.predicted(fitted))


def cells() -> list[Measured]:
    """Return the cells that have been measured, by number."""
    known = measure.read()
    return [Measured(cell, known[cell.number]) for cell in design() if cell.number in known]


def fitted(among: Sequence[Measured]) -> Fitted:
    """Fit each number to the cells that it concerns, with the least mean absolute residual."""
    concerns = {
        "late": [each for each in among if each.cell.slack < TRIED["late"][-1]],
        "gloo": [each for each in among if each.cell.kind == "gloo"],
    }
    found = SHIPPED
    for key, telling in concerns.items():
        tried = [found._replace(**{key: each}) for each in TRIED[key]] if telling else [found]
        found = min(tried, key=lambda one: sum(abs(each.missed(one)) for each in telling))
    return found


def typical(residuals: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile of their absolute values; nan of none."""
    sizes = sorted(map(abs, residuals))
    if not sizes:
        return math.nan, math.nan
    return statistics.median(sizes), sizes[math.ceil(0.95 * len(sizes)) - 1]


def left_out(among: Sequence[Measured]) -> dict[float, list[float]]:
    """Return the residuals of each rate with numbers fitted to all other rates."""
    found = {}
    for rate in OUT:
        others = fitted([each for each in among if each.cell.rate != rate])
        found[rate] = [each.missed(others) for each in among if each.cell.rate == rate]
    return found


def left_one_out(calm: Sequence[Measured]) -> dict[str, float]:
    """Correct each collective that the simulator states by the median of all others.

    Return the median error that is left, and the `share` that takes longer.
    """
    ratios = np.log([each.lasted / each.simulated() for each in calm if each.plain])
    left = [own - np.median(np.delete(ratios, n)) for n, own in enumerate(ratios)]
    return {"bias": float(np.median(left)), "share": float(np.mean(np.array(left) > 0))}


def words() -> str:
    """Return the fit, its residuals, and the numbers that the simulator states of them."""
    every = cells()
    calm = [each for each in every if each.calm]
    lines = [f"{len(every)} cells, {len(calm)} undisturbed; {fitted(calm)}"]
    for rate, residuals in left_out(calm).items():
        middle, most = typical(residuals)
        lines.append(
            f"without {rate:g} Mbit/s: median {100 * middle:.2f} %, 95th percentile "
            f"{100 * most:.1f} % of {len(residuals)} cells"
        )
    return "\n".join([*lines, f"for the simulator: {stated(calm)}"])


def stated(calm: Sequence[Measured]) -> dict[str, float]:
    """Return what the simulator says of links: errors of the model, and how much slower they are.

    As `tcp.measured` has them. `longer`, `most`: of measured seconds over those of links with the
    same buckets that carry payload alone, less 1.
    """
    plain = [each.lasted / each.simulated() for each in calm if each.plain]
    low, median, high = (round(float(np.quantile(plain, each)), 4) for each in (0.05, 0.5, 0.95))
    ratios = sorted(each.record["seconds"] / each.predicted(None) - 1 for each in calm)
    return {
        "cells": len(calm),
        "longer": round(statistics.median(ratios), 3),
        "most": round(ratios[math.ceil(0.95 * len(ratios)) - 1], 3),
        "gloo": SHIPPED.gloo,
        "collectives": len(plain),
        "low": low,
        "median": median,
        "high": high,
        **hosts(published()),
    }


def published() -> list[dict[str, str]]:
    """Return what published clusters move over a host's card through NCCL's sockets, in Gbit/s."""
    return [*csv.DictReader(PUBLISHED.read_text("utf-8").splitlines())]


def hosts(among: Sequence[dict[str, str]]) -> dict[str, float]:
    """Return how many of the hosts move less than their cards could, and quantiles of their rates.

    As `tcp.measured` has them, in bytes per second.
    """
    rates = [float(each["moved"]) * GIGABIT for each in among if each["full"] == "no"]
    ends = {"low": 0.05, "median": 0.5, "high": 0.95}
    found = {f"hosts_{key}": round(float(np.quantile(rates, at))) for key, at in ends.items()}
    return {"hosts": len(rates), **found}


def left_source_out() -> list[tuple[dict[str, str], float, bool]]:
    """Predict each published rate from the other sources: its row, Gbit/s, whether it is inside."""
    every, known, found = published(), tcp.measured(), []
    usable = tcp.usable(Network.model_validate({"transport": "tcp", "library": "nccl"}))
    for row in every:
        others = hosts([each for each in every if each["source"] != row["source"]])
        carried = usable * float(row["card"])
        ends = [
            min(carried / known[key], others[f"hosts_{other}"] / GIGABIT)
            for key, other in (("high", "low"), ("median", "median"), ("low", "high"))
        ]
        found.append((row, ends[1], ends[0] <= float(row["moved"]) <= ends[2]))
    return found
