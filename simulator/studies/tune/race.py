"""Race configurations with more and more seeds, until they are surely worse.

All share their seeds (common random numbers). A run is cut as soon as its configuration's mean must
exceed the best by `margin` (adaptive capping: Hutter, Hoos, Leyton-Brown and Stützle, JAIR 2009).
Others run again for longer.

Configurations are proposed in batches of a fixed size, by a generator seeded by the batch, from the
outcomes of earlier batches. So neither the number of processes nor an interruption changes the
answer: a resumed search repeats the same proposals, and finds the stored runs.
"""

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from pydantic import ValidationError

from ...errors import InputError
from ...objectives import plugins
from ...results import statistics, store
from ...results.documents import adapter
from ...results.figures.style import FORMATS
from ...results.intervals import ROUNDING
from ...results.prediction_interval import NO_ERRORS
from ...scenario.scenario import Scenario
from .. import executors, learning, links
from ..execution import Execution, Progress, Task
from ..executors import Place
from .objective import Modelled, Score, TuningObjective
from .space import Candidate, Point, Space

Run = tuple[Scenario, int]
"""A scenario, whose first algorithm is run, and the seed."""
FIGURES = ("tune", "tune-tradeoffs")


class TuneDirectory(store.RecordDirectory):
    """A directory that a search is writing, with the scores of finished runs as records."""

    whole, parts, log = "tune.json", ".tune", "runs.jsonl"
    names = (whole, *(f"{name}.{kind}" for name in FIGURES for kind in FORMATS))

    def find(self, key: str) -> Score | None:
        """Return the valid score stored under `key`, or None."""
        with suppress(KeyError, ValidationError):
            score: Score = adapter(Score).validate_python(self.kept[key])
            return score
        return None

    def keep(self, key: str, result: Any) -> None:
        """Store a score."""
        super().keep(key, statistics.jsonable(result))


def run_block(
    objective: TuningObjective, execution: Execution, tasks: Sequence[Run]
) -> list[Score]:
    """Run and score seeds of one scenario in this process."""
    scenario = tasks[0][0]
    (algorithm,) = scenario.algorithm[:1]
    runs = execution.run(scenario, algorithm, [seed for _, seed in tasks])
    groups = {algorithm.label: runs}
    losses = learning.models(scenario, groups)
    missed = links.time_error_models(scenario, groups, execution)
    errors = learning.errors(scenario, groups, losses, missed).get(algorithm.label, NO_ERRORS)
    model = losses.get(algorithm.label)
    return [objective.score(run, scenario, model, errors) for run in runs]


BATCH = 16  # configurations asked for at once
WHOLE_BATCH = 64  # if all are tried, because then no proposal depends on earlier outcomes
PATIENCE = 4  # factor of proposals to trials, because proposals may repeat

FIRST_CUT = 1 / 16  # share of the duration: the first cut while no run has reached the target
SURE = 3.0  # a mean is worse if it is so by this many standard errors
UNKNOWN = 1.0  # spread of differences with fewer than FREEDOM degrees of freedom
FREEDOM = 8
ROUNDED = 0.01  # tolerance of a cut
NOT_YET = Score(math.inf, 0.0, 0.0)


def seed_counts(seeds: int) -> list[int]:
    """Return the seed counts at which candidates are compared: 2, 4, 8, ..., `seeds`."""
    return [*(size for k in range(1, seeds.bit_length()) if (size := 2**k) < seeds), seeds]


def model_of(scores: Sequence[Score]) -> Modelled | None:
    """Return what models add to scores, or None."""
    return next((score.model for score in scores if score.model), None)


@dataclass(eq=False)
class Contender:
    """A configuration in the race, with its scores by seed; `stopped`: the reason to give it up."""

    candidate: Candidate
    scores: list[Score] = field(default_factory=list)
    stopped: str = ""

    @property
    def label(self) -> str:
        """The label of its configuration."""
        return self.candidate.label

    def mean(self, seeds: int | None = None) -> float:
        """Return the mean over the first `seeds`, above any value if a run missed the target."""
        return float(np.mean([score.penalised for score in self.scores[:seeds]]))

    @property
    def reached(self) -> int:
        """The number of runs that reached the target."""
        return sum(score.reached for score in self.scores)

    @property
    def all_reached(self) -> bool:
        """Whether every run so far reached the target."""
        return self.reached == len(self.scores)

    def used(self, what: str) -> float:
        """Return the mean of an amount of `consumption.used`; nan if it is not set."""
        return float(np.mean([(score.used or {}).get(what, math.nan) for score in self.scores]))

    @property
    def model(self) -> Modelled | None:
        """What models of losses and times add to its values, or None."""
        return model_of(self.scores)

    @property
    def factors(self) -> np.ndarray | None:
        """Draws of errors of its values from a model, or None."""
        return np.array(self.model.factors) if self.model and self.model.factors else None

    @property
    def diverged(self) -> bool:
        """Whether every run so far diverged."""
        return all(score.diverged for score in self.scores)


