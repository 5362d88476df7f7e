"""Understand other words for a key, and whole numbers that are written as floats.

`kind` stands for the key that chooses between tables (`dist` of a law, `name` of an algorithm), H
for tau, as in the papers on DiLoCo, and 1.3e9 for 1300000000.
"""

from collections.abc import Mapping
from typing import Any

from ..inputs import messages
from ..inputs.messages import KeyPath, dotted, get, holds
from .explain import Schema, describe

WHOLE = "whole number"  # of which every refusal of a number that is none speaks


def proper(table: Any, key: str) -> str:
    """Return the key of `table` that means what `key` does; `key` itself if there is none."""
    if not isinstance(table, dict) or key in table:
        return key
    words = [word for word, tags in messages.SYNONYMS.items() if key in tags]
    return next((each for each in (*messages.SYNONYMS.get(key, ()), *words) if each in table), key)


def named(table: dict[str, Any]) -> None:
    """Give each [[algorithm]] its name, by which overrides find it, where `kind` says that."""
    entries = table.get("algorithm")
    for entry in entries if isinstance(entries, list) else ():
        if holds(entry, "kind") and "name" not in entry:
            _rename(entry, "kind", "name")


def amended(found: Mapping[KeyPath, str], table: dict[str, Any], schema: Schema) -> list[str]:
    """Replace in `table` what was refused, by `found`, for its word or its form alone.

    Returns a note of each, which is empty where the change is one of form.
    """
    done: list[str] = []
    for path, what in found.items():
        notes = [_meant(path, word, table, schema) for word in messages.SYNONYMS]
        done += [note for note in notes if note is not None]
        done += [""] * _whole(path, what, table)
    return done


def _whole(path: KeyPath, what: str, table: dict[str, Any]) -> bool:
    value = get(table, path)
    if WHOLE not in what or not isinstance(value, float) or not value.is_integer():
        return False
    get(table, path[:-1])[path[-1]] = int(value)
    return True


def _meant(path: KeyPath, word: str, table: dict[str, Any], schema: Schema) -> str | None:
    """Rename `word` in the table at `path`, or around it; return a note, or None if it is right.

    It is another word where its table has no such key, and lacks the one key that it stands for.
    """
    place = path if isinstance(get(table, path), dict) else path[:-1]
    here = get(table, place)
    if not isinstance(here, dict) or word not in here:
        return None
    known = {key for node in describe(schema, place, table) for key in node.get("properties", ())}
    tags = [tag for tag in messages.SYNONYMS[word] if tag in known]
    if word in known or len(tags) != 1 or tags[0] in here:
        return None
    _rename(here, word, tags[0])
    where = dotted((*place, word))
    return f"{where} is read as tau, the steps between averages" if word == "H" else ""


def _rename(table: dict[str, Any], old: str, new: str) -> None:
    """Rename a key that is there, in its place."""
    items = [(new if key == old else key, each) for key, each in table.items()]
    table.clear()
    table.update(items)
