"""docs/evidence/fleets.md: published times of two fleets, derived from links and bytes."""

import re
from math import comb, log2
from pathlib import Path

import pytest

import paceline
from paceline.simulator.programs.codecs.sparse_loco import SparseLoCo

PAGE = (Path(__file__).parents[2] / "docs" / "evidence" / "fleets.md").read_text("utf-8")
ROW = re.compile(r"^\| `(fleets/\S+)`(?:, (.+?))? \| (.+) \|$", re.MULTILINE)
STEPS = {"intellect-1": 38 * 60, "covenant": 20 * 60}  # seconds of computing between means
FEW, MANY = ["cluster.workers=4"], ["cluster.workers=14"]


def rows():
    """Return scenario, label, and the numbers of each row of the table."""
    return [
        (name, label, [[float(word) for word in cell.split(" to ")] for cell in cells.split(" | ")])
        for name, label, cells in ROW.findall(PAGE)
    ]


def found(name, label="", *overrides):
    """Return the seconds of a mean, and the percentage of the time that is computing."""
    world = paceline.load(name, overrides)
    assert world.network.collective != "given"
    (row,) = (item for item in paceline.simulate(world).algorithms if label in ("", item["label"]))
    computing = next(step for key, step in STEPS.items() if key in name)
    tau = next(candidate.parameters["tau"].value for candidate in world.algorithm)
    mean = tau * row["seconds_per_step"]["mean"] - computing
    return mean, 100 * row["breakdown"]["compute"]


def extremes(name):
    """Return the overrides of the fastest and the slowest links that the publications allow."""
    if "covenant" in name:
        return ['network.up="500 Mbit/s"'], []
    rate = paceline.load(name).network.bandwidth * 8 / 1e6
    fast, slow = (f'network.bandwidth="{factor * rate} Mbit/s"' for factor in (1.1, 0.9))
    return [*FEW, fast], [*MANY, slow]


@pytest.mark.parametrize(("name", "label", "cells"), rows(), ids=lambda value: str(value)[-30:])
def test_the_table_is_what_the_scenarios_give(name, label, cells):
    (published,), (published_share,), (ours,), (share,), seconds, shares = cells
    mean, computing = found(name, label)
    assert round(mean) == ours
    assert round(computing, 1) == share
    near, far = (found(name, label, *extreme) for extreme in extremes(name))
    assert [round(near[0]), round(far[0])] == seconds
    assert [round(far[1], 1), round(near[1], 1)] == shares
    if "intellect" in name:
        assert (ours, share) == (published, published_share)
    assert seconds[0] <= published <= seconds[1]


def test_there_is_a_row_for_every_published_fleet():
    folder = Path(paceline.__file__).parents[1] / "scenarios" / "fleets"
    published = {f"fleets/{path.stem}" for path in folder.glob("*")}
    published -= {"fleets/phones", "fleets/phones-at-night"}
    assert {name for name, *_ in rows()} == published
    assert len(rows()) == 5


def test_what_the_page_says_of_the_bytes():
    parameters, up = 72.7e9, 110e6 / 8
    whole = SparseLoCo().size(parameters, 4.0, 0, None)
    assert f"{whole / 1e9:.2f} GB in all" in PAGE
    assert round(whole / up) == 145
    assert f"{4 * parameters / whole:.0f} times less" in PAGE
    assert f"{whole * 8 / 70 / 1e6:.0f} Mbit/s up" in PAGE
    least = log2(comb(4096, 64)) / 64
    packed = parameters / 64 / 8 * (least + 2)
    assert f"{least:.1f} bits each, with the values {packed / 1e9:.2f} GB or" in PAGE
    assert f"{packed / up:.0f} s; the authors'" in PAGE
    assert f"{parameters / 64 / 8 * (8.5 + 2) / up:.0f} s. So" in PAGE
    others, _ = found(
        "fleets/covenant-72b", "SparseLoCo, 64 of 4096",
        "cluster.workers=20", 'network.up="500 Mbit/s"', 'network.latency="0 s"',
    )  # fmt: skip
    assert f"{others:.0f} s, more than" in PAGE
