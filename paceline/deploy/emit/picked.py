"""Find the pick: what a run directory chose, or a scenario's algorithm by its label."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.simulator.cluster.prices import worker_devices
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load, parse
from paceline.simulator.reports.page import reading
from paceline.simulator.results.pick import to_run
from paceline.simulator.scenario.scenario import OWN, Algorithm, Scenario


@dataclass(frozen=True)
class Pick:
    """An algorithm to run, its scenario, and `notes` on how it was chosen."""

    scenario: Scenario
    algorithm: Algorithm
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """The devices of the largest worker."""
        return int(worker_devices(self.scenario).max())


def find(
    where: Path, label: str | None, overrides: Sequence[str] = (), allow_paths: bool = False
) -> Pick:
    """Return the pick of a run directory, or of a scenario the algorithm with this label.

    `label`: may name another algorithm of a run directory; a scenario with one needs none. Raises
    InputError where nothing was picked, or no algorithm has the label.
    """
    if where.is_dir():
        return _of_run(where, label, overrides, allow_paths)
    scenario = load(where, overrides, allow_paths=allow_paths)
    return Pick(scenario, _labelled(scenario, label))


def _of_run(folder: Path, label: str | None, overrides: Sequence[str], allow_paths: bool) -> Pick:
    """Return what a run directory of simulate, tune or validate picked."""
    (found,) = reading.read([folder])
    if "pick" not in found.document or "table" not in found.scenario:
        raise InputError(
            f"{folder}: picks no algorithm; give a directory of paceline simulate or tune, or a "
            "scenario and --algorithm"
        )
    pick, about = found.document["pick"], found.scenario
    chosen = to_run(found.document, label, f"{folder} (--algorithm)")
    if chosen is None:
        raise InputError(f"{folder}: nothing was picked ({pick['sentence']}); write --algorithm")
    table = dict(about["table"])
    if found.tune:
        rows = {row["label"]: row for row in found.tune["ranking"]}
        if not isinstance(rows.get(chosen, {}).get("parameters"), dict):
            raise InputError(f"{folder}: {chosen} was not tried; tune.json has what was")
        table["algorithm"] = [_table(rows[chosen])]
    file = str(about["file"])
    scenario = parse(
        table, file=file, folder=Path(file).parent, overrides=overrides, allow_paths=allow_paths
    )
    notes = () if label or pick.get("decided", True) else (f"undecided: {pick['sentence']}",)
    return Pick(
        scenario, scenario.algorithm[0] if found.tune else _labelled(scenario, chosen), notes
    )


def _table(row: dict[str, Any]) -> dict[str, Any]:
    """Return the [[algorithm]] table of a configuration that tune has tried."""
    own = {key: each for key, each in row["parameters"].items() if "." not in key}
    return {key: each for key, each in own.items() if key not in OWN} | {"name": row["name"]}


def _labelled(scenario: Scenario, label: str | None) -> Algorithm:
    """Return the algorithm with a label; without one, the only algorithm."""
    labels = [each.label for each in scenario.algorithm]
    fitting = [each for each in scenario.algorithm if label in (None, each.label, each.name)]
    if len(fitting) != 1:
        wrong = f"no algorithm {label!r}" if label else "which algorithm?"
        raise InputError(
            f"{scenario.file}: {wrong}; write --algorithm with one of: {', '.join(labels)}"
        )
    return fitting[0]
