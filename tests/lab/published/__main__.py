"""Predict what strangers measured, and write docs/evidence/published.md: `make published`.

A new measurement is a line of facts.csv; a new source is a function of `sources`. Nothing is fitted
to these rows. `python -m tests.lab.published SOURCE...` prints some sources, and writes nothing.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline import simulate
from paceline.simulator.load.load import load
from tests.lab import tables
from tests.lab.published.sources import SOURCES, Case, Row

FACTS = Path(__file__).with_name("facts.csv")
PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "published.md"
WORST = 12
INTRODUCTION = """# What others measured

`make published` predicts each of these measurements from a scenario that states only what its
source states, with [kinds of hardware](../network.md#kinds-of-hardware) by name, and writes this
page. Nothing is fitted to these rows: what is learnt from measurements (rates of sockets, of gloo,
of PCIe) comes from other sources. Errors are predicted over measured, less one; bias is their
median; "inside" counts those within the 90 % interval of the prediction.

{table}

## What is assumed

{assumptions}
Not predicted: {left} rows of reduce, broadcast, and sharded or centralised averages, which no
program here makes, and the {given} rows of one GPU, from which steps are taken.

## The worst rows

{worst}

`100Gb-TCP` is IP over InfiniBand: its hosts move 19 Gbit/s where the median of other sources is 35,
and its rows of a parameter server at 16 and 32 GPUs equal those of 10 GbE, so that they are
doubtful. With 16 nodes `tc-dp` takes twice as long for 256 MB as one mean does in `tc`: no cause is
stated. Servers on the workers' own nodes (`PS`) reduce inside a box while they push: here one
follows the other. torchft adds 2 to 5 s to a synchronisation over gloo, which no source explains.
"""
ASSUMPTIONS = {
    "hkbu": "a node is 4 GPUs on PCIe 3.0 staged through the host; BERT-Large has the tensors of "
    "its paper; servers are one on each node, with its card; BSP sends after the whole pass.",
    "tc": "cards of 10 Gbit/s without a delay are 0.1 ms apart; frames have 9000 bytes.",
    "ft-diloco": "the open link carries 10 Gbit/s.",
}
GROUPS = {"single": "box", "10GbE-TCP": "10 GbE", "100Gb-IB": "InfiniBand", "100Gb-TCP": "IPoIB"}


class Outcome(NamedTuple):
    """A prediction and its interval, relative to what was measured."""

    row: Row
    ratio: float
    interval: tuple[float, float]

    @property
    def inside(self) -> bool:
        """Whether the measured value lies within the interval."""
        return self.interval[0] <= 1 <= self.interval[1]

    @property
    def group(self) -> str:
        """The rows that it is counted with."""
        row = self.row
        if row["source"] != "hkbu":
            return " ".join([row["source"], *[row["method"]] * (row["source"] == "tc")])
        where = "box" if row["workers"] == "4" else GROUPS[row["link"]]
        kind = "servers" if row["method"].endswith("PS") else "all-reduce"
        return f"hkbu {where}" if where == "box" else f"hkbu {where}, {kind}"


def predicted(row: Row, case: Case) -> Outcome:
    """Predict a row: seconds, or for rates their inverse."""
    seconds = simulate(load(case.table), seeds=1).algorithms[0]["seconds_per_step"]
    measured = float(row["value"])
    measured = 1 / measured if case.inverse else measured
    scale = case.factor / measured
    low, high = seconds.get("interval90") or [seconds["mean"]] * 2
    return Outcome(row, scale * seconds["mean"], (scale * low, scale * high))


def summary(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Return a row of the table: number, median, 95th percentile and bias of errors, coverage."""
    errors = np.array([outcome.ratio - 1 for outcome in outcomes])
    median, worst = np.quantile(abs(errors), [0.5, 0.95])
    inside = sum(outcome.inside for outcome in outcomes)
    share = f"{inside} ({inside / len(outcomes):.0%})"
    bias = f"{100 * np.median(errors):+.1f} %"
    return [name, str(len(outcomes)), f"{100 * median:.1f} %", f"{100 * worst:.1f} %", bias, share]


def lines(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return the table by group, and of all."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    return [summary(name, group) for name, group in groups.items()] + [summary("all", outcomes)]


def worst(outcomes: Sequence[Outcome]) -> Iterable[list[str]]:
    """Yield the rows with the largest errors."""
    for outcome in sorted(outcomes, key=lambda one: -abs(log(one.ratio)))[:WORST]:
        row, (low, high) = outcome.row, outcome.interval
        names = [row[key] for key in ("source", "model", "method", "link", "workers", "size")]
        yield [*names, f"{outcome.ratio:.2f}", f"{low:.2f} to {high:.2f}"]


def main(names: Sequence[str]) -> int:
    """Predict all rows, or those of some sources; return the exit status."""
    rows: list[Mapping[str, str]] = [*csv.DictReader(FACTS.read_text("utf-8").splitlines())]
    cases = [(row, SOURCES[row["source"]](row)) for row in rows]
    chosen = [(row, case) for row, case in cases if not names or row["source"] in names]
    outcomes = [predicted(row, case) for row, case in chosen if case is not None]
    table = lines(outcomes)
    print(*map("  ".join, table), sep="\n")
    if names:
        return 0
    head = ("rows", "n", "median error", "95th percentile", "bias", "inside")
    shown = tables.write(PAGE.with_name("published.csv"), head, table)
    head = ("source", "model", "method", "link", "workers", "size", "predicted / measured", "90 %")
    given = sum(row["method"] == "single" for row in rows)
    text = INTRODUCTION.format(
        table=shown,
        worst=tables.write(PAGE.with_name("published-worst.csv"), head, worst(outcomes)),
        assumptions="".join(f"- `{name}`: {about}\n" for name, about in ASSUMPTIONS.items()),
        left=len(rows) - len(outcomes) - given,
        given=given,
    )
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
