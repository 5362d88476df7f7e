"""Run emitted code on this machine's CPU: python worker.py TARGET FOLDER, in a process of its own.

Two workers train a small network for STEPS steps; each writes its parameters to FOLDER. Nothing of
Paceline is imported, as a user's script would not.
"""

import importlib.util
import json
import os
import runpy
import socket
import subprocess
import sys
import types
from dataclasses import replace
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

WORKERS, STEPS, IN, HIDDEN, OUT, BATCH = 2, 100, 4, 6, 4, 8
SAMPLES = (10, 30)
UNUSED = {  # packages that a framework imports, none of which the emitted code uses
    "torchft": ("opentelemetry",),
    "torchtitan": ("opentelemetry", "tyro", "spmd_types", "torch_checkpointing"),
    "flower": ("iterators",),
}


class StandIn:
    """Finds empty modules in place of packages that are missing."""

    def __init__(self, names):
        self.names = {name for name in names if not self.whole(name)}

    @staticmethod
    def whole(name):
        """Tell whether a package is there; OpenTelemetry's parts are packages of their own."""
        part = "opentelemetry.exporter.otlp.proto.http._log_exporter"
        try:
            importlib.import_module(part if name == "opentelemetry" else name)
        except ImportError:
            for loaded in [module for module in sys.modules if f"{module}.".startswith(f"{name}.")]:
                del sys.modules[loaded]
            return False
        return True

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda key: MagicMock(name=key)
        return module

    def exec_module(self, module):
        pass


def start():
    """Return the parameters before the first step: both matrices, flat."""
    return np.random.default_rng(7).normal(size=IN * HIDDEN + HIDDEN * OUT) / 2


def batch(rank, step):
    """Return the inputs and targets of a worker's step, the first being 1."""
    random = np.random.default_rng([rank, step])
    return random.normal(size=(BATCH, IN)), random.normal(size=(BATCH, OUT)) + rank


def batches(rank, first=1):
    return (batch(rank, step) for step in range(first, STEPS + 1))


def gradient(x, rank, step):
    """Return the gradient of the mean square error, by hand."""
    a, b = x[: IN * HIDDEN].reshape(IN, HIDDEN), x[IN * HIDDEN :].reshape(HIDDEN, OUT)
    inputs, targets = batch(rank, step)
    hidden = np.tanh(inputs @ a)
    error = 2 * (hidden @ b - targets) / targets.size
    back = inputs.T @ ((error @ b.T) * (1 - hidden**2))
    return np.concatenate([back.ravel(), (hidden.T @ error).ravel()])


def torch_model():
    """Return the network, in float64, and its loss."""
    import torch

    torch.set_num_threads(1)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            a, b = np.split(start(), 2)
            self.a = torch.nn.Parameter(torch.tensor(a.reshape(IN, HIDDEN)))
            self.b = torch.nn.Parameter(torch.tensor(b.reshape(HIDDEN, OUT)))

        def forward(self, x):
            return torch.tanh(x @ self.a) @ self.b

    def loss_of(model, data):
        inputs, targets = map(torch.as_tensor, data)
        return torch.mean((model(inputs) - targets) ** 2)

    return Net(), loss_of


def save(folder, rank, parameters):
    flat = np.concatenate([np.asarray(parameter).ravel() for parameter in parameters])
    np.save(folder / f"{rank}.npy", flat)


def numbers(model):
    return [parameter.detach().numpy() for parameter in model.parameters()]


RECIPE = {}


def torch_optimizer(model):
    """Return the optimizer of the user's script."""
    import torch

    names = {"torch": torch, "of": model.parameters(), "lr": RECIPE["rates"][0]}
    return eval(RECIPE["call"], names)


def set_rate(optimizer, step):
    for group in optimizer.param_groups:
        group["lr"] = RECIPE["rates"][step - 1]


def accelerate(folder, rank, code):
    from accelerate import Accelerator

    model, loss_of = torch_model()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch_optimizer(model))
    with code["program"](accelerator, model, optimizer) as taken:
        for step, data in enumerate(batches(rank), 1):
            set_rate(optimizer, step)
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, data))
            optimizer.step()
            taken()
    save(folder, rank, numbers(accelerator.unwrap_model(model)))
    sys.modules["torch"].distributed.destroy_process_group()


