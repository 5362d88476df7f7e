"""Fingerprints of logs and runs: a profile keeps those of what it was calibrated from."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.simulator.load.explain import value_at
from paceline.simulator.results import store


def fingerprints(paths: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of logs, and of the documents or telemetry of directories."""
    inside = (store.WHOLE, "rank-*.telemetry")
    found = []
    for path in paths:
        for each in [path] if path.is_file() else [p for name in inside for p in path.glob(name)]:
            with each.open("rb") as file:
                found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return sorted(found)


def fitted_to(table: Mapping[str, Any], path: Path) -> bool:
    """Tell whether the profile in a scenario's table was calibrated from what lies at `path`."""
    known = value_at(table, ("calibration", "fingerprints")) or ()
    return not {*known}.isdisjoint(fingerprints([path]))
