"""What is wrong with a scenario, in words for whoever wrote it: file, key, value, remedy."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from paceline.simulator.inputs.escaping import CONTROL_CHARACTERS, visible

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

# by pydantic's error type; the braces are filled from the error's context
SENTENCES = {
    "int_type": "not a whole number; write one, without quotes, unit or decimal point",
    "int_parsing": "not a whole number; write one, without quotes, unit or decimal point",
    "int_from_float": "not a whole number; write one, without decimal point",
    "float_type": "not a number; write one, without quotes or unit",
    "float_parsing": "not a number; write one, without quotes or unit",
    "finite_number": "not finite; write a finite number",
    "string_type": "not a text; write one, in quotes",
    "string_too_short": "empty; write a name",
    "bool_type": "neither true nor false; write one of them, without quotes",
    "bool_parsing": "neither true nor false; write one of them, without quotes",
    "greater_than": "too small; write a value above {gt:.12g}",
    "greater_than_equal": "too small; write {ge:.12g} or more",
    "less_than": "too large; write a value below {lt:.12g}",
    "less_than_equal": "too large; write {le:.12g} or less",
    "too_short": "too short a list; write {min_length} or more in it",
    "too_long": "too long a list; write {max_length} or fewer in it",
    "value_error": "{error}",
    "assertion_error": "{error}",
    "refusal": "{what}",
}
_TABLES = ("model_type", "model_attributes_type", "dict_type", "dataclass_type")
_LISTS = ("tuple_type", "list_type")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
TAGS = ("dist", "kind", "schedule")  # keys that choose between the members of a union


def nearest(word: str, options: Iterable[str], what: str) -> str:
    """Return the option closest to `word`, if any is close, and then all of them."""
    names = {option.lower().replace("_", "-"): option for option in options}
    close = get_close_matches(word.lower().replace("_", "-"), names, n=1)
    guess = f"did you mean `{names[close[0]]}`? " if close else ""
    return f"{guess}{what}: {', '.join(names.values()) or 'none'}"


def sentence(error: ErrorDetails, path: Path, value: Any) -> str:
    """Say what is wrong with the `value` at `path`, and what would be right."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in SENTENCES:
        return SENTENCES[kind].format(**context)
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected", context.get("expected_tags")))
        options = re.findall(r"'([^']*)'", expected) or [expected]
        return f"unknown; {nearest(str(value), options, 'write one of')}"
    if kind in _TABLES:
        given = "a list where one table belongs" if isinstance(value, list) else "not a table"
        section = "" if any(isinstance(part, int) for part in path) else f"[{dotted(path)}], or "
        return f"{given}; write {section}{{ key = value }}"
    if kind in _LISTS:
        table = isinstance(value, dict)
        given = "one table where a list of tables belongs" if table else "not a list"
        return f"{given}; write {f'[[{dotted(path)}]]' if table else 'it in square brackets'}"
    return "not accepted; see what is in the output of `paceline schema`"


def absent(key: str, places: list[Schema], root: Schema) -> str:
    """Say what belongs under the missing `key` of a table that `places` describe."""
    nodes = [place["properties"][key] for place in places if key in place.get("properties", {})]
    tags = [str(node["const"]) for node in nodes if "const" in node]
    if tags:
        return f"missing; write one of: {', '.join(tags)}"
    about = [
        f": {each['description']}"
        for node in nodes
        for each in (node, *alternatives(root, node))
        if "description" in each
    ]
    section = any("$ref" in node for node in nodes)
    return f"missing; add {f'[{key}]' if section else 'it'}{''.join(about[:1])}"


def unknown(path: Path, places: list[Schema], root: Schema) -> str:
    """Say which keys may stand where `path` ends, as `places` describe it, or where it belongs."""
    key = str(path[-1])
    keys = {name: None for place in places for name in place.get("properties", {})}
    sections = {name: alternatives(root, node) for name, node in root["properties"].items()}
    homes = [
        f"[{name}]"
        for name, nodes in sections.items()
        if name != path[0] and any(key in node.get("properties", {}) for node in nodes)
    ]
    moved = f"it belongs in {' or '.join(homes)}; " if homes else ""
    return f"unknown key; {moved}{nearest(key, keys, 'the keys here are')}"


def locate(error: ErrorDetails, table: Any) -> Path:
    """Return the path, in the user's table, of an error that pydantic located in its models.

    Pydantic's locations also name the members of unions, which the table does not have.
    """
    path: list[str | int] = []
    tagged = False  # whether this table's union member has been named already
    for part in _as_written(error["loc"], table):
        union = bool(path) and isinstance(table, dict) and not tagged
        tags = [table.get(key) for key in TAGS] if union else []
        if part in tags:
            tagged = True
        elif holds(table, part):
            path.append(part)
            table, tagged = table[part], False
    if error["type"] in (*MISSING, "refusal") and path[-1:] != [error["loc"][-1]]:
        path.append(error["loc"][-1])
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(str(error["ctx"]["discriminator"]).strip("'"))
    return tuple(path)


def _as_written(loc: Path, table: Any) -> Path:
    """Point at [optimizer] for what an algorithm has from there."""
    match loc:
        case ("algorithm", int(index), "lr" | "momentum" as key, *rest):
            if key not in table["algorithm"][index]:
                return ("optimizer", key, *rest)
    return loc


def acting(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where text or keys have characters that a terminal would act upon."""
    if isinstance(value, str) and CONTROL_CHARACTERS.search(value):
        yield path
    parts: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in parts:
        if isinstance(key, str) and CONTROL_CHARACTERS.search(key):
            yield (*path, key)
        else:
            yield from acting(each, (*path, key))


def holds(table: Any, part: str | int) -> bool:
    """Whether `table[part]` exists."""
    if isinstance(table, list):
        return isinstance(part, int) and 0 <= part < len(table)
    return isinstance(table, dict) and part in table


def get(table: Any, path: Path) -> Any:
    """Return the value at `path`, or None if there is none."""
    for part in path:
        if not holds(table, part):
            return None
        table = table[part]
    return table


def alternatives(root: Schema, node: Schema, value: Any = None) -> list[Schema]:
    """Follow references; of several alternatives return those whose constants `value` has."""
    if "$ref" in node:
        return alternatives(root, root["$defs"][node["$ref"].removeprefix("#/$defs/")], value)
    inner = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    nodes = [each for choice in inner for each in alternatives(root, choice, value)] or [node]
    return [each for each in nodes if _fits(each, value)] or nodes


def _fits(schema: Schema, value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    constants = {k: v["const"] for k, v in schema.get("properties", {}).items() if "const" in v}
    return all(value.get(key, each) == each for key, each in constants.items())


def describe(root: Schema, path: Path, table: Any) -> list[Schema]:
    """Return what the JSON Schema `root` says of the place `path` in the user's table."""
    nodes = alternatives(root, root, table)
    for part in path:
        table = table[part] if holds(table, part) else None
        under = "items" if isinstance(part, int) else "properties"
        inner = [node.get(under, {}) for node in nodes]
        if isinstance(part, str):
            inner = [each.get(part, {}) for each in inner]
        nodes = [each for child in inner for each in alternatives(root, child, table)]
    return nodes


def dotted(path: Path) -> str:
    """Write a path as users do: `cluster.group[0].compute.mean`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path)[1:]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else toml(name)


def show(value: Any) -> str:
    """Write a value as TOML does, cut where it gets long."""
    text = toml(value)
    return text if len(text) <= 80 else text[:77] + "..."


def toml(value: Any) -> str:
    """Write a value as TOML, in a line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str | bool):
        return visible(json.dumps(value, ensure_ascii=False))
    return str(value)
