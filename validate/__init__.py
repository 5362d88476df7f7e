"""Train for real, calibrate and compare (imports torch, not simpy).

`paceline.validate` is this package, and also a function: `paceline.validate("my.toml")`.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that can be called like its main function, whose name it shares."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Train for real, and compare: `validation.validate`."""
        from .validation import validate  # noqa: PLC0415 - it loads torch

        return validate(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
