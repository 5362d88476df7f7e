"""Make random streams keyed by seed, purpose and worker, not by order of arrival.

The k-th number of a stream is the same under every algorithm and every engine: comparisons between
algorithms are paired (common random numbers) and a rerun is bit-equal.
"""

from array import array
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import chain, count

import numpy as np


class Purpose(IntEnum):
    """Purpose of a stream. All published numbers depend on the values: never renumber."""

    COMPUTE = 0
    EXTRA = 1
    BATCH = 2
    COLLECTIVE = 3
    MESSAGE = 4
    PLACEMENT = 5
    OBJECTIVE = 6
    PROGRAM = 7
    SHARED = 8
    AGGREGATE = 9
    BURST = 10
    FAILURE = 11
    OUTAGE = 12
    BACKGROUND = 13
    TRACE = 14
    OVERHEAD = 15
    CALIBRATION = 16
    MEMBERSHIP = 17
    SAMPLING = 18
    DROP_OUT = 19


def generator(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """Return the generator (counter-based Philox) of one stream, such as a worker's."""
    spawn_key = int(purpose), *(key or (0,))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=spawn_key)))


def quick(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """Return an SFC64 generator: twice as fast, for numbers drawn by the billion."""
    spawn_key = int(purpose), *key
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=spawn_key)))


def blocks(draw: Callable[[int], np.ndarray], size: int = 256) -> Iterator[float]:
    """Yield the numbers of `draw(n)` one by one, drawn `size` at a time.

    `draw(a)` followed by `draw(b)` must equal `draw(a + b)`, as with NumPy's generators, so that
    the block size changes nothing.
    """
    # an array takes 8 bytes per number, so the blocks of hundreds of workers fit the cache
    return chain.from_iterable(array("d", draw(size).tobytes()) for _ in count())
