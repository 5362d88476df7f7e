"""Who is to blame: what makes a measured run differ from its prediction."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.simulator.results.statistics import human, number

Row = Mapping[str, Any]

NEGLIGIBLE = 0.01  # relative errors below this are nobody's fault
LOOSE = 0.05  # those of a loss below this, where nothing tells what its noise is
MEANS = {
    "contention": "computing, and waiting in proportion to it, takes {}",
    "compute tail": "waiting for the slowest, beyond what computing explains, takes {}",
    "link": "communicating takes {}",
    "overlap": "communication that computing should hide takes {}",
    "failures": "being down, or computing in vain, takes {}",
}


def attribute(predicted: Row, measured: Row, pace: Row, loss: Row | None) -> dict[str, Any]:
    """Return what is `to_blame` for the errors of one algorithm, and the sizes of all causes.

    `predicted`, `measured`: the algorithm's summaries; `pace`, `loss`: the rows of its seconds per
    step and of its loss at equal steps. The causes' `seconds_per_step` (measured - predicted) add
    up to the whole difference. `sizes` are relative to the measured step, or loss; the largest is
    to blame, unless the whole error is within noise, or below 1 % (a loss's of unknown noise: 5 %).
    """
    seconds = causes(predicted, measured, pace)
    sizes: dict[str, float] = {}
    if _counts(pace, NEGLIGIBLE):
        sizes |= {cause: abs(each) / pace["measured"] for cause, each in seconds.items()}
    if loss is not None and _counts(loss, LOOSE if loss["within_noise"] is None else NEGLIGIBLE):
        sizes["error model"] = abs(loss["error"])
    to_blame = max(sizes, key=sizes.__getitem__) if sizes else "none"
    return {
        "to_blame": to_blame,
        "seconds_per_step": seconds,
        "loss_at_equal_steps": loss and {key: loss[key] for key in ("predicted", "measured")},
        "sizes": sizes,
        "sentence": _sentence(to_blame, seconds, pace, loss),
    }


def causes(predicted: Row, measured: Row, pace: Row) -> dict[str, float]:
    """Return the seconds per step that each cause adds to the prediction; none where unknown.

    Waiting for the slowest grows in proportion to the compute time where all of its distribution
    does; so much of it is contention's, and only the rest is the tail's.
    """
    shares = predicted["breakdown"], measured["breakdown"]
    if pace["error"] is None or any(None in each.values() for each in shares):
        return {}
    was, now = (
        {kind: share * pace[name] for kind, share in each.items()}
        for name, each in zip(("predicted", "measured"), shares, strict=True)
    )
    slower = now["compute"] / was["compute"] if was["compute"] else 1.0
    waiting = slower * was["wait"]
    found = {
        "contention": now["compute"] - was["compute"] + waiting - was["wait"],
        "compute tail": now["wait"] - waiting,
        _hidden(measured): now["communicate"] - was["communicate"],
    }
    for kind in sorted({*was, *now} - {"compute", "wait", "communicate"}):
        found["failures"] = found.get("failures", 0.0) + now.get(kind, 0.0) - was.get(kind, 0.0)
    return found


def _hidden(measured: Row) -> str:
    """Name what longer communication means: programs that act late on means overlap it."""
    stale = measured["staleness"]
    return "overlap" if stale and stale["unit"] == "steps" and stale["mean"] > 0 else "link"


def _counts(row: Row, floor: float) -> bool:
    error = row["error"]
    return error is not None and abs(error) >= floor and not row["within_noise"]


def _sentence(to_blame: str, seconds: Mapping[str, float], pace: Row, loss: Row | None) -> str:
    if to_blame == "none":
        return "none: the errors are within noise, or negligible."
    if to_blame == "error model":
        assert loss is not None
        said = f"loss {number(loss['measured'])} after the same steps"
        return f"error model: {said}, predicted {number(loss['predicted'])}."
    extra = seconds[to_blame]
    apart = f"{human(abs(extra))} {'more' if extra > 0 else 'less'} per step than predicted"
    return f"{to_blame}: {MEANS[to_blame].format(apart)}, of {human(pace['measured'])} in all."


def overall(found: Mapping[str, Row]) -> dict[str, Any]:
    """Return the cause that is to blame for most, of all algorithms together, by their `sizes`.

    `sizes` here: the mean over the algorithms, where a cause that is not to blame counts nothing.
    """
    blamed = {label: row for label, row in found.items() if row["to_blame"] != "none"}
    sizes: dict[str, float] = {}
    for row in blamed.values():
        cause = row["to_blame"]
        sizes[cause] = sizes.get(cause, 0.0) + row["sizes"][cause] / len(found)
    to_blame = max(sizes, key=sizes.__getitem__) if sizes else "none"
    who = [label for label, row in blamed.items() if row["to_blame"] == to_blame]
    if not who:
        return {"to_blame": to_blame, "sizes": sizes, "sentence": "Nobody is to blame."}
    typical = float(np.median([blamed[label]["sizes"][to_blame] for label in who]))
    of = "loss" if to_blame == "error model" else "step"
    sentence = (
        f"To blame: {to_blame}, for {', '.join(who)} ({100 * typical:.1f} % of a {of}"
        f"{', median' if len(who) > 1 else ''})."
    )
    return {"to_blame": to_blame, "sizes": sizes, "sentence": sentence}
