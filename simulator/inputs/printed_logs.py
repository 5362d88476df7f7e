"""Read the console output of training loops, by the form of a step's line."""

import re
import tomllib
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from io import StringIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from . import untrusted

HEAD, LEAST = 5_000, 2  # first lines to search, and the fewest that must match
NUMBER = r"([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?|nan|inf)"
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{1,6})")
COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Framework(NamedTuple):
    """Patterns of a framework's lines; printed_logs.toml describes the fields."""

    step: str
    columns: dict[str, str]
    means: bool = False
    loss: float = 1.0


@cache
def frameworks() -> dict[str, Framework]:
    """Return the patterns by framework, in the order of trial."""
    text = untrusted.text(Path(__file__).with_name("printed_logs.toml"))
    tables = tomllib.loads(text.replace("NUMBER", NUMBER))
    return {name: Framework(**table) for name, table in tables.items()}


def read(text: str) -> tuple[list[str], list[tuple[int, list[Any]]]] | None:
    """Return a log's columns, and each step's line number and cells.

    Column names begin with the framework, as in "nanoGPT - step_ms". Steps that a resumed job
    repeats count once. Return None if no framework matches. Raises ValueError if the step numbers
    restart, for example at each epoch.
    """
    head = COLOURS.sub("", "".join(islice(StringIO(text, newline=None), HEAD)))
    lines = list[str]()
    for name, framework in frameworks().items():
        pattern = re.compile(framework.step, re.MULTILINE)
        if len(pattern.findall(head)) < LEAST:
            continue
        lines = lines or COLOURS.sub("", text).splitlines()
        if not (rows := _steps(framework, lines)):
            continue
        columns = list(dict.fromkeys(key for _, row in rows for key in row))
        if framework.means:
            columns = ["elapsed_ms" if key == "step_ms" else key for key in columns]
            _add_up([row for _, row in rows])
        cells = [(number, [row.get(key) for key in columns]) for number, row in rows]
        return [f"{name} - {key}" for key in columns], cells
    return None


def _steps(framework: Framework, lines: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return each step's line number and cells. Raises ValueError as `read` does."""
    rows = list[tuple[int, dict[str, Any]]]()
    for number, line in enumerate(lines, start=1):
        at = re.search(framework.step, line)
        row = _cells(framework, line, int(at[1])) if at else {}
        if len(row) < LEAST:  # the line has neither a time nor a loss
            continue
        if len(rows) > 1 and row["step"] <= rows[0][1]["step"]:
            raise ValueError(f"line {number}: step numbers restart; cut the log there")
        while rows and rows[-1][1]["step"] >= row["step"]:
            rows.pop()
        rows.append((number, row))
    return rows


def _cells(framework: Framework, line: str, step: int) -> dict[str, Any]:
    """Return a line's step, loss, and time; without a time, the line's timestamp."""
    row: dict[str, Any] = {"step": step}
    for key, pattern in framework.columns.items():
        if match := re.search(pattern, line):
            row[key] = float(match[1].replace(",", ""))
    if "loss" in row:
        row["loss"] *= framework.loss
    if len(row) - ("loss" in row) == 1 and (stamp := STAMP.search(line)):
        moment = datetime.fromisoformat(f"{stamp[1]} {stamp[2]}+00:00")
        row["_timestamp"] = moment.timestamp() + float(f"0.{stamp[3]}")
    return row


def _add_up(rows: Sequence[dict[str, Any]]) -> None:
    """Replace mean step times by the time since the first row."""
    elapsed = 0.0
    rows[0]["elapsed_ms"] = elapsed
    for before, row in pairwise(rows):
        elapsed += (row["step"] - before["step"]) * row.pop("step_ms", float("nan"))
        row["elapsed_ms"] = elapsed
