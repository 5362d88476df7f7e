"""The tables of scenario.toml as typed, frozen models: SI units inside, the TOML's own key names.

Field descriptions become the JSON Schema's, and editors show them.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    PlainValidator,
    Strict,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from ..inputs import untrusted
from ..inputs.units import FlopsPerSecond, Money, Tolerance
from ..programs.pieces.schedule import Rate
from ..programs.pieces.transform import TransformOf
from .fields import (
    LEAST,
    MOST,
    Count,
    Duration,
    Many,
    Name,
    NonNegative,
    Positive,
    Section,
    located,
    optional,
)

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes from which a bucket is full (PyTorch 2.13, torch/csrc/distributed/c10d/reducer.hpp:
kDefaultFirstBucketBytes, kDefaultBucketBytesCap)."""
IS_TABLE = Discriminator(lambda value: "table" if isinstance(value, dict | Section) else "other")
"""Chooses between a table and a value of another kind."""


def _checked(kind: Any) -> tuple[Any, Any]:
    """Check a value as a parameter, and keep it as written, for each program to parse."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def check(value: Any) -> Any:
        adapter.validate_python(value)
        return value

    return PlainValidator(check), WithJsonSchema(adapter.json_schema())


_check, _schema = _checked(Rate)
OfTheorem = Annotated[float, Field(ge=LEAST, le=MOST)]
LearningRate = Annotated[float | dict[str, Any], _check, _schema]
_check, _schema = _checked(TransformOf)
LocalMomentum = Annotated[float | dict[str, Any], _check, _schema]
Tensor = Annotated[int, Field(ge=1, le=10**15)]
Tensors = Annotated[
    Annotated[Many[Tensor], Field(min_length=1, max_length=100_000), Tag("sizes")]
    | Annotated[Literal["resnet50", "bert-base", "gpt2"], Tag("a model")],
    Discriminator(lambda value: "a model" if isinstance(value, str) else "sizes"),
]


@cache
def presets() -> dict[str, list[int]]:
    """Return the parameters of each tensor of well-known models, by name."""
    text = untrusted.text(Path(__file__).with_name("tensors.toml"))
    return untrusted.toml(text, untrusted.DEEPEST)


def sizes(tensors: Any) -> list[Any]:
    """Return the parameters of each tensor, of a list or of a preset by name."""
    if isinstance(tensors, str):
        return presets().get(tensors, [])
    return [*tensors] if isinstance(tensors, list | tuple) else []


def ddp_buckets(tensors: Iterable[int], bytes_per_parameter: float) -> tuple[int, ...]:
    """Return the parameters of each bucket, the first to be averaged first.

    Tensors are taken in the order of their gradients, the last first; a bucket is full with the
    tensor that reaches its limit (reducer.cpp, compute_bucket_assignment_by_size).
    """
    buckets, limit = [0], FIRST_BUCKET
    for size in reversed(tuple(tensors)):
        buckets[-1] += size
        if buckets[-1] * bytes_per_parameter >= limit:
            buckets.append(0)
            limit = BUCKET
    return tuple(size for size in buckets if size)


class Model(Section):
    """The model, whose size on the network is parameters x bytes_per_parameter."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required"))

    parameters: Tensor = Field(description="of the model; left out: the sum of its tensors")
    bytes_per_parameter: Positive = optional("bytes sent per parameter", 4.0)
    tensors: Tensors | None = optional(
        "parameters of each tensor, in the order of the model, or the name of a model; "
        "the buckets of DistributedDataParallel follow from them"
    )

    @model_validator(mode="before")
    @classmethod
    def _add_up(cls, table: Any) -> Any:
        """Take the number of parameters from the tensors where it is left out."""
        if not isinstance(table, dict) or "parameters" in table:
            return table
        tensors = sizes(table.get("tensors"))
        whole = bool(tensors) and all(type(size) is int for size in tensors)
        return table | {"parameters": sum(tensors)} if whole else table

    @model_validator(mode="after")
    def _agree(self) -> Self:
        total = sum(self.sizes)
        if self.tensors is not None and total != self.parameters:
            raise ValueError(
                f"tensors have {total:,} parameters, and `parameters` says {self.parameters:,}; "
                "remove `parameters`, or for a model of another size give its own `tensors`"
            )
        return self

    @property
    def sizes(self) -> list[int]:
        """Parameters of each tensor, in order; empty: unknown."""
        return sizes(self.tensors)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Parameters of each bucket of DistributedDataParallel, in order; empty: unknown."""
        return ddp_buckets(self.sizes, self.bytes_per_parameter)

    @property
    def bytes(self) -> float:
        """Size of one whole model or gradient, in bytes."""
        return self.parameters * self.bytes_per_parameter


class Bound(Section):
    """Predict the error by AdaComm's Theorem 2 (Wang & Joshi, arXiv 1810.08313)."""

    kind: Literal["bound"]
    initial_gap: OfTheorem = Field(description="F(x1) - Finf: largest decrease of the loss")
    smoothness: OfTheorem = Field(description="L: Lipschitz constant of the gradient")
    gradient_variance: float = Field(ge=0, le=MOST, description="sigma^2 of a mini-batch gradient")


