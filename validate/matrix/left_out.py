"""What predictions of the matrix miss, learnt as the model's error, each program left out in turn.

The error is that of predictions with the same delays as the measurement, so that no chance of the
draws is in it. A program of the matrix is one value: its mean square over all conditions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from paceline.simulator.programs import catalogue
from paceline.simulator.results.prediction_interval import Spread, Unfitted
from paceline.simulator.scenario.overhead import Calibration, ModelError

from ..calibration.profile import network_kind, rounded
from ..comparison.quantities import PACE, TARGET

QUANTITIES = (PACE, TARGET)
WEIGHT = 3  # programs that the mean over all counts as, beside a family's own
FREEDOM = Calibration.model_fields["replicates"].default - 1  # of the intervals in cells

Row = dict[str, Any]


def name(cell: Row) -> str:
    """Return the program's name, of which a cell may be one of several settings."""
    return str(cell["program"]).split()[0]


def family(cell: Row) -> str | None:
    """Return the program's family, None if it is not in the catalogue."""
    program = catalogue().get(name(cell))
    return program.family if program else None


def holds(limits: Sequence[float | None], value: float) -> bool:
    """Return whether a value is within limits, of which None is none."""
    low, high = limits
    return (low is None or low <= value) and (high is None or value <= high)


def learn(cells: Sequence[Row], source: str = "") -> ModelError | None:
    """Learn the model's error from cells of one kind of network.

    A family's mean square is that of its programs, and `WEIGHT` times that of all: few programs
    say little. None from fewer than two programs.
    """
    errors: Row = {}
    counts = []
    for quantity in QUANTITIES:
        squares: dict[str, list[float]] = {}
        families = {}
        for cell in (cell for cell in cells if cell["counted"]):
            predicted, measured = (cell[quantity][key] for key in ("predicted", "measured"))
            if predicted and measured:
                squares.setdefault(name(cell), []).append(math.log(measured / predicted) ** 2)
                families[name(cell)] = family(cell)
        if len(squares) < 2:
            continue
        means = {key: sum(values) / len(values) for key, values in squares.items()}
        whole = sum(means.values()) / len(means)
        errors[quantity] = {}
        for kind in sorted({*filter(None, families.values())}):
            members = [mean for key, mean in means.items() if families[key] == kind]
            mean = (sum(members) + WEIGHT * whole) / (len(members) + WEIGHT)
            errors[quantity][kind] = rounded(math.sqrt(mean))
        counts.append(len(means))
    return ModelError(programs=min(counts), source=source, **errors) if errors else None


def judged(cells: Sequence[Row]) -> list[Row]:
    """Add to each cell the intervals that other programs' errors give.

    `left_out`, of each quantity: `interval90` and `inside` for independent delays; `same`: whether
    the model's error alone holds the measured value, with the same delays.
    """
    results = []
    for cell in cells:
        kind = network_kind(cell["network"])
        others = [one for one in cells if network_kind(one["network"]) == kind]
        error = learn([other for other in others if name(other) != name(cell)])
        model = Unfitted(error, family(cell)) if error else None
        rows = {quantity: _judged(cell, quantity, model) for quantity in QUANTITIES}
        results.append(cell | {"left_out": rows})
    return results


def _judged(cell: Row, quantity: str, model: Unfitted | None) -> Row:
    row: Row = {"interval90": None, "inside": None, "same": None}
    if model is None:
        return row
    apart, paired = cell["independent"][quantity], cell[quantity]
    stated, predicted, measured = (apart[key] for key in ("interval90", "predicted", "measured"))
    error = model.spreads(quantity)[1]
    if stated and stated[0] and predicted and measured:
        (low, high), half = stated, Spread(1.0, FREEDOM).within()
        chance = Spread((math.log(predicted / low) / half) ** 2, FREEDOM)
        wide = (chance + error).within()
        above = None if high is None else predicted * math.exp(wide)
        row["interval90"] = [predicted * math.exp(-wide), above]
        row["inside"] = holds(row["interval90"], measured)
    if paired["predicted"] and paired["measured"]:
        row["same"] = abs(math.log(paired["measured"] / paired["predicted"])) <= error.within()
    return row


KINDS: dict[str, Callable[[Row], str]] = {
    "all": lambda cell: "",
    "network": lambda cell: cell["network"],
    "family": lambda cell: str(family(cell)),
    "program": lambda cell: cell["program"],
}


def coverage(cells: Sequence[Row]) -> list[Row]:
    """Count the intervals of `judged` cells that hold the measured value.

    A row for all, each kind of network, each family and each program, as (what, which); with
    (held, of) for each quantity, for `both`, and `same` with the same delays.
    """
    groups: dict[tuple[str, str], list[Row]] = {("all", ""): []}
    for what, of in KINDS.items():
        for cell in (cell for cell in cells if cell["counted"]):
            groups.setdefault((what, of(cell)), []).append(cell["left_out"])

    def held(members: Sequence[Row], quantities: Sequence[str], key: str) -> list[int]:
        values = [member[quantity][key] for member in members for quantity in quantities]
        return [values.count(True), len(values) - values.count(None)]

    return [
        {"what": what, "which": which}
        | {quantity: held(members, [quantity], "inside") for quantity in QUANTITIES}
        | {"both": held(members, QUANTITIES, "inside"), "same": held(members, QUANTITIES, "same")}
        for (what, which), members in groups.items()
    ]
