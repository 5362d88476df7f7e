"""Properties of all features together: random scenarios, changed so that the answer is known.

A draw that is refused, for a combination without meaning, is drawn again. The nightly run takes
more draws; `python -m tests.engines.test_metamorphic FIRST LAST` takes any.
"""

import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from paceline.simulator.cluster.prices import price_per_second
from paceline.simulator.engines import dispatch
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.programs import catalogue
from paceline.simulator.reports import terminal
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import with_unit
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.theory import theory
from tests.engines.test_batched import alike
from tests.helpers.cases import named
from tests.helpers.programs import cases
from tests.helpers.worlds import QUADRATIC, TIME_ONLY

Table = dict[str, Any]
CURVE = {"kind": "learning-curve", "tokens": 4096, "noise_scale": 1e6,
         "curve": {"law": "chinchilla", "parameters": 1e8}}  # fmt: skip
CODECS = [{"kind": "top-k", "ratio": 0.05}, {"kind": "qsgd", "bits": 4}, {"kind": "int8"},
          {"kind": "power-sgd", "rank": 2}, {"kind": "dgc", "ratio": 0.05}]  # fmt: skip
EXPONENTIAL = {"dist": "exponential", "mean": "2 s"}
STEADY = {"program", "network", "objective", "codec", "price", "groups"}
TROUBLES = ("sampling", "quorum", "membership", "spot", "crash", "profile", "bursts")


class RefusedError(Exception):
    """The changed scenario has no meaning."""


def drawn(number: int, features: set[str], **fixed: Any) -> Scenario:
    """Return the scenario of a number, with some of `features`; `fixed` replaces whole tables."""
    for attempt in range(200):
        rng = random.Random(f"{number} {attempt}")
        odds = {name: 0.3 if name in TROUBLES else 0.7 for name in sorted(features)}
        table = _table(rng, {name for name, odd in odds.items() if rng.random() < odd})
        table |= {key: change(table[key], rng) for key, change in fixed.items()}
        try:
            return parse(table, file=f"draw {number}")
        except InputError:
            pass
    raise AssertionError(f"draw {number}: refused 200 times")


def _table(rng: random.Random, features: set[str]) -> Table:
    workers, some = rng.randint(2, 6), features.__contains__
    cluster: Table = {"workers": workers, "compute": rng.choice(["40 ms", "300 ms", "1 s"])}
    network: Table = {"latency": rng.choice(["0 s", "1 ms", "30 ms"]), "bandwidth": "1 Mbit/s"}
    made: Table = {
        "model": {"parameters": 1000}, "optimizer": {"lr": 0.05}, "objective": TIME_ONLY,
        "run": {"steps": 24, "evaluate_every": 4}, "cluster": cluster, "network": network,
        "algorithm": [rng.choice(cases()) if some("program") else {"name": "ssgd"}],
    }  # fmt: skip
    if some("network"):
        network["bandwidth"] = rng.choice(["100 kbit/s", "10 Mbit/s", "1 Gbit/s"])
        network |= rng.choice([{}, {"model": "flows"}, {"library": "nccl"}, {"library": "gloo"}])
        network |= rng.choice([{}, {"transport": "tcp"}, {"tcp_window": "4 KiB"}])
        if "library" not in network:
            names = "ring", "tree", "star", "hierarchical", "double-tree"
            network["collective"] = rng.choice(names)
        made["server"] = {"receive": rng.choice(["0 s", "2 ms"]), "bandwidth": "2 Mbit/s"}
    if some("objective"):
        made["objective"] = rng.choice([QUADRATIC, CURVE])
    if some("codec"):
        made["algorithm"][0]["codec"] = rng.choice(CODECS)
    if some("groups"):
        group: Table = {"name": "a", "workers": rng.randint(1, workers - 1), "compute": "500 ms"}
        group |= rng.choice([{}, {"up": "500 kbit/s", "down": "2 Mbit/s"}, {"region": "a"},
                             {"devices": 4, "inner": {"bandwidth": "1 Gbit/s"}}])  # fmt: skip
        cluster |= {"group": [group]} | ({"region": "b"} if "region" in group else {})
    if some("price"):
        made["cost"] = {"node_hour": 3.6, "device_hour": 0.9, "egress_per_gb": 100.0}
    if some("random"):
        cluster["compute"] = rng.choice([EXPONENTIAL, {"dist": "gamma", "mean": "1 s", "shape": 3}])
    _trouble(rng, some, made)
    return made


