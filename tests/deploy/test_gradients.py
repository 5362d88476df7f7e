"""Gradients that are averaged where the optimizer reads them, whatever the loop does with them."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD

import paceline
from paceline.validate.training.transport import DeviceGroup

PLANS = [{"name": "ssgd"}, {"name": "ssgd-bucketed", "overlap": False, "buckets": 3}]
STEPS = 8


class Net(nn.Module):
    """A table of words whose gradients are sparse, two layers alike, and one for odd steps."""

    def __init__(self, sparse):
        super().__init__()
        self.words = nn.Embedding(7, 5, sparse=sparse)
        self.one, self.two, self.odd = (nn.Linear(5, 5) for _ in range(3))

    def forward(self, x, odd):
        x = self.two(self.one(self.words(x)).tanh())
        return self.odd(x) if odd else x


def nothing(net, k, kept):
    """Leave gradients as they are."""


def exchange(net, k, kept):
    net.one.weight.grad, net.two.weight.grad = net.two.weight.grad, net.one.weight.grad


def clip(net, k, kept):
    nn.utils.clip_grad_norm_(net.parameters(), 0.01)


def replace(net, k, kept):
    """Give some gradients other memory in some steps."""
    if k % 3 == 1:
        net.one.weight.grad = 2.0 * net.one.weight.grad
        net.two.bias.grad.data = net.two.bias.grad.clone()


def transpose(net, k, kept):
    net.one.weight.grad = net.one.weight.grad.t().contiguous().t()


def keep(net, k, kept):
    kept.append([(each.grad, each.grad.clone()) for each in net.one.parameters()])


def keep_views(net, k, kept):
    kept.append([(each.grad.view(-1), each.grad.flatten().clone()) for each in net.parameters()
                 if each.grad is not None and each.grad.layout == torch.strided])  # fmt: skip


def trained(net, step, optimizer, meddle, fresh, after=lambda: None):
    """Train; return gradients that the loop has kept, with what they were."""
    kept = []
    for k in range(STEPS):
        optimizer.zero_grad(set_to_none=fresh)
        draw = torch.Generator().manual_seed(k)
        words = torch.randint(7, (4,), generator=draw)
        loss = mse_loss(net(words, k % 2), torch.ones(4, 5))
        loss.backward()
        meddle(net, k, kept)
        step(loss)
        after()
        if meddle in {keep, keep_views}:
            meddle(net, k, kept)  # the mean, too
    return kept


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["name"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("meddle", [nothing, exchange, clip, replace, transpose, keep, keep_views])
def test_alone_it_is_the_users_own_loop(plan, fresh, sparse, meddle):
    """A parameter without a gradient counts as one with zeros, which SGD's momentum tells apart."""
    if sparse and meddle is clip:
        pytest.skip("torch does not clip sparse gradients")
    torch.manual_seed(1)
    nets = [Net(sparse)]
    nets.append(copy.deepcopy(nets[0]))
    nets[1].words.sparse = False
    own, known = (SGD(each.parameters(), 0.1, momentum=0.9) for each in nets)

    def filled(loss):
        for each in nets[1].parameters():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        known.step()

    with paceline.deploy(nets[0], own, plan) as session:
        kept = trained(nets[0], session.step, own, meddle, fresh)
    trained(nets[1], filled, known, meddle, fresh)
    for ours, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    if fresh:
        assert all(torch.equal(*pair) for pairs in kept for pair in pairs)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["name"])
def test_every_type_of_numbers_is_averaged(plan, kind):
    torch.manual_seed(1)
    nets = [Net(False).to(kind)]
    nets.append(copy.deepcopy(nets[0]))
    own, known = (SGD(each.parameters(), 0.1) for each in nets)
    x = torch.arange(4)
    with paceline.deploy(nets[0], own, plan) as session:
        for net, step in zip(nets, (session.step, lambda _: known.step()), strict=True):
            for _ in range(STEPS):
                net.zero_grad()
                loss = net(x, True).square().mean()
                loss.backward()
                step(loss)
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["name"])
def test_a_sum_that_comes_back_elsewhere_is_the_gradient(plan, monkeypatch):
    """As a GPU's does, which gloo takes through the host's memory."""
    net = nn.Linear(3, 3)
    before, optimizer = net.weight.detach().clone(), SGD(net.parameters(), 1.0)
    with paceline.deploy(net, optimizer, plan) as session:
        monkeypatch.setattr(DeviceGroup, "_bring", lambda self, buffer: buffer.clone())
        monkeypatch.setattr(DeviceGroup, "_result", lambda self, result: 2.0 * result)
        monkeypatch.setattr(session._transport.collectives, "_agree", lambda *_: 0.0)
        net.bias.grad, net.weight.grad = torch.ones(3), torch.ones(3, 3)
        session.step()
    assert torch.equal(net.weight, before - 2.0)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["name"])
def test_gradients_stay_where_they_lie(plan):
    """A loop that keeps their memory has none copied; one that drops it has one vector used.

    Or two, where a thread of gloo's has not let go of what it has summed.
    """
    net = Net(False)
    optimizer = SGD(net.parameters(), 0.1)
    places = []
    with paceline.deploy(net, optimizer, plan) as session:

        def note():
            places.append([each.grad.data_ptr() for each in net.parameters()])

        trained(net, session.step, optimizer, nothing, False, note)
        first = places[0]
        trained(net, session.step, optimizer, nothing, True, note)
    assert all(each == first for each in places[:STEPS])
    assert len({tuple(each) for each in places}) <= 2
