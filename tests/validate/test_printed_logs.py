"""What training loops and tests of links print, read as users have it."""

import json
import re

import numpy as np
import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table, printed_logs
from paceline.validate.logs import tables
from paceline.validate.logs.calibrate import calibrate, explain

STEPS = range(10, 610, 10)
PACE, LAST = 0.4421, 0.0003  # seconds of a step; loss per step below 5


def loss(step):
    return 5 - LAST * step


MEGATRON = (
    " [2024-05-01 10:00:00] iteration {step:8d}/     600 | consumed samples: 2560 | elapsed time "
    "per iteration (ms): {ms:.1f} | learning rate: 3.0E-04 | lm loss: {loss:.6E} | loss scale: 1.0"
)
FRAMEWORKS = {
    "Megatron-LM": ("training ...", MEGATRON, " validation loss at iteration 100 | lm loss: 3.0"),
    "NeMo": (
        "Epoch 0", "Training epoch 0, iteration {step}/599 | lr: 3e-05 | global_step: {step} | "
        "reduced_train_loss: {loss:.4f} | train_step_timing in s: {s:.4f}", "",
    ),
    "DeepSpeed": ("[INFO] step=10", "steps: {step} loss: {loss:.4f} iter time (s): {s:.4f}", ""),
    "fairseq": (
        "| INFO | fairseq.trainer | begin",
        '2024-01-01 12:00:00 | INFO | train_inner | {{"loss": "{bits:.4f}", "ups": "2.2", '
        '"num_updates": "{step}", "train_wall": "9", "wall": "{elapsed:.2f}"}}',
        '| INFO | valid | {{"valid_loss": "3.0"}}',
    ),
    "modded-nanogpt": (
        "import os",
        "step:{step}/1750 train_loss:{loss:.4f} train_time:{elapsed_ms:.0f}ms step_avg:1ms", "",
    ),
    "llm.c": (
        "| batch_size B | 64 |",
        "step {step:4d}/19560 | loss {loss:.6f} (+nanz)| lr 8.57e-07 | {ms:.2f} ms | 171536 tok/s",
        "val loss 3.0",
    ),
    "nanoGPT": (
        "number of parameters: 123.59M",
        "iter {step}: loss {loss:.4f}, time {ms:.2f}ms, mfu 41.20%",
        "step 250: train loss 3.0, val loss 3.0",
    ),
    "torchtitan": (
        "[titan] 2025-03-01 11:59:00,000 - root - INFO - Training starts at step 1",
        "[titan] 2025-03-01 12:{minute:02d}:{second:02d},{milli:03d} - root - INFO - "
        "\x1b[31mstep: {step:2}  \x1b[32mloss: {loss:7.4f}  \x1b[34mtps: 18,532\x1b[39m",
        "[titan] 2025-03-01 12:00:00,000 - root - INFO - validate step: 100  loss:  3.0000",
    ),
    "a training loop": ("epoch 0", "step={step} loss={loss:.4f} dt={s:.4f} s", "saved at step 100"),
}  # fmt: skip


def line(pattern, step):
    elapsed = step * PACE
    whole = round(1000 * elapsed)
    return pattern.format(
        step=step, loss=loss(step), bits=loss(step) / np.log(2), s=PACE, ms=1000 * PACE,
        elapsed=elapsed, elapsed_ms=1000 * elapsed, milli=whole % 1000,
        second=whole // 1000 % 60, minute=whole // 60_000,
    )  # fmt: skip


def test_what_frameworks_print_is_read(tmp_path):
    """Times of a step, means of ten, clocks; evaluations, colours; steps that a job did again."""
    for name, (before, pattern, between) in FRAMEWORKS.items():
        steps = [*STEPS[:20], *STEPS[15:]]  # resumed from step 150
        if "elapsed" in pattern or "milli" in pattern:  # a clock would show the pause
            steps = [*STEPS]
        text = [before]
        for step in steps:
            text += [line(pattern, step), between.format() if step % 100 == 0 else ""]
        file = tmp_path / "train.log"
        file.write_text("\n".join(text))
        log = tables.read(file)
        assert log.framework == name
        assert log.seconds / log.steps == pytest.approx(np.full(len(log.steps), PACE), rel=3e-3)
        assert log.step.tolist() in ([*STEPS], [*STEPS[1:]]), name
        names, rows = log_table.read(file, "", "loss")
        read = {row[names.index(f"{name} - step")]: row for _, row in rows()}
        assert [*read] == [*STEPS]
        assert read[300][names.index(f"{name} - loss")] == pytest.approx(loss(300), abs=1e-4), name
        with pytest.raises(InputError, match=rf"{re.escape(name)}, \d+ lines"):
            calibrate([file])


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
        file.write_text(nccl(ranks, factor, hops * 12.0, 1000.0 * share / hops))
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
    file.write_text(json.dumps(document | {"end": {"sum_received": {}}}))
    with pytest.raises(InputError, match="bits_per_second"):
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
