"""Scenarios that take in a profile: its tables, wherever the scenario does not say otherwise."""

import os.path
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.paths import refusals

ASIDE = ("probe",)
"""Tables of a profile that are to be read by people."""
WHOLE = ("dist", "kind", "schedule")
"""Keys of tables that mean something else if one of them is another."""


def extended(  # noqa: PLR0913 - where it comes from, and what it may name
    table: dict[str, Any],
    file: str,
    folder: Path,
    read: Callable[[Path], dict[str, Any]],
    *,
    anywhere: bool,
    allow_paths: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a scenario's table with its profile's beneath, and that profile's own tables.

    `read` reads a TOML file; the profile's name is relative to `folder`, or, where it may be
    `anywhere`, to the current one. Raises InputError, also where files that the profile names are
    not beside it, unless `allow_paths`.
    """
    name = table.get("extends")
    if not isinstance(name, str) or not name:
        return table, {}
    path = folder / name
    if anywhere and not os.path.exists(path) and os.path.exists(name):  # on the command line
        path = Path(name)
    profile = {key: each for key, each in read(path).items() if key not in ASIDE}
    if "extends" in profile:
        raise InputError(f"{path}: extends: a profile extends no other; calibrate it with --base")
    if not profile.keys() & {"overhead", "calibration"}:
        raise InputError(
            f"{file}: extends = {name!r}: no profile, for it has neither [[overhead]] nor "
            "[calibration]; make one by `paceline probe` or `paceline calibrate`"
        )
    if not allow_paths and (wrong := refusals(profile, str(path), path.parent)):
        raise InputError("\n".join(wrong.values()))
    profile = _anchored(profile, path.parent)
    own = {key: each for key, each in table.items() if key != "extends"}
    whole = _merged(profile, own)
    calibration = whole.get("calibration")
    if isinstance(calibration, dict) and isinstance(calibration.get("sd"), dict):
        # what the scenario says itself is as certain as it says
        calibration["sd"] = {
            key: sd
            for key, sd in calibration["sd"].items()
            if _holds(whole, key) and not _holds(own, key)
        }
    return whole, profile


def _holds(table: Any, key: str) -> bool:
    """Whether a table has a value of a dotted key."""
    for part in key.split("."):
        if isinstance(table, list) and part.isdecimal() and int(part) < len(table):
            table = table[int(part)]
        elif isinstance(table, dict) and part in table:
            table = table[part]
        else:
            return False
    return True


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables; `above` wins, key by key where that makes sense."""
    if any(below.get(key) != above.get(key) for key in WHOLE if key in above):
        return dict(above)
    found = deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _anchored(value: Any, folder: Path) -> Any:
    """The same with the names of files relative to `folder` made absolute."""
    if isinstance(value, list):
        return [_anchored(each, folder) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: str((folder / each).absolute())
        if key == "file" and isinstance(each, str)
        else _anchored(each, folder)
        for key, each in value.items()
    }
