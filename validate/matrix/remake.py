"""Remake all that follows from a matrix's measurements, without measuring again.

    python -m paceline.validate.matrix.remake docs/evidence/validation/MACHINE.json

writes the page and the document beside it anew, and the table of the model's error that `calibrate`
puts into profiles.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from paceline.simulator.results import prediction_interval, store

from ..calibration import profile
from ..calibration.profile import Profile
from . import left_out, page
from .results import Matrix

HEAD = (
    "What predictions missed of programs that no run was fitted to, by kind of network: relative",
    "standard deviations, by family. Made by `python -m paceline.validate.matrix.remake` from",
)


def read(path: Path) -> Matrix:
    """Read the document of a matrix."""
    known = json.loads(path.read_text("utf-8"))
    keys = ("machine", "versions", "cells", "failed", "noise", "date")
    return Matrix(**{key: known[key] for key in keys})


def table(found: Matrix, source: str) -> Profile:
    """Learn the model's error for each kind of network, as the shipped file has it."""
    kinds = sorted({profile.network_kind(cell["network"]) for cell in found.cells})
    learnt = {
        kind: left_out.learn(
            [cell for cell in found.cells if profile.network_kind(cell["network"]) == kind], source
        )
        for kind in kinds
    }
    tables = {kind: each.model_dump() for kind, each in learnt.items() if each}
    return Profile(tables, head=(*HEAD, f"{source}."))


def main() -> None:
    """Remake the page of the document that is named, and the shipped table."""
    path = Path(sys.argv[1])
    found = read(path)
    page.write(found, path.parent, remade=f"{datetime.now(UTC):%Y-%m-%d}")
    store.write(prediction_interval.MODEL_ERROR, table(found, path.as_posix()).text().encode())


if __name__ == "__main__":
    main()
