"""Override single keys of a scenario's table, as `--set table.key=value` does."""

import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..inputs import untrusted
from ..inputs.messages import KeyPath, dotted, get, holds, nearest, show
from .synonyms import proper
from .toml_file import DEEPEST, demand_shallow

EXTENDS = re.compile(r"\s*extends\s*=")
"""Matches an override of the key `extends`, which is applied before the profile is read."""
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|\[(\d+)\]|([^\s."'=[]+))\s*([.=]|(?=\[))""")


def override(table: dict[str, Any], text: str) -> KeyPath:
    """Set "table.key=value" in `table`; return the path of what is new: the key, or its table.

    The value is TOML, or else plain text; none at all unsets the key. A list's entries go by number
    (`algorithm[0].tau`), name or label (`algorithm.local-sgd.tau`). Tables that are missing are
    made. Raises InputError naming the text.
    """
    parts, position = [], 0
    while (match := _KEY.match(text, position)) is not None:
        parts.append(next(group for group in match.groups()[:4] if group is not None))
        position = match.end()
        if match[5] == "=":
            break
    if match is None:
        raise InputError(f"--set {text}: not table.key=value; write one such as run.seeds=8")
    if len(parts) > DEEPEST:
        raise InputError(f"--set {text[:80]}: nested too deeply; no key has {DEEPEST} dots")
    path: KeyPath = ()
    new: KeyPath | None = None
    here: Any = table
    said = text[position:].strip()
    value = _value(said, text) if said else None
    demand_shallow({"": value}, f"--set {text[:80]}")
    for depth, part in enumerate(parts):
        if not isinstance(here, dict | list):
            raise InputError(
                f"--set {text}: {dotted(path)} = {show(here)} is not a table, so "
                f"it has no key {part}; set {dotted(path)} as a whole"
            )
        key: Any = _index(here, part, dotted(path), text) if isinstance(here, list) else part
        last = depth == len(parts) - 1
        key = proper(here, key) if last else key
        path = (*path, key)
        if new is None and (last or not holds(here, key)):
            new = path
        if last and said:
            here[key] = value
        elif last:
            if not holds(here, key):
                raise InputError(
                    f'--set {text}: {dotted(path)} is not set; write a value, "" for an empty text'
                )
            del here[key]
        elif isinstance(here, dict):
            here = here.setdefault(key, {})
        else:
            here = here[key]
    return new or path


def without_loss(table: dict[str, Any], changed: Mapping[KeyPath, str]) -> list[str]:
    """Drop what only a loss has, where an override says that there is none; return a note of it.

    `changed`: the overrides by their paths, which stay whatever they say.
    """
    kind = ("objective", "kind")
    said = changed.get(kind) or changed.get(kind[:1])
    if said is None or get(table, kind) != "none":
        return []
    inner = [("objective", key) for key in table["objective"] if kind in changed and key != "kind"]
    gone = [path for path in (*inner, ("run", "target_loss")) if path not in changed]
    gone = [path for path in gone if get(table, path) is not None]
    for where, key in gone:
        del table[where][key]
    left = ", ".join(map(dotted, gone))
    return [f"--set {said}: without a loss there is no {left}: left out"] if gone else []


def one_length(table: dict[str, Any], changed: Mapping[KeyPath, str]) -> None:
    """Drop run.tokens where an override says run.steps, and the other way round."""
    run = table.get("run")
    for key, other in ("steps", "tokens"), ("tokens", "steps"):
        if isinstance(run, dict) and ("run", key) in changed and ("run", other) not in changed:
            run.pop(other, None)


def _index(entries: list[Any], part: str, where: str, text: str) -> int:
    """Return the position of the entry that `part` numbers, names or labels."""
    names = [
        {str(entry.get(key)) for key in ("name", "label") if key in entry}
        if isinstance(entry, dict)
        else set()
        for entry in entries
    ]
    found = [index for index, each in enumerate(names) if part in each]
    if not found and part.isdecimal() and int(part) < len(entries):
        return int(part)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"--set {text}: {len(found)} entries of {where} are called {part}; "
            f"name one by its number: {', '.join(f'{where}.{index}' for index in found)}"
        )
    known = sorted(set().union(*names))
    raise InputError(
        f"--set {text}: {where} has no entry {part}; "
        f"{nearest(part, known, 'names')}, or numbers from 0 to {len(entries) - 1}"
    )


def _value(text: str, whole: str) -> Any:
    try:
        table = untrusted.toml(f"value = {text}", DEEPEST)
    except (ValueError, RecursionError) as error:
        if text[0] in "[{\"'":
            raise InputError(f"--set {whole}: the value is not TOML: {error}") from None
        return text  # a shell has eaten the quotes of "20 ms"
    return table["value"] if len(table) == 1 else text
