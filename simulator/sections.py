"""The tables of a scenario as typed, frozen models: SI units inside, the TOML's own key names.

Field descriptions become the JSON Schema's, and editors show them.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    JsonValue,
    PlainValidator,
    Strict,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)

from simulator.delay import ComputeLaw, Law
from simulator.parametric import Constant
from simulator.pieces.schedule import Rate
from simulator.pieces.transform import TransformOf
from simulator.profile import ProfileOf
from simulator.region_table import TableOf
from simulator.simgrid_xml import PlatformOf
from simulator.units import Bytes, BytesPerSecond, Seconds

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]  # a TOML array, frozen
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Duration = Annotated[Seconds, Field(gt=0)]
Bandwidth = Annotated[BytesPerSecond, Field(gt=0)]


def _checked(kind: Any) -> tuple[Any, Any]:
    """Check a value as a parameter, and keep it as written: each program parses it for itself."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def check(value: Any) -> Any:
        adapter.validate_python(value)
        return value

    return PlainValidator(check), WithJsonSchema(adapter.json_schema())


_check, _schema = _checked(Rate)
LearningRate = Annotated[float | dict[str, Any], _check, _schema]
_check, _schema = _checked(TransformOf)
LocalMomentum = Annotated[float | dict[str, Any], _check, _schema]


class Section(BaseModel):
    """A table of the scenario: unknown keys, implicit conversions, nan and inf are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Model(Section):
    """What travels: parameters x bytes_per_parameter."""

    parameters: int = Field(ge=1, le=10**15, description="number of parameters of the model")
    bytes_per_parameter: Positive = Field(default=4.0, description="bytes sent per parameter")

    @property
    def bytes(self) -> float:
        """Size of one whole model or gradient, in bytes."""
        return self.parameters * self.bytes_per_parameter


class Bound(Section):
    """Predict the error by AdaComm's Theorem 2 (Wang & Joshi, arXiv 1810.08313)."""

    kind: Literal["bound"]
    initial_gap: Positive = Field(description="F(x1) - Finf: how far the loss can fall")
    smoothness: Positive = Field(description="L: Lipschitz constant of the gradient")
    gradient_variance: NonNegative = Field(description="sigma^2 of one mini-batch gradient")


class Spectrum(Section):
    """Eigenvalues of the quadratic: i^-exponent, i = 1 ... dimension."""

    kind: Literal["power"] = "power"
    exponent: NonNegative = Field(default=1.0, description="decay of the eigenvalues")


class Quadratic(Section):
    """A noisy quadratic whose optimum may differ between workers (non-IID data)."""

    kind: Literal["quadratic"]
    dimension: int = Field(default=100, ge=1, le=10**7, description="number of coordinates")
    spectrum: Spectrum = Field(default=Spectrum(), description="eigenvalues of the Hessian")
    noise: NonNegative = Field(default=1.0, description="sigma: root of E||g - grad F||^2")
    shift: NonNegative = Field(default=0.0, description="spread of the workers' optima (non-IID)")
    initial_gap: Positive = Field(default=1.0, description="loss at the start, above the optimum")


class Dirichlet(Section):
    """Label shares drawn per worker from a Dirichlet distribution."""

    dirichlet: Positive = Field(description="concentration; small is very uneven")


def _iid(value: Any) -> Any:
    if value != "iid":
        raise ValueError('unknown; write "iid" or { dirichlet = 0.3 }')
    return value


def _partition(value: Any) -> str:
    return "a table" if isinstance(value, dict | Dirichlet) else "iid"


Partition = Annotated[
    Annotated[Literal["iid"], BeforeValidator(_iid), Tag("iid")]
    | Annotated[Dirichlet, Tag("a table")],
    Discriminator(_partition),
    Field(
        description='how the data are dealt to workers: "iid" or { dirichlet = 0.3 }',
        examples=["iid", {"dirichlet": 0.3}],
    ),
]


