"""Collectives of rounds in which workers meet in pairs, by messages or in closed form."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Team = Sequence[int]
"""The ranks that take part, in order."""


class Round(NamedTuple):
    """Messages that are sent at the same time, each a `share` of the payload, from and to."""

    stage: str
    pairs: list[tuple[int, int]]
    share: float


def tree(team: Team) -> list[Round]:
    """The rounds of a binomial tree, ceil(log2 m) up and as many down."""
    m = len(team)
    reach = [2**level for level in range((m - 1).bit_length())]
    up = [[(team[low + far], team[low]) for low in range(0, m - far, 2 * far)] for far in reach]
    down = [[(low, high) for high, low in pairs] for pairs in reversed(up)]
    return [Round("reduce", pairs, 1.0) for pairs in up] + [
        Round("broadcast", pairs, 1.0) for pairs in down
    ]


def recursive_doubling(team: Team) -> list[Round]:
    """log2 p exchanges of the whole payload, where p is the largest power of two."""
    core, folded = _core(team)
    middle = [Round("exchange", pairs, 1.0) for _, pairs in _exchanges(core)]
    return _folding(folded, middle)


def halving_doubling(team: Team) -> list[Round]:
    """log2 p exchanges of 1/2, 1/4, ... with ever further partners, and the same backwards."""
    core, folded = _core(team)
    up = [Round("reduce-scatter", pairs, 0.5 / far) for far, pairs in _exchanges(core)]
    down = [part._replace(stage="all-gather") for part in reversed(up)]
    return _folding(folded, up + down)


def _core(team: Team) -> tuple[Team, list[tuple[int, int]]]:
    """Return a power of two of the workers, and who of the others sends to whom of them."""
    extra = len(team) - (1 << (len(team).bit_length() - 1))
    folded = [(team[2 * pair + 1], team[2 * pair]) for pair in range(extra)]
    return [*team[: 2 * extra : 2], *team[2 * extra :]], folded


def _folding(folded: list[tuple[int, int]], middle: list[Round]) -> list[Round]:
    """The rounds between those in which workers beyond the power of two send, and get the mean."""
    if not folded:
        return middle
    back = [(low, high) for high, low in folded]
    return [Round("fold in", folded, 1.0), *middle, Round("fold out", back, 1.0)]


def _exchanges(team: Team) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield distances 1, 2, 4, ... and who is that far from whom."""
    for level in range(len(team).bit_length() - 1):
        yield 1 << level, [(team[a], team[a ^ (1 << level)]) for a in range(len(team))]
