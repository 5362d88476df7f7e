"""Real processes: the same programs on gloo, equal to what is simulated."""

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.simulator.engines.lockstep import replay, run
from paceline.simulator.objectives import build
from paceline.simulator.programs import catalogue
from paceline.validate.launch import launch
from paceline.validate.measurement import measure
from paceline.validate.training.task import Job, TrainingTask
from tests.helpers.programs import ROWS, TOP_K, called, cases
from tests.helpers.worlds import scenario

SEED, STEPS = 3, 12
TIMELESS = {row.name for row in ROWS if row.timeless}
RELATIVE = {"float32": 1e-5, "float64": 1e-10}
CODECS = [
    {"name": "ssgd", "codec": codec}
    for codec in (
        "fp16",
        "qsgd",
        "dgc",
        {"kind": "random-k", "ratio": 0.2},
        "power-sgd",
        "sparse-loco",
    )
]
HALVES = 1e-3  # gloo adds them with a rounding, and in an order, of its own
# which entries are the largest depends on single bits, and NumPy's and torch's float32 differ there
INSTEAD = {"kind": "random-k", "ratio": 0.4}


def tables(workers, dtype):
    """Return every program as [[algorithm]] tables; for one case with all variants and codecs."""
    found = [{"name": row.name, **row.variants[-1]} for row in ROWS]
    if (workers, dtype) == (4, "float64"):
        found = [*cases(), *CODECS]
    for case in found:
        if workers == 2 and "graph" in case:
            case["graph"] = "complete"
        if dtype == "float32" and case.get("codec") == TOP_K:
            case["codec"] = INSTEAD
    return [case | {"label": f"{number} {called(case)}"} for number, case in enumerate(found)]


@pytest.mark.parametrize(
    ("workers", "dtype"),
    [
        pytest.param(2, "float32", marks=pytest.mark.long),
        (2, "float64"),
        pytest.param(4, "float32", marks=pytest.mark.long),
        pytest.param(4, "float64", marks=pytest.mark.slow),
    ],
)
def test_real_processes_end_with_the_simulated_parameters(workers, dtype, tmp_path):
    """Checked for every program; the replay log gives the order of arrival."""
    made = scenario(
        *tables(workers, dtype),
        workers=workers,
        compute="5 ms",
        steps=STEPS,
        objective={"kind": "torch", "model": "mlp", "data": "digits", "batch": 8, "dtype": dtype},
        validation={"compute": "real", "network": "real"},
        run={"evaluate_every": 1},
    )
    tasks = [
        TrainingTask(each, SEED, tmp_path / f"{index}") for index, each in enumerate(made.algorithm)
    ]
    launch.run(Job(made, tuple(tasks), tmp_path, "cpu"))
    differ = {}
    for task in tasks:
        measured = measure.measure(task, made)
        assert measured.whole
        expected = simulated(task, made, measured)
        finals = [each.rows["x"][-1] for each in measured.records if len(each.rows)]
        assert len(finals) in (1, workers)
        for ours, theirs in zip(expected[-len(finals) :], finals, strict=True):
            error = np.linalg.norm(theirs - ours) / np.linalg.norm(ours)
            moved = not np.array_equal(ours, build.build(made, task.algorithm, SEED).start)
            halves = task.algorithm.table.get("codec") == "fp16"
            if not (error <= (HALVES if halves else RELATIVE[dtype]) and moved):
                differ[task.algorithm.label] = error
    assert not differ


def simulated(task, made, measured):
    """Each node's last mark is repeated without a clock."""
    program = catalogue()[task.algorithm.name]
    goal = build.build(made, task.algorithm, SEED)
    with np.errstate(over="ignore"):
        if task.algorithm.name in TIMELESS:
            found = run.run(program, task.algorithm, made, goal, SEED)
        else:
            found = replay.run(program, task.algorithm, made, goal, SEED, measured.replay_logs)
    return found if program.averages else found[:1]
