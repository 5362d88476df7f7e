"""Attribute the difference between a measured run and its prediction to causes."""

from collections.abc import Mapping
from typing import Any

from paceline.simulator.results.statistics import human, number

Row = Mapping[str, Any]

NEGLIGIBLE = 0.01  # relative errors below this need no explanation
LOOSE = 0.05  # the same limit for a loss of unknown noise
MEANS = {
    "contention": "computing, and waiting in proportion to it, takes {}",
    "compute tail": "waiting for the slowest, beyond what computing explains, takes {}",
    "link": "communicating takes {}",
    "overlap": "communication that computing should hide takes {}",
    "failures": "downtime and lost work take {}",
}


def attribute(predicted: Row, measured: Row, pace: Row, loss: Row | None) -> dict[str, Any]:
    """Return the main cause of an algorithm's errors, and all causes' sizes.

    `predicted`, `measured`: the algorithm's summaries; `pace`, `loss`: the rows of its seconds per
    step and of its loss after equal steps. The causes' `seconds_per_step` (measured - predicted)
    add up to the whole difference. `sizes` are relative to the measured step or loss; the largest
    is the main cause, or "none" if the whole error is within noise or below 1 % (5 % for a loss of
    unknown noise).
    """
    seconds = causes(predicted, measured, pace)
    sizes: dict[str, float] = {}
    if _counts(pace, NEGLIGIBLE):
        sizes |= {cause: abs(extra) / pace["measured"] for cause, extra in seconds.items()}
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
    """Return the seconds per step that each cause adds; {} if unknown.

    If all compute times grow by a factor, waiting for the slowest worker grows by the same factor.
    That part is attributed to contention, and only the rest to the tail.
    """
    shares = predicted["breakdown"], measured["breakdown"]
    if pace["error"] is None or any(None in side.values() for side in shares):
        return {}
    was, now = (
        {kind: share * pace[name] for kind, share in side.items()}
        for name, side in zip(("predicted", "measured"), shares, strict=True)
    )
    slower = now["compute"] / was["compute"] if was["compute"] else 1.0
    waiting = slower * was["wait"]
    seconds = {
        "contention": now["compute"] - was["compute"] + waiting - was["wait"],
        "compute tail": now["wait"] - waiting,
        _hidden(measured): now["communicate"] - was["communicate"],
    }
    for kind in sorted({*was, *now} - {"compute", "wait", "communicate"}):
        seconds["failures"] = seconds.get("failures", 0.0) + now.get(kind, 0.0) - was.get(kind, 0.0)
    return seconds


def _hidden(measured: Row) -> str:
    """Name the cause of longer communication: "overlap" if averages are stale."""
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
        loss_text = f"loss {number(loss['measured'])} after the same steps"
        return f"error model: {loss_text}, predicted {number(loss['predicted'])}."
    extra = seconds[to_blame]
    apart = f"{human(abs(extra))} {'more' if extra > 0 else 'less'} per step than predicted"
    return f"{to_blame}: {MEANS[to_blame].format(apart)}, of {human(pace['measured'])} in all."
