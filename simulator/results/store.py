"""Write run directories so that a killed command never leaves one that looks complete.

`run.json` is removed before anything else changes and written after everything else; each file
appears under its name only when complete. Finished runs of an unfinished command wait in `.parts`,
from which the same command resumes. One command at a time writes a directory.

No command overwrites results of other settings. A command's `settings` are everything that
determines its numbers, as JSON. They are in the document that completes its directory (`settings`
of run.json), and beside the stored runs of an unfinished directory.
"""

import errno
import hashlib
import io
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from ..errors import InputError
from ..inputs import untrusted
from ..inputs.toml_text import differing
from .documents import SHAPES, Owned, demand_shape
from .figures.style import FORMATS
from .run import COLUMNS, CURVE, Run

SCHEMA = 1
LARGEST_DOCUMENT = 100_000_000  # bytes; parsed JSON takes ten times as many
WHOLE, PARTS = "run.json", ".parts"
LOCK, SETTINGS = "lock", "settings.json"  # files in a folder of stored runs
REPEAT = "repeat the command that wrote it"
OTHER_PLACE = "choose another directory with --out"
ARRAYS = ("curve", "staleness", "spans")  # arrays of a stored run; the rest is stored as JSON
FIGURES = ("figure", "tau")
NAMES = (
    WHOLE,
    "curves.csv",
    "timeline.json",
    "events.csv",  # events of its nodes
    *(f"{n}.{e}" for n in FIGURES for e in FORMATS),
)
SWEEP_NAMES = ("sweep.json", "sweep.csv", *(f"sweep.{e}" for e in FORMATS))
SHOWN = 3  # differing keys that a refusal names
REPLACE = "replace them with --overwrite (in Python: overwrite=True), or choose another --out"

Settings = Mapping[str, Any]
D = TypeVar("D")


