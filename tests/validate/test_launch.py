"""Processes of a real run: they always end, with the right message, and results are kept."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.command_line import run
from paceline.validate.host import namespaces
from paceline.validate.training import rendezvous
from tests.command_line.test_command_line import INTERRUPTED, ROOT
from tests.helpers.cases import beside, looped
from tests.helpers.waiting import PATIENCE, wait_until

TOML = beside(__file__, "ended.toml")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "test.toml").write_text(TOML)
    return tmp_path


def start(folder, *arguments, command=(sys.executable, "-m", "paceline")):
    return subprocess.Popen(
        [*command, "validate", "test.toml", "--out", "out", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip


def ranks(folder):
    """Return process ids of the run by rank; -1 is the fork server."""
    results = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where, name = os.readlink(process / "cwd"), (process / "comm").read_text()
        except OSError:
            continue
        if "paceline.validate.launch.worker" in _words(process) and where == str(folder):
            results[int(name.removeprefix("rank ")) if name.startswith("rank ") else -1] = int(
                process.name
            )
    return results


def relays(of):
    """Return process ids of the relays among a process's descendants."""
    command = "paceline.validate.host.relay"
    actual = [process for process in Path("/proc").glob("[0-9]*") if command in _words(process)]
    return {int(process.name) for process in actual if of in _ancestors(process)}


def _ancestors(process):
    """Return process ids of a process's ancestors."""
    results = []
    while process.name != "0":
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            break
        results.append(int(fields[1]))
        process = Path("/proc") / fields[1]
    return results


