"""Codecs: what they send, what they keep, what it weighs; alone and in programs."""

from collections import Counter
from math import ceil, sqrt
from typing import Annotated

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from paceline.simulator.engines import payloads
from paceline.simulator.errors import ProgramError
from paceline.simulator.load.load import parse
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.programs.codecs.codec import CODECS, CodecOf, Raw
from paceline.simulator.programs.codecs.dgc import DGC, about_largest
from paceline.simulator.programs.effects import NOTHING, Encoded
from paceline.simulator.programs.local import Codec as CodecParameter
from paceline.simulator.studies import simulate as study
from tests.helpers.cases import looped
from tests.helpers.worlds import (
    EXPONENTIAL,
    FREE,
    QUADRATIC,
    RING,
    TIME_ONLY,
    play,
    scenario,
    simulate,
)

read = TypeAdapter(CodecOf).validate_python
EVERY = [
    {"kind": "raw", "times": 2.4},
    {"kind": "top-k", "ratio": 0.25},
    {"kind": "random-k", "ratio": 0.25},
    {"kind": "dgc", "ratio": 0.25, "momentum": 0.5},
    {"kind": "qsgd", "bits": 4, "bucket": 16},
    {"kind": "fp16"},
    {"kind": "bf16"},
    {"kind": "fp8"},
    {"kind": "int8"},
    {"kind": "int4"},
    {"kind": "power-sgd", "rank": 2},
    {"kind": "sparse-loco", "chunk": 8, "top": 2, "decay": 0.9},
]
every = pytest.mark.parametrize("table", EVERY, ids=lambda table: table["kind"])
MESSAGES = [table for table in EVERY if table["kind"] != "power-sgd"]


# A small world without time


class Meeting:
    """A collective; its result is there once all have joined."""

    def __init__(self, team):
        self.team, self.kind, self.thunks = team, None, {}

    def join(self, rank, kind, thunk):
        assert self.kind in (None, kind)
        self.kind, self.thunks[rank] = kind, thunk
        if self.team.eager and len(self.thunks) == self.team.size:
            self.result()
        return self

    def result(self):
        assert len(self.thunks) == self.team.size
        if not hasattr(self, "found"):
            item = [self.thunks[rank]() for rank in range(self.team.size)]
            self.team.weighed.append([self.team.meter(payload) for payload in item])
            self.found = payloads.mean(item) if self.kind == "mean" else tuple(item)
        return self.found


class Fake:
    """One node of a team."""

    def __init__(self, team, rank):
        self.team, self.rank, self.workers = team, rank, team.size
        self.start, self.parameters, self.bytes_per_parameter = team.start, team.parameters, 4.0
        self.tensors = ()
        self.busy, self.joined, self.generators = 0.0, 0, Counter()
        self.box, self.resting = [], False

    def _join(self, kind, thunk):
        if self.joined == len(self.team.meetings):
            self.team.meetings.append(Meeting(self.team))
        self.joined += 1
        return self.team.meetings[self.joined - 1].join(self.rank, kind, thunk)

    def start_mean(self, value):
        return self._join("mean", lambda: value)

    def start_gather(self, value):
        return self._join("gather", lambda: value)

    def start_mean_after(self, handle, value):
        return self._join("mean", lambda: value(handle.result()))

    async def wait(self, handle):
        return handle.result()

    async def finished(self, handle):
        return hasattr(handle, "found")

    arrived = finished

    def send(self, to, value):
        self.team.nodes[to].box.append((self.rank, value))

    async def request(self, to, value):
        self.send(to, value)
        return "answer"

    async def receive(self, source=-1):
        return self.box.pop(0)

    def work(self, seconds):
        self.busy += seconds

    def coding(self, kind, share):
        return 0.0, 0.0

    def generator(self, *, shared=False):
        number = self.generators[shared]
        self.generators[shared] += 1
        return np.random.default_rng([number, 0 if shared else 1 + self.rank])


class Team:
    """Nodes without time. `eager`: a collective has its result as soon as it can, or late."""

    def __init__(self, codec, start, size=3, *, eager=True, parameters=10_000):
        self.size, self.start, self.parameters, self.eager = size, start, parameters, eager
        self.meetings, self.weighed = [], []
        self.meter = payloads.Meter(
            4.0 * parameters, 1 if isinstance(start, complex) else len(start)
        )
        self.nodes = [Fake(self, rank) for rank in range(size)]
        codec = read(codec)
        self.lines = [codec.open(node) for node in self.nodes]

    def start_mean(self, payload):
        return [line.start_mean(value) for line, value in zip(self.lines, payload, strict=True)]

    def wait(self, handles):
        pairs = zip(self.lines, handles, strict=True)
        return [done(line.wait(handle)) for line, handle in pairs]

    def mean(self, payload):
        """What every worker gets."""
        results = self.wait(self.start_mean(payload))
        if isinstance(results[0], np.ndarray):
            assert all(np.array_equal(results[0], other) for other in results[1:])
        return results[0]


def done(coroutine):
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("waits for more")


