"""Define transforms, which turn a gradient into the direction of the step.

A transform stores no state: `init` makes it and `update` returns the next one. The identity
transform turns it off. Outer steps use the same transforms, with the mean displacement of a round
as gradient; heavy ball is then AdaComm's block momentum.
"""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, PlainValidator, WithJsonSchema

from ..effects import Vector
from .piece import Kinds, Number, piece

State = Any
Share = Annotated[Number, Field(ge=0, lt=1, description="share of the buffer that remains")]


class Transform(Protocol):
    """A map from a gradient to the direction of descent."""

    def init(self, x: Vector) -> State:
        """Make the state before the first step."""

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the direction of the step from `x`, and the next state."""


@piece
class Identity:
    """Plain SGD: the direction is the gradient."""

    kind: Literal["identity"] = "identity"

    def init(self, x: Vector) -> State:
        """Return None, because there is no state."""
        return None

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the gradient itself."""
        return gradient, state


class Buffered:
    """Base of transforms whose state is a buffer that starts with zeros."""

    __slots__ = ()

    def init(self, x: Vector) -> State:
        """Return a buffer of zeros."""
        return 0.0 * x


@piece
class Momentum(Buffered):
    """Heavy ball: u = mu u + g, direction u."""

    mu: Share
    kind: Literal["momentum"] = "momentum"

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the updated buffer twice, as direction and as state."""
        buffer = self.mu * state + gradient
        return buffer, buffer


@piece
class Nesterov(Buffered):
    """Nesterov's momentum as in PyTorch: u = mu u + g, direction g + mu u."""

    mu: Share
    kind: Literal["nesterov"] = "nesterov"

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the gradient plus mu times the new buffer, and that buffer."""
        buffer = self.mu * state + gradient
        return gradient + self.mu * buffer, buffer


@piece
class SGD(Buffered):
    """SGD with weight decay as in PyTorch: heavy ball on g + weight_decay x."""

    weight_decay: Annotated[Number, Field(ge=0, description="added to the gradient, times x")] = 0.0
    mu: Share = 0.0
    kind: Literal["sgd"] = "sgd"

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the buffer after adding the gradient with its decay, twice."""
        buffer = self.mu * state + (gradient + self.weight_decay * x)
        return buffer, buffer


@piece
class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2).

    The direction is mhat / (sqrt(vhat) + epsilon) + weight_decay x, with bias-corrected moments.
    """

    beta1: Annotated[Share, Field(description="share of the first moment that remains")] = 0.9
    beta2: Annotated[Share, Field(description="share of the second moment that remains")] = 0.999
    epsilon: Annotated[Number, Field(gt=0, description="added to the root")] = 1e-8
    weight_decay: Annotated[Number, Field(ge=0, description="decoupled weight decay")] = 0.0
    kind: Literal["adamw"] = "adamw"

    def init(self, x: Vector) -> State:
        """Return zero moments and the number of steps, 0."""
        return 0.0 * x, 0.0 * x, 0

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the direction of Adam plus the weight decay, and the next moments."""
        first, second, steps = state
        first = self.beta1 * first + (1 - self.beta1) * gradient
        second = self.beta2 * second + (1 - self.beta2) * (gradient * gradient)
        steps += 1
        mean, square = first / (1 - self.beta1**steps), second / (1 - self.beta2**steps)
        direction = mean / (square**0.5 + self.epsilon) + self.weight_decay * x
        return direction, (first, second, steps)


@piece
class FedAdam:
    """A server's adaptive step (Reddi et al., arXiv 2003.00295, algorithm 2).

    The direction is m / (sqrt(v) + epsilon), with first moment m and without bias correction.
    """

    beta1: Annotated[Share, Field(description="share of the first moment that remains")] = 0.9
    beta2: Annotated[Share, Field(description="share of the second moment that remains")] = 0.99
    epsilon: Annotated[Number, Field(gt=0, description="added to the root (the paper's tau)")] = (
        1e-3
    )
    kind: Literal["fedadam"] = "fedadam"

    def init(self, x: Vector) -> State:
        """Return a zero first moment and epsilon^2 as the second, as the paper does."""
        return 0.0 * x, 0.0 * x + self.epsilon**2

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the first moment over the root of the second, and both moments."""
        first = self.beta1 * state[0] + (1 - self.beta1) * gradient
        second = self.beta2 * state[1] + (1 - self.beta2) * (gradient * gradient)
        return first / (second**0.5 + self.epsilon), (first, second)


@piece
class Proximal:
    """FedProx's mu/2 |x - anchor|^2 beside another transform (arXiv 1812.06127).

    The anchor is the point of `init`: programs renew the state in every round.
    """

    mu: float
    inner: Any

    def init(self, x: Vector) -> State:
        """Return the anchor and the inner state."""
        return x, self.inner.init(x)

    def update(self, gradient: Vector, state: State, x: Vector) -> tuple[Vector, State]:
        """Return the inner direction, for the gradient plus the pull to the anchor."""
        anchor, inner = state
        direction, inner = self.inner.update(gradient + self.mu * (x - anchor), inner, x)
        return direction, (anchor, inner)


_FRACTION = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
TRANSFORMS = Kinds(Identity, Momentum, Nesterov, SGD, AdamW, FedAdam)


def _transform(value: Any) -> Any:
    """Read a transform; a number means momentum, and zero the identity."""
    if (transform := TRANSFORMS.read(value)) is not None:
        return transform
    if hasattr(value, "update"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(
            "out of range; write a number from 0 (off) up to, not including, 1, or a table such "
            'as { kind = "nesterov", mu = 0.9 }'
        )
    return Momentum(value) if value else Identity()


TransformOf = Annotated[
    Transform,
    PlainValidator(_transform),
    WithJsonSchema(
        {"anyOf": [_FRACTION, {"enum": TRANSFORMS.names}, {"anyOf": TRANSFORMS.schemas}]}
    ),
]


def _plain(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(
            "not a plain momentum, which this program needs as one number; write one from 0 "
            "(off) up to, not including, 1, here or in the [[algorithm]] table"
        )
    return float(value)


Fraction = Annotated[float, PlainValidator(_plain), WithJsonSchema(_FRACTION)]
"""A plain momentum, for programs that need it as a number."""
