"""Confine the files that a scenario names to its own folder, unless allowed.

A scenario from somebody else must not read elsewhere on the machine. Overrides on the command line,
or from Python, come from the user and may name any file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .messages import KeyPath, dotted, show

NAMING = ("extends", "file", "folder", "membership", "platform", "regions")
"""Keys whose values name files."""
OTHERS = ("algorithm", "tune")
"""Tables with the keys of programs, none of which names a file."""
REMEDY = "move it there, or allow it by --allow-paths (in Python: load(..., allow_paths=True))"


def named(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and the value of every key that names a file."""
    if isinstance(value, list):
        items: Any = enumerate(value)
    elif isinstance(value, dict):
        items = ((key, entry) for key, entry in value.items() if path or key not in OTHERS)
    else:
        return
    for key, entry in items:
        if key in NAMING and isinstance(entry, str):
            yield (*path, key), entry
        yield from named(entry, (*path, key))


def leaves(name: str, folder: Path) -> bool:
    """Return whether a file, once symbolic links are resolved, lies outside `folder`."""
    try:
        return not (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # not a file name; the file's reader refuses it
        return False


def refusals(table: Any, file: str, folder: Path, remedy: str = REMEDY) -> dict[KeyPath, str]:
    """Return an error message, by key path, for each file outside `folder` in `file`."""
    return {
        path: f"{file}: {dotted(path)} = {show(name)}: outside the folder of that file; {remedy}"
        for path, name in named(table)
        if leaves(name, folder)
    }