def encoder(table, size, seed=0):
    """A codec, and a function that encodes the next vector and decodes what is sent."""
    codec = read(table)
    team = Team(codec, np.zeros(size), 1)
    state, number = None, 0

    def send(vector):
        nonlocal state, number
        if not number:
            state = codec.init(vector, np.random.default_rng(seed))
        data, places, state = codec.encode(vector, state, number)
        number += 1
        return codec.add(np.zeros(size), data, places), state

    assert team.lines
    return send


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture(params=["numpy", "torch"])
def array(request):
    """Make a vector of either library."""
    if request.param == "numpy":
        return lambda vector: np.array(vector, dtype=float)
    torch = pytest.importorskip("torch")
    return lambda vector: torch.tensor(np.asarray(vector), dtype=torch.float32)


# Nothing is lost

integers = st.integers(2, 40).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(-1000, 1000), min_size=size, max_size=size), min_size=1, max_size=12
    )
)


@settings(max_examples=50)
@given(integers, st.sampled_from(["top-k", "random-k", "dgc"]), st.floats(0.01, 1))
def test_what_is_sent_and_what_is_left_is_everything(vectors, kind, ratio):
    """Whole numbers, so that every sum is exact; of DGC without momentum."""
    vectors = np.array(vectors, dtype=float)
    table = {"kind": kind, "ratio": ratio} | ({"momentum": 0.0} if kind == "dgc" else {})
    send, sent = encoder(table, vectors.shape[1]), 0.0
    for vector in vectors:
        message, (*_, residual, _) = send(vector)
        assert kind == "dgc" or np.count_nonzero(message) <= max(1, round(ratio * vector.size))
        assert not (message * residual).any()
        sent = sent + message
    np.testing.assert_array_equal(sent + residual, vectors.sum(axis=0))


def test_top_k_sends_the_largest_and_keeps_the_rest():
    send = encoder({"kind": "top-k", "ratio": 0.4}, 5)
    message, (residual, _) = send(np.array([3.0, -5.0, 0.5, 0.1, 4.0]))
    np.testing.assert_array_equal(message, [0, -5, 0, 0, 4])
    message, _ = send(np.array([0.0, 0.0, 4.0, 0.0, 0.0]))
    np.testing.assert_array_equal(message, [3, 0, 4.5, 0, 0])
    np.testing.assert_array_equal(residual, [3, 0, 0.5, 0.1, 0])  # states are not changed


