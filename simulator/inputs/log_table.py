"""Divide a log into rows and columns: CSV, JSON lines, or a list of objects.

Also splits the column names of W&B, TensorBoard and training loops into words.
"""

import csv
import io
import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from . import printed_logs, untrusted
from .messages import nearest

LARGEST = 100_000_000  # bytes of a log; a million steps take about 20 MB
LONGEST, WIDEST, MOST = 1_000_000, 4096, 2_000_000  # characters of a line, columns, rows
WIDE = b"\xff\xfe", b"\xfe\xff"  # first bytes of UTF-16, which PowerShell writes
EVENTS = "tfevents"  # in the name of every event file of TensorBoard
SHOWN = 80  # characters of a cell in a message
ENDS = ("__MIN", "__MAX")  # of the two extra columns that W&B exports for every metric
HISTORY = "log_history"  # the list in a trainer_state.json of Transformers
OBJECT = 'write an object per line, such as {{"step": 1, "{}": 0.41}}'

Rows = Callable[[], Iterator[tuple[int, list[Any]]]]
"""A function that yields each line's number and cells."""
Cut = Callable[[bytes], bytes]
"""A function that leaves out some of a log's lines."""


def read(path: Path, needed: str, value: str, cut: Cut | None = None) -> tuple[list[str], Rows]:
    """Return the names of a log's columns, and its rows.

    `needed`: a sentence on what a log must have; `value`: a column's name for examples in messages.
    Raises ValueError, also from the rows.
    """
    with untrusted.refused(path, needed), untrusted.unpacked(path) as file:
        data = untrusted.content(file, LARGEST)
        encoding = "utf-16" if data[:2] in WIDE else "utf-8-sig"
        if EVENTS not in path.name and b"\0" in data and encoding != "utf-16":
            raise ValueError("not text in UTF-8; unpack it, or save it as UTF-8")
        data = cut(data) if cut else data
    if EVENTS in path.name:
        names, rows = _events(path)
    elif printed := printed_logs.read(data.decode(encoding, "replace")):
        names, rows = printed[0], partial(iter, printed[1])
    else:
        with untrusted.refused(path, needed):
            text = data.decode(encoding)
        by_keys = re.match(r"\s*(\{|\[\s*([\[{\]]|$))", text)
        names, rows = _json(text, value) if by_keys else _csv(text, needed, value)
    if len(names) > WIDEST:
        raise ValueError(f"{len(names)} columns, at most {WIDEST}; {needed}")
    return names, rows


