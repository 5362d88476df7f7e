"""`paceline fit-loss`: from the losses of short runs to an [objective] that scenarios extend."""

import json
import tomllib

import numpy as np
import pytest

import paceline
from paceline.command_line import run
from paceline.simulator.objectives.learning_curve.objective import baseline
from tests.helpers.worlds import scenario


def log(path, steps=400, seed=0, workers=1, slower=1.0, warmup=0):
    rng = np.random.default_rng(seed)
    lines = ["step,loss"]
    for step in range(4, steps + 1, 4):
        done = step if step < warmup else warmup + (step - warmup) / slower
        loss = 1.7 + 20.0 * (done * workers * 512 + 2e3) ** -0.25
        lines.append(f"{step},{loss * np.exp(0.003 * rng.standard_normal()):.6f}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def document(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_baseline_and_a_local_run_make_an_objective(tmp_path, capsys):
    base = log(tmp_path / "base.csv", workers=4)
    local = log(tmp_path / "local.csv", steps=100, seed=1, workers=4, slower=4.0)
    options = ["--tokens", "512", "--workers", "4", "--tau", "8", "--parameters", "1e9"]
    assert run(["fit-loss", base, local, *options, "-o", "loss.toml"]) == 0
    output = capsys.readouterr().out
    assert "fitted from" in output
    assert "90 %" in output
    data = tomllib.loads((tmp_path / "loss.toml").read_text())
    objective = data["objective"]
    assert objective["kind"] == "learning-curve"
    assert objective["tokens"] == 512
    assert objective["curve"] == {
        "file": "loss.csv", "workers": 4, "tokens": 512, "parameters": 1_000_000_000
    }  # fmt: skip
    objective["curve"]["file"] = str(tmp_path / "loss.csv")
    smaller = scenario({"name": "ssgd"}, objective=objective | {"tokens": 16}, steps=400)
    assert baseline(smaller.objective).batch == 4 * 512  # its own, whatever the scenario's steps
    (own,) = objective["own"]
    assert (own["algorithm"], own["workers"], own["tau"]) == ("diloco", 4, 8)
    assert own["log_steps"] == pytest.approx(np.log(4), abs=own["sd"])
    assert 0.15 < own["sd"] < 0.2
    assert (tmp_path / "loss.csv").read_text().startswith("tokens,loss\n")


def test_a_factor_of_steps_after_the_warm_up_carries_to_the_end(tmp_path):
    """Of a run of a fifth: in the file, and in what a scenario with it predicts."""
    base = log(tmp_path / "base.csv", workers=4, warmup=40)
    local = log(tmp_path / "local.csv", steps=120, seed=1, workers=4, slower=1.6, warmup=40)
    options = ["--tokens", "512", "--workers", "4", "--tau", "8", "--algorithm", "local-sgd"]
    assert run(["fit-loss", base, local, *options, "--warmup", "40", "-o", "loss.toml"]) == 0
    objective = tomllib.loads((tmp_path / "loss.toml").read_text())["objective"]
    assert objective["curve"]["warmup"] == 40
    (own,) = objective["own"]
    assert own["log_steps"] == pytest.approx(np.log(1.6), abs=0.1)
    objective["curve"]["file"] = str(tmp_path / "loss.csv")
    ends = [
        paceline.simulate(scenario({"name": "local-sgd", "tau": 8}, objective=table, steps=400))
        .algorithms[0]["loss"]["last"]
        for table in (objective, objective | {"own": [own | {"sd": 1e-3}]})
    ]  # fmt: skip
    truth = 1.7 + 20.0 * ((40 + 360 / 1.6) * 4 * 512 + 2e3) ** -0.25
    assert ends == pytest.approx([truth] * 2, rel=0.01)


def test_nothing_is_overwritten_unasked(tmp_path, capsys):
    base = log(tmp_path / "base.csv")
    (tmp_path / "loss.toml").write_text("mine")
    assert run(["fit-loss", base, "--tokens", "512", "-o", "loss.toml"]) == 2
    assert (tmp_path / "loss.toml").read_text() == "mine"
    assert "has other contents" in capsys.readouterr().err
    assert not (tmp_path / "loss.csv").exists()
    assert run(["fit-loss", base, "--tokens", "512", "-o", "loss.toml", "--overwrite"]) == 0
    assert (tmp_path / "loss.toml").read_text() != "mine"


def test_a_second_batch_size_shows_the_critical_batch(tmp_path, capsys):
    one, four = log(tmp_path / "one.csv"), log(tmp_path / "four.csv", workers=4, seed=2)
    runs = ["fit-loss", one, four, "--tokens", "512", "--workers", "1", "--workers", "4"]
    assert run([*runs, "--tau", "1", "--json"]) == 0
    low, high = document(capsys)["profile"]["objective"]["noise_scale"]
    assert high > low > 4 * 512  # as many tokens, the same loss: far from the critical batch


def test_the_column_of_losses_that_has_enough_of_them_is_taken_and_named(tmp_path, capsys):
    """As trainers write them: an evaluation now and then, and a mean over the run at its end."""
    steps = np.arange(4, 404, 4)
    losses = 1.7 + 20.0 * (steps * 512.0 + 2e3) ** -0.25
    pairs = list(zip(steps.tolist(), losses.tolist(), strict=True))
    logged = [{"step": step, "loss": loss} for step, loss in pairs]
    few = [{"step": step, "eval_loss": loss + 1} for step, loss in pairs[::20]]
    last = [{"step": 400, "train_loss": 3.0}]
    state = {"epoch": 1.0, "global_step": 400, "log_history": [*logged, *few, *last]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state, indent=2))
    (tmp_path / "minified.json").write_text(json.dumps(state, separators=(",", ":")))
    lines = "".join(f"{json.dumps(fields | {'eval_loss': None})}\n" for fields in logged)
    (tmp_path / "lines.jsonl").write_text(lines)
    rows = (f"{n},{loss},{loss + 1 if n % 8 == 0 else ''}\n" for n, loss in pairs)
    (tmp_path / "both.csv").write_text(f"step,train/loss,eval/loss\n{''.join(rows)}")
    names = ("trainer_state.json", "minified.json", "lines.jsonl", "both.csv (eval/loss)")
    for name in names:
        out = f"of_{name.partition('.')[0]}.toml"
        assert run(["fit-loss", name.split()[0], "--tokens", "512", "-o", out]) == 0
        assert f"Baseline {name}:" in " ".join(capsys.readouterr().out.split())
    same = ("trainer_state", "minified", "lines")
    assert len({(tmp_path / f"of_{name}.csv").read_text() for name in same}) == 1


