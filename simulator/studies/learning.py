"""Apply learning curves: penalties for `theory`, and intervals of runs' losses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, inf, isfinite, log
from typing import Any

import numpy as np

from ..cluster.membership import stretched
from ..engines.dispatch import run_seeds, with_tuned_rate
from ..objectives.learning_curve import evidence
from ..objectives.learning_curve.objective import MECHANISM, Expected, Goal, size
from ..results.intervals import TAILS
from ..results.prediction_interval import PACE, TARGET, Errors, Models, TimeModel
from ..results.run import Run, diverged
from ..results.statistics import Groups, crossing
from ..results.wording import all_of
from ..scenario.cluster import Cluster
from ..scenario.scenario import Algorithm, Scenario, World
from ..scenario.tables import LearningCurve

LOST = "diverges at any learning rate: try a smaller outer_lr or alpha, or a larger buffer"


def expected(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run] = ()) -> Expected:
    """Return an algorithm's expected loss, with the mechanism's error read from its runs."""
    goal: Any = with_tuned_rate(World(scenario, algorithm)).scenario.objective
    model: Expected = getattr(goal, "expected", goal)
    if not isinstance(goal, Goal) and model.followed is None:
        return model
    ratios = [
        run.curve["loss"][-1] / float(model.parallel(run.steps))
        for run in runs or run_seeds(scenario, algorithm, [0])
        if run.steps and not diverged(run)
    ]
    ratio = log(sum(ratios) / len(ratios)) if ratios else inf
    share, place = MECHANISM["share"] * ratio, (model.workers, model.period, size(scenario))
    errors = model.errors
    if isfinite(share):
        errors = errors + share * evidence.drawn(f"ratio of {algorithm.name}", place)
    return replace(model, log_ratio=ratio, sd=float(np.hypot(model.sd, share)), errors=errors)


def penalties(scenario: Scenario) -> list[dict[str, Any]]:
    """Return every algorithm's loss over data-parallel training's (inf: diverges) and its basis."""
    if not isinstance(scenario.objective, LearningCurve):
        return []
    rows = []
    for algorithm in scenario.algorithm:
        model = expected(scenario, algorithm)
        grown = float(model.ramp(model.steps))
        at, ends = model.log_ratio * (grown if model.direct else 1.0), None
        if isfinite(model.sd):
            ends = np.exp(np.minimum(evidence.ends(at, model.errors, grown), 700)).tolist()
        rows.append({
            "label": algorithm.label,
            "workers": model.workers,
            "ratio": exp(at),
            "interval90": ends,
            "basis": model.basis,
            "sentence": f"{LOST}; " * (at == inf) + model.sentence,
        })  # fmt: skip
    return rows


def models(scenario: Scenario, groups: Groups) -> dict[str, Expected]:
    """Return the models of losses on a learning curve, by label."""
    if not isinstance(scenario.objective, LearningCurve):
        return {}
    losses = {
        algorithm.label: expected(scenario, algorithm, groups[algorithm.label])
        for algorithm in scenario.algorithm
        if algorithm.label in groups
    }
    return {label: one for label, one in losses.items() if isfinite(one.sd)}


def errors(
    scenario: Scenario,
    groups: Groups,
    losses: Mapping[str, Expected],
    links: Mapping[str, TimeModel],
) -> Models:
    """Return errors of losses and times beyond the spread over seeds, by label."""
    result = dict[str, Errors]()
    quantity = TARGET if scenario.run.target_loss else PACE
    for algorithm in (algorithm for algorithm in scenario.algorithm if algorithm.label in groups):
        model = links.get(algorithm.label)
        times = model.factors(algorithm.name, quantity) if model else None
        if algorithm.label in losses or times is not None:
            result[algorithm.label] = Errors(losses.get(algorithm.label), times, model)
    return result


def rest(model: Any) -> str:
    """Return the basis of an algorithm's loss, in words."""
    return f"{model.basis} ({'; '.join(model.why)})" if model.why else model.basis


def notes(models: Mapping[str, Any]) -> list[str]:
    """Return notes on the basis of losses, by label."""
    labels: dict[str, list[str]] = {}
    for label, model in models.items():
        labels.setdefault(rest(model), []).append(label)
    whole = "; ".join(f"{basis}: {all_of(names)}" for basis, names in labels.items())
    return [f"basis of losses: {whole}"] if whole else []


def intervals(
    cluster: Cluster,
    model: Expected,
    runs: Sequence[Run],
    stated: dict[str, list[float] | None],
    target: float | None,
) -> dict[str, list[float] | None]:
    """Add 90 % intervals of the last loss and the time to the target to those `stated`.

    Every draw of curve, critical batch and penalty uses one run, and so the spread over seeds.
    """
    lasts = [run.curve["loss"][-1] for run in runs]
    ends = {**stated, "loss": _of_runs(lasts, Errors(model).of_loss(runs, inf))}
    if target is None:
        return ends
    times = [crossing(run, target) for run in runs]
    until = times if any(map(isfinite, times)) else [run.duration for run in runs]
    steps, mean = Errors(model).to_target(runs, target), sum(until) / len(until)
    factors = stretched(cluster, mean, steps)  # clients compute only in some hours
    return ends | {TARGET: of_steps(until, factors, stated.get(TARGET) if until is times else None)}


def of_steps(
    times: Sequence[float], factors: np.ndarray, within: Sequence[float] | None
) -> list[float]:
    """Return the 90 % interval of the time to a loss: errors of steps, and `within` of times."""
    low, high = _of_runs(times, factors)
    centre = sum(times) / len(times)
    if within and 0 < centre < inf:
        low, high = (
            centre * exp(side * float(np.hypot(log(centre / end), log(centre / other))))
            if 0 < end < inf and 0 < other < inf else max(end, other)
            for side, end, other in ((-1, low, within[0]), (1, high, within[1]))
        )  # fmt: skip
    return [low, high]


def _of_runs(values: Sequence[float], factors: np.ndarray) -> list[float]:
    drawn = factors * [values[draw % len(values)] for draw in range(len(factors))]
    return [*map(float, np.quantile(drawn, TAILS, method="inverted_cdf"))]