@dataclass
class Race:
    """The contenders that have run so far, by label; `seeds`: all seeds they may run.

    `seed`: the seed of proposals; `refused`: the reasons for refused combinations; `runs`: runs
    that were needed; `resumed`: how many of them were stored before; `reported`: the configurations
    of `total` in the last report.
    """

    space: Space
    objective: TuningObjective
    place: Place
    seeds: Sequence[int]
    seed: int = 0
    progress: Progress | None = None
    contenders: dict[str, Contender] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    resumed: int = 0
    reported: float = 0.0
    total: int = 0

    def extend(self, racing: Sequence[Contender], count: int) -> None:
        """Run contenders until they have `count` seeds; stop the losers."""
        for contender in racing:
            contender.scores += [NOT_YET] * (count - len(contender.scores))
        known = max(range(1, count + 1), key=lambda size: math.isfinite(self._best(size)) * size)
        cut = self._cut(known) if self.objective.second else self.space.limit
        self._run(racing, cut)
        while not math.isfinite(self._best(count)) and cut < self.space.limit:
            cut = self._round(2 * cut)
            self._run(racing, cut)
        left = [rival for rival in racing if not self._out(rival, self.margin(count))]
        self._run(left, self._cut(count, count))  # then one run alone excludes its contender
        for contender in racing:
            over = any(not score.reached and not self._failed(score) for score in contender.scores)
            if (over or count < len(self.seeds)) and self._out(contender, self.margin(count)):
                contender.stopped = "cut"

    def margin(self, count: int) -> float:
        """Return the factor above the best mean over `count` seeds that excludes a contender.

        One plus `SURE` standard errors of the relative differences to the best, seed by seed,
        pooled over contenders that reached the target at least once.
        """
        there = [rival for rival in self.contenders.values() if rival.scores and rival.all_reached]
        # the best of those that reached the target with most seeds
        leader = min(there, key=lambda rival: (-rival.reached, rival.mean()), default=None)
        squares, freedom = 0.0, 0
        for rival in self.contenders.values() if leader else ():
            assert leader is not None
            both = zip(rival.scores, leader.scores, strict=False)
            pairs = [pair for pair in both if NOT_YET not in pair]
            if rival is leader or len(pairs) < 2 or not rival.reached:
                continue
            values = np.array([[self._known(one), self._known(other)] for one, other in pairs])
            mean = values[:, 0].mean()
            if 0 < mean < math.inf and np.isfinite(values).all():
                squares += len(pairs) * float(np.var(values[:, 0] - values[:, 1])) / mean**2
                freedom += len(pairs) - 1
        spread = math.sqrt(squares / freedom) if freedom >= FREEDOM else UNKNOWN
        return 1 + SURE * spread / math.sqrt(count)

    def _run(self, racing: Sequence[Contender], cut: float) -> None:
        """Run the seeds that have not reached the target, up to `cut` seconds."""
        tasks, places = list[Run](), list[tuple[Contender, int]]()
        for contender in racing:
            left = [
                index
                for index, score in enumerate(contender.scores)
                if not score.reached and score.ran < cut
            ]
            if left:
                duration = cut if cut < self.space.limit else None
                world = self.space.world(contender.candidate, duration)
                tasks += [(world, self.seeds[index]) for index in left]
                places += [(contender, index) for index in left]
        for (contender, index), score in zip(places, self._scores(tasks), strict=True):
            contender.scores[index] = score

    def _scores(self, tasks: Sequence[Run]) -> list[Score]:
        """Return the score of every run; it depends only on the run."""
        objective, execution = self.objective, self.place.execution

        def key(task: Run) -> str:
            scenario, seed = task
            of_run = Task(scenario.algorithm[0], seed, 0, execution.engine).key(scenario)
            return hashlib.sha256(f"{objective!r}{of_run}".encode()).hexdigest()[:32]

        def blocks(left: list[int]) -> list[list[int]]:
            return [[*block] for _, block in groupby(left, lambda index: id(tasks[index][0]))]

        work: executors.Work[Sequence[Run], list[Score]] = executors.Work(
            partial(run_block, objective, execution),
            lambda block: (
                f"{block[0][0].algorithm[0].label} ({statistics.seeds(seed for _, seed in block)})"
            ),
            len,
            plugins.versions(*(scenario.objective for scenario, _ in tasks)),
            key if self.place.kept else None,
            blocks,
        )
        scores, stored = executors.complete(self.place, work, tasks, self.say)
        self.runs, self.resumed = self.runs + len(scores), self.resumed + stored
        return scores

    def _cut(self, count: int, runs: int = 1) -> float:
        """Return the time (s) after which `runs` runs together are surely worse than the best."""
        best = self._best(count)
        if not math.isfinite(best):
            return self._round(self.space.limit * FIRST_CUT)
        excluded, second = self.margin(count) * best * runs, self.objective.second
        return self._round(excluded / second if second else math.inf)

    def _out(self, contender: Contender, margin: float) -> bool:
        """Return whether a contender is surely worse than the best."""
        count = len(contender.scores)
        best = self._best(count)
        total = sum(map(self._known, contender.scores))
        worse = total > (1 + ROUNDING) * best * count  # the best itself is not
        least = margin * (1 - ROUNDED * bool(self.objective.second))  # a cut is rounded
        return math.isfinite(best) and worse and total >= least * best * count

    def _failed(self, score: Score) -> bool:
        """Return whether a run took all its time and missed the target."""
        return not score.reached and score.ran >= self.space.limit

    def _known(self, score: Score) -> float:
        """Return the value of a run, or a lower bound."""
        return math.inf if self._failed(score) else self.objective.at_least(score)

    def _best(self, count: int) -> float:
        """Return the best mean over `count` seeds; infinite if no contender reached the target."""
        there = [rival for rival in self.contenders.values() if len(rival.scores) >= count > 0]
        means = (r.mean(count) for r in there if all(s.reached for s in r.scores[:count]))
        return min(means, default=math.inf)

    def _round(self, seconds: float) -> float:
        return min(self.space.limit, float(f"{seconds:.3g}"))

    def run(self, trials: int, first: Sequence[Point]) -> list[Contender]:
        """Try up to `trials` configurations, starting with `first`; all if there are no more."""
        self.total = total = int(min(self.space.size, trials))
        whole = total == self.space.size
        rest = [point for point in self.space.grid() if point not in first] if whole else []
        order = np.random.default_rng(self.seed).permutation(len(rest))  # good points come early
        queue = [*first, *(rest[index] for index in order)]
        proposed = batch = 0
        self.say()
        while proposed < (total if whole else PATIENCE * total) and self._tried < total:
            wanted = WHOLE_BATCH if whole and batch else BATCH
            wanted = min(wanted, total - (proposed if whole else self._tried))
            points = queue[proposed : proposed + wanted]
            generator = np.random.default_rng([self.seed, batch])
            points += [self._proposal(generator) for _ in range(wanted - len(points))]
            self._batch(points)
            proposed, batch = proposed + wanted, batch + 1
            self.say()
        return list(self.contenders.values())

    def _proposal(self, generator: np.random.Generator) -> Point:
        """Return a random point, or half the time the best one with another value."""
        family, chosen = self.space.random(generator)
        if self.contenders and generator.random() < 0.5:
            best = min(self.contenders.values(), key=Contender.mean).candidate
            family, chosen = best.family, dict(best.varied)
            if chosen:
                key = generator.choice([*chosen])
                chosen[key] = self.space.entries[family].random(key, generator)
        return family, chosen

    @property
    def _tried(self) -> int:
        return len(self.contenders) + len(self.refused)

    def say(self, runs: float = 0.0, of: int = 0) -> None:
        """Report progress in configurations; racing ones count by seeds."""
        done = sum(
            1.0 if rival.stopped else sum(score.ran > 0 for score in rival.scores) / len(self.seeds)
            for rival in self.contenders.values()
        )
        # Runs that were cut are repeated, but count once.
        now = min(self._tried, len(self.refused) + done + runs / len(self.seeds))
        self.reported = max(self.reported, now)
        if self.progress:
            self.progress(self.reported, self.total)

    def _batch(self, points: Sequence[Point]) -> None:
        """Let one batch race."""
        fresh = dict[str, Contender]()
        for family, chosen in points:
            try:
                candidate = self.space.candidate(family, chosen)
            except InputError as error:
                self.refused[f"{family} {chosen}"] = str(error)
                continue
            if candidate.label not in self.contenders:
                fresh[candidate.label] = self.contenders[candidate.label] = Contender(candidate)
        self._run_rounds([*fresh.values()])

    def _run_rounds(self, racing: Sequence[Contender]) -> None:
        """Run contenders with one block of seeds after another; losers drop out."""
        for count in seed_counts(len(self.seeds)):
            racing = [rival for rival in racing if not rival.stopped]
            self.extend([rival for rival in racing if len(rival.scores) <= count], count)
