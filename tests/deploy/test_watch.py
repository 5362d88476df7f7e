"""Watch loops and logs: what is reported, what is not, and what it costs the loop."""

import itertools
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline
from paceline import growing_log
from paceline.command_line import run
from paceline.deploy.watch import Prediction, Watcher
from paceline.simulator.errors import InputError

MEAN = 6.0  # seconds of a mean
LAWS = {  # seconds of a step, whose mean is 1
    "steady": lambda: random.gauss(1, 0.01),
    "gamma": lambda: random.gammavariate(10, 0.1),
    "exponential": lambda: random.expovariate(1),
    "heavy": lambda: random.lognormvariate(-0.5, 1),
}


def watcher(tau=1, steps=4000, **more):
    mean = 1 + MEAN / tau * (tau > 1)
    losses = [(1.0, 0.9, 1.1), (100.0, 0.45, 0.55)]
    times, total = (mean, 0.98 * mean, 1.02 * mean), (steps, steps, steps)
    return Watcher(Prediction("p", times, total, tau, losses, compute=1.0, **more), logs=False)


def told(watched):
    watched.close()
    return [report.code for report in watched.reports]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("tau", [1, 8])
def test_noise_is_no_reason_for_a_report(law, tau):
    """At most one run in a hundred gives a false alarm; here none of forty."""
    alarms = 0
    for seed in range(40):
        random.seed(seed)
        watched = watcher(tau)
        for step in range(1, 2001):
            seconds = LAWS[law]() + MEAN * (tau > 1 and step % tau == 0) * LAWS["gamma"]()
            loss = random.lognormvariate(-0.02, 0.2)
            watched.add(step, seconds, 1, loss * (1 if step < 100 else 0.5))
        alarms += bool(told(watched))
    assert alarms == 0


@pytest.mark.parametrize(("slower", "between", "means"), [(1.5, 1.5, 1.0), (1.0, 1.0, 1.5)])
def test_a_change_is_reported_with_its_place_and_the_rest(slower, between, means):
    random.seed(1)
    watched = watcher(tau=8)
    for step in range(1, 2001):
        late = step > 1000
        seconds = LAWS["gamma"]() * (slower if late else 1)
        watched.add(step, seconds + MEAN * (step % 8 == 0) * (means if late else 1))
    (report,) = watched.reports
    assert report.code == "pace"
    assert abs(report.since - 1000) <= 16
    assert 1000 < report.step < 1200
    assert report.between == pytest.approx(between, abs=0.1)
    assert report.means == pytest.approx(means, rel=0.15)
    assert report.value == pytest.approx(report.ratio * 1.75)
    value, low, high = report.seconds
    assert low < value < high
    assert value == pytest.approx((4000 - report.step) * report.value, rel=0.05)
    assert "The rest takes" in report.sentence
    assert watched.status.code == "status"


def test_a_pace_that_returns_is_reported_and_pauses_are_not():
    watched = watcher()
    for step in range(1, 3001):
        watched.add(step, (1.4 if 1000 < step <= 2000 else 1.0) + 30 * (step % 500 == 0))
    slow, back = watched.reports
    assert 1000 <= slow.since <= 1001  # the pause of step 1000 may count
    assert 2000 <= back.since <= 2001
    assert slow.ratio == pytest.approx(1.4, rel=0.1)
    assert back.ratio == pytest.approx(1.0, rel=0.1)


def test_a_prediction_of_no_width_is_one_number():
    watched = Watcher(Prediction("p", (0.11, 0.11, 0.11), (900, 900, 900)), logs=False)
    for step in range(1, 901):
        watched.add(step, 0.11 if step <= 460 else 0.2)
    (report,) = watched.reports
    assert report.sentence.startswith("Since step 461, a step takes 200 ms")
    assert "which is 110 ms. " in report.sentence


def test_losses_outside_their_interval_or_not_finite():
    watched = watcher()
    for step in range(1, 1001):
        loss = 0.5 if step < 500 else 0.8 if step < 800 else math.nan
        watched.add(step, math.nan, 1, loss)
    assert told(watched) == ["loss", "not finite"]
    assert 480 < watched.reports[0].since <= 501
    assert watched.status is None


