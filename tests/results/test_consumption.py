"""Tokens, days, utilisation and prices: by hand, in every output, and only where they are set."""

import io
import math
import tomllib

import pytest
from rich.console import Console

import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.reports import terminal
from paceline.simulator.results import consumption, wording
from paceline.simulator.results.columns import estimate_of
from paceline.simulator.results.intervals import stated
from paceline.simulator.results.statistics import crossing, with_unit
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.sweep import sweep
from tests.helpers.cases import beside, looped

PRICES = {"currency": "USD", "node_hour": 3.6, "device_hour": 0.36, "egress_per_gb": 1000.0}
TOKENS = {"tokens": 1000.0, "flops": "1 TFLOP/s"}


def world(*algorithms, cost=None, **changes):
    """Two islands of four devices in one region, and a worker in another, a second a step."""
    table = tomllib.loads(beside(__file__, "consumption.toml"))
    table["algorithm"] = list(algorithms) or [{"name": "ssgd"}, {"name": "asgd"}]
    table["cost"] = {**TOKENS, **PRICES} if cost is None else cost
    return table | changes


@looped("engine", ["virtual", "auto"])
def test_a_group_may_have_prices_of_its_own(engine):
    table = world({"name": "ssgd"}, {"name": "asgd"}, cost={"node_hour": 3.6, "device_hour": 0.36})
    islands, other = table["cluster"]["group"]
    islands["device_hour"], other["node_hour"] = 0.0, 36.0
    hourly = 2 * 3.6 + 36.0 + 0.36
    for row in simulate(parse(table), engine=engine).algorithms:
        served = 3.6 * (row["name"] == "asgd")
        days, cost = (row["used"][key]["mean"] for key in ("days", "cost"))
        assert cost == pytest.approx(24 * days * (hourly + served))
    del table["cost"]["device_hour"]
    with pytest.raises(InputError, match=r"group\[0\].device_hour = 0.*add cost.device_hour"):
        parse(table)


@looped("engine", ["virtual", "auto"])
def test_units_are_those_worked_out_by_hand(engine):
    table = world()
    table["server"] = {"region": "b"}
    result = simulate(parse(table), engine=engine)
    for row, runs in zip(result.algorithms, result.groups.values(), strict=True):
        seconds = sum(run.duration for run in runs) / len(runs)
        rate = sum(3000 * run.steps / run.duration for run in runs) / len(runs)
        assert row["tokens_per_second"] == pytest.approx(rate)
        assert row["mfu"] == pytest.approx(rate * 6e6 / (9 * 1e12))
        used = {key: quantity["mean"] for key, quantity in row["used"].items()}
        assert used["tokens"] == pytest.approx(3000 * row["steps"])
        assert used["days"] == pytest.approx(seconds / 86400)
        assert used["device_hours"] == pytest.approx(9 * seconds / 3600)
        between = [
            sum(size for link, size in run.links.items() if len({*link.split("->")}) == 2)
            for run in runs
        ]
        assert used["egress_bytes"] == pytest.approx(sum(between) / len(runs))
        nodes = 4 if row["name"] == "asgd" else 3
        price = seconds * (nodes * 3.6 + 9 * 0.36) / 3600 + used["egress_bytes"] * 1e-6
        assert used["cost"] == pytest.approx(price) == pytest.approx(row["cost"])


def test_up_to_the_target_is_what_was_used_when_it_was_reached():
    table = world(run={"steps": 50, "seeds": 2, "evaluate_every": 1, "target_loss": 0.5})
    result = simulate(parse(table))
    for row, runs in zip(result.algorithms, result.groups.values(), strict=True):
        times = [crossing(run, 0.5) for run in runs]
        assert row["to_target"]["days"]["mean"] == pytest.approx(sum(times) / 2 / 86400)
        assert row["to_target"]["tokens"]["mean"] < row["used"]["tokens"]["mean"]
    table["run"]["target_loss"] = 1e-9
    never = simulate(parse(table)).algorithms[0]["to_target"]
    assert {quantity["mean"] for quantity in never.values()} == {None}


