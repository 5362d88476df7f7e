"""Processes that die, full disks, removed folders: small versions of `tests/lab/reliability`."""

import errno
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import paceline
from paceline.simulator.errors import RunError
from paceline.simulator.studies import executors
from paceline.simulator.studies.execution import Execution
from tests.command_line.test_command_line import ROOT
from tests.lab.reliability import faults
from tests.lab.reliability.faults import CASES, WHAT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def whole():
    """The files of a simulation that nothing disturbs."""
    return faults.undisturbed(CASES["simulate"])


@pytest.mark.parametrize("number", range(2))
def test_struck_at_random_moments_it_resumes(whole, number):
    faults.signals(whole, random.Random(number))


@pytest.mark.parametrize("number", [1, 2, 19])
def test_a_disk_that_is_full_at_the_nth_write(whole, number):
    faults.full_by_count(whole, random.Random(number), number)


@pytest.mark.parametrize(
    "what", [name for name in WHAT if name.startswith(("disk full, by", "directory", "a file"))]
)
def test_a_directory_that_cannot_be_written(whole, what):
    WHAT[what][0](whole, random.Random(1))


def test_a_process_that_dies_is_told():
    work = executors.Work(os._exit, str)
    with (
        pytest.raises(RunError, match="a process died"),
        executors.start(Execution(jobs=2)) as pool,
    ):
        [*executors.results(pool, work, dict(enumerate(range(6))))]


def test_who_waits_for_results_is_called_meanwhile(monkeypatch):
    monkeypatch.setattr(executors, "PATIENCE", 0.01)
    called = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        actual = executors.results(
            pool, executors.Work(lambda task: called.wait(60), str), {7: 0}, lambda _: called.set()
        )
        assert [*actual] == [(7, True)]


def test_processes_without_shared_memory_are_refused_by_name(monkeypatch):
    def read_only(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(executors.ProcessPoolExecutor, "__init__", read_only)
    with pytest.raises(paceline.InputError, match=r"--jobs 2: .*/dev/shm.*--jobs 1"):
        paceline.simulate("quickstart", jobs=2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_stdout_is_one_message():
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "paceline", "schema"], env=environment, stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("paceline: error: No space left on device")
    assert len(ended.stderr.splitlines()) == 1
