"""Programs on a device that does its work late: what is read has been waited for."""

import ast
import csv
import importlib
import inspect
import threading
from collections import defaultdict
from itertools import count, product
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices written in Python", allow_module_level=True)

from paceline.simulator.errors import ProgramError, RunError
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program, catalogue
from paceline.validate.host import device as devices
from paceline.validate.measurement import measure
from paceline.validate.training import task as tasks
from paceline.validate.training import transport
from paceline.validate.training.events import STEP
from paceline.validate.training.node import RealNode
from paceline.validate.training.task import Job, Place, TrainingTask
from tests.helpers import late, replay
from tests.helpers.cases import beside, looped
from tests.helpers.worlds import scenario
from tests.validate.test_real_runs import HALVES, RELATIVE, SEED, simulated, tables

late.register()  # before anything runs a backward pass, whose threads it is to have
STEPS, WORKERS = 6, 2
ON_HOST = {"kind": "softmax", "data": "digits", "batch": 4}
OBJECTIVE = {"kind": "torch", "model": "mlp", "data": "digits", "batch": 4, "dtype": "float64"}


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    monkeypatch.setattr(tasks, "HEADSTART", 0.0)
    monkeypatch.setattr(tasks, "REHEARSALS", 1)
    begin = tasks.TaskProcess._agree_on_start

    def rehearsed(process):
        late.home().rehearsed, late.home().asked = late.home().asked, set()
        return begin(process)

    monkeypatch.setattr(tasks.TaskProcess, "_agree_on_start", rehearsed)
    monkeypatch.setenv("PACELINE_STORE", "here")
    with late.device(monkeypatch):
        yield


async def late_step(me, *, lr: Annotated[float, "learning rate"] = 0.1):
    """Drop a gradient whose step may still be under way beside the next backward pass."""
    x, g = me.start, None
    for _ in count():
        (piece,) = await me.start_backward(x, 1)
        if g is not None:
            x = x - lr * g
            g = None
        g = await me.wait(piece)
        me.mark(x)


async def gossip_and_mean(me, *, lr: Annotated[float, "learning rate"] = 0.1):
    """Send half a model to a neighbour, and average whole ones every other step."""
    x, other = me.start, 1 - me.rank
    for k in count(1):
        x = x - lr * await me.gradient(x)
        mine, rest = me.cut(x, 2)
        me.send(other, mine)
        _, theirs = await me.receive(other)
        x = me.join([(mine + theirs) / 2, rest])
        if k % 2 == 0:
            x = await me.mean(x)
        me.mark(x)


OWN = {
    "late-step": Program("late-step", late_step, "ours"),
    "gossip-and-mean": Program("gossip-and-mean", gossip_and_mean, "ours", gossips=True),
}


def world(cases, every=1, objective=OBJECTIVE):
    return scenario(
        *cases,
        workers=WORKERS,
        compute="5 ms",
        steps=STEPS,
        objective=objective,
        validation={"compute": "real", "network": "real", "timeout": "60 s"},
        run={"evaluate_every": every},
        programs=OWN,
    )


def train(made, algorithm, folder, native):
    """Do a task with a thread for each node; return it, and what each of them did."""
    there = {"device": "late:0"} if made.objective.kind == "torch" else {}
    goal = made.objective.model_copy(update=there)
    job = Job(made.model_copy(update={"objective": goal}), (), folder, "late")
    one = TrainingTask(algorithm, SEED, folder)
    store = torch.distributed.HashStore()

    def work(rank):
        tasks.run(one, job, Place(rank, store, torch.device("late:0"), native))
        return late.home()

    return one, late.ranks(WORKERS + 1, work)


QUICK = {"ssgd-bucketed", "hpsgd", "asgd", "gossip-and-mean"}
PLAIN = [*tables(2, "float64"), {"name": "gossip-and-mean", "label": "both"}]
VARIANTS = [case for case in tables(4, "float64") if case.get("graph") is None]


def ends_as_simulated(case, folder, native=True, every=1, objective=OBJECTIVE):
    """Run a case; raise AssertionError where parameters differ, or a host spins."""
    made = world([case], every, objective)
    one, homes = train(made, made.algorithm[0], folder, native)
    measured = measure.measure(one, made)
    assert measured.whole
    if case["name"] in OWN:
        goal = build.build(made, one.algorithm, SEED)
        expected = replay.run(OWN[case["name"]], one.algorithm, made, goal, SEED)
    else:
        expected = simulated(one, made, measured)
    finals = [record.rows["x"][-1] for record in measured.records if len(record.rows)]
    for ours, theirs in zip(expected[-len(finals) :], finals, strict=True):
        error = np.linalg.norm(theirs - ours) / np.linalg.norm(ours)
        assert error <= (HALVES if case.get("codec") == "fp16" else RELATIVE["float64"])
    clocked = [spin for home in homes for spin in home.spins if "objective.py" not in spin]
    if "codec" in case:  # which looks at what it keeps
        clocked = [spin for spin in clocked if "in execute" not in spin]
    assert not clocked
    return homes, measured.records


