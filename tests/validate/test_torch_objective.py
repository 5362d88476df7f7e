"""Gradients of PyTorch models in virtual time: against autograd, at once, and in pieces."""

import json
import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load
from paceline.simulator.objectives import build, plugins
from paceline.simulator.studies.execution import Task
from tests.helpers.cases import beside, looped
from tests.helpers.worlds import on_virtual, scenario

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from paceline.simulator.objectives.softmax import Epochs
from paceline.validate.torch_objective import data, models
from paceline.validate.torch_objective.flat import Flat
from paceline.validate.torch_objective.gradients import seeded

MLP = {"kind": "torch", "model": "mlp", "data": "digits", "batch": 8, "dtype": "float64"}
CNN = MLP | {"model": "cnn"}


class Normalised(nn.Sequential):
    """A network with buffers."""

    def __init__(self, shape, classes):
        super().__init__(
            nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(144, classes),
        )  # fmt: skip


class Dropped(nn.Sequential):
    """A network that draws random numbers in training."""

    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(), nn.Linear(16, classes))


class Tied(nn.Module):
    """A weight used twice, one that no output depends on, and one that is not trained."""

    def __init__(self, shape, classes):
        super().__init__()
        self.idle = nn.Parameter(torch.ones(5))
        self.inner = nn.Linear(64, 64)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.outer = nn.Linear(64, classes)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(torch.relu(self.inner(x.flatten(1))))))


@pytest.fixture(autouse=True)
def own_models(monkeypatch):
    """Register the tests' models, and remove them afterwards."""
    monkeypatch.setattr(models.MODELS, "added", {})
    for name, make in (("normalised", Normalised), ("dropped", Dropped), ("tied", Tied)):
        models.register_model(name, make)


def world(*algorithms, table=MLP, **options):
    return scenario(*algorithms or [{"name": "ssgd"}], objective=table, **options)


def make(table=MLP, workers=4, seed=0, cluster=None, **more):
    made = world(table=table | more, workers=workers, cluster=cluster or {})
    return build.build(made, made.algorithm[0], seed)


def points(goal, count, seed=1):
    rng = np.random.default_rng(seed)
    noise = 0.05 * rng.standard_normal((count, goal.dimension))
    return (goal.start + noise).astype(goal.start.dtype)