class TakenError(InputError):
    """A directory is in use, or holds files that would be lost; `why` excludes the remedy."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why


def demand_same(settings: Settings, other: Settings, path: Path, what: str = "results") -> None:
    """Raise TakenError if the settings of the results in `path`, `other`, differ from `settings`.

    Keys that only one of them has are not compared.
    """
    both = [key for key in settings if key in other]
    rows = differing([{key: table[key] for key in both} for table in (other, settings)])
    if rows:
        more = f", and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        shown = ", ".join(
            f"{key.removeprefix('scenario.')}: {was}, not {now}" for key, was, now in rows[:SHOWN]
        )
        raise TakenError(f"{path}: holds the {what} of other settings ({shown}{more})", REPLACE)


def free_file(path: Path, data: bytes | None, *, given: bool, overwrite: bool) -> Path:
    """Return where to write a file: `path` or, unless it was `given`, the next free name.

    A name is free if no file has it, or if its file contains exactly `data` (None: not known yet).
    Raises TakenError for a `given` name that is not free, unless `overwrite`.
    """
    name = path
    for number in count(2):
        if overwrite or not os.path.lexists(name):
            break
        size = name.stat().st_size if data is not None and name.is_file() else -1
        if data is not None and size == len(data) and untrusted.data(name, size) == data:
            break
        if given:
            raise TakenError(f"{name}: has other contents", REPLACE)
        name = path.with_stem(f"{path.stem}-{number}")
    return name


@cache
def versions(*others: str) -> dict[str, str]:
    """Return the versions of the packages on which numbers depend, and of `others`."""
    result = {"python": platform.python_version()}
    for package in ("paceline", "numpy", "scipy", "scikit-learn", *others):
        try:
            result[package] = version(package)
        except PackageNotFoundError:  # paceline run from a checkout, not installed
            result[package] = "not installed"
    return result


def demand_versions(expected: Mapping[str, str]) -> None:
    """Raise InputError if this process has other versions than `expected`."""
    here = versions(*sorted(expected.keys() - versions().keys()))
    if here != expected:
        raise InputError(
            f"a Dask worker has {here}, but this process has {expected}; "
            "install the same versions, because results depend on them"
        )


def encode(run: Run) -> bytes:
    """Return `run` as the bytes of an .npz archive without pickles."""
    header = {key: value for key, value in asdict(run).items() if key not in ARRAYS}
    arrays = {
        "curve": np.array([run.curve[column] for column in CURVE if column in run.curve]),
        "staleness": np.array([*run.staleness.items()], dtype=np.int64).reshape(-1, 2),
    }
    arrays |= {} if run.spans is None else {"spans": run.spans}
    buffer = io.BytesIO()
    np.savez(buffer, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decode(data: bytes) -> Run:
    """Return the run that `encode` wrote; raises ValueError for anything else."""
    try:
        with np.load(stored(io.BytesIO(data)), allow_pickle=False) as archive:
            rows = archive["curve"].tolist()
            curve = dict(zip(CURVE[: max(len(rows), len(COLUMNS))], rows, strict=True))
            staleness = dict(archive["staleness"].tolist())
            header = untrusted.loads(archive["header"].item())
            return Run(curve=curve, staleness=staleness, spans=archive.get("spans"), **header)
    except Exception as error:  # NumPy raises many kinds of errors on a damaged archive
        raise ValueError(f"not a stored run: {error}") from error


def stored(archive: BinaryIO) -> BinaryIO:
    """Return an .npz archive; raise ValueError if it is compressed."""
    with ZipFile(archive) as file:
        if any(part.compress_type != ZIP_STORED for part in file.infolist()):
            raise ValueError("compressed, unlike Paceline's archives")
    archive.seek(0)
    return archive


class Directory:
    """A run directory that one command is writing; use it in `with`, or `close` it.

    `settings`: everything that determines its results (None: do not compare). Results of other
    settings, complete or not, are replaced only if `overwrite`. Raises TakenError if that is
    refused, if another command is writing, or if other files would be overwritten. Raises
    InputError if the directory cannot be written.
    """

    whole, names, parts = WHOLE, NAMES, PARTS
    lasting = False  # whether stored runs stay there, also for other settings
    repeatable = True  # whether the same settings give the same results

    def __init__(
        self, path: Path, settings: Settings | None = None, *, overwrite: bool = False
    ) -> None:
        from filelock import FileLock, Timeout  # noqa: PLC0415 - 20 ms that most commands save

        self.path, self.settings = path, settings and json.loads(dump(settings))
        self.scratch, self.overwrite = path / self.parts, overwrite
        self._lock: FileLock | None = None
        lock = FileLock(self.scratch / LOCK)
        try:
            if not self.scratch.is_dir():
                self._demand()  # before anything is written
                self.scratch.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            self._lock = lock
            self._demand()
            if self.settings and not self.lasting:
                self._write(self.scratch / SETTINGS, dump(self.settings))
            self._begin()
        except Timeout:
            why = f"{path}: another command is writing here"
            raise TakenError(why, "wait until it has ended, or choose another --out") from None
        except OSError as error:
            self.close()
            raise InputError(
                f"{path}: cannot write here ({error.strerror}); choose a directory with --out"
            ) from error
        except InputError:
            self.close()
            raise

    def _begin(self) -> None:
        """Read the records of earlier commands, under the lock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory, and remove it if nothing was stored."""
        if self._lock is None:
            return
        with suppress(OSError):
            if {file.name for file in self.scratch.iterdir()} <= {LOCK, SETTINGS}:
                shutil.rmtree(self.scratch)  # there is nothing to resume
                self.path.rmdir()  # if it is empty
        self._lock.release()
        self._lock = None

    def _demand(self) -> None:
        """Raise TakenError where the directory holds files that must stay."""
        existing = [name for name in self.names if os.path.lexists(self.path / name)]
        unfinished = self.scratch / SETTINGS
        if (self.path / self.whole).is_file():
            self._demand_replaceable({*existing})
        elif existing and not self.scratch.is_dir():
            why = f"{self.path}: not a run directory, and its {existing[0]} would be overwritten"
            raise TakenError(why, OTHER_PLACE)
        elif unfinished.is_file() and self.settings and not self.overwrite:
            with untrusted.refused(unfinished, "remove it, or choose another --out"):
                other = untrusted.document(untrusted.data(unfinished))
            demand_same(self.settings, other, self.path, "unfinished results")

    def _demand_replaceable(self, existing: set[str]) -> None:
        """Raise TakenError unless the whole directory may be replaced."""
        may_replace = self.settings is None or self.overwrite
        try:
            document = read(self.path, self.whole)
        except InputError as error:
            if may_replace:
                return
            raise TakenError(str(error).partition("; ")[0], REPLACE) from None
        for name in existing - {*document["parts"], self.whole}:
            raise TakenError(
                f"{self.path}: its {name} does not belong to this run, and would be overwritten",
                "move it away, or choose another directory with --out",
            )
        if may_replace:
            return
        why = ""
        if "settings" not in document:
            why = "holds results without their settings"
        elif not (self.repeatable or (self.scratch / SETTINGS).is_file()):
            why = "holds measured runs, which cannot be repeated exactly"
        if "settings" in document:
            demand_same(self.settings or {}, self.known(document), self.path)
        if why:
            raise TakenError(f"{self.path}: {why}", REPLACE)

    def known(self, document: Mapping[str, Any]) -> Settings:
        """Return the settings in the document of a complete directory."""
        return dict(document.get("settings", {}))

    def find(self, key: str) -> Any:
        """Return the finished run stored under `key`, or None."""
        try:
            return decode(untrusted.data(self.scratch / f"{key}.npz", untrusted.LARGEST_WRITTEN))
        except (OSError, ValueError):
            return None

    def keep(self, key: str, result: Any) -> None:
        """Store a finished run under `key` until the directory is complete."""
        self._write(self.scratch / f"{key}.npz", encode(result))

    def finish(self, files: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
        """Replace the files of the directory by `files` and `document`; remove the parts."""
        self.replace(files, document)
        self.remove_parts()

    def remove_parts(self) -> None:
        """Remove the runs that were stored for resuming."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def replace(self, files: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
        """Replace the files of the directory by `files` and `document`."""
        for name in self.names:
            (self.path / name).unlink(missing_ok=True)
        for name, data in files.items():
            self._write(self.path / name, data)
        about: dict[str, Any] = {"schema": SCHEMA, **document, "parts": [*files]}
        if self.settings:
            about["settings"] = self.settings
        self._write(self.path / self.whole, dump(about))

    def _write(self, path: Path, data: bytes) -> None:
        write(path, data, scratch=self.scratch)  # unfinished files are removed with the parts


