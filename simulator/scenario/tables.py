"""Define the tables of scenario.toml as typed, frozen models in SI units.

The JSON Schema contains the fields' descriptions, and editors show them.
"""

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
"""Bytes at which a bucket is full (PyTorch 2.13, torch/csrc/distributed/c10d/reducer.hpp:
kDefaultFirstBucketBytes, kDefaultBucketBytesCap)."""
IS_TABLE = Discriminator(lambda value: "table" if isinstance(value, dict | Section) else "other")
"""Discriminator between a table and a value of another kind."""


def _checked(kind: Any) -> tuple[Any, Any]:
    """Check a value as a parameter, but keep it as written, because programs parse it."""
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


def sizes(tensors: Any) -> list[Any]:
    """Return the number of parameters per tensor, from a list or the name of a known model."""
    if isinstance(tensors, str):
        named: list[int] = untrusted.packaged(__file__, "tensors.toml").get(tensors, [])
        return named
    return [*tensors] if isinstance(tensors, list | tuple) else []


class Model(Section):
    """The model; its size on the network is parameters x bytes_per_parameter."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required"))

    parameters: Tensor = Field(description="number of parameters; left out: the sum of the tensors")
    bytes_per_parameter: Positive = optional("bytes sent per parameter", 4.0)
    tensors: Tensors | None = optional(
        "number of parameters per tensor, in the order of the model, or the name of a model; "
        "they determine the buckets of DistributedDataParallel"
    )

    @model_validator(mode="before")
    @classmethod
    def _add_up(cls, table: Any) -> Any:
        """Compute a missing number of parameters from the tensors."""
        if not isinstance(table, dict) or "parameters" in table:
            return table
        tensors = sizes(table.get("tensors"))
        complete = bool(tensors) and all(type(size) is int for size in tensors)
        return table | {"parameters": sum(tensors)} if complete else table

    @model_validator(mode="after")
    def _agree(self) -> Self:
        total = sum(self.sizes)
        if self.tensors is not None and total != self.parameters:
            raise ValueError(
                f"tensors have {total:,} parameters, and `parameters` says {self.parameters:,}; "
                "remove `parameters`, or write the `tensors` of that model"
            )
        return self

    @property
    def sizes(self) -> list[int]:
        """Parameters of each tensor, in order; empty: unknown."""
        return sizes(self.tensors)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Parameters per DistributedDataParallel bucket, in the order of averaging; empty: unknown.

        Tensors are taken in the order of their gradients, from the last to the first. The tensor
        that reaches a bucket's limit is its last one (compute_bucket_assignment_by_size).
        """
        buckets, limit = [0], FIRST_BUCKET
        for size in reversed(self.sizes):
            buckets[-1] += size
            if buckets[-1] * self.bytes_per_parameter >= limit:
                buckets.append(0)
                limit = BUCKET
        return tuple(size for size in buckets if size)

    @property
    def bytes(self) -> float:
        """Size of a whole model or gradient in bytes."""
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
    """Spread of the workers' curvatures around their mean, the spectrum."""

    share: float = Field(
        ge=0, lt=1, description="share of its speed that local training loses in the long run"
    )
    curvature: Positive = Field(description="it sets in after 1 / (lr curvature) steps")


class Quadratic(Section):
    """A noisy quadratic; optimum and curvature may differ between workers (non-IID)."""

    kind: Literal["quadratic"]
    dimension: int = optional("number of coordinates", 100, ge=1, le=10**7)
    spectrum: Power = optional("eigenvalues of the Hessian", Power())
    noise: NonNegative = optional("sigma: root of E||g - grad F||^2", 1.0)
    shift: NonNegative = optional("spread of the workers' optima (non-IID)", 0.0)
    heterogeneity: Heterogeneity | None = optional("spread of the workers' curvatures (non-IID)")
    initial_gap: Positive = optional("loss at the start, above the optimum", 1.0)
    floor: NonNegative = optional("loss at the optimum", 0.0)


class Dirichlet(Section):
    """Shares of the labels, drawn for every worker from a Dirichlet distribution."""

    dirichlet: Positive = Field(description="concentration; small values are very uneven")
    seed: int | None = optional("seed of the partition; left out: the run's seed", ge=0)


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
    hidden: int = optional("rectified linear units in a hidden layer, or 0", 0, ge=0, le=4096)
    batch: Count = optional("samples per worker and step (mini-batch)", 32)
    partition: Partition = "iid"
    epochs: bool = optional("each sample once an epoch, in a new order; false: drawn anew", False)
    weight_decay: NonNegative = optional("multiple of the parameters added to gradients (L2)", 0.0)


def _located(value: str, info: ValidationInfo) -> str:
    return str(located(value, info).absolute())


