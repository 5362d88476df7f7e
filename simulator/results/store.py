"""Run directories: written so that a killed command never leaves one that looks whole.

`run.json` is removed before anything else changes and written after everything else; each file
appears under its name only when complete. Finished runs of an unfinished command wait in `.parts`,
from which the same command resumes.
"""

import errno
import io
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.results.figures.style import FORMATS
from paceline.simulator.results.run import COLUMNS, Run

SCHEMA = 1
WHOLE = "run.json"
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
        "curve": np.array([run.curve[column] for column in COLUMNS]),
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
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            curve = dict(zip(COLUMNS, archive["curve"].tolist(), strict=True))
            staleness = dict(archive["staleness"].tolist())
            header = untrusted.loads(archive["header"].item())
            kept = {name: archive.get(name) for name in ("spans", "arrows")}
            return Run(curve=curve, staleness=staleness, **kept, **header)
    except Exception as error:  # NumPy raises all kinds on a damaged archive
        raise ValueError(f"not a kept run: {error}") from error


class Directory:
    """A run directory that a command is writing.

    Raises InputError when `path` cannot be written, or holds files of other origin that would be
    overwritten.
    """

    whole, names, parts = WHOLE, NAMES, PARTS

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = path / self.parts
        if path.is_dir() and not (self._parts.is_dir() or (path / self.whole).is_file()):
            for name in self.names:
                if (path / name).exists():
                    raise InputError(
                        f"{path}: not a run directory, and its {name} would be overwritten; "
                        "choose another directory with --out"
                    )
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._parts):
                pass
        except OSError as error:
            raise InputError(
                f"{path}: cannot write here ({error.strerror}); choose a directory with --out"
            ) from error

    @property
    def scratch(self) -> Path:
        """A folder for files that are kept until the directory is whole."""
        return self._parts

    def part(self, key: str) -> Run | None:
        """Return the finished run kept under `key`, if there is one."""
        try:
            return decode((self._parts / f"{key}.npz").read_bytes())
        except (OSError, ValueError):
            return None

    def keep(self, key: str, run: Run) -> None:
        """Keep a finished run under `key` until the directory is whole."""
        self._write(self._parts / f"{key}.npz", encode(run))

    def finish(self, files: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
        """Replace the files of the directory by `files` and `document`; remove the parts."""
        self.replace(files, document)
        shutil.rmtree(self._parts, ignore_errors=True)

    def replace(self, files: Mapping[str, bytes], document: Mapping[str, Any]) -> None:
        """Replace the files of the directory by `files` and `document`."""
        for name in self.names:
            (self.path / name).unlink(missing_ok=True)
        for name, data in files.items():
            self._write(self.path / name, data)
        self._write(self.path / self.whole, dump({"schema": SCHEMA, **document}))

    def _write(self, path: Path, data: bytes) -> None:
        write(path, data, scratch=self._parts)  # an unfinished file goes with the parts


class KeptRuns(Directory):
    """A directory in which finished runs stay for later commands, with the claims they support.

    Raises InputError as a run directory does.
    """

    whole, names, parts = "claims.json", ("claims.json",), ".runs"


class SweepDirectory(Directory):
    """A directory that a sweep is writing; its records stay, for larger sweeps.

    `kept`: every finished record by its key. They are lines of one file, for there may be ten
    thousand of them; a line cut short by a kill is skipped.
    """

    whole, names, parts = "sweep.json", SWEEP_NAMES, ".sweep"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._log = self._parts / "points.jsonl"
        lines = self._log.read_bytes().split(b"\n") if self._log.is_file() else [b""]
        self.kept: dict[str, dict[str, Any]] = {}
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                record = untrusted.loads(line)
                self.kept[record["key"]] = record["record"]
        if lines[-1]:  # cut short: the next record begins a new line
            self._append(b"\n")

    def keep_record(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep a finished record."""
        self._append(dump({"key": key, "record": record}, indent=None))

    def _append(self, line: bytes) -> None:
        with self._log.open("ab", buffering=0) as file:
            if file.write(line) < len(line):  # in one write, or the next record would join it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))


def write(path: Path, data: bytes, scratch: Path | None = None) -> None:
    """Write a file atomically; it grows in the folder `scratch` (default: its own).

    Raises OSError.
    """
    scratch = scratch or path.parent
    scratch.mkdir(parents=True, exist_ok=True)  # another command here may have tidied up
    unfinished = scratch / f".{path.name}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:  # a full disk
        with suppress(OSError):
            unfinished.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def publish(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a report's files, by name, to a folder that need not be there yet.

    Raises InputError where they cannot be written.
    """
    try:
        for name, data in files.items():
            write(folder / name, data)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write here ({error.strerror}); choose another --report"
        ) from None


def dump(document: Any, indent: int | None = 1) -> bytes:
    """Return `document` as strict JSON (no NaN), ending with a newline."""
    text = json.dumps(document, allow_nan=False, indent=indent)
    return f"{text}\n".encode()


def read(path: Path | str, name: str = WHOLE) -> dict[str, Any]:
    """Return the document, `name`, of a whole run directory.

    Raises InputError when the directory is not a run's, is unfinished, or is of a later Paceline.
    """
    whole = Path(path) / name
    with untrusted.refused(whole, "give a run directory"):
        try:
            text = untrusted.text(whole, untrusted.LARGEST_WRITTEN)
        except FileNotFoundError:
            state = (
                "an unfinished run; repeat its command to resume"
                if (Path(path) / PARTS).is_dir()
                else f"not a run directory (no {name}); give one that paceline simulate has written"
            )
            raise InputError(f"{path}: {state}") from None
    with untrusted.refused(whole, "give a run directory", "not written by Paceline"):
        document = untrusted.document(text)
        schema = document["schema"]
    demand_schema(schema, whole)
    return document


def demand_schema(schema: object, file: Path) -> None:
    """Raise InputError for a document of a later Paceline."""
    if schema != SCHEMA or isinstance(schema, bool):
        raise InputError(
            f"{file}: written by another Paceline (schema {schema!r}; this one reads {SCHEMA}); "
            "use that one"
        )