class Softmax(Section):
    """Softmax regression on real data, in NumPy."""

    kind: Literal["softmax"]
    data: Literal["digits", "random-classification"] = Field(description="data set")
    batch: Count = Field(default=32, description="mini-batch per worker and step, samples")
    partition: Partition = "iid"


class Torch(Section):
    """Real gradients of a PyTorch model in virtual time."""

    kind: Literal["torch"]
    model: Name = Field(description="model")
    data: Name = Field(description="data set")
    batch: Count = Field(default=32, description="mini-batch per worker and step, samples")
    partition: Partition = "iid"


class NoObjective(Section):
    """Time only."""

    kind: Literal["none"]


Objective = Annotated[
    Bound | Quadratic | Softmax | Torch | NoObjective, Field(discriminator="kind")
]


class Optimizer(Section):
    """Defaults of every algorithm; its own table overrides them."""

    lr: LearningRate | None = Field(default=None, description="learning rate, or its schedule")
    momentum: LocalMomentum = Field(
        default=0.0, description="momentum of the local steps, or another transform of gradients"
    )


class Bursts(Section):
    """Slow spells: a two-state Markov chain in time, for each worker its own."""

    factor: Positive = Field(
        description="computing takes so many times as long while a burst lasts"
    )
    on: Duration = Field(description="mean duration of a burst")
    off: Duration = Field(description="mean time between bursts")


class Device(Section):
    """What the workers of a group compute on."""

    name: Name = Field(description="name of the device, unique")
    speed: Positive = Field(
        default=1.0, description="2 computes in half the time that `compute` says"
    )
    shared_by: Count = Field(
        default=1,
        description="workers of a group on one device; n that compute at once get 1/n of it each",
    )


def _devices(value: Any) -> str:
    return "devices" if isinstance(value, list | tuple | dict) else "a label"


DeviceOrLabel = Annotated[
    Annotated[Many[Device], Tag("devices")] | Annotated[Name, Tag("a label")],
    Discriminator(_devices),
]


class Failures(Section):
    """Random crashes, at exponential times."""

    between: Duration = Field(description="mean time from a repair to the next crash of one node")
    repair: Duration = Field(description="mean time to repair")


class Crash(Section):
    """One crash, at a given time."""

    worker: Annotated[int, Field(ge=0)] | Literal["server"] = Field(
        description='rank of the worker, from 0, or "server"'
    )
    at: Annotated[Seconds, Field(ge=0)] = Field(description="time of the crash")
    lasts: Duration | None = Field(
        default=None, description="time until it is repaired; left out: for good"
    )


class Checkpoint(Section):
    """The whole cluster's state, saved."""

    every: Count = Field(description="steps between two checkpoints")
    cost: Seconds = Field(
        default=0.0,
        description="time that everyone stands still for one",
        json_schema_extra={"default": "0 s"},
    )


class Recovery(Section):
    """What is done about crashed and slow workers."""

    policy: Literal["wait", "shrink", "restart"] = Field(
        default="wait",
        description="whoever needs a crashed worker waits for it; the others go on without it; or "
        "all go back to the last checkpoint",
    )
    timeout: Seconds = Field(
        default=0.0,
        description="time until the others notice a crash",
        json_schema_extra={"default": "0 s"},
    )
    reload: Seconds = Field(
        default=0.0,
        description="time that a repaired node (or all, to restart) takes to load its state",
        json_schema_extra={"default": "0 s"},
    )
    checkpoint: Checkpoint | None = Field(default=None, description='for policy = "restart"')
    backup: int = Field(
        default=0, ge=0, description="backup workers: each mean leaves out so many, the slowest"
    )


