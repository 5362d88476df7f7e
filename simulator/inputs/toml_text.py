"""Compare the tables of scenarios, and write them as TOML."""

from collections.abc import Mapping, Sequence
from typing import Any

from .messages import quoted, toml


def differing(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row (key, values) for each key whose values differ between tables."""
    flat = [by_dotted_key(table) for table in tables]
    keys = dict.fromkeys(key for table in flat for key in table if not key.startswith("title"))
    rows = [(key, *(toml(table[key]) if key in table else "-" for table in flat)) for key in keys]
    return [row for row in rows if len({*row[1:]}) > 1]


def by_dotted_key(table: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Return a table's values by dotted key; list entries go by label, name or index."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and "dist" not in value:
            result |= by_dotted_key(value, f"{head}{key}.")
        elif _tables(value):
            names = [entry.get("label") or entry.get("name") for entry in value]
            for index, (entry, name) in enumerate(zip(value, names, strict=True)):
                where = name if name and names.count(name) == 1 else index
                result |= by_dotted_key(entry, f"{head}{key}.{where}.")
        else:
            result[f"{head}{key}"] = value
    return result


def _tables(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(v, Mapping) for v in value)


def write_toml(table: Mapping[str, Any]) -> str:
    """Write a scenario as TOML."""
    return "\n".join(_toml(table, "")).strip() + "\n"


def _toml(table: Mapping[str, Any], head: str) -> list[str]:
    lines, inner = [], []
    for key, value in table.items():
        if _tables(value):
            for entry in value:
                inner += ["", f"[[{head}{key}]]", *_assignments(entry)]
        elif isinstance(value, Mapping) and not head and key != "tune":
            inner += ["", f"[{key}]", *_toml(value, f"{key}.")]
        elif isinstance(value, Mapping) and not head:
            inner += ["", f"[{key}]", *_assignments(value)]
        else:
            lines.append(f"{quoted(key)} = {toml(value)}")
    return lines + inner


def _assignments(table: Mapping[str, Any]) -> list[str]:
    return [f"{quoted(key)} = {toml(value)}" for key, value in table.items()]
