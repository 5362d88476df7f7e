"""Fit what is not derived to the records of the experiment, and write docs/evidence/transport.md.

All but two numbers of the model are of standards or of Linux. They are fitted here: how late the
kernel wakes for a token bucket, and what a mean costs gloo itself; for each rate, to the other
rates alone. What the simulator states of links goes to `tcp.MEASURED`. `python -m
tests.lab.transport logs` prints how well calibration from two logs of real jobs predicts others.
"""

import csv
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline import simulate
from paceline.simulator.load.load import parse
from paceline.simulator.network import tcp
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.overhead import GIGABIT, Overhead
from tests.lab import tables
from tests.lab.transport import model, real_logs
from tests.lab.transport.model import SHIPPED, Cell, Fitted

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "evidence" / "transport.md"
KINDS = ("ring", "tree", "star", "one-way", "exchange", "gloo")
CONTROLS = ("cubic", "reno", "bbr")
OUT = (5.0, 20.0, 50.0, 200.0)  # Mbit/s left out in turn
SLOW, CALM, UNEVEN = 50.0, 0.15, 0.01  # Mbit/s; of the CPU; of the median
TRIED = {
    "late": [1e-6 * us for us in range(0, 41, 2)],
    "gloo": [1e-4 * tenth for tenth in range(31)],
}  # seconds
ENDS = {"low": 0.05, "median": 0.5, "high": 0.95}  # quantiles


