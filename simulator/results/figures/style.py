"""The style of all figures.

Units on the axes, uncertainty as a band, colours that colour-blind readers can tell apart (Okabe &
Ito, 2008), and a dash and a marker of each line's own for those who see no colour.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError

if TYPE_CHECKING:  # matplotlib takes half a second to import
    import matplotlib.axes
    import matplotlib.figure

    Axes = matplotlib.axes.Axes
    Figure = matplotlib.figure.Figure
else:
    Axes = Figure = Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES: dict[str, Any] = {  # plotly's name -> matplotlib's pattern
    "solid": "-", "dash": (0, (5, 1.5)), "dot": (0, (1.5, 1)), "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)), "longdashdot": (0, (9, 2, 1.5, 2)),
}  # fmt: skip
SYMBOLS = {  # plotly's name -> matplotlib's marker
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "star": "*",
    "x": "X", "triangle-down": "v", "pentagon": "p", "hexagon": "h", "triangle-right": ">",
    "triangle-left": "<",
}  # fmt: skip
PARTS = {  # colour of a bar, and of the text on it
    "compute": ("#0072B2", "white"),
    "wait": ("#E69F00", "black"),
    "communicate": ("#CC79A7", "black"),
    "serve": ("#009E73", "black"),
    "stalled": ("#882255", "white"),
    "lost": ("#D55E00", "white"),
    "down": ("#444444", "white"),
    "absent": ("#BBBBBB", "black"),
    "unselected": ("#E3E3E3", "black"),
}
GREY = "#666666"
FORMATS = ("png", "svg", "pdf")
_formats: ContextVar[tuple[str, ...]] = ContextVar("formats", default=("png", "svg"))
_pyplot: ContextVar[bool] = ContextVar("pyplot", default=False)
LONG = 32  # characters of a label; longer ones take two lines
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "svg.hashsalt": "paceline",
    "pdf.fonttype": 42,  # what journals embed: fonts, not outlines
    "ps.fonttype": 42,
    "text.parse_math": False,  # a $ in a title is a dollar
}


def look(index: int) -> tuple[str, str, str]:
    """Return colour, dash and marker of a line: 72 lines differ by the latter two alone."""
    dash, symbol = index % len(DASHES), index + index // len(DASHES)
    return COLOURS[index % len(COLOURS)], [*DASHES][dash], [*SYMBOLS][symbol % len(SYMBOLS)]


@contextmanager
def style() -> Iterator[None]:
    """Apply the style within the context."""
    import matplotlib  # noqa: PLC0415

    with matplotlib.rc_context(STYLE):
        yield


@contextmanager
def pyplot() -> Iterator[None]:
    """Let pyplot know the figures that are made within the context, so that it shows them."""
    token = _pyplot.set(True)
    try:
        yield
    finally:
        _pyplot.reset(token)


@contextmanager
def formats(kinds: Sequence[str]) -> Iterator[None]:
    """Write figures as `kinds`, of `FORMATS`, within the context. Raises InputError."""
    for kind in kinds:
        if kind not in FORMATS:
            raise InputError(f"--figure {kind}: unknown format; choose from {', '.join(FORMATS)}")
    token = _formats.set(tuple(kinds))
    try:
        yield
    finally:
        _formats.reset(token)


def save(
    draw: Callable[[], Mapping[str, bytes]],
    write: Callable[[Mapping[str, bytes]], None],
    where: Path,
) -> None:
    """Write a directory, by `write`, with the figures that `draw` makes.

    Where drawing fails the numbers are written without figures. Then raises InputError.
    """
    figures: Mapping[str, bytes] = {}
    failed: Exception | None = None
    try:
        figures = draw()
    except Exception as error:  # of matplotlib, whose kinds are many
        failed = error
    write(figures)
    if failed is not None:
        raise InputError(
            f"{where}: the numbers are written, but the figures cannot be drawn "
            f"({type(failed).__name__}: {failed}); check the scenario for extreme values, and "
            "matplotlib's settings"
        ) from failed


def chosen_formats() -> tuple[str, ...]:
    """Return the formats to write figures in: PNG and SVG unless `formats` says otherwise."""
    return _formats.get()


def empty(height: float, width: float = 6.5, **how: Any) -> Figure:
    """Return a figure without panels, of this size in inches."""
    from matplotlib import figure  # noqa: PLC0415

    if not _pyplot.get():
        return figure.Figure(figsize=(width, height), **how)
    from matplotlib import pyplot  # noqa: PLC0415

    # names stand beside the axes: where nobody crops the figure to them, the axes make room
    return pyplot.figure(figsize=(width, height), **({"layout": "constrained"} | how))


def two_lines(label: str) -> str:
    """Break a long label at the space nearest to its middle."""
    spaces = [index for index, letter in enumerate(label) if letter == " "]
    if len(label) <= LONG or not spaces:
        return label
    middle = min(spaces, key=lambda index: abs(2 * index + 1 - len(label)))
    return f"{label[:middle]}\n{label[middle + 1 :]}"
