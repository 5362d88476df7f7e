"""Reference implementations in plain PyTorch, in separate processes."""

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW

from paceline.simulator.programs.diloco import Inner, Tau, diloco
from paceline.simulator.programs.local import LearningRate
from tests.helpers.waiting import PATIENCE

LR, MOMENTUM, TAU, SWITCH = 0.1, 0.9, 4, 6
ADAM = {"lr": 0.01, "weight_decay": 0.1}
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
BUCKET = 1e-6  # MB, so small that every parameter is a bucket
TIMEOUT = timedelta(seconds=PATIENCE)
START = "forkserver"  # which imports torch once, and has no threads yet

Peer = Callable[[nn.Module], tuple[nn.Module, Callable[[], None]]]
"""Maps a network to the module that computes its scores, and to the end of every step."""


def batches(goal, workers, steps):
    """Return the inputs and labels that an objective gives its workers, (workers, steps, ...)."""
    rows = [
        [goal.samples.train(source.next_rows()) for _ in range(steps)]
        for source in map(goal.source, range(workers))
    ]
    return [torch.stack([torch.stack([pair[n] for pair in row]) for row in rows]) for n in (0, 1)]


def local_sgd(net):
    """Average from the first step after the warm-up."""
    optimizer = SGD(net.parameters(), LR)
    averager = PeriodicModelAverager(TAU, warmup_steps=TAU - 1)

    def step():
        optimizer.step()
        averager.average_parameters(net.parameters())

    return net, step


def local_momentum(net):
    """Average, and clear the optimizers' buffers, which the averager leaves to its user."""
    optimizer = SGD(net.parameters(), LR, MOMENTUM)
    averager = PeriodicModelAverager(TAU, warmup_steps=TAU - 1)

    def step():
        optimizer.step()
        averager.average_parameters(net.parameters())
        if averager.step % TAU == 0:
            optimizer.state.clear()

    return net, step


def post_local_sgd(net):
    """Average gradients up to a step, then parameters at intervals, but no buffers."""
    ddp = DistributedDataParallel(net)
    state = PostLocalSGDState(None, None, SWITCH, post_local_gradient_allreduce=False)
    ddp.register_comm_hook(state, post_localSGD_hook)
    optimizer = SGD(net.parameters(), LR, MOMENTUM)
    averager = PeriodicModelAverager(TAU, warmup_steps=SWITCH + TAU - 1)

    def step():
        optimizer.step()
        averager.average_parameters(net.parameters())

    return ddp, step


def bucketed(net):
    """Average buckets; the first step, with one bucket, learns the order of gradients."""
    ddp = DistributedDataParallel(net, bucket_cap_mb=BUCKET)
    return ddp, SGD(net.parameters(), LR, MOMENTUM).step


def torchft(net):
    """Apply the rule of torchft/local_sgd.py (save_grads to save_parameters), without a manager."""
    inner, outer = AdamW(net.parameters(), **ADAM), SGD(net.parameters(), **OUTER)
    original = [parameter.detach().clone() for parameter in net.parameters()]
    numbers = count(1)

    def step():
        inner.step()
        if next(numbers) % TAU:
            return
        for parameter, shared in zip(net.parameters(), original, strict=True):
            parameter.grad = (shared - parameter.detach()) / dist.get_world_size()
            dist.all_reduce(parameter.grad)
            parameter.data.copy_(shared)
        outer.step()
        for parameter, shared in zip(net.parameters(), original, strict=True):
            shared.copy_(parameter.detach())

    return net, step


PEERS: dict[str, Peer] = {
    item.__name__: item for item in (local_sgd, local_momentum, post_local_sgd, bucketed, torchft)
}


def train(start: Tensor, inputs: Tensor, labels: Tensor, folder: Path) -> dict[str, Tensor]:
    """Return every worker's parameters (workers, steps, dimension), by peer.

    They start from `start` (dimension,) of an MLP, with mini-batches `inputs` (workers, steps,
    batch, 1, 8, 8) and their `labels` (workers, steps, batch). Raises
    torch.multiprocessing.ProcessRaisedException if a process fails; none is left running.
    """
    torch.save((start, inputs, labels), folder / "lesson")
    workers = len(inputs)
    mp.get_context(START).set_forkserver_preload([__name__, "torch._dynamo"])  # optimisers load it
    mp.start_processes(_process, (workers, folder), workers, daemon=True, start_method=START)
    actual = [torch.load(folder / f"{rank}") for rank in range(workers)]
    return {name: torch.stack([record[name] for record in actual]) for name in PEERS}


def _process(rank: int, size: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{(folder / 'store').absolute()}"
    dist.init_process_group("gloo", store, TIMEOUT, size, rank)
    start, inputs, labels = torch.load(folder / "lesson")
    batches = list(zip(inputs[rank], labels[rank], strict=True))
    torch.save({name: _steps(PEERS[name], start, batches) for name in PEERS}, folder / f"{rank}")
    dist.barrier()  # a process that ends closes sockets that others may still use
    dist.destroy_process_group()


def _steps(peer: Peer, start: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    vector_to_parameters(start.clone(), net.parameters())
    model, step = peer(net)
    seen = []
    for inputs, labels in batches:
        net.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        step()
        seen.append(parameters_to_vector(net.parameters()).detach().clone())
    return torch.stack(seen)


async def fed_diloco(me, *, lr: LearningRate, inner: Inner, tau: Tau) -> None:
    """Run DiLoCo with gradients of 1 in every entry on even workers, and 3 on odd ones."""
    compute = me.gradient

    async def gradient(x):
        return 0.0 * await compute(x) + (1.0, 3.0)[me.rank % 2]

    me.gradient = gradient
    await diloco(me, lr=lr, inner=inner, tau=tau)
