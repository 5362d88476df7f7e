"""Shapes of the commands' JSON documents, which documents.toml lists and explains.

They contain the keys that readers rely on. Documents are checked, because users may have edited the
files.
"""

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # before Python 3.12 pydantic cannot use that of typing

from ..inputs import untrusted

COMPARISON, TUNE, SWEEP = "comparison.json", "tune.json", "sweep.json"
FARTHEST = 1e100  # largest number drawn: sums of such numbers stay finite

Finite = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST, allow_inf_nan=False)]
Number = Finite | None
_TYPES: dict[str, Any] = {
    "text": str,
    "integer": int,
    "boolean": bool,
    "any": Any,
    "table": dict[str, Any],
    "list": list[Any],
    "finite": Finite,
    "number": Number,
    "pair": Annotated[list[Number], Field(min_length=2, max_length=2)] | None,
    "age": dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Finite],
    "estimand": Literal["mean", "median", "best estimate"],
    "seeds": list[int] | dict[str, list[int]],
    "measured_or_simulated": Literal["measured", "simulated"],
}
_LIST: Any = list  # a type made at run time, which type checkers do not accept
_TABLE: Any = dict
_WRITTEN = untrusted.packaged(__file__, "documents.toml")


@cache
def _type(text: str) -> Any:
    """Return the type for the text `text` in documents.toml."""
    if text.endswith(" or null"):
        return _type(text.removesuffix(" or null")) | None
    if text.endswith("+"):
        return Annotated[_type(text[:-1]), Field(min_length=1)]
    if text[0] in "[{":
        inner: Any = _type(text[1:-1])
        return _LIST[inner] if text[0] == "[" else _TABLE[str, inner]
    return _TYPES[text] if text in _TYPES else TypedDict(text, _keys(text))  # type: ignore[operator]


def _keys(name: str) -> dict[str, Any]:
    """Return the types of a shape's keys."""
    table, types = dict(_WRITTEN[name]), dict[str, Any]()
    for other in table.pop("like", ()):
        types |= _keys(other)
    for kind, keys in table.items():
        for key in keys.split():
            types[key.rstrip("?")] = NotRequired[_type(kind)] if key[-1] == "?" else _type(kind)
    return types


Owned = _type("owned")
SHAPES = {name: _type(name[:-5]) for name in ("run.json", COMPARISON, TUNE, SWEEP)}
"""Shapes by file name; other documents are `Owned`."""


def demand_shape(shape: Any, value: Any) -> None:
    """Raise ValueError, which names the wrong key, unless a value has the type `shape`."""
    try:
        adapter(shape).validate_python(value, strict=True)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{where}: missing, or not allowed there") from None


@cache
def adapter(shape: Any) -> TypeAdapter[Any]:
    """Return the cached validator of a type."""
    return TypeAdapter(shape)