def _trouble(rng: random.Random, some: Callable[[str], bool], made: Table) -> None:
    """Add what keeps workers away, and what slows them or the network at times."""
    cluster, network = made["cluster"], made["network"]
    if some("sampling"):
        cluster["sampling"] = {
            "clients": rng.randint(1, cluster["workers"]),
            "over": rng.choice([1.0, 1.5]),
        }
        cluster["sampling"] |= rng.choice([{}, {"deadline": "9 s"}])
        network |= rng.choice([{}, {"collective": "server"}])
    if some("quorum"):
        made["recovery"] = rng.choice([{"policy": "quorum", "quorum": 0.5, "grace": "200 ms"},
                                       {"policy": "backup"}, {"policy": "shrink"}])  # fmt: skip
    if some("membership") or some("spot"):
        cluster["membership"] = {"present": {"dist": "exponential", "mean": "20 s"},
                                 "absent": "3 s"}  # fmt: skip
        cluster["membership"] |= {"notice": "2 s"} if some("spot") else {}
    if some("crash"):
        cluster["crash"] = [{"worker": 0, "at": "3 s", "lasts": rng.choice(["1 s", "8 s"])}]
    if some("profile"):
        cluster |= {"region": "b", "group": [{"name": "a", "workers": 1, "region": "a"}]}
        link: Table = {"between": ["a", "b"], "bandwidth": "500 kbit/s"}
        profile = {"at": ["0 s", "5 s"], "factor": [1.0, 0.5]}
        network |= {"model": "flows", "link": [link | {"profile": profile}]}
    if some("bursts"):
        cluster["bursts"] = {"factor": 3, "on": "3 s", "off": "6 s"}


def run(world: Scenario, index: int = 0, engine: str = "auto", seed: int = 1) -> Run:
    """Run one of a scenario's algorithms with one seed."""
    (result,) = dispatch.run_seeds(world, world.algorithm[index], [seed], engine=engine)
    return result


def changed(world: Scenario, **tables: Table) -> Scenario:
    """Return a scenario with some keys of its tables changed; a list replaces the table."""
    table = json.loads(json.dumps(world.table))
    for name, keys in tables.items():
        table[name] = table.get(name, {}) | keys if isinstance(keys, dict) else keys
    try:
        return parse(table, file=world.file)
    except InputError as error:
        raise RefusedError from error


def same(first: Run, second: Run, *columns: str, rtol: float = 1e-9) -> None:
    """Demand that two curves agree, as far as both go."""
    for name in columns:
        pair = first.curve[name], second.curve[name]
        length = min(map(len, pair))
        np.testing.assert_allclose(pair[0][:length], pair[1][:length], rtol=rtol, atol=1e-9)


def scaled(value: Any, factor: float) -> str:
    """Return a quantity times a factor, in the same unit."""
    size, unit = str(value).split()
    return f"{float(size) * factor!r} {unit}"


def waiting(case: Table, rng: random.Random) -> list[Table]:
    """Draw a program whose workers all take part in every mean, whatever the time is."""
    known = catalogue()
    return [
        rng.choice(
            [
                entry
                for entry in cases()
                if known[entry["name"]].averages
                and known[entry["name"]].family in ("blocking", "overlapped")
                and entry["name"] not in ("adacomm", "hpsgd")
            ]
        )
    ]


def choice(world: Scenario) -> str:
    """Return how a mean is carried out: NCCL chooses by tables that know no latency of links."""
    return ClosedForm(world).way("mean", world.model.bytes, None).key


