"""The generated pages of the reference: every key of a scenario, every command.

`docs/build.py` writes reference/scenario.md, so that it can be read in the repository.
docs/hooks.py calls `commands()` when the site is built.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import typer.main

import paceline.command_line
from paceline.simulator.inputs.messages import toml
from paceline.simulator.inputs.units import EXAMPLES
from paceline.simulator.scenario.scenario import json_schema

Schema = Mapping[str, Any]
TAGS = ("kind", "dist")
ELSEWHERE = {
    "algorithm": "Each algorithm has its own parameters, which [its page](../programs/README.md) "
    "lists. Rates, momenta and codecs are [pieces](../pieces.md).",
    "tune": "A table of parameters for each algorithm: `local-sgd = { lr = [1.0, 2.0], "
    "tau = { low = 2, high = 32, log = true } }`, and these keys:",
}
WEIGHT = {"description": "share of the times drawn from this part, relative to the other weights"}
TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false"}


def commands() -> str:
    """Return the help of every command."""
    group: Any = typer.main.get_command(paceline.command_line.app)
    parts = ["# Command line", "The output of `paceline COMMAND --help`."]
    with group.make_context("paceline", [], resilient_parsing=True, terminal_width=80) as context:
        parts.append(_block(group.get_help(context)))
        for name, command in group.commands.items():
            with command.make_context(name, [], context, resilient_parsing=True) as inner:
                parts += [f"## {name}", _block(command.get_help(inner))]
    return "\n\n".join(parts)


def _block(text: str) -> str:
    return f"```text\n{text}\n```"


def scenario() -> str:
    """Return every key of a scenario with its type, default and description."""
    schema = json_schema()
    parts = [
        "# Scenario keys",
        "From the schema that `paceline list schema` prints. Write units in a *time*, "
        '`"300 ms"`, a *size*, `"64 kB"`, a *bandwidth*, `"34 Mbit/s"`, '
        'and a *computing speed*, `"312 TFLOP/s"`. '
        "Other numbers have the unit in their description, or none.",
    ]
    for heading, table in sections(schema):
        head = [f"## {heading}", _first(table.get("description", ""))]
        own = table.get("properties", {})
        if "tune" in heading:  # programs' parameters are on their own pages
            own = {key: node for key, node in own.items() if "additionalProperties" not in node}
        keys = _table({**table, "properties": own}, schema["$defs"])
        parts += [*head, ELSEWHERE.get(heading.strip("[]`"), ""), keys]
    return "\n\n".join(filter(None, parts))


def sections(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield every table of a scenario with its heading."""
    tables, visited = schema["$defs"], set()

    def under(path: str, table: Schema) -> Iterator[tuple[str, Schema]]:
        for key, about in table.get("properties", {}).items():
            inner = f"{path}.{key}" if path else key
            if key in ELSEWHERE:
                yield f"`[[{key}]]`" if about.get("items") else f"`[{key}]`", about
                continue
            for name in _references(about):
                if name in visited or _is_law(tables[name]):
                    continue
                visited.add(name)
                tag = _tag(tables[name])
                brackets = f"[[{inner}]]" if "items" in about else f"[{inner}]"
                yield f"`{brackets}`{f', {tag}' if tag else ''}", tables[name]
                yield from under(inner, tables[name])

    yield "At the top", {**schema, "description": "Keys outside any table, and the tables."}
    yield from under("", schema)
    laws = {name: table for name, table in tables.items() if _is_law(table)}
    for name, law in laws.items():
        visited.add(name)
        yield f"A distribution: {_tag(law)}", law
        for inner in {*_references(law)} - laws.keys():
            weight = tables[inner]["oneOf"][0]["properties"]["weight"]
            part = {"properties": {"weight": weight | WEIGHT}, "required": ["weight"]}
            yield f"Of a distribution: {inner.lower()}", tables[inner] | part


def _table(table: Schema, tables: Schema) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, about in table.get("properties", {}).items():
        default = "required" if key in table.get("required", ()) else _default(about)
        cells = (f"`{key}`", _type(about, tables), default, _meaning(key, about, tables))
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _meaning(key: str, about: Schema, tables: Schema) -> str:
    if key in TAGS and "const" in about:
        return "selects this table"
    referred = tables.get(next(_references(about), ""), {}) if "$ref" in about else {}
    text: str = about.get("description") or referred.get("description", "")
    return _first(text)


def _first(text: str) -> str:
    return text.partition("\n\n")[0].replace("\n", " ")


def _default(about: Schema) -> str:
    value = about.get("default")
    value = round(value, 4) if isinstance(value, float) else value
    return "" if value in (None, [], {}, "") else f"`{toml(value)}`"


def _type(about: Schema, tables: Schema) -> str:
    """Describe the allowed values: kinds, choices, bounds."""
    kind = next((k for k, shown in EXAMPLES.items() if about.get("examples") == shown), None)
    if kind:
        return kind
    if "enum" in about or "const" in about:
        return ", ".join(f"`{toml(value)}`" for value in about.get("enum", [about.get("const")]))
    parts = about.get("anyOf") or about.get("oneOf")
    if parts:
        return " or ".join(dict.fromkeys(_type(part, tables) for part in parts))
    if about.get("type") == "array":
        inner = about.get("items") or about["prefixItems"][0]
        kind, *bounds = re.split("(?= from | above )", _type(inner, tables), maxsplit=1)
        plural = "" if kind == "text" or kind.endswith("`") else "s"
        return f"list of {kind}{plural}{''.join(bounds)}"
    if "$ref" in about or about.get("type") == "object":
        name = about.get("$ref", "").removeprefix("#/$defs/")
        return "distribution" if _is_law(tables.get(name, {})) else "table"
    return TYPES.get(about.get("type", ""), "text") + _bounds(about)


def _bounds(about: Schema) -> str:
    keys = {"from": "minimum", "above": "exclusiveMinimum", "to": "maximum"}
    limits = {word: about.get(key) for word, key in keys.items()}
    limits["below"] = about.get("exclusiveMaximum")
    return "".join(
        f" {word} {limit:,}"
        for word, limit in limits.items()
        if limit is not None and not (word == "to" and limit >= 10**9)
    )


def _references(about: Any) -> Iterator[str]:
    """Yield the names of a key's tables, without tables inside them."""
    if isinstance(about, dict):
        if isinstance(about.get("$ref"), str):
            yield about["$ref"].removeprefix("#/$defs/")
        for key, inner in about.items():
            if key in ("anyOf", "oneOf", "items", "additionalProperties", "properties"):
                yield from _references(list(inner.values()) if key == "properties" else inner)
    elif isinstance(about, list):
        for inner in about:
            yield from _references(inner)


def _is_law(table: Schema) -> bool:
    return "dist" in table.get("properties", {})


def _tag(table: Schema) -> str:
    """Return the value of the key (`kind` or `dist`) that selects this table, as TOML."""
    tags = (table.get("properties", {}).get(key, {}).get("const") for key in TAGS)
    return next((f"`{tag}`" for tag in tags if tag), "")
