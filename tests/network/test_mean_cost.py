"""The cost of one mean, by formula and on the fabric."""

import pytest

from paceline.simulator.network.mean_cost import mean_cost
from tests.helpers.cases import looped
from tests.helpers.worlds import RING, scenario


@looped("workers", [1, 4, 7])
def test_a_mean_costs_what_its_formula_says_where_nothing_is_shared(workers: int) -> None:
    worlds = [
        scenario({"name": "ssgd"}, workers=workers, network=RING | {"model": model})
        for model in ("closed-form", "flows")
    ]
    formula, flows = map(mean_cost, worlds)
    assert flows.latency == pytest.approx(formula.latency, rel=1e-12)
    assert flows.transmission == pytest.approx(formula.transmission, rel=1e-12)


def test_a_shared_line_costs_more_than_the_formula_of_private_ones_says() -> None:
    """A star of 1 + 3 in two regions: 3 payloads of 32 ms at 1 Mbit/s, either way."""
    tables = {
        "cluster": {"region": "a", "group": [{"name": "hub", "workers": 1, "region": "b"}]},
        "network": {
            "model": "flows", "collective": "star", "latency": "20 ms", "bandwidth": "1 Gbit/s",
            "link": [{"between": ["a", "b"], "bandwidth": "1 Mbit/s"}],
        },
    }  # fmt: skip
    cost = mean_cost(scenario({"name": "ssgd"}, workers=4, **tables))
    assert cost.latency == pytest.approx(0.04)
    assert cost.transmission == pytest.approx(6 * 0.032)
