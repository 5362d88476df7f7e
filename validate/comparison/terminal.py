"""Tables of a comparison for a terminal."""

from collections.abc import Callable

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results.run import TIMES
from paceline.simulator.results.statistics import human, number

from .quantities import EQUAL_STEPS, LOSS_TIMES, PACE, TARGET, Row
from .statistics import ComparisonStatistics


def comparison(result: ComparisonStatistics) -> list[Table]:
    """Tabulate pace and excess, error against time, and breakdown of time.

    Each algorithm has a line for the prediction and one for the measurement.
    """
    pair = f"predicted\n{result.basis}"
    times, sent, equal = (
        result.of(key, counted=False) for key in (TARGET, "bytes_per_step", EQUAL_STEPS)
    )
    losses = [result.of(f"loss_at_{name}", counted=False) for name in LOSS_TIMES]
    shares = {kind: result.of(f"{kind}_share", counted=False) for kind in TIMES}
    shares = {kind: rows for kind, rows in shares.items() if rows}
    target = [f"to loss {result.target:g}\n{pair}", "error\n%"] if times else []
    pace = headed(
        "algorithm", f"s/step\n{pair}", "error\n%", f"excess\n{pair}", "its error\n%",
        "explained by",
    )  # fmt: skip
    loss = headed("algorithm", *target, "loss: error % at\n1/4, 1/2, 3/4, end",
                  "after as\nmany steps")  # fmt: skip
    spent = headed("algorithm", f"{'/'.join(shares)} %\n{pair}", f"bytes/step\n{pair}", "error\n%")
    for label, row in result.of(PACE, counted=False).items():
        style, goal, beyond = (
            None if row["counted"] else "dim",
            times.get(label),
            result.excess[label],
        )
        pace.add_row(
            f"{label}\nnot counted" if label in result.not_counted else label,
            _pair(row, human),
            _error(row),
            f"{_signed(beyond['predicted'], None)}\n{_signed(beyond['measured'], beyond['share'])}",
            "-" if beyond["error"] is None else f"{100 * beyond['error']:+z.0f}",
            result.attribution[label]["to_blame"],
            style=style,
        )
        loss.add_row(
            label,
            *([_pair(goal, human), _error(goal)] if goal else []),
            ", ".join(_error(rows.get(label)) for rows in losses),
            _error(equal.get(label)),
            style=style,
        )
        parts = [_pair(rows.get(label), lambda share: f"{100 * share:z.0f}").split("\n")
                 for rows in shares.values()]  # fmt: skip
        spent.add_row(
            label,
            "\n".join(map("/".join, zip(*parts, strict=True))),
            _pair(sent.get(label), number),
            _error(sent.get(label)),
            style=style,
        )
    return [pace, *([loss] if times or equal else []), spent]


def _pair(row: Row | None, say: Callable[[float], str]) -> str:
    values = [row[side] if row else None for side in ("predicted", "measured")]
    return "\n".join("-" if value is None else say(value) for value in values)


def _error(row: Row | None) -> str:
    """Format an error in percent, in brackets if it is within noise."""
    if row is None or row["error"] is None:
        return "-"
    text = f"{100 * row['error']:+z.1f}"
    return f"({text})" if row["within_noise"] else text


def _signed(seconds: float | None, share: float | None) -> str:
    if seconds is None:
        return "-"
    if not seconds:
        return "0"
    percent = "" if share is None else f" ({100 * share:+z.1f} %)"
    return f"{'-' if seconds < 0 else ''}{human(abs(seconds))}{percent}"
