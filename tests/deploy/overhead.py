"""What a session's step takes beside its program's arithmetic: python -m tests.deploy.overhead

Prints the numbers of docs/how-to/deploy.md. *Bare* is the same text on torch vectors, nothing else:
its gradient is there as one vector, its mean is what it gives. One process; nobody waits.
"""

import argparse
import time

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

import paceline
from paceline.deploy import plan as plans
from paceline.deploy.attached import GRADIENT

TENSORS = 150
MOMENTUM = {"dts": 0.9, "bmuf": 0.0}
PLANS = {  # those with a period end a round at each step
    "ssgd": {}, "ssgd-bucketed": {"overlap": False}, "local-sgd": {"tau": 1},
    "post-local-sgd": {"switch_step": 0, "tau": 1}, "fedavg": {"tau": 1}, "bmuf": {"tau": 1},
    "diloco": {"tau": 1}, "delayed-diloco": {"tau": 1}, "eager-diloco": {"tau": 1},
    "cocod-sgd": {"tau": 1}, "overlap-local-sgd": {"tau": 1}, "easgd": {"tau": 1}, "d-psgd": {},
    "d2": {}, "dts": {"delay": 2}, "hpsgd": {},
}  # fmt: skip


class Bare:
    """A node whose effects cost nothing."""

    rank, workers, bytes_per_parameter, samples = 0, 1, 4, None
    leap = mark = send = lambda self, *_: None
    resumed = staticmethod(lambda **state: tuple(state.values()))
    start_mean = staticmethod(lambda value: value)

    def __init__(self, start, gradient):
        self.start, self.parameters, self._gradient = start, len(start), gradient

    async def gradient(self, x):
        await GRADIENT
        return self._gradient

    async def start_backward(self, x, pieces):
        return self.cut(await self.gradient(x), pieces)

    def cut(self, vector, pieces):
        return vector.tensor_split(pieces)

    def join(self, parts):
        return torch.cat(list(parts))

    async def wait(self, handle):
        return handle

    mean = wait

    async def finished(self, handle):
        return True


class Vectors(TorchDispatchMode):
    """Counts the vectors that torch makes under it, in lengths of the model's.

    `made`: in all; `most`: that there were at once; `held`: that there are. Not counted: `given`.
    """

    def __init__(self, entries, given):
        super().__init__()
        self._entries, self.made, self.most = entries, 0.0, 0.0
        storages = [each.untyped_storage() for each in given]
        self._known = {each._cdata: (StorageWeakRef(each), 0.0) for each in storages}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self._take_in(each.untyped_storage())
        self.most = max(self.most, self.held)
        return found

    def _take_in(self, storage):
        size, known = storage.nbytes() / self._entries / 4, self._known.get(storage._cdata)
        if size > 1 / TENSORS / 2 and (known is None or known[0].expired()):
            self._known[storage._cdata] = StorageWeakRef(storage), size
            self.made += size

    @property
    def held(self):
        return sum(size for ref, size in self._known.values() if not ref.expired())


def network(entries):
    """Return parameters of so many entries in all, with gradients."""
    size = max(1, round((entries / TENSORS) ** 0.5))
    net = nn.ParameterList(nn.Parameter(torch.zeros(size, size)) for _ in range(TENSORS))
    for each in net:
        each.grad = torch.full((size, size), 1e-3)
    return net


def bare(name, size):
    """Return a function that takes one step of the text alone."""
    plan = plans.read({"name": name, **PLANS[name]}, {}, 1, size)
    parameters = dict(plan.parameters)
    if "inner" in parameters and name != "dts":
        parameters["inner"] = plans.read({"name": "ssgd"}, {}, 1, size).parameters["momentum"]
    if name == "dts":
        parameters["momentum"] = MOMENTUM[name]
    node = Bare(torch.zeros(size), torch.full((size,), 1e-3))
    coroutine = plan.program.worker(node, **parameters)

    def step():
        with torch.no_grad():
            coroutine.send(None)

    step()
    return step


def attached(name, net, kind=SGD):
    """Return a session, and a function that takes one of its steps."""
    given = [each.grad for each in net]
    optimizer = kind(net.parameters(), 0.1, momentum=MOMENTUM.get(name, 0.0))
    session = paceline.deploy(net, optimizer, {"name": name, **PLANS[name]})

    def step():
        for each, gradient in zip(net, given, strict=True):
            each.grad = gradient  # as a backward pass leaves its own
        session.step(0.0)

    return session, step


def vectors(name, entries):
    """Return the vectors, beside gradients, that a session holds between steps, and with them the
    most in a step; and those that a step makes, attached and bare: means of six steps after six.
    """
    found = []
    for own in (True, False):
        net = network(entries)
        size = sum(each.numel() for each in net)
        with Vectors(size, [each.grad for each in net]) as count:
            session, step = attached(name, net) if own else (None, bare(name, size))
            for _ in range(6):
                step()
            begun, held, count.most = count.made, [], 0.0
            for _ in range(6):
                step()
                for each in net:
                    each.grad = None
                held.append(count.held)
            made = (count.made - begun) / 6
            if session:
                found += [max(held), count.most]
                session.close()
        found.append(made)
    return found


def counted(name):
    """Return the columns of the table that are counted."""
    held, most, made, text = vectors(name, 20_000)
    return [round(each, 1) for each in (held, most, text, made - text)]


def seconds(name, entries, turns=3):
    """Return the processor's seconds of a step, attached and bare in turns, the least of each."""
    net = network(entries)
    session, own = attached(name, net)
    found = {own: [], bare(name, sum(each.numel() for each in net)): []}
    for turn in range(2 * turns):  # the first half brings them to where they stay
        for step, times in found.items():
            began = time.process_time()
            for _ in range(2):
                step()
            if turn >= turns:
                times.append((time.process_time() - began) / 2)
    session.close()
    return [min(times) for times in found.values()]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.overhead")
    parser.add_argument("programs", nargs="*", default=PLANS)
    parser.add_argument("--entries", type=int, default=30_000_000)
    parser.add_argument("--count", action="store_true", help="vectors alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.programs:
        line = [f"`{name}`", *(f"{each:g}" for each in counted(name))]
        if not options.count:
            line += [f"{1e3 * each:.0f}" for each in reversed(seconds(name, options.entries))]
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