@looped(("case", "native"), product([one for one in PLAIN if one["name"] in QUICK], (True, False)))
def test_some_programs_end_with_the_simulated_parameters(case, native, tmp_path):
    trains_as_simulated(case, native, tmp_path)


@pytest.mark.long
@looped("case", [one for one in PLAIN if one["name"] not in QUICK])
def test_all_programs_end_with_the_simulated_parameters(case, tmp_path):
    trains_as_simulated(case, True, tmp_path)


@pytest.mark.nightly
@looped("case", [one for one in PLAIN if one["name"] not in QUICK])
def test_programs_end_with_the_simulated_parameters_through_the_host(case, tmp_path):
    trains_as_simulated(case, False, tmp_path)


@pytest.mark.nightly
@looped("case", VARIANTS)
def test_variants_and_codecs_end_with_the_simulated_parameters(case, tmp_path):
    trains_as_simulated(case, True, tmp_path)


def trains_as_simulated(case, native, tmp_path):
    """Run a case, which has rehearsed what it asks of a native group, of that dtype."""
    homes, records = ends_as_simulated(case, tmp_path, native)
    program = {**catalogue(), **OWN}[case["name"]]
    meets = case["name"] in OWN or program.family in {"blocking", "overlapped"}
    meets = native and meets and not program.bound
    for home, own in zip(homes[:WORKERS], records, strict=False):
        assert np.any(own.events["kind"] == STEP)
        asked, rehearsed = (
            {(what.split()[0], what.split()[-1]) for what in native_calls}
            for native_calls in (home.asked, home.rehearsed)
        )
        assert asked <= rehearsed
        if case["name"] != "adacomm":  # whose period may be longer than the run
            assert bool(home.asked) == meets


