"""Read a paper: NAME.toml states its claims, NAME.py measures them, NAME_figures.py redraws.

A `[[claim]]` has the fields of `Claim`; `measure` is a function, called with the arguments `of`,
and `assumptions` are names of `[assumption]` tables. `kind` names a `[kind]` table with fields that
several claims share. `each` lists rows (or names some of `[rows]`): it makes a claim for every row,
whose keys fill the {braces} in texts, or replace fields of those names.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.simulator.studies.papers.claim import Assumption, Claim, Paper

FIELDS = {"of", *(field.name for field in fields(Claim))}

Table = Mapping[str, Any]


@cache
def document(name: str) -> dict[str, Any]:
    """Return the TOML document of a paper."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))


@cache
def read(name: str) -> Paper:
    """Return the paper of that name."""
    found = document(name)
    figures = import_module(f"{__package__}.{name}_figures")
    return Paper(
        name,
        **{key: found[key] for key in ("title", "source", "settings")},
        claims=tuple(_claims(found, import_module(f"{__package__}.{name}"))),
        figures={
            each["name"]: (each["caption"], _bound(figures, each["draw"], each.get("of", {})))
            for each in found["figure"]
        },
    )


def _claims(found: Table, measures: Any) -> Iterator[Claim]:
    for written in found["claim"]:
        table = found.get("kind", {}).get(written.get("kind"), {}) | written
        rows = table.get("each", [{}])
        for row in found["rows"][rows] if isinstance(rows, str) else rows:
            claim = {key: each for key, each in (table | row).items() if key in FIELDS}
            claim = _filled(claim, row)
            assumed = [
                found["assumption"][each] if isinstance(each, str) else each
                for each in claim.pop("assumptions", ())
            ]
            yield Claim(
                measure=_bound(measures, claim.pop("measure"), claim.pop("of", {})),
                assumptions=tuple(Assumption(each["what"], (*each["sets"],)) for each in assumed),
                **claim,
            )


def _filled(value: Any, row: Table) -> Any:
    """Fill the keys of a row into texts, however deep; a text that is one key becomes its value."""
    if isinstance(value, dict):
        return {key: _filled(each, row) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, row) for each in value]
    if not isinstance(value, str) or not row:
        return value
    return row[value[1:-1]] if value[1:-1] in row else value.format_map(row)


def _bound(module: Any, function: str, arguments: Table) -> Any:
    return partial(getattr(module, function), **arguments)
