"""Find objectives of other packages: entry points of `paceline.objectives`."""

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError
from ..results import store
from ..scenario.tables import (
    Bound,
    LearningCurve,
    NoObjective,
    Quadratic,
    Softmax,
)

if TYPE_CHECKING:  # they import this module
    from ..scenario.scenario import Scenario
    from .objective import Objective


class ObjectiveError(InputError):
    """Raised if a scenario's objective cannot be made: `path` is the key at fault, `what` why."""

    def __init__(self, path: tuple[str, ...], what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.what}"


class ObjectivePlugin(Protocol):
    """Maker of the objectives of one kind; an entry point of a package, such as a module.

    `PACKAGES`: distributions whose versions its numbers depend on, besides Paceline.
    """

    PACKAGES: tuple[str, ...]

    def make(self, scenario: "Scenario", seed: int) -> "Objective":
        """Make the objective of a scenario, for every algorithm with one seed."""

    def dimension(self, spec: Any) -> int:
        """Return the number of parameters. Raises ObjectiveError."""

    def check(self, scenario: "Scenario") -> None:
        """Raise ObjectiveError for a scenario whose objective cannot be made."""

    def sources(self, spec: Any) -> list[Path]:
        """Return the files of code that its numbers depend on, besides Paceline's."""


@cache
def plugin(kind: str) -> ObjectivePlugin:
    """Find the plug-in for objectives of a kind.

    Raises ObjectiveError if the plug-in, or a package that it needs, is not installed.
    """
    for entry in entry_points(group="paceline.objectives", name=kind):
        try:
            loaded: ObjectivePlugin = entry.load()
        except ModuleNotFoundError as error:
            what = f'needs {error.name}, which is not installed; pip install "paceline[train]"'
            raise ObjectiveError(("objective", "kind"), what) from None
        return loaded
    what = 'not known to this installation; pip install "paceline[train]"'
    raise ObjectiveError(("objective", "kind"), what)


def other(spec: Any) -> ObjectivePlugin | None:
    """Return the plug-in of an objective; None for our own. Raises ObjectiveError."""
    ours = Bound | Quadratic | Softmax | LearningCurve | NoObjective
    return None if isinstance(spec, ours) or hasattr(spec, "make") else plugin(spec.kind)


def versions(*specs: Any) -> dict[str, str]:
    """Return the versions of all packages that the numbers of objectives depend on."""
    plugins = filter(None, map(other, specs))
    return store.versions(*sorted({package for maker in plugins for package in maker.PACKAGES}))


def data(spec: Any) -> list[tuple[str, int, int]]:
    """Return a fingerprint of an objective's data files, without reading them."""
    folder = getattr(spec, "folder", None)
    return [] if folder is None else _listed(Path(folder))


@cache  # data are read once per process: later changes affect no number
def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """List name, size (bytes) and time of modification (ns) of all files below a folder."""
    files = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        (path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns)
        for path, stat in files
    ]