class Power(Section):
    """Eigenvalues of the quadratic: i^-exponent, i = 1 ... dimension."""

    kind: Literal["power"] = "power"
    exponent: NonNegative = optional("decay of the eigenvalues", 1.0)


class Heterogeneity(Section):
    """Spread of the workers' curvatures about a mean, which is the spectrum."""

    share: float = Field(
        ge=0, lt=1, description="share of its speed that local training loses in the long run"
    )
    curvature: Positive = Field(description="curvature of that: after 1 / (lr curvature) steps")


class Quadratic(Section):
    """A noisy quadratic whose optimum and curvature may differ between workers (non-IID data)."""

    kind: Literal["quadratic"]
    dimension: int = optional("number of coordinates", 100, ge=1, le=10**7)
    spectrum: Power = optional("eigenvalues of the Hessian", Power())
    noise: NonNegative = optional("sigma: root of E||g - grad F||^2", 1.0)
    shift: NonNegative = optional("spread of the workers' optima (non-IID)", 0.0)
    heterogeneity: Heterogeneity | None = optional("spread of the workers' curvatures (non-IID)")
    initial_gap: Positive = optional("loss at the start, above the optimum", 1.0)
    floor: NonNegative = optional("loss at the optimum", 0.0)


class Dirichlet(Section):
    """Label shares drawn per worker from a Dirichlet distribution."""

    dirichlet: Positive = Field(description="concentration; small is very uneven")
    seed: int | None = optional("deals the same data in every run; left out: a run's seed", ge=0)


def _iid(value: Any) -> Any:
    if value != "iid":
        raise ValueError('unknown; write "iid" or { dirichlet = 0.3 }')
    return value


Partition = Annotated[
    Annotated[Literal["iid"], BeforeValidator(_iid), Tag("other")]
    | Annotated[Dirichlet, Tag("table")],
    IS_TABLE,
    Field(
        description='partition of the data among workers: "iid" or { dirichlet = 0.3 }',
        examples=["iid", {"dirichlet": 0.3}],
    ),
]


class Softmax(Section):
    """Softmax regression on real data, or a network with a hidden layer, in NumPy."""

    kind: Literal["softmax"]
    data: Literal["digits", "random-classification"] = Field(description="data set")
    hidden: int = optional("rectified linear units of a hidden layer; 0: none", 0, ge=0, le=4096)
    batch: Count = optional("mini-batch per worker and step, samples", 32)
    partition: Partition = "iid"


def _located(value: str, info: ValidationInfo) -> str:
    return str(located(value, info).absolute())


Folder = Annotated[str, Field(min_length=1), AfterValidator(_located)]
"""A folder as a scenario names it, relative to its own; absolute from then on."""


class Torch(Section):
    """Real gradients of a PyTorch model in virtual time."""

    kind: Literal["torch"]
    model: Name = Field(
        description="mlp, cnn, gpt (of text), a torchvision model (resnet18, vgg16, ...), or one "
        "that an installed package offers (entry points paceline.models)"
    )
    data: Name = Field(
        description="digits, random-classification, python-text, fashion-mnist, mnist, cifar-10, "
        "cifar-100, or a set that an installed package offers (entry points paceline.datasets)"
    )
    folder: Folder | None = optional("folder of the data set's files")
    batch: Count = optional("mini-batch per worker and step, samples", 32)
    partition: Partition = "iid"
    weight_decay: NonNegative = optional("multiple of the parameters added to gradients (L2)", 0.0)
    dtype: Literal["float32", "float64"] = optional("type of parameters, gradients", "float32")
    device: Name = optional("device that computes gradients: cpu, cuda", "cpu")


class CurveOfLaw(Section):
    """The loss of data-parallel training by a published law of parameters and tokens."""

    law: Literal["chinchilla"] = Field(description="E + A / parameters^alpha + B / tokens^beta")
    parameters: float = Field(ge=10_000, description="parameters of the model that is trained")
    E: Positive | None = optional("constant of the law (nats)")
    A: Positive | None = optional("constant of the law")
    B: Positive | None = optional("constant of the law")
    alpha: Positive | None = optional("exponent of the parameters")
    beta: Positive | None = optional("exponent of the tokens")
    batch: Positive | None = optional("tokens per step that it speaks of; left out: one worker's")


