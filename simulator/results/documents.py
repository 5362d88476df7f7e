"""Shapes of run.json, tune.json, sweep.json, comparison.json and timeline.json.

They hold what readers rely on, and are checked, as users may have edited the files.
"""

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

COMPARISON, TUNE, SWEEP = "comparison.json", "tune.json", "sweep.json"
FARTHEST = 1e100  # largest number drawn: sums of such numbers stay finite

Finite = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST, allow_inf_nan=False)]
Number = Finite | None
Numbers = dict[str, Number]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)] | None
Table = dict[str, Any]


class Estimated(TypedDict, total=False):
    """An estimate over seeds: of the mean or the median, its interval, and the interval's level.

    `ci95`: of the mean, with 95 %. `interval90`: where one measured run is expected.
    """

    ci95: Pair
    median: Number
    estimate: Literal["mean", "median", "best estimate"]
    interval: Pair
    level: Number
    basis: str | None
    interval90: Pair


class Mean(Estimated):
    """An estimate with the mean over seeds."""

    mean: Number
    reached: NotRequired[int]  # seeds that reached the target, of a time to that
    lost: NotRequired[Numbers]  # shares of the time that were lost, of goodput


class Value(Estimated):
    """An estimate of one value."""

    value: Number


class _Amounts(TypedDict):  # what `consumption.summary` returns
    tokens_per_second: NotRequired[Number]
    mfu: NotRequired[Number]
    used: NotRequired[dict[str, Mean] | None]
    to_target: NotRequired[dict[str, Mean] | None]


class _Ends(TypedDict):  # of a column of the curve
    first: Number
    last: Number
    over_time: NotRequired[Number]


class _Staleness(TypedDict):
    unit: str
    mean: Number
    max: Finite
    distribution: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Finite]


class _Line(TypedDict):
    line: str
    bandwidth: Number
    bytes: Number
    utilisation: Number
    saturated: Number


class _Network(TypedDict):
    lines: list[_Line]


class _Breakdown(TypedDict):
    compute: Number
    wait: Number
    communicate: Number
    stalled: NotRequired[Number]
    lost: NotRequired[Number]
    down: NotRequired[Number]
    absent: NotRequired[Number]
    unselected: NotRequired[Number]


class _AlgorithmKeys(_Amounts, total=False):  # that real runs, or some engines, leave out
    rounds: Number
    seconds_per_round: Mean | None
    rounds_per_night: Number
    reports_per_round: Number
    clients_at_work: Mean
    gradients: list[Number]
    working_seconds: list[Number]
    gradients_per_hour: Mean
    useful_share: Mean
    goodput: Mean | None
    staleness: _Staleness | None
    network: _Network | None
    links: Numbers
    interval90: dict[str, Pair] | None
    interval90_basis: str
    bottleneck: str


class _Algorithm(_AlgorithmKeys):
    label: str
    name: str
    engine: str
    seconds_per_step: Mean
    steps: Number
    duration: Number
    loss: _Ends
    accuracy: _Ends
    breakdown: _Breakdown
    time_to_target: Mean | None
    bound: bool | None
    stall: str | None


class _About(TypedDict):  # the scenario
    title: str
    file: str


class _Pick(Value):  # see `pick.verdict`
    label: str | None
    ties: list[str]
    decided: bool
    alternatives: list[str]
    not_separated: list[str]
    seeds_to_decide: int | None
    measure: str
    sentence: str


class _Evidence(TypedDict):
    admitted: bool
    reasons: list[str]


class _Summary(TypedDict):
    scenario: _About
    engine: str
    seeds: Annotated[list[int], Field(min_length=1)]
    algorithms: list[_Algorithm]
    pick: _Pick
    loss_basis: NotRequired[str | None]
    notes: list[str]
    versions: NotRequired[dict[str, str]]
    evidence: NotRequired[dict[str, _Evidence]]
    machine: NotRequired[Table]
    nominal: NotRequired[Numbers]


class _RunTable(TypedDict):
    target_loss: NotRequired[Number]


class _Tables(TypedDict):  # those of a scenario that readers use; parsing checks the others
    run: NotRequired[_RunTable]
    objective: NotRequired[Table]
    algorithm: NotRequired[list[Table]]


class _Scenario(_About):
    table: NotRequired[_Tables]


class _Part(TypedDict):
    bytes: int
    sha256: str


class Owned(TypedDict):
    """What says which files belong to a document, and which settings to its numbers."""

    schema: Any
    parts: dict[str, _Part]
    settings: NotRequired[Table]


class _Simulated(_About):
    table: _Tables


class _Run(Owned):
    scenario: _Simulated
    summary: _Summary


class _Page(Owned):  # keys that documents without a summary share
    scenario: _Scenario
    seeds: NotRequired[list[int] | dict[str, list[int]]]
    engine: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    notes: NotRequired[list[str]]


class _Named(TypedDict):
    label: str


class _Configuration(_Named, Value, _Amounts):
    name: str
    behind: Value | None
    at_least: Number
    seeds: int
    reached: int
    stopped: str | None
    parameters: Table
    currency: NotRequired[str | None]


class _ChangedWorld(TypedDict):  # the scenario with one input changed
    input: str | None
    change: Finite
    values: Numbers
    regret: Numbers
    regret_at_least: Numbers
    cut: NotRequired[Number]
    not_worse: list[str]


class _Tune(_Page):
    objective: str
    measure: str
    unit: str
    loss_basis: NotRequired[str | None]
    ranking: Annotated[list[_Configuration], Field(min_length=1)]
    ties: list[_Named]
    simplest: str
    sentence: str
    pick: _Pick
    regret: list[_ChangedWorld]
    warnings: list[Annotated[str, Field(min_length=1)]]


class _PointPick(TypedDict):
    label: str | None
    decided: bool
    alternatives: list[str]


class _Sweep(_Page):  # without its rows, which are in sweep.csv
    vary: Annotated[dict[str, list[Any]], Field(min_length=1)]
    points: list[Table]
    picks: list[_PointPick]
    bounds: list[str]
    loss_basis: NotRequired[str | None]


class _Quantity(TypedDict):
    algorithm: str
    quantity: str
    predicted: NotRequired[Number]
    measured: NotRequired[Number]
    error: NotRequired[Number]
    counted: NotRequired[bool]
    within_noise: NotRequired[bool | None]


class _Regret(TypedDict):
    value: Number
    best: str
    picked: str


class _Comparison(_Page):
    rows: list[_Quantity]
    sentence: str
    median_absolute_error: NotRequired[Number]
    regret: NotRequired[_Regret | None]
    basis: Literal["measured", "simulated"]


class _Arguments(TypedDict, total=False):
    name: str
    step: Finite


class _Event(TypedDict, total=False):  # a span, or the name of a process or thread
    ph: str
    name: str
    pid: int
    tid: int
    ts: Finite
    dur: Annotated[Finite, Field(ge=0)]
    args: _Arguments


class Timeline(TypedDict):
    """A timeline."""

    traceEvents: list[_Event]


SHAPES: dict[str, type[Any]] = {
    "run.json": _Run,
    COMPARISON: _Comparison,
    TUNE: _Tune,
    SWEEP: _Sweep,
}
"""By file name; any other document is `Owned`."""


def demand_shape(shape: Any, value: Any) -> None:
    """Raise ValueError, naming the key at fault, where a value does not have the type `shape`."""
    try:
        adapter(shape).validate_python(value, strict=True)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{where}: missing, or nothing that belongs there") from None


@cache
def adapter(shape: Any) -> TypeAdapter[Any]:
    """Return what validates values of a type, made once."""
    return TypeAdapter(shape)
