"""Write tables of docs/evidence as CSV files, which the site draws."""

import csv
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.simulator.studies.execution import cores


def write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table; return the link with which a page beside it shows the table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return f'[{path.name}]({path.name} "table")'


def machine(*names: str) -> str:
    """Describe the hardware, and the versions that affect speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line for line in lines if line.startswith("model name")).split(":")[1].strip()
    except (OSError, StopIteration):
        model = platform.machine()
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{cores()} cores ({model}) with python {platform.python_version()}, {versions}"
