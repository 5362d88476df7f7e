"""What a reader is told of workers and lines: that its numbers and claims are true."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.reports import terminal
from paceline.simulator.results import store, usage
from paceline.simulator.results.run import TIMES
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import sweep as table
from paceline.simulator.studies.display import even
from paceline.simulator.studies.result import Result
from tests.helpers.cases import looped
from tests.helpers.programs import cases
from tests.helpers.worlds import EXPONENTIAL, QUADRATIC, RING, scenario, simulate

FLOWS = {"model": "flows", "latency": "1 ms", "bandwidth": "8 Mbit/s"}
PLACES = [{"name": place, "workers": 2, "region": place} for place in "abc"]
MODEL = {"parameters": 100_000}  # 0.4 MB


def world(*algorithms: dict[str, Any], network: dict[str, Any] = FLOWS, **tables: Any) -> Scenario:
    settings: dict[str, Any] = {"network": network, "model": MODEL, "steps": 6}
    return scenario(*algorithms, **settings | tables)


def links(ab: float, bc: float, ac: float) -> list[dict[str, Any]]:
    """Links between three places, of so many kbit/s; the way from a to c is the direct one."""
    return [
        {"between": list(ends), "latency": "20 ms", "bandwidth": f"{rate} kbit/s"}
        for ends, rate in (("ab", ab), ("bc", bc), ("ac", ac))
    ]


def result(made: Scenario, seeds: int = 1) -> Result:
    numbers = list(range(seeds))
    runs = [run for algorithm in made.algorithm for run in run_seeds(made, algorithm, numbers)]
    return Result(made, numbers, runs)


def reasons(made: Scenario, seeds: int = 1) -> dict[str, Any]:
    """Return the numbers of an algorithm's reasons by code; the sentence has all of them."""
    algorithm = made.algorithm[0]
    runs = result(made, seeds).groups[algorithm.label]
    codes = usage.reasons(made.under(algorithm), algorithm, runs)
    sentence = usage.bottleneck(made.under(algorithm), algorithm, runs)
    assert sentence == f"{algorithm.label}: {'; '.join(map(str, codes))}."
    return {reason.code: reason.numbers for reason in codes}


@looped("case", cases())
def test_accounts_agree(case: dict[str, Any]) -> None:
    """Workers' times are those of the breakdown."""
    flows = FLOWS | {"collective": "hierarchical"}
    made = world(case, network=flows, workers=6, objective=QUADRATIC,
                 cluster={"group": PLACES}, compute=EXPONENTIAL)  # fmt: skip
    for run in (
        simulate(made, seed=1),
        simulate(world(case, network=RING, objective=QUADRATIC), seed=1),
    ):
        assert {kind: np.mean(worker) for kind, worker in run.workers.items()} == pytest.approx(
            run.seconds
        )
        kept = replace(
            store.decode(store.encode(run)), curve=run.curve
        )  # nan is not equal to itself
        assert asdict(kept) == asdict(run)


# The sentence

OLD = [{"name": "old", "workers": 2, "compute": "3 s"}]
FAR = {"latency": "500 ms", "bandwidth": "1 Gbit/s"}
NARROW = {"latency": "1 ms", "bandwidth": "1 Mbit/s"}
FAST = {"latency": "1 ms", "bandwidth": "100 Mbit/s"}
FREE = {"collective": "star", "latency": "0 s"}
SSGD, ASGD = {"name": "ssgd"}, {"name": "asgd"}


def crashing(repair: str) -> dict[str, Any]:
    return {"cluster": {"failures": {"between": "60 s", "repair": repair}}}


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]] = [
    (SSGD, {"network": FREE}, {"compute": {"share": 1.0}, "alike": {}}),
    (
        SSGD,
        {"network": FREE, "cluster": {"group": OLD[:1]}},
        {"slowest": {"who": "group old", "times": 2.0}},
    ),
    (
        SSGD,
        {"network": FREE, "cluster": {"group": [OLD[0] | {"workers": 1}]}},
        {"wait": {"share": 0.583}, "slowest": {"who": "group old", "times": 2.4}},
    ),
    (
        SSGD,
        {"network": FREE, "cluster": {"extra": "5 s", "extra_share": 0.125}},
        {"slowest": {"who": "a different worker with each seed"}},
    ),
    (SSGD, {"network": FREE, "compute": EXPONENTIAL}, {"wait": {}}),
    (SSGD, {"network": FAR}, {"communicate": {"share": 0.875}}),
    (SSGD, {"network": NARROW}, {"communicate": {"share": 0.85}}),
    (ASGD, {"server": {"apply": "500 ms"}}, {"wait": {}}),
    (
        {"name": "psgd"},
        crashing("90 s"),
        {"failures": {"down": 0.54}, "crashes": {"crashes": 11.7}},
    ),
    (SSGD, {"workers": 1}, {"compute": {"share": 1.0}, "alike": {}}),
]


@looped("model", ["closed-form", "flows"])
def test_the_reasons_name_what_takes_the_time(model: str) -> None:
    for algorithm, more, expected in CASES:
        network = {"model": model, **more.get("network", FAST)}
        made = world(algorithm, **{"workers": 8, "steps": 40} | more | {"network": network})
        codes = reasons(made, seeds=3)
        for code, values in expected.items():
            assert code in codes, (algorithm, more, codes)
            for key, value in values.items():
                near = value if isinstance(value, str) else pytest.approx(value, abs=0.01, rel=0.01)
                assert codes[code][key] == near, (algorithm, more, codes)
        if more.get("network") is FAR and model == "flows":
            assert "unsaturated" in codes
        if more.get("network") is NARROW and model == "flows":
            assert codes["saturated"]["share"] == pytest.approx(0.85, abs=0.01)