class _Nodes(Section):
    """What the cluster and each of its groups may set."""

    extra: Law | None = Field(default=None, description="delay added to compute, for a fixed share")
    profile: ProfileOf | None = Field(
        default=None, description="speed over time: at 0.5 computing takes twice as long"
    )
    bursts: Bursts | None = Field(default=None, description="slow spells, correlated in time")
    failures: Failures | None = Field(default=None, description="crashes and repairs")
    region: Name | None = Field(default=None, description="where the workers are")
    nic: Bandwidth | None = Field(
        default=None,
        description="bandwidth of a worker's network card, each way; left out: that of its place",
    )


_EXTRA_SHARE = "share of the workers that `extra` befalls, in (0, 1]"


class Group(_Nodes):
    """Some of the workers; what is left out here comes from [cluster]."""

    name: Name = Field(description="name of the group, unique")
    workers: Count = Field(description="how many of the cluster's workers are in the group")
    compute: ComputeLaw | None = Field(default=None, description="time to compute one gradient")
    device: Name | None = Field(
        default=None, description="what they compute on: one of cluster.device, or just a label"
    )
    extra_share: Share | None = Field(default=None, description=_EXTRA_SHARE)


class Cluster(_Nodes):
    """The workers: how many, and how long a gradient takes them."""

    workers: int = Field(ge=1, le=65_535, description="number of workers")
    compute: ComputeLaw = Field(description="time to compute one gradient")
    device: DeviceOrLabel | None = Field(
        default=None, description="devices that groups may compute on, or just a label"
    )
    extra_share: Share = Field(default=0.0, description=_EXTRA_SHARE)
    allow_zero: bool = Field(default=False, description="allow a compute time of zero")
    forward_share: float = Field(
        default=1 / 3,
        ge=0,
        lt=1,
        description="share of a step before the backward pass frees its first gradient",
    )
    group: Many[Group] = Field(default=(), description="overrides for some of the workers")
    crash: Many[Crash] = Field(default=(), description="crashes at given times")

    @property
    def described(self) -> tuple[Device, ...]:
        """The devices that are more than a label."""
        return self.device if isinstance(self.device, tuple) else ()

    @property
    def devices(self) -> dict[str | None, Device]:
        """Those by name."""
        return {device.name: device for device in self.described}


class _Line(Section):
    """What the network and each of its links may set."""

    bandwidth: Bandwidth | None = Field(default=None, description="bits or bytes per second")
    jitter: Law | None = Field(default=None, description="random delay added to each latency")
    tcp_window: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None, description="one flow's rate is at most tcp_window / round trip"
    )


class Outages(Section):
    """Failures of a link, at exponential times."""

    between: Duration = Field(description="mean time from a repair to the next failure")
    repair: Duration = Field(description="mean time to repair")


_Ends = Annotated[tuple[Name, Name], Strict(False)]


class Link(_Line):
    """The line between two regions; what is left out here comes from [network]."""

    between: _Ends = Field(
        description='the two regions it joins; "server" is the parameter server\'s'
    )
    latency: Law | None = Field(default=None, description="one way, per hop")
    sharing: Literal["full-duplex", "half-duplex", "per-flow"] = Field(
        default="full-duplex",
        description="its bandwidth is for each direction, for both together, or for every flow",
    )
    profile: ProfileOf | None = Field(default=None, description="factor of its bandwidth over time")
    outages: Outages | None = Field(default=None, description="random failures, and repairs")


class Background(Section):
    """Traffic of others, from the first place to the second."""

    between: _Ends = Field(description="the place it comes from, and the place it goes to")
    rate: Bandwidth | None = Field(
        default=None, description="what it takes away from each link on its way"
    )
    flows: Count | None = Field(
        default=None, description="so many flows that share the links and never end"
    )
    on: Law | None = Field(default=None, description="how long a burst of it lasts")
    off: Law | None = Field(default=None, description="how long a pause lasts; it begins with one")


class Outage(Section):
    """One failure of a link, both ways, at a known time."""

    between: _Ends = Field(description="the two ends of the link")
    at: Seconds = Field(description="when it fails")
    lasts: Duration | None = Field(default=None, description="for how long; left out: for good")


