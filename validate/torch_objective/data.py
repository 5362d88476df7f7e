"""Load data sets: scikit-learn's, and MNIST's or CIFAR's files.

It also makes mini-batches: it chooses samples, and puts them as tensors on a device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from math import prod
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.messages import nearest
from paceline.simulator.objectives.plugins import ObjectiveError
from paceline.simulator.objectives.softmax import load_data

from ..host.device import put

DEBIAN = Path("/usr/share/datasets")  # where Debian's packages put data sets
FOLDER = ("objective", "folder")
CLASSES = 10  # of every data set in files
INSIDE = "cifar-10-batches-bin"  # the folder in CIFAR-10's archive
CHUNK = 1000  # samples evaluated at a time

T = TypeVar("T")
Pairs = tuple[Tensor, Tensor]
"""Samples and their labels."""


class Registry(Generic[T]):
    """Objects by name: built in, `added` in this process, or of installed packages.

    Packages offer them as entry points of a `group`.
    """

    def __init__(self, group: str, ours: dict[str, T]) -> None:
        self._group, self._ours = group, ours
        self.added: dict[str, T] = {}

    def find(self, name: str) -> T | None:
        """Return the object of a name, None if there is none."""
        if name in self.added or name in self._ours:
            return self.added.get(name) or self._ours[name]
        offered = entry_points(group=self._group)
        return offered[name].load() if name in offered.names else None

    @property
    def names(self) -> list[str]:
        """Return all names."""
        offered = entry_points(group=self._group).names
        return [*dict.fromkeys([*self._ours, *self.added, *sorted(offered)])]


@dataclass(frozen=True)
class Data:
    """Samples (samples, *shape) as stored, and their labels (samples,), from 0.

    `centre` and `spread` standardise a sample, x -> (x - centre) / spread, by the training set: per
    channel of images (channels, height, width), per feature of vectors. For text, a sample is the
    numbers of its characters (context,), never standardised, and its labels (context,) are those of
    the next characters. `note`: how a reader gets the same data.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    note: str = ""
    centre: np.ndarray = field(init=False)
    spread: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        text = self.train_y.ndim > 1
        centre, spread = (np.zeros(1), np.ones(1)) if text else _moments(self.train_x)
        object.__setattr__(self, "centre", centre)
        object.__setattr__(self, "spread", np.where(spread > 0, spread, 1.0))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample."""
        return tuple(self.train_x.shape[1:])


Load = Callable[[Path | None], Data]
"""Loads the data, given `objective.folder` or None. Raises ObjectiveError."""


def _moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation per channel or feature."""
    if samples.ndim == 2:
        return samples.mean(axis=0), samples.std(axis=0)
    rest = (1,) * (samples.ndim - 2)
    channels = [samples[:, channel] for channel in range(samples.shape[1])]
    centre = np.array([channel.mean(dtype=np.float64) for channel in channels])
    if samples.dtype == np.uint8:  # without a copy in floating point, eight times as large
        squares = np.arange(256, dtype=np.uint16) ** 2
        means = np.array([squares[channel].mean(dtype=np.float64) for channel in channels])
        spread = np.sqrt(np.maximum(means - centre**2, 0))
    else:
        spread = np.array([channel.std(dtype=np.float64) for channel in channels])
    return centre.reshape(-1, *rest), spread.reshape(-1, *rest)


def _fileless(name: str, folder: Path | None) -> None:
    if folder is not None:
        raise ObjectiveError(FOLDER, f"{name} has no files; remove it")


def _digits(folder: Path | None) -> Data:
    _fileless("digits", folder)
    data = load_data("digits")  # scaled to 1, with a column of ones
    images = [
        np.rint(16 * x[:, :-1]).astype(np.uint8).reshape(-1, 1, 8, 8)
        for x in (data.train_x, data.test_x)
    ]
    return Data(images[0], data.train_y, images[1], data.test_y, data.classes)


def _random_classification(folder: Path | None) -> Data:
    _fileless("random-classification", folder)
    data = load_data("random-classification")
    return Data(data.train_x[:, :-1], data.train_y, data.test_x[:, :-1], data.test_y, data.classes)


Read = Callable[[Path, str, str], tuple[np.ndarray, np.ndarray]]
"""Function that reads images and labels from a folder, given a file or part, and a hint."""


