"""Programs as an expert writes them for one model: vectors made once, changed in place.

What sessions are compared with, in time, memory and parameters. Each is a generator that takes a
step whenever it is asked, from the gradient at `x`: `mean(vector)` averages in place over all
processes, at once, and `optimizer` steps along `g`.
"""

from collections import deque

import torch

LATE = 2  # steps


def flat(net):
    """Return the parameters of a network as one vector, and their gradients as another."""
    x = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    g, at = torch.zeros_like(x), 0
    for parameter in net.parameters():
        size, shape = parameter.numel(), parameter.shape
        parameter.data, parameter.grad = (vector[at : at + size].view(shape) for vector in (x, g))
        at += size
    return x, g


def phase(optimizer, tau):
    """Take local steps, all but the last of which need nothing else."""
    for k in range(tau):
        optimizer.step()
        if k < tau - 1:
            yield


def cleared(optimizer):
    for state in optimizer.state.values():
        state.pop("momentum_buffer", None)


def rate(optimizer):
    return optimizer.param_groups[0]["lr"]


def ssgd(x, g, mean, optimizer, tau):
    while True:
        mean(g)
        optimizer.step()
        yield


def ssgd_bucketed(x, g, mean, optimizer, tau):
    while True:
        for part in g.tensor_split(4):
            mean(part)
        optimizer.step()
        yield


def post_local_sgd(x, g, mean, optimizer, tau, clear=lambda _: None):
    while True:
        yield from phase(optimizer, tau)
        mean(x)
        clear(optimizer)
        yield


def local_sgd(x, g, mean, optimizer, tau):
    yield from post_local_sgd(x, g, mean, optimizer, tau, cleared)


def bmuf(x, g, mean, optimizer, tau, momentum=0.5):
    anchor, slow, sent = x.clone(), torch.zeros_like(x), torch.empty_like(x)
    while True:
        yield from phase(optimizer, tau)
        mean(torch.sub(anchor, x, out=sent))
        slow.mul_(momentum).add_(sent, alpha=1 / rate(optimizer))
        x.copy_(anchor.sub_(slow, alpha=rate(optimizer)))
        cleared(optimizer)
        yield


def outer(anchor, v, gradient, lr=0.7, momentum=0.9):
    """Take Nesterov's step of the anchor, along a gradient that is of no further use."""
    v.mul_(momentum).add_(gradient)
    anchor.sub_(gradient.add_(v, alpha=momentum), alpha=lr)


def diloco(x, g, mean, optimizer, tau):
    anchor, v, sent = x.clone(), torch.zeros_like(x), torch.empty_like(x)
    while True:
        yield from phase(optimizer, tau)
        mean(torch.sub(anchor, x, out=sent))
        outer(anchor, v, sent)
        x.copy_(anchor)
        yield


def delayed_diloco(x, g, mean, optimizer, tau):
    anchor, v, came, sent = x.clone(), torch.zeros_like(x), torch.empty_like(x), None
    while True:
        yield from phase(optimizer, tau)
        torch.sub(anchor, x, out=came)
        if sent is not None:
            outer(anchor, v, sent)
        came, sent = torch.empty_like(x) if sent is None else sent, came
        mean(sent)
        x.copy_(anchor)
        yield


def eager_diloco(x, g, mean, optimizer, tau, workers=1):
    anchor, came, sent = x.clone(), torch.empty_like(x), None
    v, before = torch.zeros_like(x), torch.zeros_like(x)
    while True:
        yield from phase(optimizer, tau)
        torch.sub(anchor, x, out=came)
        before.sub_(came).div_(-workers)
        if sent is None:
            sent = torch.empty_like(x)
        else:
            before.add_(sent)
        outer(anchor, v, before)
        mean(sent.copy_(came))
        came, before = before, came
        x.copy_(anchor)
        yield