@pytest.mark.parametrize("kind", ["top-k", "random-k", "dgc"])
def test_with_ratio_one_a_sparse_mean_is_the_mean(kind, array):
    """Of DGC, too: where everything is sent, masking leaves no momentum."""
    rows = normal(5, 3, 40)
    team = Team({"kind": kind, "ratio": 1.0}, array(np.zeros(40)))
    for row in rows:
        mean = team.mean([array(vector) for vector in row])
        assert mean.dtype == team.start.dtype
        np.testing.assert_allclose(np.asarray(mean), row.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_random_k_draws_the_same_places_of_all_and_adds_up(array):
    team = Team({"kind": "random-k", "ratio": 0.2}, array(np.zeros(50)))
    seen = Counter()
    for item in normal(300, 3, 50):
        mean = np.asarray(team.mean([array(vector) for vector in item]))
        seen.update(np.flatnonzero(mean).tolist())
        first, *others = [team.meetings[-1].thunks[rank]() for rank in range(3)]
        assert len(first.data[0]) == len({*map(int, first.places)}) == 10
        assert all((first.places == other.places).all() for other in others)
        np.testing.assert_array_equal(np.asarray(team.meetings[-1].found.places), first.places)
    assert team.meetings[-1].kind == "mean"
    sigma = sqrt(300 * 0.2 * 0.8)
    assert all(abs(seen[place] - 60) < 5 * sigma for place in range(50))


# DGC


def test_dgc_sends_what_momentum_sgd_has_moved_since_it_was_last_sent():
    """The closed form: a gradient moves u for ever after, by 1 + mu + mu^2 + ... in all."""
    mu, rounds, size = 0.9, 60, 20
    gradients = normal(rounds, size)
    send = encoder({"kind": "dgc", "ratio": 0.1, "momentum": mu}, size)
    since = np.zeros(size, dtype=int)
    for t in range(rounds):
        message, _ = send(gradients[t])
        sent = np.flatnonzero(message)
        assert len(sent) == 2
        for i in sent:
            ages = t - np.arange(since[i], t + 1)
            moved = (gradients[since[i] : t + 1, i] * (1 - mu ** (ages + 1)) / (1 - mu)).sum()
            assert message[i] == pytest.approx(moved, rel=1e-9)
            since[i] = t + 1
    assert since.min() > 0


@settings(max_examples=40)
@given(
    st.integers(0, 10**6), st.integers(1000, 30_000), st.floats(0.002, 0.2),
    st.sampled_from(["normal", "laplace", "uniform", "cauchy"]),
)  # fmt: skip
def test_a_sampled_threshold_keeps_about_as_many_as_wanted(seed, size, ratio, law):
    rng = np.random.default_rng(seed)
    sizes = abs(rng.standard_cauchy(size) if law == "cauchy" else getattr(rng, law)(size=size))
    count = ceil(ratio * size)
    places = about_largest(sizes, ratio, rng)
    assert 0.8 * count <= len(places) <= 1.3 * count
    assert (np.diff(places) > 0).all()
    rest = np.delete(sizes, places)
    assert sizes[places].min() >= rest.max()


@looped(("ratio", "stride"), [(0.02, 19), (0.001, 9)])
def test_a_threshold_is_estimated_from_a_sample_only(ratio, stride):
    """1000 entries of 20,000, or 2 / ratio; every s-th, s odd."""
    n, count = 20_000, ceil(ratio * 20_000)
    strides = []

    class Sampler:
        def integers(self, stride):
            strides.append(stride)
            return 2

    def found(sizes):
        return about_largest(sizes, ratio, Sampler())

    sizes = np.linspace(10, 11, n)
    sample = slice(2, None, stride)
    seen = len(sizes[sample])
    sizes[sample] = np.linspace(1, 2, seen)  # too low a threshold: exactly the largest
    np.testing.assert_array_equal(found(sizes), np.sort(np.argsort(sizes)[-count:]))
    assert strides == [stride]
    sizes[sample] = 12.5  # too high a one, until it is lowered to 10
    assert len(found(sizes)) == (seen if seen >= 0.8 * count and seen <= 1.3 * count else count)
    sizes = np.full(n, 10.0)
    sizes[sample][:: ceil(1 / ratio)] = 1e3  # ten times is not enough
    np.testing.assert_array_equal(found(sizes), np.flatnonzero(sizes > 10))


def test_a_vector_hardly_larger_than_its_sample_is_sorted():
    sizes = abs(normal(2999))
    actual = about_largest(sizes, 0.01, None)
    np.testing.assert_array_equal(actual, np.sort(np.argsort(sizes)[-30:]))


def test_dgc_finds_equal_entries_and_entries_that_are_no_numbers():
    rng = np.random.default_rng(0)
    assert len(about_largest(np.zeros(10_000), 0.01, rng)) == 100
    sizes = abs(normal(10_000))
    sizes[[3, 5000]] = np.nan
    assert {3, 5000} <= set(about_largest(sizes, 0.01, rng).tolist())


def test_dgcs_ratio_falls_exponentially():
    codec = DGC(ratio=0.001, warmup=4)
    ratios = [codec.ratio_of(number) for number in range(6)]
    assert ratios == pytest.approx([0.25, 0.25 * 0.004**0.25, 0.25 * 0.004**0.5,
                                    0.25 * 0.004**0.75, 0.001, 0.001])  # fmt: skip
    send = encoder({"kind": "dgc", "ratio": 0.05, "warmup": 3, "momentum": 0.0}, 40)
    sent = [np.count_nonzero(send(vector)[0]) for vector in normal(5, 40)]
    assert sent == [10, 6, 4, 2, 2]  # ceil(40 times 0.25, 0.146, 0.0855, 0.05, 0.05)


# SparseLoCo


@settings(max_examples=50)
@given(
    st.integers(1, 300), st.integers(2, 70), st.integers(1, 9), st.integers(1, 8),
    st.floats(0, 1), st.integers(0, 9),
)  # fmt: skip
def test_sparse_loco_sends_the_largest_of_each_chunk_and_keeps_the_decayed_rest(
    size, chunk, top, bits, decay, seed
):
    """The definition, entry by entry; what is sent has at most 2^bits values."""
    top = min(top, chunk)
    table = {"kind": "sparse-loco", "chunk": chunk, "top": top, "bits": bits, "decay": decay}
    send, residual = encoder(table, size), np.zeros(size)
    for vector in normal(4, size, seed=seed):
        total = decay * residual + vector
        message, residual = send(vector)
        np.testing.assert_allclose(message + residual, total, rtol=1e-12, atol=1e-12)
        chosen = []
        for begin in range(0, size, chunk):
            sizes = abs(total[begin : begin + chunk])
            chosen += (begin + np.argsort(-sizes)[: ceil(top * len(sizes) / chunk)]).tolist()
        rest = np.delete(np.arange(size), chosen)
        np.testing.assert_array_equal(residual[rest], total[rest])
        assert not message[rest].any()
        values, sent = total[chosen], message[chosen]
        assert len(np.unique(sent)) <= 2**bits
        assert sent.sum() == pytest.approx(values.sum(), abs=1e-9)  # bins become their means
        width = 6 * values.std() / 2**bits
        inner = abs(values - values.mean()) < 3 * values.std()
        assert (abs(sent - values)[inner] <= width * (1 + 1e-9)).all()


def test_sparse_loco_weighs_what_travels():
    """By hand at full size: 12 bits of place and 2 of value; the packed message as long."""
    codec = read("sparse-loco")
    assert codec.size(4096 * 1000, 4.0, 0, None) == 64 * 14 / 8 * 1000 + 4 * 4
    assert codec.size(4096 + 1024, 4.0, 0, None) == (64 + 16) * 14 / 8 + 4 * 4
    torch = pytest.importorskip("torch")
    from paceline.validate.training import packing

    for size in (1, 63, 5000):
        vector = torch.tensor(normal(size))
        data, places, _ = codec.encode(vector, codec.init(vector, None), 0)
        whole = codec.size(size, 8.0, 0, None)
        packed = packing.take_apart(Encoded(data, places, 1.0, whole, *codec.layout(size, 0)))
        assert sum(tensor.numel() * tensor.element_size() for tensor in packed.tensors) == whole
        back = packing.put_together(packed)
        zero = torch.zeros(size, dtype=vector.dtype)
        assert torch.equal(codec.add(zero.clone(), back.data, None), codec.add(zero, data, None))


# Dense codecs


@looped("bits", [2, 4, 8])
def test_qsgd_is_unbiased_and_no_noisier_than_its_theorem_says(bits):
    """Lemma 3.1 of the paper: the variance is at most min(d/s^2, sqrt(d)/s) |v|^2."""
    d, draws, s = 60, 4000, 2 ** (bits - 1) - 1
    vector = normal(d) * np.arange(d)
    send = encoder({"kind": "qsgd", "bits": bits}, d)
    actual = np.array([send(vector)[0] for _ in range(draws)])
    norm = np.linalg.norm(vector)
    part = s * abs(vector) / norm % 1
    sigma = norm / s * np.sqrt(part * (1 - part) / draws)
    assert (abs(actual.mean(axis=0) - vector) <= 5 * sigma + 1e-12).all()
    assert np.allclose(actual * s / norm % 1, 0) or np.allclose((actual * s / norm + 0.5) % 1, 0.5)
    variance = ((actual - vector) ** 2).sum(axis=1).mean()
    assert variance <= min(d / s**2, sqrt(d) / s) * norm**2
    assert variance == pytest.approx((sigma**2 * draws).sum(), rel=0.1)


@given(
    st.lists(st.floats(1e-150, 1e150) | st.floats(-1e150, -1e-150) | st.just(0.0), min_size=1),
    st.integers(1, 25),
)
def test_qsgd_moves_no_entry_by_more_than_a_level(vector, bucket):
    vector = np.array(vector)
    actual, _ = encoder({"kind": "qsgd", "bits": 3, "bucket": bucket}, vector.size)(vector)
    for begin in range(0, vector.size, bucket):
        place = slice(begin, begin + bucket)
        level = np.linalg.norm(vector[place]) / 3
        assert (abs(actual - vector)[place] <= level * (1 + 1e-9)).all()
        assert actual[place][vector[place] == 0].tolist() == [0.0] * int((vector[place] == 0).sum())


def test_workers_round_independently(array):
    """So that the mean of many is better than each."""
    vector = normal(64)
    team = Team({"kind": "qsgd", "bits": 2}, array(np.zeros(64)), size=50)
    mean = np.asarray(team.mean([array(vector)] * 50))
    alone = np.asarray(Team({"kind": "qsgd", "bits": 2}, array(vector), 1).mean([array(vector)]))
    assert np.linalg.norm(mean - vector) < 0.3 * np.linalg.norm(alone - vector)


@given(st.lists(st.floats(-60_000, 60_000), min_size=1, max_size=10))
def test_fp16_rounds_to_the_nearest_half(vector):
    vector = np.array(vector)
    actual, _ = encoder({"kind": "fp16"}, vector.size)(vector)
    assert (abs(actual - vector) <= np.maximum(2.0**-11 * abs(vector), 2.0**-25)).all()


def test_halves_are_added_up_as_halves(array):
    vectors = normal(3, 50)
    team = Team({"kind": "fp16"}, array(np.zeros(50)))
    actual = team.mean([array(vector) for vector in vectors])
    assert actual.dtype == team.start.dtype
    a, b, c = vectors.astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(np.asarray(actual), ((a + b + c) / np.float16(3)).astype(float))


# PowerSGD


def low_rank(rank, side=12, seed=0):
    """A vector whose square matrix has a rank."""
    return (normal(side, rank, seed=seed) @ normal(rank, side, seed=seed + 1)).ravel()


@pytest.mark.parametrize(("rank", "expected"), [(1, 1), (2, 1), (2, 2), (4, 3)])
def test_power_sgd_is_exact_where_the_mean_has_so_low_a_rank(rank, expected, array):
    noise = normal(2, 144, seed=9)
    team = Team({"kind": "power-sgd", "rank": rank}, array(np.zeros(144)))
    for seed in range(3):
        mean = low_rank(expected, seed=seed)
        vectors = [mean + noise[0], mean + noise[1], mean - noise[0] - noise[1]]
        result = np.asarray(team.mean([array(vector) for vector in vectors]))
        np.testing.assert_allclose(result, mean, rtol=1e-3, atol=1e-4)


def test_power_sgd_sends_factors_of_each_tensor_and_small_ones_whole():
    """By hand: 100 x 100 and 50 x 50 entries; 8 x 8 are just twice their factors of rank 2."""
    codec = read({"kind": "power-sgd", "rank": 2})
    factors = 2 * (100 + 50)
    assert codec.size([10_000, 64, 2_500], 4.0) == (4 * (factors + 64), 4 * factors)
    assert codec.size([64], 4.0) == (4 * 16, 4 * 16)


@looped("size", [1, 2, 3, 6, 7, 12, 21])
def test_power_sgd_of_full_rank_is_exact_whatever_the_shape(size):
    vectors = normal(3, size)
    mean = Team({"kind": "power-sgd", "rank": 99}, np.zeros(size)).mean(list(vectors))
    np.testing.assert_allclose(mean, vectors.mean(axis=0), rtol=1e-9, atol=1e-12)


def test_power_sgds_warm_start_converges_to_the_best_product(array):
    """The singular value decomposition, on a matrix that stays and without what was left over."""
    left, _ = np.linalg.qr(normal(20, 20))
    right, _ = np.linalg.qr(normal(20, 20, seed=1))
    sizes = np.array([9.0, 5.0, *np.linspace(1, 0.1, 18)])
    matrix, best = left * sizes @ right, (left * sizes)[:, :2] @ right[:2]
    team = Team({"kind": "power-sgd", "rank": 2}, array(np.zeros(400)), 1)
    errors = []
    for _ in range(12):
        result = np.asarray(team.mean([array(matrix.ravel())]))
        errors.append(np.linalg.norm(result - best.ravel()))
        team.lines[0]._residuals.clear()
    assert errors[0] > 0.1
    assert errors[-1] < 1e-4


def residual(team):
    return sum(line._residuals[0] for line in team.lines) / team.size


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), max_size=20), st.integers(1, 3), st.integers(1, 30))
def test_power_sgd_loses_nothing_however_many_are_under_way(plan, rank, size):
    """True starts a mean and False waits for the oldest one; results come early, or late."""
    actual = []
    for eager in (True, False):
        team = Team({"kind": "power-sgd", "rank": rank}, np.zeros(size), eager=eager)
        flying, given_in, results = [], 0.0, []
        for number, starts in enumerate([True, *plan]):
            if starts:
                vectors = normal(3, size, seed=number)
                given_in = given_in + vectors.mean(axis=0)
                flying.append(team.start_mean(list(vectors)))
            elif flying:
                results.append(team.wait(flying.pop(0)))
        results += [team.wait(handle) for handle in flying]
        total = sum(first for first, *_ in results) + residual(team)
        np.testing.assert_allclose(total, given_in, rtol=1e-9, atol=1e-9)
        actual.append(results)
    np.testing.assert_array_equal(*actual)