@dataclass(frozen=True)
class Measured:
    """A cell and its record."""

    cell: Cell
    record: Mapping[str, Any]

    @property
    def calm(self) -> bool:
        """Whether other processes did not disturb the cell.

        Fast links need the processor, and gloo's threads did not run in real time as the sockets'
        ranks did, whose times over slow links show by their spread whether they were kept waiting:
        half the distance between the quartiles of the later half, as the first repetitions differ.
        """
        record = self.record
        later = record["each"][1 + len(record["each"]) // 2 :]
        low, middle, high = statistics.quantiles(later, n=4, method="inclusive")
        steady = (high - low) / 2 / middle <= UNEVEN
        exact = record["rate"] <= SLOW and record["kind"] != "gloo"
        return bool(record["others"] <= CALM or (exact and steady))

    def predicted(self, fitted: Fitted | None = SHIPPED) -> float:
        """Return the median seconds of its repetitions, without the first; None: without TCP."""
        record = self.record
        count = len(record["each"])
        seconds = model.seconds(self.cell, count, record["gap"], record["ping"], fitted)
        return statistics.median(seconds[1:])

    @property
    def plain(self) -> bool:
        """Whether a scenario can describe the cell: its collective, and TCP as Linux has it."""
        cell = self.cell
        usual = cell.after_idle and cell.congestion != "bbr"
        return cell.kind in ("ring", "tree", "gloo") and bool(usual or not cell.idle)

    @property
    def ratio(self) -> float:
        """Return the mean seconds of all repetitions over those that the simulator states.

        A worker computes for as long as the cell pauses between two of them. What all collectives
        took in the median is left out.
        """
        cell, record = self.cell, self.record
        gloo = cell.kind == "gloo"
        table = {
            "model": {"parameters": cell.payload, "bytes_per_parameter": 1},
            "objective": {"kind": "none"},
            "optimizer": {"lr": 0.1},
            "cluster": {"workers": cell.ranks, "compute": f"{record['gap']} s"},
            "network": ({"library": "gloo"} if gloo else {"collective": cell.kind}) | {
                "transport": "tcp", "latency": f"{record['ping']} s",
                "bandwidth": f"{cell.rate} Mbit/s", "mtu": cell.mtu, "burst": f"{cell.burst} B",
            },
            "run": {"steps": len(record["each"])},
            "algorithm": [{"name": "ssgd"}],
        }  # fmt: skip
        scenario = parse(table, file=f"cell {cell.number}")
        overhead = Overhead.model_construct(**(tcp.gloo() if gloo else {}))
        scenario = scenario.model_copy(update={"overhead": (overhead,)})
        step_time = simulate(scenario).algorithms[0]["seconds_per_step"]["mean"]
        return statistics.fmean(record["each"]) / float(step_time - record["gap"])

    def missed(self, fitted: Fitted = SHIPPED) -> float:
        """Return the logarithm of measured over predicted seconds."""
        return math.log(self.record["seconds"] / self.predicted(fitted))


def cells() -> list[Measured]:
    """Return the cells that have been measured, by number."""
    records = map(json.loads, PAGE.with_suffix(".jsonl").read_text("utf-8").splitlines())
    names = [field.name for field in fields(Cell)]
    return [Measured(Cell(**{name: row[name] for name in names}), row) for row in records]


@cache
def plain_ratios() -> np.ndarray:
    """Return measured over simulated seconds of the undisturbed collectives that a scenario has."""
    return np.array([cell.ratio for cell in cells() if cell.calm and cell.plain])


def fitted(among: Sequence[Measured]) -> Fitted:
    """Fit each number to the cells that it concerns, with the least mean absolute residual."""
    concerns = {
        "late": [cell for cell in among if cell.cell.slack < TRIED["late"][-1]],
        "gloo": [cell for cell in among if cell.cell.kind == "gloo"],
    }
    best = SHIPPED
    for key, telling in concerns.items():
        tried = [best._replace(**{key: value}) for value in TRIED[key]] if telling else [best]
        best = min(tried, key=lambda one: sum(abs(cell.missed(one)) for cell in telling))
    return best


def typical(residuals: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile of their absolute values; nan of none."""
    sizes = sorted(map(abs, residuals))
    if not sizes:
        return math.nan, math.nan
    return statistics.median(sizes), sizes[math.ceil(0.95 * len(sizes)) - 1]


def left_out(among: Sequence[Measured]) -> dict[float, list[float]]:
    """Return the residuals of each rate with numbers fitted to all other rates."""
    residuals = {}
    for rate in OUT:
        others = fitted([cell for cell in among if cell.cell.rate != rate])
        residuals[rate] = [cell.missed(others) for cell in among if cell.cell.rate == rate]
    return residuals


def left_one_out() -> dict[str, float]:
    """Correct each collective that the simulator states by the median of all others.

    Return the median error that is left, and the `share` that takes longer.
    """
    ratios = np.log(plain_ratios())
    left = np.array([one - np.median(np.delete(ratios, n)) for n, one in enumerate(ratios)])
    return {"bias": float(np.median(left)), "share": float(np.mean(left > 0))}


def stated(calm: Sequence[Measured]) -> dict[str, float]:
    """Return what the simulator says of links: errors of the model, and how much slower they are.

    As `tcp.measured` has them. `longer`, `most`: of measured seconds over those of links with the
    same buckets that carry payload alone, less 1.
    """
    plain = plain_ratios()
    ratios = sorted(cell.record["seconds"] / cell.predicted(None) - 1 for cell in calm)
    return {
        "cells": len(calm),
        "longer": round(statistics.median(ratios), 3),
        "most": round(ratios[math.ceil(0.95 * len(ratios)) - 1], 3),
        "gloo": SHIPPED.gloo,
        "collectives": len(plain),
        **{key: round(float(np.quantile(plain, at)), 4) for key, at in ENDS.items()},
        **hosts(published()),
    }


def published() -> list[dict[str, str]]:
    """Return what published clusters move over a host's card through NCCL's sockets, in Gbit/s."""
    return [*csv.DictReader((HERE / "published.csv").read_text("utf-8").splitlines())]


def hosts(among: Sequence[dict[str, str]]) -> dict[str, float]:
    """Return how many of the hosts move less than their cards could, and quantiles of their rates.

    As `tcp.measured` has them, in bytes per second.
    """
    rates = [float(row["moved"]) * GIGABIT for row in among if row["full"] == "no"]
    ends = {f"hosts_{key}": round(float(np.quantile(rates, at))) for key, at in ENDS.items()}
    return {"hosts": len(rates), **ends}


def left_source_out() -> list[tuple[dict[str, str], float, bool]]:
    """Predict each published rate from the other sources: its row, Gbit/s, whether it is inside."""
    rows, known, found = published(), tcp.measured(), []
    usable = tcp.usable(Network.model_validate({"transport": "tcp", "library": "nccl"}))
    for row in rows:
        others = hosts([other for other in rows if other["source"] != row["source"]])
        carried = usable * float(row["card"])
        low, middle, high = (
            min(carried / known[key], others[f"hosts_{other}"] / GIGABIT)
            for key, other in (("high", "low"), ("median", "median"), ("low", "high"))
        )
        found.append((row, middle, low <= float(row["moved"]) <= high))
    return found


def write() -> str:
    """Write the page; return a sentence."""
    every = cells()
    calm = [cell for cell in every if cell.calm]
    best, said = fitted(calm), stated(calm)
    dates = sorted(cell.record["date"] for cell in every)
    head = (HERE / "head.md").read_text("utf-8")
    text = [
        head.format(
            published=_published(), first=dates[0], last=dates[-1],
            late=1e6 * best.late, gloo=1e3 * best.gloo, collectives=said["collectives"],
            **{key: f"{100 * (said[key] - 1):+.1f} %" for key in ENDS},
            **{key: value / GIGABIT for key, value in said.items() if key.startswith("hosts_")},
            **{key: f"{100 * value:.2g} %" for key, value in left_one_out().items()},
            **{key: every[0].record[key] for key in ("kernel", "torch", "python")},
        ),
        _residuals(every, calm),
        "\nBeside links that carry payload alone, through the same buckets, collectives took "
        f"{100 * said['longer']:.1f} % longer in the median, {100 * said['most']:.1f} % at the "
        "95th percentile.\n",
        _cells(every),
    ]  # fmt: skip
    PAGE.write_text("".join(text), encoding="utf-8")
    lines = "".join(f"{key} = {value}\n" for key, value in said.items())
    tcp.MEASURED.write_text(f"# Written by `python -m tests.lab.transport`\n{lines}", "utf-8")
    return f"{PAGE}: {len(every)} cells, {len(calm)} undisturbed"


def _published() -> str:
    """Write a table of published rates, each beside what the other sources lead to."""
    head = ("hosts x GPUs", "card", "moved", "stated", "inside", "source", "what")
    rows = [
        (
            f"{row['hosts']} x {row['devices'] or '?'}", row["card"], row["moved"], f"{rate:.1f}",
            "yes" if inside else "no", row["source"], row["how"],
        )
        for row, rate, inside in left_source_out()
    ]  # fmt: skip
    return tables.write(PAGE.with_name("transport-published.csv"), head, rows)


def _residuals(every: Sequence[Measured], calm: Sequence[Measured]) -> str:
    """Return a table of residuals by group, of undisturbed cells."""
    groups: dict[str, Callable[[Measured], bool]] = {
        "all": lambda _: True,
        "without loss": lambda one: not one.record["drops"],
        "sockets": lambda one: one.cell.kind != "gloo",
        **{kind: lambda one, k=kind: one.cell.kind == k for kind in KINDS},
        **{name: lambda one, n=name: one.cell.congestion == n for name in CONTROLS},
    }  # fmt: skip
    rows = {name: [one.missed() for one in calm if holds(one)] for name, holds in groups.items()}
    rows["the simulator itself: `ring`, `tree`, `gloo`"] = [*np.log(plain_ratios())]
    out = left_out(calm)
    rows |= {f"without {rate:g} Mbit/s": missed for rate, missed in out.items()}
    rows["these together"] = [one for missed in out.values() for one in missed]
    lines = [
        f"\n## Residuals\n\nMeasured against predicted seconds, of {len(calm)} undisturbed cells "
        f"among {len(every)}; without a rate: with what is fitted to the other rates.\n\n"
        "| cells | number | median | 95th percentile | worst |\n|---|---:|---:|---:|---:|\n"
    ]
    for name, missed in rows.items():
        sizes = (*typical(missed), max(map(abs, missed), default=math.nan))
        shown = " | ".join(f"{100 * size:.2f} %" if missed else "-" for size in sizes)
        lines.append(f"| {name} | {len(missed)} | {shown} |\n")
    return "".join(lines)


def _cells(every: Sequence[Measured]) -> str:
    """Write the table of all cells; return the section that shows it."""
    head = (
        "number", "kind", "ranks", "Mbit/s", "ms", "payload", "mtu", "bucket", "queue", "control",
        "restarts", "idle", "lost", "ideal s", "model s", "measured s", "residual %", "others %",
        "disturbed",
    )  # fmt: skip
    rows = []
    for cell, record, one in ((one.cell, one.record, one) for one in every):
        rows.append((
            cell.number, cell.kind, cell.ranks, f"{cell.rate:g}", f"{1e3 * cell.latency:g}",
            cell.payload, cell.mtu, cell.burst, cell.queue, cell.congestion, cell.after_idle,
            cell.idle, record["drops"], f"{cell.ideal:.4f}", f"{one.predicted():.4f}",
            f"{record['seconds']:.4f}", f"{100 * one.missed():+.1f}",
            f"{100 * record['others']:.0f}", "" if one.calm else "yes",
        ))  # fmt: skip
    link = tables.write(PAGE.with_name("transport-cells.csv"), head, rows)
    return (
        "\n## Every cell\n\n`bucket` and `queue` in bytes; `idle`: seconds between repetitions; "
        "`restarts`: `tcp_slow_start_after_idle`; `lost`: packets dropped per repetition; "
        f"`others`: share of the CPU that other processes used.\n\n{link}\n"
    )


if __name__ == "__main__":
    print(real_logs.words() if sys.argv[1:] == ["logs"] else write())
