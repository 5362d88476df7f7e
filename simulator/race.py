"""The race: configurations run with more and more seeds, each until it is sure not to be the best.

All share their seeds (common random numbers), so that a few tell. A run is cut as soon as its
configuration's mean must exceed the best one's by `margin` (adaptive capping: Hutter, Hoos,
Leyton-Brown and Stützle, JAIR 2009); those that were not sure to be out are run again for longer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.goals import Goal, Score
from simulator.runner import Job, Runner
from simulator.space import Candidate, Space

FIRST_CUT = 1 / 16  # of the duration: where to begin, as long as nobody has reached the target


def margin(seeds: int) -> float:
    """How many times the best mean is too much: the fewer the seeds, the more may be chance."""
    return 1 + 0.5 / math.sqrt(seeds)


def blocks(seeds: Sequence[int]) -> Iterator[Sequence[int]]:
    """The seeds in growing blocks: 1, 1, 2, 4, 8, ..."""
    done, size = 0, 1
    while done < len(seeds):
        yield seeds[done : done + size]
        done += size
        size = done


@dataclass(eq=False)
class Contender:
    """A configuration in the race, with its scores by seed; `stopped`: why it was given up."""

    candidate: Candidate
    scores: list[Score] = field(default_factory=list)
    stopped: str = ""

    def mean(self, seeds: int | None = None) -> float:
        """Mean over the first `seeds`; above any value if one of the runs did not get there."""
        return float(np.mean([score.penalised for score in self.scores[:seeds]]))

    @property
    def reached(self) -> int:
        """How many runs got there."""
        return sum(score.reached for score in self.scores)

    @property
    def all_reached(self) -> bool:
        """Whether every run so far got there."""
        return self.reached == len(self.scores)


@dataclass
class Race:
    """Everyone who has run so far, by label."""

    space: Space
    goal: Goal
    runner: Runner
    contenders: dict[str, Contender] = field(default_factory=dict)
    hopeless: float = 0.0  # seconds within which nobody has reached the target

    @property
    def limit(self) -> float:
        """The longest that a run may take (seconds)."""
        return self.space.scenario.run.duration or math.inf

    def extend(self, racing: Sequence[Contender], seeds: Sequence[int]) -> None:
        """Run contenders, which have equally many scores, with further seeds; stop who is out."""
        for contender in racing:
            contender.scores += [Score(math.inf, 0.0, 0.0)] * len(seeds)
        todo = {contender: self._first_cut(len(contender.scores)) for contender in racing}
        while todo:
            self._run(todo, seeds)
            finite = math.isfinite(self._best(len(racing[0].scores)))
            if not finite:
                self.hopeless = max(self.hopeless, *todo.values())
            todo = {
                contender: longer
                for contender, cut in todo.items()
                if (longer := self._longer(contender, len(seeds), cut)) > cut
            }

    def _run(self, cuts: dict[Contender, float], seeds: Sequence[int]) -> None:
        """Run what has not got there among the last scores, for as long as `cuts` says."""
        jobs, places = [], []
        for contender, cut in cuts.items():
            first = len(contender.scores) - len(seeds)
            left = [i for i in range(len(seeds)) if not contender.scores[first + i].reached]
            duration = cut if cut < self.limit else None
            world = self.space.world(contender.candidate.table, duration)
            jobs.append(Job(world, tuple(seeds[i] for i in left)))
            places.append((contender, [first + i for i in left]))
        for (contender, indices), scores in zip(places, self.runner(jobs), strict=True):
            for index, score in zip(indices, scores, strict=True):
                contender.scores[index] = score

    def _first_cut(self, count: int) -> float:
        """When to end the first runs for the `count`-th score (seconds)."""
        best = self._best(count)
        if not math.isfinite(best):
            best = self._best(count - 1)
        if math.isfinite(best):
            return self._round(self.goal.horizon(margin(count) * best))
        if self.goal.second and math.isfinite(self.limit):
            return self.hopeless or self._round(self.limit * FIRST_CUT)
        return self.limit

    def _longer(self, contender: Contender, block: int, cut: float) -> float:
        """How long the runs that have not got there need to be; `cut`: no longer than they were."""
        if contender.all_reached or cut >= self.limit:
            return cut
        count = len(contender.scores)
        best = self._best(count)
        if not math.isfinite(best):
            return self._round(2 * cut)
        enough = margin(count) * best * count
        known = sum(map(self.goal.at_least, contender.scores))
        if known >= enough * (1 - 1e-2):  # cuts are rounded
            contender.stopped = "cut"
            return cut
        late = [score for score in contender.scores[-block:] if not score.reached]
        if not late:
            return cut
        others = known - sum(map(self.goal.at_least, late))
        return max(self._round(self.goal.horizon((enough - others) / len(late))), 1.01 * cut)

    def _best(self, count: int) -> float:
        """The best mean over the first `count` seeds; infinite if nobody got there with all."""
        return min(
            (
                contender.mean(count)
                for contender in self.contenders.values()
                if count and len(contender.scores) >= count and _there(contender.scores[:count])
            ),
            default=math.inf,
        )

    def _round(self, seconds: float) -> float:
        return min(self.limit, float(f"{seconds:.3g}"))


def _there(scores: Iterable[Score]) -> bool:
    return all(score.reached for score in scores)
