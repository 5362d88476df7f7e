"""Messages of real nodes: those that come before a node's own clock begins keep their order."""

import queue
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from paceline.validate.training.clock import Clock
from paceline.validate.training.messages import Address, Mailbox


class Wire:
    """A process group of two, whose messages arrive at once."""

    def __init__(self):
        self.ways = queue.Queue(), queue.Queue()

    def of(self, rank):
        def send(tensors, to, tag):
            self.ways[to].put(tensors[0].clone())
            return SimpleNamespace(is_completed=lambda: True, wait=lambda: None)

        def recv(tensors, source, tag):
            def wait():
                actual = self.ways[rank].get()
                tensors[0][: len(actual)] = actual

            return SimpleNamespace(wait=wait)

        return SimpleNamespace(send=send, recv=recv)


def test_a_message_that_comes_before_the_clock_begins_is_not_overtaken():
    """It took a transit of as long as its receiver had been setting up, and came last."""
    wire, clocks = Wire(), (Clock(), Clock())
    ours, theirs = (
        Mailbox(
            Address(
                wire.of(rank),
                rank,
                frozenset({1 - rank}),
                4096,
                torch.device("cpu"),
                lambda _, at: at,
            ),
            clock,
        )
        for rank, clock in enumerate(clocks)
    )
    clocks[0]._origin -= 1.0  # it has been setting up for a second
    clocks[1].begin(time.monotonic())
    theirs.send(0, 1.0, 8.0, clocks[1].now(), float("nan"))
    until = time.monotonic() + 0.2  # it is read at once where nothing holds it
    while not ours.received and time.monotonic() < until:
        time.sleep(0.01)
    clocks[0].begin(clocks[1]._origin)
    theirs.send(0, 2.0, 8.0, clocks[1].now(), float("nan"))
    while ours.received < 2:
        time.sleep(0.01)
    taken = [ours.take(1, float("inf"), lambda: True) for _ in range(2)]
    assert [message.payload for message in taken] == [1.0, 2.0]
    assert taken[0].transit < 1.0
    for mailbox in (ours, theirs):
        mailbox.end()
    for mailbox in (ours, theirs):
        mailbox.close(10.0)
