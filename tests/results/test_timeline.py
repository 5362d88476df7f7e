"""Timelines: who waited for whom, and that Perfetto's own trace processor finds all of it."""

import json
from collections import Counter

import numpy as np
import pytest

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.results import store, timeline
from paceline.simulator.results.run import ARROW, SPAN, Cause, Kind
from paceline.simulator.results.statistics import group
from tests.helpers.trace_processor import processor
from tests.helpers.worlds import QUADRATIC, scenario, simulate

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


@pytest.mark.parametrize("engine", ["virtual", "batched"])
@pytest.mark.parametrize("case", COLLECTIVE[:2], ids=lambda case: case["name"])
def test_all_who_wait_wait_for_the_last(case, engine):
    """Each wait has one arrow, at its end; the last worker computes up to then."""
    made = world(case)
    (run,) = run_seeds(made, made.algorithm[0], [3], engine=engine, spans=10**5)
    spans, arrows = run.spans, run.arrows
    assert {*arrows["cause"].tolist()} == {Cause.COLLECTIVE}
    for worker in range(4):
        waits = np.sort(own(spans, worker, Kind.WAIT)["end"])
        mine = arrows[arrows["target"] == worker]
        assert np.sort(mine["taken"]).tolist() == pytest.approx(waits.tolist(), abs=1e-9)
        computed = own(spans, worker, Kind.COMPUTE)["end"]
        for at in arrows[arrows["source"] == worker]["sent"]:
            assert np.abs(computed - at).min() < 1e-9
    assert len(arrows) == 3 * len(np.unique(arrows["sent"]))


@pytest.mark.parametrize("case", COLLECTIVE, ids=lambda case: case["name"])
def test_nobody_waits_where_all_are_as_fast(case):
    assert len(simulate(world(case, compute="1 s"), spans=10**5).arrows) == 0


def test_a_message_lasts_as_long_as_its_way():
    """Gradients to the server and its answers: each of them once, none sooner than it can be."""
    run = simulate(world({"name": "asgd"}, network=JITTER), spans=10**6)
    to, back = (run.arrows[(run.arrows["target"] == 4) == where] for where in (True, False))
    assert len(to) == run.updates
    assert 0 <= len(to) - len(back) <= 4
    assert {*to["source"].tolist()} == set(range(4))
    assert np.all(run.arrows["taken"] - run.arrows["sent"] >= 8 * 4000 / 1e6)
    for worker in range(4):  # one is answered before it sends the next
        sent = np.sort(to[to["source"] == worker]["sent"])
        heard = np.sort(back[back["target"] == worker]["taken"])
        assert np.all(sent[: len(heard)] < heard)
        assert np.all(heard[: len(sent) - 1] < sent[1:])


def test_arrows_are_kept_with_spans_and_no_longer():
    run = simulate(world({"name": "asgd"}), spans=60)
    whole = simulate(world({"name": "asgd"}), spans=10**6)
    assert run.spans_truncated
    assert 0 < len(run.arrows) <= 60
    assert run.arrows.tolist() == whole.arrows[: len(run.arrows)].tolist()
    assert simulate(world({"name": "asgd"})).arrows is None
    again = store.decode(store.encode(run))
    assert again.arrows.dtype == ARROW
    assert again.arrows.tolist() == run.arrows.tolist()
    assert again.spans.dtype == SPAN


def made_of(case, **options):
    made = world(case, **options)
    (algorithm,) = made.algorithm
    algorithm = algorithm.model_copy(update={"label": f"{case['name']} {sorted(options)}"})
    (run,) = run_seeds(made, algorithm, [1], spans=10**5)
    return run


@pytest.fixture(scope="module")
def runs():
    """Of every kind: collectives, servers, gossip, crashes, shared lines, no latency at all."""
    found = [made_of(case, network=JITTER) for case in (*COLLECTIVE, *MESSAGES)]
    free = {"collective": "given", "duration": "0 s", "latency": "0 s"}
    found += [made_of(case, network=free, server={}) for case in (COLLECTIVE[0], *MESSAGES)]
    flows = RING | {"model": "flows"}
    found += [made_of(case, network=flows, cost={}) for case in (COLLECTIVE[0], MESSAGES[0])]
    saves = {"policy": "restart", "checkpoint": {"every": 3, "cost": "1 s"}}
    for policy in ({}, {"policy": "shrink"}, saves):
        found.append(made_of(COLLECTIVE[1], cluster=FAILING, recovery=policy))
    for place, run in enumerate(found):
        run.label = f"{place} {run.name}"
    return found


@pytest.fixture(scope="module")
def perfetto():
    """Something that answers SQL over a trace."""
    with processor() as found:
        yield found


def clean(perfetto):
    """Nothing was left out or not understood."""
    bad = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert perfetto.ask(bad) == []


