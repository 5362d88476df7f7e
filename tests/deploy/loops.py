"""Training loops of a user, in processes of their own, with sessions attached to them."""

import io
import os
import tomllib
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW

import paceline
from paceline.deploy import plan as plans
from paceline.deploy.steering.attach import Controller, Decision
from paceline.simulator.errors import InputError, RunError
from tests.deploy.emit import worker
from tests.helpers.cases import beside
from tests.helpers.waiting import PATIENCE

LR, MOMENTUM, ADAM = 0.1, 0.9, {"lr": 0.01, "weight_decay": 0.1}
OPTIMIZERS = {
    "plain": partial(SGD, lr=LR),
    "momentum": partial(SGD, lr=LR, momentum=MOMENTUM),
    "adamw": partial(AdamW, **ADAM),
}
ALL = tomllib.loads(beside(__file__, "loops.toml"))


def table(label):
    return {"name": label.split()[0], **ALL[label][0]}


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)).double()


class Loop:
    """A model, its optimizer and its data; `take` runs the loop.

    `fresh`: each backward pass makes new gradients, as is torch's default.
    """

    fresh = True

    def __init__(self, start, optimizer, batches):
        self.net, self.batches = network(), batches
        vector_to_parameters(start.clone(), self.net.parameters())
        self.optimizer = OPTIMIZERS[optimizer](self.net.parameters())

    def take(self, step, steps, model=None):
        for k in steps:
            inputs, labels = self.batches[k]
            self.optimizer.zero_grad(set_to_none=self.fresh)
            loss = cross_entropy((model or self.net)(inputs), labels)
            loss.backward()
            step(loss)

    @property
    def parameters(self):
        return parameters_to_vector(self.net.parameters()).detach().clone()


def attached(label, start, batches):
    """Return the parameters at the end."""
    loop = Loop(start, ALL[label][1], batches)
    with paceline.deploy(loop.net, loop.optimizer, table(label)) as session:
        loop.take(session.step, range(len(batches)))
        return loop.parameters


def killed(label, start, batches, at):
    """As `attached`, but by another session, model and optimizer from step `at` on."""
    first = Loop(start, ALL[label][1], batches)
    with paceline.deploy(first.net, first.optimizer, table(label)) as session:
        first.take(session.step, range(at))
        file = io.BytesIO()
        parts = {"model": first.net, "optimizer": first.optimizer, "session": session}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    saved = torch.load(file)
    second = Loop(torch.zeros_like(start), ALL[label][1], batches)
    with paceline.deploy(second.net, second.optimizer, table(label)) as session:
        parts = {"model": second.net, "optimizer": second.optimizer, "session": session}
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        second.take(session.step, range(at, len(batches)))
        return second.parameters


def steered(rank, start, lesson):
    """Double the period at each talk; return the steps of the means, and the decisions' number."""
    loop = Loop(start, "plain", lesson[rank])
    with paceline.deploy(loop.net, loop.optimizer, {"name": "local-sgd", "tau": 4}) as session:

        def double(settings, record):
            now = {"tau": 2 * settings["tau"]}
            return Decision(record.step, record.clock, settings, now, ("planned",))

        session.steer(lambda: Controller({"tau": 4}, double))
        loop.take(session.step, range(len(lesson[rank])))
        means = [record.step for record in session.telemetry if record.bytes]
        return means, len(session.decisions), loop.parameters


def as_torchft(rank, plan):
    """Train the network that emitted code trains, with the optimizer of its DiLoCo."""
    model, loss_of = worker.torch_model()
    optimizer = AdamW(model.parameters(), 0.02, (0.9, 0.99), 1e-6, 0.1)
    with paceline.deploy(model, optimizer, plan) as session:
        for data in worker.batches(rank):
            optimizer.zero_grad()
            loss_of(model, data).backward()
            session.step()
        return parameters_to_vector(model.parameters()).detach()


