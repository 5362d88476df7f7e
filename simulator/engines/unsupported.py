"""The signal that a fast engine cannot run a program after all, so that another one must.

What is known of a program and a scenario beforehand, an engine's `supports` answers: None, or the
reason why not. The rest only shows while the engine runs or traces the program.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Unsupported(BaseException):
    """Raised when an engine cannot run a program; the message completes "because ...".

    Not an `Exception`, so that no program catches it.
    """


def attempt(run: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a fast engine's `run` gives, or None and the reason why it cannot."""
    try:
        return run(), ""
    except Unsupported as why:
        return None, str(why)