def test_only_what_is_set_is_shown():
    bare = simulate(parse(world(cost={})))
    assert {bare.algorithms[0][key] for key in ("tokens_per_second", "mfu", "cost", "used")} == {
        None
    }
    assert terminal.in_units(bare.algorithms) == []
    tokens = simulate(parse(world(cost={"tokens": 10.0})))
    assert {*tokens.algorithms[0]["used"]} == {"tokens", "days"}
    assert [column.header for column in terminal.in_units(tokens.algorithms)[0].columns] == [
        "in the whole run", "tokens/s", "tokens", "time",
    ]  # fmt: skip


def test_a_sweep_has_the_columns_that_are_set(tmp_path):
    (row, *_) = sweep(parse(world()), {"network.latency": ["1 ms"]}).rows
    assert row["tokens_per_second"] == pytest.approx(3000 / row["seconds_per_step"])
    assert row["total_cost"] > 0
    assert not any(row[key] for key in row if key.endswith("to_target"))
    (bare, *_) = sweep(parse(world(cost={})), {"network.latency": ["1 ms"]}).rows
    assert not {"tokens_per_second", "days", "mfu"} & {*bare}


def test_the_command_prints_a_table_with_the_currency(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--set", 'cost.currency="EUR"', "--set", "cost.tokens=4096.0", "--seeds", "2"]
    command = ["simulate", "four-continents", "--set", "run.steps=20", "--figure", "svg"]
    assert paceline.command_line.run([*command, *arguments]) == 0
    shown = capsys.readouterr().out
    for word in ("tokens/s", "time", "device-", "hours", "egress", "cost", "(EUR)"):
        assert word in shown


def test_values_are_said_in_their_units():
    sizes = [with_unit(value, "B") for value in (0, 999, 1000, 2.5e6, 1.3e9, 1e12)]
    assert sizes == ["0 B", "999 B", "1.00 kB", "2.50 MB", "1.30 GB", "1.00 TB"]
    assert [with_unit(52.4e9, "#"), with_unit(12.0, "#")] == ["52.4 G", "12"]
    assert [with_unit(0.384, "%"), with_unit(12.0, "USD"), with_unit(12.0, "")] == [
        "38.4 %",
        "12.0 USD",
        "12.0",
    ]
    assert {with_unit(value, unit) for value in (None, math.inf) for unit in ("s", "B", "")} == {
        "-"
    }


def test_an_objective_may_have_its_own_tokens():
    scenario = parse(world(cost={}))
    (run, *_) = simulate(scenario).runs
    objective = type("Own", (), {"tokens": 7.0})()
    changed = scenario.model_copy(update={"objective": objective})
    assert consumption.used(changed, run, run.duration)["tokens"] == 21 * run.steps


def test_intervals_of_amounts_are_whole_on_a_narrow_terminal():
    def amount(value, low, high):
        ends = {"estimate": "mean", "interval": [low, high], "level": 0.95}
        return {"mean": value, "median": value, "ci95": [low, high], **ends, "basis": "the model"}

    used = {
        "tokens": amount(2.1e11, 1e11, 4e11), "days": amount(31.2, 17.6, 59.7),
        "device_hours": amount(23935.0, 1e4, 5e4), "egress_bytes": amount(4.17e14, 1e14, 9e14),
        "cost": amount(80672.0, 45541.0, 154445.0),
    }  # fmt: skip
    row = {"label": "streaming-diloco tau=100", "tokens_per_second": 2e4, "to_target": used}
    shown = io.StringIO()
    Console(width=80, file=shown).print(*terminal.in_units([row], 2.4))
    assert consumption.cells([row])[0] == "in the whole run"  # of runs with other targets
    for whole in ("streaming-diloco", "17.6–59.7", "45541–154445"):
        assert whole in shown.getvalue()


def test_an_interval_whose_ends_read_like_its_value_is_not_said():
    """Such as the price of a run that ends at a fixed time."""
    row = {"mean": 4330.0, "estimate": "mean", "level": 0.9}
    fixed, varies = (stated(row | {"interval": ends}) for ends in ([4329.9, 4330.2], [4300, 4400]))
    assert wording.amount(fixed, "USD") == "4330 USD"
    assert wording.amount(varies, "USD") == "4330 USD (90 %: 4300 to 4400 USD)"


def test_no_interval_exceeds_what_a_limited_run_can_use():
    """Of two seeds whose cost differs: workers come and go, and three for 40 s are 120 s."""
    law = {"dist": "exponential", "mean": "15 s"}
    table = world(cost={"node_hour": 3600.0, "device_hour": 0.0})
    table["cluster"] = {
        "workers": 3,
        "compute": "1 s",
        "membership": {"present": law, "absent": law},
    }
    table["run"] = {"duration": "40 s", "seeds": 2}
    most = {"cost": [120.0, 160.0], "device_hours": [1 / 30] * 2, "days": [40 / 86400] * 2}
    rows = simulate(parse(table)).algorithms
    for key, caps in most.items():
        for row, cap in zip(rows, caps, strict=True):  # asgd's server has a price, too
            actual = row["used"][key]
            assert actual["interval"] is None or 0 <= actual["interval"][0] <= actual["mean"]
            assert actual["interval"] is None or actual["interval"][1] <= cap * (1 + 1e-9)
    assert rows[0]["used"]["cost"]["interval"][1] == 120  # which two seeds alone would exceed
    row = sweep(parse(table), {"cluster.workers": [3]}).records()[0]
    assert estimate_of(row, "total_cost").interval[1] == 120


def test_days_and_money_have_the_interval_of_the_pace_they_are_paid_for():
    """Traffic is not: its price does not depend on how long it travels."""
    tcp = {"latency": "10 ms", "bandwidth": "1 Gbit/s", "transport": "tcp"}
    (row,) = simulate(parse(world(algorithm=[{"name": "ssgd"}], network=tcp))).algorithms
    pace, used = row["seconds_per_step"], row["used"]
    low, high = (end / pace["mean"] for end in pace["interval90"])
    assert low < 1 < high
    assert used["days"]["interval90"] == pytest.approx(
        [used["days"]["mean"] * low, used["days"]["mean"] * high]
    )
    traffic = used["egress_bytes"]["mean"] * 1e-6
    time = used["cost"]["mean"] - traffic
    assert used["cost"]["interval90"] == pytest.approx(
        [traffic + time * low, traffic + time * high]
    )
    assert "interval90" not in used["egress_bytes"]
    lasting = world(algorithm=[{"name": "ssgd"}], network=tcp, run={"duration": "60 s", "seeds": 2})
    (row,) = simulate(parse(lasting)).algorithms
    assert "interval90" not in row["used"]["days"]


def test_computing_faster_than_the_device_can_or_far_slower_is_said():
    """Six operations a parameter and token, over the step of one worker and its devices."""

    def notes(flops, **more):
        made = world(cost={**TOKENS, "flops": flops, **more})
        return [item for item in simulate(parse(made)).notes if "TFLOP/s" in item]

    (note,) = notes("1 MFLOP/s")
    assert "% of cost.flops" in note
    rate = float(note.split("computes ")[1].split(" TFLOP/s")[0])
    assert notes(f"{2 * rate} TFLOP/s") == notes(f"{5 * rate} TFLOP/s") == []
    (note,) = notes(f"{100 * rate} TFLOP/s")
    assert ", 1 % of cost.flops" in note


def test_what_a_row_has_beside_its_amounts_heads_no_column():
    row = {"rounds": {"mean": 5.0}, "used": None, "mfu": 0.4}
    assert [*consumption.cells([row])[1]] == ["MFU"]
