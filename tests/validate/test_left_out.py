"""The model's error, learnt from programs that were left out, and the coverage that it gives."""

import json
import math
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.simulator.results import prediction_interval
from paceline.simulator.results.prediction_interval import Unfitted
from paceline.simulator.scenario.overhead import ModelError
from paceline.validate.calibration import profile
from paceline.validate.comparison.quantities import PACE, TARGET
from tests.helpers.left_out import coverage, judged
from tests.lab.evidence import model_error as left_out

ROOT = Path(__file__).parents[2]
DOCUMENT = Path("docs/evidence/validation/amd-epyc-2-cores.json")
LOW, HIGH = 0.80, 0.98
NAMES = {
    "blocking": ("local-sgd", "easgd", "bmuf"),
    "overlapped": ("dts", "cocod-sgd", "hpsgd"),
    "server": ("asgd", "ssp"),
}


@pytest.fixture(scope="module")
def matrix():
    return left_out.read(ROOT / DOCUMENT)


def cell(program, off, spread=0.02, network="emulated", **changes):
    """Make a cell whose measurement is e^off times what was predicted with the same delays."""
    paired = {"predicted": 1.0, "measured": math.exp(off)}
    wide = math.exp(1.895 * spread)
    apart = paired | {"interval90": [1 / wide, wide]}
    quantities = {PACE: paired, TARGET: paired, "independent": {PACE: apart, TARGET: apart}}
    actual = {"program": program, "network": network, "condition": "a", "counted": True}
    return actual | quantities | changes


def test_the_shipped_table_is_what_the_measurements_say(matrix):
    """`python -m tests.lab.evidence.model_error` wrote it."""
    table = left_out.model_error(matrix, DOCUMENT.as_posix())
    assert prediction_interval.MODEL_ERROR.read_text("utf-8") == table.text()
    assert profile.model_error("kernel") == profile.model_error("real") == table.tables["real"]
    assert ModelError(**profile.model_error("emulated")).programs == 9


FAMILIES = "blocking", "overlapped", "server", "gossip"


def test_the_manual_shows_the_shipped_table():
    manual = (ROOT / "docs/calibrate.md").read_text("utf-8")
    for network, text in (("emulated", "emulated delays"), ("real", "real links")):
        for quantity in (PACE, TARGET):
            shipped = profile.model_error(network)[quantity]
            shown = [100 * shipped.get(family, 0.0) for family in FAMILIES]
            digits = [f"{number:.2f}" if number < 1 else f"{number:.1f}" for number in shown]
            row = " | ".join(f"{digit} %" if digit != "0.00" else "-" for digit in digits)
            assert f"| {quantity.replace('_', ' ')}, {text} | {row} |" in manual


def test_intervals_of_programs_left_out_hold_nine_of_ten_measured_values(matrix):
    """Each of the matrix's programs left out in turn, for each kind of network and family."""
    rows = coverage(judged(matrix.cells))
    shares = {
        f"{row['what']} {row['which']}": row["both"][0] / row["both"][1]
        for row in rows
        if row["what"] in ("all", "network", "family")
    }
    assert {*shares} == {"all ", "network emulated", "network kernel", "network real",
                         *(f"family {family}" for family in FAMILIES)}  # fmt: skip
    assert all(LOW <= share <= HIGH for share in shares.values()), shares
    for key in (PACE, TARGET):
        held, of = rows[0][key]
        assert LOW <= held / of <= HIGH
    document = json.loads((ROOT / DOCUMENT).read_text("utf-8"))
    assert document["coverage"] == rows
    table = (ROOT / DOCUMENT).with_name(f"{Path(DOCUMENT).stem}-coverage.csv").read_text("utf-8")
    for row, line in zip(rows, table.splitlines()[1:], strict=True):
        counts = ["; ".join(map(str, row[key])) for key in (PACE, TARGET, "both", "same")]
        assert line.endswith(",".join(counts))


def test_an_interval_knows_nothing_of_its_own_program(matrix):
    """Whatever hpsgd is measured to take, its intervals are the same; others' change."""
    changed = deepcopy(matrix.cells)
    for item in changed:
        if left_out.name(item) == "hpsgd" and item[PACE]["measured"]:
            item[PACE]["measured"] *= 1.5
    for before, after in zip(judged(matrix.cells), judged(changed), strict=True):
        one, two = (report["left_out"][PACE]["interval90"] for report in (before, after))
        assert (one == two) == (left_out.name(before) == "hpsgd")


def test_what_all_programs_miss_is_learnt_and_few_say_little():
    every = [cell(f"{name} tau={k}", 0.03 * (-1) ** k)
             for names in NAMES.values() for name in names for k in range(4)]  # fmt: skip
    actual = left_out.learn(every)
    assert actual.programs == 8
    for quantity in (PACE, TARGET):
        assert getattr(actual, quantity) == pytest.approx(dict.fromkeys(NAMES, 0.03))
    off = [cell(name, 0.06 if name in NAMES["server"] else 0.01)
           for names in NAMES.values() for name in names]  # fmt: skip
    actual = left_out.learn(off)
    assert 0.01 < actual.of(PACE, "blocking") < 0.03 < actual.of(PACE, "server") < 0.06
    assert actual.of(PACE, "gossip") == actual.of(PACE, None) == actual.of(PACE, "server")
    assert left_out.learn(every[:4]) is None  # of one program alone
    assert left_out.learn([item | {"counted": False} for item in every]) is None


def test_intervals_hold_nine_of_ten_of_programs_that_are_new():
    """Programs differ in how far they are off, as in the matrix; nine are known, one is new."""
    rng = np.random.default_rng(3)
    held = []
    for _ in range(400):
        names = [name for group in NAMES.values() for name in group]
        size = dict(zip(names, 0.01 * np.exp(0.5 * rng.standard_normal(8)), strict=True))
        cells = [cell(name, size[name] * rng.standard_normal()) for name in names for _ in range(8)]
        new = names[rng.integers(8)]
        errors = left_out.learn([item for item in cells if left_out.name(item) != new])
        spread = Unfitted(errors, left_out.family(cell(new, 0.0))).spreads(PACE)[1]
        held += [
            abs(math.log(item[PACE]["measured"])) <= spread.within()
            for item in cells
            if left_out.name(item) == new
        ]
    assert LOW <= np.mean(held) <= HIGH


def test_chance_and_the_model_s_error_add_up():
    """The stated interval, of chance alone, is widened by what other programs were off."""
    others = [cell(name, 0.02 * (-1) ** k) for name in NAMES["blocking"] for k in range(4)]
    (*_, actual) = judged([*others, cell("dts", 0.0, spread=0.02)])
    low, high = actual["left_out"][PACE]["interval90"]
    assert high == pytest.approx(1 / low)
    assert 1.6 * 0.02 * 2**0.5 < math.log(high) < 2.1 * 0.02 * 2**0.5
    unknown = cell("dts", 0.0) | {TARGET: {"predicted": None, "measured": 3.0}}
    (*_, actual) = judged([*others, unknown])
    assert actual["left_out"][TARGET]["same"] is None
    (row, *_) = coverage([actual])
    assert (row["both"], row["same"]) == ([2, 2], [1, 1])
