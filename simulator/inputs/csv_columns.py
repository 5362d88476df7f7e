"""Numbers in text files: the columns of a CSV file, as people and spreadsheets write them."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.units import to_si

LARGEST = 256_000_000  # bytes; of times with nine digits, 20 million
Reader = Callable[[str], float]


def seconds(text: str) -> float:
    """Read a time: a number of seconds, or a quantity ("300 ms"). Raises ValueError otherwise."""
    value = _number(text)
    if value is None:
        return to_si(text, "time")
    if not 0 <= value < math.inf:
        raise ValueError("not a time; write a finite number of seconds, 0 or more")
    return value


def factor(text: str) -> float:
    """Read a factor. Raises ValueError for anything but a finite number, 0 or more."""
    value = _number(text)
    if value is None or not 0 <= value < math.inf:
        raise ValueError("not a factor; write a finite number, 0 or more")
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def rows(path: Path, readers: Sequence[Reader] | Reader, what: str) -> Iterator[list[float]]:
    """Yield a file's lines as numbers; `what` says what a line holds ("one time").

    One reader per column; a single one for any number of columns, as many in every line. A first
    line of plain words (the columns' names), blank lines and # comments are skipped. Raises
    ValueError, which names the line, for a file that cannot be read or holds anything else.
    """
    width = 0 if callable(readers) else len(readers)
    empty = True
    for number, text in enumerate(_lines(path, what), start=1):
        fields = [field.strip() for field in text.partition("#")[0].split(",")]
        if fields == [""] or (number == 1 and all(map(_is_name, fields))):
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise ValueError(
                f"{path}, line {number}: {len(fields)} columns, not {width}; write {what} per line"
            )
        row = []
        for field, read in zip(
            fields, [readers] * width if callable(readers) else readers, strict=True
        ):
            try:
                row.append(read(field))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {field!r} is {error}") from None
        empty = False
        yield row
    if empty:
        raise ValueError(f"{path} holds no samples; write {what} per line")


def _lines(path: Path, what: str) -> list[str]:
    try:
        with path.open("rb") as file:
            return untrusted.content(file, LARGEST).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; write {what} per line") from None
    except ValueError as error:
        raise ValueError(f"{path} is {error}; write {what} per line, of a part of them") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _is_name(field: str) -> bool:
    return field.isidentifier() and _number(field) is None
