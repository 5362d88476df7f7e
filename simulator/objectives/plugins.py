"""Find objectives of other packages, the entry points of `paceline.objectives`."""

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError
from ..results import store
from ..scenario.tables import Bound, LearningCurve, NoObjective, Quadratic, Softmax

if TYPE_CHECKING:  # these packages import this module
    from ..scenario.scenario import Scenario
    from .objective import Objective


class ObjectiveError(InputError):
    """An objective cannot be made: `path` is the key at fault, `what` the reason."""

    def __init__(self, path: tuple[str, ...], what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.what}"


class ObjectivePlugin(Protocol):
    """Maker of objectives of one kind: an entry point of a package, such as a module.

    `PACKAGES`: further distributions whose versions affect its numbers.
    """

    PACKAGES: tuple[str, ...]

    def make(self, scenario: "Scenario", seed: int) -> "Objective":
        """Make the objective of a scenario for one seed and any algorithm."""

    def dimension(self, spec: Any) -> int:
        """Return the number of parameters. Raises ObjectiveError."""

    def check(self, scenario: "Scenario") -> None:
        """Raise ObjectiveError for a scenario whose objective cannot be made."""

    def sources(self, spec: Any) -> list[Path]:
        """Return further files of code that affect its numbers."""


@cache
def plugin(kind: str) -> ObjectivePlugin:
    """Find the plug-in for objectives of a kind.

    Raises ObjectiveError if the plug-in, or a package that it needs, is not installed.
    """
    problem = "not installed"
    for entry in entry_points(group="paceline.objectives", name=kind):
        try:
            loaded: ObjectivePlugin = entry.load()
            return loaded
        except ModuleNotFoundError as error:
            problem = f"needs {error.name}, which is not installed"
    raise ObjectiveError(
        ("objective", "kind"), f'{problem}; pip install "paceline[train]"'
    ) from None


def plugin_of(spec: Any) -> ObjectivePlugin | None:
    """Return an objective's plug-in; None if it is built in. Raises ObjectiveError."""
    ours = Bound | Quadratic | Softmax | LearningCurve | NoObjective
    return None if isinstance(spec, ours) or hasattr(spec, "make") else plugin(spec.kind)


def versions(*specs: Any) -> dict[str, str]:
    """Return the versions of all packages that affect the numbers of objectives."""
    plugins = filter(None, map(plugin_of, specs))
    return store.versions(*sorted({package for maker in plugins for package in maker.PACKAGES}))


def data(spec: Any) -> list[tuple[str, int, int]]:
    """Return a fingerprint of an objective's data files, without reading them."""
    folder = getattr(spec, "folder", None)
    return [] if folder is None else _listed(Path(folder))


@cache  # data are read once per process, so later changes do not matter
def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """List names, bytes and modification times (ns) of all files below a folder."""
    files = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        (path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns)
        for path, stat in files
    ]
