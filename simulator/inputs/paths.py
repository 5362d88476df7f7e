"""Files that scenarios and profiles name: what a file says stays in its folder, unless allowed.

Who gets a scenario from somebody else does not expect it to look elsewhere on the machine. What is
said on the command line, or from Python, is the user's own word, and may.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.simulator.inputs.messages import KeyPath, dotted, show

NAMING = ("extends", "file", "folder", "platform", "regions")
"""KeyPath whose values name files."""
OTHERS = ("algorithm", "tune")
"""Tables whose keys are programs' own: none of them names a file."""
REMEDY = "move it there, or allow it by --allow-paths (in Python: load(..., allow_paths=True))"


def named(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every name of a file in a scenario's tables, with where it stands."""
    if isinstance(value, list):
        items: Any = enumerate(value)
    elif isinstance(value, dict):
        items = ((key, each) for key, each in value.items() if path or key not in OTHERS)
    else:
        return
    for key, each in items:
        if key in NAMING and isinstance(each, str):
            yield (*path, key), each
        yield from named(each, (*path, key))


def leaves(name: str, folder: Path) -> bool:
    """Whether a file, relative to `folder`, is outside it: links followed, `..` worked out."""
    try:
        return not (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # no file at all, as whoever reads it will say
        return False


def refusals(table: Any, file: str, folder: Path, remedy: str = REMEDY) -> dict[KeyPath, str]:
    """What is wrong with the names of files that `file` in `folder` says: a line for each."""
    return {
        path: f"{file}: {dotted(path)} = {show(name)}: outside the folder of that file; {remedy}"
        for path, name in named(table)
        if leaves(name, folder)
    }
