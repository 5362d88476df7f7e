"""What pieces are made with."""

from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def piece(cls: type[T]) -> type[T]:
    """Make a frozen, validated dataclass that a scenario's table can be read into.

    Not a pydantic model: pieces are called at every step, and a model's attributes take nearly
    three times as long to read.
    """
    made: Any = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
    return made  # type: ignore[no-any-return]


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A number that is written as one, not as text, and is finite."""
