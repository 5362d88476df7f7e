"""What each framework runs as Paceline does, what it does not, and where its source says so.

`TARGETS` is the one table: per program, the parameters that have a counterpart and the values that
these may have. A parameter that it does not list is refused, so a new one is never dropped. Lines
are those of the versions named.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.deploy.emit.picked import Pick
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.pieces.schedule import FixedPeriod


def kind(piece: Any) -> str:
    """Return a transform's or a codec's name; momentum of zero is none."""
    return "identity" if getattr(piece, "mu", None) == 0 else str(getattr(piece, "kind", piece))


@dataclass(frozen=True)
class Only:
    """The values of a parameter that a target runs as Paceline does, and `why` no others."""

    fits: Callable[[Any, Pick], bool]
    why: str


@dataclass(frozen=True)
class Target:
    """A framework: `files` to write, by name, from templates.

    `optimizers`: its constructors by transform. `programs`: what it runs, with the values that each
    parameter may have. `differs`: why it does not run another, by program or family.
    """

    version: str
    files: Mapping[str, str]
    optimizers: Mapping[str, str]
    programs: Mapping[str, dict[str, Only]]
    differs: Mapping[str, str] = field(default_factory=dict)

    def problems(self, pick: Pick) -> Iterator[str]:
        """Say what of a pick the target would run otherwise, or not at all."""
        algorithm, scenario = pick.algorithm, pick.scenario
        name, policy = algorithm.name, scenario.under(algorithm).recovery
        if name not in self.programs:
            family = catalogue()[name].family
            yield f"{name}: {self.differs.get(name) or self.differs[family]}"
            return
        if scenario.cluster.sampling is not None:
            yield "cluster.sampling: a framework draws other clients than Paceline"
        if policy.policy in ("backup", "quorum") or policy.backup:
            yield f'recovery.policy = "{policy.policy}": its means wait for all workers'
        for key, value in algorithm.parameters.items():
            only = self.programs[name].get(key, NOTHING)
            if not only.fits(value, pick):
                shown = algorithm.written.get(key, kind(value))
                yield f"{key} = {shown}: {only.why}"


def _kinds(*names: str, why: str) -> Only:
    return Only(lambda value, _: kind(value) in names, why)


def _is(wanted: Any, why: str) -> Only:
    return Only(lambda value, _: value == wanted, why)


NOTHING = Only(lambda value, _: False, "has no counterpart")
ANY = Only(lambda value, _: True, "")
NUMBER = Only(lambda value, _: isinstance(value, FixedPeriod), "its period is one number")
KEPT = "the state of the local optimizer lives on when models are averaged, Paceline clears it"
LOCAL = ("identity", "momentum", "nesterov", "adamw")
LOOP = _kinds(*LOCAL, why="is no local optimizer there")
RATES = ("constant", "steps", "piecewise", "linear", "warmup-cosine")
RATE = Only(lambda value, _: getattr(value, "schedule", "") in RATES, "is no known schedule")
DDP_RAW = _kinds(
    "raw",
    why="DistributedDataParallel's fp16 divides before it adds up, its PowerSGD starts late, and "
    "it has no others (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py:71)",
)
DDP = {"lr": RATE, "momentum": LOOP, "codec": DDP_RAW}
BUCKETED = DDP | {
    "overlap": _is(True, "DistributedDataParallel always overlaps averages with computing"),
    "buckets": Only(
        lambda value, pick: value == pick.scenario.model.buckets,
        "DistributedDataParallel cuts by bytes (bucket_cap_mb); give [model] its tensors",
    ),
}


def _rounds(codec: str, **own: Only) -> dict[str, Only]:
    """Return the parameters of local steps between averages; `codec`: why there is none."""
    return {"lr": RATE, "momentum": LOOP, "tau": NUMBER, "codec": _kinds("raw", why=codec), **own}


def _plain(why: str) -> dict[str, Only]:
    """Return the parameters of an outer step that is none but the mean."""
    return {"outer": _kinds("identity", why=why), "outer_lr": _is(1.0, why)}


TORCH = {
    "identity": "torch.optim.SGD({of}, lr={lr})",
    "momentum": "torch.optim.SGD({of}, lr={lr}, momentum={mu})",
    "nesterov": "torch.optim.SGD({of}, lr={lr}, momentum={mu}, nesterov=True)",
    "adamw": "torch.optim.AdamW(\n        {of}, lr={lr}, betas=({beta1}, {beta2}), eps={epsilon}, "
    "weight_decay={weight_decay}\n    )",
}
TITAN = {
    "adamw": 'optimizer_name="AdamW",\n        optimizer_kwargs={{"lr": {lr}, "betas": ({beta1}, '
    '{beta2}), "eps": {epsilon}, "weight_decay": {weight_decay}}},'
}
PADDLE = {
    "identity": "paddle.optimizer.SGD({lr}, parameters={of})",
    "momentum": "paddle.optimizer.Momentum({lr}, {mu}, parameters={of})",
    "nesterov": "paddle.optimizer.Momentum({lr}, {mu}, parameters={of}, use_nesterov=True)",
    "adamw": "paddle.optimizer.AdamW(\n        {lr}, {beta1}, {beta2}, {epsilon}, parameters={of}, "
    "weight_decay={weight_decay}\n    )",
}

ACCELERATE_MEAN = (
    "its LocalSGD puts the plain mean in place of the model (accelerate/local_sgd.py:107)"
)
ACCELERATE = Target(
    version="accelerate 1.15.0",
    files={"train_accelerate.py": "accelerate.py.j2"},
    optimizers=TORCH,
    programs={
        "ssgd": DDP,
        "ssgd-bucketed": BUCKETED,
        "local-sgd": _rounds(ACCELERATE_MEAN, **_plain(ACCELERATE_MEAN)),
        "post-local-sgd": _rounds(ACCELERATE_MEAN, switch_step=ANY),
    },
    differs={
        "adacomm": "its LocalSGD takes its period once, at first (accelerate/local_sgd.py:86)",
        "fedavg": "its means do not weigh workers by their samples (accelerate/local_sgd.py:107)",
        "psgd": "its LocalSGD averages at the end (accelerate/local_sgd.py:51)",
        "blocking": ACCELERATE_MEAN,
        "overlapped": "its LocalSGD waits for every mean (accelerate/local_sgd.py:104)",
        "server": "it has no parameter server (accelerate/local_sgd.py, accelerator.py)",
        "gossip": "its means are over all processes (accelerate/local_sgd.py:107)",
    },
)

FP8 = (
    "it compresses to fp8 only, with Triton, and rounds again after adding up "
    "(torchft/manager.py:458, collectives.py:383)"
)
FT_RAW = _kinds("raw", why=FP8)
ONE_IN_FLIGHT = (
    "one fragment only is in flight (torchft/local_sgd.py:629): it must be below tau / fragments"
)
OUTER = {"outer_lr": ANY, "outer_momentum": ANY, "codec": FT_RAW}
TORCHFT = Target(
    version="torchft 0.2.0",
    files={"train_torchft.py": "torchft.py.j2"},
    optimizers=TORCH,
    programs={
        "ssgd": DDP | {"codec": FT_RAW},
        "local-sgd": _rounds(
            FP8, outer=_kinds(*LOCAL, why="is no outer optimizer of torch"), outer_lr=ANY
        ),
        "post-local-sgd": _rounds(FP8, switch_step=ANY),
        "diloco": {"lr": RATE, "inner": LOOP, "tau": NUMBER, **OUTER},
        "streaming-diloco": {
            "lr": RATE,
            "inner": LOOP,
            "tau": ANY,
            "fragments": Only(
                lambda value, pick: pick.algorithm.parameters["tau"] % value == 0,
                "tau must be a multiple of it (torchft/local_sgd.py:625)",
            ),
            "overlap": Only(
                lambda value, pick: (
                    value
                    < pick.algorithm.parameters["tau"] // pick.algorithm.parameters["fragments"]
                ),
                ONE_IN_FLIGHT,
            ),
            "alpha": ANY,
            **OUTER,
        },
    },
    differs={
        "ssgd-bucketed": "its DistributedDataParallel waits for each bucket's mean in the hook "
        "that starts it (torchft/ddp.py:70): its overlap does not overlap",
        "adacomm": "sync_every is set once (torchft/local_sgd.py:82)",
        "fedavg": "its means do not weigh workers by their samples (torchft/manager.py:478)",
        "psgd": "it always averages (torchft/local_sgd.py:126)",
        "blocking": "it has LocalSGD and DiLoCo (torchft/local_sgd.py:45, 563), no other rule",
        "overlapped": "a mean must be applied before its fragment's next one starts (torchft/"
        "local_sgd.py:629), here one is applied a round late",
        "decoupled-diloco": "its means wait for all workers of a quorum (torchft/local_sgd.py:764)",
        "server": "its parameter server is a demonstration without updates (torchft/"
        "parameter_server.py)",
        "gossip": "its means are over all workers (torchft/manager.py:468)",
    },
)

TITAN_FT = "torchtitan/experiments/torchft"
TITAN_OPTIMIZERS = "torchtitan/components/optimizer/optimizer.py:144"
FIXED = f"its outer optimizer is SGD, lr 0.7, Nesterov's momentum 0.9 ({TITAN_FT}/manager.py:204)"
TITAN_ADAM = _kinds("adamw", why=f"its optimizers are Adam, AdamW, DistMuon ({TITAN_OPTIMIZERS})")
TITAN_DILOCO = {
    "lr": Only(lambda value, _: value.schedule == "constant", "its schedules are others"),
    "inner": TITAN_ADAM,
    "outer_lr": _is(0.7, FIXED),
    "outer_momentum": _is(0.9, FIXED),
}
TORCHTITAN = Target(
    version="torchtitan 0.3.0",
    files={"torchtitan_pick.py": "torchtitan.py.j2"},
    optimizers=TITAN,
    programs={
        "diloco": TORCHFT.programs["diloco"] | TITAN_DILOCO,
        "streaming-diloco": TORCHFT.programs["streaming-diloco"]
        | TITAN_DILOCO
        | {
            "overlap": _is(
                0,
                "its fragments start so many steps before Paceline's (torchft/local_sgd.py:759), "
                f"as it enters DiLoCo before the first step ({TITAN_FT}/trainer.py:529)",
            )
        },
    },
    differs={
        "ssgd": "it divides by the tokens of all workers: the mean of gradients only where workers "
        f"have equally many ({TITAN_FT}/trainer.py:413)",
        "local-sgd": f"{KEPT} (torchft/local_sgd.py:137), and all its optimizers have one "
        f"({TITAN_OPTIMIZERS})",
        "adacomm": f"sync_steps is set once ({TITAN_FT}/config/job_config.py:20)",
        "blocking": f"it has DiLoCo and LocalSGD, no other rule ({TITAN_FT}/manager.py:193)",
        "overlapped": "a mean is applied in the round that starts it (torchft/local_sgd.py:629)",
        "server": "it has no parameter server",
        "gossip": "its means are over all replicas (torchft/local_sgd.py:168)",
    },
)

PADDLE_LOCAL = "paddle/distributed/fleet/meta_optimizers/localsgd_optimizer.py"
PADDLE_RAW = "DataParallel and all_reduce send values as they are"
PADDLE_MEAN = f"LocalSGD takes the plain mean ({PADDLE_LOCAL}:186)"
PADDLEPADDLE = Target(
    version="paddlepaddle 3.3.1",
    files={"train_paddle.py": "paddle.py.j2"},
    optimizers=PADDLE,
    programs={
        "ssgd": DDP | {"codec": _kinds("raw", why=PADDLE_RAW)},
        "local-sgd": _rounds(PADDLE_RAW, **_plain(PADDLE_MEAN)),
        "post-local-sgd": _rounds(PADDLE_RAW, switch_step=ANY),
    },
    differs={
        "adacomm": "at each average AdaptiveLocalSGD takes ceil(sqrt(tau0 F lr0 / (F0 lr))), up to "
        f"16 ({PADDLE_LOCAL}:462, 472); AdaComm ceil(tau0 sqrt(...)) at every interval of time",
        "fedavg": f"LocalSGD divides by the number of workers ({PADDLE_LOCAL}:186)",
        "psgd": "DataParallel and LocalSGD both average",
        "blocking": f"it has LocalSGD and AdaptiveLocalSGD, no other rule ({PADDLE_LOCAL}:28, 213)",
        "overlapped": f"LocalSGD waits for every mean ({PADDLE_LOCAL}:171)",
        "server": "its parameter server has update rules of its own (paddle/distributed/ps)",
        "gossip": "its means are over all workers",
    },
)

FEDOPT = (
    "second moments start at 0, not at epsilon^2, and FedAdam corrects the bias by round + 1 "
    "(flwr/serverapp/strategy/fedadam.py:153, 163, fedyogi.py:153, fedadagrad.py:147)"
)
FLOWER_SERVER = Only(
    lambda value, _: kind(value) in ("identity", "momentum"),
    f"FedAvgM has no Nesterov (flwr/serverapp/strategy/fedavgm.py:179); {FEDOPT}",
)
FLOWER_LOCAL = _rounds(
    "arrays travel whole (flwr/serverapp/strategy/fedavg.py:183)", outer=FLOWER_SERVER, outer_lr=ANY
)
FLOWER = Target(
    version="flwr 1.42.0",
    files={"flower_app.py": "flower_app.py.j2", "pyproject.toml": "flower.toml.j2"},
    optimizers=TORCH,
    programs={"local-sgd": FLOWER_LOCAL, "fedavg": FLOWER_LOCAL | {"mu": ANY}},
    differs={
        "diloco": "a client begins each round anew, DiLoCo keeps AdamW's moments; FedAvgM has no "
        "Nesterov (flwr/serverapp/strategy/fedavgm.py:179)",
        "ssgd": "clients send models, not gradients (flwr/serverapp/strategy/fedavg.py:262)",
        "fedbuff": "it has no FedBuff (flwr/serverapp/strategy/)",
        "adacomm": "no strategy adapts the number of local steps (flwr/serverapp/strategy/)",
        "blocking": "no strategy does that (flwr/serverapp/strategy/)",
        "overlapped": "the server waits for all replies of a round, clients for the next (flwr/"
        "serverapp/strategy/strategy.py:211)",
        "server": "its strategies have rounds: the server waits for all replies (flwr/serverapp/"
        "strategy/strategy.py:211)",
        "gossip": "clients talk to the server only",
    },
)

TARGETS = {
    "torchft": TORCHFT,
    "torchtitan": TORCHTITAN,
    "accelerate": ACCELERATE,
    "paddle": PADDLEPADDLE,
    "flower": FLOWER,
}

RATE_CODE = {
    "constant": "{value}",
    "steps": "{start} * {factor} ** bisect_left({at}, step)",
    "piecewise": "{values}[bisect_left({at}, step)]",
    "linear": "{end} if step >= {steps} else {start} + ({end} - {start}) * step / {steps}",
    "warmup-cosine": "(\n        {end}\n        if step >= {steps}\n"
    "        else {start} + ({peak} - {start}) * step / {warmup}\n        if step < {warmup}\n"
    "        else {peak} - ({peak} - {end}) * "
    "sin(pi / 2 * (step - {warmup}) / ({steps} - {warmup})) ** 2\n    )",
}
"""The expression of each schedule, as `pieces/schedule.py` has it."""
