"""Watch any training loop, and report when its pace or loss leave the prediction.

A `Watcher` gathers steps in windows of whole rounds, and tests every window by Page's sums. It
changes nothing in the loop, and imports neither torch nor a framework.
"""

import importlib
import logging
import math
import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.programs import catalogue
from paceline.simulator.results.intervals import NORMAL, TAILS, USUAL
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import crossing, human, number
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.scenario.tables import LearningCurve

from .steering.inputs import FEW, MEMORY, Drift

WINDOW, MOST_WINDOWS = 20, 10  # fewest steps of a window; most, for logs that show no round's end
PAUSE, LONG = 3.0, 20.0  # median steps from which a gap, and a step, are not training
ROOM = 1.1  # factor by which a loss may differ from those of all seeds, or from the law
SEEDS = 3  # seeds for the prediction of a pick of tune
RECENT = 8  # windows whose median predicts the rest
STAND_INS = ("none", "bound", "quadratic")  # objectives whose losses are not the user's
Amount = tuple[float, float, float]
"""A value, and the ends of its 90 % interval."""


@dataclass(frozen=True)
class Report:
    """A change that a watcher reports after a `step`; `since`: the step at which it began.

    `code`: "pace" (seconds per step), "loss", "not finite" (losses), or "status". `value`: the
    measured value; `predicted`: its interval; `ratio`: measured by predicted. `between`, `means`:
    ratios of the time of steps between means and at means, None if unknown. `seconds`: what the
    rest of the run takes, with its interval, None if unknown.
    """

    code: str
    step: int
    since: int
    sentence: str
    value: float = math.nan
    predicted: tuple[float, ...] | None = None
    ratio: float | None = None
    between: float | None = None
    means: float | None = None
    seconds: Amount | None = None


@dataclass(frozen=True)
class Prediction:
    """The prediction to watch; times in seconds.

    `steps`: of the whole run; `period`: of a round, 1 if steps are alike; `losses`: rows of a
    step and the ends of the loss's interval. `compute`: seconds that a worker computes per step,
    None if means overlap them.
    """

    label: str
    step_time: Amount
    steps: Amount
    period: int = 1
    losses: Sequence[tuple[float, float, float]] = ()
    compute: float | None = None