def plainly(goal, module, x, rows, decay=0.0):
    """Return loss and gradient by a plain module whose parameters are set to `x`."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    nn.utils.vector_to_parameters(torch.tensor(x), trained)
    inputs, labels = goal.samples.train(rows)
    module.zero_grad()
    loss = functional.cross_entropy(module.train()(inputs), labels)
    loss.backward()
    gradients = [torch.zeros_like(e) if e.grad is None else e.grad for e in trained]
    return loss.item(), nn.utils.parameters_to_vector(gradients).numpy() + decay * x


# Gradients


@looped("model", ["mlp", "cnn", "tied", "normalised"])
@looped("decay", [0.0, 0.1])
def test_a_gradient_is_that_of_a_plain_module(model, decay):
    goal = make(model=model, weight_decay=decay)
    source, other = goal.source(1), goal.source(1)
    module = models.find(model)((1, 8, 8), 10).double()
    for x in points(goal, 3):
        before = x.copy()
        loss, gradient = source.loss_and_gradient(x)
        expected = plainly(goal, module, x, other.next_rows(), decay)
        assert loss == pytest.approx(expected[0], rel=1e-12)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-9, atol=1e-12)
        assert np.array_equal(x, before)
        assert gradient.flags.owndata


@looped("dtype", ["float32", "float64"])
def test_vectors_are_of_the_objectives_numbers_and_may_be_read_only(dtype):
    goal = make(dtype=dtype)
    assert goal.start.dtype == dtype
    assert not goal.start.flags.writeable
    gradient = goal.source(0).gradient(goal.start)
    assert gradient.dtype == dtype
    assert gradient.flags.writeable
    again = goal.source(0).tensors(torch.tensor(goal.start))[1]
    np.testing.assert_allclose(again.numpy(), gradient, rtol=1e-4, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 900), max_size=12),
    st.sampled_from(["mlp", "tied"]),
    st.sampled_from([1, 3]),
)
def test_pieces_make_up_the_gradient_and_come_in_order(cuts, model, accumulation):
    """For any cuts, each piece is complete when it is freed; micro-batches change rounding only."""
    plain = make(model=model, weight_decay=0.1)
    goal = make(model=model, weight_decay=0.1, cluster={"accumulation": accumulation})
    edges = [0, *sorted(min(cut, goal.dimension) for cut in cuts), goal.dimension]
    sizes = np.diff(edges).tolist()
    whole = goal.source(0).tensors(torch.tensor(goal.start))[1]
    told = []
    goal.source(0).backward(
        torch.tensor(goal.start), sizes, lambda number, piece: told.append((number, piece.clone()))
    )
    assert [number for number, _ in told] == list(range(len(sizes)))
    assert [len(piece) for _, piece in told] == sizes
    joined = torch.cat([piece for _, piece in told[::-1]])
    assert torch.equal(joined, whole)
    loss, gradient = plain.source(0).tensors(torch.tensor(goal.start))
    torch.testing.assert_close(whole, gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(goal.source(0).tensors(torch.tensor(goal.start))[0], loss)


def test_the_last_layer_is_freed_before_the_first_is_computed():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    seen = []
    module[0].register_full_backward_pre_hook(lambda *_: seen.append("first layer"))
    flat = Flat(module)
    x = flat.start.clone()
    flat.go_to(x)
    loss = module(torch.ones(5, 3, requires_grad=True)).sum()
    gradient = torch.zeros_like(x)
    flat.backward_in_pieces(loss, gradient, [10, 16], lambda number, _: seen.append(number))
    assert seen == [0, "first layer", 1]


# Mini-batches


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 25), st.integers(0, 99))
def test_an_epoch_has_every_sample_once_over_the_workers(samples, workers, size, seed):
    """Batches are all of one size, and a worker's epochs follow each other without a gap."""
    workers = min(workers, samples)
    epochs = Epochs(samples, workers, seed, None)
    for number in range(3):
        dealt = [epochs.epoch(rank, number) for rank in range(workers)]
        assert sorted(np.concatenate(dealt)) == list(range(samples))
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    for rank in (0, workers - 1):
        expected = np.concatenate([epochs.epoch(rank, number) for number in range(30)])
        stream = epochs.batches(rank, size)
        drawn = [next(stream) for _ in range(len(expected) // size)]
        assert all(len(batch) == size for batch in drawn)
        assert np.array_equal(np.concatenate(drawn), expected[: len(drawn) * size])


def test_batches_are_keyed_by_seed_worker_and_step():
    def rows(seed=0, rank=1, workers=4, **more):
        source = make(seed=seed, workers=workers, **more).source(rank)
        return [source.next_rows().tolist() for _ in range(3)]

    skewed = {"partition": {"dirichlet": 0.3}}
    for more in ({}, skewed):
        assert rows(**more) == rows(**more)
        others = [rows(**more), rows(seed=1, **more), rows(rank=2, **more)]
        assert len({json.dumps(other) for other in others}) == 3
    goal = make(partition={"dirichlet": 0.3}, batch=1)
    shares = [set(goal.epochs.epoch(rank, 0)) for rank in range(4)]
    assert set.union(*shares) == set(range(1437))
    assert sum(map(len, shares)) == 1437
    assert shares[2] == set(goal.epochs.epoch(2, 1))
    assert goal.epochs.epoch(2, 0).tolist() != goal.epochs.epoch(2, 1).tolist()


# Initial parameters, buffers, randomness


def test_initial_parameters_depend_on_the_seed_alone():
    start = make().start
    assert np.array_equal(start, make(workers=7, batch=3).start)
    assert not np.array_equal(start, make(seed=1).start)
    np.testing.assert_array_equal(start.astype(np.float32), make(dtype="float32").start)


@looped("model", ["mlp", "dropped", "normalised"])
def test_torchs_own_settings_stay_as_they_are(model):
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    goal = make(model=model)
    goal.source(0).gradient(goal.start)
    goal.evaluate(goal.start, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_threads_draw_their_own_random_numbers():
    """Those that seed the generator, which a process has once, come one after the other."""
    inside, leave = threading.Event(), threading.Event()

    def other():
        with seeded(2):
            inside.set()
            leave.wait()

    with seeded(1):
        alone = torch.rand(3)
    beside = threading.Thread(target=other, daemon=True)
    with seeded(1):
        beside.start()
        assert not inside.wait(0.2)  # it gets in at once where nothing holds it
        assert torch.equal(torch.rand(3), alone)
    leave.set()
    beside.join()


def test_what_dropout_drops_is_keyed_by_seed_worker_and_step():
    goal = make(model="dropped", batch=1437, workers=1)  # every batch is the whole set
    first, *later = (goal.source(0).gradient(goal.start) for _ in range(2))
    assert np.array_equal(first, later[0])
    source = goal.source(0)
    several = [source.gradient(goal.start) for _ in range(2)]
    assert np.array_equal(several[0], first)
    assert np.abs(several[1] - first).max() > 1e-3
    other = make(model="dropped", batch=1437, workers=1, seed=1).source(0)
    assert np.abs(other.gradient(goal.start) - first).max() > 1e-3


def test_buffers_are_each_workers_own_and_averaged_to_evaluate():
    goal = make(model="normalised")
    assert len(goal.source(0).buffers()) == 8
    sources = [goal.source(rank) for rank in range(4)]
    fresh = sources[0].buffers()
    sources[0].gradient(goal.start)
    moved = sources[0].buffers()
    assert not torch.equal(moved, fresh)
    assert all(torch.equal(source.buffers(), fresh) for source in [*sources[1:], goal.source(3)])
    module = models.find("normalised")((1, 8, 8), 10).double()
    nn.utils.vector_to_parameters(torch.tensor(goal.start), module.parameters())
    mean = torch.stack([moved, fresh, fresh, fresh]).mean(dim=0)
    module[1].running_mean.copy_(mean[:4])
    module[1].running_var.copy_(mean[4:])
    inputs, labels = goal.samples.train(np.arange(1437))
    expected = functional.cross_entropy(module.eval()(inputs), labels).item()
    assert goal.evaluate(goal.start, 0).loss == pytest.approx(expected, rel=1e-12)
    given_ = goal.evaluate(goal.start, 0, buffers=moved).loss
    assert given_ == goal.evaluate(goal.start, 0, buffers=moved.numpy()).loss != expected
    assert goal.evaluate(goal.start, 0).loss == pytest.approx(expected, rel=1e-12)
    assert torch.equal(sources[0].buffers(), moved)
    assert torch.equal(sources[1].buffers(), fresh)


def test_buffers_do_not_depend_on_what_other_workers_do():
    alone, beside = make(model="normalised"), make(model="normalised")
    source, other, between = alone.source(1), beside.source(1), beside.source(2)
    for x in points(alone, 3):
        expected = source.gradient(x)
        between.gradient(-x)
        beside.evaluate(x, 0)
        assert np.array_equal(other.gradient(x), expected)
    assert torch.equal(source.buffers(), other.buffers())


# Evaluation


def test_an_evaluation_is_that_of_the_whole_sets():
    goal = make(CNN)
    module = models.find("cnn")((1, 8, 8), 10).double()
    (x,) = points(goal, 1)
    loss, _ = plainly(goal, module, x, np.arange(1437))
    found = goal.evaluate(x, 0)
    assert found.loss == pytest.approx(loss, rel=1e-12)
    ((inputs, labels),) = goal.samples.test_chunks()
    assert found.accuracy == (module(inputs).argmax(1) == labels).double().mean()
    assert goal.notes == ("model.parameters = 1,000 are sent, but objective.model = cnn has 6,090",)


def test_large_sets_are_evaluated_on_a_fixed_part(monkeypatch):
    monkeypatch.setattr("paceline.validate.torch_objective.objective.EVALUATED", 100)
    goal, again = make(), make(workers=2)
    assert goal.notes[0] == "losses are those of 100 of the 1,437 training samples"
    assert goal.evaluate(goal.start, 0) == again.evaluate(goal.start, 0)
    assert goal.evaluate(goal.start, 0) != make(seed=1).evaluate(goal.start, 0)


# Models


class Flattened(nn.Sequential):
    """A model that cannot normalise a batch of one."""

    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


class OneNumber(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(8, 1)


REFUSED = {
    "no such model": ({"model": "mpl"}, "objective.model = \"mpl\": unknown; did you mean `mlp`"),
    "no such data": ({"data": "cifar10"}, "objective.data = .*did you mean `cifar-10`"),
    "no such device": ({"device": "abacus"}, "objective.device = \"abacus\": not found; .*cpu"),
    "vectors for a cnn": ({"model": "cnn", "data": "random-classification"}, "needs images"),
    "batches of one": ({"model": "flattened", "batch": 1}, "objective.model .*does not train on"),
    "no scores": ({"model": "one-number"}, r".*not return a tensor of shape \(2, 10\)"),
    "no files": ({"data": "cifar-10"}, "objective.folder: .*no such file"),
}  # fmt: skip


@looped("name", REFUSED)
def test_what_cannot_be_had_is_refused_when_the_scenario_is_loaded(name):
    changed, words = REFUSED[name]
    models.register_model("one-number", OneNumber)
    models.register_model("flattened", Flattened)
    with pytest.raises(InputError, match=words) as caught:
        world(table=MLP | changed)
    assert str(caught.value).startswith("test: objective.")
    assert "\n" not in str(caught.value)


def test_a_refusal_travels_between_processes():
    why = plugins.ObjectiveError(("objective", "model"), "unknown")
    again = pickle.loads(pickle.dumps(why))
    assert (again.path, again.what, str(again)) == (why.path, why.what, "objective.model: unknown")


def test_more_workers_than_samples_is_refused():
    with pytest.raises(InputError, match=r"cluster.workers = 1500: more than the 1437 training"):
        world(workers=1500)


def test_a_kind_that_is_not_installed_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(plugins, "entry_points", lambda **_: ())
    plugins.plugin.cache_clear()
    with pytest.raises(InputError, match=r'objective.kind = "torch": .*pip install "paceline\[tr'):
        world()
    plugins.plugin.cache_clear()


def test_missing_torch_is_said(monkeypatch):
    class Entry:
        def load(self):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(plugins, "entry_points", lambda **_: [Entry()])
    plugins.plugin.cache_clear()
    with pytest.raises(InputError, match=r"needs torch, which is not installed; pip install"):
        world()
    plugins.plugin.cache_clear()


# Text


class NextCharacter(nn.Module):
    """Scores of the next character, given one."""

    def __init__(self, shape, classes):
        super().__init__()
        self.scores = nn.Embedding(classes, classes)
        nn.init.normal_(self.scores.weight, std=0.02)

    def forward(self, text):
        return self.scores(text.long()).transpose(1, 2)


TEXT = {"model": "next-character", "data": "short-text", "batch": 2}


@pytest.fixture
def short_text(monkeypatch):
    """Offer a text of 128 characters in which every one follows from the one before."""
    text = (np.arange(65 * 72) * 5 % 128).astype(np.uint8).reshape(72, 65)
    x, y = text[:, :-1], text[:, 1:].astype(np.int64)
    whole = data.Data(x[:64], y[:64], x[64:], y[64:], 128)
    monkeypatch.setattr(data.DATA, "added", {"short-text": lambda folder: whole})
    monkeypatch.setattr(models.MODELS, "added", {"next-character": NextCharacter})


def test_steps_down_the_gradient_of_text_lower_its_loss(short_text):
    """The loss at the start is that of a guess among 128."""
    made = world({"name": "ssgd", "lr": 5.0}, table=MLP | TEXT, workers=2, steps=4)
    run = on_virtual(made.algorithm[0], made, 0)
    assert run.curve["loss"][0] == pytest.approx(np.log(128), rel=0.02)
    assert run.curve["loss"][-1] < run.curve["loss"][0] - 0.02
    assert run.curve["accuracy"][-1] > 0.5


def test_a_gradient_of_text_is_that_of_every_characters_mean_loss(short_text):
    goal = make(**TEXT)
    (x,) = points(goal, 1)
    source, rows = goal.source(1), goal.source(1).next_rows()
    loss, gradient = source.loss_and_gradient(x)
    module = models.find("next-character")((64,), 128).double()
    inputs, labels = goal.samples.train(rows)
    nn.utils.vector_to_parameters(torch.tensor(x), module.parameters())
    chances = module(inputs).softmax(dim=1)
    mean = -chances.gather(1, labels[:, None]).log().mean()
    mean.backward()
    assert loss == pytest.approx(mean.item(), rel=1e-12)
    expected = nn.utils.parameters_to_vector([parameter.grad for parameter in module.parameters()])
    np.testing.assert_allclose(gradient, expected.numpy(), rtol=1e-7, atol=1e-12)


@looped(
    ("more", "words"),
    [
        (TEXT | {"model": "mlp"}, r"objective.model.*\(2, 128, 64\).*choose another"),
        (TEXT | {"partition": {"dirichlet": 0.3}}, r"objective.partition.*text lacks.*\"iid\""),
    ],
)
def test_text_and_other_samples_are_not_mixed_up(short_text, more, words):
    with pytest.raises(InputError, match=words):
        world(table=MLP | more)


# The command line

SCENARIO = beside(__file__, "torch.toml")


@pytest.mark.long
def test_a_scenario_runs_from_the_command_line_on_any_number_of_processes(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(SCENARIO)
    found = []
    for jobs in ("1", "2"):
        out = str(tmp_path / jobs)
        command = ["simulate", str(file), "--jobs", jobs, "--json", "--out", out]
        assert paceline.command_line.run(command) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["versions"]["torch"] == torch.__version__
    assert found[0]["notes"] == []
    for each in found[0]["algorithms"]:
        assert each["curve"]["loss"][-1] < each["curve"]["loss"][0]


def test_a_folder_lies_beside_the_scenario(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(SCENARIO.replace('"digits"', '"mnist"\nfolder = "sets"'))
    with pytest.raises(InputError, match=f"mine.toml: objective.folder = .*{tmp_path}/sets/train"):
        load(file)


def test_a_part_depends_on_the_files_of_its_data(tmp_path, monkeypatch):
    """They depend on names, sizes and times of modification, as files can hold gigabytes."""
    digits = data.load_named("digits", None)
    monkeypatch.setattr(data.DATA, "added", {"filed": lambda folder: digits})

    def key(folder="sets"):
        plugins._listed.cache_clear()
        made = world(table=MLP | {"data": "filed", "folder": str(tmp_path / folder)})
        return Task(made.algorithm[0], 0, 0, "auto").key(made)

    first, inner = tmp_path / "sets" / "a", tmp_path / "sets" / "in" / "b"
    keys = [key()]
    for file in (first, inner):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"1234")
        keys.append(key())
    first.write_bytes(b"12345")
    keys.append(key())
    os.utime(inner, (1, 1))
    keys.append(key())
    inner.rename(inner.with_name("c"))
    keys.append(key())
    assert len({*keys}) == len(keys)
    assert key() == keys[-1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@looped("model", ["mlp", "cnn", "normalised", "dropped"])
def test_a_gpu_computes_the_same_gradients(model):
    here, there = make(model=model), make(model=model, device="cuda")
    assert np.array_equal(here.start, there.start)
    (x,) = points(here, 1)
    source = there.source(0)
    gradient = source.gradient(x)
    if model != "dropped":  # another device draws other numbers
        np.testing.assert_allclose(gradient, here.source(0).gradient(x), rtol=1e-8, atol=1e-10)
        assert there.evaluate(x, 0).loss == pytest.approx(here.evaluate(x, 0).loss)
    assert np.array_equal(there.source(0).gradient(x), gradient)
    told = []
    at = torch.tensor(x, device="cuda")
    there.source(0).backward(at, [here.dimension - 7, 7], lambda *each: told.append(each))
    pieces = torch.cat([piece for _, piece in told[::-1]]).cpu().numpy()
    np.testing.assert_allclose(pieces, gradient, rtol=1e-8, atol=1e-10)
