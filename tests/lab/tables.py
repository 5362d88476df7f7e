"""Tables of docs/evidence: files of comma-separated values, which the site draws."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table; return the link by which a page beside it shows it."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return f'[{path.name}]({path.name} "table")'
