"""Whose a directory is: no command writes over results of other settings.

A command's `settings` are all that its numbers follow from, as JSON; they are in the document that
ends its directory (`settings` of run.json), and beside the kept runs of an unfinished one.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from ..inputs import messages, untrusted

SHOWN = 3  # differing keys that a refusal names
REPLACE = "replace that by --overwrite (in Python: overwrite=True), or choose another --out"
MISSING = object()

Settings = Mapping[str, Any]
D = TypeVar("D")


class TakenError(InputError):
    """A directory is another command's, or holds what would be lost; `why` without a remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why


def demand_same(settings: Settings, other: Settings, path: Path, what: str = "results") -> None:
    """Raise TakenError if those `other` settings, of what is in `path`, differ from `settings`.

    Keys that one of them lacks altogether are not compared.
    """
    both = [key for key in settings if key in other]
    changed = [text for key in both for text in differences(other[key], settings[key], (key,))]
    if changed:
        more = f", and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        shown = ", ".join(changed[:SHOWN])
        raise TakenError(f"{path}: holds the {what} of other settings ({shown}{more})", REPLACE)


def differences(old: Any, new: Any, path: messages.KeyPath) -> Iterator[str]:
    """Yield which keys below `path` differ, and what their values were and are now."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key, MISSING), new.get(key, MISSING), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, (*path, index))
    elif old != new:
        shown = path[1:] if path[0] == "scenario" and path[1:] else path
        was, now = ("absent" if v is MISSING else messages.show(v) for v in (old, new))
        yield f"{messages.dotted(shown)}: {was}, not {now}"


def free_file(path: Path, data: bytes | None, *, given: bool, overwrite: bool) -> Path:
    """Return where a file may be written: `path`, or unless that was `given`, the next free name.

    A name is free where nothing is, or the very `data` (None: not known yet). Raises TakenError
    for a `given` one that is not, unless `overwrite`.
    """
    name = path
    for number in count(2):
        if overwrite or not os.path.lexists(name) or holds(name, data):
            break
        if given:
            raise TakenError(f"{name}: holds something else", REPLACE)
        name = path.with_stem(f"{path.stem}-{number}")
    return name


def holds(file: Path, data: bytes | None) -> bool:
    """Whether a file holds the very `data`."""
    if data is None or not file.is_file() or file.stat().st_size != len(data):
        return False
    return untrusted.data(file, len(data)) == data


@dataclass
class Destination:
    """Where a command writes: `path`, or unless that was `given`, the next free name after it.

    `overwrite`: results of other settings may be replaced; `say` is told of another name.
    """

    path: Path
    given: bool = True
    overwrite: bool = False
    say: Callable[[str], None] = lambda _: None

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def of(cls, out: "Path | str | Destination", overwrite: bool) -> "Destination":
        """Return `out` as a destination; `overwrite`: of one that is a path."""
        return out if isinstance(out, cls) else cls(Path(str(out)), overwrite=overwrite)

    def open(self, kind: Callable[..., D], settings: Settings) -> D:
        """Open the directory. Raises InputError where it cannot be written, or is another's."""
        first, reason = self.path, ""
        for number in count(2):
            try:
                directory = kind(self.path, settings, overwrite=self.overwrite)
                break
            except TakenError as error:
                if self.given:
                    raise
                reason = reason or error.why
                self.path = first.with_name(f"{first.name}-{number}")
        if self.path != first:
            self.say(f"{reason}: results go to {self.path}")
        return directory
