"""What a session's step takes beside one written by hand: python -m tests.deploy.overhead

Prints the numbers of docs/how-to/deploy.md. One process; nobody waits.
"""

import argparse
import time

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

import paceline
from tests.deploy.by_hand import PROGRAMS, flat

TENSORS, LR, USUAL = 150, 0.1, 16
MOMENTUM = {"dts": 0.9}
PLANS = {  # those with a period end a round at each step
    "ssgd": {}, "ssgd-bucketed": {"overlap": False}, "local-sgd": {"tau": 1},
    "post-local-sgd": {"switch_step": 0, "tau": 1}, "fedavg": {"tau": 1}, "bmuf": {"tau": 1},
    "diloco": {"tau": 1}, "delayed-diloco": {"tau": 1}, "eager-diloco": {"tau": 1},
    "cocod-sgd": {"tau": 1}, "overlap-local-sgd": {"tau": 1}, "easgd": {"tau": 1}, "d-psgd": {},
    "d2": {}, "dts": {"delay": 2}, "hpsgd": {},
}  # fmt: skip


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


def by_hand(name, net, kind=SGD):
    """Return a function that takes a step of a program as an expert writes it."""
    x, g = flat(net)
    optimizer = kind(net.parameters(), LR, momentum=MOMENTUM.get(name, 0.0))
    steps = PROGRAMS[name](x, g, lambda vector: vector.div_(1), optimizer, 1)

    def step():
        with torch.no_grad():
            next(steps)

    return step


def attached(name, net, kind=SGD):
    """Return a session, and a function that takes one of its steps."""
    given = [each.grad for each in net]
    optimizer = kind(net.parameters(), LR, momentum=MOMENTUM.get(name, 0.0))
    session = paceline.deploy(net, optimizer, {"name": name, **PLANS[name]})
    net = list(net)

    def step():
        for each, gradient in zip(net, given, strict=True):
            each.grad = gradient  # as a backward pass leaves its own
        session.step(0.0)

    return session, step


def counted(name, entries=1_500_000):
    """Return vectors, beside gradients: those that a session holds between steps, with them the
    most in a step, and those by hand. Of six steps after six.
    """
    found = []
    for own in (True, False):
        net = network(entries)
        given = [each.grad for each in net]
        with Vectors(sum(each.numel() for each in net), given) as count:
            session, step = attached(name, net) if own else (None, by_hand(name, net))
            for _ in range(6):
                step()
            held, count.most = [], 0.0
            for _ in range(6):
                step()
                if own:
                    for each in net:
                        each.grad = None
                held.append(count.held)
            if session:
                session.close()
        # by hand the gradients are a vector made here
        found += [max(held), count.most] if own else [max(held) - 1]
    return [round(each, 1) for each in found]


def seconds(name, entries, turns=3):
    """Return the processor's seconds of a step, by hand and attached in turns: least of each."""
    session, own = attached(name, network(entries))
    found = {by_hand(name, network(entries)): [], own: []}
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
            hand, own = (1e3 * each for each in seconds(name, options.entries))
            steps = USUAL if "tau" in PLANS[name] else 1
            line += [f"{hand:.1f}", f"{own:.1f}", f"{(own - hand) / steps:.1f}"]
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
