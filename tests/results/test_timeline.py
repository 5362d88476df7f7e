"""Timelines: the slices of a trace are the spans of its run."""

import json
from collections import defaultdict

import pytest

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.results import store
from paceline.simulator.results.run import Kind, trace
from paceline.simulator.results.statistics import group
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


def test_the_slices_of_every_thread_are_its_spans(runs):
    """As Perfetto takes them: in whole nanoseconds, each after the one before it on its thread."""
    document = json.loads(store.dump(trace(group(runs)), indent=None))
    names, slices = {}, defaultdict(list)
    for event in document["traceEvents"]:
        place = event["pid"], event["tid"]
        if event["ph"] == "M" and "name" in event["args"]:
            names[event["name"], *place[: 1 + (event["name"] == "thread_name")]] = event["args"]
        elif event["ph"] == "X":
            start, lasts = (1e3 * event[key] for key in ("ts", "dur"))
            assert [start, lasts] == pytest.approx([round(start), round(lasts)], abs=1e-3)
            slices[place].append((round(start), round(lasts), event["name"]))
    found = {}
    for (pid, tid), thread in slices.items():
        ends = [start + lasts for start, lasts, _ in sorted(thread)]
        assert all(end <= after for end, (after, *_) in zip(ends, sorted(thread)[1:], strict=False))
        found[names["process_name", pid]["name"], names["thread_name", pid, tid]["name"]] = thread
    for run in runs:
        for rank in {*run.spans["worker"].tolist()}:
            thread = found.pop((run.label, "server" if rank == 4 else f"worker {rank}"))
            mine = run.spans[run.spans["worker"] == rank]
            for kind in {*mine["kind"].tolist()}:
                chosen = mine[mine["kind"] == kind]
                lasted = [span for _, span, name in thread if name == Kind(kind).name.lower()]
                assert len(lasted) == len(chosen)
                whole = 1e9 * (chosen["end"] - chosen["start"]).sum()
                assert sum(lasted) == pytest.approx(whole, abs=len(chosen) + 1)
            assert len(thread) == len(mine)
    assert not found
