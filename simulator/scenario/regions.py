"""Region tables: CSV of measured latencies and bandwidths, `network.regions`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ..distributions.parametric import Constant
from ..inputs import csv_columns
from ..inputs.units import to_si
from .table import from_file

LONGEST = 200  # characters of a region's name, which messages and figures show


class RegionPair(NamedTuple):
    """From one region to another: one-way latency, and bandwidth (bytes/s) if measured."""

    latency: Constant
    bandwidth: float | None


@dataclass(frozen=True)
class RegionTable:
    """Rows of a file by (from, to); a missing direction equals the other one."""

    file: str
    rows: dict[tuple[str, str], RegionPair]

    def row(self, source: str, to: str) -> RegionPair | None:
        """Return the row from `source` to `to`, or of the other direction, if there is one."""
        return self.rows.get((source, to)) or self.rows.get((to, source))

    @property
    def regions(self) -> list[str]:
        """Every region that the table names, in order of appearance."""
        return list(dict.fromkeys(name for pair in self.rows for name in pair))


def _name(text: str) -> str:
    if not 0 < len(text) <= LONGEST:
        raise ValueError(f"not a region; write a name of 1 to {LONGEST} characters")
    return text


def _latency(text: str) -> Constant:
    return Constant.model_construct(value=to_si(text, "time"))


def _rate(text: str) -> float | None:
    rate = to_si(text, "bandwidth") if text else None
    if rate == 0:
        raise ValueError("a bandwidth of zero; write one above zero")
    return rate


COLUMNS = {"from": _name, "to": _name, "latency": _latency, "bandwidth": _rate}


def read(path: Path) -> RegionTable:
    """Read a table: from, to, latency one way and, if measured, bandwidth, with units.

    Raises ValueError naming the line.
    """
    rows: dict[tuple[str, str], RegionPair] = {}

    def add(row: list[Any], line: int) -> None:
        source, to, *pair = row
        if (source, to) in rows:
            raise ValueError(f"{source} to {to} is there already; keep one of the lines")
        rows[source, to] = RegionPair(*pair)

    what, readers = ", ".join(COLUMNS), [*COLUMNS.values()]
    for _ in csv_columns.rows(path, readers, what, [*COLUMNS], add):
        pass
    return RegionTable(str(path), rows)


_read, _schema = from_file(read, "clouds.csv")
TableOf = Annotated[RegionTable, _read, _schema]