def test_power_sgd_averages_what_it_can_and_recovers_from_zero():
    team = Team({"kind": "power-sgd", "rank": 1}, np.zeros(16), size=2)
    assert not team.mean([np.zeros(16)] * 2).any()
    assert not team.mean([np.zeros(16)] * 2).any()
    vector = low_rank(1, side=4)
    both = team.mean([vector] * 2) + team.mean([vector] * 2)
    np.testing.assert_allclose(both, 2 * vector, rtol=1e-9)


def test_power_sgd_sends_no_message():
    (line,) = Team("power-sgd", np.zeros(4), 1).lines
    for call in (lambda: line.send(0, 1.0), lambda: line.request(0, 1.0), line.receive):
        with pytest.raises(ProgramError, match="two rounds"):
            call()


# Lines


@every
def test_scalars_travel_as_they_are_beside_vectors_that_have_states_of_their_own(table, array):
    """A payload of two vectors and two scalars, against each vector on a line of its own."""
    start = array(np.zeros(25))
    team, one, other = (Team(table, start) for _ in range(3))
    for a, b in normal(3, 2, 3, 25):
        item = [(1.5 * r, array(a[r]), array(b[r]), -1) for r in range(3)]
        scalar, first, second, constant = team.mean(item)
        assert (scalar, constant) == (1.5, -1)
        if table["kind"] in (
            "raw",
            "top-k",
            "dgc",
            "fp16",
            "sparse-loco",
        ):  # the others share random numbers
            alone = [one.mean([e[1] for e in item]), other.mean([e[2] for e in item])]
            np.testing.assert_array_equal(np.asarray(first), np.asarray(alone[0]))
            np.testing.assert_array_equal(np.asarray(second), np.asarray(alone[1]))
    assert team.mean([(2.0,)] * 3) == (2.0,)
    assert team.mean([2.0] * 3) == 2.0


