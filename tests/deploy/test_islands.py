"""Islands of several processes train as single processes do; their shards are averaged."""

import pytest

torch = pytest.importorskip("torch")

import paceline
from paceline.deploy import plan as plans
from paceline.simulator.errors import InputError
from tests.deploy import loops
from tests.helpers.cases import looped


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Return a file of two islands' batches, and what two whole processes train on them."""
    folder, draw = tmp_path_factory.mktemp("whole"), torch.Generator().manual_seed(1)
    inputs = torch.rand(2, loops.KILLED, 8, 20, generator=draw, dtype=torch.float64)
    torch.save((inputs, torch.randint(10, (2, loops.KILLED, 8), generator=draw)), folder / "lesson")
    return folder / "lesson", loops.together(
        loops.islands, 2, folder, folder / "lesson", folder, None
    )


@pytest.mark.long
@looped("inside", ["fsdp", "ddp"])
def test_islands_train_what_whole_processes_train(lesson, inside, tmp_path):
    """Every program, with uneven shards (33 rows in two parts), to rounding; also once resumed."""
    folder = tmp_path / inside
    folder.mkdir()
    file, whole = lesson
    for rank, results in enumerate(loops.together(loops.islands, 4, folder, file, folder, inside)):
        for key, parameters in results.items():
            if key[-1] == "resumed":
                assert torch.equal(parameters, results[key[0]]), key
            else:
                assert torch.allclose(parameters, whole[rank // 2][key], rtol=0, atol=1e-12), key
    assert not torch.equal(whole[0]["diloco"], whole[1]["diloco"])


@pytest.mark.long
def test_all_are_told_which_process_of_an_island_fails(tmp_path):
    _, peer, _, failed = loops.together(loops.lost, 4, tmp_path)
    assert failed == "no more"
    assert peer.startswith("process 3 failed at step 1: ArithmeticError")


@pytest.mark.long
def test_a_model_that_does_not_fit_the_mesh_is_refused(tmp_path):
    for across, joined, alone, part in loops.together(loops.misjoined, 4, tmp_path):
        assert "processes of several islands" in across
        assert "processes of several islands" in joined
        assert "nothing averages it inside an island" in alone
        assert part.startswith("mesh: it must be a DeviceMesh of all 4 processes")


@looped(
    ("plan", "message"),
    [
        ({"name": "adacomm", "tau0": 4}, "not among ssgd, local-sgd"),
        ({"name": "diloco", "tau": 4, "codec": "fp16"}, "leave out codec"),
        ({"name": "local-sgd", "tau": {"every": "10 s"}}, "write tau in steps"),
        ({"name": "dts", "delay": 2}, 'write inner = "adamw"'),
    ],
)
def test_programs_that_need_a_whole_vector_are_refused(plan, message):
    with pytest.raises(InputError, match=message):
        plans.read(plan, {}, 2, 100, islands=True)


def test_a_controller_is_refused_with_a_mesh(tmp_path):
    with pytest.raises(InputError, match="leave out adapt"):
        paceline.deploy(None, None, tmp_path, adapt=True, mesh=object())
