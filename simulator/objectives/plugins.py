"""Objectives of other packages: what makes them is an entry point of `paceline.objectives`."""

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.simulator.errors import InputError
from paceline.simulator.results import store
from paceline.simulator.scenario.tables import Bound, NoObjective, Quadratic, Softmax

if TYPE_CHECKING:  # they import this module
    from paceline.simulator.objectives.objective import Objective
    from paceline.simulator.scenario.scenario import Scenario


class ObjectiveError(InputError):
    """A scenario's objective cannot be had: `path` is the key at fault, `what` the rest."""

    def __init__(self, path: tuple[str, ...], what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.what}"


class ObjectivePlugin(Protocol):
    """What makes objectives of one kind; a package offers it as an entry point, perhaps a module.

    `PACKAGES`: distributions whose versions its numbers depend on, besides our own.
    """

    PACKAGES: tuple[str, ...]

    def make(self, scenario: "Scenario", seed: int) -> "Objective":
        """Make the objective of a scenario, as every algorithm with one seed meets it."""

    def dimension(self, spec: Any) -> int:
        """Entries of the parameters. Raises ObjectiveError."""

    def check(self, scenario: "Scenario") -> None:
        """Raise ObjectiveError for a scenario whose objective could not be made."""

    def sources(self, spec: Any) -> list[Path]:
        """Files of code that its numbers depend on, besides ours."""


@cache
def plugin(kind: str) -> ObjectivePlugin:
    """Find what makes objectives of a kind that is not made here: `paceline.objectives`.

    Raises ObjectiveError where it, or what it needs, is not installed.
    """
    for entry in entry_points(group="paceline.objectives", name=kind):
        try:
            found: ObjectivePlugin = entry.load()
        except ModuleNotFoundError as error:
            what = f'needs {error.name}, which is not installed; pip install "paceline[train]"'
            raise ObjectiveError(("objective", "kind"), what) from None
        return found
    what = 'not known to this installation; pip install "paceline[train]"'
    raise ObjectiveError(("objective", "kind"), what)


def other(spec: Any) -> ObjectivePlugin | None:
    """What makes an objective that `objectives.objective` does not. Raises ObjectiveError."""
    ours = Bound | Quadratic | Softmax | NoObjective
    return None if isinstance(spec, ours) else plugin(spec.kind)


def versions(*specs: Any) -> dict[str, str]:
    """Versions of all that the numbers of objectives depend on."""
    found = filter(None, map(other, specs))
    return store.versions(*sorted({package for each in found for package in each.PACKAGES}))


def data(spec: Any) -> list[tuple[str, int, int]]:
    """What tells the files of an objective's data from others, without reading them."""
    folder = getattr(spec, "folder", None)
    return [] if folder is None else _listed(Path(folder))


@cache  # as data are read once: what is changed later is not in the numbers
def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of modification (ns) of all files in a folder and in its folders."""
    files = [(each, each.stat()) for each in sorted(folder.rglob("*")) if each.is_file()]
    return [
        (each.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns)
        for each, stat in files
    ]
