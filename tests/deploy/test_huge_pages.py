"""Vectors in huge pages have the same numbers, and only a program's are there."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
resource = pytest.importorskip("resource")

from paceline.validate.host.huge_pages import ADVICE, LEAST, HugePages

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
    return [x + y, x - y, 0.9 * x, x / 3, x * y, 1.0 - x, x.clone(), torch.cat([x[:5], y])]


def test_the_numbers_are_the_same():
    for entries, kind in ((ENTRIES, torch.float32), (ENTRIES, torch.bfloat16), (7, torch.float64)):
        x, y = torch.rand(2, entries).to(kind)
        with HugePages():
            found = results(x, y)
        assert all(map(torch.equal, found, results(x, y)))


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
