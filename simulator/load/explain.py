"""Turn faults into lines for the author of a scenario, or mend them: file, key, value, remedy.

Other words for a key are understood, and whole numbers that are written as floats.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..inputs import messages

Schema = Mapping[str, Any]
WHOLE = "whole number"  # of which every refusal of a number that is none speaks


def explain(
    error: ValidationError, table: dict[str, Any], schema: Schema
) -> dict[messages.KeyPath, str]:
    """Say what is wrong with a table of a JSON `schema`, by the path of the key at fault.

    Of a key's several faults (one per member of a union) only the first is kept.
    """
    sentences: dict[messages.KeyPath, str] = {}
    faults = error.errors(include_url=False)
    for fault in sorted(faults, key=lambda each: each["type"] not in messages.UNKNOWN):
        path = locate(fault, table)
        kind, value = fault["type"], value_at(table, path)
        parent = describe(schema, path[:-1], table)
        if kind == "union_tag_not_found":
            keys = {key for place in parent for key in place.get("properties", {})}
            if wrong := [
                key for key in value_at(table, path[:-1]) if key not in keys
            ]:  # a misspelt key, by which pydantic would have told the members apart
                kind, path = messages.UNKNOWN[0], (*path[:-1], wrong[0])
        if kind in messages.UNKNOWN:
            what = unknown(path, parent, schema)
        elif kind in (*messages.MISSING, "union_tag_not_found"):
            what = absent(str(path[-1]), parent, schema)
        else:
            what = messages.sentence(fault, path, value)
        sentences.setdefault(path, what)
    return sentences


def amended(
    faults: Mapping[messages.KeyPath, str], table: dict[str, Any], schema: Schema
) -> list[str]:
    """Replace in `table` what was refused, by `faults`, for its word or its form alone.

    Returns a note of each, which is empty where the change is one of form.
    """
    notes: list[str] = []
    for path, what in faults.items():
        meant = [_meant(path, word, table, schema) for word in messages.SYNONYMS]
        notes += [note for note in meant if note is not None]
        value = value_at(table, path)
        if WHOLE in what and isinstance(value, float) and value.is_integer():
            value_at(table, path[:-1])[path[-1]] = int(value)
            notes.append("")
    return notes


def _meant(path: messages.KeyPath, word: str, table: dict[str, Any], schema: Schema) -> str | None:
    """Rename `word` in the table at `path`, or around it; return a note, or None if it is right.

    It is another word where its table has no such key, and lacks the one key that it stands for.
    """
    place = path if isinstance(value_at(table, path), dict) else path[:-1]
    here = value_at(table, place)
    if not isinstance(here, dict) or word not in here:
        return None
    keys = {key for node in describe(schema, place, table) for key in node.get("properties", ())}
    tags = [tag for tag in messages.SYNONYMS[word] if tag in keys]
    if word in keys or len(tags) != 1 or tags[0] in here:
        return None
    rename(here, word, tags[0])
    where = messages.dotted((*place, word))
    return f"{where} is read as tau, the steps between averages" if word == "H" else ""


def line(
    file: str,
    path: messages.KeyPath,
    what: str,
    table: dict[str, Any],
    changed: Mapping[messages.KeyPath, str],
) -> str:
    """Write one refusal: file, the override that caused it if one of `changed` did, key, value."""
    by = [f" with --set {text}" for where, text in changed.items() if path[: len(where)] == where]
    value = value_at(table, path)
    shown = "" if value is None else f" = {messages.show(value)}"
    written = f"{file}{''.join(by[-1:])}: {messages.dotted(path)}{shown}: {what}"
    return written.replace("\n", "\\n").encode("utf-8", "backslashreplace").decode()


def absent(key: str, places: list[Schema], root: Schema) -> str:
    """Say what belongs under the missing `key` of a table that `places` describe."""
    nodes = [place["properties"][key] for place in places if key in place.get("properties", {})]
    tags = [str(node["const"]) for node in nodes if "const" in node]
    if tags:
        return f"missing; write one of: {', '.join(tags)}"
    about = [
        f": {inner['description']}"
        for node in nodes
        for inner in (node, *alternatives(root, node))
        if "description" in inner
    ]
    section = any("$ref" in node for node in nodes)
    return f"missing; add {f'[{key}]' if section else 'it'}{''.join(about[:1])}"


def unknown(path: messages.KeyPath, places: list[Schema], root: Schema) -> str:
    """Say which keys may stand where `path` ends, as `places` describe it, or where it belongs."""
    key = str(path[-1])
    keys = {name: None for place in places for name in place.get("properties", {})}
    if same := [choice for choice in messages.SYNONYMS.get(key, ()) if choice in keys]:
        return f"another word for {same[0]}, which is there as well; write one of them"
    sections = {name: alternatives(root, node) for name, node in root["properties"].items()}
    homes = [
        f"[{name}]"
        for name, nodes in sections.items()
        if name != path[0] and any(key in node.get("properties", {}) for node in nodes)
    ]
    homes += [
        f"[[{path[0]}.{name}]]"
        for place in sections.get(str(path[0]), ())
        for name, node in place.get("properties", {}).items()
        if name not in path
        and any(key in choice.get("properties", {}) for choice in items(root, node))
    ]
    moved = f"it belongs in {' or '.join(homes)}; " if homes else ""
    return f"unknown key; {moved}{messages.nearest(key, keys, 'the keys here are')}"


def locate(error: ErrorDetails, table: Any) -> messages.KeyPath:
    """Return the path, in the user's table, of an error that pydantic located in its models.

    Pydantic's locations also name the members of unions, which the table does not have.
    """
    path: list[str | int] = []
    tagged = False  # whether this table's union member has been named already
    for part in _as_written(error["loc"], table):
        union = bool(path) and isinstance(table, dict) and not tagged
        tags = [table.get(key) for key in messages.TAGS] if union else []
        if part in tags:
            tagged = True
        elif has_key(table, part):
            path.append(part)
            table, tagged = table[part], False
    if error["type"] in (*messages.MISSING, "refusal") and path[-1:] != [error["loc"][-1]]:
        path.append(error["loc"][-1])
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(str(error["ctx"]["discriminator"]).strip("'"))
    return tuple(path)


def _as_written(loc: messages.KeyPath, table: Any) -> messages.KeyPath:
    """Point at [optimizer] for what an algorithm has from there."""
    match loc:
        case ("algorithm", int(index), "lr" | "momentum" as key, *rest):
            if key not in table["algorithm"][index]:
                return ("optimizer", key, *rest)
    return loc


def alternatives(root: Schema, node: Schema, value: Any = None) -> list[Schema]:
    """Follow references; of several alternatives return those whose constants `value` has."""
    if "$ref" in node:
        return alternatives(root, root["$defs"][node["$ref"].removeprefix("#/$defs/")], value)
    inner = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    nodes = [branch for choice in inner for branch in alternatives(root, choice, value)] or [node]
    return [branch for branch in nodes if _fits(branch, value)] or nodes


def items(root: Schema, node: Schema) -> list[Schema]:
    """Return the tables of a list of tables, by their schemas."""
    lists = alternatives(root, node)
    return [item for table in lists for item in alternatives(root, table.get("items", {}))]


def _fits(schema: Schema, value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    constants = {k: v["const"] for k, v in schema.get("properties", {}).items() if "const" in v}
    return all(value.get(key, constant) == constant for key, constant in constants.items())


def describe(root: Schema, path: messages.KeyPath, table: Any) -> list[Schema]:
    """Return what the JSON Schema `root` says of the place `path` in the user's table."""
    nodes = alternatives(root, root, table)
    for part in path:
        table = table[part] if has_key(table, part) else None
        under = "items" if isinstance(part, int) else "properties"
        inner = [node.get(under, {}) for node in nodes]
        if isinstance(part, str):
            inner = [choice.get(part, {}) for choice in inner]
        nodes = [choice for child in inner for choice in alternatives(root, child, table)]
    return nodes


def has_key(table: Any, part: str | int) -> bool:
    """Tell whether `table[part]` exists."""
    if isinstance(table, list):
        return isinstance(part, int) and 0 <= part < len(table)
    return isinstance(table, dict) and part in table


def value_at(table: Any, path: messages.KeyPath) -> Any:
    """Return the value at `path`, or None if there is none."""
    for part in path:
        if not has_key(table, part):
            return None
        table = table[part]
    return table


def rename(table: dict[str, Any], old: str, new: str) -> None:
    """Rename a key that is there, in its place."""
    items = [(new if key == old else key, value) for key, value in table.items()]
    table.clear()
    table.update(items)