def faster(number: int) -> None:
    """More bandwidth, less latency, and faster devices slow no synchronous run.

    But fair sharing is not monotone: several collectives that begin sooner may meet for longer.
    """
    world = drawn(number, STEADY - {"program", "codec"} | {"random"}, algorithm=waiting)
    table = world.table["algorithm"][0]
    several = "buckets" in table or catalogue()[table["name"]].family == "overlapped"
    shared = several and not world.network.closed_form
    before, rng = run(world), random.Random(number)
    cluster, network = world.table["cluster"], world.table["network"]
    law, times = cluster["compute"], rng.choice([1.1, 2, 50])

    law = {**law, "mean": scaled(law["mean"], 1 / times)} if isinstance(law, dict) else None
    changes: dict[str, Table] = {
        "bandwidth": {"network": {"bandwidth": scaled(network["bandwidth"], times)}},
        "latency": {"network": {"latency": scaled(network["latency"], 1 / times)}},
        "devices": {"cluster": {"compute": law or scaled(cluster["compute"], 1 / times)}},
    }
    for name, change in changes.items():
        with named(name):
            better = changed(world, **change)
            if {*map(choice, (world, better))} == {choice(world)}:
                longer = run(better).duration / before.duration - 1
                assert longer <= (0.05 if shared else 1e-9)


def absent(number: int) -> None:
    """A worker that is never there, the last one, changes nothing."""
    world = drawn(number, {"network", "random", "profile", "codec"}, algorithm=waiting)
    rows = "worker,start,end\n"
    with TemporaryDirectory() as name:
        count = world.cluster.workers
        for file, gone in (("one.csv", ""), ("two.csv", f"{count},30000000,\n")):
            (Path(name) / file).write_text(rows + "0,0,\n" + gone)
        tables = json.loads(json.dumps(world.table))
        runs = []
        for file, workers in (("one.csv", count), ("two.csv", count + 1)):
            tables["cluster"] |= {"workers": workers, "membership": file}
            runs.append(run(parse(tables, folder=Path(name))))
    same(*runs, "time", "bytes")


def order_of_groups(number: int) -> None:
    """The order of groups that differ in speed alone changes nothing."""
    world = drawn(number, STEADY - {"groups", "objective"}, algorithm=waiting)
    groups = [
        {"name": "x", "workers": 1, "compute": "700 ms"},
        {"name": "y", "workers": 1, "compute": "100 ms"},
    ]
    ours, theirs = (
        run(changed(world, cluster={"group": order})) for order in (groups, groups[::-1])
    )
    same(ours, theirs, "time", "bytes", "cost")


def ten_times(number: int) -> None:
    """Ten times all times, at a tenth of all rates: ten times the duration, and the same loss.

    Messages that arrive at once have no order of their own: rounding decides, and with it who
    applies a gradient first, meets whom, or sees a mean of HPSGD arrive in time. Where that
    counts, times are multiplied by 8, exactly.
    """
    world = drawn(number, {"program", "objective", "codec", "groups", "quorum"})
    cluster, network = (dict(world.table[name]) for name in ("cluster", "network"))
    name = world.algorithm[0].name
    ordered = catalogue()[name].family in ("blocking", "overlapped") and name != "hpsgd"
    times = 10 if ordered else 8
    if name in ("adacomm", "decoupled-diloco"):  # they have times of their own
        return
    factors = dict.fromkeys(("compute", "latency"), times)
    factors |= dict.fromkeys(("bandwidth", "up", "down"), 1 / times)

    def slower(table: Table) -> Table:
        longer = {key: scaled(table[key], factors[key]) for key in factors if key in table}
        inner = {"inner": slower(table["inner"])} if "inner" in table else {}
        return table | longer | inner

    cluster |= slower(cluster) | {"group": [slower(group) for group in cluster.get("group", [])]}
    tables = {"cluster": cluster, "network": slower(network)}
    if world.table.get("recovery", {}).get("policy") == "quorum":
        tables["recovery"] = {"grace": f"{200 * times} ms"}
    fast, slow = run(world), run(changed(world, **tables))
    assert slow.duration == pytest.approx(times * fast.duration)
    same(fast, slow, "step", "loss", "bytes")


