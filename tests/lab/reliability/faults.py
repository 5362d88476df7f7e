"""Kill or interrupt commands, or fill their disk, at random moments."""

import builtins
import errno
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.results import store
from tests.helpers.cases import beside
from tests.lab.reliability import children

TITLE = "Faults"
HOW = "python -m tests.lab.reliability faults"
TINY = beside(__file__, "tiny.toml")
VARY = ("--vary", "algorithm.local-sgd.tau=1,2,3,4,5,6", "--vary", "network.latency=1 ms,20 ms")
STATUSES = {  # statuses with which a command may end
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (-signal.SIGTERM,),
    # CPython ends by the signal itself, 130 to a shell, if it hits code under `exec`
    signal.SIGINT: (130, -signal.SIGINT),
}
SIGNALS = (*[signal.SIGKILL] * 3, signal.SIGTERM, signal.SIGINT)
MASKED = ("wall_seconds",)  # keys of documents with measured values


@dataclass(frozen=True)
class Case:
    """A command; `whole`: the file that marks its directory, `out`, as complete."""

    arguments: tuple[str, ...]
    whole: str
    kept: str  # the folder of finished work
    needs: tuple[str, ...] = ()  # a command to run before


SIMULATE = ("simulate", "tiny.toml", "--engine", "virtual", "--out", "out")
CASES = {
    "simulate": Case((*SIMULATE, "--jobs", "1"), "run.json", ".parts"),
    "sweep, 2 processes": Case(
        ("sweep", "tiny.toml", *VARY, "--jobs", "2", "--out", "out"), "sweep.json", ".sweep"
    ),
    "tune": Case(("tune", "tiny.toml", "--jobs", "1", "--out", "out"), "tune.json", ".tune"),
    "report": Case(("report", "out"), "report.html", ".parts", needs=SIMULATE),
}


@dataclass(frozen=True)
class Undisturbed:
    """The files of an undisturbed command, and its seconds."""

    case: Case
    files: dict[str, bytes]
    seconds: float


Fault = Callable[..., None]
"""Function that injects a fault into a command, given the undisturbed run and a generator."""


def fresh(case: Case) -> Path:
    """Return a new folder with the command's inputs."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-faults-"))
    (folder / "tiny.toml").write_text(TINY)
    if case.needs:
        assert children.run(case.needs, folder).status == 0
    return folder


def undisturbed(case: Case) -> Undisturbed:
    """Run a command to its end; return its files and seconds."""
    folder = fresh(case)
    begin = time.monotonic()
    ended = children.run(case.arguments, folder)
    seconds = time.monotonic() - begin
    assert ended.status == 0, ended.err
    actual = Undisturbed(case, files(folder), seconds)
    shutil.rmtree(folder)
    return actual


def files(folder: Path) -> dict[str, bytes]:
    """Return the files that commands wrote to a folder, without hidden ones and measured values."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shown = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    return {str(path): masked(folder / path) for path in sorted(shown)}


def masked(path: Path) -> bytes:
    """Return the bytes of a file, without measured values."""
    data = path.read_bytes()
    if path.suffix != ".json":
        return data
    document = json.loads(data)
    return store.dump({key: value for key, value in document.items() if key not in MASKED})


def struck(whole: Undisturbed, folder: Path, draw: random.Random) -> None:
    """Send a command a signal at a random moment; check that it ends properly.

    No partial file may look complete, and no process may keep running.
    """
    sent = draw.choice(SIGNALS)
    moment = draw.uniform(0, whole.seconds)
    ended = children.run(whole.case.arguments, folder, strike=partial(_send, sent), after=moment)
    assert ended.status in (0, *STATUSES[sent]), (sent, ended)
    assert "Traceback" not in ended.err, ended.err
    assert not ended.orphans, ended
    half_written_is_refused(whole, folder)


def _send(sent: int, process: int) -> None:
    os.kill(process, sent)


def half_written_is_refused(whole: Undisturbed, folder: Path) -> None:
    """Check that readers accept only complete directories."""
    case, actual = whole.case, files(folder)
    if case.whole.endswith(".json"):
        try:
            store.read(folder / "out", case.whole)
        except InputError:
            return
    elif f"out/{case.whole}" not in actual:
        return
    here = {name: data for name, data in actual.items() if name.startswith("out/")}
    assert here == {name: whole.files[name] for name in here}
    assert here.keys() == {name for name in whole.files if name.startswith("out/")}


def resumes(whole: Undisturbed, folder: Path) -> None:
    """Repeat the command; check that it keeps finished work and ends with the right bytes."""
    before = kept(folder / "out" / whole.case.kept)
    ended = children.run(whole.case.arguments, folder)
    assert ended.status == 0, ended.err
    actual = files(folder)
    wrong = [
        name for name in actual.keys() | whole.files if actual.get(name) != whole.files.get(name)
    ]
    assert not wrong, wrong
    after = kept(folder / "out" / whole.case.kept)
    if whole.case.kept == ".parts":  # which are removed at the end
        runs = sum(_is_run(data) for data in before.values())
        assert not runs or f"{runs} of" in ended.err or whole.case.needs, (runs, ended.err)
    else:
        for name, data in before.items():
            assert after[name].startswith(data), name


