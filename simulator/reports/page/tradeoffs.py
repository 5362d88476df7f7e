"""What a search shows beside its ranking: time against money against loss, and what matters."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ...results.consumption import SECONDS_PER_DAY
from ...results.documents import FARTHEST
from ...results.statistics import time_unit
from ...results.usage import few
from ...studies.tune.objective import OBJECTIVES
from ...studies.tune.runner import quiet
from . import parts
from .reading import FoundRun

LEAST = 0.01  # spread of a quantity, as a share, below which nothing trades it for another
APART = 0.04  # of an axis: between numbers that do not touch
DECADE = 10  # ratio of the largest to the smallest, above which an axis is logarithmic
ENOUGH = 8  # configurations of an algorithm from which importances are estimated
SHOWN = 20  # rows of the table that is not folded
MOST = 2000  # configurations, the best of a search, that are compared

Row = Mapping[str, Any]


def unbeaten(found: FoundRun, place: int) -> parts.PageSection | None:
    """Draw and tabulate the configurations that no other beats in time, money and loss."""
    tune = found.tune
    assert tune is not None
    amounts = {name: values for name, values in _amounts(tune) if _spreads(values)}
    if len(amounts) < 2:
        return None
    table = np.array([*amounts.values()]).T
    front = sorted(np.flatnonzero(~dominated(table)).tolist(), key=lambda row: tuple(table[row]))
    labels = [row["label"] for row in tune["ranking"][:MOST]]
    figure = _picture(f"tradeoffs-{place}", amounts, table, front, labels)
    rows = [
        (
            f"{rank}. {labels[row]}",
            *(f"{each:.{max(4, len(f'{each:.0f}'))}g}" for each in table[row]),
        )
        for rank, row in enumerate(front, 1)
    ]
    caption = f"Beaten by no other in {', '.join(amounts)}"
    columns = ("configuration", *amounts)
    tables = parts.folded(caption, columns, rows, texts=1, shown=SHOWN, most=len(rows))
    return parts.PageSection(
        f"tradeoffs-{place}",
        f"{few(len(front), 'configuration is', 'configurations are')} beaten by no other",
        "By means over seeds: for each hollow one, another is as good in all of these and better "
        "in one; those far behind lie outside. Numbers are rows of the table.",
        [figure],
        tables,
    )


def importance(found: FoundRun, place: int) -> parts.PageSection | None:
    """Tabulate how much the algorithm and each parameter mattered."""
    assert found.tune is not None
    rows = [*importances(found.tune["ranking"][:MOST])]
    if not rows:
        return None
    caption = "Share of the variance of the rank, among the configurations tried"
    table = parts.PageTable(caption, ("what varies", "share", "configurations"), rows)
    return parts.PageSection(
        f"importance-{place}",
        "What mattered in this search",
        "Of the algorithm: analysis of variance between algorithms. Of a parameter: fANOVA "
        "(Hutter, Hoos and Leyton-Brown, ICML 2014) by optuna, over this search's configurations "
        f"of one algorithm, where {ENOUGH} or more were tried and several parameters varied. What "
        "was given up early counts by its rank. A search tries good values more often than others.",
        tables=[table],
    )


def _amounts(tune: Row) -> Iterator[tuple[str, list[float]]]:
    """Yield the quantities to be small, by name and unit; nan where a row has none."""
    rows, aim = tune["ranking"][:MOST], tune["objective"]

    def used(key: str, scale: float = 1.0) -> list[float]:
        means = [((row.get("used") or {}).get(key) or {}).get("mean") for row in rows]
        return [np.nan if mean is None else mean * scale for mean in means]

    values = [np.nan if row["value"] is None else row["value"] for row in rows]
    times = values if aim == OBJECTIVES[0] else used("days", SECONDS_PER_DAY)
    if aim != "loss-at-deadline" and np.isfinite(times).any():
        scale, unit = time_unit(float(np.nanmax(times)))
        yield f"time ({unit})", [each / scale for each in times]
    money = f"cost ({currency})" if (currency := rows[0].get("currency")) else "cost"
    if aim != "loss-at-budget":
        yield money, used("cost")
    if aim not in (OBJECTIVES[0], "cost-to-loss"):
        unit = f" ({tune['unit']})" if tune["unit"] else ""
        yield f"{tune['measure']}{unit}", values


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


def _picture(
    identity: str,
    amounts: Mapping[str, Any],
    table: np.ndarray,
    front: Sequence[int],
    labels: Sequence[str],
) -> parts.Figure:
    """Draw each pair of quantities, with a line along those that are beaten in neither."""
    rest = sorted({*np.flatnonzero(np.isfinite(table).all(axis=1))} - {*front})
    choices = {}
    # the last pair, with what is bought by time or money, is seen first
    for (one, across), (two, up) in reversed([*combinations(enumerate(amounts), 2)]):
        pair = table[:, (one, two)]
        edge = [row for row in front if not dominated(pair)[row]]
        edge.sort(key=lambda row: tuple(pair[row]))
        look = {"type": "scatter", "hovertemplate": "%{customdata}<extra></extra>"}

        def dots(rows: Sequence[int], at: np.ndarray = pair, **own: Any) -> parts.Json:
            said = [parts.literal(labels[row]) for row in rows]
            return {"x": at[rows, 0].tolist(), "y": at[rows, 1].tolist(), "customdata": said} | own

        line = {"color": "--c0", "width": 1.5, "dash": "dot", "shape": "hv"}
        filled = {"color": "--c0", "symbol": "diamond", "size": 9}
        axes = [_around(pair[front, side]) for side in (0, 1)]
        numbers, last = list[str](), np.full(2, -np.inf)
        for rank, row in enumerate(front, 1):  # a number stands where the last one leaves room
            at = np.array([_place(axis, x) for axis, x in zip(axes, pair[row], strict=True)])
            free = row in edge and np.abs(at - last).max() > APART
            numbers.append(str(rank) * bool(free))
            last = at if free else last
        data = [
            look | dots(edge, mode="lines", line=line, hoverinfo="skip"),
            look | dots(rest, mode="markers", marker={"color": "--c1", "symbol": "circle-open"}),
            look | dots(front, mode="markers+text", text=numbers, marker=filled)
            | {"textposition": "top right"},
        ]  # fmt: skip
        layout = {
            name: {"title": {"text": parts.literal(title)}, **axis}
            for name, title, axis in zip(("xaxis", "yaxis"), (across, up), axes, strict=True)
        }
        choices[f"{across} and {up}"] = {"data": data, "layout": layout, "height": 380}
    says = f"each configuration by {', '.join(amounts)}; {len(front)} are beaten by no other"
    return parts.Figure(identity, says, choices=choices, choose="picture")


def _around(values: np.ndarray) -> parts.Json:
    """Return an axis around values, logarithmic over a decade, with room for a few worse ones."""
    wide = values.min() > 0 and values.max() > DECADE * values.min()
    low, high = map(float, np.quantile(np.log10(values) if wide else values, (0, 1)))
    room = (high - low) or 0.05 * abs(high) or 1.0
    return {"type": "log" if wide else "linear", "range": [low - 0.1 * room, high + 0.3 * room]}


def _place(axis: parts.Json, value: float) -> float:
    """Return where a value is on an axis: 0 at its beginning, 1 at its end."""
    low, high = axis["range"]
    at = math.log10(value) if axis["type"] == "log" else value
    return float((at - low) / (high - low))


def importances(ranking: Sequence[Row]) -> Iterator[tuple[str, parts.Cell, str]]:
    """Yield rows: what varies, its share of the rank's variance, and how many were compared."""
    ranks: dict[str, list[int]] = {}
    for rank, row in enumerate(ranking):
        ranks.setdefault(row["name"], []).append(rank)
    whole = float(np.var(range(len(ranking)))) if ranking else 0.0
    if len(ranks) > 1 and len(ranking) >= ENOUGH:
        within = sum(len(each) * float(np.var(each)) for each in ranks.values()) / len(ranking)
        yield "algorithm", _share(1 - within / whole), str(len(ranking))
    for name, own in ranks.items():
        found = _of_parameters([ranking[rank].get("parameters") or {} for rank in own], own)
        yield from ((f"{name}: {key}", _share(each), str(len(own))) for key, each in found.items())


def _share(value: float) -> parts.Cell:
    return parts.Cell(parts.percent(value), value)


def _of_parameters(tables: Sequence[Row], ranks: Sequence[int]) -> dict[str, float]:
    """Return the importance of each parameter that varies; of fewer than two there is none."""
    shared = set(tables[0]).intersection(*tables)
    columns = {key: [table[key] for table in tables] for key in tables[0] if key in shared}
    columns = {key: each for key, each in columns.items() if len({*map(str, each)}) > 1}
    if len(columns) < 2 or len(tables) < ENOUGH:
        return {}
    import optuna  # noqa: PLC0415 - half a second

    space: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, each in columns.items():
        if all(type(value) in (int, float) and abs(value) < FARTHEST for value in each):
            low, high = min(each), max(each)
            space[key] = optuna.distributions.FloatDistribution(low, high, log=low > 0)
        else:
            columns[key] = [*map(str, each)]
            space[key] = optuna.distributions.CategoricalDistribution(sorted({*columns[key]}))
    with quiet():
        study = optuna.create_study()
        for at, rank in enumerate(ranks):
            params = {key: each[at] for key, each in columns.items()}
            trial = optuna.trial.create_trial(params=params, distributions=space, value=float(rank))
            study.add_trial(trial)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
