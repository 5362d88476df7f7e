"""Region tables: CSV of measured latencies and bandwidths, `network.regions`."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from ..distributions.parametric import Constant
from ..inputs import untrusted
from ..inputs.units import to_si
from .table import from_file

HEADER = ["from", "to", "latency", "bandwidth"]


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


def read(path: Path) -> RegionTable:
    """Read a table: a header line, then from, to, latency one way and, if measured, bandwidth.

    Values have units. Blank lines and # comments are skipped. Raises ValueError naming the line.
    """
    with untrusted.refused(path, "name a CSV file of regions", error=ValueError):
        lines = untrusted.text(path).splitlines()
    rows: dict[tuple[str, str], RegionPair] = {}
    header: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = [field.strip() for field in next(csv.reader([line.partition("#")[0]]), [])]
            if header and any(fields):
                _add(rows, fields, header)
            elif any(fields) and fields not in (HEADER, HEADER[:3]):
                wanted = "from,to,latency or from,to,latency,bandwidth"
                raise ValueError(f"not the header; write {wanted}")
            header = header or fields
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        except csv.Error as error:
            raise ValueError(f"{path}, line {number}: {error}; write shorter names") from None
    if not rows:
        raise ValueError(f"{path} holds no regions; write lines such as tokyo,oregon,48.5 ms")
    return RegionTable(str(path), rows)


def _add(rows: dict[tuple[str, str], RegionPair], fields: list[str], header: list[str]) -> None:
    if len(fields) != len(header):
        raise ValueError(f"{len(fields)} values under {len(header)} headings; write one for each")
    source, to, latency, bandwidth = (*fields, "")[:4]
    if not source or not to:
        raise ValueError("a region without a name; write one")
    rate = to_si(bandwidth, "bandwidth") if bandwidth else None
    if rate == 0:
        raise ValueError("a bandwidth of zero; write one above zero")
    if (source, to) in rows:
        raise ValueError(f"{source} to {to} is there already; keep one of the lines")
    seconds = Constant.model_construct(value=to_si(latency, "time"))
    rows[source, to] = RegionPair(seconds, rate)


_read, _schema = from_file(read, "clouds.csv")
TableOf = Annotated[RegionTable, _read, _schema]
