"""The experiment on TCP: its records, and what the model misses of them."""

import csv
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.load.load import load
from paceline.simulator.network import tcp
from paceline.simulator.scenario.tables import NoObjective
from paceline.simulator.studies import links as links_study
from paceline.simulator.studies.execution import Execution
from paceline.simulator.studies.links import uncalibrated
from paceline.validate.comparison.quantities import pace
from paceline.validate.matrix.conditions import CONDITIONS
from tests.lab.transport import __main__ as fit
from tests.lab.transport import model

ROOT = Path(__file__).parents[2]
NONE = model.Fitted(0.0, 0.0)


@settings(max_examples=15)
@given(number=st.integers(0, 149), hop=st.floats(0, 0.05), repeats=st.integers(1, 4))
def test_tcp_takes_longer_than_payload_alone_and_a_fuller_bucket_less(number, hop, repeats):
    cell = fit.cells()[number].cell
    over, without = (model.seconds(cell, repeats, 0.3, hop, late) for late in (NONE, None))
    assert all(a >= b * (1 - 1e-9) for a, b in zip(over, without, strict=True))
    fuller = model.seconds(replace(cell, burst=2 * cell.burst), repeats, 1e6, hop, NONE)
    assert sum(fuller) <= sum(model.seconds(cell, repeats, 1e6, hop, NONE)) * (1 + 1e-9)


def test_the_model_misses_little_and_the_simulator_says_how_much():
    """Undisturbed cells of the committed records, each rate left out in turn."""
    calm = [each for each in fit.cells() if each.calm]
    assert len(calm) >= 60
    assert tomllib.loads(tcp.MEASURED.read_text("utf-8")) == fit.stated(calm)
    everything = [missed for each in fit.left_out(calm).values() for missed in each]
    middle, most = fit.typical(everything)
    assert middle < 0.03
    assert most < 0.08
    assert fit.typical(1 / fit.plain_ratios() - 1)[0] < 0.03


def test_the_median_of_the_others_leaves_no_bias_in_a_collective():
    """Each collective that the simulator can state, corrected by the median of all others."""
    found = fit.left_one_out()
    assert abs(found["bias"]) < 0.002
    assert 0.4 < found["share"] < 0.6
    ratios, known = fit.plain_ratios(), tcp.measured()
    inside = (known["low"] <= ratios) & (ratios <= known["high"])
    assert 0.85 <= inside.mean() <= 0.95


def test_what_published_hosts_move_is_told_by_the_other_sources():
    """Of eleven rates, nine at least lie within the 90 % interval that all other sources give."""
    stated = tcp.measured()
    for key, value in fit.hosts(fit.published()).items():
        assert stated[key] == value
    found = fit.left_source_out()
    assert sum(inside for *_, inside in found) >= 9 * len(found) / 11
    for row, rate, _ in found:
        assert float(row["moved"]) < float(row["card"])
        assert rate < float(row["card"])


def test_ends_of_links_are_simulated_once_for_the_same_scenario_and_seed(monkeypatch):
    """A page asks for them with every block of its seeds."""
    ran = []

    def counted(self, scenario, algorithm, seeds, **_):
        ran.append(scenario)
        return run_seeds(scenario, algorithm, seeds)

    monkeypatch.setattr(Execution, "run", counted)
    monkeypatch.setattr(links_study, "_paces", {})
    found = []
    for rate, seed in (("40 Mbit/s", 0), ("40 Mbit/s", 0), ("40 Mbit/s", 1), ("80 Mbit/s", 0)):
        made = load("quickstart", [f"network.bandwidth={rate}", "network.transport=tcp"])
        algorithm = made.algorithm[0]
        groups = {algorithm.label: run_seeds(made, algorithm, [seed])}
        found.append((uncalibrated(made, groups, Execution())[algorithm.label], len(ran)))
    assert [count for _, count in found] == [3, 3, 6, 9]
    assert found[0][0] == found[1][0]
    assert found[3][0] != found[0][0]


@pytest.mark.slow
def test_without_a_profile_programs_of_the_matrix_have_no_bias_and_are_covered():
    """Programs over links of the kernel, predicted from the scenario and its draws alone."""
    with (ROOT / "docs/evidence/validation/kernel-links.csv").open(encoding="utf-8") as file:
        measured = {
            (row["condition"], row["program"]): float(row["measured_seconds_per_step"])
            for row in csv.DictReader(file)
        }
    missed, inside = [], []
    for condition in CONDITIONS:
        made = condition.scenario("network.transport=tcp")
        made = made.model_copy(update={"objective": NoObjective(kind="none")})
        for algorithm in made.algorithm:
            if (seen := measured.get((condition.name, algorithm.words))) is None:
                continue
            found = run_seeds(made, algorithm, [condition.seed])
            groups = {algorithm.label: found}
            model = uncalibrated(made, groups, Execution())[algorithm.label]
            missed.append(math.log(seen / pace(found[0])))
            wide = model.spread("seconds_per_step", missed[-1] > 0).within()
            inside.append(abs(missed[-1]) <= wide)
    assert len(missed) == len(measured)
    assert abs(np.median(missed)) < 0.01
    assert np.mean(inside) >= 0.9