class KeptRuns(Directory):
    """A directory whose finished runs stay for later commands, such as claims."""

    whole, names, parts, lasting = "claims.json", ("claims.json",), ".runs", True


class SolveDirectory(Directory):
    """A directory of `paceline solve`: stored runs until it is complete, then solve.json."""

    whole, names = "solve.json", ("solve.json",)


class RecordDirectory(Directory):
    """A directory whose records stay, for later and larger commands.

    `kept`: every finished record by its key. Records are lines of one file, `log`, because there
    may be ten thousand of them. A line that a kill cut short is skipped.
    """

    lasting, log = True, "records.jsonl"

    def _begin(self) -> None:
        self._log = self.scratch / self.log
        lines = [b""]
        with untrusted.refused(self._log, "remove it, or choose another --out"):
            if self._log.exists():
                lines = untrusted.data(self._log, untrusted.LARGEST_WRITTEN).split(b"\n")
        self.kept: dict[str, Any] = {}
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                record = untrusted.loads(line)
                self.kept[record["key"]] = record["record"]
        if lines[-1]:  # cut short: the next record begins a new line
            self._append(b"\n")

    def find(self, key: str) -> Any:
        """Return the finished record stored under `key`, or None."""
        return self.kept.get(key)

    def keep(self, key: str, result: Any) -> None:
        """Store a finished record."""
        self._append(dump({"key": key, "record": result}, indent=None))

    def _append(self, line: bytes) -> None:
        with self._log.open("ab", buffering=0) as file:
            if file.write(line) < len(line):  # one write keeps it one line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))


class FitDirectory(Directory):
    """A directory of `paceline fit`: its runs stay for other targets."""

    whole, names, parts, lasting = "fit.json", ("fit.json",), ".fit", True


class SweepDirectory(RecordDirectory):
    """A directory that a sweep is writing; see `RecordDirectory`."""

    whole, names, parts, log = "sweep.json", SWEEP_NAMES, ".sweep", "points.jsonl"

    def known(self, document: Mapping[str, Any]) -> Settings:
        """Return the settings of a complete sweep; a sweep with more points may replace it."""
        assert self.settings is not None
        settings, points = dict(super().known(document)), self.settings["points"]
        if {*map(dump, settings.get("points", ()))} <= {*map(dump, points)}:
            settings["points"] = points
        return settings


