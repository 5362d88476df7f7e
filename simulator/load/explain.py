"""Describe a scenario's faults, one per line: file, key, value, remedy."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..inputs import messages
from ..inputs.messages import has_key, value_at

Schema = Mapping[str, Any]
TAG_MISSING = "union_tag_not_found"


def explain(
    error: ValidationError, table: dict[str, Any], schema: Schema
) -> dict[messages.KeyPath, str]:
    """Describe the faults of a table of a JSON `schema`, by key path.

    If a key has several faults (one per member of a union), only the first counts.
    """
    sentences: dict[messages.KeyPath, str] = {}
    faults = error.errors(include_url=False)
    for fault in sorted(faults, key=lambda fault: fault["type"] not in messages.UNKNOWN):
        path = locate(fault, table)
        kind, parent = fault["type"], describe(schema, path[:-1], table)
        if kind == TAG_MISSING:
            keys = {key for place in parent for key in place.get("properties", {})}
            # a misspelt key, which should have named the member of the union
            if wrong := [key for key in value_at(table, path[:-1]) if key not in keys]:
                kind, path = messages.UNKNOWN[0], (*path[:-1], wrong[0])
        if kind in messages.UNKNOWN:
            sentence = unknown(path, parent, schema)
        elif kind in (*messages.MISSING, TAG_MISSING):
            sentence = absent(str(path[-1]), parent, schema)
        else:
            sentence = messages.sentence(fault, path, value_at(table, path))
        sentences.setdefault(path, sentence)
    return sentences


def convert_whole_floats(faults: Mapping[messages.KeyPath, str], table: dict[str, Any]) -> bool:
    """Convert whole floats where ints are required; return whether there were any."""
    before = False
    for path, sentence in faults.items():
        value = value_at(table, path)
        if "whole number" in sentence and isinstance(value, float) and value.is_integer():
            value_at(table, path[:-1])[path[-1]] = int(value)
            before = True
    return before


def line(
    file: str,
    path: messages.KeyPath,
    sentence: str,
    table: dict[str, Any],
    changed: Mapping[messages.KeyPath, str],
) -> str:
    """Write one refusal: file, override in `changed` at fault, key, value, sentence."""
    by = [f" with --set {text}" for where, text in changed.items() if path[: len(where)] == where]
    value = value_at(table, path)
    shown = "" if value is None else f" = {messages.show(value)}"
    written = f"{file}{''.join(by[-1:])}: {messages.dotted(path)}{shown}: {sentence}"
    return written.replace("\n", "\\n").encode("utf-8", "backslashreplace").decode()


def absent(key: str, places: list[Schema], root: Schema) -> str:
    """Describe the missing `key` of a table whose schemas are `places`."""
    nodes = [place["properties"][key] for place in places if key in place.get("properties", {})]
    if tags := [str(node["const"]) for node in nodes if "const" in node]:
        return f"missing; write one of: {', '.join(tags)}"
    inner = [choice for node in nodes for choice in (node, *alternatives(root, node))]
    about = [f": {choice['description']}" for choice in inner if "description" in choice]
    section = any("$ref" in node for node in nodes)
    return f"missing; add {f'[{key}]' if section else 'it'}{''.join(about[:1])}"


def unknown(path: messages.KeyPath, places: list[Schema], root: Schema) -> str:
    """Describe an unknown key: list the keys of its `places`, or name the right table."""
    top, key = path[0], str(path[-1])
    keys = {name: None for place in places for name in place.get("properties", {})}
    homes = [
        f"[{name}]"
        for name, node in root["properties"].items()
        if name != top
        and any(key in table.get("properties", {}) for table in alternatives(root, node))
    ]
    homes += [
        f"[[{top}.{name}]]"
        for table in alternatives(root, root["properties"].get(top, {}))
        for name, node in table.get("properties", {}).items()
        if name not in path and any(key in row.get("properties", {}) for row in items(root, node))
    ]
    moved = f"it belongs in {' or '.join(homes)}; " if homes else ""
    return f"unknown key; {moved}{messages.nearest(key, keys, 'the keys here are')}"


def locate(error: ErrorDetails, table: Any) -> messages.KeyPath:
    """Return the path in the user's table of an error that pydantic located.

    Pydantic's locations also name the members of unions, which the table does not have.
    """
    path: list[str | int] = []
    tagged = False  # whether the location has named this table's union member
    where = error["loc"]
    match where:
        case ("algorithm", int(index), "lr" | "momentum" as key, *rest):
            if key not in table["algorithm"][index]:  # the value comes from [optimizer]
                where = ("optimizer", key, *rest)
                if "optimizer" not in table:
                    return "optimizer", key
    for part in where:
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


def alternatives(root: Schema, node: Schema, value: Any = None) -> list[Schema]:
    """Follow references; return the alternatives whose constants match `value`."""
    if "$ref" in node:
        return alternatives(root, root["$defs"][node["$ref"].removeprefix("#/$defs/")], value)
    inner = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    nodes = [branch for choice in inner for branch in alternatives(root, choice, value)] or [node]
    return [branch for branch in nodes if _fits(branch, value)] or nodes


def items(root: Schema, node: Schema) -> list[Schema]:
    """Return the schemas of the tables in a list of tables."""
    lists = alternatives(root, node)
    return [item for table in lists for item in alternatives(root, table.get("items", {}))]


def _fits(schema: Schema, value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    constants = {k: v["const"] for k, v in schema.get("properties", {}).items() if "const" in v}
    return all(value.get(key, constant) == constant for key, constant in constants.items())


def describe(root: Schema, path: messages.KeyPath, table: Any) -> list[Schema]:
    """Return the parts of the JSON Schema `root` for `path` in the user's table."""
    nodes = alternatives(root, root, table)
    for part in path:
        table = table[part] if has_key(table, part) else None
        under = "items" if isinstance(part, int) else "properties"
        inner = [node.get(under, {}) for node in nodes]
        if isinstance(part, str):
            inner = [choice.get(part, {}) for choice in inner]
        nodes = [choice for child in inner for choice in alternatives(root, child, table)]
    return nodes
