"""The sections of a search: its ranking, and the cost of being wrong about an input."""

from collections.abc import Sequence

from paceline.simulator.reports.page import parts
from paceline.simulator.reports.page.reading import FoundRun
from paceline.simulator.reports.page.tune_verdict import Row, Say, says, unit, world_name
from paceline.simulator.results import wording
from paceline.simulator.results.intervals import stated
from paceline.simulator.results.statistics import time_unit

SHOWN = 20  # configurations in the figure and the first table; the others are folded
FOLDED = 300


def ranking(found: FoundRun, place: int) -> parts.PageSection:
    """Draw and tabulate the ranking."""
    tune = found.tune
    assert tune is not None
    say, rows = says(tune), tune["ranking"]
    ties = {row["label"] for row in tune["ties"]}
    figure = _figure(tune, place)
    lead = "Filled: the best, and its ties. Bars: 95 % over seeds."
    first = _table(tune, rows[:SHOWN], ties, say)
    rest = [_table(tune, rows[SHOWN:FOLDED], ties, say, f"{len(rows) - SHOWN} more")]
    count = len(tune["ties"])
    heading = (
        f"{count} of {len(rows) - 1} other configurations are not distinguishable from the best"
        if count
        else f"The best of {len(rows)} configurations stands alone"
    )
    return parts.PageSection(
        f"tune-{place}", heading, lead, [figure], [first, *(rest if len(rows) > SHOWN else [])]
    )


def _figure(tune: Row, place: int) -> parts.Figure:
    rows = tune["ranking"]
    good = {row["label"] for row in [rows[0], *tune["ties"]]}
    shown = [row for row in rows[:SHOWN] if row["value"] is not None][::-1]
    worst = max((row["value"] for row in shown), default=1.0)
    in_time = tune["objective"] == "time-to-loss"
    scale, name = time_unit(worst) if in_time else (1.0, "")
    data = [
        _dots([row for row in shown if (row["label"] in good) == alike], scale, name, alike)
        for alike in (True, False)
    ]
    most = max((edge for row in shown for edge in _ends(row)), default=1.0)
    title = f"{tune['measure']} ({name})" if name else tune["measure"]
    layout: parts.Json = {
        "xaxis": {
            "title": {"text": parts.literal(title)},
            "range": [0, 1.05 * min(most, 2 * worst) / scale],
        },
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": [parts.literal(row["label"]) for row in shown],
            "automargin": True,
        },
    }
    says = f"{tune['measure']} of the best {len(shown)} configurations with their intervals"
    return parts.Figure(f"ranking-{place}", says, data, layout, height=90 + 24 * len(shown))


def _ends(row: Row) -> tuple[float, float]:
    """Return the ends of a value's interval; without one, twice the value."""
    return stated(row, "value").interval or (row["value"], row["value"])


def _dots(rows: Sequence[Row], scale: float, unit: str, filled: bool) -> parts.Json:
    """Draw values with their intervals."""
    ends = [(row["value"], *_ends(row)) for row in rows]
    colour = "--c0" if filled else "--c1"
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [mean / scale for mean, _, _ in ends],
        "y": [parts.literal(row["label"]) for row in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(high - mean) / scale for mean, _, high in ends],
            "arrayminus": [(mean - low) / scale for mean, low, _ in ends],
            "thickness": 1.2,
            "width": 0,
            "color": colour,
        },
        "marker": {"color": colour, "symbol": "circle" if filled else "circle-open", "size": 9},
        "hovertemplate": f"%{{y}}: %{{x:.3g}} {unit}<extra></extra>",
    }


def _table(
    tune: Row, rows: Sequence[Row], ties: set[str], say: Say, folded: str = ""
) -> parts.PageTable:
    def value(row: Row) -> str:
        if row["value"] is not None:
            return say(row["value"])
        return f"above {say(row['at_least'])}" if row["at_least"] else "not reached"

    best = tune["ranking"][0]
    verdicts = {
        row["label"]: "best"
        if row["label"] == best["label"]
        else ("not known to be worse" if row["label"] in ties else "")
        or ("given up early" if row["stopped"] else "")
        for row in rows
    }
    return parts.PageTable(
        "Configurations, best first",
        ("configuration", "verdict", tune["measure"], "95 %", "reached"),
        [
            (
                parts.Cell(row["label"], strong=row["label"] == best["label"]),
                verdicts[row["label"]],
                value(row),
                wording.qualified(stated(row, "value"), unit(tune)),
                f"{row['reached']} of {row['seeds']}",
            )
            for row in rows
        ],
        texts=2,
        folded=folded,
    )


def sensitivity(found: FoundRun, place: int) -> parts.PageSection | None:
    """Tabulate what being wrong about an input costs each candidate."""
    tune = found.tune
    assert tune is not None
    if not tune["regret"]:
        return None
    worlds = tune["regret"]
    known = [v for world in worlds for v in world["regret"].values() if v is not None]
    most = max(known, default=0.0) or 1.0
    heads = list(map(world_name, worlds))
    rows = [
        [label, *(_share(world["regret"].get(label), most) for world in worlds)]
        for label in worlds[0]["values"]
    ]
    flipped = [
        head
        for head, world in zip(heads, worlds, strict=True)
        if world["input"] and world["regret"].get(tune["ranking"][0]["label"]) != 0
    ]
    heading = (
        f"Another configuration would be first with {', '.join(flipped)}"
        if flipped
        else "The pick stays first if latency, bandwidth or straggling is 20 % off"
    )
    return parts.PageSection(
        f"sensitivity-{place}",
        heading,
        "What each candidate costs beyond the best of them if the scenario is wrong.",
        tables=[parts.PageTable("Above the best of these", ("configuration", *heads), rows)],
    )


def _share(share: float | None, most: float) -> parts.Cell:
    if share is None:
        return parts.Cell("not reached", 1.0)
    return parts.Cell(parts.percent(share, 1), share / most, strong=share == 0)
