"""Learn the model's error from the validation matrix, for the table that the package has.

    python -m tests.lab.evidence.model_error docs/evidence/validation/MACHINE.json

remakes all results of a matrix's measurements without measuring again: the page beside the
document, and the table of the model's error that `calibrate` puts into profiles. The error is
learnt from missed predictions, with each program left out in turn. These predictions have the same
delays as the measurement, which excludes chance. Every program counts as one value: its mean square
over all conditions.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.simulator.programs import catalogue
from paceline.simulator.results import prediction_interval, store
from paceline.simulator.scenario.overhead import ModelError
from paceline.validate.calibration import profile
from paceline.validate.calibration.profile import Profile, rounded
from paceline.validate.matrix.page import QUANTITIES, Matrix, Row, write

WEIGHT = 3  # weight of the mean over all programs, in programs of a family
HEAD = (
    "Errors of predictions for programs without fitted runs, by kind of network: relative",
    "standard deviations, by family. Made by `python -m tests.lab.evidence.model_error` from",
)


def read(path: Path) -> Matrix:
    """Read the document of a matrix."""
    document = json.loads(path.read_text("utf-8"))
    return Matrix(**{key: document[key] for key in Matrix.__dataclass_fields__})


def name(cell: Row) -> str:
    """Return the program's name; a cell may have one of several settings."""
    return str(cell["program"]).split()[0]


def family(cell: Row) -> str | None:
    """Return the program's family, None if it is not in the catalogue."""
    program = catalogue().get(name(cell))
    return program.family if program else None


def learn(cells: Sequence[Row], source: str = "") -> ModelError | None:
    """Learn the model's error from cells of one kind of network.

    A family's mean square combines its programs' with `WEIGHT` times that of all programs, because
    few programs say little. None for fewer than two programs.
    """
    errors: Row = {}
    counts = []
    for quantity in QUANTITIES:
        squares: dict[tuple[str, str | None], list[float]] = {}  # by program and family
        for cell in (cell for cell in cells if cell["counted"]):
            predicted, measured = (cell[quantity][key] for key in ("predicted", "measured"))
            if predicted and measured:
                square = math.log(measured / predicted) ** 2
                squares.setdefault((name(cell), family(cell)), []).append(square)
        if len(squares) < 2:
            continue
        means = {key: sum(values) / len(values) for key, values in squares.items()}
        whole = sum(means.values()) / len(means)
        errors[quantity] = {}
        for kind in sorted({kind for _, kind in means if kind}):
            members = [mean for (_, other), mean in means.items() if other == kind]
            mean = (sum(members) + WEIGHT * whole) / (len(members) + WEIGHT)
            errors[quantity][kind] = rounded(math.sqrt(mean))
        counts.append(len(means))
    return ModelError(programs=min(counts), source=source, **errors) if errors else None


def model_error(matrix: Matrix, source: str) -> Profile:
    """Return the shipped table of the model's error, by kind of network."""
    by_kind: dict[str, list[Row]] = {}
    for cell in matrix.cells:
        by_kind.setdefault(profile.network_kind(cell["network"]), []).append(cell)
    learnt = {kind: learn(by_kind[kind], source) for kind in sorted(by_kind)}
    tables = {kind: error.model_dump() for kind, error in learnt.items() if error}
    return Profile(tables, head=(*HEAD, f"{source}."))


def main() -> None:
    """Remake the page of a document, and the shipped table."""
    path = Path(sys.argv[1])
    matrix = read(path)
    write(matrix, path.parent)
    table = model_error(matrix, path.as_posix()).text()
    store.write(prediction_interval.MODEL_ERROR, table.encode())


if __name__ == "__main__":
    main()
