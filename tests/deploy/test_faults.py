"""What one process does otherwise than the others is an error on all of them, soon and by name."""

import subprocess
import sys
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.optim import SGD

import paceline
from paceline.simulator.errors import InputError, ProgramError, RunError
from tests.deploy import loops

FIRST = "0.weight"


class World:
    """A model that starts differently on each rank, with a frozen layer and a buffer."""

    def __init__(self, rank, plan=None, extra=()):
        torch.manual_seed(rank)
        self.rank = rank
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
        for parameter in self.net[0].parameters():
            parameter.requires_grad_(False)
        trained = [one for one in self.net.parameters() if one.requires_grad]
        self.optimizer = SGD([*trained, *(self.net.get_parameter(one) for one in extra)], 0.1)
        plan = plan or {"name": "local-sgd", "tau": 4}
        self.session = paceline.deploy(self.net, self.optimizer, plan, timeout=60.0)

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            kind = next(self.net.parameters()).dtype
            loss = self.net(torch.randn(8, 4, dtype=kind)).square().mean()
            loss.backward()
            self.session.step(loss)

    def apart(self):
        """Return how far the ranks' models are apart while they are averaged."""
        with self.session.averaged():
            values = [one.detach().double().sum() for one in self.net.state_dict().values()]
            rows = self.session.share([float(value) for value in values])
        return max(abs(one - other) for one, other in zip(*rows, strict=True))


def another_group(net, optimizer):
    net[0].weight.requires_grad_(True)
    optimizer.add_param_group({"params": [net[0].weight]})


DETACHED = {  # a change of the model, and the parameter that is named
    "double": (lambda net, _: net.double(), "1.weight"),
    "data": (lambda net, _: setattr(net[3].weight, "data", net[3].weight.clone()), "3.weight"),
    "other": (lambda net, _: setattr(net[3], "weight", nn.Parameter(net[3].weight)), "3.weight"),
    "module": (lambda net, _: net.__setitem__(3, nn.Linear(6, 2)), "3.weight"),
    "joined": (lambda net, _: net.append(nn.Linear(2, 2)), "4.weight"),
    "unfrozen": (lambda net, _: net[0].weight.requires_grad_(True), FIRST),
    "group": (another_group, FIRST),
}


PLANS = (
    {"name": "local-sgd", "tau": 4}, {"name": "dts", "delay": 3}, {"name": "hpsgd"},
)  # fmt: skip


def caught(act, *arguments):
    try:
        act(*arguments)
    except (InputError, ProgramError, RunError) as error:
        return type(error).__name__, str(error)
    return None


def detached(rank):
    """Return what is said of each change of the model: of all ranks', then of the second's."""
    results = {}
    for name, (change, _) in DETACHED.items():
        for everywhere in (True, False):
            world = World(rank, extra=[FIRST] if name == "unfrozen" else ())
            world.train(5)
            if everywhere or rank:
                change(world.net, world.optimizer)
            results[name, everywhere] = caught(world.train, 9)
            world.session.close()
    world = World(rank)
    world.train(2)
    results["frozen"] = world.apart()
    world.net[0].weight.data += rank  # a teacher follows each rank's own model
    results["teacher"] = world.apart()
    world.session.close()
    return results


def uneven(rank):
    """Return what is said where one rank takes more steps, by the end, the program and the rank."""
    results = {}
    cases = product(("close", "average"), PLANS, (1, 7))  # without a mean between, and with one
    for number, (end, plan, more) in enumerate(cases):
        world, late = World(rank, plan), number % 3 % 2

        def act(world=world, steps=9 + more * (rank == late), end=end):
            world.train(steps)
            world.session.close() if end == "close" else world.apart()

        results[end, plan["name"], more, late] = caught(act)
        world.session.close()
    return results


@pytest.mark.long
def test_what_is_detached_from_the_means_is_named_on_every_rank(tmp_path):
    actual = loops.together(detached, 2, tmp_path)
    for rank, outcomes in enumerate(actual):
        assert (outcomes.pop("frozen"), outcomes.pop("teacher")) == (0.0, 0.0)
        for (change, everywhere), (kind, message) in outcomes.items():
            assert kind == ("InputError" if everywhere or rank else "RunError"), change
            assert f"model: {DETACHED[change][1]} " in message, (change, everywhere)


@pytest.mark.long
def test_uneven_numbers_of_steps_are_an_error_on_every_rank(tmp_path):
    for outcomes in loops.together(uneven, 3, tmp_path):
        for case, (kind, message) in outcomes.items():
            assert kind == "RunError", case
            assert "step 9" in message, case
            assert "drop_last" in message, case


LEFT_OPEN = """
import sys, torch, torch.distributed as dist, paceline
dist.init_process_group("gloo", sys.argv[1], rank=int(sys.argv[2]), world_size=2)
net = torch.nn.Linear(4, 2)
session = paceline.deploy(net, torch.optim.SGD(net.parameters(), 0.1), "ssgd")
net(torch.ones(1, 4)).sum().backward()
session.step()
"""


@pytest.mark.long
def test_a_process_that_leaves_its_session_open_ends_as_others_do(tmp_path):
    """A thread that still listens, and that a peer's end wakes, would abort the interpreter."""
    command = [sys.executable, "-c", LEFT_OPEN, f"file://{tmp_path}/store"]
    both = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    assert [process.wait(loops.PATIENCE) for process in both] == [0, 0]
