"""What training loops and tests of links print, read as users have it."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table, printed_logs
from paceline.simulator.objectives.learning_curve import curve
from paceline.validate.logs import tables
from paceline.validate.logs.calibrate import calibrate, explain
from tests.helpers.cases import looped

STEPS = range(10, 610, 10)
PACE, LAST = 0.4421, 0.0003  # seconds of a step; loss per step below 5


def loss(step):
    return 5 - LAST * step


FRAMEWORKS: dict = tomllib.loads(Path(__file__).with_name("printed_logs.toml").read_text("utf-8"))
TRAPS = FRAMEWORKS.pop("traps")["words"]


def line(pattern, step):
    elapsed = step * PACE
    minutes, whole = divmod(int(elapsed), 60)
    return pattern.format(
        step=step, loss=loss(step), bits=loss(step) / np.log(2), s=PACE, ms=1000 * PACE,
        elapsed=elapsed, elapsed_ms=1000 * elapsed, hours=elapsed / 3600,
        us=1e6 * PACE, comma=f"{PACE:.4f}".replace(".", ","),
        comma_loss=f"{loss(step):.3f}".replace(".", ","), milli=int(1000 * elapsed) % 1000,
        stamp=f"12:{minutes:02}:{whole:02}", bar=f"{minutes:02}:{whole:02}",
        epoch=step // 100, within=step % 100,
    )  # fmt: skip


@looped("name", FRAMEWORKS)
def test_what_frameworks_print_is_read(name, tmp_path):
    """Times of a step, means of ten, clocks; evaluations, colours; steps that a job did again."""
    about = FRAMEWORKS[name]
    steps = [*STEPS[:20], *STEPS[15:]]  # resumed from step 150
    text = [about.get("before", "")]
    for step in STEPS if "clock" in about else steps:  # a clock would show the pause
        text += [line(about["line"], step), about.get("between", "").format() * (step % 100 == 0)]
    file = tmp_path / "train.log"
    file.write_text("\n".join(text))
    log = tables.read(file)
    assert log.framework == name
    assert log.seconds.sum() / log.steps.sum() == pytest.approx(PACE, rel=5e-3)
    if "rough" not in about:
        assert log.seconds / log.steps == pytest.approx(np.full(len(log.steps), PACE), rel=3e-3)
        assert log.step.tolist() in ([*STEPS], [*STEPS[1:]])
    names, rows = log_table.read(file, "", "loss")
    read = {row[names.index(f"{name} - step")]: row for _, row in rows()}
    assert [*read] == [*STEPS]
    assert read[300][names.index(f"{name} - loss")] == pytest.approx(loss(300), abs=1e-4)
    with pytest.raises(InputError, match=rf"{re.escape(name)}, \d+ lines"):
        calibrate([file])


@looped("words", TRAPS)
def test_a_trap_is_no_time(words, tmp_path):
    file = tmp_path / "train.log"
    text = "\n".join(line(words, step) for step in STEPS)
    for encoding in ("utf-8", "utf-16"):
        file.write_text(text, encoding)
        log = tables.read(file)
        assert log.framework == "a training loop"
        assert log.seconds.sum() / log.steps.sum() == pytest.approx(PACE, rel=5e-3)
        at, losses, *_ = curve.points(file, {"tokens": 1})
        assert losses == pytest.approx(loss(at), abs=1e-3)


def test_steps_of_each_epoch_are_refused(tmp_path):
    file = tmp_path / "train.log"
    file.write_text("\n".join(f"step {n % 50} loss 3.0 time 0.4 s" for n in range(100)))
    with pytest.raises(InputError, match="line 51: step numbers restart"):
        tables.read(file)


@pytest.mark.parametrize("text", ["step,loss\n1,2\n2,3\n", '{"step": 1}\n{"step": 2}\n', "", "a"])
def test_tables_are_no_frameworks(text):
    assert printed_logs.read(text) is None


def nccl(ranks, factor, latency, rate):
    head = [f"#  Rank {n:2} Group  0 Pid {n} on node{n} device  0 [0x07]" for n in range(ranks)]
    head += ["#       size         count      type   redop    root     time   algbw   busbw"]
    for size in 8 * 4 ** np.arange(13):
        us = latency + size / rate
        speed = f"{us:10.2f} {size / us / 1e3:8.4f} {factor * size / us / 1e3:8.4f}      0"
        head.append(f"{size:12d} {size // 4:12d}     float     sum      -1 {speed} {speed}")
    return "\n".join([*head, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 0.6 "])


def test_nccl_tests_give_the_hop_of_a_ring(tmp_path):
    """Of an all-reduce of n ranks 2 (n - 1) hops of an n-th; a broadcast is a single message."""
    cases = ((4, 1.5, 6, 4), (8, 7 / 8, 7, 8), (2, 1.0, 2, 2), (8, 1, 1, 1))
    for ranks, factor, hops, share in cases:
        file = tmp_path / "nccl.txt"
        table = nccl(ranks, factor, hops * 12.0, 1000.0 * share / hops)
        file.write_text(re.sub("^", "[1,0]<stdout>:" * (ranks == 4), table, flags=re.MULTILINE))
        network = calibrate([file]).profile.tables["network"]
        assert network == {"collective": "ring", "latency": "12 us", "bandwidth": "8 Gbit/s"}
    file.write_text(nccl(1, 1.0, 12.0, 1000.0))
    with pytest.raises(InputError, match="two ranks"):
        calibrate([file])


def test_iperf_gives_a_link(tmp_path):
    document = {
        "start": {"test_start": {"num_streams": 4}},
        "end": {
            "streams": [{"sender": {"min_rtt": 420}}, {"sender": {"min_rtt": 400}}],
            "sum_received": {"bits_per_second": 9.4e8},
        },
    }
    file = tmp_path / "iperf3.json"
    file.write_text(json.dumps(document))
    result = calibrate([file])
    assert result.profile.tables["network"]["latency"] == "0.2 ms"
    assert result.profile.tables["network"]["bandwidth"] == "940 Mbit/s"
    assert len(result.notes) == 2
    events = [json.dumps({"event": key, "data": part}) for key, part in document.items()]
    file.write_text("\n".join(events))
    assert calibrate([file]).profile.tables["network"]["bandwidth"] == "940 Mbit/s"
    paced = {"start": {"test_start": {"num_streams": 4, "target_bitrate": 2.4e8}}}
    for more, problem in (
        ({"end": {"sum_received": {}}}, "bits_per_second"),
        ({"error": "unable to connect"}, "iperf3 failed: unable to connect"),
        (paced, "no more than 960 Mbit/s; measure with -b 0"),
    ):
        file.write_text(json.dumps(document | more))
        with pytest.raises(InputError, match=problem):
            calibrate([file])


def test_computing_times_alone_fit_a_law(tmp_path):
    """In any unit that the name of the column or the cells state."""
    times = 0.4 + np.random.default_rng(1).exponential(0.03, 600)
    forms = ("seconds\n{:.6f}", "{:.6f}", "step_ms\n{1:.3f}", "{1:.3f} ms")
    for head, end, cell in (form.rpartition("\n") for form in forms):
        file = tmp_path / "times.csv"
        file.write_text(head + end + "\n".join(cell.format(time, 1000 * time) for time in times))
        result = calibrate([file])
        law = result.profile.tables["cluster"]["compute"]
        assert law["dist"] == "shifted-exponential"
        assert float(law["mean"].removesuffix(" ms")) == pytest.approx(1e3 * times.mean(), rel=1e-4)
        assert explain(file)[-1].startswith(f"{file}: ")


def test_losses_alone_are_for_fit_loss(tmp_path):
    history = [{"step": step, "loss": loss(step)} for step in STEPS]
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps({"best_metric": None, "log_history": history}))
    with pytest.raises(InputError, match="fit-loss reads its losses"):
        calibrate([file])


def test_an_archive_of_wandb_says_what_to_export(tmp_path):
    (tmp_path / "run-1").mkdir()
    file = tmp_path / "run-1" / "run-1.wandb"
    file.write_bytes(b":W&B\0\x01")
    for path in (file, file.parent):
        with pytest.raises(InputError, match="export the run's history"):
            calibrate([path])
