"""Processes killed and restarted on hidden calendars, against what the simulator predicts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.worlds import QUADRATIC, scenario, simulate

pytest.importorskip("torch")
STEPS, STEP, GRACE = 60, 0.5, 0.1  # the times in seconds
POLICIES = [{"policy": "shrink"}, {"policy": "quorum", "quorum": 2, "grace": "100 ms"}]
ENTRIES, RATE = 20_000, 200_000  # of the parameters, 8 bytes each; bytes per second to who joins
TRANSFER = 8 * ENTRIES / RATE
WORLD = {
    "objective": QUADRATIC | {"dimension": ENTRIES, "noise": 0.05, "shift": 0.1},
    "lr": 0.1,
    "steps": STEPS,
}
MODEL = {"parameters": ENTRIES, "bytes_per_parameter": 8}
MEANS = {"collective": "given", "duration": "1 us", "latency": "0 s"}  # they are part of a step


def calendar(seed: int) -> list[tuple[int, float, float]]:
    """Draw when two of the workers are killed (s), and for how long, twice each."""
    rng = np.random.default_rng(seed)
    thirds = [(worker, at) for worker in (1, 2) for at in (0.1, 0.5)]
    whole = STEPS * STEP
    return [
        (worker, float(rng.uniform(at, at + 0.15) * whole), float(rng.uniform(1, 5)))
        for worker, at in thirds
    ]


def trained(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Train on real processes; return when rounds ended (s), the loss, and who is there."""
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    program = [sys.executable, "-m", "tests.helpers.crashing_processes"]
    done = subprocess.run(
        [*program, str(tmp_path / "settings.json")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def crashes(downs: list[tuple[int, float, float]], startup: float) -> dict[str, Any]:
    """Tell them as crashes, with the transfer as a cost that the user states."""
    tables = [{"worker": w, "at": f"{at} s", "lasts": f"{lasts} s"} for w, at, lasts in downs]
    return {"cluster": {"crash": tables}, "reload": f"{startup + TRANSFER} s"}


def leaves(downs: list[tuple[int, float, float]], startup: float, folder: Path) -> dict[str, Any]:
    """Tell them by a trace of who is there; the transfer follows from the link."""
    lines = ["worker,start,end"]
    for worker in sorted({worker for worker, *_ in downs}):
        edges = [0.0, *(edge for w, at, s in downs if w == worker for edge in (at, at + s))]
        ends = [*map(str, edges[1::2]), ""]
        lines += [f"{worker},{a},{b}" for a, b in zip(edges[::2], ends, strict=True)]
    (folder / "trace.csv").write_text("\n".join(lines))
    return {"cluster": {"membership": "trace.csv"}, "reload": f"{startup} s"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recovery", POLICIES, ids=lambda policy: policy["policy"])
def test_measured_pace_and_loss_are_as_predicted(
    recovery: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    """Within 3 %, and without a hang. With a quorum one worker is so slow that it never counts.

    What this machine adds to a step, and takes to restart a process, is measured before. The
    parameters of a team are compared after each round, of those that came back, too.
    """
    slow = 3 if recovery["policy"] == "quorum" else 1
    real = {
        "algorithm": {"name": "ssgd"}, "world": WORLD, "lr": WORLD["lr"], "bytes_per_second": RATE,
        "seconds": [STEP] * 3 + [slow * STEP], "recovery": recovery | {"grace_s": GRACE},
    }  # fmt: skip
    before = trained(tmp_path, **real, calendar=[(1, 0.8, 0.5), (2, 3.0, 0.5)], steps=12)
    step = float(np.median(np.diff(before["ends"]))) - (GRACE if slow > 1 else 0)
    startup = float(np.mean(before["startups"]))
    downs = calendar(seed)
    record = trained(tmp_path, **real, calendar=downs, steps=STEPS)
    groups = [
        {"name": "usual", "workers": 3, "compute": f"{step} s"},
        {"name": "slow", "workers": 1, "compute": f"{slow * step} s"},
    ]
    truth = record["ends"][-1], record["loss"]
    print(f"\n{recovery['policy']} {seed}: a step {step:.4f} s, start {startup:.3f} s")
    print("joins (worker, at, transfer):", [(w, *np.round(t, 2)) for w, *t in record["joins"]])
    assert len(record["joins"]) == len(downs)
    assert min(lasted for *_, lasted in record["joins"]) >= TRANSFER
    assert set(record["there"]) >= {0, 1, 2}
    for told in (crashes(downs, startup), leaves(downs, startup, tmp_path)):
        world = scenario(
            {"name": "ssgd", "recovery": recovery | {"reload": told["reload"]}},
            **WORLD, folder=tmp_path, model=MODEL, cluster={"group": groups} | told["cluster"],
            network=MEANS | {"bandwidth": f"{8 * RATE} bit/s"},
        )  # fmt: skip
        predicted = simulate(world)
        expected = predicted.duration, predicted.curve["loss"][-1]
        errors = [100 * (b / a - 1) for a, b in zip(truth, expected, strict=True)]
        print(f"{next(iter(told['cluster']))}: {truth} measured, {expected} predicted, {errors} %")
        assert expected == pytest.approx(truth, rel=0.03)
