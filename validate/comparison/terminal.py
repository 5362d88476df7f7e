"""Tables of a comparison for a terminal."""

from collections.abc import Callable

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results.run import TIMES
from paceline.simulator.results.statistics import human, number

from .quantities import EQUAL_STEPS, LOSS_TIMES, PACE, TARGET, Row
from .statistics import ComparisonStatistics


def comparison(result: ComparisonStatistics) -> list[Table]:
    """Tabulate pace and excess over nominal, error against time, and the breakdown of the time.

    Each algorithm has a line for the prediction and one for the measurement.
    """
    tables = [_pace(result)]
    if result.of(TARGET, counted=False) or result.of(EQUAL_STEPS, counted=False):
        tables.append(_loss(result))
    return [*tables, _spent(result)]


def _pace(result: ComparisonStatistics) -> Table:
    pair = f"predicted\n{result.basis}"
    table = headed(
        "algorithm",
        "s/step\n" + pair,
        "error\n%",
        "excess\n" + pair,
        "its error\n%",
        "explained by",
    )
    for label, row in result.of(PACE, counted=False).items():
        beyond = result.excess[label]
        table.add_row(
            f"{label}\nnot counted" if label in result.not_counted else label,
            _pair(row, human),
            _error(row),
            f"{_signed(beyond['predicted'], None)}\n{_signed(beyond['measured'], beyond['share'])}",
            "-" if beyond["error"] is None else f"{100 * beyond['error']:+z.0f}",
            result.attribution[label]["to_blame"],
            style=_style(row),
        )
    table.columns[-1].no_wrap = True
    return table


def _loss(result: ComparisonStatistics) -> Table:
    wanted = {name: result.of(f"loss_at_{name}", counted=False) for name in LOSS_TIMES}
    times = result.of(TARGET, counted=False)
    pair = f"predicted\n{result.basis}"
    heading = [f"to loss {result.target:g}\n{pair}", "error\n%"] if times else []
    table = headed(
        "algorithm", *heading, "loss: error % at\n1/4, 1/2, 3/4, end", "after as\nmany steps"
    )
    for label, pace in result.of(PACE, counted=False).items():
        goal = times.get(label)
        table.add_row(
            label,
            *([_pair(goal, human), _error(goal)] if goal else []),
            ", ".join(_error(found.get(label)) for found in wanted.values()),
            _error(result.of(EQUAL_STEPS, counted=False).get(label)),
            style=_style(pace),
        )
    return table


def _spent(result: ComparisonStatistics) -> Table:
    rows = {kind: result.of(f"{kind}_share", counted=False) for kind in TIMES}
    kinds = [kind for kind, found in rows.items() if found]
    pair = f"predicted\n{result.basis}"
    table = headed("algorithm", "/".join(kinds) + " %\n" + pair, "bytes/step\n" + pair, "error\n%")
    sent = result.of("bytes_per_step", counted=False)
    for label, pace in result.of(PACE, counted=False).items():
        shares = [
            "/".join(_share(rows[kind].get(label), world) for kind in kinds)
            for world in ("predicted", "measured")
        ]
        table.add_row(
            label,
            "\n".join(shares),
            _pair(sent.get(label), number),
            _error(sent.get(label)),
            style=_style(pace),
        )
    return table


def _style(row: Row) -> str | None:
    return None if row["counted"] else "dim"


def _pair(row: Row | None, say: Callable[[float], str]) -> str:
    if row is None:
        return "-\n-"
    return "\n".join("-" if row[w] is None else say(row[w]) for w in ("predicted", "measured"))


def _error(row: Row | None) -> str:
    """Format an error in percent, in brackets if it is within noise."""
    if row is None or row["error"] is None:
        return "-"
    said = f"{100 * row['error']:+z.1f}"
    return f"({said})" if row["within_noise"] else said


def _signed(seconds: float | None, share: float | None) -> str:
    if seconds is None:
        return "-"
    if not seconds:
        return "0"
    percent = "" if share is None else f" ({100 * share:+z.1f} %)"
    return f"{'-' if seconds < 0 else ''}{human(abs(seconds))}{percent}"


def _share(row: Row | None, world: str) -> str:
    return "-" if row is None or row[world] is None else f"{100 * row[world]:z.0f}"
