"""Processes killed and restarted on a hidden calendar, against what the simulator predicts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.worlds import QUADRATIC, scenario, simulate

pytest.importorskip("torch")
CALENDAR = [(1, 3.1, 4.0), (2, 5.3, 2.0), (1, 11.05, 1.7)]  # worker, killed at, for so long
STEPS, STEP, GRACE = 40, 0.4, 0.1  # the times in seconds
POLICIES = [{"policy": "shrink"}, {"policy": "quorum", "quorum": 2, "grace": "100 ms"}]


def measured(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Train on real processes; return when rounds ended (s), the loss, and who is there."""
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    program = [sys.executable, "-m", "tests.helpers.crashing_processes"]
    done = subprocess.run(
        [*program, str(tmp_path / "settings.json")],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("recovery", POLICIES, ids=lambda each: each["policy"])
def test_measured_pace_and_loss_are_as_predicted(recovery: dict[str, Any], tmp_path: Path) -> None:
    """Within 3 %, and without a hang. With a quorum one worker is so slow that it never counts.

    What this machine adds to a step is measured before, without crashes. Workers of a team assert
    that their parameters are equal, those that came back included.
    """
    slow = 3 if recovery["policy"] == "quorum" else 1
    quiet = {"objective": QUADRATIC | {"noise": 0.05, "shift": 0.1}, "lr": 0.1}
    real = {
        "algorithm": {"name": "ssgd"}, "world": quiet | {"steps": STEPS}, "lr": 0.1,
        "seconds": [STEP] * 3 + [slow * STEP], "recovery": recovery | {"grace_s": GRACE},
    }  # fmt: skip
    before = measured(tmp_path, **real, calendar=[], steps=10)["ends"]
    step = (before[-1] - before[0]) / 9 - (GRACE if slow > 1 else 0)
    groups = [
        {"name": "usual", "workers": 3, "compute": f"{step} s"},
        {"name": "slow", "workers": 1, "compute": f"{slow * step} s"},
    ]
    crashes = [{"worker": w, "at": f"{at} s", "lasts": f"{s} s"} for w, at, s in CALENDAR]
    case = {"name": "ssgd", "recovery": recovery}
    cluster = {"group": groups, "crash": crashes}
    predicted = simulate(scenario(case, **quiet, steps=STEPS, cluster=cluster))
    found = measured(tmp_path, **real, calendar=CALENDAR, steps=STEPS)
    pairs = (found["ends"][-1], predicted.duration), (found["loss"], predicted.curve["loss"][-1])
    print(f"{recovery['policy']}: a step takes {step:.4f} s; (measured, predicted): {pairs}")
    assert set(found["there"]) >= {0, 1, 2}
    for truth, said in pairs:
        assert truth == pytest.approx(said, rel=0.03)
