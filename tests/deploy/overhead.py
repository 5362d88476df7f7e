"""What a session holds beside a program written by hand: the vectors of docs/how-to/deploy.md.

One process, which divides as one of two, and starts all-reduces with itself; nobody waits.
Gradients are *kept* where the loop's `zero_grad(set_to_none=False)` leaves them, by hand in one
vector; or they are *fresh*, as torch makes them anew by default: what travels is then copied to one
vector, also by hand (`WHOLE`); where they are only read, they are by hand in one for nothing.
"""

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

import paceline
from tests.deploy.by_hand import PROGRAMS, flat

TENSORS, LR = 150, 0.1
MOMENTUM = {"dts": 0.9}
WHOLE = "ssgd", "ssgd-bucketed"
PLANS = {  # those with a period end a round at each step
    "ssgd": {}, "ssgd-bucketed": {"overlap": False}, "local-sgd": {"tau": 1},
    "post-local-sgd": {"switch_step": 0, "tau": 1}, "fedavg": {"tau": 1}, "bmuf": {"tau": 1},
    "diloco": {"tau": 1}, "delayed-diloco": {"tau": 1}, "eager-diloco": {"tau": 1},
    "cocod-sgd": {"tau": 1}, "overlap-local-sgd": {"tau": 1}, "easgd": {"tau": 1}, "d-psgd": {},
    "d2": {}, "dts": {"delay": 2}, "hpsgd": {},
}  # fmt: skip


class Vectors(TorchDispatchMode):
    """Counts the vectors that torch makes under it, in lengths of the model's.

    `most`: that there were at once; `held`: that there are. Not counted: `given`.
    """

    def __init__(self, entries, given):
        super().__init__()
        self._entries, self.most = entries, 0.0
        storages = [tensor.untyped_storage() for tensor in given]
        self._given = {storage._cdata: StorageWeakRef(storage) for storage in storages}
        self._known = {}  # of those made here that were there at last: reference, and size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor) and self._takes_in(each.untyped_storage()):
                self.most = max(self.most, self.held)
        return found

    def _takes_in(self, storage):
        size = storage.nbytes() / self._entries / 4
        known = self._known.get(storage._cdata)
        new = storage._cdata not in self._given and (known is None or known[0].expired())
        if found := new and size > 1 / TENSORS / 2:
            self._known[storage._cdata] = StorageWeakRef(storage), size
        return found

    @property
    def held(self):
        left = {key: value for key, value in self._known.items() if not value[0].expired()}
        self._known = left
        return sum(size for _, size in left.values())


class Alone:
    """A group of one process, whose sums are there at once, and held by nobody.

    gloo's threads let go of a buffer when they come to it.
    """

    def allreduce(self, tensors):
        return self

    def is_completed(self):
        return True

    def wait(self):
        return True


def network(entries):
    """Return parameters of so many entries in all, with gradients."""
    size = max(1, round((entries / TENSORS) ** 0.5))
    net = nn.ParameterList(nn.Parameter(torch.zeros(size, size)) for _ in range(TENSORS))
    for parameter in net:
        parameter.grad = torch.full((size, size), 1e-3)
    return net


def by_hand(name, net, kept):
    """Return a function that takes a step of a program as an expert writes it."""
    given = [parameter.grad for parameter in net]
    x, g = flat(net)
    optimizer = SGD(net.parameters(), LR, momentum=MOMENTUM.get(name, 0.0))

    def mean(vector):
        vector.div_(2)

    steps = PROGRAMS[name](x, g, mean, optimizer, 1)
    net, views = list(net), [parameter.grad for parameter in net]
    torch._foreach_copy_(views, given)  # as zeros are multiplied faster

    def step():
        with torch.no_grad():
            if name in WHOLE and not kept:
                leave(net, given)
                torch._foreach_copy_(views, [parameter.grad for parameter in net])
                leave(net, views)
            next(steps)

    return step


def leave(net, gradients):
    """Leave gradients as a backward pass does."""
    for parameter, gradient in zip(net, gradients, strict=True):
        parameter.grad = gradient


async def landed(self, handle):
    """Find a mean finished, which else depends on time."""
    self.transport.collectives.settle(handle)
    return True


def attached(name, net, kept):
    """Return a session, and a function that takes one of its steps."""
    given = [parameter.grad for parameter in net]
    optimizer = SGD(net.parameters(), LR, momentum=MOMENTUM.get(name, 0.0))
    session = paceline.deploy(net, optimizer, {"name": name, **PLANS[name]})
    session._transport.collectives.scale = lambda *_: 0.5
    net = list(net)

    def step():
        if not kept:
            leave(net, given)
        session.step(0.0)

    return session, step


def counted(name, kept=False, entries=1_500_000):
    """Return vectors, beside gradients: those that a session holds between steps, with them the
    most in a step, and those by hand. Of six steps after six.
    """
    found = []
    for own in (True, False):
        net = network(entries)
        given = [parameter.grad for parameter in net]
        with Vectors(sum(parameter.numel() for parameter in net), given) as count:
            if own:
                session, step = attached(name, net, kept)
                session._transport.team._group = Alone()
            else:
                session, step = None, by_hand(name, net, kept)
            for _ in range(6):
                step()
            held, count.most = [], count.held
            for _ in range(6):
                step()
                if own and not kept:
                    for parameter in net:
                        parameter.grad = None
                held.append(count.held)
            if session:
                session.close()
        # gradients that are a vector made here
        less = kept if own else kept or name not in WHOLE
        found += [max(held) - less, count.most - less] if own else [max(held) - less]
    return [round(each, 1) for each in found]