@pytest.mark.parametrize("table", MESSAGES, ids=lambda table: table["kind"])
def test_a_message_to_one_node_says_the_same_without_a_state(table, array):
    """What worker 1 sends to node 0 is what it would have averaged with itself."""
    vectors = normal(4, 36)
    team = Team(table, array(np.zeros(36)), size=2)
    sums, sent = 0.0, 0.0
    for vector in vectors:
        team.lines[1].send(0, (array(vector), 7.0))
        sender, (actual, scalar) = done(team.lines[0].receive())
        assert (sender, scalar, actual.dtype) == (1, 7.0, team.start.dtype)
        sums, sent = sums + vector, sent + np.asarray(actual)
    if table["kind"] in ("raw", "fp16"):
        np.testing.assert_allclose(sent, sums, rtol=1e-2, atol=1e-3)
    assert done(team.lines[1].request(0, array(vectors[0]))) == "answer"
    (sender, message), *_ = team.nodes[0].box
    assert isinstance(message, Encoded)


WEIGHTS = {  # of a model of 10,000 parameters of 4 bytes, on a gather or an all-reduce
    "raw": ("mean", 2.4 * 40_000),
    "top-k": ("gather", 2_500 * (4 + 4)),
    "random-k": ("mean", 2_500 * 4 + 8),
    "dgc": ("gather", 2_500 * (4 + 4)),
    "qsgd": ("gather", 10_000 / 2 + 625 * 4),
    "fp16": ("mean", 20_000),
    "bf16": ("mean", 20_000),
    "fp8": ("mean", 10_000 + 20 * 4),
    "int8": ("mean", 10_000 + 20 * 4),
    "int4": ("mean", 5_000 + 20 * 4),
    "power-sgd": ("mean", 2 * 100 * 4),  # twice: of P and of Q
    "sparse-loco": ("gather", ceil(2_500 * (3 + 2) / 8) + 4 * 4),
}


