"""Predict strangers' measurements, and write docs/evidence/published.md: `make published`.

A new measurement is a line of facts.csv; a new source is a function of `sources`. Nothing is fitted
to these rows. `python -m tests.lab.published SOURCE...` prints some sources, and writes nothing.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import hypot, log, log1p
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from paceline import simulate
from paceline.simulator.load.load import load
from paceline.simulator.results import prediction_interval
from paceline.simulator.results.prediction_interval import Kind, Published
from paceline.simulator.studies.links import collective_share
from paceline.simulator.studies.result import Result
from tests.lab import tables
from tests.lab.published.sources import SOURCES, Case, Row

FACTS = Path(__file__).with_name("facts.csv")
PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "published.md"
WORST = 12
INTRODUCTION = """# What others measured

`make published` predicts each of these measurements from a scenario that states only what its
source states, with [kinds of hardware](../network.md#kinds-of-hardware) by name, and writes this
page. Nothing is fitted to these rows: rates of sockets, of gloo and of PCIe come from measurements
of other sources. An error is predicted over measured minus one; bias is the median error; "inside"
counts measurements within the 90 % interval. Intervals include the errors of other repositories
([how](../transport.md#the-interval-without-a-profile)).

{table}

## What is assumed

{assumptions}
Not predicted: {left} rows of reduce, broadcast, and sharded or centralised averages, which no
program here makes, and the {given} rows of one GPU, from which steps are taken.

## The worst rows

{worst}

`100Gb-TCP` is IP over InfiniBand; its rows of servers (`PS`) with ResNet-50 and BERT-Large equal
those of 10 GbE, so they are doubtful. With 16 nodes `tc-dp` takes twice as long for 256 MB as one
mean in `tc`; no cause is stated. BERT with a mean for each tensor (`WFBP`) computes longer during
means inside a box, up to the upper ends of the intervals. Beyond its hashes, torchft adds 2 to 3 s
to a synchronisation over gloo. Five copies of 205 MB over PCIe take 0.1 s of it. Separate averages
of every tensor do not explain it: PyTorch's gloo works on two at once, so 50 means of 2 kB took
1.06 s over links of 10 ms, half the time of means one after another.
"""
ASSUMPTIONS = {
    "hkbu": "a node is 4 GPUs on PCIe 3.0 staged through the host; BERT-Large has the tensors of "
    "its paper; there are as many servers as boxes, on nodes of their own with the same card "
    "(byteps/launch.sh); `100Gb-TCP` is IP over InfiniBand (the same); BSP sends after the whole "
    "pass.",
    "tc": "cards of 10 Gbit/s without a delay are 0.1 ms apart; frames have 9000 bytes.",
    "ft-diloco": "the open link is inside one host; two hashes of the model after a "
    "synchronisation take 0.67 s and an evaluation 2 s, as its logs show.",
}
GROUPS = {"single": "box", "10GbE-TCP": "10 GbE", "100Gb-IB": "InfiniBand", "100Gb-TCP": "IPoIB"}


class Outcome(NamedTuple):
    """A prediction and its interval, relative to the measurement.

    `kind`: its group in intervals of other sources.
    """

    row: Row
    ratio: float
    interval: tuple[float, float]
    kind: Kind
    result: Result
    scale: float

    @property
    def inside(self) -> bool:
        """Return whether the measured value lies within the interval."""
        return self.interval[0] <= 1 <= self.interval[1]

    @property
    def group(self) -> str:
        """Return the group of rows that counts this one."""
        row = self.row
        if row["source"] != "hkbu":
            return " ".join([row["source"], *[row["method"]] * (row["source"] == "tc")])
        where = "box" if row["workers"] == "4" else GROUPS[row["link"]]
        kind = "servers" if row["method"].endswith("PS") else "all-reduce"
        return f"hkbu {where}" if where == "box" else f"hkbu {where}, {kind}"


def predicted(row: Row, case: Case) -> Outcome:
    """Predict a row: seconds, or for rates their inverse. Its interval is without `beyond`."""
    scenario = load(case.table)
    with patch.object(prediction_interval, "published", list):
        result = simulate(scenario, seeds=1)
    measured = float(row["value"])
    scale = case.factor * (measured if case.inverse else 1 / measured)
    return of_result(row, result, scale)


def of_result(row: Row, result: Result, scale: float) -> Outcome:
    """Return the outcome of a result whose seconds per step are multiplied by `scale`."""
    seconds = result.algorithms[0]["seconds_per_step"]
    low, high = seconds["interval90"]
    group = prediction_interval.kind(result.scenario)
    assert group is not None, row
    ends = scale * low, scale * high
    return Outcome(row, scale * seconds["mean"], ends, group, result, scale)


def error(outcome: Outcome) -> Published:
    """Return a prediction's error for the intervals of other sources."""
    low, high = (log(end / outcome.ratio) for end in outcome.interval)
    numbers = -log(outcome.ratio), -low, high, share(outcome)
    return Published(repository(outcome.row), outcome.kind, *numbers)


def share(outcome: Outcome) -> float:
    """Return the share of the time that collectives take."""
    scenario = outcome.result.scenario
    return collective_share(scenario, scenario.algorithm[0], outcome.result.runs)


def repository(row: Row) -> str:
    """Return the repository of a row, which several sources may share."""
    return row["ref"].partition("@")[0]


def widened(outcome: Outcome, errors: Sequence[Published]) -> Outcome:
    """Return the outcome with the errors of other sources' predictions in its interval."""
    result = outcome.result
    others = [error for error in errors if error.source != repository(outcome.row)]
    wider = log1p(prediction_interval.beyond(result.scenario, others) * share(outcome))
    links = {
        label: replace(model, faster=-hypot(model.faster, wider), slower=hypot(model.slower, wider))
        for label, model in result.links.items()
    }
    return of_result(outcome.row, replace(result, links=links), outcome.scale)


def as_columns(errors: Sequence[Published]) -> Iterable[list[str]]:
    """Yield the rows of published.csv."""
    for error in errors:
        numbers = error[2:]
        yield [error.source, *error.kind, *(f"{number:.4f}" for number in numbers)]


def summary(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Return a row of the table: number, median, 95th percentile and bias of errors, coverage."""
    errors = np.array([outcome.ratio - 1 for outcome in outcomes])
    median, worst = np.quantile(abs(errors), [0.5, 0.95])
    inside = sum(outcome.inside for outcome in outcomes)
    share = f"{inside} ({inside / len(outcomes):.0%})"
    bias = f"{100 * np.median(errors):+.1f} %"
    return [name, str(len(outcomes)), f"{100 * median:.1f} %", f"{100 * worst:.1f} %", bias, share]


def lines(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return the table by group, and for all."""
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
    alone = [predicted(row, case) for row, case in chosen if case is not None]
    errors = [*map(error, alone)] if not names else prediction_interval.published()
    outcomes = [widened(outcome, errors) for outcome in alone]
    table = lines(outcomes)
    print(*map("  ".join, table), sep="\n")
    if names:
        return 0
    head = ("rows", "n", "median error", "95th percentile", "bias", "inside")
    shown = tables.write(PAGE.with_name("published.csv"), head, table)
    head = ("source", *Kind._fields, *Published._fields[2:])
    tables.write(prediction_interval.PUBLISHED, head, as_columns(errors))
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
