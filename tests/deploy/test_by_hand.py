"""Sessions train what programs written by hand do."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.optim import SGD

import paceline
from paceline.deploy.attached import AttachedNode
from tests.deploy.by_hand import PROGRAMS, flat
from tests.deploy.overhead import PLANS, landed
from tests.helpers.cases import looped

HEAVY = {"momentum": 0.9}
STEPS, TAU = 24, 3


def trained(name, tau, attached):
    torch.manual_seed(1)
    net = nn.ParameterList(nn.Parameter(torch.randn(3, 4).double()) for _ in range(5))
    optimizer = SGD(net.parameters(), 0.1, **({} if name in {"d2", "hpsgd"} else HEAVY))
    if attached:
        plan = {"name": name, **PLANS[name]} | ({"tau": tau} if "tau" in PLANS[name] else {})
        step = paceline.deploy(net, optimizer, plan).step
    else:
        x, g = flat(net)
        steps = PROGRAMS[name](x, g, lambda vector: vector, optimizer, tau)
        step = torch.no_grad()(partial(next, steps))
    for k in range(STEPS):
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        sum(((k % 5 + 1) * parameter.sin() + parameter**2).sum() for parameter in net).backward()
        step()
    return flat(net)[0]


@looped("name", PROGRAMS)
def test_parameters_are_those_of_a_program_written_by_hand(name, monkeypatch):
    monkeypatch.setattr(AttachedNode, "finished", landed)  # else it depends on time
    tau = TAU if "tau" in PLANS[name] else 1
    found, known = trained(name, tau, True), trained(name, tau, False)
    torch.testing.assert_close(found, known, rtol=1e-12, atol=1e-12)
