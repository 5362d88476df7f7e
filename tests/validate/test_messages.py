"""Messages of real nodes: their order, and payloads that travel whole and no longer than said."""

import queue
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from paceline.simulator.programs.codecs.codec import DGC, QSGD, TopK
from paceline.simulator.programs.effects import Encoded, Latest
from paceline.validate.training import packing
from paceline.validate.training.clock import Clock
from paceline.validate.training.messages import Mailbox

CPU = torch.device("cpu")


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
        Mailbox(wire.of(rank), rank, frozenset({1 - rank}), 4096, CPU, lambda _, at: at, clock)
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


# Payloads as they travel


@given(st.integers(2, 8), st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_levels_travel_in_their_bits(bits, rows, columns, seed):
    most = 2 ** (bits - 1) - 1
    rng = np.random.default_rng(seed)
    levels = torch.from_numpy(rng.integers(-most, most + 1, (rows, columns)).astype(np.int8))
    norms = torch.rand(rows, 1)
    sent = Latest(0.25), Encoded((norms, levels), None, 1.0, 7.0, rows * columns, bits)
    packed = packing.take_apart(sent)
    body = packing.body(packed)
    # two numbers; lengths of a matrix and of a row of bits, or of two matrices
    assert len(body) == 8 * (2 + 3 + (bits == 8)) + 4 * rows + -(-rows * columns * bits // 8)
    loss, back = packing.put_together(packing.read(packing.head(packed), body, CPU))
    assert isinstance(loss, Latest)  # of which a gather's mean is the largest
    assert (loss, back.bytes, back.most, back.bits) == (0.25, 7.0, rows * columns, bits)
    assert all(map(torch.equal, back.data, (norms, levels)))


@given(
    st.sampled_from([*packing.GRIDS]),
    st.integers(1, 1100),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 99),
)
def test_rounded_numbers_travel_exactly_in_their_bits(kind, entries, dtype, seed):
    """Also after a mean of three; its parts are whole blocks."""
    torch.manual_seed(seed)
    codec, grid = packing.GRIDS[kind][0], packing.Grid(kind, dtype)
    vectors = torch.randn(3, entries, dtype=dtype) * torch.logspace(-20, 9, entries, dtype=dtype)
    vectors = codec.rounded(vectors)
    bodies = torch.stack([grid.encode(vector) for vector in vectors])
    assert bodies.shape[1] == grid.block * -(-entries // 512)
    assert bodies.shape[1] <= codec.size(entries, dtype.itemsize, 0, None) + grid.block
    for vector, body in zip(vectors, bodies, strict=True):
        assert torch.equal(grid.decode(body)[:entries], vector)
    mean = codec.rounded(sum(vectors[1:], vectors[0]) / 3)
    parts = bodies.reshape(3, -1, grid.block)
    body = torch.cat([grid.mean(part) for part in parts.unbind(1)])
    assert torch.equal(grid.decode(body)[:entries], mean)
    assert torch.equal(codec.rounded(mean), mean)


@given(
    st.sampled_from([DGC(ratio=0.01), DGC(ratio=0.2, warmup=3), TopK(ratio=0.1), QSGD()]),
    st.integers(1, 20000),
    st.sampled_from([0.0, 1.0, np.nan]),
    st.integers(0, 99),
)
def test_no_message_is_longer_than_its_codec_says(codec, entries, scale, seed):
    """Also where all entries are equal, or none is a number."""
    rng = np.random.default_rng(seed)
    state = codec.init(np.zeros(entries), rng)
    for number in range(4):
        vector = scale * rng.standard_normal(entries) ** 3
        with np.errstate(invalid="ignore"):
            data, places, state = codec.encode(vector, state, number)
        most, bits = codec.layout(entries, number)
        assert (len(places) if places is not None else entries) <= most
        if isinstance(codec, TopK):
            assert len(data[0]) == most
        assert bits == (codec.bits if isinstance(codec, QSGD) else 8)
