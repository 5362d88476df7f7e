"""Registry of models and data sets that scenarios name, and packages and scripts extend."""

from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects by name: built in (`ours`), `added` in this process, or offered by installed
    packages as entry points of a `group`."""

    def __init__(self, group: str, ours: dict[str, T]) -> None:
        self._group, self._ours = group, ours
        self.added: dict[str, T] = {}

    def find(self, name: str) -> T | None:
        """Return the object of a name, None if there is none."""
        if name in self.added or name in self._ours:
            return self.added.get(name) or self._ours[name]
        offered = entry_points(group=self._group)
        found: T | None = offered[name].load() if name in offered.names else None
        return found

    @property
    def names(self) -> list[str]:
        """Return all names."""
        offered = entry_points(group=self._group).names
        return [*dict.fromkeys([*self._ours, *self.added, *sorted(offered)])]