@every
def test_bytes_by_hand(table):
    """The real model's, however small its stand-in; scalars weigh eight bytes."""
    kind, size = WEIGHTS[table["kind"]]
    rounds = 2 if table["kind"] == "power-sgd" else 1
    for start, value in ((np.zeros(16), np.ones(16)), (NOTHING, NOTHING)):
        team = Team(table, start)
        team.mean([(value, 1.0)] * 3)
        team.mean([value] * 3)
        assert [meeting.kind for meeting in team.meetings] == [kind] * 2 * rounds
        sizes = [[size] * 3] * 2 * rounds
        sizes[0] = [size + 8.0] * 3
        np.testing.assert_allclose(team.weighed, sizes)


def test_rounded_numbers_are_those_of_torch():
    """bf16 and fp8 by its dtypes; whole numbers by a block's largest. Means are rounded again."""
    torch = pytest.importorskip("torch")
    vector = normal(3, 700) * np.logspace(-6, 3, 700)
    actual = read("bf16").rounded(vector.astype(np.float32))
    np.testing.assert_array_equal(
        actual, torch.tensor(vector.astype(np.float32)).bfloat16().float().numpy()
    )
    for kind, largest in (("fp8", 448), ("int8", 127), ("int4", 7)):
        codec = read(kind)
        for rows in (slice(0, 512), slice(512, None)):
            scale = codec.scales(vector[:, rows])
            least = abs(vector[:, rows]).max(axis=-1, keepdims=True) / largest
            assert ((least <= scale) & (scale <= least * (1 + 2**-15))).all()
            scaled = vector[:, rows] / scale
            if kind == "fp8":
                whole = torch.tensor(scaled).to(torch.float8_e4m3fn).double().numpy()
            else:
                whole = np.rint(scaled)
            np.testing.assert_allclose(codec.rounded(vector)[:, rows], whole * scale, rtol=1e-14)
        mean, sent = Team(kind, np.zeros(700)).mean(list(vector)), codec.rounded(vector)
        np.testing.assert_array_equal(mean, codec.rounded(sum(sent[1:], sent[0]) / 3))


def test_what_rounding_drops_follows_later():
    vectors, errors = normal(40, 300), []
    for feedback in (True, False):
        team = Team({"kind": "int4", "feedback": feedback}, np.zeros(300), size=1)
        sums = sum(team.mean([vector]) for vector in vectors)
        errors.append(abs(sums - vectors.sum(axis=0)).mean() / abs(vectors).max(axis=-1).mean())
    assert errors[0] < 1 / 7 / 2 < errors[1] / 2


@every
def test_stated_bytes_replace_the_rule(table):
    team = Team({**table, "bytes": "54.7 MB"}, np.zeros(16))
    team.mean([np.ones(16)] * 3)
    np.testing.assert_allclose(np.sum(team.weighed, axis=0), 54.7e6)


@every
def test_a_quarter_of_a_vector_costs_a_quarter(table):
    """Of all that is in proportion: bytes, and the time to compress and decompress."""
    part = payloads.cut(NOTHING, 4)[0]
    for start, value in ((np.zeros(64), np.ones(16)), (NOTHING, part)):
        team = Team({**table, "compress": "4 s", "decompress": "8 s"}, start, parameters=40_000)
        team.mean([value] * 3)
        kind, size = WEIGHTS[table["kind"]]
        np.testing.assert_allclose(team.weighed, [[size] * 3] * len(team.weighed))
        assert [node.busy for node in team.nodes] == [1 + 2 * (3 if kind == "gather" else 1)] * 3


