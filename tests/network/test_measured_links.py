"""What links of real kernels and hosts carried, against what the simulator states of them."""

import csv
import json
import math
import statistics
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from paceline import simulate
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.load.load import parse
from paceline.simulator.network import tcp
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.overhead import GIGABIT, Overhead
from paceline.simulator.scenario.tables import NoObjective
from paceline.simulator.studies.execution import Execution
from paceline.simulator.studies.links import uncalibrated
from paceline.validate.comparison.quantities import pace
from paceline.validate.matrix.conditions import CONDITIONS
from tests.helpers.cases import named

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
ENDS = {"low": 0.05, "median": 0.5, "high": 0.95}  # quantiles


def rows(file):
    return [*csv.DictReader(file.read_text("utf-8").splitlines())]


def simulated(record):
    """Return the mean seconds of a cell's collective, after pauses in which workers compute."""
    gloo = record["kind"] == "gloo"
    table = {
        "model": {"parameters": record["payload"], "bytes_per_parameter": 1},
        "objective": {"kind": "none"},
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": record["ranks"], "compute": f"{record['gap']} s"},
        "network": ({"library": "gloo"} if gloo else {"collective": record["kind"]}) | {
            "transport": "tcp", "latency": f"{record['ping']} s", "mtu": record["mtu"],
            "bandwidth": f"{record['rate']} Mbit/s", "burst": f"{record['burst']} B",
        },
        "run": {"steps": len(record["each"])},
        "algorithm": [{"name": "ssgd"}],
    }  # fmt: skip
    # What all collectives took in the median is left out.
    overhead = (Overhead.model_construct(**(tcp.gloo() if gloo else {})),)
    made = parse(table).model_copy(update={"overhead": overhead})
    return simulate(made).algorithms[0]["seconds_per_step"]["mean"] - record["gap"]


@cache
def ratios():
    """Return measured over simulated seconds of every cell that a scenario can describe."""
    records = map(json.loads, (EVIDENCE / "transport.jsonl").read_text("utf-8").splitlines())
    plain = [
        record for record in records if record["kind"] in ("ring", "tree", "gloo")
        and (not record["idle"] or (record["after_idle"] and record["congestion"] != "bbr"))
    ]  # fmt: skip
    return np.array([statistics.fmean(record["each"]) / simulated(record) for record in plain])


def test_collectives_take_what_is_stated_of_links_of_the_kernel():
    measured = tcp.measured()
    assert len(ratios()) == measured["collectives"]
    for name, at in ENDS.items():
        assert measured[name] == round(float(np.quantile(ratios(), at)), 4)
    logs = np.log(ratios())
    left = np.array([one - np.median(np.delete(logs, n)) for n, one in enumerate(logs)])
    assert abs(np.median(left)) < 0.002
    assert 0.4 < np.mean(left > 0) < 0.6


def test_what_published_hosts_move_is_told_by_the_other_sources():
    """Of eleven rates, nine at least lie within the 90 % interval that all other sources give."""
    published = rows(Path(__file__).with_name("published_rates.csv"))
    measured = tcp.measured()
    usable = tcp.usable(Network.model_validate({"transport": "tcp", "library": "nccl"}))

    def hosts(among):
        rates = [float(row["moved"]) * GIGABIT for row in among if row["full"] == "no"]
        return {"hosts": len(rates)} | {
            f"hosts_{key}": round(float(np.quantile(rates, at))) for key, at in ENDS.items()
        }

    assert hosts(published).items() <= measured.items()
    inside = 0
    for row in published:
        others = hosts([other for other in published if other["source"] != row["source"]])
        low, middle, high = (
            min(usable * float(row["card"]) / measured[key], others[f"hosts_{other}"] / GIGABIT)
            for key, other in (("high", "low"), ("median", "median"), ("low", "high"))
        )
        inside += low <= float(row["moved"]) <= high
        with named(row):
            assert max(float(row["moved"]), middle) < float(row["card"])
    assert inside >= 9 * len(published) / 11


@pytest.mark.slow
def test_without_a_profile_programs_of_the_matrix_have_no_bias_and_are_covered():
    """Programs over links of the kernel, predicted from the scenario and its draws alone."""
    measured = {
        (row["condition"], row["program"]): float(row["measured_seconds_per_step"])
        for row in rows(EVIDENCE / "validation" / "kernel-links.csv")
    }
    missed, inside = [], []
    for condition in CONDITIONS:
        made = condition.scenario("network.transport=tcp")
        made = made.model_copy(update={"objective": NoObjective(kind="none")})
        for algorithm in made.algorithm:
            if (seconds := measured.get((condition.name, algorithm.words))) is None:
                continue
            if algorithm.name == "hpsgd":
                algorithm.parameters["decision"] = "shared"  # the only one at that time
            runs = run_seeds(made, algorithm, [condition.seed])
            model = uncalibrated(made, {algorithm.label: runs}, Execution())[algorithm.label]
            missed.append(math.log(seconds / pace(runs[0])))
            wide = model.spreads("seconds_per_step")[missed[-1] > 0].within()
            inside.append(abs(missed[-1]) <= wide)
    assert len(missed) == len(measured)
    assert abs(np.median(missed)) < 0.01
    assert np.mean(inside) >= 0.9
