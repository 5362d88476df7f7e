"""Averaged gradients are the mean, whatever the loop does with its own."""

import copy
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD

import paceline

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


def nothing(net, k, stored):
    """Leave gradients as they are."""


def exchange(net, k, stored):
    net.one.weight.grad, net.two.weight.grad = net.two.weight.grad, net.one.weight.grad


def clip(net, k, stored):
    nn.utils.clip_grad_norm_(net.parameters(), 0.01)


def replace(net, k, stored):
    """Give some gradients other memory in some steps."""
    if k % 3 == 1:
        net.one.weight.grad = 2.0 * net.one.weight.grad
        net.two.bias.grad.data = net.two.bias.grad.clone()


def transpose(net, k, stored):
    net.one.weight.grad = net.one.weight.grad.t().contiguous().t()


def keep(net, k, stored):
    stored.append([(parameter.grad, parameter.grad.clone()) for parameter in net.one.parameters()])


def keep_views(net, k, stored):
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    dense = [gradient for gradient in gradients if gradient.layout == torch.strided]
    stored.append([(gradient.view(-1), gradient.flatten().clone()) for gradient in dense])


def trained(net, step, optimizer, meddle, fresh):
    """Train; return local gradients that the loop has kept, with what they were."""
    stored = []
    for k in range(STEPS):
        optimizer.zero_grad(set_to_none=fresh)
        draw = torch.Generator().manual_seed(k)
        words = torch.randint(7, (4,), generator=draw)
        loss = mse_loss(net(words, k % 2), torch.ones(4, 5))
        loss.backward()
        meddle(net, k, stored)
        step(loss)
    return stored


MEDDLING = nothing, exchange, clip, replace, transpose, keep, keep_views


def test_alone_it_is_the_users_own_loop():
    """A parameter without a gradient counts as one with zeros, which SGD's momentum tells apart."""
    for plan, meddle, fresh, sparse in product(PLANS, MEDDLING, (True, False), (False, True)):
        if sparse and meddle is clip:
            continue  # torch does not clip sparse gradients
        case = f"{plan['name']}, {meddle.__name__}, fresh {fresh}, sparse {sparse}"
        nets, (attached, plain) = two_nets(sparse)
        with paceline.deploy(nets[0], attached, plan) as session:
            stored = trained(nets[0], session.step, attached, meddle, fresh)
        trained(nets[1], filled(nets[1], plain), plain, meddle, fresh)
        for ours, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert torch.equal(ours, theirs), case
        if fresh:
            assert all(torch.equal(*pair) for pairs in stored for pair in pairs), case


def two_nets(sparse, kind=torch.float32):
    """Return two equal networks, the second without sparse gradients, and their optimizers."""
    torch.manual_seed(1)
    nets = [Net(sparse).to(kind)]
    nets.append(copy.deepcopy(nets[0]))
    nets[1].words.sparse = False
    return nets, [SGD(net.parameters(), 0.1, momentum=0.9) for net in nets]


def filled(net, optimizer):
    """Return a step in which a missing gradient is zero."""

    def step(loss):
        for parameter in net.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    return step


def test_every_type_of_numbers_is_averaged():
    x = torch.arange(4)
    for plan, kind in product(PLANS, (torch.float16, torch.bfloat16, torch.float64)):
        nets, (attached, plain) = two_nets(False, kind)
        with paceline.deploy(nets[0], attached, plan) as session:
            for net, step in zip(nets, (session.step, filled(nets[1], plain)), strict=True):
                for _ in range(STEPS):
                    net.zero_grad()
                    loss = net(x, True).square().mean()
                    loss.backward()
                    step(loss)
        same = map(torch.equal, nets[0].parameters(), nets[1].parameters())
        assert all(same), f"{plan['name']}, {kind}"