@dataclass
class Destination:
    """Where a command writes: `path` or, unless it was `given`, the next free name.

    `overwrite`: results of other settings may be replaced. `say` is called if the name changes.
    """

    path: Path
    given: bool = True
    overwrite: bool = False
    say: Callable[[str], None] = lambda _: None

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def of(cls, out: "Path | str | Destination", overwrite: bool) -> "Destination":
        """Return `out` as a destination; `overwrite` applies if it is a path."""
        return out if isinstance(out, cls) else cls(Path(str(out)), overwrite=overwrite)

    def open(self, kind: Callable[..., D], settings: Settings) -> D:
        """Open the directory. Raises InputError if it cannot be written, or is taken."""
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


def write(path: Path, data: bytes, scratch: Path | None = None) -> None:
    """Write a file atomically, via the folder `scratch` (default: the file's own folder)."""
    scratch = scratch or path.parent
    scratch.mkdir(parents=True, exist_ok=True)  # another command may have removed the folder
    unfinished = scratch / f".{path.name}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:  # such as a full disk
        with suppress(OSError):
            unfinished.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_free(path: Path, data: bytes, *, given: bool, overwrite: bool) -> Path:
    """Write a file under the name from `free_file`, and return that name.

    Raises TakenError, and OSError if the file cannot be written.
    """
    path = free_file(path, data, given=given, overwrite=overwrite)
    write(path, data)
    return path


@contextmanager
def writing(place: Path | str, remedy: str) -> Iterator[None]:
    """Raise InputError with a remedy if files cannot be written at `place`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot write here ({error.strerror}); {remedy}") from None


def publish(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, by name, to the folder of a report. Raises InputError."""
    with writing(folder, "choose another --report"):
        for name, data in files.items():
            write(folder / name, data)


def identity(path: Path, name: str = WHOLE) -> str:
    """Return the SHA-256 of a complete directory's document, which a copy shares."""
    return hashlib.sha256(untrusted.data(path / name, LARGEST_DOCUMENT)).hexdigest()


def fingerprints(paths: Iterable[Path]) -> list[str]:
    """Return the SHA-256 of logs, and of the documents of directories."""
    hashes = []
    for path in paths:
        with (path if path.is_file() else path / WHOLE).open("rb") as content:
            hashes.append(hashlib.file_digest(content, "sha256").hexdigest())
    return sorted(hashes)


def load(path: Path | str, name: str = WHOLE) -> dict[str, Any]:
    """Return the document `name` like `read`, and check its shape in `documents.SHAPES`.

    Raises InputError for another shape.
    """
    document = read(path, name)
    with untrusted.refused(Path(path) / name, REPEAT, "not written by Paceline"):
        demand_shape(SHAPES[name], document)
    return document


def dump(document: Any, indent: int | None = 1) -> bytes:
    """Return `document` as strict JSON (no NaN), ending with a newline."""
    text = json.dumps(document, allow_nan=False, indent=indent)
    return f"{text}\n".encode()


def read(path: Path | str, name: str = WHOLE) -> dict[str, Any]:
    """Return the document `name` of a complete run directory.

    Raises InputError if it is not a run directory, is unfinished, or comes from another version of
    Paceline.
    """
    whole = Path(path) / name
    with untrusted.refused(whole, "give a run directory"):
        try:
            text = untrusted.text(whole, LARGEST_DOCUMENT)
        except FileNotFoundError:
            state = (
                "an unfinished run; repeat its command to resume"
                if (Path(path) / PARTS).is_dir()
                else f"not a run directory (no {name}); give one that paceline simulate wrote"
            )
            raise InputError(f"{path}: {state}") from None
    with untrusted.refused(whole, REPEAT, "not written by Paceline"):
        document = untrusted.document(text)
        schema = document["schema"]
        if schema != SCHEMA or isinstance(schema, bool):
            raise InputError(
                f"{whole}: written by another version of Paceline (schema {schema!r}; this one "
                f"reads {SCHEMA}); use that version"
            )
        demand_shape(Owned, document)
    return document
