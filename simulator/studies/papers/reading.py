"""Read a paper: NAME.toml states its claims, and the `measures` that test them.

The measures run the scenarios of the same name under scenarios/.

A `[[claim]]` has the fields of `Claim`; `measure` names a `[measure]` table: a function (`how`, by
default the table's name) and its arguments, which `of` fills or adds to. `assumptions` are names of
`[assumption]` tables. `like` names a `[like]` table with fields that several claims share. `each`
lists rows, and makes a claim for every row. Its keys fill the {braces} in texts, or replace fields
of those names. A row that names some of `[rows]` stands for each of them, and adds their keys to
its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache, partial
from typing import Any

from ...errors import InputError
from ...inputs import untrusted
from ...inputs.messages import nearest
from . import measures
from .claim import Claim, Kind, Paper

FIELDS = {"of", *(field.name for field in fields(Claim))}
NAMES = ("adacomm", "dts", "hpsgd", "hybrid")
REAL = "real-data"  # all four on Fashion-MNIST, which only a request for it runs

Table = Mapping[str, Any]


@cache
def paper(name: str) -> Paper:
    """Return the paper of that name. Raises InputError."""
    if name not in (names := (*NAMES, REAL)):
        raise InputError(f"reproduce {name}: no such paper; {nearest(name, names, 'write one of')}")
    document = untrusted.packaged(__file__, f"{name}.toml")
    return Paper(
        name,
        **{key: document[key] for key in ("title", "source", "settings")},
        claims=tuple(_claims(document)),
        figures={row["name"]: row for row in document.get("figure", ())},
    )


def _claims(document: Table) -> Iterator[Claim]:
    for written in document["claim"]:
        table = document.get("like", {}).get(written.get("like"), {}) | written
        for row in _rows(document, table.get("each", [{}])):
            fields_ = {key: value for key, value in (table | row).items() if key in FIELDS}
            claim = _filled(fields_, row)
            named = claim.pop("assumptions", ())
            of = document.get("assumption", {})
            yield Claim(
                kind=Kind(claim.pop("kind")),
                measure=_measure(document, claim.pop("measure"), claim.pop("of", {})),
                assumptions=[of[one] if isinstance(one, str) else one for one in named],
                **claim,
            )


def _measure(document: Table, name: str, of: Table) -> Any:
    """Return the function of a measure, bound to its arguments but for the `Lab`."""
    defined = dict(document["measure"].get(name, {}))
    how = defined.pop("how", name)
    used = {key for key in of if f"{{{key}}}" in str(defined)}
    filled = _filled(defined, {**defined, **of})
    arguments = {key: value for key, value in {**filled, **of}.items() if key not in used}
    for key in ("table", "tables"):
        with suppress(KeyError):
            given = arguments[key]
            rows = document["rows"]
            arguments[key] = rows[given] if key == "table" else [rows[entry] for entry in given]
    arguments.pop("workers", None)  # fills an override
    return partial(getattr(measures, how), **arguments)


def _rows(document: Table, rows: Iterable[Table]) -> Iterator[Table]:
    for row in rows:
        inner = document["rows"][row["rows"]] if "rows" in row else [{}]
        yield from ({**row, **more} for more in inner)


def _filled(value: Any, row: Table) -> Any:
    """Fill the keys of a row into texts; a text that is only a key becomes its value."""
    if isinstance(value, dict):
        return {key: _filled(entry, row) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, row) for entry in value]
    if not isinstance(value, str) or not row:
        return value
    return row[value[1:-1]] if value[1:-1] in row else value.format_map(row)
