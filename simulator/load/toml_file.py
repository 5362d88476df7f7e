"""Read TOML files, scenarios and profiles alike, as tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..inputs import messages, untrusted
from .listing import shipped

DEEPEST = 32  # tables and lists within each other; a scenario has some six


def read(path: str | Path) -> dict[str, Any]:
    """Read a TOML file. Raises InputError for anything that is not one."""
    with untrusted.refused(path, "name another file"):
        try:
            text = untrusted.text(path)
        except FileNotFoundError:
            names = messages.closest(Path(path).stem, shipped(), "shipped scenarios like it")
            remedy = f"check the path; {names} (paceline list scenarios)"
            raise InputError(f"{path}: no such file; {remedy}") from None
        except IsADirectoryError:
            raise InputError(f"{path}: a directory; name a scenario file in it") from None
        except UnicodeDecodeError as error:
            line = untrusted.reason(error)
            raise InputError(f"{path}: {line}; save the file as UTF-8 text") from None
    if not text.strip():
        raise InputError(f"{path}: empty; start from one of `paceline list scenarios`")
    with untrusted.refused(path, "correct it there", "not TOML"):
        table = untrusted.toml(text, DEEPEST)
    demand_shallow(table, str(path))
    return table


def demand_shallow(table: Mapping[str, Any], where: str) -> None:
    """Refuse a table that nests more deeply than Python can copy, or a reader can follow."""
    if not untrusted.shallow(table, DEEPEST):
        raise InputError(
            f"{where}: nested too deeply; no scenario has {DEEPEST} tables in each other"
        )
