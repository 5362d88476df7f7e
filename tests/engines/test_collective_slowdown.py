"""Computing that is slower while a collective of the worker is under way."""

import numpy as np
import pytest

from paceline.simulator.cluster.speed import slowed_end
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.load.load import parse
from tests.helpers.cases import looped

OVERLAPPING = (
    {"name": "ssgd-bucketed", "buckets": 6},
    {"name": "dts", "delay": 2},
    {"name": "cocod-sgd", "tau": 3},
    {"name": "streaming-diloco", "tau": 4, "overlap": 1},
    {"name": "hpsgd", "decision": "shared"},
)
BLOCKING = ({"name": "ssgd"}, {"name": "local-sgd", "tau": 4},
            {"name": "ssgd-bucketed", "buckets": 6, "overlap": False})  # fmt: skip


def world(algorithm, times=1.4, compute="100 ms", network=None, **tables):
    cluster = {"workers": 4, "compute": compute, "beside_collectives": times}
    link = {"collective": "ring", "latency": "1 ms", "bandwidth": "1 GB/s"} | (network or {})
    return parse({
        "model": {"parameters": 10_000_000}, "objective": {"kind": "none"},
        "run": {"steps": 40, "seeds": 2}, "cluster": cluster, "network": link,
        "algorithm": [algorithm], **tables,
    })  # fmt: skip


def lasted(scenario, engine="auto"):
    runs = run_seeds(scenario, scenario.algorithm[0], [0, 1], engine=engine)
    assert runs[0].engine == engine or engine == "auto"
    return np.array([run.duration / run.steps for run in runs])


def test_work_takes_longer_during_flights_alone():
    flights = [(2.0, 4.0), (3.0, 5.0), (9.0, np.inf)]
    assert slowed_end(0.0, 1.0, flights, 2.0) == 1.0
    assert slowed_end(0.0, 3.0, flights, 2.0) == 4.0
    assert slowed_end(0.0, 4.0, flights, 2.0) == pytest.approx(5.5)
    assert slowed_end(6.0, 4.0, flights, 2.0) == pytest.approx(11.0)


@looped("algorithm", OVERLAPPING + BLOCKING)
def test_engines_agree(algorithm):
    """Over links in turn, with unequal workers; over shared links where rings share none."""
    law = {"dist": "gamma", "mean": "100 ms", "shape": 20}
    drawn = world(algorithm, compute=law)
    assert lasted(drawn, "batched") == pytest.approx(lasted(drawn, "virtual"), rel=1e-9)
    early = world(algorithm, compute=law, network={"library": "gloo"})
    assert lasted(early, "batched") == pytest.approx(lasted(early, "virtual"), rel=1e-9)
    alike = world(algorithm, network={"latency": "0 s"})
    shared = world(algorithm, network={"latency": "0 s", "model": "flows"})
    assert lasted(shared) == pytest.approx(lasted(alike), rel=1e-9)


@looped("algorithm", BLOCKING)
def test_who_waits_for_the_mean_pays_nothing(algorithm):
    assert lasted(world(algorithm)) == pytest.approx(lasted(world(algorithm, 1.0)), rel=1e-12)


def test_who_overlaps_pays_while_it_does():
    """A mean of 60 ms in each step of 100 ms, at half the speed: half of it is lost."""
    mean = {"collective": "given", "duration": "60 ms"}
    one = world({"name": "dts", "delay": 1}, 2.0, network=mean, run={"steps": 1000})
    assert lasted(one) == pytest.approx(0.13, rel=1e-3)


def test_a_run_that_ends_while_it_computes():
    ending = world(OVERLAPPING[0], run={"duration": "1.234 s", "seeds": 2})
    both = [run_seeds(ending, ending.algorithm[0], [0], engine=name)[0]
            for name in ("batched", "virtual")]  # fmt: skip
    assert both[0].curve["step"] == both[1].curve["step"]
