"""Read the columns of a CSV file written by hand or by a spreadsheet."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import untrusted

LARGEST = 256_000_000  # bytes, enough for 20 million numbers of nine digits
Reader = Callable[[str], Any]
_BEGINS = r"(^|[;\t\r\n])"
_RUNS = r"""(?=['"\s]*[=+\-@＝＋－＠])"""  # also after apostrophes of the text itself
_FORMULA = re.compile(_BEGINS + _RUNS)
_ESCAPED = re.compile(f"{_BEGINS}'{_RUNS}")


def number(text: str) -> float | None:
    """Return the number that a cell holds, or None."""
    try:
        return float(text)
    except ValueError:
        return None


def rows(
    path: Path,
    readers: Sequence[Reader] | Reader,
    content: str,
    names: Sequence[str] = (),
    check: Callable[[list[Any], int], None] = lambda row, line: None,
) -> Iterator[list[Any]]:
    """Yield the parsed rows of a file; `content`: a row in messages ("one time").

    `readers`: one per column, or one for all columns of a file of any width. A first line of
    plain words is a header: it must equal `names`, if given, except that the last names may be
    missing; their columns are then empty. Blank lines and # comments are skipped.
    `check(row, line)` raises ValueError for an impossible row. Raises ValueError with file, line
    and column.
    """
    width = 0 if callable(readers) else len(readers)
    first, empty = True, True
    remedy = f"write {content} per line"
    with untrusted.refused(path, remedy, error=ValueError):
        lines = untrusted.text(path, LARGEST).splitlines()
    for line, text in enumerate(lines, start=1):
        fields = [field.strip() for field in text.partition("#")[0].split(",")]
        if fields == [""]:
            continue
        titles = first and all(f.isidentifier() and number(f) is None for f in fields)
        first = False
        if titles:
            if names and fields != [*names][: len(fields)]:
                listed = f"the columns are {', '.join(fields)}; write {', '.join(names)}"
                raise ValueError(f"{path}, line {line}: {listed}")
            width = len(fields)
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise ValueError(f"{path}, line {line}: {len(fields)} columns, not {width}; {remedy}")
        fields += [""] * (0 if callable(readers) else len(readers) - width)
        row = []
        parsers = [readers] * width if callable(readers) else readers
        for index, (field, reader) in enumerate(zip(fields, parsers, strict=True)):
            try:
                row.append(reader(field))
            except ValueError as error:
                column = f", column {names[index]}" if names else ""
                raise ValueError(f"{path}, line {line}{column}: {field!r} is {error}") from None
        try:
            check(row, line)
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
        empty = False
        yield row
    if empty:
        raise ValueError(f"{path} has no rows; {remedy}")


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