class Late:
    """A loss on a device, which counts when it is read."""

    def __init__(self, step, reads):
        self.step, self.reads = step, reads

    def detach(self):
        return self

    def item(self):
        self.reads.append(self.step)
        return 0.5


def test_a_loss_is_read_a_window_later(monkeypatch):
    clock = itertools.count(step=0.5)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    watched, reads, ages = watcher(), [], []
    for step in range(1, 201):
        with watched.step() as block:
            block.loss = Late(step, reads)
        ages += [step - read for read in reads[len(ages) :]]
    assert min(ages) >= 20
    assert len(reads) == 160  # all but the warm-up's, and those of the last window
    with pytest.raises(ValueError, match="x"), watched.step():
        raise ValueError("x")
    assert watched.taken == 200  # a block that fails does not count


FORMATS = {
    "nanogpt.log": "iter {step}: loss {loss:.4f}, time {ms:.2f}ms, mfu 1.00%",
    "megatron.log": " iteration {step:8d}/ 400 | elapsed time per iteration (ms): {ms:.1f} | "
    "lm loss: {loss:.4E} |",
    "titan.log": "[rank0]:2026-11-29 {clock} - root - INFO - step: {step}  loss: {loss:.4f}  "
    "memory: 1.00GiB",
    "job.jsonl": '{{"step": {step}, "seconds": {s:.4f}, "loss": {loss:.4f}}}',
    "job.csv": "{step},{s:.4f},{loss:.4f}",
}


def lines(name, scale=1.0):
    """The lines of a log whose steps take `scale` times the prediction."""
    at, head = 0.0, ["step,seconds,loss"] if name.endswith(".csv") else []
    for step in range(1, 401):
        s = scale * (0.109 + 0.002 * (step % 7))
        at += s
        clock = f"10:{int(at // 60):02}:{int(at % 60):02},{int(at * 1000 % 1000):03}"
        loss = max(0.1, 2.5 / (1 + step / 20))
        head.append(FORMATS[name].format(step=step, s=s, ms=1000 * s, loss=loss, clock=clock))
    return "\n".join(head) + "\n"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    world = str(Path(__file__).with_name("watch.toml"))
    assert run(["simulate", world, "-q", "-o", str(folder / "run")]) == 0
    return folder / "run"


def test_the_prediction_is_the_run_folders(plan):
    for row in json.loads((plan / "run.json").read_text())["summary"]["algorithms"]:
        predicted = paceline.watch(plan, label=row["label"]).prediction
        assert predicted.step_time[0] == pytest.approx(row["seconds_per_step"]["mean"])
        assert predicted.steps == (400.0, 400.0, 400.0)
        assert predicted.period == row["parameters"].get("tau", 1)
        assert predicted.losses[-1][1] < row["loss"]["last"] < predicted.losses[-1][2]
    with pytest.raises(InputError, match="not a run folder"):
        paceline.watch("diloco")


