"""Loops over cases inside one test, whose failures name the case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(case: object) -> Iterator[None]:
    """Add the name of a case to whatever fails inside the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {case!r}")
        raise
