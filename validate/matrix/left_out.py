"""What predictions of the matrix miss, learnt as the model's error, each program left out in turn.

The error is that of predictions with the same delays as the measurement, so that no chance of the
draws is in it. A program of the matrix is one value: its mean square over all conditions.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from paceline.simulator.programs import catalogue
from paceline.simulator.results.prediction_interval import Spread, Unfitted
from paceline.simulator.scenario.overhead import Calibration, ModelError

from ..calibration.profile import network_kind, rounded
from ..comparison.quantities import PACE, TARGET
from .cells import Cell

QUANTITIES = (PACE, TARGET)
WEIGHT = 3  # programs that all families together count as, beside those of a family itself
FREEDOM = Calibration.model_fields["replicates"].default - 1  # of the intervals in cells

Row = dict[str, Any]


def name(cell: Cell) -> str:
    """Return the program's name, of which a cell may be one of several settings."""
    return str(cell["program"]).split()[0]


def family(cell: Cell) -> str | None:
    """Return the program's family, None if it is not in the catalogue."""
    program = catalogue().get(name(cell))
    return program.family if program else None


def learn(cells: Sequence[Cell], source: str = "") -> ModelError | None:
    """Learn the model's error from cells of one kind of network; None from fewer than two programs.

    A family's mean square is that of its programs, and `WEIGHT` times that of all: few programs
    say little.
    """
    errors: Row = {}
    counts = []
    for quantity in QUANTITIES:
        squares: dict[str, list[float]] = defaultdict(list)
        families = {}
        for cell in (each for each in cells if each["counted"]):
            predicted, measured = (cell[quantity][key] for key in ("predicted", "measured"))
            if predicted and measured:
                squares[name(cell)].append(math.log(measured / predicted) ** 2)
                families[name(cell)] = family(cell)
        if len(squares) < 2:
            continue
        means = {key: sum(each) / len(each) for key, each in squares.items()}
        whole = sum(means.values()) / len(means)
        errors[quantity] = {}
        for each in sorted({*filter(None, families.values())}):
            own = [mean for key, mean in means.items() if families[key] == each]
            mean = (sum(own) + WEIGHT * whole) / (len(own) + WEIGHT)
            errors[quantity][each] = rounded(math.sqrt(mean))
        counts.append(len(means))
    return ModelError(programs=min(counts), source=source, **errors) if errors else None


def judged(cells: Sequence[Cell]) -> list[Cell]:
    """Add to each cell the intervals of its program from the errors of all other programs.

    `left_out`, of each quantity: `interval90` and `inside` for independent delays; `same`: whether
    the model's error alone holds the measured value, with the same delays.
    """
    found = []
    for cell in cells:
        others = [
            each
            for each in cells
            if network_kind(each["network"]) == network_kind(cell["network"])
            and name(each) != name(cell)
        ]
        error = learn(others)
        model = Unfitted(error, family(cell)) if error else None
        rows = {quantity: _judged(cell, quantity, model) for quantity in QUANTITIES}
        found.append(cell | {"left_out": rows})
    return found


def _judged(cell: Cell, quantity: str, model: Unfitted | None) -> Row:
    row: Row = {"interval90": None, "inside": None, "same": None}
    if model is None:
        return row
    apart, paired = cell["independent"][quantity], cell[quantity]
    stated, predicted, measured = (apart[key] for key in ("interval90", "predicted", "measured"))
    error = model.spread(quantity)
    if stated and stated[0] and predicted and measured:
        (low, high), half = stated, Spread(1.0, FREEDOM).within()
        chance = Spread((math.log(predicted / low) / half) ** 2, FREEDOM)
        wide = (chance + error).within()
        above = None if high is None else predicted * math.exp(wide)
        row["interval90"] = [predicted * math.exp(-wide), above]
        row["inside"] = row["interval90"][0] <= measured and (above is None or measured <= above)
    if paired["predicted"] and paired["measured"]:
        row["same"] = abs(math.log(paired["measured"] / paired["predicted"])) <= error.within()
    return row


def coverage(cells: Sequence[Cell]) -> list[Row]:
    """Count, over `judged` cells that count, the intervals that hold the measured value.

    A row for all, each kind of network, each family, each of both, and each program, as (what,
    which); with (held, of) for each quantity, for `both`, and `same` with the same delays.
    """
    counted = [cell for cell in cells if cell["counted"]]
    groups: dict[tuple[str, str], list[Cell]] = {("all", ""): counted}
    kinds: dict[str, Callable[[Cell], str]] = {
        "network": lambda cell: cell["network"],
        "family": lambda cell: str(family(cell)),
        "family and network": lambda cell: f"{family(cell)}, {cell['network']}",
        "program": lambda cell: cell["program"],
    }
    for what, of in kinds.items():
        for cell in counted:
            groups.setdefault((what, of(cell)), []).append(cell)
    rows = []
    for (what, which), own in groups.items():
        row: Row = {"what": what, "which": which}
        for quantity in QUANTITIES:
            row[quantity] = _held(own, [quantity], "inside")
        row["both"] = _held(own, QUANTITIES, "inside")
        row["same"] = _held(own, QUANTITIES, "same")
        rows.append(row)
    return rows


def _held(cells: Sequence[Cell], quantities: Sequence[str], key: str) -> list[int]:
    known = [cell["left_out"][quantity][key] for cell in cells for quantity in quantities]
    return [sum(each is True for each in known), sum(each is not None for each in known)]