def numbers(
    rows: Rows, columns: Sequence[tuple[int, str, Callable[[Any], float]]]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return columns as numbers (rows, columns), row lines, and the rows left out.

    `columns`: index, name and reader of each column. A reader returns nan for an empty cell, so the
    row is left out, and raises ValueError for a wrong cell. Raises ValueError with line and column.
    """
    result, lines, left_out, row = array("d"), array("q"), 0, [0.0] * len(columns)
    for line, cells in rows():
        for place, (index, name, read_cell) in enumerate(columns):
            try:
                row[place] = read_cell(cells[index])
            except ValueError as error:
                shown = str(cells[index])[:SHOWN]
                raise ValueError(f"line {line}, column {name}: {shown!r} is {error}") from None
        if any(map(math.isnan, row)):
            left_out += 1  # W&B and others write one line per metric, so a row may lack a column
            continue
        result.extend(row)
        lines.append(line)
        if len(lines) > MOST:
            raise ValueError(f"line {line}: more than {MOST} rows; cut the log")
    return np.array(result).reshape(-1, len(columns)), np.array(lines), left_out


def choose(
    names: Sequence[str],
    given: Mapping[str, str],
    read_name: Callable[[str], tuple[str, int] | None],
    other: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Choose a log's column for each quantity; `given`: the user's choices.

    `read_name` returns a column's quantity and rank; the lowest rank is chosen. `other` names a
    quantity that can replace another. Raises ValueError if a given name does not exist, or if
    columns of equal rank compete and the log has no replacement.
    """
    for quantity, name in given.items():
        if name not in names:
            raise ValueError(
                f"columns.{quantity} = {name!r}: {nearest(name, names, 'its columns are')}"
            )
    several: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        meaning = None if name.endswith(ENDS) else read_name(name)  # W&B's
        if meaning and meaning[0] not in given and name not in given.values():
            several.setdefault(meaning[0], []).append((meaning[1], name))
    result = dict(given)
    for quantity, columns in several.items():
        best = [name for place, name in columns if place == min(columns)[0]]
        if len(best) > 1 and (other or {}).get(quantity) not in {*given, *several}:
            raise ValueError(
                f"columns {' and '.join(best[:3])} could all be {quantity}; "
                f'choose one, such as columns = {{ {quantity} = "{best[0]}" }}'
            )
        result[quantity] = best[0]
    return result


def bare(name: str) -> str:
    """Return a column's name without the name of the run that W&B's exports prefix."""
    return name.strip().rpartition(" - ")[2]


def words(name: str) -> list[str]:
    """Return a column's lower-case words: "stepTime [ms]" has step, time, ms."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word for word in re.split(r"[\s_.\-()\[\]:/]+", apart.lower()) if word]


def _csv(text: str, needed: str, value: str) -> tuple[list[str], Rows]:
    """Divide CSV by comma, semicolon, tab or bar: the most frequent in its first line."""
    lines = list(io.StringIO(text, newline=None))
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST:
            raise ValueError(f"line {number}: above {LONGEST} characters; {needed}")
    first = next((n for n, line in enumerate(lines) if line.strip()[:1] not in ("", "#")), None)
    if first is None:
        raise ValueError(f"empty; {needed}")

    def parsed() -> Iterator[tuple[int, list[str]]]:
        """Yield the first line's number and the cells of each row. Raises ValueError."""
        reader = csv.reader(lines[first:], delimiter=max(",;\t|", key=lines[first].count))
        begins = first + 1
        try:
            for cells in reader:
                yield begins, cells
                begins = first + 1 + reader.line_num
        except csv.Error as error:
            raise ValueError(f"line {begins}: {error}; is a quote left open?") from None

    names = [name.strip() for name in next(parsed())[1]]
    spaced = re.search(r"\d.* | .*\d", names[0]) or (len(names) < 2 and " " in names[0])
    if spaced or all(name[:1].isdecimal() for name in names):
        raise ValueError(
            f"line {first + 1}: neither of a known training loop, nor names of columns divided by "
            f'a comma, semicolon, tab or bar; write a first line such as "step,{value}"'
        )

    def rows() -> Iterator[tuple[int, list[Any]]]:
        for line, cells in islice(parsed(), 1, None):
            if not any(map(str.strip, cells)) or cells[0].lstrip()[:1] == "#":
                continue
            if len(cells) != len(names):
                raise ValueError(
                    f"line {line}: {len(cells)} columns, line {first + 1} names {len(names)}; "
                    "write as many, or delete an incomplete line"
                )
            yield line, cells

    return names, rows


def _events(path: Path) -> tuple[list[str], Rows]:
    """Read the scalars of a TensorBoard event file: a row per step, a column per tag."""
    try:
        from tensorboard.backend.event_processing import event_file_loader  # noqa: PLC0415
        from tensorboard.util import tensor_util  # noqa: PLC0415
    except ImportError:
        raise ValueError(
            "an event file of TensorBoard, which is not installed; "
            'pip install "paceline[tensorboard]"'
        ) from None
    by_step: dict[int, dict[str, float]] = {}
    for event in event_file_loader.EventFileLoader(str(path)).Load():
        for scalar in event.summary.value:
            if scalar.metadata.plugin_data.plugin_name == "scalars":
                first = {"step": event.step, "wall time": event.wall_time}
                row = by_step.setdefault(event.step, first)
                row[scalar.tag] = float(tensor_util.make_ndarray(scalar.tensor).item())
    names = [*dict.fromkeys(key for row in by_step.values() for key in row)]
    lines = list(enumerate(by_step.values(), start=1))
    return names, lambda: ((n, [row.get(key) for key in names]) for n, row in lines)


def _json(text: str, value: str) -> tuple[list[str], Rows]:
    """Divide JSON lines, or a list of objects (also under HISTORY); keys are columns."""

    def loaded(part: str, where: str) -> Any:
        try:
            return untrusted.loads(part)
        except ValueError as error:
            raise ValueError(f"{where}not JSON ({error}); {OBJECT.format(value)}") from None

    entries = loaded(text, "") if text.lstrip()[0] == "[" else None
    if entries is None and re.search(rf'"{HISTORY}"\s*:\s*\[', text):
        with suppress(ValueError):  # several documents: JSON lines
            history = untrusted.loads(text).get(HISTORY)
            entries = history if isinstance(history, list) else None

    def parsed() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, entry in enumerate(io.StringIO(text) if entries is None else entries, start=1):
            if entries is None and not entry.strip():
                continue
            result = loaded(entry, f"line {number}: ") if entries is None else entry
            if not isinstance(result, dict):
                raise ValueError(f"line {number}: not an object; {OBJECT.format(value)}")
            yield number, result

    names = [*dict.fromkeys(key for _, entry in parsed() for key in entry)]
    return names, lambda: ((n, [entry.get(key) for key in names]) for n, entry in parsed())
