"""The schema of run.json that its readers rely on; checked, as users may have edited the file."""

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

Known = Annotated[float, Field(allow_inf_nan=False)]
Number = Known | None
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)] | None
Statistic = Literal["mean", "median", "best estimate"]
Table = dict[str, Any]


class Estimated(TypedDict):
    """An estimate over seeds: of the mean or the median, its interval, and the interval's level.

    `ci95`: of the mean, with 95 %. Earlier versions wrote that alone.
    """

    ci95: Pair
    median: NotRequired[Number]
    estimate: NotRequired[Statistic]
    interval: NotRequired[Pair]
    level: NotRequired[Number]
    basis: NotRequired[str]


class Mean(Estimated):
    """An estimate, and the mean over seeds; `reached`: of a time to target, by how many.

    `interval90`: of a prediction from a profile, where a measured run is expected.
    """

    mean: Number
    reached: NotRequired[int]
    interval90: NotRequired[Pair]


class _Ends(TypedDict):  # of a column of the curve
    first: Number
    last: Number
    over_time: NotRequired[Number]


class _Staleness(TypedDict):
    unit: str
    mean: Number
    max: Known
    distribution: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Known]


class _LineDocument(TypedDict):
    line: str
    bandwidth: Number
    bytes: Number
    utilisation: Number
    saturated: Number


class _NetworkDocument(TypedDict):
    lines: list[_LineDocument]


class _Breakdown(TypedDict):
    compute: Number
    wait: Number
    communicate: Number
    stalled: NotRequired[Number]
    lost: NotRequired[Number]
    down: NotRequired[Number]
    absent: NotRequired[Number]
    unselected: NotRequired[Number]


class Goodput(Mean):
    """The share of the workers' time that was of use, and the shares that were lost, by kind."""

    lost: dict[str, Number]


class InUnits(TypedDict):
    """What `consumption.summary` returns; earlier versions wrote none."""

    tokens_per_second: NotRequired[Number]
    mfu: NotRequired[Number]
    used: NotRequired[dict[str, Mean] | None]
    to_target: NotRequired[dict[str, Mean] | None]


class _AlgorithmDocument(InUnits):
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
    goodput: NotRequired[Goodput | None]
    rounds: NotRequired[Number]
    seconds_per_round: NotRequired[Mean | None]
    rounds_per_night: NotRequired[Number]
    reports_per_round: NotRequired[Number]
    clients_at_work: NotRequired[Mean]
    gradients: NotRequired[list[Number]]
    working_seconds: NotRequired[list[Number]]
    gradients_per_hour: NotRequired[Mean]
    useful_share: NotRequired[Mean]
    staleness: NotRequired[_Staleness | None]
    network: NotRequired[_NetworkDocument | None]
    links: NotRequired[dict[str, Number]]
    interval90: NotRequired[dict[str, Pair] | None]
    interval90_basis: NotRequired[str]
    bottleneck: NotRequired[str]
    bound: NotRequired[bool | None]
    stall: NotRequired[str | None]


class About(TypedDict):
    """The scenario."""

    title: str
    file: str


class Pick(Estimated):
    """Which algorithm to use; see `pick.verdict`. Earlier versions did not write all keys."""

    label: str | None
    ties: list[str]
    decided: NotRequired[bool]
    alternatives: NotRequired[list[str]]
    not_separated: NotRequired[list[str]]
    seeds_to_decide: NotRequired[int | None]
    measure: str
    value: Number
    sentence: str


class _Evidence(TypedDict):
    admitted: bool
    reasons: list[str]


class _Summary(TypedDict):
    scenario: About
    engine: str
    seeds: Annotated[list[int], Field(min_length=1)]
    algorithms: list[_AlgorithmDocument]
    pick: Pick
    loss_basis: NotRequired[str | None]
    notes: list[str]
    versions: NotRequired[dict[str, str]]
    evidence: NotRequired[dict[str, _Evidence]]
    machine: NotRequired[Table]
    nominal: NotRequired[dict[str, Number]]


class RunTable(TypedDict):
    """The table [run] of the scenario."""

    target_loss: NotRequired[Number]


class _ScenarioDocument(TypedDict):  # what readers need; parsing checks the rest
    run: RunTable
    objective: NotRequired[Table]
    algorithm: list[Table]


class _Part(TypedDict):
    bytes: int
    sha256: str


class Owned(TypedDict):
    """What says which files belong to a document, and which settings to its numbers."""

    parts: NotRequired[dict[str, _Part]]
    settings: NotRequired[Table]


class _RunDocument(TypedDict):
    summary: _Summary
    table: _ScenarioDocument


def demand(summary: Any, table: Any) -> None:
    """Raise ValueError, naming the key at fault, for documents that no run has written."""
    demand_shape(_RunDocument, {"summary": summary, "table": table})


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
