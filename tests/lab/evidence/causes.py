"""Why learning curves predict the mlp and softmax worse than the calibrated quadratic: experiments.

`python -m tests.lab.evidence causes` prints the figures of docs/evidence/error-model.md,
"From a learning curve", from the committed curves and, for diloco's momentum and asgd's rate, from
runs made here.
"""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.simulator.objectives.learning_curve import objective
from paceline.simulator.objectives.learning_curve.curve import Curve
from tests.lab.bench import error_model
from tests.lab.evidence import small
from tests.lab.evidence.small import FITTED, Curves, Group

FOUR = 64.0  # samples of a step of four workers
PATIENT = 0.25  # of the shared rate


@dataclass(frozen=True)
class Measured(Curve):
    """The losses that were measured, in the place of the law fitted to them."""

    logs: Any = None  # of tokens and losses, ever lower

    def loss(self, tokens: Any) -> Any:
        """Return the loss, by the nearest measured ones."""
        at, seen = self.logs
        x = np.log(np.asarray(tokens, float) + 1.0)
        beyond = (seen[-1] - seen[-4]) / (at[-1] - at[-4])
        return np.exp(np.interp(x, at, seen) + beyond * np.maximum(x - at[-1], 0.0))

    def tokens_to(self, loss: float) -> float:
        """Return the tokens to a loss."""
        at, seen = self.logs
        return math.exp(np.interp(-math.log(loss), -seen, at)) - 1.0


def measured(known: Curve, curve: np.ndarray) -> Measured:
    """Return a curve with the losses of ssgd on four workers."""
    losses = np.minimum.accumulate(curve[:, 2]) * (1 - 1e-9 * np.arange(len(curve)))
    logs = np.log([curve[:, 0] * FOUR + 1.0, losses])
    own = {key: getattr(known, key) for key in Curve.__dataclass_fields__}
    return Measured(**own | {"floor": 0.0}, logs=logs)


@contextmanager
def as_measured(curves: dict[Group, Curves]) -> Iterator[None]:
    """Let predictions have the measured losses for their curve."""
    fit = objective._baseline
    of: dict[str, np.ndarray] = {}

    def baseline(text: str, tokens: float, logged: bool) -> Curve:
        return measured(fit(text, tokens, logged), of["curve"])

    def errors(curves: Any, problem: str, data: str, fit: small.Fit = small.fitted) -> Any:
        of["curve"] = curves[Group(problem, data, *FITTED[0])]["ssgd"]
        return every(curves, problem, data, fit)

    every = small.errors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objective, "_baseline", baseline)
        patch.setattr(small, "errors", errors)
        yield


def step_factors(curves: Curves) -> dict[str, float]:
    """Return how many times ssgd's steps the others take to as low a loss (median)."""
    ssgd = curves["ssgd"]
    levels = error_model.levels(ssgd[:, 2].min(), ssgd[:, 2].max())

    def steps(curve: np.ndarray) -> np.ndarray:
        losses = np.minimum.accumulate(curve[:, 2])
        found = np.interp(-np.log(levels), -np.log(losses), curve[:, 0])
        return np.where(levels < losses[-1], np.nan, found)

    return {
        name: float(np.nanmedian(steps(curve) / steps(ssgd)))
        for name, curve in curves.items()
        if name.startswith("local-sgd")
    }


def overshoot(curves: dict[Group, Curves]) -> Iterator[str]:
    """Predict diloco on softmax's even data at three momenta, with runs made here."""
    table, steps = error_model.DATA["softmax"]
    with tempfile.TemporaryDirectory() as folder:
        ours = small.fitted(curves, "softmax", "iid", Path(folder))
        for momentum, rate in ((0.9, 0.7), (0.5, 0.7), (0.0, 1.0)):
            case = {"name": "diloco", "tau": 8, "inner": 0.0, "outer_momentum": momentum}
            case |= {"outer_lr": rate}
            yield f"| momentum {momentum}, outer rate {rate} | {late(table, ours, steps, case)} |"


def late(real: dict[str, Any], ours: dict[str, Any], steps: int, case: dict[str, Any]) -> str:
    """Return by how much the times of a program to six losses are missed, at four workers."""
    found = []
    for objective_table in (real, ours):
        scenario = error_model.world(objective_table, steps, 4, [case])
        (curve,) = paceline.simulate(scenario, seed=1, seeds=1).curves().values()
        found.append(np.column_stack([np.ravel(curve[k]) for k in ("step", "time", "loss")]))
    levels = error_model.levels(found[0][:, 2].min(), found[0][:, 2].max())
    times = np.array([[small.seconds(each, level) for level in levels] for each in found])
    off = 100 * (times[1] / times[0] - 1)
    middle, low, high = np.nanmedian(np.abs(off)), np.nanmin(off), np.nanmax(off)
    return f"median {middle:.1f} %, from {low:+.0f} to {high:+.0f} %"


def patient(rates: tuple[float, ...] = (1.0, PATIENT)) -> Iterator[str]:
    """Predict asgd and hybrid on the mlp's even data at shares of the rate, by runs made here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "HELD_OUT", small.HELD_OUT[:2])
        names = "ssgd", "asgd", "hybrid"
        few = [each for each in error_model.ALGORITHMS if each["name"] in names]
        patch.setattr(error_model, "ALGORITHMS", few)
        whole = error_model.DATA["mlp"]
        for share in rates:
            patch.setattr(error_model, "LR", 0.1 * share)
            patch.setitem(error_model.DATA, "mlp", (whole[0], int(whole[1] / share)))
            groups = [Group("mlp", "iid", *each) for each in (*FITTED, *small.HELD_OUT)]
            curves = {group: small.trained(group) for group in groups}
            for fit, words in ((small.fitted, "fitted"), (None, "as measured")):
                with as_measured(curves) if fit is None else tempfile.TemporaryDirectory():
                    found, _ = small.errors(curves, "mlp", "iid")
                shown = {k: 100 * np.median(np.abs(found[k])) for k in names}
                said = ", ".join(f"{k} {each:.1f} %" for k, each in shown.items())
                yield f"| rate {0.1 * share:g}, curve {words} | {said} |"


def report() -> Iterator[str]:
    """Yield the experiments' lines."""
    curves = small.known()
    yield "With the measured losses in the place of the curve:"
    with as_measured(curves):
        yield small.report()
    yield "Steps to as low a loss over ssgd's, softmax, dirichlet(0.3), 4 workers, seed 1:"
    found = step_factors(curves[Group("softmax", "dirichlet(0.3)", 4, 1)])
    yield ", ".join(f"{name} {each:.2f}" for name, each in found.items())
    yield "diloco's momentum, softmax, even data, 4 workers, seed 1:"
    yield from overshoot(curves)
    yield "The shared rate and a quarter of it, mlp, even data, 4 and 8 workers, seed 1:"
    yield from patient()
