"""What is left of a run under each setting: its simulated loss over steps, and its step time."""

import math
import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.network.mean_cost import mean_cost
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.scenario import Algorithm, Scenario

from .inputs import Inputs
from .telemetry import Settings, Telemetry, period

SEEDS = 8  # whose mean is a curve
POINTS = 250
FOLLOW = 0.5  # weight of a round's loss against where the curves put the run by now
AT_ONCE = 1.0  # CPU seconds that a run may begin with
ODD = 1.5  # factor of the predicted steps that is not chance, over a fall by e
SAME = 0.05  # relative difference of traffic that is rounding of rounds


def configured(algorithm: Algorithm, settings: Settings) -> Algorithm:
    """Return an algorithm with some parameters set as a scenario would write them."""
    written = {**algorithm.written, **settings}
    parsed = catalogue()[algorithm.name].parse(written)
    return algorithm.model_copy(update={"written": written, "parameters": parsed})


@dataclass(frozen=True)
class Curve:
    """The loss of one setting over its steps: the mean over seeds, the least so far.

    Settings are compared by the steps between two losses, so that a run may go over from one
    setting's curve to another's at its present loss.
    """

    steps: np.ndarray
    falls: np.ndarray  # minus the logarithm of the loss, ascending
    traffic: float  # bytes over all links per step

    def at(self, loss: float) -> float:
        """Return the step at which the loss is reached; infinite if it is not."""
        fall = -math.log(max(loss, 1e-300))
        if fall > self.falls[-1]:
            return math.inf
        return float(np.interp(fall, self.falls, self.steps))

    def after(self, loss: float, steps: float) -> float:
        """Return the loss `steps` steps after `loss`; what the curve does not show stays."""
        begin = min(self.at(loss), float(self.steps[-1]))
        fall = float(np.interp(begin + steps, self.steps, self.falls))
        return min(loss, math.exp(-fall))