def own_store(rank):
    """Set the variables that torchrun sets for a replica of one process."""
    import torch

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "RANK": 0, "WORLD_SIZE": 1}
    os.environ |= {key: str(value) for key, value in (own | {"REPLICA_GROUP_ID": rank}).items()}
    return store


def torchft(folder, rank, code):
    store = own_store(rank)
    model, loss_of = torch_model()
    optimizer = torch_optimizer(model)
    with code["program"](model, optimizer) as run:
        for step, data in enumerate(batches(rank), 1):
            set_rate(optimizer, step)
            run.optimizer.zero_grad()
            loss_of(run.model, data).backward()
            run.optimizer.step()
            run.taken()
    save(folder, rank, numbers(model))
    del store


def torchtitan(folder, rank, code):
    """Run what torchtitan's trainer does for the pick; the trainer itself needs Triton."""
    from torchtitan.components.optimizer import LRSchedulersContainer, ParamGroupConfig
    from torchtitan.experiments.torchft.manager import maybe_semi_sync_training
    from torchtitan.experiments.torchft.optimizer import TorchFTOptimizersContainer

    store = own_store(rank)
    model, loss_of = torch_model()
    config = types.SimpleNamespace(
        debug=types.SimpleNamespace(seed=None),
        model_spec=types.SimpleNamespace(fragment_fn=lambda net, *_: [only(net.a), only(net.b)]),
    )
    config = code["configure"](config)
    given = {"lr": RECIPE["rates"][0], "eps": RECIPE["numbers"]["epsilon"]}
    given["betas"] = RECIPE["numbers"]["beta1"], RECIPE["numbers"]["beta2"]
    given["weight_decay"] = RECIPE["numbers"]["weight_decay"]
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=given)
    container = TorchFTOptimizersContainer.Config(param_groups=[group], implementation="for-loop")
    ours = replace(config.fault_tolerance, replica_id=rank)
    manager = ours.build()
    optimizer = container.build(model_parts=[model], ft_manager=manager)
    for state in (state for one in optimizer.optimizers for state in one.state.values()):
        state["step"].zero_()  # torchtitan makes the state by a step at a rate of 0, which counts
    fragment_fn = config.model_spec.fragment_fn if ours.num_fragments > 1 else None
    averaging = maybe_semi_sync_training(ours, manager, model, 0, optimizer, fragment_fn)
    constant = LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0)
    schedule = constant.build(optimizers=optimizer, training_steps=STEPS)
    with averaging:
        for data in batches(rank):
            optimizer.zero_grad()
            loss_of(model, data).backward()
            optimizer.step()
            schedule.step()
    save(folder, rank, numbers(model))
    manager.manager.shutdown(wait=False)
    del store


def only(parameter):
    import torch

    return torch.nn.ParameterList([parameter])


def paddle(folder, rank, code):
    import paddle

    paddle.set_device("cpu")

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            a, b = np.split(start(), 2)
            self.a = self.create_parameter([IN, HIDDEN], dtype="float64")
            self.b = self.create_parameter([HIDDEN, OUT], dtype="float64")
            self.a.set_value(a.reshape(IN, HIDDEN))
            self.b.set_value(b.reshape(HIDDEN, OUT))

        def forward(self, x):
            return paddle.tanh(x @ self.a) @ self.b

    def loss_of(model, data):
        inputs, targets = map(paddle.to_tensor, data)
        return paddle.mean((model(inputs) - targets) ** 2)

    def optimizer_of(model):
        numbers, of = RECIPE["numbers"], {"parameters": model.parameters()}
        rate = RECIPE["rates"][0]
        if RECIPE["kind"] == "adamw":
            betas = numbers["beta1"], numbers["beta2"], numbers["epsilon"]
            decay = numbers["weight_decay"]
            return paddle.optimizer.AdamW(rate, *betas, weight_decay=decay, **of)
        if not numbers:
            return paddle.optimizer.SGD(rate, **of)
        nesterov = RECIPE["kind"] == "nesterov"
        return paddle.optimizer.Momentum(rate, numbers["mu"], use_nesterov=nesterov, **of)

    model = Net()
    with code["program"](model, optimizer_of) as run:
        for step, data in enumerate(batches(rank), 1):
            with run.local():
                loss_of(run.model, data).backward()
            run.optimizer.set_lr(RECIPE["rates"][step - 1])
            run.optimizer.step()
            run.optimizer.clear_grad()
            run.taken()
    save(folder, rank, [parameter.numpy() for parameter in model.parameters()])


