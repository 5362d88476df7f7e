"""Paceline predicts how long distributed training takes to reach an error.

`load` a scenario, then `simulate` it, or compute its `theory`; in a shell, see `paceline --help`.
Importing this package imports no other module: a name loads its module at its first use.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {  # modules by public name; the only list is the stub, which type checkers read
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = list({"__version__": "", **_MODULES})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from paceline.simulator.results.store import versions

        return versions()["paceline"]
    if name not in _MODULES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*_MODULES]
