"""Figures of the validation matrix: predicted against measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.simulator.results.figures import drawing, style
from paceline.simulator.results.figures.style import Axes, Figure

from ..comparison.quantities import PACE, TARGET
from .cells import Cell

KINDS = {"emulated": "emulated delays", "kernel": "links of the kernel", "real": "no delays"}
LARGEST = 10.0  # percent: larger errors are drawn at this limit


def figures(cells: Sequence[Cell]) -> dict[str, bytes]:
    """Return PNG files by name, without those that would be empty."""
    counted = [cell for cell in cells if cell["counted"]]
    draw = {"scatter": _scatter, "errors": _errors, "excess": _excess}
    with style.style():
        drawn = {name: each(counted) for name, each in draw.items()}
        return {name: drawing.encode(figure, "png") for name, figure in drawn.items() if figure}


def _scatter(cells: Sequence[Cell]) -> Figure | None:
    panels = {"seconds per step": PACE, "time to target, s": TARGET}
    known = {name: [c for c in cells if _is_whole(c[key])] for name, key in panels.items()}
    known = {name: found for name, found in known.items() if found}
    if not known:
        return None
    figure, column = _figure(len(known))
    for axes, (name, found) in zip(column, known.items(), strict=True):
        for colour, label, own in _by_network(found):
            rows = [cell[panels[name]] for cell in own]
            measured = [row["measured"] for row in rows]
            axes.plot(measured, [row["predicted"] for row in rows], "o", ms=4, color=colour,
                      label=label, zorder=3)  # fmt: skip
            if panels[name] == PACE:
                axes.plot(measured, [row["nominal"] for row in rows], "o", ms=4, mfc="none",
                          color=colour, zorder=2, alpha=0.7)  # fmt: skip
        _diagonal(axes)
        axes.set(xlabel=f"measured {name}", ylabel=f"predicted {name}")
    column[0].legend(title="hollow: without the profile", loc="upper left")
    return figure


def _errors(cells: Sequence[Cell]) -> Figure | None:
    whole = [cell for cell in cells if cell[PACE]["error"] is not None]
    if not whole:
        return None
    programs = list(dict.fromkeys(cell["program"] for cell in whole))
    figure, (axes,) = _figure(1)
    for colour, label, own in _by_network(whole):
        errors = np.array([100 * cell[PACE]["error"] for cell in own])
        places = [programs.index(cell["program"]) for cell in own]
        axes.plot(np.clip(errors, -LARGEST, LARGEST), places, "o", ms=4, color=colour, label=label,
                  alpha=0.8)  # fmt: skip
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(programs)), programs)
    axes.invert_yaxis()
    axes.set_xlabel("error of predicted seconds per step, %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(KINDS))
    return figure


def _excess(cells: Sequence[Cell]) -> Figure | None:
    whole = [c for c in cells if _is_whole(c[PACE]) and c[PACE]["nominal"] is not None]
    if not whole:
        return None
    figure, (axes,) = _figure(1)
    for colour, label, own in _by_network(whole):
        rows = [cell[PACE] for cell in own]
        x, y = (
            [max(1e3 * (row[key] - row["nominal"]), 0.02) for row in rows]
            for key in ("measured", "predicted")
        )
        axes.plot(x, y, "o", ms=4, color=colour, label=label)
    _diagonal(axes)
    axes.set(
        xlabel="measured beyond the nominal, ms per step (0.02 or less is drawn as 0.02)",
        ylabel="predicted beyond the nominal, ms per step",
    )
    axes.legend(loc="upper left")
    return figure


def _figure(panels: int) -> tuple[Figure, Any]:
    figure = style.empty(4.4 * panels, layout="constrained")
    return figure, figure.subplots(panels, squeeze=False)[:, 0]


def _by_network(cells: Sequence[Cell]) -> list[tuple[str, str, list[Cell]]]:
    """Group cells by kind of network, each with a colour and a name."""
    present = [kind for kind in KINDS if any(cell["network"] == kind for cell in cells)]
    own = [[cell for cell in cells if cell["network"] == kind] for kind in present]
    return list(zip(style.COLOURS, map(KINDS.__getitem__, present), own, strict=False))


def _diagonal(axes: Axes) -> None:
    """Draw the diagonal on logarithmic axes with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axes.axline((1, 1), slope=1, color="0.6", linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _is_whole(row: dict[str, Any]) -> bool:
    return bool(row["predicted"]) and bool(row["measured"])
