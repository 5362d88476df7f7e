"""Make models by name: three small ones, and those of packages."""

from collections.abc import Callable
from math import prod

from torch import nn

from paceline.simulator.inputs.messages import nearest
from paceline.simulator.objectives.plugins import ObjectiveError

from .data import Registry

MODEL = ("objective", "model")

Make = Callable[[tuple[int, ...], int], nn.Module]
"""A function of a sample's shape and the number of classes that makes a module: (batch, *shape) to
scores (batch, classes); for text (batch, classes, context). Parameters are initialised from torch's
global generator."""


def _mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a perceptron with one hidden layer of 32."""
    hidden = nn.Linear(prod(shape), 32)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(32, classes))


def _cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network of two convolutions with pooling, and a linear layer."""
    channels, height, width = _image(shape)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes),
    )  # fmt: skip


def _small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network of two convolutions of stride 2, four times as fast as `_cnn`."""
    channels, height, width = _image(shape)
    first, second = nn.Conv2d(channels, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
    last = nn.Linear(16 * -(-height // 4) * -(-width // 4), classes)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), last)


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ObjectiveError(MODEL, f'needs images, but a sample has shape {shape}; write "mlp"')
    return shape


_OURS: dict[str, Make] = {"mlp": _mlp, "cnn": _cnn, "small-cnn": _small_cnn}
MODELS: Registry[Make] = Registry("paceline.models", _OURS)


def register_model(name: str, make: Make) -> None:
    """Register `make(shape, classes)` as `objective.model = name`.

    For pools of processes as well (`--jobs`, Dask), offer `make` from an installed package, as an
    entry point of the group `paceline.models`.
    """
    MODELS.added[name] = make


def find(name: str) -> Make:
    """Return the function that makes a model: built in, registered, or from a package.

    Raises ObjectiveError.
    """
    if make := MODELS.find(name):
        return make
    raise ObjectiveError(MODEL, f"unknown; {nearest(name, MODELS.names, 'models')}")
