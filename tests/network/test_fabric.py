"""Flows: fair shares by hand and against a slow reference, what is worked out anew, bytes kept."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.network import collectives
from paceline.simulator.network.fabric.fabric import Fabric
from tests.helpers.cases import looped
from tests.helpers.slow_fabric import SlowFabric


def ends(fabric, until=inf):
    """When each ticket ends."""
    actual = {}
    while step := fabric.advance(until):
        actual |= dict.fromkeys(step[1], step[0])
    return actual


def acted(fabric, orders, until=inf):
    """When each ticket ends, if methods are called at their times, and dropped from `orders`."""
    actual = {}
    while orders and orders[0][0] <= until:
        at, name, *arguments = orders.pop(0)
        actual |= ends(fabric, at)
        getattr(fabric, name)(*arguments)
    return actual | ends(fabric, until)


# By hand


def test_a_transfer_pays_the_latency_and_then_its_bytes():
    fabric = Fabric([10.0])
    path = fabric.path([0], 1.5)
    fabric.send(2.0, path, 20.0)
    fabric.send(10.0, path, 20.0, latency=0.0)
    assert fabric.advance(1.0) is None
    assert ends(fabric) == {0: 5.5, 1: 12.0}
    assert fabric.clock == 12.0


def test_tickets_that_end_together_come_together_in_order():
    fabric = Fabric([10.0, 10.0])
    sent = [fabric.send(0.0, fabric.path([line], 0.0), 10.0) for line in (1, 0, 1, 0)]
    assert fabric.advance(5.0) == (2.0, sent)


def test_parking_lot_the_long_flow_gets_its_share_of_the_tightest_line():
    """Lines of 10 and 6 (Bertsekas & Gallager, fig. 6.13 alike): long 3, short 7 and 3."""
    fabric = Fabric([10.0, 6.0])
    for lines in ([0, 1], [0], [1]):
        fabric.send(0.0, fabric.path(lines, 0.0), 21.0)
    assert ends(fabric) == {1: 3.0, 0: 7.0, 2: 7.0}


def test_a_cancelled_collective_starts_no_more_and_its_place_is_used_again():
    fabric = Fabric([10.0] * 3)
    plan = collectives.messages("ring", range(3)).plan(
        [fabric.path([line], 0.0) for line in range(3)]
    )
    lost = fabric.start(0.0, plan, [30.0] * 3)
    fabric.advance(1.5)
    fabric.cancel(lost)
    ticket = fabric.start(1.5, plan, [30.0] * 3)
    assert ends(fabric) == {ticket: 5.5}
    assert list(fabric.usage()[0]) == [15.0 + 40.0] * 3


def test_messages_have_their_own_payloads_and_latencies():
    fabric = Fabric([1.0] * 3)
    plan = collectives.gather(range(3)).plan([fabric.path([n], 0.0, serial=True) for n in range(3)])
    fabric.start(0.0, plan, [1.0, 2.0, 4.0])  # first 1, 2, 4 s; then 0 gets 2, 1 gets 4, 2 gets 1
    assert ends(fabric) == {0: 8.0}
    fabric.start(8.0, plan, [1.0] * 3, np.array([0.0, 0.0, 5.0, 0.0, 0.0, 0.0]))
    assert ends(fabric) == {1: 15.0}


def test_what_cannot_be_is_refused():
    fabric = Fabric([1.0])
    with pytest.raises(ValueError, match="twice"):
        fabric.path([0, 0], 0.0)
    fabric.advance(5.0)
    with pytest.raises(ValueError, match="before the clock"):
        fabric.send(4.0, 0, 1.0)
    with pytest.raises(ValueError, match="without messages"):
        fabric.start(5.0, collectives.messages("ring", [0]).plan([]), [1.0])


# Only what it must


def test_flows_on_other_lines_are_not_worked_out_anew():
    fabric = Fabric([10.0] * 100)
    paths = [fabric.path([line], 0.0) for line in range(100)]
    for line in range(99):
        fabric.send(0.0, paths[line], 1e6)
    fabric.advance(1.0)
    before = fabric.solved
    for start in range(1, 51):
        fabric.send(float(start), paths[99], 1.0)
    assert len(ends(fabric, 60.0)) == 50
    assert fabric.solved - before == 50


def test_a_line_with_slack_costs_the_flows_over_it_nothing():
    """A backbone of 1000 under cards of 10: nobody's bottleneck, whoever comes and goes."""
    fabric = Fabric([1000.0] + [10.0] * 51)
    paths = [fabric.path([0, card], 0.0) for card in range(1, 52)]
    for path in paths[:50]:
        fabric.send(0.0, path, 1e6)
    fabric.advance(1.0)
    before = fabric.solved
    fabric.send(1.0, paths[50], 10.0)
    assert fabric.advance(3.0) == (2.0, [50])
    fabric.set_capacity(0, 900.0)
    fabric.advance(3.0)
    assert fabric.solved - before == 1
    fabric.set_capacity(0, 250.0)  # and now it is one
    fabric.advance(4.0)
    assert fabric.solved - before == 51


# Against the definition

times = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0, 20)
rates = st.sampled_from([5.0, 10.0]) | st.floats(0.5, 20)
capacities = rates | st.sampled_from([0.0, inf])


