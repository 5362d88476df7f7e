"""The sections of a search: its ranking, what trades time for money, and what mattered."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from ...results import wording
from ...results.consumption import SECONDS_PER_DAY
from ...results.figures import chart
from ...results.figures.chart import Axis, Line, Look, Panel
from ...results.intervals import USUAL, stated
from ...results.statistics import number, time_unit, with_unit
from ...results.usage import few
from ...results.verdict import mark
from ...studies.tune.objective import OBJECTIVES, PACES
from ...studies.tune.regret import cost, notes
from . import compared
from .parts import Cell, PageFigure, PageSection, PageTable
from .reading import FoundRun
from .series import apart

SHOWN, FOLDED = 20, 300  # configurations in the first table, and with those that are folded
LEAST = 0.01  # spread of a quantity, as a share, below which nothing trades it for another
MOST = 2000  # configurations, the best of a search, that are compared
GOOD, WORSE = Look.at(0)._replace(dash="dot"), Look.at(1)._replace(hollow=True)
Row = Mapping[str, Any]


def sections(found: FoundRun, place: int) -> list[PageSection | None]:
    """Return the sections of a search."""
    tune = found.tune
    assert tune is not None
    details = [unbeaten(tune, place), sensitivity(tune, place)]
    return [ranking(tune, place), *(each and replace(each, folded=True) for each in details)]


def ranking(tune: Row, place: int) -> PageSection:
    """Draw and tabulate the ranking."""
    rows, good = tune["ranking"], {*tune["verdict"]["candidates"]}
    heading = few(len(rows), "configuration", "configurations")
    lead = f"Filled, with {USUAL} bars: the pick, and all that may be as good."
    label = f"{tune['measure']} of the best configurations with their intervals"
    figure = PageFigure(f"ranking-{place}", label, {"": _dots(tune, good)})
    return PageSection(f"tune-{place}", heading, lead, [figure], _tables(tune))


def _dots(tune: Row, good: set[str]) -> Panel:
    """Draw the value of each configuration; its interval, unless it was given up early."""
    shown = [row for row in tune["ranking"][:SHOWN] if row["value"] is not None][::-1]
    names = apart([row["label"] for row in shown])
    size, unit = 1.0, tune["unit"]
    if unit == "s":
        size, unit = time_unit(max((row["value"] for row in shown), default=1.0))
    good_ones = [(at, row) for at, row in enumerate(shown) if row["label"] in good]
    others = [(at, row) for at, row in enumerate(shown) if row["label"] not in good]
    lines = [_marks(good_ones, names, GOOD, size, unit), _marks(others, names, WORSE, size, unit)]
    edges = [end for line in lines for ends in line.x_bars or () for end in ends]
    edges = [end for end in edges if np.isfinite(end)]
    title = f"{tune['measure']} ({unit})" if unit else tune["measure"]
    across = chart.fitted(title, edges, log=False, zero=True)
    return Panel(across, Axis(names=names), lines, height=90 + 24 * len(shown))


def _marks(
    rows: Sequence[tuple[int, Row]], names: Sequence[str], look: Look, size: float, unit: str
) -> Line:
    """Return marks at the values of rows, in units of `size`, with their intervals."""
    places, values = [float(at) for at, _ in rows], [row["value"] / size for _, row in rows]
    # the interval of the two seeds of what was given up dwarfs all others
    given_up = [bool(row["stopped"]) and look is WORSE for _, row in rows]
    lows, highs = (
        [
            value if stopped else stated(row, "value").span[side] / size
            for value, stopped, (_, row) in zip(values, given_up, rows, strict=True)
        ]
        for side in (0, 1)
    )
    pairs = zip(values, rows, strict=True)
    texts = [f"{names[at]}: {number(value)} {unit}" for value, (at, _) in pairs]
    how: Any = {"joined": False, "marks": "all", "named": False, "texts": texts}
    return Line("", values, places, look, x_bars=(lows, highs), **how)


def _tables(tune: Row) -> list[PageTable]:
    """Return the ranking, and what each configuration used."""
    verdict, unit = tune["verdict"], tune["unit"]
    missed = "beyond the cap" if tune["objective"] in PACES else "not reached"

    def value(row: Row) -> str:
        if row["value"] is not None:
            return with_unit(row["value"], unit)
        return f"above {with_unit(row['at_least'], unit)}" if row["at_least"] else missed

    word = partial(mark, verdict["pick"], verdict["candidates"])
    columns: dict[str, Callable[[Row], str]] = {"verdict": word}
    if any(row.get("basis") for row in tune["ranking"]):
        columns["basis"] = lambda row: row["basis"] or ""
    texts = 1 + len(columns)
    columns[tune["measure"]] = value
    columns[USUAL] = lambda row: wording.qualified(stated(row, "value"), unit)
    if any(row.get("to_reference") for row in tune["ranking"]):
        columns["loss above data-parallel"] = _above_reference
    if any(row.get("at_equal_loss") for row in tune["ranking"]):
        columns["days at equal loss"] = _at_equal_loss
    columns["reached"] = lambda row: f"{row['reached']} of {row['seeds']}"
    rows: list[Sequence[Cell | str]] = [
        (Cell(row["label"], strong=row["label"] == verdict["pick"]),
         *(cell(row) for cell in columns.values()))
        for row in tune["ranking"]
    ]  # fmt: skip
    heads = ("configuration", *columns)
    table = PageTable("Configurations, best first", heads, rows, texts=texts)
    used = [(row["label"], row) for row in tune["ranking"][:SHOWN]]
    return [*table.folded_after(SHOWN, FOLDED), *compared.amounts(used, "What each used")]


def _above_reference(row: Row) -> str:
    share = row.get("to_reference")
    return wording.above(share["value"], share["interval"]) if share else "-"


def _at_equal_loss(row: Row) -> str:
    days = row.get("at_equal_loss")
    return wording.cell(stated(days, "value"), "") if days else "-"


def unbeaten(tune: Row, place: int) -> PageSection | None:
    """Draw and tabulate the configurations that no other beats in time, money and loss."""
    amounts = {name: values for name, values in _amounts(tune) if _spreads(values)}
    if len(amounts) < 2:
        return None
    table = np.array([*amounts.values()]).T
    front = sorted(np.flatnonzero(~dominated(table)).tolist(), key=lambda row: tuple(table[row]))
    labels = [row["label"] for row in tune["ranking"][:MOST]]
    # the last pair, with what is bought by time or money, is seen first
    pairs = reversed([*combinations(enumerate(amounts), 2)])
    panels = {
        f"{one[1]} and {other[1]}": _pair(table, front, labels, (one, other))
        for one, other in pairs
    }
    rows = [
        (
            f"{rank}. {labels[row]}",
            *(f"{cell:.{max(4, len(f'{cell:.0f}'))}g}" for cell in table[row]),
        )
        for rank, row in enumerate(front, 1)
    ]
    found = PageTable(
        f"Beaten by no other in {', '.join(amounts)}", ("configuration", *amounts), rows
    )
    label = f"each configuration by {', '.join(amounts)}; {len(front)} are beaten by no other"
    return PageSection(
        f"tradeoffs-{place}",
        f"{few(len(front), 'configuration is', 'configurations are')} beaten by no other",
        "By means over seeds. For each hollow one, another is as good in all of these and better "
        "in one; those far behind lie outside.",
        [PageFigure(f"tradeoffs-{place}", label, panels, "picture")],
        found.folded_after(SHOWN, len(rows)),
    )


def _amounts(tune: Row) -> Iterator[tuple[str, list[float]]]:
    """Yield the quantities to be small, by name and unit; nan where a row has none."""
    rows, objective = tune["ranking"][:MOST], tune["objective"]

    def used(key: str, scale: float = 1.0) -> list[float]:
        means = [((row.get("used") or {}).get(key) or {}).get("mean") for row in rows]
        return [np.nan if mean is None else mean * scale for mean in means]

    values = [np.nan if row["value"] is None else row["value"] for row in rows]
    times = values if objective == OBJECTIVES[0] else used("days", SECONDS_PER_DAY)
    if objective != "loss-at-deadline" and np.isfinite(times).any():
        size, unit = time_unit(float(np.nanmax(times)))
        yield f"time ({unit})", [time / size for time in times]
    if objective != "loss-at-budget":
        currency = rows[0].get("currency")
        yield f"cost ({currency})" if currency else "cost", used("cost")
    if objective not in (OBJECTIVES[0], "cost-to-loss"):
        yield f"{tune['measure']} ({tune['unit']})" if tune["unit"] else tune["measure"], values


def _spreads(values: Sequence[float]) -> bool:
    known = np.array(values)[np.isfinite(values)]
    return known.size > 1 and float(np.ptp(known)) > LEAST * float(np.abs(known).max())


def dominated(table: np.ndarray) -> np.ndarray:
    """Tell which rows of (rows, quantities) another row beats, or which have unknown quantities.

    Another beats a row if no quantity is larger and one is smaller.
    """
    no_larger = (table[:, None] <= table[None]).all(axis=2)
    smaller = (table[:, None] < table[None]).any(axis=2)
    beaten: np.ndarray = (no_larger & smaller).any(axis=0) | ~np.isfinite(table).all(axis=1)
    return beaten


def _pair(
    table: np.ndarray,
    front: Sequence[int],
    labels: Sequence[str],
    axes: tuple[tuple[int, str], tuple[int, str]],
) -> Panel:
    """Draw two quantities, with a line along those that are beaten in neither."""
    (one, across), (two, up) = axes
    pair = table[:, (one, two)]
    rest = sorted({*np.flatnonzero(np.isfinite(table).all(axis=1))} - {*front})
    beaten = dominated(pair)
    edge = sorted((row for row in front if not beaten[row]), key=lambda row: tuple(pair[row]))

    def line(rows: Sequence[int], look: Look, *, joined: bool) -> Line:
        texts = [labels[row] for row in rows]
        x, y = pair[[*rows]].T if rows else (np.empty(0), np.empty(0))
        marks, steps = "none" if joined else "all", joined
        return Line(
            "", x, y, look, joined=joined, marks=marks, named=False, steps=steps, texts=texts
        )

    dots = GOOD._replace(symbol="diamond")
    lines = [line(edge, GOOD, joined=True), line(rest, WORSE, joined=False)]
    lines.append(line(front, dots, joined=False))
    axis = [chart.fitted(title, pair[front, side]) for side, title in enumerate((across, up))]
    return Panel(axis[0], axis[1], lines)


def sensitivity(tune: Row, place: int) -> PageSection | None:
    """Tabulate what being wrong about an input costs each candidate."""
    worlds, pick = tune["regret"], tune["pick"]["label"]
    if not worlds:
        return None
    most = max((_size(world, label) for world in worlds for label in world["values"]), default=0)
    heads = [_world_name(world) for world in worlds]
    rows = [
        [label, *(_above(world, label, most or 1.0) for world in worlds)]
        for label in worlds[0]["values"]
    ]
    flipped = [
        head
        for head, world in zip(heads, worlds, strict=True)
        if world["input"] and world["regret"].get(pick) != 0 and pick not in world["not_worse"]
    ]
    heading = "No other is known to be better if latency, bandwidth or straggling is 20 % off"
    if flipped:
        heading = f"Another configuration is better with {', '.join(flipped)}"
    lead = "What each candidate costs beyond the best of them if the scenario is wrong."
    table = PageTable("Above the best of these", ("configuration", *heads), rows)
    text = " ".join([lead, *notes(worlds)])
    return PageSection(f"sensitivity-{place}", heading, text, tables=[table])


def _world_name(world: Row) -> str:
    if not world["input"]:
        return "as written"
    sign = "+" if world["change"] > 0 else "−"
    return f"{world['input']} {sign}{100 * abs(world['change']):.0f}\N{NO-BREAK SPACE}%"


def _size(world: Row, label: str) -> float:
    """Return what is known of a candidate's cost, as a share; 0 where nothing is."""
    bound = world.get("regret_at_least", {}).get(label)
    return (world["regret"].get(label) if bound is None else bound) or 0.0


def _above(world: Row, label: str, most: float) -> Cell:
    text = cost(world, label, " %")
    bar = 1.0 if text == "not reached" else _size(world, label) / most
    return Cell(text, bar, strong=world["regret"].get(label) == 0)
