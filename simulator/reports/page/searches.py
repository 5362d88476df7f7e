"""The sections of a search: its ranking, what trades time for money, and what would change it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...results import consumption, wording
from ...results.intervals import USUAL, stated
from ...results.statistics import with_unit
from ...results.verdict import mark
from ...studies.tune import figures
from ...studies.tune.objective import PACES
from ...studies.tune.regret import cost, notes
from .parts import CHANGES, PageFigure, PageSection, PageTable
from .reading import FoundRun

SHOWN, FOLDED = 10, 300  # configurations in the first table, and with those that are folded
USED = ("days", "nights", "rounds", "cost")  # amounts in the ranking
Row = Mapping[str, Any]


def sections(found: FoundRun, place: int) -> list[PageSection | None]:
    """Return the sections of a search."""
    tune = found.tune
    assert tune is not None
    return [ranking(tune, place), sensitivity(tune, place), tradeoffs(tune, place)]


def ranking(tune: Row, place: int) -> PageSection:
    """Draw and tabulate the ranking."""
    chart, rows = figures.ranking(tune), tune["ranking"]
    label = f"{tune['measure']} of the best configurations with their intervals"
    drawn = PageFigure.all_of(f"ranking-{place}", label, chart)
    heading = f"{len(rows)} configuration{'s' * (len(rows) > 1)}"
    lead = f"{chart.caption.capitalize()}." if chart else ""
    return PageSection(f"tune-{place}", heading, lead, drawn, _table(tune))


def _table(tune: Row) -> list[PageTable]:
    """Return the ranking with each configuration's amounts."""
    verdict, unit = tune["verdict"], tune["unit"]
    missed = "beyond the cap" if tune["objective"] in PACES else "not reached"

    def value(row: Row) -> str:
        if row["value"] is not None:
            return wording.cell(stated(row, "value"), unit)
        return f"above {with_unit(row['at_least'], unit)}" if row["at_least"] else missed

    word = partial(mark, verdict["pick"], verdict["candidates"])
    columns: dict[str, Callable[[Row], str]] = {"verdict": word}
    best = tune["ranking"][:SHOWN]
    if len({row.get("basis") for row in best}) > 1:
        columns["basis"] = lambda row: row["basis"] or ""
    texts = 1 + len(columns)
    columns[f"{tune['measure']} ({USUAL})"] = value
    if any(row.get("to_reference") for row in tune["ranking"]):
        columns["loss above data-parallel"] = _above_reference
    if any(row.get("at_equal_loss") for row in tune["ranking"]):
        columns["days at equal loss"] = _at_equal_loss
    if any(row["reached"] < row["seeds"] for row in best):
        columns["reached"] = lambda row: f"{row['reached']} of {row['seeds']}"
    used = consumption.cells(tune["ranking"])[1].items()
    columns |= {head: cell for head, cell in used if head.partition(" ")[0] in USED}
    rows = [(row["label"], *(cell(row) for cell in columns.values())) for row in tune["ranking"]]
    heads, strong = (
        ("configuration", *columns),
        [at for at, row in enumerate(rows) if row[0] == verdict["pick"]],
    )
    table = PageTable("Configurations, best first", heads, rows, texts, strong=strong)
    return table.unvaried().folded_after(SHOWN, FOLDED)


def _above_reference(row: Row) -> str:
    share = row.get("to_reference")
    return wording.above(share["value"], share["interval"]) if share else "-"


def _at_equal_loss(row: Row) -> str:
    days = row.get("at_equal_loss")
    return wording.cell(stated(days, "value"), "") if days else "-"


def tradeoffs(tune: Row, place: int) -> PageSection | None:
    """Draw the configurations by time, money and loss."""
    chart = figures.tradeoffs(tune)
    if chart is None:
        return None
    axes = ", ".join(f"{panel.y.title} against {panel.x.title}" for panel in chart.panels)
    drawn = PageFigure.all_of(f"tradeoffs-{place}", axes, chart)
    lead = f"{chart.caption.capitalize()}."
    return PageSection(f"tradeoffs-{place}", "What can be traded", lead, drawn, folded=True)


def sensitivity(tune: Row, place: int) -> PageSection | None:
    """Tabulate what a wrong input costs each candidate."""
    worlds, pick = tune["regret"], tune["pick"]["label"]
    if not worlds:
        return None
    heads = [_world_name(world) for world in worlds]
    rows = [
        [label, *(cost(world, label, " %") for world in worlds)] for label in worlds[0]["values"]
    ]
    flipped = [
        head
        for head, world in zip(heads, worlds, strict=True)
        if world["input"] and world["regret"].get(pick) != 0 and pick not in world["not_worse"]
    ]
    lead = "No other is known to be better if latency, bandwidth or straggling is 20 % off."
    if flipped:
        lead = f"Another configuration is better with {', '.join(flipped)}."
    table = PageTable("How much worse than the best of these", ("configuration", *heads), rows)
    text = " ".join([lead, *notes(worlds)])
    return PageSection(f"sensitivity-{place}", CHANGES, text, tables=[table])


def _world_name(world: Row) -> str:
    if not world["input"]:
        return "as written"
    sign = "+" if world["change"] > 0 else "−"
    return f"{world['input']} {sign}{100 * abs(world['change']):.0f}\N{NO-BREAK SPACE}%"
