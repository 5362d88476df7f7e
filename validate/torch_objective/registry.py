"""What scenarios name and packages, or scripts, may add to: models and data sets."""

from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name: `ours`, those that were `added` in this process, and those that installed
    packages offer as entry points of a `group`."""

    def __init__(self, group: str, ours: dict[str, T]) -> None:
        self._group, self._ours = group, ours
        self.added: dict[str, T] = {}

    def find(self, name: str) -> T | None:
        """What goes by a name, if anything does."""
        if name in self.added or name in self._ours:
            return self.added.get(name) or self._ours[name]
        offered = entry_points(group=self._group)
        found: T | None = offered[name].load() if name in offered.names else None
        return found

    @property
    def names(self) -> list[str]:
        """All names."""
        offered = entry_points(group=self._group).names
        return [*dict.fromkeys([*self._ours, *self.added, *sorted(offered)])]