def scaled(rank):
    """Train with a GradScaler, while the second rank's fourth step overflows, by each way."""
    results = {}
    for name in ("parallel", "ssgd", "local-sgd"):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        optimizer = AdamW(net.parameters(), **ADAM)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        model = DistributedDataParallel(net) if name == "parallel" else net
        plan = {"name": name, **({"tau": 3} if name == "local-sgd" else {})}
        session = None if name == "parallel" else paceline.deploy(net, optimizer, plan)
        seen = []
        for k in range(9):
            draw = torch.Generator().manual_seed(10 * k + rank)
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6, generator=draw)).square().mean()
            scaler.scale(loss * (float("inf") if (rank, k) == (1, 3) else 1.0)).backward()
            before = parameters_to_vector(net.parameters()).detach().clone()
            if session:
                session.step(loss, scaler=scaler)
            else:
                scaler.step(optimizer)
            scaler.update()
            now = parameters_to_vector(net.parameters()).detach().clone()
            seen.append((scaler.get_scale(), not torch.equal(now, before)))
        if session:
            session.close()
        results[name] = now, seen
    return results


def refused(model, **options):
    """Return the refusal of a model."""
    try:
        paceline.deploy(model, SGD(model.parameters(), LR), "local-sgd", **options)
    except InputError as error:
        return str(error)


def unlike(rank):
    """Return the refusals of plans and models that differ between ranks, and of a sharded model."""
    messages = []
    for tau, width, frozen in ((2 + rank, 4, 0), (2, 4 + rank, 0), (2, 4, rank)):
        model = nn.Sequential(nn.Linear(width, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        model[frozen + 1].requires_grad_(False)
        messages.append(refused(model, tau=tau))
    sharded = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
    return [*messages, refused(sharded, tau=2)]


ISLANDS = {
    label: (table, optimizer)
    for label, (table, optimizer) in ALL.items()
    if label in plans.ENTRYWISE or label == "dts inner"
    if label != "dts"
}


class Islands(Loop):
    """A loop whose process has its part of an island's model and mini-batch.

    `inside`: how the processes of an island share the work, or None for one process.
    """

    def __init__(self, label, batches, mesh, inside):
        torch.manual_seed(1 if mesh is None else 1 + mesh.get_coordinate()[0])
        self.net = nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 10)).double()
        self.batches, self.mesh = batches, mesh
        if inside == "fsdp":
            for part in (self.net[0], self.net[2], self.net):
                fully_shard(part, mesh=mesh["inner"])
        self.model = self.net
        if inside == "ddp":
            self.model = DistributedDataParallel(self.net, process_group=mesh.get_group("inner"))
        if inside:
            half = slice(None, None, 2) if mesh.get_local_rank("inner") else slice(1, None, 2)
            self.batches = [(inputs[half], labels[half]) for inputs, labels in batches]
        self.optimizer = OPTIMIZERS[ISLANDS[label][1]](self.net.parameters())
        plan = {"name": label.split()[0], **ISLANDS[label][0]}
        self.session = paceline.deploy(self.model, self.optimizer, plan, mesh=mesh)

    def go(self, steps):
        self.take(self.session.step, steps, self.model)

    @property
    def whole(self):
        parts = [
            getattr(one, "full_tensor", lambda one=one: one)() for one in self.net.parameters()
        ]
        return parameters_to_vector(parts).detach().clone()


def islands(rank, lesson, folder, inside):
    """Train on two islands; return each program's parameters, and those after a resumption."""
    inputs, labels = torch.load(lesson)
    mesh = inside and init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "inner"))
    island = mesh.get_local_rank("islands") if mesh else rank
    batches = list(zip(inputs[island], labels[island], strict=True))
    results = {}
    for label in ISLANDS:
        loop = Islands(label, batches, mesh, inside)
        with loop.session:
            loop.go(range(KILLED - 10))
            if inside == "fsdp" and label in RESUMED:
                saved = folder / f"{label} {island}", folder / f"{label} of rank {rank}"
                inner = mesh.get_group("inner")
                checkpoint.save(parts(loop), checkpoint_id=saved[0], process_group=inner)
                torch.save(loop.session.state_dict(), saved[1])
            loop.go(range(KILLED - 10, KILLED - 2))
            with loop.session.averaged():
                results[label, "averaged"] = loop.whole
            results[label] = loop.whole
        if inside == "fsdp" and label in RESUMED:
            again = Islands(label, batches, mesh, inside)
            with again.session:
                state = parts(again)
                checkpoint.load(state, checkpoint_id=saved[0], process_group=inner)
                both = state["model"], state["optimizer"]
                keys = "model_state_dict", "optim_state_dict"
                set_state_dict(again.net, again.optimizer, **dict(zip(keys, both, strict=True)))
                again.session.load_state_dict(torch.load(saved[1]))
                again.go(range(KILLED - 10, KILLED - 2))
                results[label, "resumed"] = again.whole
    return results


