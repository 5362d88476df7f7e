"""Read a paper: NAME.toml states its claims, NAME.py measures them, NAME_figures.py redraws.

A `[[claim]]` has the fields of `Claim`; `measure` is a function, called with the arguments `of`,
and `assumptions` are names of `[assumption]` tables. `like` names a `[like]` table with fields that
several claims share. `each` lists rows: it makes a claim for every row, whose keys fill the
{braces} in texts, or replace fields of those names; a row that names some of `[rows]` stands for
each of them, whose keys come on top of its own. `[shown]`: the paper's figures and tables, as
`Paper` has them.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .claim import Assumption, Claim, Kind, Paper

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
        shown=found["shown"],
        claims=tuple(_claims(found, import_module(f"{__package__}.{name}"))),
        figures={
            each["name"]: (each["caption"], _bound(figures, each["draw"], each.get("of", {})))
            for each in found["figure"]
        },
    )


def _claims(found: Table, measures: Any) -> Iterator[Claim]:
    for written in found["claim"]:
        table = found.get("like", {}).get(written.get("like"), {}) | written
        for row in _rows(found, table.get("each", [{}])):
            claim = {key: each for key, each in (table | row).items() if key in FIELDS}
            claim = _filled(claim, row)
            assumed = [
                found["assumption"][each] if isinstance(each, str) else each
                for each in claim.pop("assumptions", ())
            ]
            yield Claim(
                kind=Kind(claim.pop("kind")),
                measure=_bound(measures, claim.pop("measure"), claim.pop("of", {})),
                assumptions=tuple(Assumption(each["what"], (*each["sets"],)) for each in assumed),
                **claim,
            )


def _rows(found: Table, each: Iterable[Table]) -> Iterator[Table]:
    for row in each:
        inner = found["rows"][row["rows"]] if "rows" in row else [{}]
        yield from ({**row, **own} for own in inner)


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
