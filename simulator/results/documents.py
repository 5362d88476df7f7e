"""Shapes of run.json, tune.json, sweep.json, comparison.json and timeline.json.

They hold what readers rely on, and are checked, as users may have edited the files. A shape is a
table of keys and types; further keys are not looked at.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
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
Keys = Mapping[str, Any]
_typed_dict: Any = TypedDict
_list: Any = list  # of what type checkers take for no type, as it is made here
_dict: Any = dict


def _shape(required: Keys, optional: Keys = MappingProxyType({})) -> Any:
    """Return the type of a table that has the required keys, and may have the optional ones."""
    left_out = {key: NotRequired[optional[key]] for key in optional}
    return _typed_dict("Shape", {**required, **left_out})


def _numbers(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), Number)


def _texts(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), str)


def _non_empty(kind: Any) -> Any:
    return Annotated[kind, Field(min_length=1)]


_ESTIMATED = {  # an estimate over seeds; `ci95`: of the mean, `interval90`: of one measured run
    **dict.fromkeys(("ci95", "interval", "interval90"), Pair),
    **_numbers("median level"),
    "estimate": Literal["mean", "median", "best estimate"],
    "basis": str | None,
}
_MEAN = _shape({"mean": Number}, _ESTIMATED | {"reached": int, "lost": Numbers})
_VALUE_KEYS = {"value": Number}
_VALUE = _shape(_VALUE_KEYS, _ESTIMATED)
_AMOUNTS = {  # what `consumption.summary` returns
    **_numbers("tokens_per_second mfu"),
    **dict.fromkeys(("used", "to_target"), _dict[str, _MEAN] | None),
}
_ENDS = _shape(_numbers("first last"), _numbers("over_time"))
_STALENESS = _shape({
    "unit": str,
    "mean": Number,
    "max": Finite,
    "distribution": dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Finite],
})  # fmt: skip
_LINE = _shape({"line": str} | _numbers("bandwidth bytes utilisation saturated"))
_ALGORITHM = _shape(
    {
        **_texts("label name engine"),
        **_numbers("steps duration"),
        "seconds_per_step": _MEAN,
        "loss": _ENDS,
        "accuracy": _ENDS,
        "breakdown": _shape(
            _numbers("compute wait communicate"), _numbers("stalled lost down absent unselected")
        ),
        "time_to_target": _MEAN | None,
        "bound": bool | None,
        "stall": str | None,
    },
    {  # which real runs, or some engines, leave out
        **_AMOUNTS,
        **_numbers("rounds rounds_per_night reports_per_round"),
        **_texts("interval90_basis bottleneck"),
        **dict.fromkeys(("clients_at_work", "gradients_per_hour", "useful_share"), _MEAN),
        **dict.fromkeys(("seconds_per_round", "goodput"), _MEAN | None),
        **dict.fromkeys(("gradients", "working_seconds"), list[Number]),
        "staleness": _STALENESS | None,
        "network": _shape({"lines": _list[_LINE]}) | None,
        "links": Numbers,
        "interval90": dict[str, Pair] | None,
    },
)
_ABOUT = _texts("title file")  # of a scenario
_REASON = _shape({"code": str})  # with the numbers of its sentence
_VERDICT = _shape(  # see `verdict.Verdict`
    {
        **_texts("question measure sentence"),
        "pick": str | None,
        "candidates": list[str],
        "decided": bool,
        "reasons": _list[_REASON],
        "would_decide": _REASON | None,
        "basis": str | None,
    }
)
_PICK = _shape(  # see `verdict.Verdict.keys`
    {
        **_VALUE_KEYS,
        **_texts("measure sentence"),
        **dict.fromkeys(("ties", "alternatives", "not_separated"), list[str]),
        "label": str | None,
        "decided": bool,
        "seeds_to_decide": int | None,
    },
    _ESTIMATED,
)
_VERSIONS = dict[str, str]
_SUMMARY = _shape(
    {
        "scenario": _shape(_ABOUT),
        "engine": str,
        "seeds": _non_empty(list[int]),
        "algorithms": _list[_ALGORITHM],
        "verdict": _VERDICT,
        "pick": _PICK,
        "notes": list[str],
    },
    {
        "loss_basis": str | None,
        "versions": _VERSIONS,
        "evidence": _dict[str, _shape({"admitted": bool, "reasons": list[str]})],
        "machine": Table,
        "nominal": Numbers,
    },
)
_TABLES = _shape(  # those of a scenario that readers use; parsing checks the others
    {}, {"run": _shape({}, {"target_loss": Number}), "objective": Table, "algorithm": list[Table]}
)
_OWNED = {"schema": Any, "parts": _dict[str, _shape({"bytes": int, "sha256": str})]}
_SETTINGS = {"settings": Table}
Owned = _shape(_OWNED, _SETTINGS)
"""What says which files belong to a document, and which settings to its numbers."""
_RUN = _shape(
    _OWNED | {"scenario": _shape(_ABOUT | {"table": _TABLES}), "summary": _SUMMARY}, _SETTINGS
)
_PAGE = _OWNED | {"scenario": _shape(_ABOUT, {"table": _TABLES})}
_PAGE_OPTIONAL = {
    **_SETTINGS,
    "seeds": list[int] | dict[str, list[int]],
    "engine": str,
    "versions": _VERSIONS,
    "notes": list[str],
}
_CONFIGURATION = _shape(
    {
        **_VALUE_KEYS,
        **_texts("label name"),
        "behind": _VALUE | None,
        "at_least": Number,
        "seeds": int,
        "reached": int,
        "stopped": str | None,
        "parameters": Table,
    },
    _ESTIMATED | _AMOUNTS | {"currency": str | None},
)
_CHANGED_WORLD = _shape(  # the scenario with one input changed
    {
        **dict.fromkeys(("values", "regret", "regret_at_least"), Numbers),
        "input": str | None,
        "change": Finite,
        "not_worse": list[str],
    },
    {"cut": Number},
)
_TUNE = _shape(
    {
        **_PAGE,
        **_texts("objective measure unit simplest"),
        "ranking": _non_empty(_list[_CONFIGURATION]),
        "ties": _list[_shape({"label": str})],
        "verdict": _VERDICT,
        "pick": _PICK,
        "regret": _list[_CHANGED_WORLD],
    },
    _PAGE_OPTIONAL | {"loss_basis": str | None},
)
_SWEEP = _shape(  # without its rows, which are in sweep.csv
    {
        **_PAGE,
        "vary": _non_empty(dict[str, list[Any]]),
        "points": list[Table],
        "verdict": _VERDICT,
        "picks": _list[_shape({"label": str | None, "decided": bool, "alternatives": list[str]})],
        "bounds": list[str],
    },
    _PAGE_OPTIONAL | {"loss_basis": str | None},
)
_QUANTITY = _shape(
    _texts("algorithm quantity"),
    _numbers("predicted measured error") | {"counted": bool, "within_noise": bool | None},
)
_REGRET = _shape({"value": Number} | _texts("best picked"))
_COMPARISON = _shape(
    {
        **_PAGE,
        "rows": _list[_QUANTITY],
        "sentence": str,
        "median_absolute_error": NotRequired[Number],
        "regret": NotRequired[_REGRET | None],
        "basis": Literal["measured", "simulated"],
    },
    _PAGE_OPTIONAL,
)
_EVENT = _shape(  # a span, or the name of a process or thread
    {},
    {
        **_texts("ph name"),
        **dict.fromkeys(("pid", "tid"), int),
        "ts": Finite,
        "dur": Annotated[Finite, Field(ge=0)],
        "args": _shape({}, {"name": str, "step": Finite}),
    },
)
Timeline = _shape({"traceEvents": _list[_EVENT]})
SHAPES = {"run.json": _RUN, COMPARISON: _COMPARISON, TUNE: _TUNE, SWEEP: _SWEEP}
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
