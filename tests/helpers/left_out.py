"""How often intervals hold for programs that the model's error was learnt without."""

import math
from itertools import product

from paceline.simulator.results.prediction_interval import Spread, Unfitted
from paceline.simulator.scenario.overhead import Calibration
from paceline.validate.calibration.profile import network_kind
from paceline.validate.matrix.page import QUANTITIES
from tests.lab.evidence.model_error import family, learn, name

FREEDOM = Calibration.model_fields["replicates"].default - 1  # of the intervals in cells
KINDS = {
    "all": lambda cell: "",
    "network": lambda cell: cell["network"],
    "family": lambda cell: str(family(cell)),
    "program": lambda cell: cell["program"],
}


def holds(limits, value):
    """Return whether a value is within limits; None means no limit."""
    low, high = limits
    return (low is None or low <= value) and (high is None or value <= high)


def judged(cells):
    """Add to every cell the intervals that follow from other programs' errors.

    `left_out`, per quantity: `interval90` and `inside` for independent delays; `same`: whether the
    interval from the model's error alone contains the measured value, with the same delays.
    """
    results = []
    for cell in cells:
        kind = network_kind(cell["network"])
        others = [one for one in cells if network_kind(one["network"]) == kind]
        error = learn([other for other in others if name(other) != name(cell)])
        rows = {quantity: _judged(cell, quantity, error) for quantity in QUANTITIES}
        results.append(cell | {"left_out": rows})
    return results


def _judged(cell, quantity, model):
    row = {"interval90": None, "inside": None, "same": None}
    if model is None:
        return row
    apart, paired = cell["independent"][quantity], cell[quantity]
    stated, predicted, measured = (apart[key] for key in ("interval90", "predicted", "measured"))
    error = Unfitted(model, family(cell)).spreads(quantity)[1]
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


def coverage(cells):
    """Count the intervals of `judged` cells that contain the measured value.

    Rows are for all cells, and by network, family and program, as (what, which). They have (held,
    of) for every quantity, for `both`, and `same` with the same delays.
    """
    groups = {("all", ""): []}
    for what, cell in product(KINDS, (cell for cell in cells if cell["counted"])):
        groups.setdefault((what, KINDS[what](cell)), []).append(cell["left_out"])

    def held(members, quantities, key):
        values = [member[quantity][key] for member in members for quantity in quantities]
        return [values.count(True), len(values) - values.count(None)]

    return [
        {"what": what, "which": which}
        | {quantity: held(members, [quantity], "inside") for quantity in QUANTITIES}
        | {"both": held(members, QUANTITIES, "inside"), "same": held(members, QUANTITIES, "same")}
        for (what, which), members in groups.items()
    ]