def _words(process):
    try:
        return (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def trains(folder, tasks=0, since=0.0):
    """Whether `tasks` are done, and another one has been under way `since` then."""
    parts = folder / "out" / "measured" / ".parts"
    done = {path for path in parts.glob("*/") if len([*path.glob("rank-*.json")]) >= 2}
    begun = [path.stat() for path in parts.glob("*/rank-0.bin") if path.parent not in done]
    grows = any(event.st_size > 50_000 and event.st_mtime > since for event in begun)
    return len(done) >= tasks and grows


def nothing_is_left(folder):
    wait_until(lambda: not ranks(folder), seconds=60)


@pytest.mark.long
def test_interrupted_killed_and_resumed(folder):
    process = start(folder)
    wait_until(lambda: trains(folder, 1), process)
    assert sorted(ranks(folder)) == [-1, 0, 1, 2]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does; the ranks leave it to the first
    _, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode in INTERRUPTED
    assert "repeat the command to resume" in notes
    nothing_is_left(folder)

    begin = time.time()
    process = start(folder)
    wait_until(lambda: trains(folder, 1, since=begin), process)
    os.kill(ranks(folder)[1], signal.SIGKILL)
    _, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "worker 1 died by signal 9 during " in notes
    assert "paceline: error: worker 1 died" in notes
    nothing_is_left(folder)
    document = json.loads((folder / "out" / "measured" / "run.json").read_text())
    rows = {row["label"]: row for row in document["summary"]["algorithms"]}
    assert rows["ssgd"]["steps"] == 60
    assert any("cut short" in note for note in document["summary"]["notes"])

    process = start(folder, "--json")
    out, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    assert "1 of 3 real runs were finished before" in notes
    data = json.loads(out)
    assert {row["label"] for row in data["measured"]["algorithms"]} == {
        "ssgd", "local-sgd tau=2", "asgd"
    }  # fmt: skip
    assert data["comparison"]["rows"]
    nothing_is_left(folder)


@pytest.mark.long
def test_all_end_when_the_command_is_killed(folder):
    process = start(folder)
    wait_until(lambda: trains(folder), process)
    process.kill()
    process.communicate()
    nothing_is_left(folder)


@pytest.mark.long
def test_steps_too_short_for_this_machine_are_refused(folder):
    process = start(
        folder, "--set", "validation.compute=stretched", "--set", "cluster.compute=50 us"
    )
    _, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert notes.startswith("paceline: error: test.toml: cluster.compute: steps of 0.05 ms")
    assert len(notes.splitlines()) == 1
    nothing_is_left(folder)


@pytest.mark.slow
def test_a_server_without_work_waits_as_long_as_it_takes(folder):
    """The server waits longer than the time-out, having no part in the first run."""
    process = start(
        folder, "--set", "validation.timeout=10 s", "--set", "run.steps=350", "--set",
        'algorithm=[{ name = "ssgd" }, { name = "asgd" }]',
    )  # fmt: skip
    _, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes


@looped(
    ("change", "message"),
    [
        ("network.model=flows", 'network.model = "flows": only delays in closed form'),
        ("cluster.failures={ between = '1 s', repair = '1 s' }", "crashes, absences and workers"),
        ("validation.network=kernel", "the kernel's links have a latency and a bandwidth"),
    ],
)
def test_what_cannot_be_run_for_real_is_refused(folder, change, message, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    ring = 'network={ collective = "ring", latency = "1 ms" }'
    more = ("--set", ring) if "flows" in change else ()
    status = run(["validate", "test.toml", "--out", "out", *more, "--set", change])
    assert (status, message in (notes := capsys.readouterr().err)) == (2, True), notes
    assert not ranks(folder)


@pytest.mark.long
def test_two_launchers(folder):
    """torchrun twice, as on two machines; the second one's records travel to the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}", "-m", "paceline",
    )  # fmt: skip
    first = (*command[:3], "--nproc-per-node=2", *command[3:])
    second = (*command[:3], "--nproc-per-node=1", *command[3:])
    processes = [start(folder, command=command) for command in (first, second)]
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum("Seconds per step" in out or "counts as evidence" in out for out, _ in outputs) == 1
    document = json.loads((folder / "out" / "measured" / "run.json").read_text())
    assert len(document["summary"]["algorithms"]) == 3


@pytest.mark.long
@pytest.mark.skipif(namespaces.available() != "", reason=namespaces.available())
def test_the_kernels_links(folder):
    """Packets are held for the latency: gloo's ring takes at least the simulated one's hops."""
    network = "network={ collective = 'ring', latency = '10 ms', bandwidth = '100 Mbit/s' }"
    process = start(
        folder, "--json", "--set", network, "--set", "validation.network=kernel", "--set",
        "run.steps=20",
    )  # fmt: skip
    wait_until(lambda: trains(folder) or process.poll() is not None, process)
    ours = relays(process.pid)
    assert ours
    out, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    document = json.loads(out)
    actual = {row["label"]: row for row in document["measured"]["algorithms"]}
    assert actual["ssgd"]["seconds_per_step"]["mean"] > 2 * 0.01
    assert actual["asgd"]["seconds_per_step"]["mean"] > 2 * 0.01
    nothing_is_left(folder)
    assert not any(
        "paceline.validate.host.relay" in _words(Path("/proc") / str(pid)) for pid in ours
    )


def test_the_store_lasts_until_all_records_have_come_and_all_have_left(tmp_path):
    """A rank's last answer would fail if the one that serves the store ended before it."""

    class Store(dict):
        def get(self, key):
            requests.append(key)
            return super().get(key, b"")

        set, delete_key = dict.__setitem__, dict.pop

    requests, store = [], Store()
    (tmp_path / "rank-1.json").write_text("{}")
    rendezvous.hand_in(store, 1, tmp_path)
    assert requests == ["collected 1"]
    assert "left 1" in store
    rendezvous.collect(store, 1, tmp_path / "first")
    assert requests[-1] == "left 1"
    assert (tmp_path / "first" / "rank-1.json").read_text() == "{}"


@looped(("name", "address", "here", "where"), [
    ("localhost", "127.0.0.1", False, "127.0.0.1"),
    ("node", "127.0.1.1", True, "127.0.1.1"),
    ("node", "127.0.1.1", False, None),  # by another address from other machines
    ("node", "203.0.113.1", False, None),  # of no card of this machine
])  # fmt: skip
def test_a_store_listens_at_the_launchers_address_alone(name, address, here, where, monkeypatch):
    family = socket.AF_INET, socket.SOCK_STREAM, 6, ""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*family, (address, 0))])
    listening = rendezvous.listen(name, 0, here)
    if where is None:
        assert listening is None
    else:
        with socket.socket(fileno=listening) as server:
            assert server.getsockname()[0] == where
