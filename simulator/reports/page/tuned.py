"""The sections of a search: its ranking, and the cost of being wrong about an input."""

from collections.abc import Sequence

from paceline.simulator.reports.page import parts
from paceline.simulator.reports.page.reading import FoundRun
from paceline.simulator.reports.page.tune_verdict import (
    Row,
    Say,
    good,
    picked,
    says,
    unit,
    world_name,
)
from paceline.simulator.results import wording
from paceline.simulator.results.intervals import stated
from paceline.simulator.results.pick import decided
from paceline.simulator.results.statistics import time_unit
from paceline.simulator.results.usage import few
from paceline.simulator.studies.tune.costs import cost, notes

SHOWN = 20  # configurations in the figure and the first table; the others are folded
FOLDED = 300


def ranking(found: FoundRun, place: int) -> parts.PageSection:
    """Draw and tabulate the ranking."""
    tune = found.tune
    assert tune is not None
    say, rows = says(tune), tune["ranking"]
    pick, figure = picked(tune), _figure(tune, place)
    lead = "Filled: the best, and all not known to be worse. Bars: 95 % over seeds."
    heading = (
        f"The best of {len(rows)} configurations is known"
        if decided(pick)
        else f"{len(alternatives(tune))} of {few(len(rows), 'configuration', 'configurations')} "
        "may be the best"
    )
    return parts.PageSection(f"tune-{place}", heading, lead, [figure], _tables(tune, say))


def _figure(tune: Row, place: int) -> parts.Figure:
    rows = tune["ranking"]
    good = alternatives(tune)
    shown = [row for row in rows[:SHOWN] if row["value"] is not None][::-1]
    worst = max((row["value"] for row in shown), default=1.0)
    in_time = tune["objective"] == "time-to-loss"
    scale, name = time_unit(worst) if in_time else (1.0, "")
    data = [
        _dots([row for row in shown if (row["label"] in good) == alike], scale, name, alike)
        for alike in (True, False)
    ]
    most = max((edge for row in shown for edge in stated(row, "value").span), default=1.0)
    title = f"{tune['measure']} ({name})" if name else tune["measure"]
    layout: parts.Json = {
        "xaxis": {
            "title": {"text": parts.literal(title)},
            "range": [0, 1.05 * min(most, 2 * worst) / scale],
        },
        "yaxis": parts.categories(row["label"] for row in shown),
    }
    says = f"{tune['measure']} of the best {len(shown)} configurations with their intervals"
    return parts.Figure(f"ranking-{place}", says, data, layout, height=90 + 24 * len(shown))


def _dots(rows: Sequence[Row], scale: float, unit: str, filled: bool) -> parts.Json:
    """Draw values with their intervals."""
    found = [stated(row, "value") for row in rows]
    colour = "--c0" if filled else "--c1"
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [each.value / scale for each in found],
        "y": [parts.literal(row["label"]) for row in rows],
        "error_x": parts.error_bars(found, scale, thickness=1.2, width=0, color=colour),
        "marker": {"color": colour, "symbol": "circle" if filled else "circle-open", "size": 9},
        "hovertemplate": f"%{{y}}: %{{x:.3g}} {unit}<extra></extra>",
    }


def alternatives(tune: Row) -> set[str]:
    """Return the labels of the best and of all that are not known to be worse."""
    pick = picked(tune)
    return {tune["ranking"][0]["label"], *pick.get("alternatives", pick["ties"])}


def _tables(tune: Row, say: Say) -> list[parts.PageTable]:
    def value(row: Row) -> str:
        if row["value"] is not None:
            return say(row["value"])
        return f"above {say(row['at_least'])}" if row["at_least"] else "not reached"

    best, pick = tune["ranking"][0]["label"], picked(tune)
    apart = pick.get("not_separated", pick["ties"])
    ties = {pick["label"], *pick["ties"]}.difference(apart)

    def verdict(row: Row) -> str:
        if row["label"] == best:
            return "best"
        said = "not separated" if row["label"] in apart else ""
        said = "equivalent" if row["label"] in ties else said
        return said or ("given up early" if row["stopped"] else "")

    columns = ("configuration", "verdict", tune["measure"], "95 %", "reached")
    rows = [
        (
            parts.Cell(row["label"], strong=row["label"] == pick["label"]),
            verdict(row),
            value(row),
            wording.qualified(stated(row, "value"), unit(tune)),
            f"{row['reached']} of {row['seeds']}",
        )
        for row in tune["ranking"]
    ]
    caption = "Configurations, best first"
    return parts.folded(caption, columns, rows, texts=2, shown=SHOWN, most=FOLDED)


def sensitivity(found: FoundRun, place: int) -> parts.PageSection | None:
    """Tabulate what being wrong about an input costs each candidate."""
    tune = found.tune
    assert tune is not None
    if not tune["regret"]:
        return None
    worlds, pick = tune["regret"], picked(tune)["label"]
    most = max((_size(world, label) for world in worlds for label in world["values"]), default=0)
    heads = list(map(world_name, worlds))
    rows = [
        [label, *(_share(world, label, most or 1.0) for world in worlds)]
        for label in worlds[0]["values"]
    ]
    flipped = [
        head
        for head, world in zip(heads, worlds, strict=True)
        if world["input"] and not good(world, pick)
    ]
    heading = (
        f"Another configuration is better with {', '.join(flipped)}"
        if flipped
        else "No other is known to be better if latency, bandwidth or straggling is 20 % off"
    )
    lead = "What each candidate costs beyond the best of them if the scenario is wrong."
    return parts.PageSection(
        f"sensitivity-{place}",
        heading,
        " ".join([lead, *notes(worlds)]),
        tables=[parts.PageTable("Above the best of these", ("configuration", *heads), rows)],
    )


def _size(world: Row, label: str) -> float:
    """Return what is known of a candidate's cost, as a share; 0 where nothing is."""
    bound = world.get("regret_at_least", {}).get(label)
    return (world["regret"].get(label) if bound is None else bound) or 0.0


def _share(world: Row, label: str, most: float) -> parts.Cell:
    said = cost(world, label, " %")
    bar = 1.0 if said == "not reached" else _size(world, label) / most
    return parts.Cell(said, bar, strong=world["regret"].get(label) == 0)