def test_a_run_is_replayed_up_to_its_last_snapshot(tmp_path, monkeypatch):
    """A syncer whose quorum is gone merges once more, and ends before the next one is due."""
    gone, end, gradient = threading.Event(), RealNode.end, RealNode.loss_and_gradient

    def ends(node):
        if not node.rank:
            gone.set()
        end(node)

    async def late_for_all(node, x):
        assert node.rank != 1 or gone.wait(30)
        return await gradient(node, x)

    monkeypatch.setattr(RealNode, "end", ends)
    monkeypatch.setattr(RealNode, "loss_and_gradient", late_for_all)
    case = {"name": "decoupled-diloco", "label": "early", "tau": 4, "fragments": 2, "quorum": 2}
    _, (*_, server) = ends_as_simulated(case, tmp_path, every=STEPS // 2)
    assert server.rows["updates"][-1] < server.account.marks


# Mutants: each takes one synchronisation away

HERE = "paceline.validate.host.device"
NODE = "paceline.validate.training.node"
TRANSPORT = "paceline.validate.training.transport"
_, *MUTANTS = [*csv.reader(beside(__file__, "late_mutants.csv").splitlines())]
TELLING = {
    "bucketed": [{"name": "ssgd-bucketed", "buckets": 3}],
    "asgd": [{"name": "asgd"}],
    "dts": [{"name": "dts", "delay": 2, "momentum": 0.9}],
    "ad-psgd": [{"name": "ad-psgd", "graph": "complete"}],
    "late-step": [{"name": "late-step"}],
    "few bits": [{"name": "ssgd", "codec": "qsgd"}],
    "through the host": [{"name": "ssgd", "codec": "power-sgd"}, False],
    "parts through the host": [{"name": "ssgd", "codec": "int8"}, False],
    "gradients of the host": [{"name": "asgd"}, True, ON_HOST],
}
"""Case, whether its group is native, and its objective."""


def told(label, folder):
    """Run a telling case; raise an error where it shows that something is wrong."""
    case, *rest = TELLING[label]
    native, objective = [*rest, *(True, OBJECTIVE)[len(rest) :]]
    ends_as_simulated(case | {"label": label}, folder, native, STEPS, objective)


def mutate(monkeypatch, module, name, old, new):
    """Give a function the code that it has with one line changed."""
    found = importlib.import_module(module)
    source = inspect.getsource(found)
    outer, _, inner = name.rpartition(".")
    begin = source.index(f"class {outer}") if outer else 0
    begin = source.index(f"def {inner}(", begin)
    at = source.index(old, begin)
    assert "\n    def " not in source[begin + 4 : at], "not in that function"
    changed = {"__name__": module, "late": late}
    exec(compile(source[:at] + new + source[at + len(old) :], found.__file__, "exec"), changed)
    both = [vars(found), changed]
    if outer:
        both = [vars(namespace[outer]) for namespace in both]
    function, other = (inspect.unwrap(namespace[inner]) for namespace in both)
    monkeypatch.setitem(vars(found), "late", late)
    monkeypatch.setattr(function, "__code__", other.__code__)


@pytest.mark.long
@looped("label", TELLING)
def test_with_all_synchronisations_nothing_fails(label, tmp_path):
    told(label, tmp_path)


@pytest.mark.long
@looped("mutant", MUTANTS)
def test_without_any_one_synchronisation_something_fails(mutant, tmp_path, monkeypatch):
    monkeypatch.setattr(late, "PATIENCE", 5.0)
    mutate(monkeypatch, *mutant)
    for label in TELLING:
        try:
            told(label, tmp_path / label)
        except (AssertionError, RuntimeError, ProgramError, RunError):
            return
    pytest.fail(f"survives {', '.join(TELLING)}")


async def first_mean(me, *, lr: Annotated[float, "learning rate"] = 0.1):
    """Wait for the mean of the first piece before the other is there."""
    x = me.start
    for _ in count():
        pieces = await me.start_backward(x, [330, 2080])
        means = [await me.mean(await me.wait(piece)) for piece in pieces]
        x = x - lr * me.join(means)
        me.mark(x)


OWN["first-mean"] = Program("first-mean", first_mean, "ours")


def left_of_the_backward_pass(monkeypatch, folder):
    """Return how many of its operations are not done when the first piece's mean has landed."""
    met, issued, left = defaultdict(threading.Event), defaultdict(list), []
    landed = late.Device.land

    def then(device, call):
        """Complete the first piece once both are issued, the other after the mean of the first."""
        issued[device].append((device.mark(), call))
        if len(issued[device]) < 2:
            return None
        (first, done), (second, all_done) = issued.pop(device)

        def complete():
            met[device].clear()
            device._pass(first)
            done()
            assert met[device].wait(10)
            device._pass(second)
            all_done()

        return device._completion.submit(complete)

    def land(device, works):
        landed(device, works)
        if device._branch.queue:
            left.append(len(device._branch.queue) - device._branch.done)
            met[device].set()

    monkeypatch.setattr(tasks, "REHEARSALS", 0)  # nothing lands before the run
    monkeypatch.setattr(late.Device, "then", then)
    monkeypatch.setattr(late.Device, "land", land)
    ends_as_simulated({"name": "first-mean", "label": "first"}, folder)
    return left[0]


@looped(("mutant", "early"), [(None, True), ("nullcontext()", False)])
def test_a_first_pieces_mean_is_there_before_the_backward_pass(
    mutant, early, monkeypatch, tmp_path
):
    """A backward pass has a stream of its own, lest all that is communicated wait for its end."""
    if mutant:
        mutate(monkeypatch, HERE, "Accelerator.branch", "self._api.stream(self._branch)", mutant)
    assert (left_of_the_backward_pass(monkeypatch, tmp_path) > 1) == early


@looped("ranks", [2, 3])
def test_a_sum_through_the_host_travels_in_chunks(ranks, monkeypatch):
    """A chunk starts when its copy has ended; two ranks' sums have the bits of a whole buffer's."""
    monkeypatch.setattr(transport, "CHUNK", 32)
    store = torch.distributed.HashStore()

    def work(rank):
        group, device = transport.gloo(store, rank, ranks, 60.0), late.home().device
        mine = torch.randn(21, generator=torch.Generator().manual_seed(rank))
        whole, left = mine.clone(), []
        group.allreduce([whole]).wait()

        class Counted:
            size = group.size

            def allreduce(self, tensors):
                left.append(len(device._copies.queue) - device._copies.done)
                return group.allreduce(tensors)

        team = transport.Staged(Counted(), device)
        total = devices.host(team.total(lambda: late.Late(mine) * 1.0).wait())
        torch.testing.assert_close(total, whole, rtol=0, atol=1e-6 * (ranks - 2))
        assert left == [4, 2, 0]
        assert not late.home().spins
        team.close()
        return total

    one, *others = late.ranks(ranks, work)
    assert all(torch.equal(one, other) for other in others)


def test_only_the_seam_knows_of_streams_and_backends():
    """What `host.device` does not know has not run on the late device either."""
    words = {"cuda", "get_device_module", "record_stream", "is_cuda", "pin_memory"}
    root = Path(devices.__file__).parents[1]
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert path.name == "device.py" or not used & {*words, "ProcessGroupNCCL"}, path