def flower(folder, rank, code):
    """Run both apps with a grid that calls the clients here; deploying them is not tried."""
    from flwr.app import ConfigRecord, Context, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    class Here(Grid):
        def set_run(self, run): ...
        @property
        def run(self): ...
        def create_message(self, *_, **__): ...
        def get_nodes(self):
            return []

        def push_messages(self, messages):
            return []

        def pull_messages(self, message_ids):
            return []

        def get_node_ids(self):
            return range(1, WORKERS + 1)

        def send_and_receive(self, messages, *, timeout=None):
            nodes = [context(message.metadata.dst_node_id) for message in messages]
            return list(map(code["client"], messages, nodes))

    def context(node):
        config = {"partition-id": node - 1, "num-partitions": WORKERS}
        rounds = {"num-server-rounds": STEPS // code["TAU"]}
        return Context(0, node, config, RecordDict({"config": ConfigRecord()}), rounds)

    import torch

    os.chdir(folder)
    code["server"](Here(), context(0))
    state = torch.load("final_model.pt")
    for index in range(WORKERS):
        save(folder, index, [state["a"], state["b"]])


def task():
    """Return the module that a user of Flower writes."""
    module = types.ModuleType("task")
    module.make_model = lambda: torch_model()[0]
    module.make_optimizer = torch_optimizer
    module.loss_of = torch_model()[1]
    module.batches = batches

    def take_step(model, optimizer, step):
        set_rate(optimizer, step)
        optimizer.step()

    module.take_step = take_step
    module.samples = SAMPLES.__getitem__
    return module


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [socket.getsockname()[1] for socket in sockets]
    for opened in sockets:
        opened.close()
    return ports


def work(target, folder, rank):
    sys.meta_path.insert(0, StandIn(UNUSED.get(target, ())))
    RECIPE.update(json.loads((folder / "recipe.json").read_text()))
    if target == "flower":
        sys.modules["task"] = task()
    (file,) = islice(folder.glob("*.py"), 1)
    globals()[target](folder, rank, runpy.run_path(str(file)))


def environments(target):
    """Return the variables of each process: what the framework's launcher sets."""
    if target == "flower":
        return [{}]
    first, second = free_ports(2)
    both = range(WORKERS)
    if target == "accelerate":
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": first, "WORLD_SIZE": WORKERS}
        return [common | {"RANK": rank, "LOCAL_RANK": rank} for rank in both]
    if target == "paddle":
        ends = [f"127.0.0.1:{port}" for port in (first, second)]
        common = {"PADDLE_TRAINERS_NUM": WORKERS, "PADDLE_TRAINER_ENDPOINTS": ",".join(ends)}
        common["PADDLE_DISTRI_BACKEND"] = "gloo"
        common["PADDLE_MASTER"] = f"127.0.0.1:{free_ports(1)[0]}"
        return [
            common | {"PADDLE_TRAINER_ID": rank, "PADDLE_CURRENT_ENDPOINT": ends[rank]}
            for rank in both
        ]
    return [{}] * WORKERS


def launch(target, folder):
    """Start both workers, and a lighthouse where they need one; exit with the worst status."""
    shared, lighthouse = {}, None
    if target in ("torchft", "torchtitan"):
        sys.meta_path.insert(0, StandIn(UNUSED[target]))
        from torchft._torchft import LighthouseServer

        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=WORKERS)
        port = lighthouse.address().rpartition(":")[2]
        shared["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
    command = [sys.executable, __file__, target, str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(rank)],
            env=os.environ | {k: str(v) for k, v in (shared | environment).items()},
        )
        for rank, environment in enumerate(environments(target))
    ]
    status = max(abs(process.wait()) for process in started)
    if lighthouse:
        lighthouse.shutdown()
    sys.exit(status)


if __name__ == "__main__":
    target, folder = sys.argv[1], Path(sys.argv[2])
    if len(sys.argv) > 3:
        work(target, folder, int(sys.argv[3]))
        os._exit(0)  # threads of gloo, still there, may abort a process that ends
    else:
        launch(target, folder)
