"""Read RUN directories of any command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonpath
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...inputs import untrusted
from ...results import read as directories
from ...results import store
from ...results.columns import RESULT_COLUMNS
from ...results.documents import COMPARISON, SWEEP, TUNE, Number, demand_shape
from ...results.read import RunDirectory
from ...results.verdict import reasons_in

SIDES = ("predicted", "measured")
SWEPT = ("repeat the command of the sweep", "not a sweep's table")  # remedy and problem
NUMBERS = [
    "seeds",
    "reached",
    *(f"{c.key}{end}" for c in RESULT_COLUMNS for end in ("", "_low", "_high")),
]


@dataclass(frozen=True)
class FoundRun:
    """One RUN: the documents that simulate, validate, compare, tune or sweep wrote there.

    `sides`: its run directories, by "predicted" and "measured". The other fields are commands'
    documents, None if another command wrote this RUN.
    """

    name: str
    path: Path
    sides: dict[str, RunDirectory] = field(default_factory=dict)
    comparison: dict[str, Any] | None = None
    tune: dict[str, Any] | None = None
    sweep: dict[str, Any] | None = None

    @property
    def main(self) -> RunDirectory | None:
        """The run directory with the pick: the prediction if there is one."""
        return next(iter(self.sides.values()), None)

    @property
    def document(self) -> dict[str, Any]:
        """The document with the scenario, seeds, versions, notes and warnings."""
        if self.main:
            return self.main.summary | {"scenario": self.scenario}
        return self.tune or self.sweep or self.comparison or {}

    @property
    def scenario(self) -> dict[str, Any]:
        """The scenario's title and file, and its `table` if the command stored it."""
        if self.main:
            return {**self.main.summary["scenario"], "table": self.main.table}
        return dict((self.tune or self.sweep or self.comparison or {})["scenario"])

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict that the command wrote; for a comparison, its sentence."""
        document = self.main.summary if self.main else self.tune or self.sweep or {}
        sentence = (self.comparison or {}).get("sentence", "")
        alone = {"sentence": sentence, "pick": None, "reasons": []}
        alone |= {"would_decide": None, "basis": None}
        return dict(document.get("verdict") or alone)

    @property
    def reasons(self) -> list[str]:
        """The reasons for the verdict, in words."""
        compared = [self.comparison["sentence"]] if self.comparison and self.main else []
        return [*reasons_in(self.verdict), *compared]

    @property
    def target(self) -> float | None:
        """The target loss, if any."""
        target: float | None = self.scenario.get("table", {}).get("run", {}).get("target_loss")
        return target


def read(paths: Sequence[Path]) -> list[FoundRun]:
    """Read all `paths`, and name them without the folders that all share. Raises InputError."""
    whole = [path.resolve() for path in paths]
    if len(set(whole)) < len(whole):
        twice = next(path for path in paths if whole.count(path.resolve()) > 1)
        raise InputError(f"{twice}: given twice; give every RUN once")
    shared = Path(commonpath([path.parent for path in whole]))
    return [_read(path, str(path.resolve().relative_to(shared))) for path in paths]


def _read(path: Path, name: str) -> FoundRun:
    if not path.exists():
        raise InputError(f"{path}: no such directory; give one that paceline simulate wrote")
    there = {side: path / side for side in SIDES if (path / side / store.WHOLE).is_file()}
    documents = {
        key: store.load(path, file)
        for key, file in (("comparison", COMPARISON), ("tune", TUNE), ("sweep", SWEEP))
        if (path / file).is_file()
    }
    if (path / store.WHOLE).is_file():
        run = directories.read(path)
        return FoundRun(name, path, {SIDES[run.is_measured]: run}, **documents)
    if there:
        sides = {side: directories.read(folder) for side, folder in there.items()}
        return FoundRun(name, path, sides, **documents)
    if not documents:
        if (path / store.PARTS).is_dir():
            directories.read(path)  # raises InputError: it is unfinished
        raise InputError(
            f"{path}: no run.json, tune.json, sweep.json or comparison.json; give a directory "
            "that paceline simulate, tune, sweep, validate or compare wrote"
        )
    if "sweep" in documents:
        with untrusted.refused(path / SWEEP, *SWEPT):
            _demand_rows(documents["sweep"])
    return FoundRun(name, path, {}, **documents)


def _demand_rows(sweep: Mapping[str, Any]) -> None:
    """Raise ValueError for rows of a sweep that cannot be drawn."""
    for row in sweep["rows"]:
        demand_shape(str, row["label"])
        demand_shape(dict[str, Number], {key: row.get(key) for key in NUMBERS})
        if missing := sweep["vary"].keys() - row.keys():
            raise ValueError(f"no column {min(missing)}")
