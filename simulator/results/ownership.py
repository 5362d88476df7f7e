"""Whose a directory is: one command at a time writes it, and none over results of other settings.

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

LOCK, HOLDER, SETTINGS = "lock", "holder", "settings.json"  # files of a folder of kept runs
SHOWN = 3  # differing keys that a refusal names
REPLACE = "replace that by --overwrite (in Python: overwrite=True), or choose another --out"
MISSING = object()

Settings = Mapping[str, Any]


class TakenError(InputError):
    """A directory is another command's, or holds what would be lost; `why` without a remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why


class Lock:
    """Holds `folder` against other commands, until released or until this process ends.

    Raises TakenError, which calls the folder `name`, where another command holds it; OSError where
    it cannot be locked.
    """

    def __init__(self, folder: Path, name: Path) -> None:
        from filelock import FileLock, Timeout  # noqa: PLC0415 - 20 ms that most commands save

        self._lock, self._holder = FileLock(folder / LOCK), folder / HOLDER
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise TakenError(
                f"{name}: another command{_process(self._holder)} is writing here",
                "wait until it has ended, or choose another --out",
            ) from None
        self._holder.write_text(str(os.getpid()))  # on Windows nothing can read a locked file

    def release(self) -> None:
        """Let other commands have the folder."""
        self._holder.unlink(missing_ok=True)
        self._lock.release()


def _process(holder: Path) -> str:
    try:
        with holder.open("rb") as file:
            return f" (process {int(file.read(20))})"
    except (OSError, ValueError):
        return ""


def demand_same(settings: Settings, other: Settings, path: Path, what: str = "results") -> None:
    """Raise TakenError if those `other` settings, of what is in `path`, differ from `settings`.

    Keys that one of them lacks altogether are not compared.
    """
    both = [key for key in settings if key in other]
    apart = [each for key in both for each in differences(other[key], settings[key], (key,))]
    if apart:
        more = f", and {len(apart) - SHOWN} more" if len(apart) > SHOWN else ""
        raise TakenError(
            f"{path}: holds the {what} of other settings ({', '.join(apart[:SHOWN])}{more})",
            REPLACE,
        )


def differences(old: Any, new: Any, path: messages.KeyPath) -> Iterator[str]:
    """Say which keys below `path` differ, and what their values were and are now."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key, MISSING), new.get(key, MISSING), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, (*path, index))
    elif old != new:
        shown = path[1:] if path[0] == "scenario" and path[1:] else path
        was, now = ("absent" if each is MISSING else messages.show(each) for each in (old, new))
        yield f"{messages.dotted(shown)}: {was}, not {now}"


D = TypeVar("D")


def free_file(path: Path, data: bytes | None, *, given: bool, overwrite: bool) -> Path:
    """Return where a file may be written: `path`, or unless that was `given`, the next free name.

    A name is free where nothing is, or the very `data` (None: not known yet). Raises TakenError
    for a `given` one that is not, unless `overwrite`.
    """
    for number in count(1):
        name = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        if overwrite or not os.path.lexists(name) or holds(name, data):
            return name
        if given:
            raise TakenError(f"{name}: holds something else", REPLACE)
    raise AssertionError("numbers do not end")


def holds(file: Path, data: bytes | None) -> bool:
    """Whether a file holds the very `data`."""
    return (
        data is not None
        and file.is_file()
        and file.stat().st_size == len(data)
        and untrusted.data(file, len(data)) == data
    )


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
        first, why = self.path, ""
        for number in count(1):
            try:
                found = kind(self.path, settings, overwrite=self.overwrite)
            except TakenError as error:
                if self.given:
                    raise
                why = why or error.why
                self.path = first.with_name(f"{first.name}-{number + 1}")
            else:
                break
        if self.path != first:
            self.say(f"{why}: results go to {self.path}")
        return found
