"""Whether anything in a scenario is random: if not, one seed tells as much as many."""

import tomllib
from pathlib import Path
from typing import Any

from ..inputs import untrusted
from ..programs import catalogue
from ..scenario.scenario import Scenario, laws

PLAIN = tomllib.loads(untrusted.text(Path(__file__).with_suffix(".toml")))
"""Keys by which nothing becomes random, by table; and `tables` that have no others."""
KINDS = ("none", "bound")  # objectives that draw nothing


def deterministic(scenario: Scenario) -> bool:
    """Tell whether the runs of a scenario are the same with every seed.

    False where that is not certain, as with codecs and with a user's own algorithms.
    """
    table = scenario.table
    programs = catalogue()
    return (
        table.keys() <= {*PLAIN["tables"]}
        and scenario.objective.kind in KINDS
        and all(_plain(name, table.get(name, {})) for name in ("cluster", "network", "server"))
        and all(law.is_constant for law in laws(scenario.cluster, scenario.network))
        and all(
            one.name in programs and not programs[one.name].gossips and "codec" not in one.table
            for one in scenario.algorithm
        )
    )


def _plain(name: str, table: Any) -> bool:
    """Whether a table and its inner tables have plain keys only."""
    inner = [(key, entry) for key in ("group", "link") for entry in table.get(key, ())]
    return table.keys() <= {*PLAIN[name]} and all(_plain(*entry) for entry in inner)
