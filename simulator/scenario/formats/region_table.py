"""Read region tables: CSV of measured latencies and bandwidths, `network.regions`."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from ...distributions.parametric import Constant
from ...inputs import untrusted
from ...inputs.units import to_si

HEADER = ("from", "to", "latency", "bandwidth")
Pair = tuple[str, str]


@dataclass(frozen=True)
class RegionPair:
    """From one region to another: one-way latency (seconds), bandwidth (bytes/s) if known."""

    latency: Constant
    bandwidth: float | None


@dataclass(frozen=True)
class RegionTable:
    """Rows of a file by (from, to); a missing direction equals the other one."""

    file: str
    rows: dict[Pair, RegionPair]

    def row(self, source: str, to: str) -> RegionPair | None:
        """Return the row from `source` to `to`, or of the other direction, if there is one."""
        return self.rows.get((source, to)) or self.rows.get((to, source))

    @property
    def regions(self) -> list[str]:
        """Every region that the table names, in order of appearance."""
        return list(dict.fromkeys(name for pair in self.rows for name in pair))


def read(path: Path) -> RegionTable:
    """Read a table: a header line, then from, to, latency one way and, if known, bandwidth.

    Values have units. Blank lines and # comments are skipped. Raises ValueError naming the line.
    """
    with untrusted.refused(path, "name a CSV file of regions", error=ValueError):
        text = untrusted.text(path)
    rows: dict[Pair, RegionPair] = {}
    header: list[str] | None = None
    for number, fields in _fields(text):
        if header is None:
            header = fields
            if header not in (list(HEADER), list(HEADER[:3])):
                raise ValueError(
                    f"{path}, line {number}: not the header; write from,to,latency or "
                    "from,to,latency,bandwidth"
                )
            continue
        try:
            pair, row = _row(fields, header)
            if pair in rows:
                raise ValueError(f"{pair[0]} to {pair[1]} is there already; keep one of the lines")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        rows[pair] = row
    if not rows:
        raise ValueError(f"{path} holds no regions; write lines such as tokyo,oregon,48.5 ms")
    return RegionTable(str(path), rows)


def _fields(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            fields = [field.strip() for field in next(csv.reader([line.partition("#")[0]]), [])]
        except csv.Error as error:
            raise ValueError(f"line {number}: {error}; write shorter names") from None
        if any(fields):
            yield number, fields


def _row(fields: list[str], header: list[str]) -> tuple[Pair, RegionPair]:
    if len(fields) != len(header):
        raise ValueError(f"{len(fields)} values under {len(header)} headings; write one for each")
    named = dict(zip(header, fields, strict=True))
    if not named["from"] or not named["to"]:
        raise ValueError("a region without a name; write one")
    bandwidth = named.get("bandwidth", "")
    rate = to_si(bandwidth, "bandwidth") if bandwidth else None
    if rate == 0:
        raise ValueError("a bandwidth of zero; write one above zero")
    seconds = to_si(named["latency"], "time")
    latency = Constant.model_construct(value=seconds)
    return (named["from"], named["to"]), RegionPair(latency, rate)


def _load(value: Any, info: ValidationInfo) -> RegionTable:
    if not isinstance(value, str):
        raise ValueError('not the name of a file; write one such as "clouds.csv"')
    return read(Path((info.context or {}).get("folder", "."), value))


TableOf = Annotated[
    RegionTable,
    PlainValidator(_load),
    WithJsonSchema({"type": "string", "examples": ["clouds.csv"]}),
]
"""A table as a scenario names it: a file, relative to the scenario's folder."""
