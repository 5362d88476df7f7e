"""Define `objective.kind = "torch"`: real gradients of a PyTorch model.

Vectors are NumPy arrays for the simulator's engines, with memory shared with torch on a CPU, and
tensors on the device for real runs; both use the same code.
"""

import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.objectives.objective import Evaluation
from paceline.simulator.objectives.plugins import ObjectiveError
from paceline.simulator.objectives.softmax import Epochs, deal
from paceline.simulator.programs.effects import Vector
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.scenario.tables import Torch

from ..host.device import numbered_device
from . import data, models
from .data import DeviceData
from .flat import Buffers, Flat
from .gradients import TorchSource, one_thread, seeded

PACKAGES = ("torch",)
EVALUATED = 10_000  # most training samples for the loss
CHARACTERS = 16_384  # the same for text, in characters
# Keys of streams of Purpose.OBJECTIVE, whose stream 0 distributes the data
PARAMETERS, SUBSET = 1, 2

with warnings.catch_warnings():  # silences a warning: torch never writes to read-only arrays
    warnings.simplefilter("ignore")
    torch.from_numpy(np.broadcast_to(np.zeros(1), 1))


class TorchObjective:
    """The cross-entropy of a model on a data set (`scenario.tables.Torch`).

    `dimension`: trainable parameters; `start`: their initial values (dimension,), which depend only
    on the seed. A worker's k-th mini-batch, and its dropout, depend only on (seed, worker, k)
    (`softmax.Epochs`). Each worker has separate buffers, such as BatchNorm's statistics, which are
    averaged for evaluation. A gradient is the sum over `accumulation` micro-batches. Raises
    ObjectiveError.
    """

    def __init__(
        self, spec: Torch, workers: int, seed: int, accumulation: int = 1, sizes: Sequence[int] = ()
    ) -> None:
        self._batch, self._seed, self.weight_decay = spec.batch, seed, spec.weight_decay
        self._accumulation = accumulation
        try:
            self.device = numbered_device(spec.device)
        except LookupError as error:
            raise ObjectiveError(("objective", "device"), str(error)) from None
        dataset = data.load_named(spec.data, spec.folder)
        samples = len(dataset.train_y)
        key = int(generator(seed, Purpose.OBJECTIVE, PARAMETERS).integers(2**63))
        dtype: torch.dtype = getattr(torch, spec.dtype)
        with seeded(key):
            module = models.find(spec.model)(dataset.shape, dataset.classes).to(dtype)
            untouched = Buffers(module)
            self.random = _try(
                module,
                torch.zeros(min(2, spec.batch), *dataset.shape, dtype=dtype),
                (dataset.classes, *dataset.train_y.shape[1:]),
            )
        untouched.use()
        module.to(self.device).train()
        self.flat = Flat(module)
        self._first, self._evaluated = Buffers(module), Buffers(module)
        self.dimension = self.flat.dimension
        self.start = self.flat.start.cpu().numpy().copy()
        self.start.flags.writeable = False
        self.samples = DeviceData(dataset, dtype, self.device)
        text = dataset.train_y.ndim > 1
        if text and spec.partition != "iid":
            problem = 'distributes samples by their label, which text lacks; write "iid"'
            raise ObjectiveError(("objective", "partition"), problem)
        shares = deal(dataset.train_y, workers, spec.partition, seed, sizes)
        self.sizes = [*map(len, shares)] if shares else None
        self.epochs = Epochs(samples, workers, seed, shares)
        self.notes: tuple[str, ...] = (dataset.note,) if dataset.note else ()
        self._rows, self._labels = np.arange(samples), dataset.train_y[0].size
        most = max(1, CHARACTERS // self._labels) if text else EVALUATED
        if samples > most:
            order = generator(seed, Purpose.OBJECTIVE, SUBSET).permutation(samples)
            self._rows = np.sort(order[:most])
            self.notes += (f"losses are those of {most:,} of the {samples:,} training samples",)
        self._sources: dict[int, TorchSource] = {}

    def source(self, rank: int) -> TorchSource:
        """Return the gradients of worker `rank`, from its first step on."""
        self._first.use()

        def key(step: int) -> int:
            stream = generator(self._seed, Purpose.BATCH, rank, 0, step)
            return int(stream.integers(2**63))

        rule = self.weight_decay, key if self.random else None, self._accumulation
        batches, buffers = self.epochs.batches(rank, self._batch), Buffers(self.flat.module)
        self._sources[rank] = TorchSource(self.flat, self.samples, batches, buffers, *rule)
        return self._sources[rank]

    def evaluate(self, x: Vector, step: float, buffers: Vector | None = None) -> Evaluation:
        """Return training loss (over at most `EVALUATED` samples), accuracy and test loss.

        They are computed in evaluation mode at `x` (dimension,), an array or a tensor, with flat
        `buffers`, by default the average of all sources' buffers.
        """
        if buffers is None:
            flats = [source.buffers() for source in self._sources.values()] or [self._first.flat]
            buffers = torch.stack(flats).mean(dim=0)
        self._evaluated.flat.copy_(self.flat.tensor(buffers))
        self._evaluated.use()
        self.flat.go_to(self.flat.tensor(x))
        module = self.flat.module.eval()
        try:
            with torch.no_grad(), one_thread(self.device):
                loss: Any = sum(
                    functional.cross_entropy(module(inputs), labels, reduction="sum").double()
                    for inputs, labels in self.samples.train_chunks(self._rows)
                )
                right, missed = [], 0.0
                for inputs, labels in self.samples.test_chunks():
                    scores = module(inputs)
                    right.append((scores.argmax(dim=1) == labels).flatten())
                    missed += float(functional.cross_entropy(scores, labels, reduction="sum"))
                hits = torch.cat(right).double()
                return Evaluation(
                    float(loss) / (len(self._rows) * self._labels),
                    float(hits.mean()),
                    missed / len(hits),
                )
        finally:
            module.train()


def _try(module: nn.Module, samples: Tensor, scored: tuple[int, ...]) -> bool:
    """Try a batch; return whether training is random. Raises ObjectiveError."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ObjectiveError(models.MODEL, "has no parameters to train; choose another model")
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            scores = module.train()(samples)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        problem = f"does not train on a batch of shape {tuple(samples.shape)} ({reason})"
        raise ObjectiveError(models.MODEL, f"{problem}; choose another model or batch") from None
    wanted = (len(samples), *scored)
    if not isinstance(scores, Tensor) or scores.shape != wanted:
        raise ObjectiveError(
            models.MODEL, f"does not return a tensor of shape {wanted}; choose another model"
        )
    return not torch.equal(before, torch.get_rng_state())


def check_workers(workers: int, samples: int) -> None:
    """Raise ObjectiveError if some workers would have no data."""
    if workers > samples:
        problem = f"more than the {samples} training samples to share out; use fewer"
        raise ObjectiveError(("cluster", "workers"), problem)


# The interface `objectives.plugins.ObjectivePlugin`


def make(scenario: Scenario, seed: int) -> TorchObjective:
    """Make a scenario's objective, on its device."""
    spec: Any = scenario.objective
    cluster, sizes = scenario.cluster, scenario.cluster.samples_of_workers
    objective = TorchObjective(spec, cluster.workers, seed, cluster.accumulation, sizes)
    if (travels := scenario.model.parameters) != objective.dimension:
        objective.notes += (
            f"model.parameters = {travels:,} are sent, but objective.model = {spec.model} has "
            f"{objective.dimension:,}",
        )
    return objective


def check(scenario: Scenario) -> None:
    """Raise ObjectiveError if model, data or device is not available here."""
    spec: Any = scenario.objective
    dimension(spec)
    if scenario.cluster.accumulation > spec.batch:
        problem = f"more than the objective.batch = {spec.batch} samples of a step; use fewer"
        raise ObjectiveError(("cluster", "accumulation"), problem)
    check_workers(scenario.cluster.workers, len(data.load_named(spec.data, spec.folder).train_y))


def dimension(spec: Torch) -> int:
    """Return the number of parameters. Raises ObjectiveError."""
    return _dimension(spec, models.find(spec.model), data.find(spec.data))


@cache
def _dimension(spec: Torch, *loaders: Any) -> int:
    """Cache `dimension` by the loaders that the names currently mean."""
    return TorchObjective(spec, 1, 0).dimension


def sources(spec: Torch) -> list[Path]:
    """Return the code files outside the simulator on which the numbers depend."""
    modules = {function.__module__ for function in (models.find(spec.model), data.find(spec.data))}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules)]
    return [*sorted(Path(__file__).parent.glob("*.py")), *(Path(file) for file in files if file)]