RESUMED = "ssgd", "diloco", "streaming-diloco", "dts inner"


def parts(loop):
    model, optimizer = get_state_dict(loop.net, loop.optimizer)
    return {"model": model, "optimizer": optimizer}


def lost(rank):
    """Return the error in every process when one process of an island fails."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "inner"))
    net = fully_shard(nn.Linear(4, 4), mesh=mesh["inner"])
    try:
        optimizer = SGD(net.parameters(), LR)
        with paceline.deploy(net, optimizer, "local-sgd", mesh=mesh, tau=2) as session:
            for step in range(2):
                net(torch.ones(1, 4)).sum().backward()
                if (rank, step) == (3, 1):
                    raise ArithmeticError("no more")
                session.step()
    except (ArithmeticError, RunError) as error:
        return str(error)


def misjoined(rank):
    """Return the refusals of models that do not fit a mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "inner"))
    wrapped = fully_shard(nn.Linear(4, 4)), DistributedDataParallel(nn.Linear(4, 4))
    cases = *((model, mesh) for model in (*wrapped, nn.Linear(4, 4))), (wrapped[0], mesh["inner"])
    return [refused(model, mesh=given, tau=2) for model, given in cases]


def averager(start, batches, tau):
    """Torch's own local SGD."""
    loop = Loop(start, "plain", batches)
    average = PeriodicModelAverager(tau, warmup_steps=tau - 1)

    def step(loss):
        loop.optimizer.step()
        average.average_parameters(loop.net.parameters())

    loop.take(step, range(len(batches)))
    return loop.parameters


def parallel(start, batches):
    """Torch's own synchronous SGD."""
    loop = Loop(start, "momentum", batches)
    model = DistributedDataParallel(loop.net)
    loop.take(lambda loss: loop.optimizer.step(), range(len(batches)), model)
    return loop.parameters


def together(work, size, folder, *arguments):
    """Call `work(rank, *arguments)` in `size` processes; return what each of them returns."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    mp.start_processes(
        _process, (work, size, folder, arguments), size, daemon=True, start_method="forkserver"
    )
    return [torch.load(folder / f"found {rank}") for rank in range(size)]


def _process(rank, work, size, folder, arguments):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store, limit = f"file://{(Path(folder) / 'store').absolute()}", timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store, limit, size, rank)
    torch.save(work(rank, *arguments), Path(folder) / f"found {rank}")
    dist.barrier()
    dist.destroy_process_group()


def every_program(rank, lesson, kills):
    """Run every program, and those that are killed at a step."""
    start, inputs, labels = torch.load(lesson)
    batches = list(zip(inputs[rank], labels[rank], strict=True))
    return {
        "attached": {label: attached(label, start, batches) for label in ALL},
        "averager": averager(start, batches, 4),
        "parallel": parallel(start, batches),
        "plain": attached_plain(start, batches),
        "killed": {(label, at): killed(label, start, batches[:KILLED], at) for label, at in kills},
        "whole": {label: attached(label, start, batches[:KILLED]) for label, _ in kills},
    }


KILLED = 32


def in_place(rank, lesson, labels):
    """Run programs whose gradients are new in each step, and those where they stay."""
    start, inputs, targets = torch.load(lesson)
    batches = list(zip(inputs[rank], targets[rank], strict=True))
    results = []
    for Loop.fresh in (True, False):
        results.append({label: attached(label, start, batches) for label in labels})
    return results


def beyond(rank, lesson):
    """Return what is ours and what is torch's, on data that all processes share out."""
    start, inputs, labels = torch.load(lesson)
    batches = list(zip(inputs[rank], labels[rank], strict=True))
    return {
        "local-sgd": (attached_plain(start, batches), averager(start, batches, 4)),
        "ssgd": (attached("ssgd", start, batches), parallel(start, batches)),
    }


def attached_plain(start, batches):
    """Local SGD as the averager has it, attached."""
    loop = Loop(start, "plain", batches)
    with paceline.deploy(loop.net, loop.optimizer, "local-sgd", tau=4) as session:
        loop.take(session.step, range(len(batches)))
        return loop.parameters