def noisy(path, change, steps=4000, warmup=0, seed=0):
    """Write a log whose noise is correlated over 30 steps; return its losses at any step."""
    rng, noise, lines = np.random.default_rng(seed), 0.0, ["step,loss"]

    def law(step):
        done = np.where(step < warmup, step**2 / (2 * max(warmup, 1)), step - warmup / 2)
        return 2.0 + 6.0 * ((done + 30) / 30) ** -0.4

    for step in range(10, steps + 1, 10):
        noise = 0.72 * noise + 0.0035 * rng.standard_normal()
        lines.append(f"{step},{law(step) * change(step) * np.exp(noise):.6f}")
    path.write_text("\n".join(lines) + "\n")
    return law


def test_what_does_not_follow_the_law_is_found(tmp_path, capsys):
    """A warm-up, spikes and a decay of the rate are said; the interval holds at seven lengths."""
    for name, change, warmup, note in (
        ("warmup", lambda step: 1.0, 900, "its warm-up takes about 9"),
        ("spikes", lambda step: 1 + 0.4 * (step in (1500, 1510, 3000)), 0, "2 spikes"),
        ("decay", lambda step: 1 - 0.06 * max(step - 3400, 0) / 600, 0, "falls below its law"),
    ):
        law = noisy(tmp_path / f"{name}.csv", change, warmup=warmup)
        options = ["--tokens", "512", "-o", f"{name}-fit.toml", "--json"]
        assert run(["fit-loss", f"{name}.csv", *options]) == 0
        said = capsys.readouterr()
        assert note in said.err, said.err
        assert (tmp_path / f"{name}-fit.svg").read_text().startswith("<?xml")
        objective = json.loads(said.out)["profile"]["objective"]
        objective["curve"]["file"] = str(tmp_path / f"{name}-fit.csv")
        low, high = baseline(scenario({"name": "ssgd"}, objective=objective).objective).interval90(
            7 * 4000 * 512
        )
        assert low < law(7 * 4000) < high < 1.2 * low, name
    noisy(tmp_path / "rise.csv", lambda step: 1 + 0.1 * max(step - 3200, 0) / 800)
    short = np.array([3.0, 2.6, 2.4, 2.3, 2.25, 2.23, 2.25, 2.3, 2.38, 2.5])
    rows = "".join(f"{549 * (n + 1)},{loss}\n" for n, loss in enumerate(short))
    (tmp_path / "short.csv").write_text(f"step,loss\n{rows}")
    for name in ("rise.csv", "short.csv"):
        assert run(["fit-loss", name, "--tokens", "512", "-o", "none.toml"]) == 2
        assert "the loss rises from about step 3" in capsys.readouterr().err


def test_a_job_that_resumed_counts_once(tmp_path, capsys):
    """And a comma for decimals is one."""
    steps = np.array([*range(10, 1001, 10), *range(800, 2001, 10)])
    rows = "".join(f"{step};{2 + 6 * ((step + 30) / 30) ** -0.4:.5f}\n" for step in steps)
    (tmp_path / "log.csv").write_text("step;loss\n" + rows.replace(".", ","))
    assert run(["fit-loss", "log.csv", "--tokens", "512"]) == 0
    assert "its steps go back (1 x)" in " ".join(capsys.readouterr().err.split())
    assert len((tmp_path / "loss.csv").read_text().splitlines()) == 201