@pytest.mark.long
@pytest.mark.browser
def test_perfetto_finds_every_span_and_every_arrow(runs, perfetto):
    document = json.loads(store.dump(timeline.events(group(runs)), indent=None))
    perfetto.load(document)
    clean(perfetto)
    threads = perfetto.ask(
        "select process.name as process, thread.name as thread, slice.name as name, count(1) as n, "
        "sum(dur) as dur, max(depth) as depth from slice join thread_track on track_id = "
        "thread_track.id join thread using (utid) join process using (upid) group by 1, 2, 3"
    )
    found = {(each["process"], each["thread"], each["name"]): each for each in threads}
    expected = Counter()
    for run in runs:
        spans = run.spans
        for worker, kind in {*zip(spans["worker"].tolist(), spans["kind"].tolist(), strict=True)}:
            mine = own(spans, worker, kind)
            thread = "server" if worker == 4 else f"worker {worker}"
            each = found[run.label, thread, Kind(kind).name.lower()]
            lasted = float((mine["end"] - mine["start"]).sum())
            assert each["n"] == len(mine)
            assert each["dur"] == pytest.approx(lasted * 1e9, abs=len(mine) + 1)
            assert each["depth"] == 0
            expected[run.label] += len(mine)
    assert sum(expected.values()) == sum(each["n"] for each in threads)

    flows = perfetto.ask(
        "select process.name as process, count(1) as n, min(a.ts <= b.ts + b.dur) as forward, "
        "min(q.upid = p.upid) as within from flow join slice a on slice_out = a.id join slice b on "
        "slice_in = b.id join thread_track s on a.track_id = s.id join thread p on s.utid = p.utid "
        "join thread_track t on b.track_id = t.id join thread q on t.utid = q.utid join process on "
        "p.upid = process.upid group by 1"
    )
    drawn = Counter(
        each["pid"] - timeline.FIRST for each in document["traceEvents"] if each["ph"] == "s"
    )
    assert {each["process"]: each["n"] for each in flows} == {
        run.label: drawn[place] for place, run in enumerate(runs) if drawn[place]
    }
    assert perfetto.ask("select count(1) as n from flow") == [{"n": sum(drawn.values())}]
    assert all(each["forward"] and each["within"] for each in flows)
    for place, run in enumerate(runs):
        if run.failures is None:
            assert drawn[place] == len(run.arrows)
        else:  # none from or to who is down
            assert 0.5 * len(run.arrows) < drawn[place] <= len(run.arrows)
    assert all(drawn[place] > 10 for place, run in enumerate(runs))


@pytest.mark.browser
def test_arrows_end_at_who_stood_still(runs, perfetto):
    """Where a collective was waited for, from who computed to who waited."""
    (run,) = [each for each in runs if each.label == "0 ssgd"]
    perfetto.load(timeline.events({"ssgd": [run]}))
    found = perfetto.ask(
        "select a.name as source, b.name as target, count(1) as n from flow join slice a on "
        "slice_out = a.id join slice b on slice_in = b.id group by 1, 2"
    )
    assert found == [{"source": "compute", "target": "wait", "n": len(run.arrows)}]


@pytest.mark.browser
def test_predicted_and_measured_stand_together(runs, perfetto):
    first, second = runs[:3], runs[1:4]
    documents = [timeline.events(group(each)) for each in (first, second)]
    whole = timeline.together(dict(zip(("predicted", "measured"), documents, strict=True)))
    perfetto.load(whole)
    clean(perfetto)
    found = perfetto.ask(
        "select name, pid, (select min(ts) from slice join thread_track t on track_id = t.id join "
        "thread using (utid) where thread.upid = p.upid) as zero from process p where name is not "
        "null order by pid"
    )
    labels = [run.label for run in runs[:4]]
    expected = [
        f"{name}: {label}"
        for label in labels
        for name, there in (("predicted", first), ("measured", second))
        if label in [run.label for run in there]
    ]
    assert [each["name"] for each in found] == expected
    places = [
        (each["pid"], each["args"]["sort_index"])
        for each in whole["traceEvents"]
        if each["name"] == "process_sort_index"
    ]
    assert places == [(each["pid"], place) for place, each in enumerate(found)]
    assert {each["zero"] for each in found} == {0}
    counted = perfetto.ask("select count(1) as n, count(distinct trace_id) as ids from flow")
    arrows = sum(len(run.arrows) for run in (*first, *second))
    assert counted == [{"n": arrows, "ids": arrows}]
    assert [*whole["otherData"]] == [f"predicted: {each.label}" for each in first] + [
        f"measured: {each.label}" for each in second
    ]


def test_what_is_no_timeline_is_none(tmp_path):
    nothing = {"otherData": {}, "traceEvents": []}
    for text in (None, "what", "[]", '{"traceEvents": [{}]}'):
        if text is not None:
            (tmp_path / timeline.FILE).write_text(text)
        assert timeline.read(tmp_path) == nothing
    assert timeline.together({"measured": nothing})["traceEvents"] == []
