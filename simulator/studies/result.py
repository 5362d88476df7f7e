"""The result of `simulate`, and the run directory written from it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from ..objectives import plugins
from ..objectives.build import bases
from ..objectives.learning_curve.objective import Expected
from ..results import (
    consumption,
    prediction_interval,
    statistics,
    store,
    usage,
)
from ..results.figures import curves, style
from ..results.figures.chart import Chart
from ..results.intervals import HEAVY
from ..results.prediction_interval import Errors, Uncalibrated, Unfitted
from ..results.run import Run, trace
from ..results.verdict import Known, Verdict, of_runs
from ..results.wording import Reason
from ..scenario.scenario import Algorithm, Scenario
from ..scenario.tables import LearningCurve
from . import learning
from .display import Display

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Result(Display):
    """The runs of a scenario, algorithm by algorithm and seed by seed.

    `resumed` counts the runs stored by an interrupted call. `replicates`: bootstrap replicates with
    redrawn numbers, if numbers come from a profile. `paired`: the measured runs that are predicted
    have the same delays as `runs`. `links`: errors of times by label, such as over TCP without a
    profile.
    """

    scenario: Scenario
    seeds: list[int]
    runs: list[Run]
    resumed: int = 0
    replicates: list[Run] = field(default_factory=list)
    paired: bool = False
    links: Mapping[str, Uncalibrated] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        """The engines that ran."""
        return ", ".join(sorted({run.engine for run in self.runs}))

    @cached_property
    def groups(self) -> dict[str, list[Run]]:
        """The runs by label."""
        return statistics.group(self.runs)

    @cached_property
    def algorithms(self) -> list[dict[str, Any]]:
        """One summary per algorithm, as in the JSON document."""
        return [self._summary(algorithm) for algorithm in self.scenario.algorithm]

    def _summary(self, algorithm: Algorithm) -> dict[str, Any]:
        scenario, runs = self.scenario, self.groups[algorithm.label]
        label, program = algorithm.label, scenario.programs[algorithm.name]
        unfitted = prediction_interval.unfitted(scenario, algorithm, program.family)
        model, missed = self.loss_models.get(label), self.links.get(label) or unfitted
        stated = self._intervals(runs, model, missed)
        row = {
            "label": algorithm.label,
            "name": algorithm.name,
            "parameters": algorithm.written,
            "bound": algorithm.bound,
            **self.statistics_of(algorithm, runs),
            "failures": usage.over_seeds([run.failures for run in runs]),
            "network": {"lines": usage.lines(runs)} if runs[0].lines else None,
            "workers": usage.over_seeds([run.workers for run in runs]),
            "bottleneck": usage.bottleneck(scenario.under(algorithm), algorithm, runs),
            **consumption.summary(scenario, runs, model, stated),
        }
        row["interval90_basis"] = prediction_interval.basis(scenario, missed)
        if stated:
            row["interval90"] = stated
        for quantity, interval in stated.items():
            row[quantity] = row[quantity] | {"interval90": interval}
        return dict(statistics.jsonable(row))

    def statistics_of(self, algorithm: Algorithm, runs: Sequence[Run]) -> dict[str, Any]:
        """Return the statistics of some runs of an algorithm; see `statistics.summarise`."""
        scenario = self.scenario
        return statistics.summarise(
            runs,
            target=scenario.run.target_loss,
            workers=scenario.participants(algorithm),
            ideal_rate=scenario.team.ideal_rate,
            heavy=scenario.heavy_tailed,
        )

    def _intervals(
        self, runs: Sequence[Run], model: Expected | None, missed: Unfitted | None
    ) -> dict[str, list[float] | None]:
        """Return the 90 % intervals of an algorithm's `runs` in tables, by quantity."""
        scenario, target = self.scenario, self.scenario.run.target_loss
        ends: dict[str, list[float] | None] = {}
        if self.replicates or missed:
            again = [run for run in self.replicates if run.label == runs[0].label]
            ends = prediction_interval.intervals(
                runs, again, target=target, paired=self.paired, model=missed
            )
        if model is not None:
            return learning.intervals(scenario.cluster, model, runs, ends, target)
        by_curve = isinstance(scenario.objective, LearningCurve)
        return ends | {"loss": None} if by_curve else ends

    @cached_property
    def loss_models(self) -> dict[str, Expected]:
        """The models of losses on a learning curve, by label."""
        return learning.models(self.scenario, self.groups)

    @cached_property
    def errors(self) -> dict[str, Errors]:
        """Errors of losses and times beyond the spread over seeds, by label."""
        stated = {row["label"]: row.get("interval90", {}) for row in self.algorithms}
        errors = learning.errors(self.scenario, self.groups, self.loss_models, self.links)
        return {label: one._replace(stated=stated[label]) for label, one in errors.items()}

    @property
    def loss_basis(self) -> str | None:
        """The basis of the pick's loss; None without a loss."""
        by_label = bases(self.scenario)
        return by_label.get(self.verdict.pick or "", next(iter(by_label.values()), None))

    @cached_property
    def verdict(self) -> Verdict:
        """The answer: the algorithm to use, and how sure that is."""
        scenario = self.scenario
        known = Known(
            scenario.heavy_tailed,
            scenario.deterministic,
            bases(scenario),
            self.errors,
            {row["label"]: row for row in self.algorithms},
            {algorithm.label: algorithm.name for algorithm in scenario.algorithm},
            equal_tokens(scenario),
            of_loss=any(errors.loss for errors in self.errors.values()),
            trials={k: errors.loss.trial for k, errors in self.errors.items() if errors.loss},
        )
        answer, free = of_runs(self.groups, scenario.run.target_loss, known), free_codecs(scenario)
        if not free:
            return answer
        doubt, answers = Reason("free-codec", {"labels": free}), {answer.pick, *answer.candidates}
        first = bool(answers & {*free})
        reasons = [doubt, *answer.reasons] if first else [*answer.reasons, doubt]
        return replace(answer, reasons=reasons)

    @property
    def pick(self) -> dict[str, Any]:
        """The verdict with the terms of its order, as in JSON."""
        return self.verdict.keys

    @cached_property
    def notes(self) -> list[str]:
        """Warnings and explanations for readers of the numbers."""
        return [
            *self.scenario.notes,
            *consumption.paces(self.scenario),
            *statistics.notes(self.groups),
            *learning.notes(self.loss_models),
            *prediction_interval.extrapolation(self.scenario),
            *([HEAVY] if self.scenario.heavy_tailed and len(self.seeds) > 1 else []),
        ]

    def curves(self) -> dict[str, dict[str, np.ndarray]]:
        """Return each label's columns (`results.run.COLUMNS`) as arrays of shape (seeds, points).

        The points are those at the steps that every seed has evaluated.
        """
        return {label: statistics.aligned(runs) for label, runs in self.groups.items()}

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per evaluation, a row of a data frame.

        Its keys are label, seed and `results.run.COLUMNS`.
        """
        return statistics.records(self.runs)

    def _chart(self) -> Chart | None:
        if not all(runs[0].curve["time"] for runs in self.groups.values()):
            return None
        return self._drawn(curves.error)

    def _drawn(self, draw: Callable[..., T]) -> T:
        """Draw the runs by a function of `figures.curves`."""
        scenario = self.scenario
        return draw(
            curves.of_groups(self.groups, self.algorithms),
            title=scenario.title,
            target=scenario.run.target_loss,
            loss=curves.LOSS_NAMES.get(scenario.objective.kind, "loss"),
        )

    def language(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a language model's perplexity and share of loss above data-parallel training's."""
        last, verdict = row["loss"]["last"], self.verdict
        if not isinstance(self.scenario.objective, LearningCurve) or last is None:
            return {}
        spent = verdict.spent.get(row["label"])
        share = spent.above if spent and row["label"] != verdict.baseline else None
        above = share and {
            "label": verdict.baseline, "value": share.value, "interval90": share.interval,
        }  # fmt: skip
        return dict(statistics.jsonable({"perplexity": math.exp(last), "above": above}))

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline simulate --json`."""
        scenario = self.scenario
        return {
            "scenario": {"title": scenario.title, "file": scenario.file},
            "engine": self.engine,
            "seeds": self.seeds,
            "versions": plugins.versions(scenario.objective),
            "algorithms": [
                row | {"loss": row["loss"] | self.language(row)} for row in self.algorithms
            ],
            "loss_basis": self.loss_basis,
            "verdict": self.verdict.json(),
            "pick": self.pick,
            "notes": self.notes,
        }


def save(
    result: Result,
    directory: store.Directory,
    *,
    summary: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    whole: bool = True,
) -> None:
    """Write the run directory of `result`; `summary` and `files` are added to it.

    `whole`: whether no run is missing; then the runs stored for resuming are removed.
    """
    scenario = result.scenario
    written = {
        "curves.csv": statistics.csv_table(result.runs),
        "timeline.json": store.dump(trace(result.groups), indent=None),
        **(files or {}),
    }
    draw = partial(result._drawn, curves.figures)
    outcome = result.json() | dict(summary or {})
    document = {
        "scenario": {"title": scenario.title, "file": scenario.file, "table": scenario.table},
        "seeds": result.seeds,
        "versions": plugins.versions(scenario.objective),
        "verdict": outcome["verdict"],
        "summary": outcome,
    }
    finish = directory.finish if whole else directory.replace
    style.save(draw, lambda figures: finish({**figures, **written}, document), directory.path)


def equal_tokens(scenario: Scenario) -> bool:
    """Return whether all runs use equal tokens, so that time is weighed against loss."""
    run = scenario.run
    by_tokens = isinstance(scenario.objective, LearningCurve) and scenario.cluster.sampling is None
    return by_tokens and run.duration is None and run.steps is not None


def free_codecs(scenario: Scenario) -> list[str]:
    """Return the algorithms whose codec takes no time, as by default."""
    timed = {"raw", *(cost.kind for cost in scenario.codec if cost.compress + cost.decompress)}
    free = list[str]()
    for algorithm in scenario.algorithm:
        codec: Any = algorithm.parameters.get("codec")
        if getattr(codec, "kind", "raw") not in timed and not codec.compress + codec.decompress:
            free.append(algorithm.label)
    return free
