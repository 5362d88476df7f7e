"""Make models by name: four small ones, and those of packages."""

from collections.abc import Callable
from math import prod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

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


def _gpt(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a transformer for samples of text (context,)."""
    if len(shape) != 1:
        raise ObjectiveError(MODEL, f'needs text, but a sample has the shape {shape}; write "mlp"')
    return Gpt(*shape, classes)


_OURS: dict[str, Make] = {"mlp": _mlp, "cnn": _cnn, "small-cnn": _small_cnn, "gpt": _gpt}
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


class Gpt(nn.Module):
    """A small GPT-2 (Radford et al. 2019) with tied embedding and no dropout.

    It maps (batch, context) numbers of characters below `classes` to scores (batch, classes,
    context) of the next characters. It has two layers of width 64 with four heads.
    """

    def __init__(self, context: int, classes: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.places = nn.Parameter(torch.empty(context, width))
        blocks = [Block(width) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        for parameter in (self.characters.weight, self.places):
            nn.init.normal_(parameter, std=0.02)
        for block in blocks:
            for last in (block.attended, block.shrink):  # ends of the 2 * layers residual branches
                nn.init.normal_(last.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of the next character at every place (batch, classes, context)."""
        x = self.blocks(self.characters(text.long()) + self.places)
        scores = functional.linear(self.norm(x), self.characters.weight)
        return scores.transpose(1, 2)


class Block(nn.Module):
    """Causal attention and a perceptron four times as wide, each added to its input."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self._heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same shape."""
        projected = self.read(self.before(x)).unflatten(-1, (3, self._heads, -1)).transpose(1, 3)
        query, key, value = projected.unbind(dim=2)
        later = torch.full((x.shape[1],) * 2, -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        match = query @ key.mT * query.shape[-1] ** -0.5 + later
        mixed = match.softmax(dim=-1) @ value  # its sums depend on no choice of kernels
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.shrink(functional.gelu(self.widen(self.between(x)))))