Folder = Annotated[str, Field(min_length=1), AfterValidator(_located)]
"""A folder, relative to the scenario's; absolute once read."""


class Torch(Section):
    """Real gradients of a PyTorch model in virtual time."""

    kind: Literal["torch"]
    model: Name = Field(
        description="mlp, cnn, small-cnn, or a model of an installed package "
        "(entry points paceline.models)"
    )
    data: Name = Field(
        description="digits, random-classification, fashion-mnist, mnist, cifar-10, "
        "or a data set of an installed package (entry points paceline.datasets)"
    )
    folder: Folder | None = optional("folder of the data set's files")
    batch: Count = optional("samples per worker and step (mini-batch)", 32)
    partition: Partition = "iid"
    weight_decay: NonNegative = optional("multiple of the parameters added to gradients (L2)", 0.0)
    dtype: Literal["float32", "float64"] = optional("type of parameters, gradients", "float32")
    device: Name = optional("device that computes gradients: cpu, cuda", "cpu")


class CurveOfLaw(Section):
    """The loss of data-parallel training, by a published law of parameters and tokens."""

    law: Literal["chinchilla"] = Field(description="E + A / parameters^alpha + B / tokens^beta")
    parameters: float = Field(ge=10_000, description="number of parameters of the trained model")
    E: Positive | None = optional("constant of the law (nats)")
    A: Positive | None = optional("constant of the law")
    B: Positive | None = optional("constant of the law")
    alpha: Positive | None = optional("exponent of the parameters")
    beta: Positive | None = optional("exponent of the tokens")
    batch: Positive | None = optional("tokens per step in the law; left out: one worker's")


class CurveOfFile(Section):
    """The loss in a user's log, to which a floor and a power law are fitted."""

    file: Folder = Field(description="log with losses by steps or tokens")
    workers: Count = optional("number of workers in that run", 1)
    tokens: Positive | None = optional("tokens per worker and step; else objective.tokens")
    warmup: NonNegative | None = optional(
        "warm-up steps, which the fit ignores; left out: estimated from the log"
    )
    parameters: Positive | None = optional("of the trained model; left out: as in [model]")
    columns: dict[Literal["tokens", "step", "loss"], Name] = optional(
        "columns of the log by quantity, if their names are not recognised", {}
    )


def _curve(value: Any) -> str:
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", ())
    return "a file" if "file" in keys else "a law"


