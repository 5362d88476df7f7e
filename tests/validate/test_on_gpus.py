"""Real runs on GPUs: one that several ranks share, and one for each. `make test-gpu` runs these.

Which parts ran, and why others did not, is at the end of its output.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.validate.launch import launch
from paceline.validate.measurement import measure
from paceline.validate.probe import doctor
from paceline.validate.training.task import Job, TrainingTask
from tests.helpers.worlds import scenario
from tests.validate.test_real_runs import HALVES, SEED, simulated, tables

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()
ONE = pytest.mark.skipif(GPUS < 1, reason="torch sees no GPU here")
EACH = pytest.mark.skipif(GPUS < 2, reason=f"{GPUS} GPUs here: no NCCL between ranks; needs 2")
SPARE = pytest.mark.skipif(GPUS < 3, reason=f"{GPUS} GPUs here: none for a server; needs 3")
STEPS, APART = 12, 1e-8  # in float64, whose sums a GPU adds up in another order


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def trained(folder, cases):
    """Train every case for real with 2 workers; return where parameters differ, and accounts."""
    made = scenario(
        *cases, workers=2, compute="5 ms", steps=STEPS,
        objective={"kind": "torch", "model": "mlp", "data": "digits", "batch": 8,
                   "dtype": "float64"},
        validation={"compute": "real", "network": "real"}, run={"evaluate_every": 1},
    )  # fmt: skip
    tasks = tuple(TrainingTask(a, SEED, folder / f"{k}") for k, a in enumerate(made.algorithm))
    launch.run(Job(made, tasks, folder, "cuda"))
    differ, accounts = {}, []
    for task in tasks:
        measured = measure.measure(task, made)
        accounts.append([record.account.machine for record in measured.records])
        expected = simulated(task, made, measured)
        finals = [record.rows["x"][-1] for record in measured.records if len(record.rows)]
        limit = HALVES if task.algorithm.table.get("codec") == "fp16" else APART
        for ours, theirs in zip(expected[-len(finals) :], finals, strict=True):
            error = np.linalg.norm(theirs - ours) / np.linalg.norm(ours)
            if not error <= limit:
                differ[task.algorithm.label] = error
    return differ, accounts


@ONE
def test_every_program_with_ranks_that_share_a_gpu(one_gpu, tmp_path):
    differ, accounts = trained(tmp_path, tables(2, "float64"))
    assert not differ
    assert {account["collectives"] for one in accounts for account in one} == {
        "gloo, through the host's memory"
    }


@EACH
def test_every_program_with_a_gpu_for_each_worker(tmp_path):
    differ, accounts = trained(tmp_path, tables(2, "float64"))
    assert not differ
    assert {account["collectives"] for one in accounts for account in one} == {"NCCL"}
    assert all(one[0]["device"] != one[1]["device"] for one in accounts)


@SPARE
def test_a_server_has_a_gpu_of_its_own(tmp_path):
    _, ((*workers, server),) = trained(tmp_path, [{"name": "asgd", "label": "asgd"}])
    assert server["device"] not in {worker["device"] for worker in workers}


@ONE
def test_the_doctor_finds_nothing_wrong_with_runs_here():
    report = doctor.diagnose(device="cuda")
    assert report.smoke
    assert all(line.good for line in report.smoke), report.smoke