class CurveOfFile(Section):
    """The loss of a run that the user made: its log, to which floor and power law are fitted."""

    file: Folder = Field(description="log of steps or tokens against loss")
    workers: Count = optional("workers of that run", 1)
    tokens: Positive | None = optional("tokens per worker and step of that run; left out: as here")
    warmup: NonNegative | None = optional(
        "steps of its warm-up, left out of the fit; left out: as the log shows"
    )
    parameters: Positive | None = optional("of the model trained; left out: as in [model]")
    lr: Positive | None = optional("its rate of SGD, beside which programs keep theirs; else tuned")
    columns: dict[Literal["tokens", "step", "loss", "run"], Name] = optional(
        "columns of the log by quantity, where their names do not say it", {}
    )


def _curve(value: Any) -> str:
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", ())
    return "a file" if "file" in keys else "a law"


Log = Annotated[float, Field(ge=-10, le=10)]


class LocalRun(Section):
    """What a run of the user's own with local steps has shown of their cost in loss."""

    algorithm: Name = Field(description="program of that run")
    workers: Count = Field(description="its workers")
    tau: Positive = Field(description="its communication period, in steps")
    parameters: Positive | None = optional("of the model trained; left out: as in [model]")
    log_ratio: Log | None = optional("log of its loss over data-parallel training's, same tokens")
    log_steps: Log | None = optional(
        "in its place: log of its steps after the warm-up over those to as low a loss of "
        "data-parallel training with as many workers"
    )
    sd: NonNegative = Field(description="standard deviation of that")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.log_ratio is None) == (self.log_steps is None):
            raise ValueError("write either log_ratio or log_steps")
        return self


def _span(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("out of order; write the lower end first")
    return value


Ends = Annotated[tuple[Positive, Positive], Strict(False), AfterValidator(_span)]
NoiseScale = Annotated[
    Annotated[Positive, Tag("a number")] | Annotated[Ends, Tag("a range")],
    Discriminator(lambda value: "a range" if isinstance(value, list | tuple) else "a number"),
]


class LearningCurve(Section):
    """The loss of the user's model: a baseline's curve, and what each algorithm costs beside it."""

    kind: Literal["learning-curve"]
    curve: Annotated[
        Annotated[CurveOfLaw, Tag("a law")] | Annotated[CurveOfFile, Tag("a file")],
        Discriminator(_curve),
    ] = Field(description="loss of a data-parallel baseline: a published law, or a log")
    tokens: Positive = Field(description="tokens (or samples) per worker and step")
    noise_scale: NoiseScale | None = optional(
        "critical batch, in tokens: a number or a range; left out: a published law's"
    )
    penalty: Many[Literal["published", "measured"]] = optional(
        "evidence of what local steps cost, beside the mechanism", ("published", "measured")
    )
    own: Many[LocalRun] = optional("the user's own runs with local steps", ())


class NoObjective(Section):
    """Time only."""

    kind: Literal["none"]


NO_OBJECTIVE = NoObjective(kind="none")

Objective = Annotated[
    Bound | Quadratic | Softmax | Torch | LearningCurve | NoObjective, Field(discriminator="kind")
]


class Optimizer(Section):
    """Defaults of every algorithm; its own table overrides them."""

    lr: LearningRate | None = optional("learning rate, or its schedule")
    momentum: LocalMomentum = optional("momentum, or another transform of gradients", 0.0)


class Cap(Section):
    """The rarest and the latest communication that a search may choose without a loss to see."""

    tau: Count = Field(description="most steps between two averages or exchanges of a worker")
    delay: int = Field(ge=0, le=10**9, description="most steps of a late gradient or average")


class RunSettings(Section):
    """Length, repetitions and evaluations of a run."""

    steps: Count | None = optional("number of local steps after which the run stops")
    tokens: Positive | None = optional(
        "in place of steps: tokens, of `objective.tokens` in each worker's step, that all workers "
        "together train on"
    )
    duration: Duration | None = optional("time after which the run stops")
    target_loss: Positive | None = optional("the loss to reach")
    seeds: int = optional("number of repetitions", 1, ge=1, le=10**6)
    evaluate_every: Count | None = optional(
        "steps between evaluations; left out: for 200 to 400 points, after whole rounds where "
        "clients are sampled"
    )
    sampling: Literal["keyed", "aggregate"] = optional(
        "compute times drawn step by step, the same under every algorithm, or as sums "
        "over the steps between communications, where their law is known; likewise local steps on "
        "a quadratic",
        "keyed",
    )
    timeline_spans: int = optional("longest timeline kept, in spans", 5000, ge=0, le=10**8)
    cap: Cap | None = optional("what `paceline tune` may choose for the fewest seconds per step")


class Theory(Section):
    """Rows of the tables of `paceline theory`."""

    periods: Many[Count] = optional("communication periods tau, in steps", (1, 2, 4, 8, 16, 32, 64))
    durations: Many[Duration] = optional("wall-clock times", ())
    interval: Duration | None = optional("interval (T0) to choose the best period for, in turn")


class ValidationSettings(Section):
    """Settings of real runs (`paceline validate`)."""

    compute: Literal["stretched", "real"] = optional(
        "a step lasts as [cluster] prescribes, or as long as it takes on this machine", "stretched"
    )
    network: Literal["emulated", "kernel", "real"] = optional(
        "delays of [network] added to real collectives and messages; packets delayed "
        "between a network namespace for each worker; or the network as it is",
        "emulated",
    )
    seeds: Count = optional("real runs of each algorithm, a seed each", 1)
    warm_up: Count = optional("gradients that each worker computes beforehand", 3)
    timeout: Duration = optional(
        "longest wait in a collective, or for a message",
        120.0,
        ge=1,
        json_schema_extra={"default": "120 s"},
    )


Currency = Annotated[str, Field(min_length=1, max_length=16)]
Flops = Annotated[FlopsPerSecond, Field(gt=0)]


class Prices(Section):
    """Prices, in any one currency, and what tokens and utilisation follow from."""

    currency: Currency | None = optional('currency of the prices, such as "USD"')
    node_hour: NonNegative | None = optional("one worker, with all its devices, for one hour")
    device_hour: NonNegative | None = optional("one device (a worker, or one of its several), 1 h")
    egress_per_gb: NonNegative | None = optional("10^9 bytes leaving a region")
    budget: Positive | None = optional("price up to which `paceline tune` may train")
    tokens: Positive | None = optional("tokens per worker and step, where [objective] has none")
    flops: Flops | None = optional("peak of one device, of which utilisation (MFU) is a share")
    flops_per_token: Positive | None = optional("of training; left out: 6 per parameter")

    @property
    def priced(self) -> bool:
        """Whether anything has a price: a cost that is not known is not a cost of zero."""
        return (self.node_hour, self.device_hour, self.egress_per_gb) != (None, None, None)


_finite: TypeAdapter[float] = TypeAdapter(Annotated[FiniteFloat, Strict()])


def _number(value: Any) -> Any:
    """Keep an int an int: a range of whole numbers is tried at whole numbers."""
    _finite.validate_python(value)
    return value


Number = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]


