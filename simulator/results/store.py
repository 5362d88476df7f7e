"""Run directories: written so that a killed command never leaves one that looks whole.

`run.json` is removed before anything else changes and written after everything else; each file
appears under its name only when complete. Finished runs of an unfinished command wait in `.parts`,
from which the same command resumes.
"""

import errno
import hashlib
import io
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, Self
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from ..errors import InputError
from ..inputs import untrusted
from . import ownership
from .documents import SHAPES, Owned, demand_shape
from .figures.style import FORMATS
from .run import COLUMNS, CURVE, Run

SCHEMA = 1
LARGEST_DOCUMENT = 100_000_000  # bytes; parsed, JSON takes ten times as many
WHOLE = "run.json"
REPEAT = "repeat the command that wrote it"
PARTS = ".parts"
ARRAYS = ("curve", "staleness", "spans", "arrows")  # of a kept run; the rest of it is kept as JSON
FIGURES = ("figure", "breakdown", "tau", "staleness")
NAMES = (
    WHOLE,
    "curves.csv",
    "timeline.json",
    "outcomes.json",  # replay log of a real run
    "events.csv",  # events of its nodes
    "landscape.json",  # curvature and gradient noise along its path
    *(f"{n}.{e}" for n in FIGURES for e in FORMATS),
)
SWEEP_NAMES = ("sweep.json", "sweep.csv", "sweep-seeds.csv", *(f"sweep.{e}" for e in FORMATS))


@cache
def versions(*others: str) -> dict[str, str]:
    """Return the versions of packages that numbers depend on; `others`: those of an objective."""
    found = {"python": platform.python_version()}
    for package in ("paceline", "numpy", "scipy", "scikit-learn", *others):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # paceline run from a checkout, not installed
            found[package] = "not installed"
    return found


def demand_versions(expected: Mapping[str, str]) -> None:
    """Raise InputError where this process has other versions than `expected`."""
    found = versions(*sorted(expected.keys() - versions().keys()))
    if found != expected:
        raise InputError(
            f"a Dask worker has {found}, but this process has {expected}; "
            "numbers are only the same with the same versions: install those"
        )


def encode(run: Run) -> bytes:
    """Return `run` as the bytes of an .npz archive without pickles."""
    header = {key: value for key, value in asdict(run).items() if key not in ARRAYS}
    arrays = {
        "curve": np.array([run.curve[column] for column in CURVE if column in run.curve]),
        "staleness": np.array([*run.staleness.items()], dtype=np.int64).reshape(-1, 2),
    }
    kept = {"spans": run.spans, "arrows": run.arrows}
    arrays |= {name: each for name, each in kept.items() if each is not None}
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
            kept = {name: archive.get(name) for name in ("spans", "arrows")}
            return Run(curve=curve, staleness=staleness, **kept, **header)
    except Exception as error:  # NumPy raises all kinds on a damaged archive
        raise ValueError(f"not a kept run: {error}") from error


def stored(archive: BinaryIO) -> BinaryIO:
    """Return an .npz archive, read no further than its size: raises ValueError if compressed."""
    with ZipFile(archive) as found:
        if any(each.compress_type != ZIP_STORED for each in found.infolist()):
            raise ValueError("compressed, as no archive of Paceline is")
    archive.seek(0)
    return archive