@st.composite
def worlds(draw):
    """What happens: lines, paths, transfers, changes, cancellations, a collective."""
    lines = draw(st.lists(capacities, min_size=1, max_size=8))
    own = draw(st.sets(st.integers(0, len(lines) - 1), max_size=2))
    line = st.integers(0, len(lines) - 1)
    path = st.fixed_dictionaries(
        {"lines": st.lists(line, min_size=1, max_size=4, unique=True), "latency": times},
        optional={
            "limit": rates,
        },
    )
    paths = draw(st.lists(path, min_size=1, max_size=8))
    number = st.integers(0, len(paths) - 1)
    sizes = st.sampled_from([0.0, 10.0]) | st.floats(0.1, 100)
    sends = draw(st.lists(st.tuples(times, number, sizes), min_size=1, max_size=25))
    changes = draw(st.lists(st.tuples(times, line, capacities), max_size=4))
    lost = draw(st.lists(st.tuples(times, st.integers(0, len(sends) - 1)), max_size=3))
    team = draw(st.integers(2, 5))
    kind = draw(st.sampled_from(["ring", "tree", "star"]))
    chosen = draw(st.lists(number, min_size=40, max_size=40))
    return lines, own, paths, sends, changes, lost, collectives.messages(kind, range(team)), chosen


def played(kind, world):
    lines, background, paths, sends, changes, lost, collective, chosen = world
    fabric = kind(lines, background)
    numbers = []
    for path in paths:
        numbers.append(fabric.path(**path))
    for at, path, size in sends:
        fabric.send(at, numbers[path], size)
    plan = collective.plan([numbers[way] for way in chosen[: len(collective.routes)]])
    fabric.start(2.0, plan, [30.0] * 5)
    orders = [(at, "set_capacity", line, capacity) for at, line, capacity in changes]
    orders += [(60.0, "set_capacity", line, 3.0 + line) for line in range(len(lines))]
    orders += [(at, "cancel", ticket) for at, ticket in lost]
    orders.sort(key=lambda order: order[0])
    early = acted(fabric, orders, 15.0)
    usage = [column.copy() for column in fabric.usage()]
    return early | acted(fabric, orders), usage, fabric.usage()


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_every_end_and_every_byte_is_as_defined(world):
    actual, expected = played(Fabric, world), played(SlowFabric, world)
    assert actual[0] == pytest.approx(expected[0], rel=1e-9, abs=1e-9)
    for usage in (1, 2):
        np.testing.assert_allclose(actual[usage][0], expected[usage][0], rtol=1e-7, atol=1e-6)
        np.testing.assert_allclose(actual[usage][1], expected[usage][1], rtol=1e-7, atol=1e-6)


def test_on_a_serial_path_transfers_follow_each_other():
    """As on one connection: each leaves when it is sent, and flows when those before it have."""
    fabric = Fabric([10.0])
    path = fabric.path([0], 1.0, serial=True)
    other = fabric.path([0], 1.0)
    fabric.send(0.0, path, 20.0)
    fabric.send(0.5, path, 10.0)
    fabric.send(0.5, path, 0.0)  # nothing to wait for
    fabric.send(20.0, path, 10.0)
    fabric.send(20.0, other, 10.0)  # shares with it
    assert ends(fabric) == {0: 3.0, 1: 4.0, 2: 1.5, 3: 23.0, 4: 23.0}


@looped("which", [0, 1, 2])
def test_who_leaves_a_serial_path_lets_the_next_one_go(which):
    fabric = Fabric([10.0])
    path = fabric.path([0], 0.0, serial=True)
    for _ in range(4):
        fabric.send(0.0, path, 10.0)
    fabric.advance(0.5)
    fabric.cancel(which)
    first = 0.5 if which == 0 else 1.0
    left = [ticket for ticket in range(4) if ticket != which]
    assert ends(fabric) == {
        ticket: first + place + (which == 0) for place, ticket in enumerate(left)
    }
    fabric.send(10.0, path, 10.0)
    assert ends(fabric) == {4: 11.0}


SENDS = st.tuples(
    st.integers(0, 2), st.integers(0, 6), st.integers(0, 5), st.booleans(), st.booleans()
)


@given(st.lists(SENDS, min_size=1, max_size=25))
def test_serial_paths_are_queues(sends):
    """Each path has a line of 10 bytes/s: first come, first served; of one instant in order."""
    fabric = Fabric([10.0] * 3)
    paths = [fabric.path([line], 1.0, serial=True) for line in range(3)]
    queues = {path: [] for path in paths}
    for which, at, size, _, _ in sends:
        ticket = fabric.send(float(at), paths[which], 10.0 * size)
        queues[paths[which]].append((at + 1.0, ticket, size))
    dropped = {ticket for ticket, send in enumerate(sends) if send[3] and send[4]}
    assert ends(fabric, 0.5) == {}
    for ticket in dropped:
        fabric.cancel(ticket)
    expected = {}
    for queue in queues.values():
        free = 0.0
        for comes, ticket, size in sorted(queue):
            if ticket in dropped:
                continue
            expected[ticket] = comes
            if size:
                free = expected[ticket] = max(free, comes) + size
    assert ends(fabric) == pytest.approx(expected)
    assert fabric.usage()[0].sum() == pytest.approx(
        sum(10.0 * size for queue in queues.values() for _, t, size in queue if t not in dropped)
    )
