"""Timelines: that Perfetto's own trace processor finds all of them."""

import json
from collections import Counter

import pytest

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.results import store, timeline
from paceline.simulator.results.run import Kind
from paceline.simulator.results.statistics import group
from tests.helpers.trace_processor import processor
from tests.helpers.worlds import QUADRATIC, scenario

EXPONENTIAL = {"dist": "exponential", "mean": "1 s"}
RING = {"collective": "ring", "latency": "7 ms", "bandwidth": "1 Mbit/s"}
JITTER = {"latency": {"dist": "exponential", "mean": "70 ms"}, "bandwidth": "1 Mbit/s"}
SERVER = {"receive": "2 ms", "apply": "10 ms"}
FAILING = {"failures": {"between": "20 s", "repair": "3 s"}}
COLLECTIVE = (
    {"name": "ssgd"},
    {"name": "local-sgd", "tau": 3},
    {"name": "dts", "delay": 2},
    {"name": "hpsgd"},
)
MESSAGES = ({"name": "asgd"}, {"name": "k-sync", "k": 2}, {"name": "d-psgd"}, {"name": "ad-psgd"})


def world(case, **options):
    options = {"workers": 4, "compute": EXPONENTIAL, "network": RING, "server": SERVER} | options
    return scenario(case, objective=QUADRATIC, **options)


def own(spans, worker, kind):
    return spans[(spans["worker"] == worker) & (spans["kind"] == kind)]


def made_of(case, **options):
    made = world(case, **options)
    (algorithm,) = made.algorithm
    algorithm = algorithm.model_copy(update={"label": f"{case['name']} {sorted(options)}"})
    (run,) = run_seeds(made, algorithm, [1], spans=10**5)
    return run


@pytest.fixture(scope="module")
def runs():
    """Of every kind: collectives, servers, gossip, crashes, shared lines, no latency at all."""
    actual = [made_of(case, network=JITTER) for case in (*COLLECTIVE, *MESSAGES)]
    free = {"collective": "given", "duration": "0 s", "latency": "0 s"}
    actual += [made_of(case, network=free, server={}) for case in (COLLECTIVE[0], *MESSAGES)]
    flows = RING | {"model": "flows"}
    actual += [made_of(case, network=flows, cost={}) for case in (COLLECTIVE[0], MESSAGES[0])]
    saves = {"policy": "restart", "checkpoint": {"every": 3, "cost": "1 s"}}
    for policy in ({}, {"policy": "shrink"}, saves):
        actual.append(made_of(COLLECTIVE[1], cluster=FAILING, recovery=policy))
    for place, run in enumerate(actual):
        run.label = f"{place} {run.name}"
    return actual


@pytest.fixture(scope="module")
def perfetto():
    """Something that answers SQL over a trace."""
    with processor() as actual:
        yield actual


def clean(perfetto):
    """Nothing was left out or not understood."""
    bad = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert perfetto.ask(bad) == []


@pytest.mark.long
@pytest.mark.browser
def test_perfetto_finds_every_span(runs, perfetto):
    document = json.loads(store.dump(timeline.events(group(runs)), indent=None))
    perfetto.load(document)
    clean(perfetto)
    threads = perfetto.ask(
        "select process.name as process, thread.name as thread, slice.name as name, count(1) as n, "
        "sum(dur) as dur, max(depth) as depth from slice join thread_track on track_id = "
        "thread_track.id join thread using (utid) join process using (upid) group by 1, 2, 3"
    )
    actual = {(item["process"], item["thread"], item["name"]): item for item in threads}
    expected = Counter()
    for run in runs:
        spans = run.spans
        for worker, kind in {*zip(spans["worker"].tolist(), spans["kind"].tolist(), strict=True)}:
            mine = own(spans, worker, kind)
            thread = "server" if worker == 4 else f"worker {worker}"
            span = actual[run.label, thread, Kind(kind).name.lower()]
            lasted = float((mine["end"] - mine["start"]).sum())
            assert span["n"] == len(mine)
            assert span["dur"] == pytest.approx(lasted * 1e9, abs=len(mine) + 1)
            assert span["depth"] == 0
            expected[run.label] += len(mine)
    assert sum(expected.values()) == sum(item["n"] for item in threads)
