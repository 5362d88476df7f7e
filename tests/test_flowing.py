"""Runs over a network that transfers share: equal to closed form where nobody is in the way."""

from typing import Any

import numpy as np
import pytest

from simulator.programs import catalogue
from tests.programs import ROWS, called, cases
from tests.worlds import QUADRATIC, RING, scenario, simulate

COLLECTIVES = ("ring", "tree", "star", "hierarchical", "recursive-doubling", "halving-doubling")
BLOCKING = [
    case for case in cases()
    if not (catalogue()[case["name"]].gossips or case["name"] in ("dts", "ssgd-bucketed"))
]  # fmt: skip


def both(case: dict[str, Any], network: dict[str, Any], **world: Any) -> tuple[Any, Any]:
    """The same run by formulas, and with every transfer simulated."""
    made = [
        scenario(case, network=network | {"model": model}, **world)
        for model in ("closed-form", "flows")
    ]
    return simulate(made[0], seed=1), simulate(made[1], seed=1)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 8, 13])
def test_a_network_with_nobody_in_the_way_is_as_its_formula_says(
    collective: str, workers: int
) -> None:
    network = RING | {"collective": collective}
    compute = {"dist": "exponential", "mean": "100 ms"}
    formula, flows = both(
        {"name": "local-sgd", "tau": 2}, network, workers=workers, compute=compute,
        cluster={"region": "here"},
    )  # fmt: skip
    np.testing.assert_allclose(flows.curve["time"], formula.curve["time"], rtol=1e-12)
    np.testing.assert_allclose(flows.curve["bytes"], formula.curve["bytes"], rtol=1e-12)
    for kind, spent in formula.seconds.items():
        assert flows.seconds[kind] == pytest.approx(spent, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("case", BLOCKING, ids=called)
def test_every_program_takes_as_long_where_nobody_is_in_the_way(case: dict[str, Any]) -> None:
    """Values are equal to the last bit, times but for rounding."""
    compute = {"dist": "uniform", "low": "100 ms", "high": "900 ms"}
    formula, flows = both(case, RING, objective=QUADRATIC, compute=compute, steps=12)
    np.testing.assert_allclose(flows.curve["time"], formula.curve["time"], rtol=1e-11)
    assert flows.curve["loss"] == pytest.approx(formula.curve["loss"], rel=1e-9)
    if next(row for row in ROWS if row.name == case["name"]).timeless:
        assert flows.curve["loss"] == formula.curve["loss"]
    assert flows.staleness == formula.staleness
    if not catalogue()[case["name"]].server:  # whose workers' next messages may count or not
        np.testing.assert_allclose(flows.curve["bytes"], formula.curve["bytes"], rtol=1e-12)
    for kind, spent in formula.seconds.items():
        assert flows.seconds[kind] == pytest.approx(spent, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("case", cases(), ids=called)
def test_what_overlaps_comes_to_the_same_values(case: dict[str, Any]) -> None:
    if not next(row for row in ROWS if row.name == case["name"]).timeless:
        return
    formula, flows = both(case, RING, objective=QUADRATIC, steps=12)
    assert flows.curve["loss"] == formula.curve["loss"]


@pytest.mark.parametrize("case", cases(), ids=called)
@pytest.mark.parametrize("seconds", ["2 s", "3.3 s"])
def test_a_run_may_end_in_the_midst_of_transfers(case: dict[str, Any], seconds: str) -> None:
    """By time: whatever is under way then, it is no deadlock."""
    network = RING | {"model": "flows", "bandwidth": "100 kbit/s"}
    tables = {"network": network, "objective": QUADRATIC, "run": {"duration": seconds}}
    run = simulate(scenario(case, steps=None, **tables))
    assert run.duration <= float(seconds[:-2])
    assert sum(run.seconds.values()) == pytest.approx(float(seconds[:-2]), rel=1e-9)
