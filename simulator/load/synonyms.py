"""Understand other words for a key, and whole numbers that are written as floats.

`kind` stands for the key that chooses between tables (`dist` of a law, `name` of an algorithm), H
for tau, as in the papers on DiLoCo, and 1.3e9 for 1300000000.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.simulator.inputs import messages
from paceline.simulator.inputs.messages import KeyPath, dotted, get, holds
from paceline.simulator.load.explain import Schema, describe
from paceline.simulator.programs import Program

WHOLE = "whole number"  # of which every refusal of a number that is none speaks


def proper(table: Any, key: str) -> str:
    """Return the key of `table` that means what `key` does; `key` itself if there is none."""
    if not isinstance(table, dict) or key in table:
        return key
    words = [word for word, tags in messages.SYNONYMS.items() if key in tags]
    return next((each for each in (*messages.SYNONYMS.get(key, ()), *words) if each in table), key)


def named(table: dict[str, Any], programs: Mapping[str, Program]) -> list[str]:
    """Give the parameters in [[algorithm]] and [tune] their own names; return notes of that."""
    notes = []
    for where, entry in _entries(table):
        if where[0] == "algorithm" and "name" not in entry:
            _rename(entry, "kind", "name")
        name = entry.get("name") if where[0] == "algorithm" else where[1]
        program = programs.get(name) if isinstance(name, str) else None
        known = program.parameters.model_fields if program else {}
        if "tau" in known and "H" not in known and "tau" not in entry and "H" in entry:
            _rename(entry, "H", "tau")
            notes.append(f"{dotted((*where, 'H'))} is read as tau, the steps between averages")
    return notes


def amended(found: Mapping[KeyPath, str], table: dict[str, Any], schema: Schema) -> bool:
    """Replace in `table` what was refused, by `found`, for its word alone; return whether any."""
    done = [_whole(path, what, table) or _tag(path, table, schema) for path, what in found.items()]
    return any(done)


def _entries(table: Mapping[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield each [[algorithm]] and each table of [tune], with its path."""
    for section in ("algorithm", "tune"):
        inside = table.get(section)
        pairs: Any = enumerate(inside) if isinstance(inside, list) else ()
        pairs = inside.items() if isinstance(inside, dict) else pairs
        yield from (((section, key), each) for key, each in pairs if isinstance(each, dict))


def _whole(path: KeyPath, what: str, table: dict[str, Any]) -> bool:
    value = get(table, path)
    if WHOLE not in what or not isinstance(value, float) or not value.is_integer():
        return False
    get(table, path[:-1])[path[-1]] = int(value)
    return True


def _tag(path: KeyPath, table: dict[str, Any], schema: Schema) -> bool:
    """Rename `kind` in the table at `path`, or around it, which lacks the key that chooses."""
    place = path if isinstance(get(table, path), dict) else path[:-1]
    here = get(table, place)
    if not holds(here, "kind"):
        return False
    known = {key for node in describe(schema, place, table) for key in node.get("properties", ())}
    tags = [tag for tag in messages.SYNONYMS["kind"] if tag in known]
    if "kind" in known or len(tags) != 1 or tags[0] in here:
        return False
    _rename(here, "kind", tags[0])
    return True


def _rename(table: dict[str, Any], old: str, new: str) -> None:
    """Rename a key that is there, in its place."""
    items = [(new if key == old else key, each) for key, each in table.items()]
    table.clear()
    table.update(items)