def twice_the_steps(number: int) -> None:
    """Twice the steps keep the first half."""
    world = drawn(
        number, STEADY - {"codec"} | {"random", *TROUBLES}, objective=lambda *_: QUADRATIC
    )
    long = run(changed(world, run={"steps": 48}))
    short = run(world)
    before = [step for step in short.curve["step"] if step < 24]
    for one in (short, long):
        one.curve = {name: column[: len(before)] for name, column in one.curve.items()}
    same(short, long, "step", "time", "loss", "bytes", "cost")


def period_of_one(number: int) -> None:
    """Local SGD that averages at every step is synchronous SGD."""
    world = drawn(
        number,
        STEADY - {"codec"} | {"random", *TROUBLES},
        algorithm=lambda *_: [{"name": "ssgd"}, {"name": "local-sgd", "tau": 1}],
    )
    same(run(world), run(world, 1), "step", "time", "loss", "bytes", "cost", rtol=1e-6)


def formulas(number: int) -> None:
    """What theory says of a synchronous step is what is simulated, where nothing is random."""
    world = drawn(
        number,
        {"network", "groups", "price"},
        algorithm=lambda *_: [{"name": "ssgd"}],
        run=lambda *_: {"steps": 400},
    )
    first, last = (run(changed(world, run={"steps": steps})).duration for steps in (200, 400))
    assert (last - first) / 200 == pytest.approx(theory(world)["sync_seconds_per_step"], rel=0.02)


def engines(number: int) -> None:
    """Every engine gives the same numbers."""
    world = drawn(number, STEADY | {"random", *TROUBLES})
    ours, theirs = (run(world, engine=engine) for engine in ("batched", "virtual"))
    if not ours.handed_over:
        alike(ours, theirs)


def alone(number: int) -> None:
    """An algorithm's numbers do not depend on those beside it; they are those of the table."""
    world = drawn(number, STEADY | {"random", *TROUBLES})
    beside = changed(
        world, algorithm=[{"name": "ssgd", "label": "first"}, *world.table["algorithm"]]
    )
    result = simulate(beside, seeds=1, jobs=1)
    one, two = run(world, seed=0), result.runs[-1]
    same(one, two, "step", "time", "loss", "bytes", "cost")
    row = json.loads(json.dumps(result.json()))["algorithms"][-1]
    if not two.stall and two.steps:
        assert row["seconds_per_step"]["mean"] == pytest.approx(two.duration / two.steps)
        (shown,) = (one for one in terminal.summary(result).columns if "s/step" in one.header)
        text = str([*shown.cells][-1]).split("\n")[0]
        assert text == with_unit(row["seconds_per_step"]["mean"], "s")


def prices(number: int) -> None:
    """A price is that of the time and of the bytes that leave a region, as links count them."""
    world = drawn(number, STEADY | {"random", "profile"})
    world = changed(world, cost={"node_hour": 3.6, "device_hour": 0.9, "egress_per_gb": 100.0})
    result = run(world)
    end, cost = result.curve["time"][-1], result.curve["cost"][-1]
    served = catalogue()[world.algorithm[0].name].server is not None
    spent = end * price_per_second(world, served=served)
    away = sum(size for name, size in result.links.items() if len({*name.split("->")}) == 2)
    assert cost == pytest.approx(spent + away * 100e-9)
    assert sum(result.links.values()) == pytest.approx(result.curve["bytes"][-1], abs=1)


PROPERTIES: list[Callable[[int], None]] = [
    faster,
    absent,
    order_of_groups,
    ten_times,
    twice_the_steps,
    period_of_one,
    formulas,
    engines,
    alone,
    prices,
]


def check(holds: Callable[[int], None], first: int, last: int) -> None:
    for number in range(first, last):
        with named(f"{holds.__name__}, draw {number}"), suppress(RefusedError):
            holds(number)


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_a_few_random_scenarios(holds):
    check(holds, 0, 4)


@pytest.mark.nightly
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_many_random_scenarios(holds):
    check(holds, 4, 154)


if __name__ == "__main__":
    for holds in PROPERTIES:
        for number in range(*map(int, sys.argv[1:3])):
            try:
                check(holds, number, number + 1)
            except Exception as error:
                text = " ".join(str(error).split())[:200]
                print(holds.__name__, number, type(error).__name__, text, flush=True)