def test_each_run_has_a_column_of_its_own(tmp_path, capsys):
    """As in the export of a chart of two runs; a run is not compared with itself."""
    steps = np.arange(50, 5001, 50)
    fast, slow = (1.7 + 20.0 * (steps / by * 2048 + 2e3) ** -0.25 for by in (1.0, 1.2))
    rows = [
        f"{step},{one},{two if step <= 1000 else ''}\n"
        for step, one, two in zip(steps, fast, slow, strict=True)
    ]
    names = "ddp - train/loss", "diloco - train/loss"
    head = f'"Step","{names[0]}","{names[1]}"\n'
    (tmp_path / "chart.csv").write_text(head + "".join(rows))
    command = ["fit-loss", "chart.csv", "chart.csv", "--tokens", "512", "--workers", "4", "--tau"]
    command += ["32", "--json", "--overwrite"]
    columns = [f"{number}:loss={name}" for number, name in enumerate(names, start=1)]
    assert run([*command, *(text for column in columns for text in ("--column", column))]) == 0
    (own,) = document(capsys)["profile"]["objective"]["own"]
    assert np.exp(own["log_steps"]) == pytest.approx(1.2, abs=0.01)
    for column, said in (
        (f"loss={names[0]}", "the same losses"),
        (f"3:loss={names[0]}", "RUN is the number of a run, 1 to 2"),
        ("lost=x", "did you mean `loss`"),
    ):
        assert run([*command, "--column", column]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_scenario_of_another_model_is_told_so_where_its_loss_is_said(tmp_path, capsys):
    base, options = log(tmp_path / "base.csv"), ["--tokens", "512", "-o", "loss.toml"]
    assert run(["fit-loss", base, *options]) == 0
    assert "--parameters is not set" in capsys.readouterr().err
    assert run(["fit-loss", base, *options, "--parameters", "1e9", "--overwrite"]) == 0
    assert "--parameters" not in capsys.readouterr().err
    objective = tomllib.loads((tmp_path / "loss.toml").read_text())["objective"]
    objective["curve"]["file"] = str(tmp_path / "loss.csv")
    for parameters, noted in ((1_500_000_000, False), (7_000_000_000, True)):
        world = scenario({"name": "ssgd"}, objective=objective, steps=400,
                         model={"parameters": parameters})  # fmt: skip
        basis = paceline.simulate(world).verdict.basis
        assert ("for 1e+09 parameters, not the 7e+09 of [model]" in basis) == noted, basis


def test_options_that_cannot_be_are_refused(tmp_path, capsys):
    """And a range of critical batches may be given either way round."""
    rows = "".join(f"{step},{2 + 9 * step**-0.3}\n" for step in range(10, 400, 10))
    (tmp_path / "log.csv").write_text(f"step,loss\n{rows}")
    common = ["fit-loss", "log.csv", "--tokens", "64", "--workers", "4", "-o", "made.toml"]
    for options, message in (
        (["log.csv", "--tau", "8", "--algorithm", "dilocos"], "did you mean `diloco`"),
        (["--warmup", "1e6"], "0 points after 1e+06 steps of warm-up"),
        (["--tokens", "1e30"], "Invalid value for '--tokens'"),
    ):
        assert run([*common, *options]) == 2
        assert message in capsys.readouterr().err
    assert run([*common, "--noise-scale", "9e6", "--noise-scale", "2e6"]) == 0
    made = tomllib.loads((tmp_path / "made.toml").read_text())
    assert made["objective"]["noise_scale"] == [2e6, 9e6]
    capsys.readouterr()
    assert run([*common, "--overwrite"]) == 0  # 64 samples a step may be sounds or pictures
    assert "for language, within a factor of" in capsys.readouterr().err


def test_a_fitted_loss_says_nothing_of_times(tmp_path, capsys):
    """It is no calibration: intervals over TCP stay, and none is claimed of ideal links."""
    base = log(tmp_path / "base.csv")
    assert run(["fit-loss", base, "--tokens", "512", "-o", "fitted.toml"]) == 0
    text = (tmp_path / "fitted.toml").read_text()
    assert "calibration" not in tomllib.loads(text)
    assert "# Fitted on 20" in text
    assert "# one batch size does not determine the critical batch" in text
    (tmp_path / "my.toml").write_text(
        'extends = "fitted.toml"\nmodel.parameters = 10_000_000\n'
        'cluster = { workers = 4, compute = "1 s" }\n'
        'network = { latency = "1 ms", bandwidth = "100 Mbit/s" }\n'
        'run.steps = 20\nalgorithm = [{ name = "ssgd" }]\n'
    )
    capsys.readouterr()
    for transport, priced in (("ideal", False), ("tcp", True)):
        options = ["--json", "--set", f"network.transport={transport}"]
        assert run(["simulate", "my.toml", "--overwrite", *options]) == 0
        actual = document(capsys)["algorithms"][0]
        assert bool((actual.get("interval90") or {}).get("seconds_per_step")) is priced