class Network(_Line):
    """How gradients and models travel."""

    model: Literal["closed-form", "flows"] = Field(
        default="closed-form", description="alpha-beta formulas, or every transfer simulated"
    )
    collective: Literal[
        "ring",
        "tree",
        "star",
        "hierarchical",
        "recursive-doubling",
        "halving-doubling",
        "given",
    ] = Field(default="ring", description="how a mean over all workers is carried out")
    latency: Law = Field(
        default=Constant.model_validate({"value": "0 s"}),
        description='one way, per hop; required unless collective = "given"',
    )
    duration: Law | None = Field(
        default=None, description='duration of one mean (D), with collective = "given"'
    )
    fairness: Literal["max-min", "rtt"] = Field(
        default="max-min",
        description="shares at a bottleneck: equal, or as TCP's, inverse to the round trip",
    )
    slow_start: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None,
        description="a flow's first window, doubled every round trip; left out: no slow start",
    )
    regions: TableOf | None = Field(
        default=None, description="CSV file of latencies and bandwidths from region to region"
    )
    platform: PlatformOf | None = Field(
        default=None, description="SimGrid's XML file of hosts, links and routes"
    )
    link: Many[Link] = Field(default=(), description="lines between regions")
    background: Many[Background] = Field(default=(), description="traffic of others")
    outage: Many[Outage] = Field(default=(), description="failures of links at known times")


_ZERO: dict[str, JsonValue] = {"default": "0 s"}  # as a scenario writes it


class Server(Section):
    """The parameter server of the programs that have one."""

    receive: Seconds = Field(
        default=0.0, description="time to take in one gradient", json_schema_extra=_ZERO
    )
    apply: Seconds = Field(
        default=0.0, description="time to update the parameters", json_schema_extra=_ZERO
    )
    bandwidth: Bandwidth | None = Field(
        default=None, description="of the server's own network card; left out: unlimited"
    )
    region: Name | None = Field(
        default=None, description='where the server is; left out: a place of its own, "server"'
    )
    failures: Failures | None = Field(default=None, description="crashes and repairs")


class Run(Section):
    """How long, how often, how closely watched."""

    steps: Count | None = Field(default=None, description="stop after so many local steps")
    duration: Duration | None = Field(default=None, description="stop after so much time")
    target_loss: Positive | None = Field(default=None, description="the loss to reach")
    seeds: int = Field(default=1, ge=1, le=10**6, description="number of repetitions")
    evaluate_every: Count | None = Field(default=None, description="steps between evaluations")
    sampling: Literal["keyed", "aggregate"] = Field(
        default="keyed",
        description="compute times drawn step by step, the same under every algorithm, or as sums "
        "over the steps between communications, where their law is known",
    )
    timeline_spans: int = Field(
        default=5000, ge=0, le=10**8, description="longest timeline kept, in spans"
    )


class Theory(Section):
    """What `paceline theory` tabulates."""

    periods: Many[Count] = Field(
        default=(1, 2, 4, 8, 16, 32, 64), description="communication periods tau, in steps"
    )
    durations: Many[Duration] = Field(default=(), description="wall-clock times")


class Cost(Section):
    """Prices, in any one currency."""

    node_hour: NonNegative | None = Field(default=None, description="one worker for one hour")
    egress_per_gb: NonNegative | None = Field(
        default=None, description="10^9 bytes leaving a region"
    )


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
    log: bool = Field(default=False, description="spread the trials evenly in the logarithm")

    @property
    def whole(self) -> bool:
        """Whether it is one of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def _choice(value: Any) -> str:
    return "a range" if isinstance(value, dict | Range) else "values"


Choice = Annotated[
    Annotated[Annotated[tuple[Any, ...], Strict(False), Field(min_length=1)], Tag("values")]
    | Annotated[Range, Tag("a range")],
    Discriminator(_choice),
]