def test_dgc_weighs_what_it_has_kept():
    team = Team({"kind": "dgc", "ratio": 0.01, "warmup": 2}, np.zeros(5000), parameters=10**6)
    for vector in normal(4, 3, 5000):
        team.mean(list(vector))
        places = [len(team.meetings[-1].thunks[rank]().places) for rank in range(3)]
        assert team.weighed[-1] == pytest.approx([count / 5000 * 10**6 * 8 for count in places])
    nothing = Team({"kind": "dgc", "ratio": 0.01, "warmup": 2}, NOTHING, parameters=10**6)
    for _ in range(3):
        nothing.mean([NOTHING] * 3)
    ratios = [0.25, 0.05, 0.01]
    np.testing.assert_allclose(nothing.weighed, [[8e6 * ratio] * 3 for ratio in ratios])


@every
def test_time_only_runs_ask_for_the_same_generators(table):
    """Else a program's own random choices would differ there."""
    drawn = []
    for start, value in ((np.zeros(16), np.ones(16)), (NOTHING, NOTHING)):
        team = Team(table, start)
        opened = [Counter(node.generators) for node in team.nodes]
        assert team.mean([value] * 3) is not None
        assert [node.generators for node in team.nodes] == opened
        drawn.append(opened)
    assert drawn[0] == drawn[1]


def test_raw_is_the_node_itself():
    team = Team("raw", np.zeros(3))
    assert team.lines == team.nodes
    assert Team({"kind": "raw", "times": 1}, np.zeros(3)).lines[0].__class__ is Fake
    (heavy, *_) = Team({"kind": "raw", "times": 0.5}, np.zeros(3)).lines
    assert heavy.__class__ is not Fake


# As a scenario writes them


@looped("kind", CODECS.kinds)
def test_a_name_is_the_codec_with_its_defaults(kind):
    codec = read(kind)
    assert codec == read({"kind": kind}) == CODECS.kinds[kind]()
    assert read(codec) is codec
    assert read("raw") == Raw()


def test_a_reason_names_whose_compressing_takes_no_time():
    codecs = ({"kind": "fp16"}, {"kind": "fp16", "decompress": "3 ms"}, "raw")
    named = [{"name": "ssgd", "codec": codec, "label": str(n)} for n, codec in enumerate(codecs)]
    table = scenario(named[0]).table | {"algorithm": named}

    def free(document):
        verdict = study.simulate(parse(document)).verdict
        codes = [one.code for one in verdict.reasons]
        assert ("free-codec" in codes) == ("codec.compress" in verdict.why[0])
        return [one.numbers["labels"] for one in verdict.reasons if one.code == "free-codec"]

    assert free(table) == [["0"]]
    profiled = table | {"codec": [{"kind": "fp16", "size": "1 kB", "compress": "1 ms"}]}
    assert free(profiled) == []


def test_the_schema_accepts_what_is_accepted():
    schema = TypeAdapter(CodecOf).json_schema()
    assert "$ref" not in str(schema)  # it is put into other schemas
    for table in [*EVERY, *CODECS.kinds, {"kind": "fp16", "compress": "3 ms"}]:
        jsonschema.validate(table, schema)
    for wrong in ("fp61", {"kind": "top-k", "ratio": 2}, {"kind": "qsgd", "bits": 9}, {}, 3):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        with pytest.raises(ValidationError):
            read(wrong)


# In programs

LARGER = {
    "kind": "quadratic", "dimension": 64, "shift": 1.0, "noise": 0.2, "spectrum":
    {"kind": "power", "exponent": 0.5},
}  # fmt: skip
M = 4  # workers
PER_LINK = {"mean": 2 * (M - 1) / M, "gather": M - 1}  # of a ring, in payloads


def bitwise_equal(world):
    """Demand the same parameters, to the last bit, over a free network; return them."""
    free = world.model_copy(update={"network": scenario({"name": "ssgd"}).network})
    slow, fast = (play(item) for item in (world, free))
    for ours, theirs in zip(slow.marks, fast.marks, strict=True):
        assert len(ours) == len(theirs)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert any(slow.marks)
    return slow.marks


@every
def test_ssgd_converges_with_every_codec_equally_everywhere(table):
    world = scenario(
        {"name": "ssgd", "codec": table}, {"name": "ssgd"}, steps=200, lr=0.05,
        workers=M, objective=LARGER, compute=EXPONENTIAL, network=RING,
    )  # fmt: skip
    first, *others = bitwise_equal(world)
    assert all(np.array_equal(first, other) for other in others)
    run, plain = (simulate(world, index).curve["loss"] for index in range(2))
    assert run[-1] < 0.05 * run[0]
    if table["kind"] == "raw":
        assert run == plain
    else:
        assert run != plain


