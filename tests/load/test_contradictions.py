"""Settings that contradict each other, as overrides of shipped scenarios."""

import re

import pytest

import paceline

STEPS = "{schedule = 'steps', start = 0.08, factor = 0.1, at = [10]}"
REFUSED = {
    "schedule under the bound": ("adacomm/figure3", [f"optimizer.lr={STEPS}"], "optimizer.lr"),
    "momentum under the bound": (
        "adacomm/figure3", ["optimizer.momentum=0.9"], "optimizer.momentum = 0.9",
    ),
    "time that never passes": (
        "quickstart", ["cluster.compute='0 s'", "cluster.allow_zero=true"], "add run.steps",
    ),
    "window without a round trip": (
        "quickstart",
        [
            "network.latency={dist = 'pareto', minimum = '1 ms', alpha = 0.9}",
            "network.tcp_window='1 MiB'",
        ],
        "network.latency has no mean",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name):
    scenario, overrides, words = REFUSED[name]
    with pytest.raises(paceline.InputError, match=re.escape(words)):
        paceline.load(f"scenarios/{scenario}.toml", overrides)


def test_a_share_is_rounded_over_all_whom_it_concerns():
    from paceline.simulator.cluster import workers

    world = paceline.load(
        "scenarios/four-continents.toml", ["cluster.extra='10 s'", "cluster.extra_share=0.5"]
    )
    assert len(workers.stragglers(world, 0)) == 2
    assert sum(len(laws) == 2 for laws in world.team.expected_laws) == 2
