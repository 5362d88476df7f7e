"""Calibration from jobs of one's own: ranks that are missing, links and steps that differ."""

import math
import re
import shlex
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import Telemetry, calibrate
from paceline.command_line import run
from paceline.simulator.errors import InputError
from paceline.validate.calibration import profile
from paceline.validate.calibration.calibrate import kind_of_network
from paceline.validate.calibration.sources import Source
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario

ROOT = Path(__file__).parents[2]
LATENCY, SPEED = 1e-3, 1e8  # of a hop: seconds, bytes per second
NETWORK = {"collective": "ring", "latency": "1 ms", "bandwidth": "800 Mbit/s"}


@pytest.fixture(autouse=True)
def _no_warnings():
    """A warning of numpy is no sentence for a user."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def job(
    folder, ranks=None, *, workers=2, steps=60, counts=None, latency=LATENCY, speed=SPEED,
    sizes=(4e5, 4e6), mean=0.010, slow=None, seed=1, known=True,
):  # fmt: skip
    """Record a job by a clock of its own, over a ring that takes what the formula says.

    Steps take 20 ms and an exponential time, 1 ms passes before each. `ranks` alone are recorded;
    `counts`: steps after which ranks stop; `slow`: factors of ranks; `known`: bytes are.
    """
    shutil.rmtree(folder, ignore_errors=True)
    ranks = range(workers) if ranks is None else ranks
    rng, clocks = np.random.default_rng(seed), [100.0] * workers
    records = {rank: Telemetry(folder, rank=rank, workers=workers) for rank in ranks}
    for rank, record in records.items():
        record.clock = lambda rank=rank: clocks[rank]
    for number in range(steps):
        size = sizes[number % len(sizes)]
        here = [rank for rank in range(workers) if number < (counts or {}).get(rank, steps)]
        for rank in here:
            clocks[rank] += 0.001
            lasts = (0.02 + rng.exponential(mean)) * (slow or {}).get(rank, 1)
            with records[rank].step() if rank in records else nullcontext():
                clocks[rank] += lasts
        over = 2 * (workers - 1) * (latency + size / workers / speed)
        done = max(clocks[rank] for rank in here) + over
        for rank in here:
            recorder = records.get(rank)
            size_told = size if known else math.nan
            with recorder.collective(bytes=size_told) if recorder else nullcontext():
                clocks[rank] = done
    for record in records.values():
        record.close()
    return folder


def fitted(*folders):
    calibration = calibrate(folders)
    return calibration.profile.tables, " ".join(calibration.notes)


def seconds(text):
    value, unit = text.split()
    return float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]


# Ranks that are missing


def test_of_the_ranks_that_recorded_a_profile_is_made(tmp_path):
    """It says which are missing, and what is unknown without them."""
    tables, notes = fitted(job(tmp_path / "job", [0, 3], workers=4, slow={3: 3}))
    assert tables["cluster"]["workers"] == 4
    assert tables["overhead"][0]["workers"] == 4
    (slow,) = tables["cluster"]["group"]
    assert slow["workers"] == 1
    assert "worker 3 takes" in notes  # by its rank, not its place among the recorded
    assert "no steps of ranks 1, 2 of 4 workers: their steps are assumed equal to" in notes
    assert "the shortest recorded wait counts as" in notes
    assert tables["network"] == NETWORK  # rank 3 is always the last to join, and is recorded
    _, notes = fitted(job(tmp_path / "job", [0], workers=40))
    assert "no steps of ranks 1, 2, 3, 4, 5, 6, 7, 8 and 31 more of 40 workers" in notes


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_part_of_a_job_is_calibrated_or_refused_in_a_sentence(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("part") / "job"
    workers = data.draw(st.integers(1, 5))
    ranks = data.draw(st.sets(st.integers(0, workers - 1), min_size=1))
    steps = data.draw(st.integers(1, 30))
    counts = {rank: data.draw(st.integers(0, steps)) for rank in range(1, workers)}
    job(folder, ranks, workers=workers, steps=steps, counts=counts, known=data.draw(st.booleans()))
    counted = {rank: counts.get(rank, steps) for rank in ranks}
    if max(counted.values()) < 2:  # a rank's first step is its warm-up
        with pytest.raises(InputError, match=r"too few steps|no steps were|nothing was rec"):
            fitted(folder)
        return
    tables, notes = fitted(folder)
    assert tables["cluster"]["workers"] == workers
    if len([rank for rank, count in counted.items() if count]) < workers:
        assert f"of {workers} workers: their steps are assumed equal to" in notes
    for key in ("latency", "bandwidth"):
        assert "nan" not in str(tables.get("network", {}).get(key, ""))


@looped(
    ("record", "says"),
    [
        (lambda recorder: None, "nothing was recorded; put `with telemetry.step"),
        (lambda told: told.collective(bytes=4), "no steps were recorded; put `with telemetry.step"),
        (lambda recorder: recorder.step(), "too few steps to measure what the system adds"),
    ],
)
def test_too_little_is_refused_with_a_reason(tmp_path, record, says, capsys):
    with Telemetry(tmp_path / "job", rank=0, workers=2) as told, record(told) or nullcontext():
        pass
    assert run(["calibrate", str(tmp_path / "job"), "-o", str(tmp_path / "p.toml")]) == 2
    error = capsys.readouterr().err
    assert says in " ".join(error.split())
    assert "Traceback" not in error


def test_what_is_no_job_is_refused_with_what_to_give(tmp_path):
    folder = job(tmp_path / "job")
    with pytest.raises(InputError, match=r"rank-0.telemetry: telemetry of one rank; give its dir"):
        calibrate([folder / "rank-0.telemetry"])
    with pytest.raises(InputError, match="named twice; it would count as two jobs"):
        calibrate([folder, tmp_path / "." / "job"])
    for name in ("empty", "absent"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        lacks = "not a run directory of `paceline validate`" if name == "empty" else "no such file"
        with pytest.raises(InputError, match=f"{name}: {lacks}"):
            calibrate([tmp_path / name])


# Links and steps that differ


def test_jobs_over_one_link_are_fitted_together(tmp_path):
    """Of other sizes and numbers of workers: together they tell latency from bandwidth."""
    small = job(tmp_path / "small", sizes=(4e5,))
    large = job(tmp_path / "large", workers=3, sizes=(4e6,), seed=2)
    (alone, notes), (together, more) = fitted(small), fitted(small, large)
    assert alone["network"]["latency"] == "0 s"
    assert "all collectives have one size" in notes
    assert together["network"] == NETWORK
    assert "only if they were recorded over the same links" in more
    assert [overhead["workers"] for overhead in together["overhead"]] == [2, 3]
    assert "workers" not in together["cluster"]  # they do not agree


@looped(
    ("other", "words"),
    [
        ({"speed": SPEED / 2}, "400 Mbit/s"),
        ({"speed": SPEED * 10}, "8 Gbit/s"),
        ({"latency": 0.02}, "20 ms"),
        ({"latency": 0.01, "workers": 4}, "10 ms"),
    ],
)
def test_jobs_over_links_of_different_speed_are_refused(tmp_path, capsys, other, words):
    """Whichever is named first; the sentence names both jobs and both speeds."""
    one, two = job(tmp_path / "one"), job(tmp_path / "two", seed=2, **other)
    for pair in ((one, two), (two, one)):
        assert run(["calibrate", *map(str, pair), "-o", str(tmp_path / "p.toml")]) == 2
        output = " ".join(capsys.readouterr().err.split())
        assert "links of different speed" in output
        assert "one: 1 ms, 800 Mbit/s" in output
        assert re.search(rf"two: [^;)]*{words}", output)
        assert "calibrate each job separately" in output
    assert not (tmp_path / "p.toml").exists()


def test_runs_over_prescribed_links_of_different_speed_are_refused(tmp_path):
    """Beyond emulated delays, what a collective costs depends on its link."""

    def source(name, network, latency):
        link = {"collective": "ring", "latency": latency, "bandwidth": "8 Mbit/s"}
        world = scenario({"name": "psgd"}, workers=2, network=link, validation={"network": network})
        return Source(tmp_path / name, world, [], {}, {})

    far = source("far", "kernel", "80 ms")
    with pytest.raises(InputError, match=r"near: 10 ms, 8 Mbit/s; .*far: 80 ms, 8 Mbit/s"):
        kind_of_network([source("near", "kernel", "10 ms"), far])
    with pytest.raises(InputError, match=r"several kinds of network \(emulated, kernel\)"):
        kind_of_network([source("near", "emulated", "10 ms"), far])
    both = [source(speed, "emulated", speed) for speed in ("10 ms", "80 ms")]
    assert kind_of_network(both) == "emulated"
    assert kind_of_network([far, source("too", "kernel", "80 ms")]) == "kernel"


def test_chance_makes_no_link_a_different_one(tmp_path):
    """Jobs of one link with steps of other lengths are fitted together."""
    tables, _ = fitted(job(tmp_path / "a"), job(tmp_path / "b", mean=0.1, seed=2))
    assert tables["network"]["bandwidth"] == "800 Mbit/s"


# The pages


def test_the_how_to_works_word_for_word(tmp_path, monkeypatch, capsys):
    """Its commands and its scenario, in a fresh directory with what its first step makes."""
    page = (ROOT / "docs/how-to/calibrate-from-a-trace.md").read_text("utf-8")
    commands = re.findall(r"^(paceline .+)$", page, re.MULTILINE)
    assert [item.split()[1] for item in commands] == ["calibrate", "simulate"]
    name, text = re.search(r'```toml title="([\w.]+)"\n(.*?)```', page, re.DOTALL).groups()
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, "utf-8")
    job(Path("runs/my-trace"), sizes=(4e6,))
    for command in commands:
        assert run(shlex.split(command)[1:]) == 0
    shown = capsys.readouterr()
    assert "local-sgd" in shown.out
    assert "intervals include the errors of" in " ".join(shown.err.split())
    read = profile.read("profile.toml").tables
    assert read["model"]["parameters"] == 1e6
    assert read["cluster"]["workers"] == 2
    assert seconds(read["calibration"]["measured"]["step"][0]) > 0.02
