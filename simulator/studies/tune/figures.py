"""Chart a search from its document: its ranking and its trade-offs."""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from ...results import wording
from ...results.consumption import SECONDS_PER_DAY
from ...results.figures import drawing
from ...results.figures.chart import Axis, Chart, Line, Look, Panel, apart, fitted
from ...results.intervals import USUAL, stated
from ...results.statistics import number, time_unit
from ...results.verdict import ALONE
from .objective import OBJECTIVES

SHOWN = 12  # configurations in the chart of the ranking
LEAST = 0.01  # a trade-off leaves out quantities with less spread (a share)
MOST = 2000  # best configurations of a search, which are compared
GOOD, WORSE = Look.at(0), Look.at(1)._replace(hollow=True)
Row = Mapping[str, Any]


def figures(tune: Row) -> dict[str, bytes]:
    """Return all figures by file name."""
    return drawing.files({"tune": ranking(tune), "tune-tradeoffs": tradeoffs(tune)})


def ranking(tune: Row) -> Chart | None:
    """Chart the best configurations' values and intervals; None without values."""
    by_value = tune["measure"], tune["unit"], lambda row: stated(row, "value")
    measure, unit, estimate = wording.judged(tune["ranking"]) or by_value
    ranked = (row for row in tune["ranking"] if math.isfinite(estimate(row).value))
    shown = [*islice(ranked, SHOWN)][::-1]
    if not shown:
        return None
    names = apart([row["label"] for row in shown])
    size = 1.0
    if unit == "s":
        size, unit = time_unit(min(estimate(row).value for row in shown))
    good = [row["label"] in tune["verdict"]["candidates"] for row in shown]
    lines, near = list[Line](), list[float]()
    for name, look, as_good in (("may be the best", GOOD, True), ("others", WORSE, False)):
        places = [at for at, is_good in enumerate(good) if is_good == as_good]
        estimates = [estimate(shown[at]) for at in places]
        values = [estimate.value / size for estimate in estimates]
        low, high = ([estimate.span[side] / size for estimate in estimates] for side in (0, 1))
        texts = [f"{names[at]}: {number(x)} {unit}" for at, x in zip(places, values, strict=True)]
        how: Any = {"joined": False, "marks": "all", "texts": texts, "x_bars": (low, high)}
        lines.append(Line(name, values, places, look, **how))
        near += [*values, *(low + high if as_good else [])]
    title = f"{measure} ({unit})" if unit else measure
    up = Axis(names=names, limits=(-0.5, len(names) - 0.5))
    panel = Panel(fitted(title, near, zero=True), up, lines, height=90 + 24 * len(names))
    caption = f"filled: the pick and all that may be as good; bars: {USUAL}"
    return Chart(tune["scenario"]["title"], caption, [panel])


def tradeoffs(tune: Row) -> Chart | None:
    """Chart time and cost against loss, or time against cost; None if only one differs."""
    amounts = list[tuple[str, list[float]]]()
    for name, values in _amounts(tune):
        finite = np.array(values)[np.isfinite(values)]
        if finite.size > 1 and np.ptp(finite) > LEAST * np.abs(finite).max():
            amounts.append((name, values))
    if len(amounts) < 2:
        return None
    *across, up = amounts
    table = np.array([values for _, values in amounts]).T
    labels = [row["label"] for row in tune["ranking"][:MOST]]
    front = ~dominated(table)
    panels = []
    for name, values in across:
        pairs = np.array([values, up[1]]).T
        lines = []
        for chosen, look in ((~front, WORSE), (front, GOOD)):
            places = np.flatnonzero(chosen & np.isfinite(pairs).all(axis=1))
            texts = [labels[place] for place in places]
            named = [text if text in (tune["verdict"]["pick"], ALONE) else "" for text in texts]
            x, y = pairs[places].T
            how: Any = {"joined": False, "marks": "all", "named": False, "texts": texts}
            lines.append(Line("", x, y, look, labels=named, **how))
        axes = [fitted(title, pairs[:, side]) for side, title in enumerate((name, up[0]))]
        panels.append(Panel(axes[0], axes[1], lines, height=300))
    what = " and ".join(name.partition(" (")[0] for name, _ in amounts)
    caption = f"filled: no other is better in {what} (means over seeds)"
    return Chart(tune["scenario"]["title"], caption, panels)


def _amounts(tune: Row) -> Iterator[tuple[str, list[float]]]:
    """Yield the quantities to minimise, with name and unit; nan without a value."""
    rows, objective = tune["ranking"][:MOST], tune["objective"]

    def used(key: str, scale: float = 1.0) -> list[float]:
        means = [((row.get("used") or {}).get(key) or {}).get("mean") for row in rows]
        return [math.nan if mean is None else mean * scale for mean in means]

    values = [math.nan if row["value"] is None else row["value"] for row in rows]
    times = values if objective == OBJECTIVES[0] else used("days", SECONDS_PER_DAY)
    if objective != "loss-at-deadline" and np.isfinite(times).any():
        size, unit = time_unit(float(np.nanmin(times)))
        yield f"time ({unit})", [time / size for time in times]
    currency = rows[0].get("currency")
    yield f"cost ({currency})" if currency else "cost", used("cost")
    if objective not in (OBJECTIVES[0], "cost-to-loss"):
        yield f"{tune['measure']} ({tune['unit']})" if tune["unit"] else tune["measure"], values


def dominated(table: np.ndarray) -> np.ndarray:
    """Return a mask of the rows (of quantities) that another beats, or that are incomplete."""
    no_larger = (table[:, None] <= table[None]).all(axis=2)
    smaller = (table[:, None] < table[None]).any(axis=2)
    beaten: np.ndarray = (no_larger & smaller).any(axis=0) | ~np.isfinite(table).all(axis=1)
    return beaten
