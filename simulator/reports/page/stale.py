"""How stale contributions were, a line for each algorithm."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from paceline.simulator.reports.page.lines import Series, legend, rounded
from paceline.simulator.reports.page.parts import Figure, Json, PageSection, literal
from paceline.simulator.results.run import STALENESS
from paceline.simulator.results.statistics import number


def staleness(lines: Sequence[Series]) -> PageSection | None:
    """How stale contributions were: the share of them that was at most so stale."""
    stale = [
        line for line in lines if (line.row.get("staleness") or {"max": 0})["max"] and line.runs
    ]
    if not stale:
        return None
    figures = []
    units = dict.fromkeys(line.row["staleness"]["unit"] for line in stale)
    for number_, unit in enumerate(units):
        own = [line for line in stale if line.row["staleness"]["unit"] == unit]
        figures.append(_at_most(f"staleness-{number_}", own, unit))
    worst = max(stale, key=lambda line: line.row["staleness"]["mean"])
    counted = worst.row["staleness"]
    heading = (
        f"{worst.name} is stalest: {number(counted['mean'])} {counted['unit']} on average, "
        f"at most {counted['max']}"
    )
    return PageSection(
        "staleness", heading, "How old contributions are when they are used.", figures
    )


def _at_most(identity: str, lines: Sequence[Series], unit: str) -> Figure:
    data = []
    for line in lines:
        shares = {int(k): v for k, v in line.row["staleness"]["distribution"].items()}
        ages = sorted(shares)
        up_to = [*accumulate(100 * shares[age] for age in ages)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [0, *ages, ages[-1] * 1.02 + 0.5],
                "y": [0 if ages[0] else up_to[0], *rounded(np.array(up_to), 4), 100],
                "line": {"shape": "hv", "color": line.colour, "dash": line.dash, "width": 2},
                "legendgroup": line.key,
                "name": literal(line.name),
                "hovertemplate": f"{literal(line.name)}: %{{y:.3~g}} at most %{{x}}<extra></extra>",
                "meta": "" if line.measured else "mean",
            }
        )
    most = max(int(k) for line in lines for k in line.row["staleness"]["distribution"])
    layout: Json = {
        "xaxis": {"title": {"text": f"staleness: {STALENESS.get(unit, unit)}"}},
        "yaxis": {"title": {"text": "contributions at most so stale"}, "ticksuffix": " %"},
    }
    layout["xaxis"]["range"] = [0, most * 1.02 + 0.5]
    layout["yaxis"]["range"] = [0, 103]
    says = f"share of contributions at most so stale, in {unit}"
    return Figure(identity, says, data, layout, {}, legend(lines), height=300)