def test_a_worker_said_to_be_a_few_per_cent_slower_is_named() -> None:
    for slower, named in (("1.04 s", True), ("1.01 s", False)):
        group = {"group": [{"name": "old", "workers": 1, "compute": slower}]}
        codes = reasons(world(SSGD, network=FREE, workers=8, cluster=group))
        assert (codes.get("slowest", {}).get("who") == "group old") == named, codes


def test_crashes_and_checkpoints_are_counted() -> None:
    crash = {"crash": [{"worker": 1, "at": "20 s", "lasts": "100 s"}]}
    saves = {"checkpoint": {"every": 5, "cost": "1 s"}, "policy": "restart"}
    codes = reasons(world(SSGD, network=FREE, steps=40, cluster=crash, recovery=saves))
    assert codes["crashes"] == {"crashes": 1}
    assert codes["failures"]["share"] == codes["failures"]["lost"] + codes["failures"]["down"]


@looped("model", ["closed-form", "flows"])
def test_what_stands_still_is_said_to_and_is_not_picked(model: str) -> None:
    cluster = {"crash": [{"worker": 1, "at": "2 s"}]}
    network = FLOWS | {"model": model}
    made = world(SSGD, {"name": "psgd"}, network=network, workers=4, cluster=cluster)
    actual = result(made)
    stalled, fine = actual.algorithms
    assert reasons(made)["deadlock"] == {"seeds": 1, "of": 1, "why": stalled["stall"]}
    assert stalled["stall"].count("down for good") == 1
    assert actual.runs[0].stall == stalled["stall"]
    assert "stalled" in [*terminal.summary(actual).columns[1].cells]
    assert fine["stall"] is not None  # without worker 1, psgd does not come to its last step either
    assert actual.pick["label"] is None  # psgd is a bound


def test_the_line_of_the_server_is_named() -> None:
    server = {"server": {"bandwidth": "4 Mbit/s"}, "workers": 8, "steps": 40}
    queue = reasons(world(ASGD, network=FAST | {"model": "flows"}, **server))
    assert "server" in queue["saturated"]["lines"]


def test_the_numbers_of_the_reasons_are_those_of_the_document() -> None:
    """The slowest link of three."""
    network = FLOWS | {"collective": "hierarchical", "link": links(500, 9_000, 9_000)}
    made = world(SSGD, network=network, workers=6, cluster={"group": PLACES})
    row, actual = result(made, seeds=2).algorithms[0], reasons(made, seeds=2)
    lines = {line["line"]: line for line in row["network"]["lines"]}
    share = row["breakdown"]["communicate"]
    assert actual == {
        "communicate": {"share": share},
        "saturated": {"lines": "a->b", "share": lines["a->b"]["saturated"]},
    }
    assert row["bottleneck"] == (
        f"ssgd: {100 * share:.0f} % of the time goes to the network; a->b saturated for "
        f"{100 * lines['a->b']['saturated']:.0f} % of the time."
    )
    assert lines["a->b"]["utilisation"] <= lines["a->b"]["saturated"] + 1e-12 <= 1
    assert [sum(parts) for parts in zip(*row["workers"].values(), strict=True)] == pytest.approx(
        [row["duration"]] * 6
    )


def test_lost_time_is_in_the_table_and_in_a_line_of_its_own() -> None:
    actual = result(world(SSGD, workers=4, steps=40, **crashing("30 s")), seeds=2)
    row = actual.algorithms[0]
    assert set(row["breakdown"]) == {"compute", "wait", "communicate", "stalled", "lost", "down"}
    (shares,) = terminal.spent(actual.algorithms)
    kinds = [str(column.header).replace("comm.", "communicate") for column in shares.columns[1:]]
    assert kinds == [kind for kind in TIMES if kind in row["breakdown"]]
    assert [*shares.columns[1].cells] == [f"{100 * row['breakdown']['compute']:.0f}"]
    assert "compute" not in str(terminal.summary(actual).columns[-1].header)
    counts = [run.failures["crashes"] for run in actual.runs if run.failures]
    assert row["failures"]["crashes"] == np.mean(counts)
    assert row["failures"]["goodput"] == pytest.approx(
        np.mean([run.failures["goodput"] for run in actual.runs if run.failures])
    )
    good = row["goodput"]["mean"]
    shares = [run.seconds["compute"] / sum(run.seconds.values()) for run in actual.runs]
    assert good == pytest.approx(np.mean(shares))
    quiet = result(world(SSGD))
    assert quiet.algorithms[0]["failures"] is None


def test_rows_of_a_sweep_have_the_same_columns_whether_time_is_lost_or_not() -> None:
    rows = even([{"x": 1, "down_share": 0.5}, {"x": 2, "y": 3}])
    assert rows == [{"x": 1, "down_share": 0.5, "y": None}, {"x": 2, "down_share": None, "y": 3}]
    assert table.csv_table(rows).decode().splitlines() == ["x,down_share,y", "1,0.5,", "2,,3"]
