"""Run a pick in the user's own training loop (imports torch, never simpy).

`paceline.deploy` is this package, and also a function: `session.deploy`. The files: `session`, the
user's object; `attached`, the interpreter that takes the user's gradients; `live`, the model's
parameters as one vector; `local_steps`, the user's optimizer as a program's transform; `plan`, the
program to run, and its checks; `checkpoint`, its state as plain containers; `steering/`, the watch
and the controller; `emit/`, the same pick in another framework.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that can be called like its main function, whose name it shares."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Attach a program to a training loop: `session.deploy`."""
        from .session import deploy

        return deploy(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