@pytest.mark.parametrize("name", FORMATS)
def test_a_slow_job_is_reported_from_its_log(name, plan, tmp_path, capsys):
    log = tmp_path / name
    command = ["watch", str(log), "--plan", str(plan), "--algorithm", "ssgd", "--json"]
    codes = {}
    for scale in (1.0, 2.0):
        log.write_text(lines(name, scale))
        assert run(command) == 0
        codes[scale] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not [report for report in codes[1.0] if report["code"] == "pace"]
    (slow,) = [report for report in codes[2.0] if report["code"] == "pace"]
    assert slow["ratio"] == pytest.approx(2.0, rel=0.1)
    assert codes[2.0][-1]["code"] == "status"


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_that_grows(name, plan, tmp_path, monkeypatch):
    """Half a line waits for its end; an empty log waits for its first steps."""
    log, waiting, text = tmp_path / name, [], lines(name, 2.0)
    parts = ["", *(text[: len(text) * n // 7] for n in range(1, 7)), text]
    log.write_text(parts.pop(0))
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        if parts:
            log.write_text(parts.pop(0))

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(growing_log, "time", clock)
    watched, whole = (paceline.watch(plan, label="ssgd", logs=False) for _ in range(2))
    reports = [*growing_log.follow(watched, log, {}, 12.0, waiting.append)]
    assert len(waiting) == 1
    assert watched.taken == 400
    at_once = [*growing_log.follow(whole, log, {})]
    values = [report.value for report in at_once]
    assert [(r.sentence, r.since) for r in reports] == [(r.sentence, r.since) for r in at_once]
    assert [report.value for report in reports] == pytest.approx(values, nan_ok=True)
    assert [report.code for report in reports][-1] == "status"
    assert now[0] == pytest.approx(12.0)


def test_a_log_that_is_rotated_until_ctrl_c(plan, tmp_path, monkeypatch):
    """A shorter log is read anew, a missing one is waited for, and Ctrl-C shows the pace."""
    log, waiting, text = tmp_path / "job.csv", [], lines("job.csv", 2.0)
    acts = [lambda: log.write_text(text[:900]), log.unlink, lambda: log.write_text(text)]
    log.write_text(text[:2000])

    def sleep(seconds):
        if not acts:
            raise KeyboardInterrupt
        acts.pop(0)()

    monkeypatch.setattr(growing_log, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    watched, codes = paceline.watch(plan, label="ssgd", logs=False), []
    reports = growing_log.follow(watched, log, {}, math.inf, waiting.append)
    with pytest.raises(KeyboardInterrupt):
        codes.extend(report.code for report in reports)
    shorter, missing = waiting
    assert "shorter than before; it is read anew, after step 1" in shorter
    assert "No such file" in missing
    assert watched.taken == 400
    assert codes[-1] == "status"


def test_losses_alone_are_watched(plan, tmp_path, capsys):
    history = [{"step": step, "loss": 5.0 + step % 3} for step in range(1, 401)]
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"log_history": history}))
    assert run(["watch", str(log), "--plan", str(plan), "--algorithm", "ssgd"]) == 0
    assert "loss" in capsys.readouterr().out


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "watch.md"
SCRIPTS = dict(re.findall(r'```python title="(\S+)"\n(.*?)```', PAGE.read_text("utf-8"), re.S))


@pytest.mark.long
@pytest.mark.parametrize("name", ["accelerated.py", "lit.py", "hf.py"])
def test_scripts_are_watched(name, plan, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "my").symlink_to(plan)
    command = [sys.executable, "-c", SCRIPTS[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "100 steps" in done.stdout, done.stderr


@pytest.mark.parametrize("framework", ["transformers", "lightning", "accelerate"])
def test_callbacks_count_steps_not_batches(framework, monkeypatch):
    base = type("Base", (), {})
    modules = {
        "transformers": SimpleNamespace(TrainerCallback=base),
        "lightning.pytorch.callbacks": SimpleNamespace(Callback=base),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    watched = watcher()
    callback = watched.callback(framework)
    for batch in range(100):
        if framework == "lightning":
            callback.on_train_batch_start(None, None, None, batch)
            trainer = SimpleNamespace(global_step=(batch + 1) // 2)
            callback.on_train_batch_end(trainer, None, {"loss": 2.0}, None, batch)
        elif framework == "transformers" and batch % 2:
            callback.on_step_begin(None, None, None)
            callback.on_step_end(None, None, None)
            callback.on_log(None, None, None, logs={"loss": 2.0})
        elif batch % 2:
            callback.loss = 2.0
            callback(None, (), {})
    callback.on_train_end(None, None)
    assert watched.taken == 50
    with pytest.raises(InputError, match="keras"):
        watched.callback("keras")


@pytest.mark.parametrize(
    ("more", "text", "named"),
    [
        ((), None, "job.csv"),
        ((), "step,seconds\n", "job.csv"),
        (("--column", "seconds=dt [ms]"), "step,seconds\n1,2\n", "columns.seconds"),
        (("--for", "3"), "step,seconds\n1,2\n", "--follow"),
        (("--algorithm", "psgd"), "step,seconds\n1,2\n", "psgd"),
    ],
)
def test_wrong_input_is_refused(more, text, named, plan, tmp_path, capsys):
    log = tmp_path / "job.csv"
    if text is not None:
        log.write_text(text)
    assert run(["watch", str(log), "--plan", str(plan), *more]) == 2
    assert named in capsys.readouterr().err
