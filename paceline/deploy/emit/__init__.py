"""Write configuration and code for other frameworks: `paceline emit`.

Import `emit.emit`, which imports neither torch nor a framework.
"""

from collections.abc import Mapping
from typing import Any

from paceline.simulator.scenario.scenario import OWN


def table_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the [[algorithm]] table of a row, without keys of other tables."""
    given = {key: value for key, value in row["parameters"].items() if "." not in key}
    return {key: value for key, value in given.items() if key not in OWN} | {"name": row["name"]}