class Watcher:
    """A watcher of a loop; `reports`: its reports so far, which it also logs if `logs`."""

    def __init__(self, prediction: Prediction, start: int = 0, logs: bool = True) -> None:
        self.prediction, self.reports, self.taken = prediction, list[Report](), start
        self._logs, self._last = logs, time.perf_counter()
        self._rows: list[tuple[float, float, int, Any]] = []  # gap, seconds, steps, loss
        self._pending: tuple[int, list[Any]] | None = None  # the last window's losses
        self._windows = deque[tuple[float, ...]](maxlen=2 * MEMORY)
        self._rounds = deque[tuple[int, float]](maxlen=2 * MEMORY * WINDOW)  # first step, seconds
        self._pace, self._loss, self._finite = Drift(), Drift(), True
        self._firsts = deque[int](maxlen=MEMORY)  # first steps of the windows of `_loss`

    @contextmanager
    def step(self, loss: Any = None) -> Iterator[Any]:
        """Record the block as a step; it may set the `loss`, which is read a window later."""
        block, began = SimpleNamespace(loss=loss), time.perf_counter()
        yield block
        self.end(began, block.loss)

    def callback(self, framework: str) -> Any:
        """Return a callback for a Trainer of transformers or lightning, or accelerate's hook.

        The hook is for `optimizer.register_step_post_hook` of any loop with torch; set its `loss`.
        """
        places = {"transformers": "transformers.TrainerCallback", "accelerate": "builtins.object"}
        places["lightning"] = "lightning.pytorch.callbacks.Callback"
        if framework not in places:
            raise InputError(f"callback {framework!r}: unknown; choose one of: {', '.join(places)}")
        module, _, name = places[framework].rpartition(".")
        base = getattr(importlib.import_module(module), name)
        return type("Callback", (Events, base), {})(self)

    def end(self, began: float | None = None, loss: Any = None) -> None:
        """Record a step; `began`: its start by `time.perf_counter`, else the last step's end."""
        began = self._last if began is None else began
        now, detach = time.perf_counter(), getattr(loss, "detach", None)
        self._add(began - self._last, now - began, 1, detach() if detach else loss)
        self._last = now

    def add(self, step: int, seconds: float, steps: int = 1, loss: Any = None) -> None:
        """Record a line of a log: the seconds (nan: unknown) of the `steps` up to `step`."""
        self.taken = step - steps
        self._add(0.0, seconds, steps, loss)

    def _add(self, gap: float, seconds: float, steps: int, loss: Any) -> None:
        self._rows.append((gap, seconds, steps, loss))
        self.taken += steps
        covered, period = len(self._rows) * steps, self.prediction.period
        if covered >= WINDOW and (
            self.taken % period == 0 or covered >= MOST_WINDOWS * max(period, WINDOW)
        ):
            self._close_window()

    def _close_window(self) -> None:
        """Test the window that ends here; the first one is the loop's warm-up."""
        rows, self._rows = self._rows, []
        first = self.taken + 1 - sum(steps for _, _, steps, _ in rows)
        losses = [loss for *_, loss in rows if loss is not None]
        if self._pending is not None:
            self._test_pace(rows, first)
            self._test_loss(*self._pending)
        self._pending = first, losses if self._pending is not None else []

    def _test_pace(self, rows: Sequence[tuple[float, float, int, Any]], first: int) -> None:
        usual = median((gap + seconds) / steps for gap, seconds, steps, _ in rows)
        if not usual > 0:  # a log without times
            return
        times = [
            (seconds + gap * (gap < PAUSE * usual * steps)) / steps
            for gap, seconds, steps, _ in rows
        ]
        period, covered = self.prediction.period, self.taken + 1 - first
        size = period if len(rows) == covered else 1
        starts = first + np.cumsum([0, *(steps for _, _, steps, _ in rows)])
        self._rounds.extend(
            (int(starts[at]), _mean(times[at : at + size])) for at in range(0, len(times), size)
        )
        between = means = math.nan
        if period > 1 and len(rows) == covered and covered % period == 0:
            # a mean belongs to the step that ends its round, or to the next one
            ends = -first % period, (1 - first) % period
            place = max(ends, key=lambda end: sum(times[end::period]))
            means = _mean(times[place::period])
            del times[place::period]
            between = _mean(times)
            seconds = (between * (period - 1) + means) / period
        else:
            seconds = _mean(times)
        self._windows.append((first, seconds, between, means))
        if count := self._pace.add(seconds, *self.prediction.step_time[1:]):
            self._report(self._on_pace("pace", count, self._changed(count)))

    def _changed(self, count: int) -> int:
        """Return the step that splits the rounds of the last `count` windows by least squares."""
        since = self._windows[-min(count + 1, len(self._windows))][0]
        steps, times = np.array([one for one in self._rounds if one[0] >= since]).T
        before = np.arange(1, len(times))
        sums = np.cumsum(np.minimum(times, PAUSE * np.median(times)))
        after = len(times) - before
        apart = sums[:-1] / before - (sums[-1] - sums[:-1]) / after
        return int(steps[1 + int(np.argmax(apart**2 * before * after))])

    def _on_pace(self, code: str, count: int, since: int = 0) -> Report:
        """Return the report on the pace of the last `count` windows; `since`: its first step."""
        (expected, low, high), period = self.prediction.step_time, self.prediction.period
        recent, before = np.array(self._windows)[-count:], np.array(self._windows)[:-count]
        since, (_, now, *parts) = since or int(recent[0, 0]), np.median(recent, axis=0).tolist()
        predicted = dict.fromkeys((human(low), human(high)))
        sentence = (
            f"Since step {since}, a step takes {human(now)}: {now / expected:.3g} times the "
            f"prediction, which is {' to '.join(predicted)}."
        )
        compute = self.prediction.compute or math.nan
        usual, basis = [compute, (expected - compute) * period + compute], "predicted"
        if len(before) >= FEW:
            usual, basis = np.median(before[:, 2:], axis=0).tolist(), "before"
        between, means = (part / old for part, old in zip(parts, usual, strict=True))
        ratios = (between, means) if between > 0 and means > 0 else (None, None)
        if None not in ratios:
            sentence += (
                f" Steps between means take {between:.3g} times as long as {basis}, steps at means "
                f"{means:.3g} times."
            )
        ends = (low, high)
        return Report(code, self.taken, since, sentence, now, ends, now / expected, *ratios)

    def _test_loss(self, first: int, pending: Sequence[Any]) -> None:
        losses = [float(loss.item() if hasattr(loss, "item") else loss) for loss in pending]
        finite = [loss for loss in losses if math.isfinite(loss)]
        if losses and not finite and self._finite:
            sentence = f"No loss since step {first} is a finite number."
            self._report(Report("not finite", self.taken, first, sentence))
        self._finite = bool(finite) or not losses
        rows = self.prediction.losses
        if not finite or not rows or not (loss := fmean(finite)) > 0:
            return
        row = bisect_right(rows, (first + len(losses) / 2, math.inf)) - 1
        low, high = rows[max(row, 0)][1:]
        if not 0 < low <= high < math.inf:
            return
        self._firsts.append(first)
        if count := self._loss.add(loss, low, high):
            since = self._firsts[-count]
            where = "is back within" if low <= loss <= high else "has left"
            sentence = (
                f"Since step {since}, the loss {where} its prediction: it is {number(loss)}, "
                f"predicted {number(low)} to {number(high)}."
            )
            now = self.taken, since, sentence
            middle = math.sqrt(low * high)
            self._report(Report("loss", *now, loss, (low, high), loss / middle))

    def _report(self, report: Report) -> None:
        self.reports.append(self._with_rest(report))
        if self._logs:
            text = self.reports[-1].sentence
            logging.getLogger("paceline").warning("%s: %s", self.prediction.label, text)

    def _with_rest(self, report: Report) -> Report:
        """Add the seconds that the rest of the run takes at recent pace."""
        recent = [seconds for _, seconds, *_ in self._windows][-RECENT:]
        if not recent or self.taken >= self.prediction.steps[2]:
            return report
        error = math.exp(NORMAL * self._pace.deviation / math.sqrt(len(recent)))
        step, low, high = (max(0.0, steps - self.taken) for steps in self.prediction.steps)
        seconds = step * median(recent), low * median(recent) / error, high * median(recent) * error
        most, least, longest = map(human, seconds)
        rest = f"The rest takes {most} ({USUAL}: {least} to {longest})."
        return replace(report, sentence=f"{report.sentence} {rest}", seconds=seconds)

    @property
    def status(self) -> Report | None:
        """Return the pace of the recent windows, None before there are any."""
        return self._with_rest(self._on_pace("status", RECENT)) if self._windows else None

    def close(self) -> None:
        """Test the losses of the last window."""
        if self._pending:
            self._test_loss(*self._pending)
        self._pending = None