@every
def test_bytes_and_times_in_a_run_by_hand(table):
    """A model of 1000 parameters around a ring of 20 ms and 1 Mbit/s; one step takes a second."""
    weights = {
        "raw": 2.4 * 4000, "top-k": 250 * 8, "random-k": 250 * 4 + 8, "dgc": 250 * 8,
        "qsgd": 500 + 63 * 4, "fp16": 2000, "power-sgd": 2 * 32 * 4,
        "bf16": 2000, "fp8": 1008, "int8": 1008, "int4": 508,
        "sparse-loco": ceil(250 * 5 / 8) + 4 * 4,
    }  # fmt: skip
    kind, rounds = WEIGHTS[table["kind"]][0], 2 if table["kind"] == "power-sgd" else 1
    size, steps = weights[table["kind"]], 20
    codec = {**table, "compress": "30 ms", "decompress": "7 ms"}
    hops = 2 * (M - 1) if kind == "mean" else M - 1
    step = 1.03 + 0.007 * (M if kind == "gather" else 1)
    step += rounds * (hops * 0.02 + PER_LINK[kind] * size / 125_000)
    runs = [
        simulate(scenario(
            {"name": "ssgd", "codec": codec}, steps=steps, workers=M, network=RING,
            objective=objective,
        ))
        for objective in (LARGER, TIME_ONLY)
    ]  # fmt: skip
    for run in runs:
        assert run.links == pytest.approx(
            {f"worker {w}->worker {(w + 1) % M}": steps * rounds * PER_LINK[kind] * size
             for w in range(M)}
        )  # fmt: skip
        assert run.curve["bytes"][-1] == pytest.approx(M * steps * rounds * PER_LINK[kind] * size)
        assert run.duration == pytest.approx(steps * step)
    assert runs[0].curve["time"] == runs[1].curve["time"]
    assert runs[0].curve["bytes"] == runs[1].curve["bytes"]


async def late_pairs(
    me, *, lr: float, codec: CodecParameter = Raw(), delay: Annotated[int, "steps"] = 3
) -> None:
    """Two vectors and a scalar in each mean, and several means under way."""
    line = codec.open(me)
    x, flying = me.start, []
    while True:
        g = await me.gradient(x)
        flying.append(line.start_mean((g, 1.0, 0.5 * g)))
        if len(flying) > delay:
            first, _, second = await line.wait(flying.pop(0))
            x = x - lr * (first + second)
        me.mark(x)


@every
@pytest.mark.parametrize("compute", ["1 s", EXPONENTIAL], ids=["equal", "random"])
def test_several_vectors_under_way_are_the_same_everywhere(table, compute):
    """Though their second rounds start early on one network and late on another."""
    programs = {**catalogue(), "late": Program("late", late_pairs, "none", sends_gradients=True)}
    world = scenario(
        {"name": "late", "codec": table}, steps=40, workers=M, compute=compute, lr=0.02,
        network={**RING, "latency": "900 ms"}, objective=LARGER, programs=programs,
    )  # fmt: skip
    first, *others = bitwise_equal(world)
    assert all(np.array_equal(first, other) for other in others)
    assert np.linalg.norm(first[-1]) < np.linalg.norm(first[0])


@every
def test_buckets_converge_equally_everywhere_and_take_the_same_time_with_and_without(table):
    case = {"name": "ssgd-bucketed", "codec": {**table, "compress": "100 ms"}}
    tables = {"steps": 60, "workers": M, "network": RING, "lr": 0.05}
    bitwise_equal(scenario(case, objective=LARGER, **tables))
    run, times = (
        simulate(scenario(case, objective=goal, **tables)).curve for goal in (LARGER, TIME_ONLY)
    )
    assert run["loss"][-1] < 0.5 * run["loss"][0]
    assert run["time"] == times["time"]
    assert run["bytes"] == times["bytes"]


@looped("table", EVERY)
@looped(
    ("program", "carries", "lr"),
    [
        ({"name": "local-sgd", "tau": 3}, "displacements", 0.05),
        ({"name": "adacomm", "tau0": 3, "interval": "9 s"}, "displacements", 0.05),
        ({"name": "post-local-sgd", "switch_step": 10, "tau": 3}, "displacements", 0.05),
        ({"name": "asgd"}, "messages", 0.02),
    ],
)
def test_displacements_and_messages_converge_equally_everywhere(program, carries, lr, table):
    """Momentum of DGC is of gradients; PowerSGD sends no message."""
    if table["kind"] == {"displacements": "dgc", "messages": "power-sgd"}[carries]:
        return
    world = scenario(
        {**program, "codec": table}, steps=60, workers=M, objective=LARGER, network=FREE, lr=lr
    )
    marks = bitwise_equal(world)
    losses = simulate(world).curve["loss"]
    assert losses[-1] < 0.5 * losses[0]
    assert len(marks) == M + (carries == "messages")


@every
def test_a_run_that_diverges_says_so(table):
    """No codec hides it, and none breaks."""
    world = scenario(
        {"name": "ssgd", "codec": table}, steps=900, workers=2, objective=QUADRATIC, lr=9.0
    )
    assert any("diverged" in note for note in simulate(world).notes)