class Directory:
    """A run directory that a command is writing, alone; use it in `with`, or `close` it.

    `settings`: all that its results follow from; those of other settings, in the directory or
    unfinished, are replaced only if `overwrite`. None: nothing is compared. Raises TakenError where
    that is refused, where another command is writing, or where files of other origin would be
    overwritten; InputError where nothing can be written.
    """

    whole, names, parts = WHOLE, NAMES, PARTS
    lasting = False  # whether kept runs stay there, for other settings too
    repeatable = True  # whether the same settings give the same results

    def __init__(
        self, path: Path, settings: ownership.Settings | None = None, *, overwrite: bool = False
    ) -> None:
        self.path, self.settings = path, settings and json.loads(dump(settings))
        self._parts = path / self.parts
        self.overwrite = overwrite
        self._lock: ownership.Lock | None = None
        try:
            if not self._parts.is_dir():
                self._demand()  # before anything is written
                self._parts.mkdir(parents=True, exist_ok=True)
            self._lock = ownership.Lock(self._parts, path)
            self._demand()
            if self.settings and not self.lasting:
                self._write(self._unfinished, dump(self.settings))
            self._begin()
        except OSError as error:
            self.close()
            raise InputError(
                f"{path}: cannot write here ({error.strerror}); choose a directory with --out"
            ) from error
        except InputError:
            self.close()
            raise

    def _begin(self) -> None:
        """Read what is kept, once no other command writes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other commands have the directory; leave no trace where nothing was kept."""
        if self._lock is None:
            return
        ours = {ownership.LOCK, ownership.HOLDER, ownership.SETTINGS}
        with suppress(OSError):
            if ours.issuperset(each.name for each in self._parts.iterdir()):  # nothing to resume
                shutil.rmtree(self._parts)
                self.path.rmdir()  # if it is empty
        self._lock.release()
        self._lock = None

    def _demand(self) -> None:
        """Raise TakenError where the directory holds what must not be replaced."""
        there = {name for name in self.names if os.path.lexists(self.path / name)}
        if (self.path / self.whole).is_file():
            self._demand_replaceable(there)
        elif there and not self._parts.is_dir():
            name = next(name for name in self.names if name in there)
            raise ownership.TakenError(
                f"{self.path}: not a run directory, and its {name} would be overwritten",
                "choose another directory with --out",
            )
        elif self._unfinished.is_file() and self.settings and not self.overwrite:
            with untrusted.refused(self._unfinished, "remove it, or choose another --out"):
                other = untrusted.document(untrusted.data(self._unfinished))
            ownership.demand_same(self.settings, other, self.path, "unfinished results")

    @property
    def _unfinished(self) -> Path:
        return self._parts / ownership.SETTINGS

    def _demand_replaceable(self, there: set[str]) -> None:
        """Raise TakenError unless the whole directory may be replaced."""
        try:
            document = read(self.path, self.whole)
        except InputError as error:
            if self.settings and not self.overwrite:
                why = str(error).partition("; ")[0]
                raise ownership.TakenError(why, ownership.REPLACE) from None
            return
        for name in there - {*document["parts"], self.whole}:
            raise ownership.TakenError(
                f"{self.path}: its {name} is not of this run, and would be overwritten",
                "move it away, or choose another directory with --out",
            )
        if self.settings is None or self.overwrite:
            return
        if "settings" not in document:
            raise ownership.TakenError(
                f"{self.path}: holds results whose settings it does not state", ownership.REPLACE
            )
        ownership.demand_same(self.settings, self.known(document), self.path)
        if not (self.repeatable or self._unfinished.is_file()):
            raise ownership.TakenError(
                f"{self.path}: holds measured runs, which do not come again as they were",
                ownership.REPLACE,
            )

    def known(self, document: Mapping[str, Any]) -> ownership.Settings:
        """Return the settings of a whole directory, as far as its `document` has them."""
        return dict(document.get("settings", {}))

    @property
    def scratch(self) -> Path:
        """A folder for files that are kept until the directory is whole."""
        return self._parts

    def part(self, key: str) -> Run | None:
        """Return the finished run kept under `key`, if there is one."""
        try:
            return decode(untrusted.data(self._parts / f"{key}.npz", untrusted.LARGEST_WRITTEN))
        except (OSError, ValueError):
            return None

    def keep(self, key: str, run: Run) -> None:
        """Keep a finished run under `key` until the directory is whole."""
        self._write(self._parts / f"{key}.npz", encode(run))

    def finish(self, files: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
        """Replace the files of the directory by `files` and `document`; remove the parts."""
        self.replace(files, document)
        self.remove_parts()

    def remove_parts(self) -> None:
        """Remove the runs kept for resuming."""
        shutil.rmtree(self._parts, ignore_errors=True)

    def replace(self, files: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
        """Replace the files of the directory by `files` and `document`, which says their hashes."""
        for name in self.names:
            (self.path / name).unlink(missing_ok=True)
        for name, data in files.items():
            self._write(self.path / name, data)
        about: dict[str, Any] = {"schema": SCHEMA, **document, "parts": hashes(files)}
        if self.settings:
            about["settings"] = self.settings
        self._write(self.path / self.whole, dump(about))

    def _write(self, path: Path, data: bytes) -> None:
        write(path, data, scratch=self._parts)  # an unfinished file goes with the parts


class KeptRuns(Directory):
    """A directory in which finished runs stay for later commands, with the claims they support.

    Raises InputError as a run directory does.
    """

    whole, names, parts, lasting = "claims.json", ("claims.json",), ".runs", True


class SolveDirectory(Directory):
    """A directory of `paceline solve`: runs until it is whole, then solve.json."""

    whole, names = "solve.json", ("solve.json",)


class RecordDirectory(Directory):
    """A directory that a command is writing; its records stay, for later and larger commands.

    `kept`: every finished record by its key. They are lines of one file, `log`, for there may be
    ten thousand of them; a line cut short by a kill is skipped.
    """

    lasting, log = True, "records.jsonl"

    def _begin(self) -> None:
        self._log = self._parts / self.log
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

    def keep_record(self, key: str, record: Any) -> None:
        """Keep a finished record."""
        self._append(dump({"key": key, "record": record}, indent=None))

    def _append(self, line: bytes) -> None:
        with self._log.open("ab", buffering=0) as file:
            if file.write(line) < len(line):  # in one write, or the next record would join it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))


class FitDirectory(RecordDirectory):
    """A directory of `paceline fit`: what each simulation gave stays, also for other targets."""

    whole, names, parts = "fit.json", ("fit.json",), ".fit"


class SweepDirectory(RecordDirectory):
    """A directory that a sweep is writing; see `RecordDirectory`."""

    whole, names, parts, log = "sweep.json", SWEEP_NAMES, ".sweep", "points.jsonl"

    def known(self, document: Mapping[str, Any]) -> ownership.Settings:
        """Return the settings of a whole sweep; one with more points may take its place."""
        assert self.settings is not None
        known, asked = dict(super().known(document)), self.settings["points"]
        if {*map(dump, known.get("points", ()))} <= {*map(dump, asked)}:
            known["points"] = asked
        return known


def write(path: Path, data: bytes, scratch: Path | None = None, *, new: bool = False) -> None:
    """Write a file atomically; it grows in the folder `scratch` (default: its own).

    `new`: nothing is there, or FileExistsError is raised. Raises OSError.
    """
    scratch = scratch or path.parent
    scratch.mkdir(parents=True, exist_ok=True)  # another command here may have tidied up
    unfinished = scratch / f".{path.name}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new:
            path.open("xb").close()  # of two commands at once, one is refused
        unfinished.replace(path)
    except OSError as error:  # a full disk
        with suppress(OSError):
            unfinished.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_free(path: Path, data: bytes, *, given: bool, overwrite: bool) -> Path:
    """Write a file under `ownership.free_file`'s name, which of two commands at once one gets.

    Return that name. Raises TakenError, and OSError where it cannot be written.
    """
    while True:
        path = ownership.free_file(path, data, given=given, overwrite=overwrite)
        try:
            write(path, data, new=not overwrite)
        except FileExistsError:
            if not os.path.lexists(path):
                raise  # a file is in the place of its folder
            if not ownership.holds(path, data):
                continue  # another command was faster: look again
        return path


@contextmanager
def writing(place: Path | str, remedy: str) -> Iterator[None]:
    """Raise InputError, with its remedy, for what keeps files from being written at `place`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot write here ({error.strerror}); {remedy}") from None


def publish(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a report's files, by name, to a folder that need not be there yet.

    Raises InputError where they cannot be written.
    """
    with writing(folder, "choose another --report"):
        for name, data in files.items():
            write(folder / name, data)


def identity(path: Path, name: str = WHOLE) -> str:
    """Return the SHA-256 of a whole directory's document: the same for a copy of it."""
    return hashlib.sha256(untrusted.data(path / name, LARGEST_DOCUMENT)).hexdigest()


def hashes(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the size (bytes) and SHA-256 of each file, by name."""
    return {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }


def load(path: Path | str, name: str = WHOLE) -> dict[str, Any]:
    """Return the document `name` as `read` does, with the shape of `documents.SHAPES`.

    Raises InputError for any other shape, and for a file that the document was not written with;
    files that were removed are not missed here.
    """
    document = read(path, name)
    with untrusted.refused(Path(path) / name, REPEAT, "not written by Paceline"):
        demand_shape(SHAPES[name], document)
    for part, wanted in document["parts"].items():
        file = Path(path) / part
        if Path(part).name == part and file.exists():
            with untrusted.refused(
                file, "repeat its command with --overwrite, or restore the file as it was"
            ):
                _demand_hash(file, wanted, name)
    return document


def _demand_hash(file: Path, wanted: Mapping[str, Any], name: str) -> None:
    if file.is_file() and file.stat().st_size == wanted["bytes"]:
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() == wanted["sha256"]:
                return
    raise ValueError(f"not the one that {name} was written with")


def dump(document: Any, indent: int | None = 1) -> bytes:
    """Return `document` as strict JSON (no NaN), ending with a newline."""
    text = json.dumps(document, allow_nan=False, indent=indent)
    return f"{text}\n".encode()


def read(path: Path | str, name: str = WHOLE) -> dict[str, Any]:
    """Return the document `name` of a whole run directory.

    Raises InputError when the directory is not a run's, is unfinished, or is of another Paceline.
    """
    whole = Path(path) / name
    with untrusted.refused(whole, "give a run directory"):
        try:
            text = untrusted.text(whole, LARGEST_DOCUMENT)
        except FileNotFoundError:
            state = (
                "an unfinished run; repeat its command to resume"
                if (Path(path) / PARTS).is_dir()
                else f"not a run directory (no {name}); give one that paceline simulate has written"
            )
            raise InputError(f"{path}: {state}") from None
    with untrusted.refused(whole, REPEAT, "not written by Paceline"):
        document = untrusted.document(text)
        demand_schema(document["schema"], whole)
        demand_shape(Owned, document)
    return document


def demand_schema(schema: object, file: Path) -> None:
    """Raise InputError for a document of a later Paceline."""
    if schema != SCHEMA or isinstance(schema, bool):
        raise InputError(
            f"{file}: written by another Paceline (schema {schema!r}; this one reads {SCHEMA}); "
            "use that one"
        )