class Events:
    """The events of a framework's loop; `loss`: that of the step under way."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.loss: Any = None
        self._began: float | None = None
        self._steps = 0

    def __call__(self, *_: Any, **__: Any) -> None:
        """Record a step: a hook after an optimizer's step, or the end of a Trainer's."""
        self.watcher.end(self._began, self.loss)
        self._began = self.loss = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin a step."""
        self._began = self._began or time.perf_counter()

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        """Take the mean loss of the last steps."""
        self.loss = (logs or {}).get("loss")

    on_step_end = __call__  # of a Trainer of transformers
    on_train_batch_start = on_step_begin  # of a Trainer of lightning

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        """End a batch of a Trainer of lightning, and perhaps a step, which may have several."""
        self.loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the watch."""
        self.watcher.close()


def _mean(times: Sequence[float]) -> float:
    """Return the mean of times; a longer time counts as LONG times the median."""
    most = LONG * median(times)
    return fmean(min(seconds, most) for seconds in times)


def _loss_interval(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]
) -> Callable[[int], tuple[float, float]]:
    """Return the interval of a measured loss by steps: of the law, or of near evaluations."""
    from paceline.simulator.studies.learning import expected

    curves = [(np.array(run.curve["step"]), np.array(run.curve["loss"])) for run in runs]
    if not isinstance(scenario.objective, LearningCurve):

        def between(step: int) -> tuple[float, float]:
            near: list[float] = []
            for steps, losses in curves:
                ends = np.searchsorted(steps, step, "right") - 1, np.searchsorted(steps, step)
                near += losses[np.clip(ends, 0, len(steps) - 1)].tolist()
            return min(near) / ROOM, max(near) * ROOM

        return between
    law = expected(scenario, algorithm, runs)
    ratios = [(steps, np.log(losses / law.parallel(steps))) for steps, losses in curves]

    def by_law(step: int) -> tuple[float, float]:
        low, high = np.quantile(law.factors(step), TAILS)
        loss = law.parallel(step) * np.exp([np.interp(step, *ratio) for ratio in ratios])
        return float(min(loss) * min(low, 1 / ROOM)), float(max(loss) * max(high, ROOM))

    return by_law


def _predicted(
    folder: Path, label: str | None
) -> tuple[Scenario, Algorithm, Sequence[Run], Mapping[str, Any]]:
    """Return an algorithm, its predicted runs (of tune's pick: simulated) and summary row."""
    from paceline.simulator.results import read
    from paceline.simulator.studies.simulate import simulate

    from .emit.emit import find

    pick = find(folder, label, allow_paths=True)
    scenario, algorithm, label = pick.scenario, pick.algorithm, pick.algorithm.label
    if (folder / "tune.json").is_file():
        result = simulate(scenario, seeds=SEEDS)
        return scenario, algorithm, result.runs, result.algorithms[0]
    results = read.read(folder)
    if not (runs := results.runs.get(label)):
        raise InputError(f"{folder}: {label} did not finish; name another by label")
    return scenario, algorithm, runs, results.rows[label]


def _step_time(runs: Sequence[Run], row: Mapping[str, Any]) -> Amount:
    """Return the predicted seconds per step; without an interval, that of all seeds."""
    paces = [run.duration / run.steps for run in runs]
    low, high = (row.get("interval90") or {}).get("seconds_per_step") or (min(paces), max(paces))
    return fmean(paces), float(low), float(high)


def watch(
    plan: Path | str, *, label: str | None = None, start: int = 0, logs: bool | None = None
) -> Watcher:
    """Return the watcher of a loop that runs the pick of a run folder, or another `label`.

    Write `with watcher.step() as step:` around every step, and set `step.loss` in the block.
    `start`: the steps before the first one here. `logs`: whether to log reports as warnings;
    default: in the process whose environment has RANK = 0 or no RANK. Raises InputError.
    """
    if not Path(plan).is_dir():
        raise InputError(f"{plan}: not a run folder; give one of paceline simulate or tune")
    scenario, algorithm, runs, row = _predicted(Path(plan), label)
    target, totals = scenario.run.target_loss, list[float]()
    for run in runs:
        end = math.inf if target is None else crossing(run, target)
        steps = np.interp(end, run.curve["time"], run.curve["step"])
        totals.append(float(steps) if math.isfinite(end) else run.steps)
    low, high = np.quantile(totals, TAILS).tolist()
    tau = algorithm.parameters.get("tau")
    tau = getattr(tau, "value", tau)
    losses: list[tuple[float, float, float]] = []
    if scenario.objective.kind not in STAND_INS:
        interval, last = _loss_interval(scenario, algorithm, runs), max(run.steps for run in runs)
        losses = [(step, *interval(step)) for step in np.geomspace(1, last, 200).round().tolist()]
    workers = (row.get("workers") or {}).get("compute")
    overlaps = catalogue()[algorithm.name].family != "blocking"
    prediction = Prediction(
        label=algorithm.label,
        step_time=_step_time(runs, row),
        steps=(fmean(totals), low, high),
        period=tau if isinstance(tau, int) and tau > 0 else 1,
        losses=losses,
        compute=None if overlaps or not workers else fmean(workers) / row["steps"],
    )
    first_rank = os.environ.get("RANK", "0") == "0"
    return Watcher(prediction, start, first_rank if logs is None else logs)