class Range(Section):
    """Every value from low to high."""

    low: Number = Field(description="smallest value to try")
    high: Number = Field(description="largest value to try")
    log: bool = optional("spread the trials evenly in the logarithm", False)

    @property
    def whole(self) -> bool:
        """Whether the range is one of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Choice = Annotated[
    Annotated[tuple[Any, ...], Strict(False), Field(min_length=1), Tag("other")]
    | Annotated[Range, Tag("table")],
    IS_TABLE,
]


class Tune(Section):
    """What `paceline tune` may try, and how it weighs time, money and loss.

    Every other key is a program, with the values of its parameters.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Choice]]

    sites: Many[Count] = optional(
        "numbers of sites to train on, the first as written: the regions of the workers, else "
        "their groups, else single workers",
        (),
    )
    groups: Many[Annotated[Many[Name], Field(min_length=1)]] = optional(
        "groups of workers to train on, by name", ()
    )
    workers: Annotated[
        Annotated[Many[Count], Tag("other")]
        | Annotated[dict[Name, Annotated[Many[Count], Field(min_length=1)]], Tag("table")],
        IS_TABLE,
    ] = optional("numbers of workers to train on, the first as written, in all or by group", ())
    global_batch: Literal["constant", "per worker"] = optional(
        "with fewer workers each has a larger batch, in as much more time, or the same", "constant"
    )
    day_worth: Money | None = optional(
        'worth of a day, such as "2000 USD": the least money and time are best'
    )
    max_loss: Tolerance | None = optional(
        'most that the loss may be above data-parallel training, such as "+0.5 %"'
    )

    @property
    def programs(self) -> dict[str, dict[str, Any]]:
        """Values to try, by program and parameter."""
        return self.__pydantic_extra__

    @property
    def parts(self) -> bool:
        """Whether parts of the cluster are tried."""
        return bool(self.sites or self.groups or self.workers)
