"""The search: optuna proposes the configurations to try.

They are asked for in batches of a fixed size and told in order, by a sampler seeded by the batch,
so that neither the number of processes nor an interruption changes the answer: a resumed search
asks the same again, and finds the runs that were kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ..execution import Progress
from .race import Contender, Race, seed_counts
from .space import Point

if TYPE_CHECKING:  # optuna takes half a second to import
    from optuna import Study, Trial

BATCH = 16  # configurations asked for at once
WHOLE_BATCH = 64  # where all are tried, so that none waits for the outcome of others
PATIENCE = 4  # times the trials may be asked for before so many different ones are found


@dataclass
class Search:
    """The state of a search; `refused`: reasons by combination that could not be tried.

    `study`: optuna's; `after`: work that follows the search, in configurations, so that one scale
    holds for both.
    """

    race: Race
    seed: int
    progress: Progress | None = None
    refused: dict[str, str] = field(default_factory=dict)
    study: "Study | None" = None
    after: int = 0

    def __post_init__(self) -> None:
        self.space = self.race.space

    def run(self, trials: int, first: Sequence[Point]) -> list[Contender]:
        """Try up to `trials` configurations, `first` ones first; all, where there are no more."""
        import optuna  # noqa: PLC0415

        size = self.space.size
        whole = size is not None and size <= trials
        total = size if whole and size is not None else trials
        fixed = optuna.samplers.RandomSampler(0)  # all that is tried is in the queue
        self.study = study = optuna.create_study(study_name="paceline", sampler=fixed)
        for point in [*first, *(self._others(first) if whole else ())]:
            study.enqueue_trial(self.space.parameters(*point))
        proposed = batch = 0
        self.race.runner.progress = say = self._reporter(total)
        say()
        while proposed < (total if whole else PATIENCE * total) and self._tried < total:
            if not whole:
                study.sampler = optuna.samplers.TPESampler(
                    seed=int(np.random.SeedSequence([self.seed, batch]).generate_state(1)[0]),
                    multivariate=True,
                    group=True,
                    constant_liar=True,
                )
            wanted = WHOLE_BATCH if whole and batch else BATCH
            wanted = min(wanted, total - (proposed if whole else self._tried))
            self._batch(study, [study.ask() for _ in range(wanted)])
            proposed, batch = proposed + wanted, batch + 1
            say()
        while self.race.contenders and (again := self.race.readmitted()):
            self.race.runner.progress = self._reporter(total)
            self._race(again)
        return list(self.race.contenders.values())

    @property
    def _tried(self) -> int:
        return len(self.race.contenders) + len(self.refused)

    def _reporter(self, total: int) -> Callable[..., None]:
        """Return what tells how many configurations are done, of one that races by its seeds."""
        reached, seeds = 0.0, len(self.race.seeds)

        def say(runs: float = 0.0, of: int = 0) -> None:
            nonlocal reached
            done = sum(
                1.0 if rival.stopped else sum(score.ran > 0 for score in rival.scores) / seeds
                for rival in self.race.contenders.values()
            )
            # runs that were cut are repeated, and count once
            reached = max(reached, min(self._tried, len(self.refused) + done + runs / seeds))
            if self.progress:
                self.progress(reached, total + self.after)

        return say

    def _others(self, first: Sequence[Point]) -> list[Point]:
        """The rest of the grid in random order, so that good ones come early."""
        rest = [point for point in self.space.grid() if point not in first]
        order = np.random.default_rng(self.seed).permutation(len(rest))
        return [rest[index] for index in order]

    def _batch(self, study: "Study", trials: Sequence["Trial"]) -> None:
        """Let one batch race, and tell the outcomes to the study, in order."""
        from optuna.trial import TrialState  # noqa: PLC0415

        contenders: dict[Trial, Contender] = {}
        for trial in trials:
            family, chosen = self.space.suggest(trial)
            try:
                candidate = self.space.candidate(family, chosen)
            except InputError as error:
                self.refused[f"{family} {chosen}"] = str(error)
                study.tell(trial, state=TrialState.FAIL)
                continue
            trial.set_user_attr("label", candidate.label)
            known = self.race.contenders.setdefault(candidate.label, Contender(candidate))
            contenders[trial] = known
        fresh = (contender for contender in contenders.values() if not contender.scores)
        self._race([*dict.fromkeys(fresh)])
        for trial, contender in contenders.items():
            trial.report(contender.mean(), len(contender.scores))
            if contender.stopped:
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, contender.mean())

    def _race(self, racing: Sequence[Contender]) -> None:
        """Run contenders with one block of seeds after the other; those given up drop out."""
        for count in seed_counts(len(self.race.seeds)):
            racing = [rival for rival in racing if not rival.stopped]
            self.race.extend([rival for rival in racing if len(rival.scores) <= count], count)
