"""Kinds of hardware by name, and libraries as others measured them."""

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from paceline import simulate
from paceline.simulator.errors import InputError
from paceline.simulator.load.listing import hardware as listed
from paceline.simulator.load.load import load
from paceline.simulator.scenario.hardware import hardware
from tests.helpers.cases import named
from tests.lab.published.__main__ import FACTS, main, predicted
from tests.lab.published.sources import SOURCES

WORLD = {
    "model": {"parameters": 10_000_000},
    "cluster": {"workers": 4, "compute": "10 ms"},
    "run": {"steps": 20},
    "algorithm": [{"name": "ssgd"}],
}


def seconds(**tables):
    made = load({**WORLD, **tables})
    return simulate(made, seeds=1).algorithms[0]["seconds_per_step"]


def test_a_kind_of_link_gives_what_is_left_out_and_its_range():
    kinds = hardware().link
    for name, kind in kinds.items():
        low, high = kind.range or (kind.bandwidth, kind.bandwidth)
        with named(name):
            assert low <= kind.bandwidth <= high
            network = load({**WORLD, "network": {"card": name}}).network
            assert network.bandwidth == kind.bandwidth
            assert network.latency.expectation == kind.latency
    made = load({**WORLD, "network": {"card": "10gbe", "latency": "7 ms", "up": "3 Mbit/s"}})
    assert made.network.latency.expectation == 0.007
    assert made.network.bandwidth is None
    assert {row["name"] for row in listed()} == {*kinds, *hardware().device}
    with pytest.raises(InputError, match="did you mean `100gbe`"):
        load({**WORLD, "network": {"card": "100gb"}})


def test_the_range_of_a_kind_is_in_the_interval_and_not_of_a_rate_by_hand():
    looked_up = seconds(network={"card": "ib-hdr"})
    rates = ("155 Gbit/s", "196 Gbit/s")
    ends = [seconds(network={"latency": "3 us", "bandwidth": rate}) for rate in rates]
    slow, fast = (end["mean"] for end in ends)
    assert looked_up["interval90"][0] < fast < looked_up["mean"] < slow < looked_up["interval90"][1]
    assert "interval90" not in ends[0]
    inner = {"name": "boxes", "workers": 4, "devices": 8}
    cluster = {**WORLD["cluster"], "group": [{**inner, "inner": "pcie3-host"}]}
    network = {"latency": "1 us", "bandwidth": "100 Gbit/s"}
    boxes = seconds(cluster=cluster, network=network)
    assert boxes["interval90"][1] > 1.05 * boxes["mean"]
    cluster["workers"], cluster["group"] = 1, [{**inner, "workers": 1, "inner": "nvlink4"}]
    box = seconds(cluster=cluster, network=network)
    assert box["interval90"][1] > 1.05 * box["mean"]  # GPUs of one kind


def test_a_device_computes_its_usual_share_of_its_peak():
    objective = {"kind": "none"}
    cluster = {"workers": 2, "device": "h100-sxm"}
    network = {"latency": "0 s"}
    cost = {"tokens": 4096}
    tables = {"objective": objective, "cluster": cluster, "network": network, "cost": cost}
    whole = 6 * 10_000_000 * 4096
    given = seconds(**tables)
    assert given["mean"] == pytest.approx(whole / (989e12 * 0.4))
    assert given["interval90"] == pytest.approx(
        [whole / (989e12 * share) for share in (0.52, 0.25)], rel=0.2
    )
    eight = {
        "workers": 2,
        "group": [{"name": "a", "workers": 2, "devices": 8, "device": "h100-sxm"}],
    }
    assert seconds(**{**tables, "cluster": eight})["mean"] == pytest.approx(given["mean"] / 8)
    parts = {**tables, "model": {"tensors": [6_000_000, 4_000_000]}}
    assert seconds(**parts)["mean"] == given["mean"]
    stated = {**cluster, "compute": "1 s"}
    assert seconds(**{**tables, "cluster": stated})["mean"] == pytest.approx(1)
    with pytest.raises(InputError, match=r"cluster\.compute"):
        seconds(**{**tables, "cost": {}})


def test_single_means_of_others_are_predicted():
    """Over shaped links of 1 to 5 Gbit/s and 1 to 10 ms, among 4 to 32 hosts."""
    rows = [*csv.DictReader(Path(FACTS).read_text("utf-8").splitlines())]
    shaped = [row for row in rows if row["source"] == "tc" and row["link"] != "default"]
    for library, most in (("nccl", 0.035), ("gloo", 0.11)):
        chosen = [row for row in shaped if row["method"] == library]
        cases = [(row, SOURCES["tc"](row)) for row in chosen]
        outcomes = [predicted(row, case) for row, case in cases if case is not None]
        errors = np.array([outcome.ratio - 1 for outcome in outcomes])
        with named(library):
            assert len(errors) == 24
            assert max(abs(errors)) < most
            assert all(outcome.inside for outcome in outcomes)


def test_a_faster_card_never_makes_a_mean_slower():
    rates = ["1 Gbit/s", "10 Gbit/s", "34 Gbit/s", "100 Gbit/s", "200 Gbit/s", "800 Gbit/s"]
    for library in ("nccl", "gloo", "byteps", "ideal"):
        for parameters in (256, 10_000_000):
            means = [
                seconds(
                    model={"parameters": parameters},
                    network={
                        "library": library,
                        "transport": "tcp",
                        "latency": "50 us",
                        "bandwidth": rate,
                    },
                )["mean"]
                for rate in rates
            ]
            with named((library, parameters)):
                assert all(slow >= 0.987 * fast for slow, fast in pairwise(means))


def test_the_scoreboard_names_every_source():
    rows = [*csv.DictReader(Path(FACTS).read_text("utf-8").splitlines())]
    assert {row["source"] for row in rows} == {*SOURCES}
    assert main(["ft-diloco"]) == 0
