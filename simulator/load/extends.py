"""`extends`: lay a scenario's tables over those of a profile."""

import os.path
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..inputs import paths
from ..inputs.messages import TAGS, get, holds
from .listing import shipped
from .toml_file import read

ASIDE = ("probe",)
"""Tables of a profile that only people read."""


def extended(
    table: dict[str, Any],
    file: str,
    folder: Path,
    *,
    anywhere: bool,
    allow_paths: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a scenario's table laid over its profile's, and the profile's own tables.

    The profile's name is relative to `folder`, or, if it may be `anywhere`, to the working
    directory. Raises InputError, also for a profile that names files outside its own folder, unless
    `allow_paths`.
    """
    name = table.get("extends")
    if not isinstance(name, str) or not name:
        return table, {}
    path = folder / name
    if anywhere and not os.path.exists(path) and os.path.exists(name):  # on the command line
        path = Path(name)
    home = None if os.path.exists(path) else shipped().get(name)
    profile = {} if home else {k: each for k, each in read(path).items() if k not in ASIDE}
    fitted = profile.keys() & {"overhead", "calibration"}
    if home or (not fitted and profile.keys() & {"algorithm", "cluster", "extends"}):
        raise InputError(
            f"{file}: extends = {name!r}: a scenario, which nothing extends, but profiles and an "
            "[objective] alone; give its keys with --set, vary them with `paceline sweep --vary`, "
            f"or change a copy of {home or path}"
        )
    if "extends" in profile:
        raise InputError(f"{path}: extends: a profile extends no other; calibrate it with --base")
    if not fitted and {*profile} != {"objective"}:
        raise InputError(
            f"{file}: extends = {name!r}: no profile, for it has neither [[overhead]] nor "
            "[calibration]; make one by `paceline probe` or `paceline calibrate`"
        )
    if not allow_paths and (wrong := paths.refusals(profile, str(path), path.parent)):
        raise InputError("\n".join(wrong.values()))
    for key, file_name in paths.named(profile):
        get(profile, key[:-1])[key[-1]] = str((path.parent / file_name).absolute())
    own = {key: each for key, each in table.items() if key != "extends"}
    whole = _merged(profile, own)
    calibration = whole.get("calibration")
    calibration = calibration if isinstance(calibration, dict) else {}
    for kind in ("sd", "draws"):
        if isinstance(calibration.get(kind), dict):
            # a number that the scenario sets itself has no standard error
            calibration[kind] = {
                key: each
                for key, each in calibration[kind].items()
                if _holds(whole, key) and not _holds(own, key)
            }
    return whole, profile


def demand_headers_once(table: dict[str, Any], profile: dict[str, Any], file: str) -> None:
    """Refuse TCP's headers on top of a bandwidth at which a profile's payloads travelled."""
    of_table, own = (get(each, ("network", "bandwidth")) for each in (table, profile))
    costs = get(profile, ("overhead",))  # of any type: what is wrong is for the validation to say
    effective = not isinstance(costs, list) or not any(
        holds(each, "transmission_factor") for each in costs
    )
    known = get(profile, ("calibration", "transport"))
    tcp = get(table, ("network", "transport")) == "tcp" != known
    if own is not None and own == of_table and effective and tcp:
        raise InputError(
            f'{file}: network.transport = "tcp": the profile\'s network.bandwidth = '
            f"{own!r} is the speed of payloads, from which headers are taken already; "
            "remove network.transport, or write the link's own bandwidth"
        )


def _holds(table: Any, key: str) -> bool:
    for part in key.split("."):
        if isinstance(table, list) and part.isdecimal() and int(part) < len(table):
            table = table[int(part)]
        elif isinstance(table, dict) and part in table:
            table = table[part]
        else:
            return False
    return True


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables key by key; `above` wins, as a whole if the two are of different kinds."""
    if any(below.get(key) != above.get(key) for key in TAGS if key in above):
        return dict(above)
    found = deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found