class LocalRun(Section):
    """The measured cost in loss of local steps, from a run of the user."""

    algorithm: Name = Field(description="program of the run")
    workers: Count = Field(description="number of workers in the run")
    tau: Positive = Field(description="communication period of the run, in steps")
    parameters: Positive | None = optional("of the trained model; left out: as in [model]")
    log_steps: Annotated[float, Field(ge=-10, le=10)] = Field(
        description="log of its steps after the warm-up, over the steps to the same loss in "
        "data-parallel training with as many workers"
    )
    sd: NonNegative = Field(description="standard deviation of that logarithm")


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
    """The loss of the user's model: a baseline's curve, and algorithms' excess."""

    kind: Literal["learning-curve"]
    curve: Annotated[
        Annotated[CurveOfLaw, Tag("a law")] | Annotated[CurveOfFile, Tag("a file")],
        Discriminator(_curve),
    ] = Field(description="loss of a data-parallel baseline: a published law, or a log")
    tokens: Positive = Field(description="tokens (or samples) per worker and step")
    noise_scale: NoiseScale | None = optional(
        "critical batch in tokens, a number or a range; left out: by a published law"
    )
    noise_tokens: Positive | None = optional(
        "tokens of the run with that critical batch, which grows slowly; left out: it is constant"
    )
    penalty: Many[Literal["published", "measured"]] = optional(
        "evidence for the cost of local steps, in addition to the mechanism",
        ("published", "measured"),
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
    """Defaults for all algorithms, whose tables may override them."""

    lr: LearningRate | None = optional("learning rate, or its schedule")
    momentum: LocalMomentum = optional("momentum, or another transform of gradients", 0.0)


class Cap(Section):
    """The rarest and latest communication that a search may choose without a loss."""

    tau: Count = Field(description="largest number of steps between two averages or exchanges")
    delay: int = Field(ge=0, le=10**9, description="largest delay of a gradient or average")


class RunSettings(Section):
    """Length, repetitions and evaluations of a run."""

    steps: Count | None = optional("number of local steps after which the run stops")
    tokens: Positive | None = optional(
        "instead of steps: the tokens that all workers together train on; a worker's step has "
        "`objective.tokens`"
    )
    duration: Duration | None = optional("time after which the run stops")
    target_loss: Positive | None = optional("loss to reach")
    seeds: int = optional("number of repetitions", 1, ge=1, le=10**6)
    evaluate_every: Count | None = optional(
        "steps between evaluations; left out: 200 to 400 evaluations, after whole rounds if "
        "clients are sampled"
    )
    sampling: Literal["keyed", "aggregate"] = optional(
        "keyed: compute times are drawn per step, equal under all algorithms; aggregate: as sums "
        "over the steps between communications, if their law is known; the same goes for local "
        "steps on a quadratic",
        "keyed",
    )
    timeline_spans: int = optional("longest timeline to store, in spans", 5000, ge=0, le=10**8)
    cap: Cap | None = optional("limits of `paceline tune` when it minimises seconds per step")


class Theory(Section):
    """Rows of the tables of `paceline theory`."""

    periods: Many[Count] = optional("communication periods tau, in steps", (1, 2, 4, 8, 16, 32, 64))
    durations: Many[Duration] = optional("wall-clock times to find the best period for", ())


class ValidationSettings(Section):
    """Settings of real runs (`paceline validate`)."""

    compute: Literal["stretched", "real"] = optional(
        "stretched: steps last as in [cluster]; real: as long as this machine takes",
        "stretched",
    )
    network: Literal["emulated", "kernel", "real"] = optional(
        "emulated: delays of [network] are added to real collectives and messages; kernel: packets "
        "are delayed between the workers' network namespaces; real: the network as it is",
        "emulated",
    )
    seeds: Count = optional("real runs per algorithm, one per seed", 1)
    warm_up: Count = optional("gradients that a worker computes before the run", 3)
    timeout: Duration = optional(
        "longest wait in a collective, or for a message",
        120.0,
        ge=1,
        json_schema_extra={"default": "120 s"},
    )


Currency = Annotated[str, Field(min_length=1, max_length=16)]
Flops = Annotated[FlopsPerSecond, Field(gt=0)]


class Prices(Section):
    """Prices in one currency, and the inputs of token counts and utilisation."""

    currency: Currency | None = optional('currency of the prices, such as "USD"')
    node_hour: NonNegative | None = optional("price of a worker, with all its devices, per hour")
    device_hour: NonNegative | None = optional("price of one device of a worker, per hour")
    egress_per_gb: NonNegative | None = optional("price of 10^9 bytes that leave a region")
    tokens: Positive | None = optional("tokens per worker and step, if [objective] has none")
    flops: Flops | None = optional("peak speed of a device, for its utilisation (MFU)")
    flops_per_token: Positive | None = optional("per token of training; left out: 6 per parameter")

    @property
    def priced(self) -> bool:
        """Whether anything has a price; without one the cost is unknown, not zero."""
        return (self.node_hour, self.device_hour, self.egress_per_gb) != (None, None, None)


_finite: TypeAdapter[float] = TypeAdapter(Annotated[FiniteFloat, Strict()])


def _number(value: Any) -> Any:
    """Check a number but keep ints, because ranges of ints are tried at ints only."""
    _finite.validate_python(value)
    return value


Number = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]


class Range(Section):
    """A range of values from low to high."""

    low: Number = Field(description="smallest value to try")
    high: Number = Field(description="largest value to try")
    log: bool = optional("spread trials evenly in the logarithm", False)

    @property
    def whole(self) -> bool:
        """Whether the range has whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Choice = Annotated[
    Annotated[tuple[Any, ...], Strict(False), Field(min_length=1), Tag("other")]
    | Annotated[Range, Tag("table")],
    IS_TABLE,
]


class Tune(Section):
    """The choices of `paceline tune`, and its weights of time, money and loss.

    Any other key names a program, with values of its parameters.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Choice]]

    sites: Many[Count] = optional(
        "numbers of sites to train on, the first in the file; a site is a region, else a group, "
        "else a worker",
        (),
    )
    groups: Many[Annotated[Many[Name], Field(min_length=1)]] = optional(
        "groups of workers to train on, by name", ()
    )
    workers: Many[Count] = optional("numbers of workers to train on, the first ones", ())
    global_batch: Literal["constant", "per worker"] = optional(
        "constant: fewer workers have larger batches; per worker: the same batches",
        "constant",
    )
    day_worth: Money | None = optional(
        'worth of a day, such as "2000 USD", to minimise the sum of money and time'
    )
    max_loss: Tolerance | None = optional(
        'largest excess of the loss over data-parallel training, such as "+0.5 %"'
    )

    @property
    def programs(self) -> dict[str, dict[str, Any]]:
        """Values to try, by program and parameter."""
        return self.__pydantic_extra__

    @property
    def parts(self) -> bool:
        """Whether parts of the cluster are tried."""
        return bool(self.sites or self.groups or self.workers)