def simulated(
    scenario: Scenario, algorithm: Algorithm, steps: int, noise: float
) -> tuple[Curve, float]:
    """Simulate the loss over `steps` steps; return it and the CPU seconds used.

    `noise`: factor of the gradients' noise as the scenario has it.
    """
    began = time.process_time()
    evaluated = {"steps": steps, "duration": None, "evaluate_every": max(1, steps // POINTS)}
    goal: Any = scenario.objective
    if noise != 1:
        goal = goal.model_copy(update={"noise": goal.noise * noise})
    cost, hops = mean_cost(scenario), max(1, scenario.cluster.workers - 1)
    took = Constant.model_validate({"value": f"{cost.latency / 2!r} s"})
    # the loss by steps hardly depends on how the network does it: a star of the same cost
    rate = 2 * hops * scenario.model.bytes / cost.transmission if cost.transmission else 1e15
    network = Network(collective="star", latency=took, bandwidth=f"{8 * rate!r} bit/s")  # type: ignore[arg-type]
    length = scenario.run.model_copy(update=evaluated)
    world = scenario.model_copy(update={"run": length, "objective": goal, "network": network})
    runs = run_seeds(world, algorithm, range(SEEDS))
    points = min(len(run.curve["loss"]) for run in runs)
    losses = np.mean([run.curve["loss"][:points] for run in runs], axis=0)
    falls = np.maximum.accumulate(-np.log(np.maximum(losses, 1e-300)))
    fresh = np.append(True, np.diff(falls) > 0)
    traffic = sum(runs[0].links.values()) / runs[0].steps
    curve = Curve(np.array(runs[0].curve["step"][:points])[fresh], falls[fresh], traffic)
    return curve, time.process_time() - began


def _begun(task: Any) -> "subprocess.Popen[bytes]":
    """Start simulating in a process of one thread at the lowest priority.

    Not by multiprocessing, which would run the user's script again to find what it needs.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import _serve; _serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # not interrupted with the run, which ends it
        env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(task))
    process.stdin.close()
    process.stdin = None  # so that `communicate` only reads
    return process


def _serve() -> None:
    """Simulate the task on stdin, and write the curve and all CPU seconds to stdout."""
    os.nice(19)
    curve, _ = simulated(*pickle.load(sys.stdin.buffer))
    with suppress(BrokenPipeError), os.fdopen(1, "wb") as out:  # the run may have ended
        out.write(pickle.dumps((curve, time.process_time())))


class Outlook:
    """Predicts what is left of a run under each candidate setting.

    `candidates`: settings, the first those of the pick; `steps`: of the simulated curves. `share`
    of one core may be used to simulate them in a process of their own; None: at once, in this one.
    """

    KEPT: ClassVar = ("loss", "noise", "spent", "_curves", "_stretch")

    def __init__(
        self,
        scenario: Scenario,
        algorithm: Algorithm,
        candidates: Sequence[Settings],
        steps: int,
        share: float | None = 0.01,
    ) -> None:
        self.candidates = list(candidates)
        self.loss = math.nan  # of the run at present
        self.noise, self.spent = 1.0, 0.0
        self._scenario, self._steps, self._share = scenario, steps, share
        self._algorithms = [configured(algorithm, settings) for settings in candidates]
        self._family = catalogue()[algorithm.name].family
        self._curves: dict[tuple[int, float], Curve] = {}
        self._under_way: tuple[tuple[int, float], subprocess.Popen[bytes]] | None = None
        self._stretch: list[tuple[int, int, float]] = []  # setting, steps, loss before them

    @property
    def ready(self) -> bool:
        """Whether every candidate's curve is known, for the noise as fitted."""
        return all(self.curve(index) for index in range(len(self.candidates)))

    def curve(self, index: int, noise: float | None = None) -> Curve | None:
        """Return a candidate's curve; None where it is yet to be simulated."""
        return self._curves.get((index, self.noise if noise is None else noise))

    def learn(self, clock: float, wanted: Sequence[tuple[int, float]] | None = None) -> None:
        """Simulate `wanted` (default: all candidates) as far as CPU time allows.

        `clock`: seconds since the run began.
        """
        if wanted is None:
            wanted = [(index, self.noise) for index in range(len(self.candidates))]
        if self._under_way and self._under_way[1].poll() is not None:
            key, process = self._under_way
            self._under_way = None
            self._keep(key, *pickle.loads(process.communicate()[0]))
        for key in (key for key in wanted if key not in self._curves):
            task = self._scenario, self._algorithms[key[0]], self._steps, key[1]
            if self._share is None:
                self._keep(key, *simulated(*task))
            elif not self._under_way and self.affords(clock):
                self._under_way = key, _begun(task)
                weakref.finalize(self, self._under_way[1].kill)

    def close(self) -> None:
        """End the simulation under way."""
        if self._under_way:
            self._under_way[1].kill()
            self._under_way[1].communicate()
            self._under_way = None

    def affords(self, clock: float) -> bool:
        """Tell whether the CPU time spent so far is within the share."""
        return self._share is None or self.spent <= AT_ONCE + self._share * clock

    def _keep(self, key: tuple[int, float], curve: Curve, cpu: float) -> None:
        self._curves[key] = curve
        self.spent += cpu

    def follow(self, index: int, record: Telemetry) -> bool:
        """Take in a round under candidate `index`; tell whether the noise was fitted anew."""
        seen, fitted = record.first_loss, False  # of the model that all workers begin with
        curve = self.curve(index)
        if curve is None:
            return False
        if math.isnan(self.loss) and not seen > 0:
            self.loss = curve.after(math.exp(-curve.falls[0]), record.step - record.steps)
        if not (math.isfinite(seen) and seen > 0):
            seen = self.loss  # nothing was seen: as the curves say
        else:
            if math.isfinite(self.loss):
                seen = self.loss ** (1 - FOLLOW) * seen**FOLLOW
            self._stretch.append((index, record.steps, seen))
            fitted = self._refit(record.clock)
        self.loss = curve.after(seen, record.steps)  # where the round led to
        return fitted

    def _refit(self, clock: float) -> bool:
        """Fit the noise to the steps of the loss's last fall by e; tell if it moved.

        More noise takes more steps near the floor. Half and twice the noise are tried where the
        steps are odd.
        """
        begun, last = self._stretch[0][2], self._stretch[-1][2]
        if begun < math.e * last:
            return False
        steps = sum(count for _, count, _ in self._stretch[:-1])
        misses = {}
        noisy = hasattr(self._scenario.objective, "noise")  # of a learning curve no factor is known
        for factor in (1.0, 2.0, 0.5) if noisy else ():
            noise = self.noise * factor
            needed = [(index, noise) for index in sorted({stretch[0] for stretch in self._stretch})]
            self.learn(clock, needed)
            if any(key not in self._curves for key in needed):
                return False
            taken = 0.0
            for (index, _, since), (_, _, to) in pairwise(self._stretch):
                curve = self._curves[index, noise]
                taken += min(curve.at(to), self._steps) - min(curve.at(since), self._steps)
            misses[noise] = abs(math.log(max(taken, 1.0) / steps))
            if factor == 1 and misses[noise] < math.log(ODD):
                break
        self._stretch = self._stretch[-1:]
        best = min(misses, key=misses.__getitem__, default=self.noise)
        moved, self.noise = best != self.noise, best
        return moved

    def to_go(
        self, index: int, record: Telemetry, current: int, inputs: Inputs, **scale: float
    ) -> float:
        """Return a candidate's seconds to the target; without one, the final loss.

        `current`: the candidate that the `record` is of; `scale`: as `Inputs.step_time` has it.
        """
        curve, here = self.curve(index), self.curve(current)
        assert curve is not None
        assert here is not None  # as `ready` says
        settings = self._algorithms[index].parameters | self.candidates[index]
        size = record.bytes
        if here.traffic:
            traffic = curve.traffic * period(self.candidates[index])
            ratio = traffic / (here.traffic * period(self.candidates[current]))
            size *= ratio if abs(ratio - 1) > SAME else 1.0
        step_time = inputs.step_time(self._family, settings, size, **scale)
        run = self._scenario.run
        if run.target_loss is not None:
            end = curve.at(run.target_loss)
            return (end - min(end, curve.at(self.loss))) * step_time if math.isfinite(end) else end
        left = (run.duration or math.inf) - record.clock
        return curve.after(self.loss, min(left / step_time, self._steps))
