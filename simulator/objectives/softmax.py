"""Define softmax regression, or a network with a hidden layer, on real data."""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from ..distributions.random_streams import Purpose, generator
from ..errors import InputError
from ..programs.effects import Vector
from ..scenario.tables import Partition, Softmax
from .objective import Evaluation

Array = np.ndarray[Any, np.dtype[np.float64]]


class FeatureData(NamedTuple):
    """Features (samples, features), scaled, with a column of ones; labels (samples,)."""

    train_x: Array
    train_y: np.ndarray
    test_x: Array
    test_y: np.ndarray
    classes: int


@cache
def load_data(name: str) -> FeatureData:
    """Load a data set by its scenario name, with a fixed 80:20 split.

    `digits`: the 1,797 8 x 8 images that scikit-learn ships. `random-classification`: 10,000
    samples, 20 features, 10 classes (arXiv 2407.00101).
    """
    from sklearn.datasets import load_digits, make_classification  # noqa: PLC0415 - a second
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    if name == "digits":
        features, labels = load_digits(return_X_y=True)
        features = features / 16
    else:
        # ten informative features: the paper names only the totals
        features, labels = make_classification(
            10_000, n_features=20, n_informative=10, n_classes=10, random_state=0
        )
        features = features / features.std(axis=0)
    features = np.hstack([features, np.ones((len(features), 1))])
    train_x, test_x, train_y, test_y = train_test_split(
        features, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return FeatureData(train_x, train_y, test_x, test_y, classes=10)


INPUTS = {"digits": 65, "random-classification": 21}  # features, and a column of ones
CLASSES = 10
PARAMETERS = 1  # stream of Purpose.OBJECTIVE; stream 0 distributes the data


def dimension(spec: Softmax) -> int:
    """Return the number of parameters of `SoftmaxRegression`."""
    inputs = INPUTS[spec.data]
    if not spec.hidden:
        return inputs * CLASSES
    return inputs * spec.hidden + (spec.hidden + 1) * CLASSES


class Epochs:
    """The order in which every worker uses the `samples` training samples.

    Without `shares` all workers share one order per epoch; worker r of m takes every m-th sample
    from r on. This equals torch's DistributedSampler without padding: an epoch has every sample
    once. With `shares`, a worker uses only its share, in a separate order.
    """

    def __init__(
        self, samples: int, workers: int, seed: int, shares: Sequence[np.ndarray] | None
    ) -> None:
        self._samples, self._workers, self._seed, self._shares = samples, workers, seed, shares
        self._common = lru_cache(4)(self._order)  # workers are in about the same epoch

    def epoch(self, rank: int, number: int) -> np.ndarray:
        """Return the indices of the samples of worker `rank` in an epoch, in order."""
        if self._shares is None:
            return self._common(number)[rank :: self._workers]
        stream = generator(self._seed, Purpose.BATCH, rank, number)
        return stream.permutation(self._shares[rank])

    def _order(self, number: int) -> np.ndarray:
        shared = generator(self._seed, Purpose.BATCH, self._workers, number)  # no worker's rank
        return shared.permutation(self._samples)

    def batches(self, rank: int, size: int) -> Iterator[np.ndarray]:
        """Yield mini-batches of a worker, all of `size` samples, across epochs."""
        number, rows = 0, self.epoch(rank, 0)
        while True:
            while len(rows) < size:
                number += 1
                rows = np.concatenate([rows, self.epoch(rank, number)])
            yield rows[:size]
            rows = rows[size:]


class SoftmaxRegression:
    """Logistic regression of several classes by its mean negative log-likelihood.

    The parameters are the flat weights (features + 1, classes), initially zero. With `hidden`
    rectified linear units they are weights (features + 1, hidden), then (hidden + 1, classes),
    initialised as in torch: uniform up to one over the root of a unit's inputs. With the partition
    "iid" all workers draw mini-batches, with replacement, from the whole training set; with
    { dirichlet = a }, or `sizes` (samples of each worker), a worker draws from its share. With
    `epochs` the mini-batches are those of `Epochs`. Weight decay is part of the gradient, not of
    the loss, as in PyTorch.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, spec: Softmax, workers: int, seed: int, sizes: Sequence[int] = ()) -> None:
        self.data = load_data(spec.data)
        self.batch, self.seed, self._decay = spec.batch, seed, spec.weight_decay
        inputs, self._hidden = self.data.train_x.shape[1], spec.hidden
        self._first = inputs * spec.hidden  # parameters of the hidden layer
        self._shape = (spec.hidden + 1 if spec.hidden else inputs, self.data.classes)
        self.dimension = dimension(spec)
        self.start = np.zeros(self.dimension)
        if spec.hidden:
            uniform = generator(seed, Purpose.OBJECTIVE, PARAMETERS).uniform(-1, 1, self.dimension)
            fan_in = np.repeat(
                [inputs - 1, spec.hidden], [self._first, self.dimension - self._first]
            )
            self.start = uniform / np.sqrt(fan_in)
        self.start.flags.writeable = False
        samples = np.arange(len(self.data.train_y))
        shares = deal(self.data.train_y, workers, spec.partition, seed, sizes)
        self.shares = shares or [samples] * workers
        self.sizes = [*map(len, self.shares)]
        self.epochs = Epochs(len(samples), workers, seed, shares) if spec.epochs else None

    def source(self, rank: int) -> "_SoftmaxSource":
        """Return the gradient source of worker `rank`."""
        return _SoftmaxSource(self, rank)

    def evaluate(self, x: Vector, step: float) -> Evaluation:
        """Return the training set's loss, and the test set's accuracy and loss."""
        data = self.data
        scores = self._scores(x, data.train_x)[1]
        loss = _mean_loss(scores, _totals(scores)[1], data.train_y)
        scores = self._scores(x, data.test_x)[1]
        accuracy = float((scores.argmax(axis=1) == data.test_y).mean())
        return Evaluation(
            float(loss), accuracy, float(_mean_loss(scores, _totals(scores)[1], data.test_y))
        )

    def at(self, x: Vector, rows: np.ndarray, *, loss: bool = True) -> tuple[Any, Array]:
        """Return loss and gradient at `x` (..., dimension) over samples (..., batch).

        Without `loss` the returned loss is None; the gradient is the same.
        """
        features, labels = self.data.train_x[rows], self.data.train_y[rows]
        units, scores = self._scores(x, features)
        residuals, totals = _totals(scores)
        mean = _mean_loss(scores, totals, labels) if loss else None
        residuals /= totals
        residuals.reshape(-1, residuals.shape[-1])[_own(labels)] -= 1
        gradient = _flat(units.swapaxes(-1, -2) @ residuals)
        if self._hidden:
            back = residuals @ self._weights(x)[..., :-1, :].swapaxes(-1, -2)
            back *= units[..., :-1] > 0
            gradient = np.concatenate([_flat(features.swapaxes(-1, -2) @ back), gradient], axis=-1)
        return mean, gradient / rows.shape[-1] + (self._decay * x if self._decay else 0.0)

    def _scores(self, x: Array, features: Array) -> tuple[Array, Array]:
        """Return the last layer's inputs, including a one, and the scores of the classes."""
        units = features
        if self._hidden:
            into = x[..., : self._first].reshape(*x.shape[:-1], -1, self._hidden)
            units = np.empty((*features.shape[:-1], self._hidden + 1))
            np.maximum(features @ into, 0, out=units[..., :-1])
            units[..., -1] = 1
        return units, units @ self._weights(x)

    def _weights(self, x: Array) -> Array:
        return x[..., self._first :].reshape(*x.shape[:-1], *self._shape)


def _flat(gradients: Array) -> Array:
    return gradients.reshape(*gradients.shape[:-2], -1)


def _own(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(labels.size), labels.ravel()


def _totals(scores: Array) -> tuple[Array, Array]:
    """Return exponentials of scores (..., samples, classes), and their sums over classes."""
    # in place; without the largest score an exponential could overflow
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    exponentials = np.exp(scores)
    return exponentials, np.add.reduce(exponentials, axis=-1, keepdims=True)


def _mean_loss(scores: Array, totals: Array, labels: np.ndarray) -> Any:
    """Return the mean negative log-likelihood of `labels` (..., samples)."""
    own_scores = scores.reshape(-1, scores.shape[-1])[_own(labels)].reshape(labels.shape)
    return (np.log(totals[..., 0]) - own_scores).mean(axis=-1)


class _SoftmaxSource:
    _AHEAD = 64  # mini-batches per draw; the numbers do not depend on it

    def __init__(self, objective: SoftmaxRegression, rank: int) -> None:
        self._objective, epochs = objective, objective.epochs
        self._batches = epochs.batches(rank, objective.batch) if epochs else self._draws(rank)

    def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        loss, gradient = self._objective.at(x, self.next_rows())
        return float(loss), gradient

    def next_rows(self) -> np.ndarray:
        """Return the next mini-batch as indices of training samples, shape (batch,)."""
        return next(self._batches)

    def _draws(self, rank: int) -> Iterator[np.ndarray]:
        share, size = self._objective.shares[rank], (self._AHEAD, self._objective.batch)
        rng = generator(self._objective.seed, Purpose.BATCH, rank)
        while True:
            yield from share[rng.integers(len(share), size=size)]

    def gradient(self, x: Vector) -> Vector:
        return self._objective.at(x, self.next_rows(), loss=False)[1]


def deal(
    labels: np.ndarray, workers: int, how: Partition, seed: int, sizes: Sequence[int] = ()
) -> list[np.ndarray] | None:
    """Return the indices of each worker's samples; None if all workers have the whole set.

    Every class is split over the workers by Dirichlet shares, and each worker gets data. With
    `sizes`, the samples of each worker, a worker draws that many by shares of the classes. `seed`:
    of the run, used if `how` has none. Raises InputError when there are too few samples.
    """
    if how == "iid" and not sizes:
        return None
    count, what = len(labels), f"cluster.workers = {workers}:"
    if max(workers, sum(sizes)) > count:
        what = f"cluster.samples: {sum(sizes)} in all," if sizes else what
        raise InputError(
            f"{what} more than the {count} training samples to share out; write fewer, or use "
            'more data, such as objective.kind = "torch" and objective.data = "fashion-mnist"'
        )
    alpha, given = (inf, None) if how == "iid" else (how.dirichlet, how.seed)
    rng = generator(seed if given is None else given, Purpose.OBJECTIVE)
    if sizes:
        return _drawn(labels, alpha, sizes, rng)
    shares: list[list[int]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(workers, alpha)))[:-1] * len(members)
        for share, part in zip(shares, np.split(members, cuts.astype(int)), strict=True):
            share.extend(part.tolist())
    for share in shares:
        if not share:
            share.append(max(shares, key=len).pop())
    return [np.array(share) for share in shares]


def _drawn(
    labels: np.ndarray, alpha: float, sizes: Sequence[int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw each worker's samples without replacement, with Dirichlet odds of the classes."""
    rest = rng.permutation(len(labels))
    if alpha == inf:
        return np.split(rest[: sum(sizes)], np.cumsum(sizes)[:-1])
    shares = []
    for size in sizes:
        odds = rng.dirichlet(np.full(labels.max() + 1, alpha)) + 1e-12
        # The least of exponential times are a sample by these odds (Efraimidis & Spirakis, 2006).
        order = np.argsort(rng.exponential(size=len(rest)) / odds[labels[rest]])
        shares.append(rest[order[:size]])
        rest = rest[order[size:]]
    return shares
