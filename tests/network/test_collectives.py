"""The table of collectives: every name has an entry, and its two descriptions agree."""

from collections import defaultdict
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from paceline.simulator.network import collectives
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.network.collectives import COLLECTIVES
from paceline.simulator.network.fabric.fabric import Fabric
from paceline.simulator.scenario.network import CollectiveName
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario

LATENCY, BANDWIDTH = 0.02, 1.25e5
SIZES = (2, 3, 4, 5, 7, 8, 13, 16)
NAMES = [name for name, item in COLLECTIVES.items() if item.messages is not None]


def test_the_table_has_an_entry_for_every_name_a_scenario_may_write():
    assert list(COLLECTIVES) == list(get_args(CollectiveName))
    assert len(NAMES) == len(COLLECTIVES) - 2  # "server" is closed-form only, "given" sends nothing


def regions(count):
    """Of each worker; regions of different sizes."""
    return [f"region {rank * 3 // count}" for rank in range(count)]


def collective(name, count):
    if name == "gather":
        return collectives.gather(range(count))
    return collectives.messages(name, range(count), regions(count))


def learned(made, count):
    """Whose contributions each worker has at the end, from the messages alone."""
    holders = [{rank} for rank in range(count)]
    has = []  # what those of a message have after it
    after = [[] for _ in made.path]
    for number, (first, last) in enumerate(pairwise(made.offsets)):
        for later in made.followers[first:last]:
            after[later].append(number)
    for number, route in enumerate(made.path):
        ranks = made.routes[route]
        mine = {rank: {rank} for rank in ranks}
        for before in after[number]:
            assert before < number
            for rank in mine.keys() & has[before].keys():
                mine[rank] |= has[before][rank]
        for rank in ranks:
            mine[rank] |= mine[ranks[0]]
            holders[rank] |= mine[rank]
        has.append(mine)
    return holders


@looped("count", SIZES)
@looped("name", [*NAMES, "gather"])
def test_everybody_has_a_part_of_everybody_at_the_end(name, count):
    assert learned(collective(name, count), count) == [set(range(count))] * count


@looped("count", SIZES)
@looped("name", [*NAMES, "gather"])
def test_bytes_over_every_link_are_those_of_the_closed_form(name, count):
    network = closed_form(name, count)
    plan = network.plan("gather" if name == "gather" else "mean", network.everyone)
    made = collective(name, count)
    moved = defaultdict(float)
    for route, share in zip(made.path, made.share, strict=True):
        for a, b in pairwise(made.routes[route]):
            moved[network.link(a, b).name] += share
    assert dict(moved) == pytest.approx(plan.moved, rel=1e-12)


@looped("count", SIZES)
@looped("name", [*NAMES, "gather"])
def test_on_equal_cards_it_takes_the_time_of_the_closed_form(name, count):
    network = closed_form(name, count)
    plan = network.plan("gather" if name == "gather" else "mean", network.everyone)
    size = 4e4
    expected = plan.held * size + LATENCY * sum(plan.path.values())
    made = collective(name, count)
    fabric = Fabric([BANDWIDTH] * 2 * count)
    cards = [[card for a, b in pairwise(ranks) for card in (a, count + b)] for ranks in made.routes]
    paths = [fabric.path(card, LATENCY * (len(card) // 2), serial=True) for card in cards]
    begin = 7.0
    fabric.start(begin, made.plan(paths), [size] * count)
    end, _ = fabric.advance(np.inf)
    assert end - begin == pytest.approx(expected, rel=1e-12)
    hops = np.array([len(ranks) - 1 for ranks in made.routes])
    total = (made.share * hops[made.path]).sum()
    assert fabric.usage()[0].sum() == pytest.approx(2 * total * size, rel=1e-12)


def closed_form(name, count):
    """The closed-form network of as many workers in the same regions."""
    names = regions(count)
    sizes = [(name, names.count(name)) for name in dict.fromkeys(names)]
    group = [{"name": name, "workers": size, "region": name} for name, size in sizes]
    network = {"collective": name, "latency": "20 ms", "bandwidth": "1 Mbit/s"}
    if name == "gather":
        network["collective"] = "ring"
    cluster = {"group": group} if name in COLLECTIVES and COLLECTIVES[name].needs_regions else {}
    return ClosedForm(scenario({"name": "ssgd"}, workers=count, network=network, cluster=cluster))


def test_a_slow_worker_of_a_ring_delays_those_behind_it_step_by_step():
    """Worker 2's card takes 2 s for a share, the others 1 s: all 6 steps of a ring take so long."""
    made = collectives.messages("ring", range(4))
    fabric = Fabric([1.0, 1.0, 0.5, 1.0])
    plan = made.plan([fabric.path([a], 0.0) for a, _ in made.routes])
    fabric.start(0.0, plan, [4.0] * 4)
    assert fabric.advance(np.inf) == (12.0, [0])


def test_a_team_may_be_any_of_the_workers():
    made = collectives.messages("tree", [7, 2, 5])
    assert made.routes == ((2, 7), (5, 7), (7, 5), (7, 2))
    assert collectives.messages("hierarchical", [3, 1], ["x"] * 4).routes == ((3, 1), (1, 3))


@looped("name", [*NAMES, "gather"])
def test_one_worker_alone_sends_nothing(name):
    assert not len(collective(name, 1).path)
