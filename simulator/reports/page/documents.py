"""Shapes of tune.json, sweep.json, comparison.json and timeline.json, as far as pages use them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

from ...results import schema
from ...results.schema import Table

COMPARISON, TUNE, SWEEP = "comparison.json", "tune.json", "sweep.json"
FARTHEST = 1e100  # largest number drawn: sums of such numbers stay finite

Known = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST, allow_inf_nan=False)]
Number = Known | None
Pair = Annotated[list[Known], Field(min_length=2, max_length=2)] | None


class _PageTables(TypedDict):  # those that pages use; `load` checks the others
    run: NotRequired[schema.RunTable]
    objective: NotRequired[Table]


class _PageScenario(schema.About):
    table: NotRequired[_PageTables]


class PageDocument(schema.Owned):
    """Keys that all these documents share."""

    scenario: _PageScenario
    seeds: NotRequired[list[int] | dict[str, list[int]]]
    engine: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    notes: NotRequired[list[str]]


class _Named(TypedDict):
    label: str


class Estimated(TypedDict):
    """An estimate over seeds; earlier versions wrote "ci95" alone."""

    value: Number
    ci95: Pair
    estimate: NotRequired[schema.Statistic]
    interval: NotRequired[Pair]
    level: NotRequired[Number]


class _Configuration(_Named, Estimated, schema.InUnits):
    name: str
    behind: Estimated | None
    at_least: Number
    seeds: int
    reached: int
    stopped: str | None
    parameters: NotRequired[Table]
    currency: NotRequired[str | None]
    basis: NotRequired[str | None]


class _ChangedWorld(TypedDict):  # the scenario with one input changed
    input: str | None
    change: Known
    values: dict[str, Number]
    regret: dict[str, Number]
    regret_at_least: dict[str, Number]
    cut: NotRequired[Number]
    not_worse: list[str]


class _Tune(PageDocument):
    objective: str
    measure: str
    unit: str
    loss_basis: NotRequired[str | None]
    ranking: Annotated[list[_Configuration], Field(min_length=1)]
    ties: list[_Named]
    simplest: str
    sentence: str
    pick: schema.Pick
    regret: list[_ChangedWorld]
    warnings: list[Annotated[str, Field(min_length=1)]]


class _PointPick(TypedDict):
    label: str | None
    decided: bool
    alternatives: list[str]


class _Sweep(PageDocument):  # without its rows, which are in sweep.csv
    vary: Annotated[dict[str, list[Any]], Field(min_length=1)]
    points: list[Table]
    picks: NotRequired[list[_PointPick]]
    bounds: NotRequired[list[str]]
    loss_basis: NotRequired[str | None]


class SweepRow(TypedDict):
    """A row of sweep.csv without the varied keys."""

    label: str | float
    seeds: Known
    reached: Number
    seconds_per_step: Number
    seconds_per_step_low: NotRequired[Number]
    seconds_per_step_high: NotRequired[Number]
    time_to_target_s: NotRequired[Number]
    time_to_target_s_low: NotRequired[Number]
    time_to_target_s_high: NotRequired[Number]
    final_loss: NotRequired[Number]
    final_loss_low: NotRequired[Number]
    final_loss_high: NotRequired[Number]
    seconds_per_gradient: NotRequired[Number]
    seconds_per_gradient_low: NotRequired[Number]
    seconds_per_gradient_high: NotRequired[Number]
    reports_per_round: NotRequired[Number]
    clients_at_work: NotRequired[Number]
    gradients_per_hour: NotRequired[Number]
    goodput: NotRequired[Number]
    useful_share: NotRequired[Number]
    total_cost: NotRequired[Number]


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


class _ComparisonDocument(PageDocument):
    rows: list[_Quantity]
    sentence: str
    median_absolute_error: NotRequired[Number]
    regret: NotRequired[_Regret | None]
    basis: Literal["measured", "simulated"]


def is_measured(comparison: Mapping[str, Any]) -> bool:
    """Whether a comparison is with real runs."""
    return bool(comparison["basis"] == "measured")


class _Arguments(TypedDict, total=False):
    name: str
    step: Known


class _Event(TypedDict, total=False):  # a span, or the name of a process or thread
    ph: str
    name: str
    pid: int
    tid: int
    ts: Known
    dur: Annotated[Known, Field(ge=0)]
    args: _Arguments


class Timeline(TypedDict):
    """A timeline."""

    traceEvents: list[_Event]


SHAPES: dict[str, type[Any]] = {COMPARISON: _ComparisonDocument, TUNE: _Tune, SWEEP: _Sweep}
"""By file name."""
