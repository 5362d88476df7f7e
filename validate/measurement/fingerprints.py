"""Fingerprints of logs and runs, by which a profile records its calibration data."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.simulator.inputs.messages import value_at
from paceline.simulator.results import store


def fingerprints(paths: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of logs, and of the documents of directories."""
    hashes = []
    for path in paths:
        with (path if path.is_file() else path / store.WHOLE).open("rb") as content:
            hashes.append(hashlib.file_digest(content, "sha256").hexdigest())
    return sorted(hashes)


def fitted_to(table: Mapping[str, Any], path: Path) -> bool:
    """Return whether a scenario's profile was calibrated from `path`."""
    stated = value_at(table, ("calibration", "fingerprints")) or ()
    return not {*stated}.isdisjoint(fingerprints([path]))
