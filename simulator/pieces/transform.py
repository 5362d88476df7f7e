"""Transforms: what becomes of a gradient before it is applied, and of an average after it is made.

A transform holds no state; `init` makes it and `update` returns the next one. Off is the identity
piece, not a flag.
"""

from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field, TypeAdapter, WithJsonSchema

from simulator.effects import Vector
from simulator.pieces.piece import Number, piece

State = Any


class Transform(Protocol):
    """From a gradient to the direction of descent."""

    def init(self, x: Vector) -> State:
        """State before the first step."""

    def update(self, gradient: Vector, state: State) -> tuple[Vector, State]:
        """Return the direction and the next state."""


@piece
class Identity:
    """Plain SGD: the direction is the gradient."""

    def init(self, x: Vector) -> State:
        """No state."""
        return None

    def update(self, gradient: Vector, state: State) -> tuple[Vector, State]:
        """The gradient itself."""
        return gradient, state


@piece
class Momentum:
    """Heavy ball: u = mu u + g, direction u."""

    mu: Annotated[Number, Field(gt=0, lt=1, description="share of the buffer that is kept")]

    def init(self, x: Vector) -> State:
        """A buffer of zeros."""
        return 0.0 * x

    def update(self, gradient: Vector, state: State) -> tuple[Vector, State]:
        """The buffer after taking in the gradient."""
        buffer = self.mu * state + gradient
        return buffer, buffer


class Outer(Protocol):
    """From the parameters at the last average and the new average to the next parameters."""

    def init(self, x: Vector) -> State:
        """State before the first average."""

    def update(self, anchor: Vector, average: Vector, state: State) -> tuple[Vector, State]:
        """Return the next parameters and the next state."""


@piece
class Average:
    """The next parameters are the average."""

    kind: Literal["average"] = "average"

    def init(self, x: Vector) -> State:
        """No state."""
        return None

    def update(self, anchor: Vector, average: Vector, state: State) -> tuple[Vector, State]:
        """The average itself."""
        return average, state


@piece
class BlockMomentum:
    """Momentum over averages (AdaComm, eq. 7 and 8): v = beta v + (z - xbar), z = z - v.

    The buffer is a displacement (lr U in the paper's terms), so that a change of the learning rate
    does not rescale what it holds.
    """

    beta: Annotated[Number, Field(gt=0, lt=1, description="share of the buffer that is kept")]
    kind: Literal["block-momentum"] = "block-momentum"

    def init(self, x: Vector) -> State:
        """A buffer of zeros."""
        return 0.0 * x

    def update(self, anchor: Vector, average: Vector, state: State) -> tuple[Vector, State]:
        """Move from the anchor along the buffer."""
        buffer = self.beta * state + (anchor - average)
        return anchor - buffer, buffer


_FRACTION = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}


def _fraction(value: Any, on: type[Momentum] | type[BlockMomentum], off: Any) -> Any:
    """A number in [0, 1) as a piece; zero is the identity piece."""
    if isinstance(value, on | type(off)):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError("out of range; write a number from 0 (off) up to, not including, 1")
    return on(value) if value else off


MomentumOf = Annotated[
    Identity | Momentum,
    BeforeValidator(lambda value: _fraction(value, Momentum, Identity())),
    WithJsonSchema(_FRACTION),
]
BlockMomentumOf = Annotated[
    Average | BlockMomentum,
    BeforeValidator(lambda value: _fraction(value, BlockMomentum, Average())),
    WithJsonSchema(_FRACTION),
]
_outer: TypeAdapter[Average | BlockMomentum] = TypeAdapter(
    Annotated[Average | BlockMomentum, Field(discriminator="kind")]
)
OuterOf = Annotated[
    Average | BlockMomentum,
    BeforeValidator(
        lambda value: _outer.validate_python(value) if isinstance(value, dict) else value
    ),
    WithJsonSchema(
        {"anyOf": [TypeAdapter(kind).json_schema() for kind in (Average, BlockMomentum)]}
    ),
]
