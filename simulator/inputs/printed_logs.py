"""Read the console output of training loops, by the form of a step's line."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from itertools import islice
from typing import Any, NamedTuple

from . import untrusted

HEAD, LEAST, LONGEST = 5_000, 2, 20_000
"""First lines to search, the fewest that must match, and the characters of a line that count."""
DAY = 86_400.0  # seconds
UNTIMED = {"step", "loss", "val_loss"}
PATTERNS = untrusted.packaged(__file__, "printed_logs.toml")


class Framework(NamedTuple):
    """Patterns of a framework's lines; printed_logs.toml describes the fields."""

    step: str
    columns: dict[str, str]
    means: bool = False
    loss: float = 1.0
    lines: int = 1


Rows = list[tuple[int, dict[str, Any]]]
"""The number of each step's line, and its cells."""


def read(text: str) -> tuple[list[str], list[tuple[int, list[Any]]]] | None:
    """Return a log's columns, and each step's line number and cells.

    Column names begin with the framework, as in "nanoGPT - step_ms". Steps that a resumed job
    repeats count once. The first framework with times counts, or else with losses; None if none
    matches. Raises ValueError if the step numbers restart, and for an output without steps.
    """
    text = re.sub(PATTERNS["colours"], "", text)
    first = islice(StringIO(text, newline=None), HEAD)
    head = "\n".join(line[:LONGEST].rstrip("\n") for line in first)
    lines, best, rows = list[str](), "", Rows()
    for name, table in PATTERNS["framework"].items():
        framework = Framework(**table)
        if sum(1 for _ in re.finditer(framework.step, head, re.MULTILINE)) < LEAST:
            continue
        lines = lines or [line[:LONGEST] for line in text.splitlines()]
        found = _steps(framework, lines)
        timed = any(row.keys() - UNTIMED for _, row in found)
        if timed or not rows:
            best, rows = name, found
        if timed:
            break
    for name, (pattern, remedy) in PATTERNS["refused"].items():
        if not rows and re.search(pattern, head, re.MULTILINE):
            raise ValueError(f"{name}: {remedy}")
    columns = list(dict.fromkeys(key for _, row in rows for key in row))
    cells = [(number, [row.get(key) for key in columns]) for number, row in rows]
    return ([f"{best} - {key}" for key in columns], cells) if rows else None


def _found(pattern: str, lines: Sequence[str]) -> list[tuple[int, re.Match[str]]]:
    """Return the lines of steps with the commonest rank and total, so no bars of evaluations."""
    steps = [(n, at) for n, line in enumerate(lines) if (at := re.search(pattern, line))]
    keys = [
        (at.groupdict().get("of"), *re.findall(PATTERNS["rank"], at.string)[:1]) for _, at in steps
    ]
    common, count = Counter(keys).most_common(1)[0] if keys else ((), 0)
    return [step for step, key in zip(steps, keys, strict=True) if key == common or count < LEAST]


def _steps(framework: Framework, lines: Sequence[str]) -> Rows:
    """Return the cells of each step. Raises ValueError as `read` does."""
    steps = _found(framework.step, lines)
    rows, ends = Rows(), [*(n for n, _ in steps[1:]), len(lines)]
    for (n, at), end in zip(steps, ends, strict=True):
        row = _cells(framework, at, "\n".join(lines[n : min(end, n + framework.lines)]))
        if len(row) < LEAST:  # the line has neither a time nor a loss
            continue
        if len(rows) > LEAST and row["step"] <= rows[0][1]["step"]:
            raise ValueError(f"line {n + 1}: step numbers restart; cut the log there")
        while rows and rows[-1][1]["step"] >= row["step"]:
            before = rows.pop()[1]
            row = before | row if before["step"] == row["step"] else row
        rows.append((n + 1, row))
    for key in dict.fromkeys(key for _, row in rows for key in row):
        if framework.means and key.startswith("step_"):
            _add_up(rows, key)
        elif key.startswith(("elapsed_", "wall_")):
            _continue([row for _, row in rows if key in row], key)
    return rows


def _cells(framework: Framework, at: re.Match[str], text: str) -> dict[str, Any]:
    """Return a step, its loss, and its time; without a time, the timestamp before it."""
    groups = {"step": at[1], "epoch": 0, "of": 0} | {k: v for k, v in at.groupdict().items() if v}
    step, epoch, of = (int(str(groups[key]).replace(",", "")) for key in ("step", "epoch", "of"))
    row: dict[str, Any] = {"step": step + epoch * of}
    for key, pattern in framework.columns.items():
        if match := _compiled(pattern).search(text):
            value = _value(match[match.lastindex or 1], key)
            row[key] = value * (framework.loss if key == "loss" else 1.0)
    stamp = re.search(PATTERNS["stamp"], at.string[: at.start(at.re.groupindex.get("step", 1))])
    if stamp and not row.keys() - UNTIMED:
        row["_timestamp" if "-" in stamp[0] else "wall_time_s"] = clock(stamp[0])
    return row


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of a column, with what the words in capitals stand for."""
    for word in ("number", "timed", "bare"):
        pattern = pattern.replace(word.upper(), PATTERNS[word])
    return re.compile(pattern)


def _value(text: str, key: str) -> float:
    """Return a number such as 11.5K, or the seconds of a clock."""
    # the comma of 1,705 divides thousands, except in losses and seconds
    if re.fullmatch(PATTERNS["thousands"], text) and not key.endswith(("loss", "_s")):
        text = text.replace(",", "")
    return clock(text.rstrip("K")) * (1e3 if text.endswith("K") else 1.0)


def clock(text: str) -> float:
    """Return the seconds of "1:20:52", or since 1970 of "2026-01-31 12:00:00"."""
    text = text.strip().replace(",", ".")
    if re.match(r"\d{4}-", text):
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return sum(60.0**n * float(part) for n, part in enumerate(reversed(text.split(":"))))


def _continue(rows: Sequence[dict[str, Any]], key: str) -> None:
    """Continue a clock that begins anew, at midnight or in another epoch."""
    begin, before = 0.0, rows[0][key]
    for row in rows:
        begin += (DAY if key == "wall_time_s" else before) * (row[key] < before)
        before = row[key]
        row[key] += begin


def _add_up(rows: Rows, key: str) -> None:
    """Replace mean step times by the time since the first row."""
    total, before = 0.0, rows[0][1]["step"]
    for _, row in rows:
        total += (row["step"] - before) * row.pop(key, float("nan"))
        before, row[key.replace("step", "elapsed")] = row["step"], total
