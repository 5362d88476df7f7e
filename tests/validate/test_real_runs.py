"""Real processes: the same programs on gloo, equal to what is simulated."""

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.simulator.errors import InputError
from paceline.simulator.objectives import build
from paceline.simulator.programs import catalogue
from paceline.validate import validation
from paceline.validate.launch import launch
from paceline.validate.measurement import measure
from paceline.validate.training.task import Job, TrainingTask
from tests.helpers.programs import ROWS, TOP_K, called, cases
from tests.helpers.replay import ReplayLog, run
from tests.helpers.worlds import scenario

SEED, STEPS = 3, 12
SOME = ("ssgd-bucketed", "adacomm", "dts", "asgd", "ad-psgd")
PROGRAMS = tuple(row.name for row in ROWS)
TIMELESS = {row.name for row in ROWS if row.timeless}
RELATIVE = {"float32": 1e-5, "float64": 1e-10}
CODECS = [
    {"name": "ssgd", "codec": codec}
    for codec in (
        "fp16",
        "int8",
        "bf16",
        "qsgd",
        "dgc",
        {"kind": "random-k", "ratio": 0.2},
        "power-sgd",
        "sparse-loco",
    )
]
HALVES = 1e-3  # gloo adds them with a rounding, and in an order, of its own
# Single bits decide which entries are the largest, and NumPy's and torch's float32 differ there.
# Entries of fedavg are equal in exact numbers, so its float64 differ too: pixels are whole numbers.
INSTEAD = {"kind": "random-k", "ratio": 0.4}


def tables(workers, dtype):
    """Return every program as [[algorithm]] tables; for one case with all variants and codecs."""
    actual = [{"name": row.name, **row.variants[-1]} for row in ROWS]
    if (workers, dtype) == (4, "float64"):
        actual = [*cases(), *CODECS]
    for case in actual:
        if workers == 2 and "graph" in case:
            case["graph"] = "complete"
        if (dtype == "float32" or case["name"] == "fedavg") and case.get("codec") == TOP_K:
            case["codec"] = INSTEAD
    return [case | {"label": f"{number} {called(case)}"} for number, case in enumerate(actual)]


@pytest.mark.parametrize(
    ("workers", "dtype", "names"),
    [
        (2, "float64", SOME),
        pytest.param(4, "float32", PROGRAMS, marks=pytest.mark.long),
        pytest.param(2, "float32", PROGRAMS, marks=pytest.mark.slow),
        pytest.param(4, "float64", PROGRAMS, marks=pytest.mark.slow),
    ],
    ids=lambda value: len(value) if isinstance(value, tuple) else None,
)
def test_real_processes_end_with_the_simulated_parameters(workers, dtype, names, tmp_path):
    """Checked for every program; the replay log gives the order of arrival."""
    made = scenario(
        *(case for case in tables(workers, dtype) if case["name"] in names),
        workers=workers,
        compute="5 ms",
        steps=STEPS,
        objective={"kind": "torch", "model": "mlp", "data": "digits", "batch": 8, "dtype": dtype},
        validation={"compute": "real", "network": "real"},
        run={"evaluate_every": 1},
    )
    tasks = [
        TrainingTask(item, SEED, tmp_path / f"{index}") for index, item in enumerate(made.algorithm)
    ]
    launch.run(Job(made, tuple(tasks), tmp_path, "cpu"))
    differ = {}
    for task in tasks:
        measured = measure.measure(task, made)
        assert measured.whole
        expected = simulated(task, made, measured)
        # where nobody waits for it, a worker that a busy machine starves has not come to a mark
        marked = [n for n, record in enumerate(measured.records) if len(record.rows)]
        assert marked
        alike = expected * len(marked) if len(expected) == 1 else [expected[n] for n in marked]
        for n, ours in zip(marked, alike, strict=True):
            theirs = measured.records[n].rows["x"][-1]
            error = np.linalg.norm(theirs - ours) / np.linalg.norm(ours)
            moved = not np.array_equal(ours, build.build(made, task.algorithm, SEED).start)
            halves = task.algorithm.table.get("codec") == "fp16"
            if not (error <= (HALVES if halves else RELATIVE[dtype]) and moved):
                differ[task.algorithm.label] = error
    assert not differ


def simulated(task, made, measured):
    """Each node's last mark is computed again."""
    program = catalogue()[task.algorithm.name]
    goal = build.build(made, task.algorithm, SEED)
    with np.errstate(over="ignore"):
        timed = task.algorithm.name not in TIMELESS
        logs = [ReplayLog.of(record) for record in measured.records] if timed else None
        actual = run(program, task.algorithm, made, goal, SEED, logs)
    return actual if program.averages else actual[:1]


@pytest.mark.long
@pytest.mark.parametrize(
    "own",
    [{"buffer": 2}, pytest.param({"buffer": 1, "max_staleness": 0}, marks=pytest.mark.slow)],
)
def test_a_real_fedbuff_of_selected_clients_is_its_replay(tmp_path, own):
    """Two of three train at a time; the order in which they report is taken from the real run.

    Of two that began together, the second to report is too late where none may be late.
    """
    made = scenario(
        {"name": "fedbuff", "tau": 3, **own},
        steps=STEPS,
        objective={"kind": "softmax", "data": "digits", "batch": 8, "partition": {"dirichlet": 1}},
        cluster={"sampling": {"clients": 2}},
    )
    task = TrainingTask(made.algorithm[0], SEED, tmp_path / "fedbuff")
    launch.run(Job(made, (task,), tmp_path, "cpu"))
    measured = measure.measure(task, made)
    (server,) = simulated(task, made, measured)[-1:]
    (last,) = (record.rows["x"][-1] for record in measured.records if len(record.rows))
    assert measured.whole
    assert np.allclose(server, last, rtol=1e-9, atol=1e-12)
    assert not np.array_equal(last, build.build(made, task.algorithm, SEED).start)


def test_means_among_selected_clients_are_refused():
    sampled = {"cluster": {"sampling": {"clients": 2}}}
    with pytest.raises(InputError, match=r"cluster\.sampling: "):
        validation.require_runnable(
            scenario({"name": "fedavg", "tau": 2}, **sampled), launched=False
        )
    validation.require_runnable(scenario({"name": "asgd"}, **sampled), launched=False)
