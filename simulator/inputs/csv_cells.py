"""Write CSV that is safe in spreadsheets: an apostrophe marks text that would run as a formula.

A spreadsheet runs a cell that begins with = + - @, even after spaces or quotes. It may also split
a line at semicolons or tabs, depending on the country. `restored` removes exactly the apostrophes
that `escaped` adds. Numbers stay as they are.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

_BEGINS = r"(^|[;\t\r\n])"
_RUNS = r"""(?=['"\s]*[=+\-@＝＋－＠])"""  # also after apostrophes of the text itself
_FORMULA = re.compile(_BEGINS + _RUNS)
_ESCAPED = re.compile(f"{_BEGINS}'{_RUNS}")


class Digits(str):
    """A number in its final written form."""

    __slots__ = ()


def digits(value: float) -> Digits:
    """Return the shortest digits that read back exactly, or "" for nan."""
    return Digits("" if math.isnan(value) else repr(float(value)).removesuffix(".0"))


def escaped(text: str) -> str:
    """Put an apostrophe before each part of a text that a spreadsheet would run."""
    return _FORMULA.sub(r"\1'", text)


def restored(text: str) -> str:
    """Return the text without the apostrophes that `escaped` added."""
    return _ESCAPED.sub(r"\1", text)


def table(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """Return a CSV table; cells that are `Digits`, or not text, stay as they are."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(escaped, header))
    writer.writerows([escaped(c) if type(c) is str else c for c in row] for row in rows)
    return text.getvalue().encode()
