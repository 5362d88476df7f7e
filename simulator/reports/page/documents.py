"""Shapes of tune.json, sweep.json, comparison.json and timeline.json, as far as pages use them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

from paceline.simulator.results.schema import About, Owned, Pick, RunTable, Statistic, Table

COMPARISON, TUNE, SWEEP = "comparison.json", "tune.json", "sweep.json"
FARTHEST = 1e100  # largest number drawn: sums of such numbers stay finite

Known = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST, allow_inf_nan=False)]
Number = Known | None
Pair = Annotated[list[Known], Field(min_length=2, max_length=2)] | None


class PageTables(TypedDict):
    """The tables of a scenario that pages use; `load` checks the others."""

    run: NotRequired[RunTable]
    objective: NotRequired[Table]


class PageScenario(About):
    """The scenario, and its tables where the command kept them."""

    table: NotRequired[PageTables]


class PageDocument(Owned):
    """Keys that all these documents share."""

    scenario: PageScenario
    seeds: NotRequired[list[int] | dict[str, list[int]]]
    engine: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    notes: NotRequired[list[str]]


class Named(TypedDict):
    """A configuration, by its label."""

    label: str


class Estimated(TypedDict):
    """An estimate over seeds; earlier versions wrote "ci95" alone."""

    value: Number
    ci95: Pair
    estimate: NotRequired[Statistic]
    interval: NotRequired[Pair]
    level: NotRequired[Number]


class Configuration(Named, Estimated):
    """A configuration that tune has tried."""

    name: str
    behind: NotRequired[Estimated | None]
    behind_ci95: Pair
    at_least: Number
    seeds: int
    reached: int
    stopped: str | None


class ChangedWorld(TypedDict):
    """Values of configurations in a scenario with one input changed."""

    input: str | None
    change: Known
    values: dict[str, Number]
    regret: dict[str, Number]
    regret_at_least: NotRequired[dict[str, Number]]
    cut: NotRequired[Number]
    first: NotRequired[str | None]
    not_worse: NotRequired[list[str]]


class Tune(PageDocument):
    """A search."""

    objective: str
    measure: str
    ranking: Annotated[list[Configuration], Field(min_length=1)]
    ties: list[Named]
    simplest: str
    sentence: str
    pick: NotRequired[Pick]
    regret: list[ChangedWorld]
    warnings: list[Annotated[str, Field(min_length=1)]]


class PointPick(TypedDict):
    """The verdict at a point."""

    label: str | None
    decided: bool
    alternatives: list[str]


class Sweep(PageDocument):
    """A sweep without its rows, which are in sweep.csv."""

    vary: Annotated[dict[str, list[Any]], Field(min_length=1)]
    points: list[Table]
    picks: NotRequired[list[PointPick]]
    bounds: NotRequired[list[str]]


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


class Quantity(TypedDict):
    """A quantity of an algorithm, predicted and measured."""

    algorithm: str
    quantity: str
    predicted: NotRequired[Number]
    measured: NotRequired[Number]
    error: NotRequired[Number]
    counted: NotRequired[bool]
    within_noise: NotRequired[bool | None]


class Regret(TypedDict):
    """The cost of picking the predicted best."""

    value: Number
    best: str
    picked: str


class ComparisonDocument(PageDocument):
    """Predicted against measured."""

    rows: list[Quantity]
    sentence: str
    median_absolute_error: NotRequired[Number]
    regret: NotRequired[Regret | None]
    basis: NotRequired[Literal["measured", "simulated"]]
    engines: NotRequired[dict[str, str]]


def is_measured(comparison: Mapping[str, Any]) -> bool:
    """Whether a comparison is with real runs; one of an earlier version has only its engines."""
    if "basis" in comparison:
        return bool(comparison["basis"] == "measured")
    return bool(comparison.get("engines", {}).get("measured") == "real")


class Arguments(TypedDict, total=False):
    """Further values of a timeline's event."""

    name: str
    step: Known


class Event(TypedDict, total=False):
    """An event of a timeline: a span, or the name of a process or thread."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: Known
    dur: Annotated[Known, Field(ge=0)]
    args: Arguments


class Timeline(TypedDict):
    """A timeline."""

    traceEvents: list[Event]


SHAPES: dict[str, type[Any]] = {COMPARISON: ComparisonDocument, TUNE: Tune, SWEEP: Sweep}
"""By file name."""
