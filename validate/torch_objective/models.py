"""Make models by name: three small ones, torchvision's, and those of packages."""

import importlib
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.simulator.inputs.messages import nearest
from paceline.simulator.objectives.plugins import ObjectiveError

from .data import Registry

MODEL = ("objective", "model")
SIDE = 32  # pixels of images for torchvision's adapted models

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

    `torchvision:NAME` always means torchvision's. Raises ObjectiveError.
    """
    return MODELS.find(name) or _torchvision(name, tuple(MODELS.names))


@cache
def _torchvision(name: str, ours: tuple[str, ...]) -> Make:
    short = name.removeprefix("torchvision:")
    try:
        library: Any = importlib.import_module("torchvision.models")
    except ImportError:
        problem = (
            f"unknown; {nearest(name, ours, 'models')}; others are torchvision's, which is not "
        )
        raise ObjectiveError(MODEL, problem + "installed: pip install torchvision") from None
    available = library.list_models(module=library)
    if short not in available:
        raise ObjectiveError(MODEL, f"unknown; {nearest(short, [*ours, *available], 'models')}")

    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        model = library.get_model(short, weights=None, num_classes=classes)
        return nn.Sequential(Fit(*_image(shape)), adapt(model, classes))

    return make


def adapt(model: Any, classes: int) -> nn.Module:
    """Adapt a torchvision model, made for 224 x 224, to 32 x 32.

    ResNets (He et al., arXiv 1512.03385, section 4.2) begin with a 3 x 3 convolution of stride 1
    and no pooling; VGGs (arXiv 1409.1556) end in a 1 x 1 average and a classifier 512 wide. Other
    models stay unchanged.
    """
    family = type(model).__name__
    if family == "ResNet":
        wide = model.conv1.out_channels
        model.conv1 = nn.Conv2d(3, wide, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    elif family == "VGG":
        model.avgpool = nn.AdaptiveAvgPool2d(1)
        model.classifier = nn.Sequential(
            nn.Linear(512, 512), nn.ReLU(), nn.Dropout(),
            nn.Linear(512, 512), nn.ReLU(), nn.Dropout(),
            nn.Linear(512, classes),
        )  # fmt: skip
    return cast(nn.Module, model)


class Fit(nn.Module):
    """A layer that pads images with zeros to three channels and at least 32 x 32."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self._repeat = 3 if channels == 1 else 1
        tall, wide = max(0, SIDE - height), max(0, SIDE - width)
        self._around = (wide // 2, wide - wide // 2, tall // 2, tall - tall // 2)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 1 or 3, height, width) to (batch, 3, 32 or more, 32 or more)."""
        return functional.pad(images.repeat(1, self._repeat, 1, 1), self._around)


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