def kept(folder: Path) -> dict[str, bytes]:
    """Return the finished work in a folder: complete files, and complete lines of logs."""
    results = {}
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            data = path.read_bytes()
            binary = path.suffix == ".npz"
            results[path.name] = data if binary else data[: data.rfind(b"\n") + 1]
    return {name: data for name, data in results.items() if data}


def _is_run(data: bytes) -> bool:
    try:
        store.decode(data)
    except ValueError:
        return False
    return True


def fault(strike: Callable[..., None]) -> Fault:
    """Give a fault a fresh folder, which is removed at the end."""

    def injected(whole: Undisturbed, draw: random.Random, *more: Any) -> None:
        folder = fresh(whole.case)
        strike(whole, folder, draw, *more)
        shutil.rmtree(folder)

    return injected


def no_traceback(ended: children.Ended, statuses: tuple[int, ...]) -> list[str]:
    """Check how a command ended; return its lines with an error."""
    assert ended.status in statuses, ended
    assert "Traceback" not in ended.err, ended.err
    return [line for line in ended.err.splitlines() if "error:" in line]


@fault
def signals(whole: Undisturbed, folder: Path, draw: random.Random) -> None:
    """Strike one command once to three times, then repeat it."""
    for _ in range(draw.randint(1, 3)):
        struck(whole, folder, draw)
    resumes(whole, folder)


@fault
def full_by_size(whole: Undisturbed, folder: Path, draw: random.Random) -> None:
    """Run a command whose files cannot grow beyond a random size."""
    largest = max(map(len, whole.files.values()))
    _full(whole, folder, file_size=int(largest ** draw.random()))


@fault
def full_by_count(whole: Undisturbed, folder: Path, draw: random.Random, number: int = 0) -> None:
    """Run a command whose n-th write meets a full disk."""
    _full(whole, folder, prepare=partial(fill, number or draw.randint(1, 30)))


def _full(whole: Undisturbed, folder: Path, **options: Any) -> None:
    ended = children.run(whole.case.arguments, folder, **options)
    output = no_traceback(ended, (0, 1, 2))
    if ended.status:
        assert len(output) == 1, ended.err
        assert any(words in output[0] for words in ("File too large", "No space left")), output
        unfinished = [path for path in folder.rglob(".*") if path.is_file()]
        assert not unfinished, unfinished
    half_written_is_refused(whole, folder)
    resumes(whole, folder)


def fill(number: int) -> None:
    """Let the n-th write to a file by this process, and all later writes, meet a full disk."""
    left = [number]
    opened, path_opened = builtins.open, Path.open

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            stream = function(file, mode, *rest, **options)
            return stream if mode[0] == "r" or file == os.devnull else Full(stream, left)

        return opening

    builtins.open = limited(opened)
    Path.open = limited(path_opened)  # type: ignore[method-assign]


class Full:
    """A file on a disk that accepts a limited number of writes."""

    def __init__(self, stream: Any, left: list[int]) -> None:
        self._stream, self._left = stream, left

    def write(self, data: Any) -> int:
        self._left[0] -= 1
        if self._left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._stream.write(data))

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@fault
def removed(whole: Undisturbed, folder: Path, draw: random.Random) -> None:
    """Remove the directory meanwhile; check that the command ends well or names a lost file."""
    ended = children.run(
        whole.case.arguments, folder, after=draw.uniform(0, whole.seconds),
        strike=lambda _: shutil.rmtree(folder / "out", ignore_errors=True),
    )  # fmt: skip
    output = no_traceback(ended, (0, 1, 2))
    assert len(output) == (ended.status != 0), ended.err
    resumes(whole, folder)


@fault
def in_the_way(whole: Undisturbed, folder: Path, draw: random.Random) -> None:
    """Put a file in the directory's place; check that the command refuses in one line."""
    (folder / "out").write_text("")
    ended = children.run(whole.case.arguments, folder)
    assert (ended.status, len(ended.err.splitlines())) == (2, 1), ended


STOPS = ("simulate", "sweep, 2 processes", "tune")
WHAT: Mapping[str, tuple[Fault, tuple[str, ...]]] = {
    "killed (9), terminated or interrupted": (signals, tuple(CASES)),
    "disk full, by the size of a file": (full_by_size, tuple(CASES)),
    "disk full, at the n-th write": (full_by_count, (*STOPS, "report")),
    "directory removed meanwhile": (removed, STOPS),
    "a file in the directory's place": (in_the_way, STOPS),
}


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return rows of faults by kind and command: how many were injected and survived."""
    expected = {name: undisturbed(case) for name, case in CASES.items()}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    turns = ((number, what, name) for number in count() for what in WHAT for name in WHAT[what][1])
    deadline = time.monotonic() + seconds
    for number, what, name in turns:
        if time.monotonic() > deadline:
            break
        row = rows.setdefault(
            (what, name), {"what": f"{name}: {what}", "tried": 0, "handled": 0, "how": HOW}
        )
        row["tried"] += 1
        try:
            WHAT[what][0](expected[name], random.Random(f"{what} {name} {number}"))
            row["handled"] += 1
        except AssertionError as error:
            row.setdefault("missed", []).append(str(error)[:500])
    return [*rows.values()]