def _files(name: str, hint: str, parts: Sequence[Sequence[str]], reader: Read) -> Load:
    """Return the loader of a data set of ten classes in files."""

    def load(folder: Path | None) -> Data:
        place = folder or DEBIAN / name
        place = place / INSIDE if (place / INSIDE).is_dir() else place

        def part(files: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
            pairs = [reader(place, file, hint) for file in files]
            images, labels = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
            wrong = ""
            if len(images) != len(labels):
                wrong = f"{len(images)} {files[0]} images but {len(labels)} labels"
            elif len(labels) and labels.max() >= CLASSES:
                wrong = f"a label of {labels.max()}, but there are {CLASSES} classes"
            if wrong:
                raise ObjectiveError(FOLDER, f"{place}: {wrong}; get {hint} again")
            return images, labels.astype(np.int64)

        return Data(*part(parts[0]), *part(parts[1]), CLASSES)

    return load


def _mnist(folder: Path, part: str, hint: str) -> tuple[np.ndarray, np.ndarray]:
    """Read files in MNIST's format (yann.lecun.com/exdb/mnist)."""
    images = _read_idx(folder, f"{part}-images-idx3-ubyte", 3, hint)
    return images[:, None], _read_idx(folder, f"{part}-labels-idx1-ubyte", 1, hint)


def _read_idx(folder: Path, name: str, axes: int, hint: str) -> np.ndarray:
    path, content = _read([folder / f"{name}{end}" for end in ("", ".gz")], hint)
    head = 4 + 4 * axes
    if len(content) < head or content[:4] != bytes([0, 0, 8, axes]):
        raise ObjectiveError(FOLDER, f"{path}: not an IDX file of {axes} axes; get {hint} again")
    shape = tuple(int(size) for size in np.frombuffer(content[4:head], dtype=">u4"))
    if len(content) != head + prod(shape):
        sizes = f"{len(content):,} bytes, but its header says {head + prod(shape):,}"
        raise ObjectiveError(FOLDER, f"{path}: {sizes}; get {hint} again")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def _cifar(folder: Path, name: str, hint: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a file in CIFAR-10's binary format: per image a label, then its channels."""
    path, content = _read([folder / name], hint)
    size = 1 + 3 * 32 * 32
    if not content or len(content) % size:
        sizes = f"{len(content):,} bytes, not a whole number of images of {size:,}"
        raise ObjectiveError(FOLDER, f"{path}: {sizes}; get {hint} again")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _read(paths: Sequence[Path], hint: str) -> tuple[Path, bytes]:
    """Return the first of these files that exists, and its content, unpacked."""
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ObjectiveError(FOLDER, f"{paths[0]}: no such file; name the folder that has {hint}")
    try:
        with untrusted.unpacked(path) as file:
            return path, untrusted.content(file, untrusted.LARGEST_WRITTEN)
    except (OSError, ValueError) as error:
        problem = f"{path}: cannot be read ({error}); get {hint} again"
        raise ObjectiveError(FOLDER, problem) from None


MNIST = ["train"], ["t10k"]
CIFAR = [f"data_batch_{number}.bin" for number in range(1, 6)], ["test_batch.bin"]
HINTS = {
    "fashion-mnist": "the four IDX files of fashion-mnist (Debian: apt install "
    "dataset-fashion-mnist)",
    "mnist": "the four IDX files of mnist",
    "cifar-10": "the binary version of cifar-10 (https://www.cs.toronto.edu/~kriz/cifar.html)",
}
_OURS: dict[str, Load] = {
    "digits": _digits,
    "random-classification": _random_classification,
    "fashion-mnist": _files("fashion-mnist", HINTS["fashion-mnist"], MNIST, _mnist),
    "mnist": _files("mnist", HINTS["mnist"], MNIST, _mnist),
    "cifar-10": _files("cifar-10", HINTS["cifar-10"], CIFAR, _cifar),
}
DATA = Registry("paceline.datasets", _OURS)


def register_data(name: str, load: Load) -> None:
    """Register `load` as `objective.data = name`, here and in real runs.

    For pools of processes as well (`--jobs`, Dask), offer `load` from an installed package, as an
    entry point of the group `paceline.datasets`.
    """
    DATA.added[name] = load


def find(name: str) -> Load:
    """Return the loader of the data set `name`. Raises ObjectiveError."""
    if load := DATA.find(name):
        return load
    raise ObjectiveError(
        ("objective", "data"), f"unknown; {nearest(name, DATA.names, 'data sets')}"
    )


def load_named(name: str, folder: str | None) -> Data:
    """Load the data set `name`, once. Raises ObjectiveError."""
    return _loaded(find(name), folder)


@cache
def _loaded(load: Load, folder: str | None) -> Data:
    return load(None if folder is None else Path(folder))


class DeviceData:
    """A data set on a device: stored unchanged, standardised batch by batch."""

    def __init__(self, data: Data, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._train, self._test = (
            (self._put(x), self._put(y))
            for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y))
        )
        self._centre, self._spread = (
            self._put(array).to(dtype) for array in (data.centre, data.spread)
        )

    def train(self, rows: np.ndarray) -> Pairs:
        """Return training samples (..., *shape) and labels (...) of `rows`."""
        return self._pick(self._train, self._put(rows))

    def train_chunks(self, rows: np.ndarray) -> Iterator[Pairs]:
        """Yield the training samples with indices `rows`, `CHUNK` at a time."""
        return self._chunks(self._train, rows)

    def test_chunks(self) -> Iterator[Pairs]:
        """Yield all samples of the test set, `CHUNK` at a time."""
        return self._chunks(self._test, np.arange(len(self._test[1])))

    def _chunks(self, samples: Pairs, rows: np.ndarray) -> Iterator[Pairs]:
        for first in range(0, len(rows), CHUNK):
            yield self._pick(samples, self._put(rows[first : first + CHUNK]))

    def _pick(self, samples: Pairs, rows: Tensor) -> Pairs:
        x, y = samples
        return (x[rows].to(self._dtype) - self._centre) / self._spread, y[rows]

    def _put(self, array: np.ndarray) -> Tensor:
        return put(torch.from_numpy(array), self._device)
