"""Make the terminal's table of a comparison."""

from rich.table import Table

from paceline.simulator.reports.terminal import headed
from paceline.simulator.results.statistics import human, number

from .quantities import EQUAL_STEPS, PACE, TARGET, Row
from .statistics import ComparisonStatistics


def comparison(result: ComparisonStatistics) -> Table:
    """Tabulate seconds per step, time to target, loss after equal steps, and causes of errors.

    A cell has the prediction, the measurement and the error, in brackets if it is within noise.
    """
    heads = {PACE: "per step", EQUAL_STEPS: "loss, equal steps"}
    if result.target is not None:
        heads[TARGET] = f"to loss {result.target:g}"
    shown = {key: result.of(key, counted=False) for key in heads}
    shown = {key: rows for key, rows in shown.items() if rows}
    sides = f"predicted\n{result.basis}\nerror"
    table = headed("algorithm", *(f"{heads[key]}\n{sides}" for key in shown), "explained by")
    for label, pace in shown[PACE].items():
        table.add_row(
            f"{label}\nnot counted" if label in result.not_counted else label,
            *(_cell(key, rows.get(label)) for key, rows in shown.items()),
            result.attribution[label]["to_blame"],
            style=None if pace["counted"] else "dim",
        )
    return table


def _cell(quantity: str, row: Row | None) -> str:
    say = number if quantity == EQUAL_STEPS else human
    values = [row[side] if row else None for side in ("predicted", "measured")]
    lines = ["-" if value is None else say(value) for value in values]
    if row and row["error"] is not None:
        error = f"{100 * row['error']:+z.1f} %"
        lines.append(f"({error})" if row["within_noise"] else error)
    return "\n".join(lines)
