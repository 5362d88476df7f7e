"""No study is silent: how much is done is told within a run, in one process or several."""

import numpy as np
import pytest

from paceline import solve, sweep, tune
from paceline.simulator.load.load import parse
from paceline.simulator.studies import executors

SPREAD = {"dist": "shifted-exponential", "shift": "80 ms", "mean": "100 ms"}


def world(algorithm, **tables):
    return parse({
        "model": {"parameters": 1000},
        "objective": {"kind": "quadratic", "dimension": 4, "noise": 1.0},
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": 2, "compute": SPREAD},
        "network": {"latency": "40 ms", "bandwidth": "1 Mbit/s"},
        "run": {"steps": 200, "seeds": 2, "evaluate_every": 1},
        "algorithm": algorithm,
        **tables,
    })  # fmt: skip


def studied(name, **how):
    """Return what a study tells: how much is done, of how much."""
    shares = []
    how |= {"engine": "virtual", "progress": lambda done, total: shares.append((done, total))}
    local = world([{"name": "local-sgd", "tau": 4}])
    if name == "sweep":
        sweep(local, {"optimizer.lr": [0.1, 0.2]}, **how)
    elif name == "solve":
        solve(local, "network.bandwidth", "seconds_per_step <= 130 ms", **how)
    else:
        goal = {"duration": "20 s", "target_loss": 0.2, "evaluate_every": 1}
        space = {"local-sgd": {"lr": [0.1, 0.2], "tau": [1, 2]}}
        tune(world([], run=goal, tune=space), seeds=2, **how)
    return shares


@pytest.mark.parametrize(("name", "total"), [("sweep", 4), ("solve", 17), ("tune", 4)])
def test_in_one_process_each_share_of_a_run_is_told(name, total, monkeypatch):
    monkeypatch.setattr(executors, "PULSE", 0.0)
    parts = studied(name)
    assert {of for _, of in parts} == {total}
    shares = [done for done, _ in parts]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert max(np.diff(shares)) < (0.6 if name == "solve" else 0.1)  # its tasks are single runs


@pytest.mark.parametrize(
    "name",
    ["tune", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("sweep", "solve"))],
)
def test_in_several_processes_a_word_comes_while_none_has_ended(name, monkeypatch):
    monkeypatch.setattr(executors, "PATIENCE", 0.01)
    shares = studied(name, jobs=2)
    assert shares[:4] == shares[:1] * 4  # starting a process takes longer
