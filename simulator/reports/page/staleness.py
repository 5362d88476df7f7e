"""The section about staleness: its distribution, a line for each algorithm."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from paceline.simulator.reports.page.parts import Figure, Json, PageSection, literal
from paceline.simulator.reports.page.series import Series, legend, rounded
from paceline.simulator.results.run import STALENESS
from paceline.simulator.results.statistics import number


def section(lines: Sequence[Series]) -> PageSection | None:
    """Draw the distribution functions of staleness, a figure for each of its units."""
    delayed = [
        line for line in lines if (line.row.get("staleness") or {"max": 0})["max"] and line.runs
    ]
    if not delayed:
        return None
    figures = []
    units = dict.fromkeys(line.row["staleness"]["unit"] for line in delayed)
    for number_, unit in enumerate(units):
        own = [line for line in delayed if line.row["staleness"]["unit"] == unit]
        figures.append(_at_most(f"staleness-{number_}", own, unit))
    worst = max(delayed, key=lambda line: line.row["staleness"]["mean"])
    counted = worst.row["staleness"]
    heading = (
        f"{worst.name} is the stalest: {number(counted['mean'])} {counted['unit']} on average, "
        f"at most {counted['max']}"
    )
    return PageSection(
        "staleness",
        heading,
        "How old contributions are when the server or a worker uses them.",
        figures,
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
        "yaxis": {"title": {"text": "contributions at most this stale"}, "ticksuffix": " %"},
    }
    layout["xaxis"]["range"] = [0, most * 1.02 + 0.5]
    layout["yaxis"]["range"] = [0, 103]
    says = f"share of contributions up to each staleness, in {unit}"
    return Figure(identity, says, data, layout, {}, legend(lines), height=300)
