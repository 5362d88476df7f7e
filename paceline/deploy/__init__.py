"""Run a pick in the user's own training loop (imports torch, never simpy).

`paceline.deploy` is this package and, called, the command: `session.deploy`. The files:
`session`, what the user holds; `attached`, the interpreter whose gradients are the user's; `live`,
the model's parameters as one vector; `local_steps`, the user's optimizer as a program's transform;
`plan`, the program to run and what it refuses; `checkpoint`, its state as plain containers;
`steering/`, what watches and steers it; `emit/`, the same pick in another framework.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is called like its main function, whose name it shares."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Attach a program to a training loop: `session.deploy`."""
        from .session import deploy

        return deploy(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
