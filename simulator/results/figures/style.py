"""The style of all figures.

Axes have units, and bands show uncertainty. Colour-blind readers can tell the colours apart; every
line also has its own dash and marker. The values are in style.toml.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from textwrap import fill
from typing import Any

from ...errors import InputError
from ...inputs import untrusted

_WRITTEN = untrusted.packaged(__file__, "style.toml")
COLOURS: Sequence[str] = _WRITTEN["colours"]
DASHES = {name: (0, tuple(gaps)) if gaps else "-" for name, gaps in _WRITTEN["dashes"].items()}
"""Matplotlib's patterns by Plotly's names."""
SYMBOLS: Mapping[str, str] = _WRITTEN["symbols"]
"""Matplotlib's markers by Plotly's names."""
STYLE: dict[Any, Any] = _WRITTEN["settings"]
GREY: str = STYLE["axes.edgecolor"]
FORMATS = ("png", "svg", "pdf")
CHOSEN: ContextVar[tuple[str, ...]] = ContextVar("CHOSEN", default=("png", "svg"))  # of FORMATS
LONG = 32  # characters of a line of a label


def look(index: int) -> tuple[str, str, str]:
    """Return colour, dash and marker of a line; dash and marker alone tell 72 lines apart."""
    dash, symbol = index % len(DASHES), index + index // len(DASHES)
    return COLOURS[index % len(COLOURS)], [*DASHES][dash], [*SYMBOLS][symbol % len(SYMBOLS)]


@contextmanager
def style() -> Iterator[None]:
    """Apply the style within the context."""
    import matplotlib  # noqa: PLC0415

    with matplotlib.rc_context(STYLE):
        yield


@contextmanager
def formats(kinds: Sequence[str]) -> Iterator[None]:
    """Write figures as `kinds`, of `FORMATS`, within the context. Raises InputError."""
    for kind in kinds:
        if kind not in FORMATS:
            raise InputError(f"--figure {kind}: unknown format; choose from {', '.join(FORMATS)}")
    token = CHOSEN.set(tuple(kinds))
    try:
        yield
    finally:
        CHOSEN.reset(token)


def save(
    draw: Callable[[], Mapping[str, bytes]],
    write: Callable[[Mapping[str, bytes]], None],
    where: Path,
) -> None:
    """Write a directory by `write`, with the figures from `draw`.

    If drawing fails, write the numbers without figures, then raise InputError.
    """
    try:
        figures = draw()
    except Exception as error:  # matplotlib raises many kinds of errors
        write({})
        raise InputError(
            f"{where}: the numbers are written, but the figures cannot be drawn "
            f"({type(error).__name__}: {error}); check the scenario for extreme values, and "
            "matplotlib's settings"
        ) from error
    write(figures)


def folded(label: str) -> str:
    """Break a long label into lines."""
    return fill(label, LONG, break_long_words=False, break_on_hyphens=False)
