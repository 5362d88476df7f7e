"""docs/evidence/fleets.md: published times of two fleets, derived from links and bytes."""

import re
from pathlib import Path

import pytest

import paceline

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