def cocod_sgd(x, g, mean, optimizer, tau):
    snapshot, came, own, sent = x.clone(), torch.empty_like(x), torch.empty_like(x), None
    while True:
        yield from phase(optimizer, tau)
        torch.sub(snapshot, x, out=came)
        if sent is None:
            sent = torch.empty_like(x)
        else:
            x.add_(own).sub_(sent)
        own, came = came, own
        mean(sent.copy_(own))
        snapshot.copy_(x)
        yield


def overlap_local_sgd(x, g, mean, optimizer, tau, alpha=0.6, beta=0.7):
    anchor, v, sent = x.clone(), torch.zeros_like(x), None
    while True:
        yield from phase(optimizer, tau)
        if sent is None:
            sent = torch.empty_like(x)
        else:
            anchor.sub_(sent)
        x.mul_(1 - alpha).add_(anchor, alpha=alpha)
        v.mul_(beta).add_(anchor).sub_(x)
        mean(sent.copy_(v))
        yield


def easgd(x, g, mean, optimizer, tau, workers=1):
    centre, away, sent = x.clone(), torch.empty_like(x), torch.empty_like(x)
    pull = 0.9 / workers
    while True:
        yield from phase(optimizer, tau)
        mean(sent.copy_(torch.sub(x, centre, out=away)))
        centre.add_(sent, alpha=workers * pull)
        x.sub_(away, alpha=pull)
        yield


def d_psgd(x, g, mean, optimizer, tau):
    mixed = torch.empty_like(x)
    while True:
        mean(mixed.copy_(x))  # in two processes the ring's weights are those of the mean
        x.copy_(mixed)
        optimizer.step()
        yield


def d2(x, g, mean, optimizer, tau):
    before, last = x.clone(), torch.zeros_like(x)
    while True:
        last.sub_(g, alpha=rate(optimizer)).add_(x, alpha=2).sub_(before)
        before.copy_(x)
        mean(x.copy_(last))
        x.add_(last).div_(2)
        torch.mul(g, rate(optimizer), out=last)
        yield


def dts(x, g, mean, optimizer, tau, delay=LATE):
    lr, mu = rate(optimizer), optimizer.param_groups[0]["momentum"]
    u, own, flying, n = torch.zeros_like(x), torch.zeros(2, len(x), dtype=x.dtype), deque(), 0
    free = [torch.zeros_like(own) for _ in range(2 * delay)]
    share = mu**delay
    tail = lr * sum(mu**late for late in range(1, delay + 1))
    while True:
        u.mul_(mu).add_(g)
        x.sub_(u, alpha=lr)
        own[0].mul_(mu).add_(g)
        own[1].add_(own[0], alpha=lr)
        n += 1
        if n % tau == 0:
            if len(flying) == delay // tau:
                late, theirs = flying.popleft()
                late.sub_(theirs)
                x.sub_(late[1]).sub_(late[0], alpha=tail)
                u.add_(late[0], alpha=share)
                free += [late, theirs]
            sent = free.pop().copy_(own)
            mean(sent)
            flying.append((sent, own))
            own = free.pop().zero_()
        yield


def hpsgd(x, g, mean, optimizer, tau):
    model, pending, sent = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
    fresh, started = True, False
    while True:
        lr = rate(optimizer)
        pending.add_(g, alpha=lr)
        if fresh or not started:
            x.sub_(g, alpha=lr)
        if not fresh:
            if started:
                x.copy_(model.sub_(sent))
            pending, sent = sent.zero_(), pending
            mean(sent)
        fresh, started = not fresh and started, started or not fresh
        yield


PROGRAMS = {
    "ssgd": ssgd, "ssgd-bucketed": ssgd_bucketed, "local-sgd": local_sgd,
    "post-local-sgd": post_local_sgd, "fedavg": local_sgd, "bmuf": bmuf, "diloco": diloco,
    "delayed-diloco": delayed_diloco, "eager-diloco": eager_diloco, "cocod-sgd": cocod_sgd,
    "overlap-local-sgd": overlap_local_sgd, "easgd": easgd, "d-psgd": d_psgd, "d2": d2, "dts": dts,
    "hpsgd": hpsgd,
}  # fmt: skip
