"""Vectors in huge pages have the same numbers, and only a program's are there."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
resource = pytest.importorskip("resource")

from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

import paceline
from paceline.validate.host import huge_pages
from paceline.validate.host.huge_pages import ADVICE, BLOCK, LEAST, MOST, HugePages
from tests.deploy.overhead import PLANS, leave, network

ENTRIES = LEAST // 4 + 3
MAPS = Path("/proc/self/smaps")


def advised(vector):
    """Tell whether the kernel was asked for huge pages where the middle of a vector is."""
    middle, inside = vector.data_ptr() + vector.nbytes // 2, False
    for line in MAPS.read_text("utf-8").splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= middle < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no such address")


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def results(x, y):
    return [
        x + y[::2].repeat(2)[: len(y)],
        x[::2] - y[::2],
        x + y,
        x - y,
        0.9 * x,
        x / 3,
        x * y,
        1.0 - x,
        x + 1,
        2 * x * y - x * 0,
        0.3 * x + 0.7 * y,
        x.clone(),
        torch.cat([x[:5], y]),
    ]


def test_the_numbers_are_the_same():
    for entries, kind in ((ENTRIES, torch.float32), (ENTRIES, torch.bfloat16), (7, torch.float64)):
        x, y = torch.rand(2, entries).to(kind)
        with HugePages():
            found = results(x, y)
        assert all(map(torch.equal, found, results(x, y)))


def chained(x, y):
    u = 0.9 * x + y
    v = u - 0.3 * (y + 0.9 * u)
    w = v.clone()
    del u
    w.add_(x)  # in place, after it was read
    part = (v / 3)[5:]
    z = v[:-1] * w[1:]  # another length
    copied = (x - y).clone()
    return [v, w, part, z, copied, torch.cat([v, z]), *(k * x - y for k in range(MOST))]


@pytest.mark.parametrize("block", [1000, BLOCK])
def test_what_is_put_off_has_the_same_bits(block, monkeypatch):
    monkeypatch.setattr(huge_pages, "BLOCK", block)
    x, y = torch.rand(2, ENTRIES)
    with HugePages():
        found = chained(x, y)
    assert all(map(torch.equal, found, chained(x, y)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_parts_are_read_where_they_lie_and_what_is_no_number_stays_so(kind):
    """Each operation is rounded on its own: none is fused with the next, or left out."""
    odd = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-40, 3e38, 1e-320])
    x = torch.cat([torch.randn(ENTRIES - 8), odd]).to(kind)
    parts = [each.clone() for each in x.flip(0).split([5, 0, 70_001, ENTRIES - 70_006])]

    def work():
        g = torch.cat(parts)
        v = x / 3 - (0.1 * x + g / x) * g
        return [v, v - torch.cat([g, v])[ENTRIES:] / 7]

    with HugePages():
        found = work()
    for own, known in zip(found, work(), strict=True):
        torch.testing.assert_close(own, known, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_what_travels_is_packed_with_what_was_put_off(scale):
    x, head, pages = torch.randn(ENTRIES), torch.ones(9), HugePages()
    with pages, ThreadPoolExecutor(1) as other:
        y = x + x
        found = [pages.beside(pages.pack, head, [y], scale)]
        found.append(other.submit(pages.pack, head, [y[:7], y[7:]], scale).result())
        z = y - x
    known = torch.cat([head, (x + x) * scale])
    assert all(torch.equal(each, known) for each in found)
    assert torch.equal(z, x)


def test_what_is_put_off_is_done_before_another_thread_looks():
    x, pages = torch.rand(ENTRIES), HugePages()
    with pages, ThreadPoolExecutor(1) as other:
        y = 2.0 * x
        pages.settle()
        assert other.submit(lambda: torch.equal(y, x + x)).result()


def test_what_is_interrupted_is_done_later(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    def begun():
        with pages:
            found.append(2.0 * x)
            pages.settle()

    x, pages, found = torch.rand(ENTRIES), HugePages(), []
    with monkeypatch.context() as patch:
        patch.setattr(pages, "_do", interrupted)
        with pytest.raises(KeyboardInterrupt):
            begun()
    with pages:
        found.append(3.0 * x)
    assert all(map(torch.equal, found, [2.0 * x, 3.0 * x]))


def test_results_that_have_gone_take_no_memory():
    x, pages = torch.ones(ENTRIES), HugePages()
    with pages:
        y = 1.0 - 0.5 * (x + 0.5 * (x + 0.5 * (x + x)))
        x + y  # which nobody looks at
        pages.settle()
    assert y.eq(0.0).all()
    assert len(pages._places) <= 4


def test_types_and_shapes_stay_as_torch_has_them():
    x = torch.ones(ENTRIES)
    with HugePages():
        assert (x + x.double()).dtype == torch.float64
        assert (x.int() / 2).dtype == torch.float32
        assert (x * x.new_ones(2, 1)).shape == (2, ENTRIES)
        assert (x * x.new_ones(1)).shape == x.shape
        assert torch.cat([x[None], x[None]]).shape == (2, ENTRIES)


@pytest.mark.skipif(ADVICE is None or not MAPS.is_file(), reason="Linux's memory")
def test_only_what_is_within_is_there():
    x, pages, found = torch.ones(ENTRIES), HugePages(), []
    with pages:
        inside = 2.0 * x
        pages.outside(lambda: found.append(2.0 * x))
        after = 2.0 * x
    assert advised(inside)
    assert advised(after)
    assert not advised(found[0])
    assert not advised(2.0 * x)


def test_a_vector_takes_the_place_of_one_that_has_gone_and_of_no_other():
    x = torch.ones(ENTRIES)
    with HugePages():
        kept, part = 3.0 * x, (5.0 * x)[7:]  # a view keeps the whole
        begun = 0
        for turn in range(9):
            y = 2.0 * x + x.clone()
            begun = faults() if turn == 1 else begun
        assert faults() - begun < 32  # each new one would cause four, or two thousand
        others = [y, *(4.0 * x for _ in range(9))]
    assert kept.eq(3.0).all()
    assert part.eq(5.0).all()
    assert len({each.data_ptr() for each in (kept, part, *others)}) == 12


class Whole(TorchDispatchMode):
    """Counts the vectors of so many entries that torch's own arithmetic makes under it."""

    ARITHMETIC = "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "clone", "cat"

    def __init__(self, entries):
        super().__init__()
        self._entries, self.made = entries, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        name = str(function).removeprefix("aten.").removesuffix(".default")
        if name in self.ARITHMETIC and found.numel() >= self._entries:
            self.made.append(name)
        return found


@pytest.mark.parametrize("plan", [
    *({"name": name, **plan} for name, plan in PLANS.items()),
    {"name": "fedavg", "tau": 1, "mu": 0.1}, {"name": "local-sgd", "tau": 2, "outer": 0.5},
    {"name": "dts", "delay": 2, "inner": "adamw"},
], ids=lambda plan: " ".join(map(str, plan.values())))  # fmt: skip
def test_a_sessions_arithmetic_is_in_huge_pages(plan, monkeypatch):
    monkeypatch.setattr(huge_pages, "LEAST", 1)
    monkeypatch.setattr(HugePages.__init__, "__defaults__", (1,))
    net = network(1_500_000)
    given, optimizer = [each.grad for each in net], SGD(net.parameters(), 0.1)
    with paceline.deploy(net, optimizer, plan) as session, Whole(1_500_000) as whole:
        for step in range(8):
            leave(net, given)
            whole.made *= step > 4  # by then places have been made
            session.step(0.0)
    assert not whole.made
