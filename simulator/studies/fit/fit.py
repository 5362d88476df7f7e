"""`paceline fit`: move keys of a scenario until its numbers meet targets.

A few points spread over the ranges come first; from the best of them, least squares (SciPy's
trust region) follow central differences. Every simulation has the same seeds, so that a number is
nearly a smooth function of the keys; where it is not, because workers meet in another order, a
search ends early, and starts again from any better point that it has passed. Optuna's samplers,
which assume no smoothness, would need hundreds of simulations, and give neither intervals nor the
directions that no target fixes.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, isfinite, log2, nan
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...inputs import untrusted
from ...load.load import load
from ...objectives import plugins
from ...results import statistics, store
from ...results.determinism import deterministic
from ...results.intervals import NORMAL
from ...results.ownership import Destination
from ...scenario.scenario import Scenario
from .. import executors, size
from ..execution import (
    Execution,
    Progress,
    demand_algorithms,
    opened,
    seed_range,
)
from ..result import Result
from ..solve import alone
from ..task import Task, settings
from . import targets as reading
from .sensitivity import FREE, Sensitivity
from .targets import Key, Target

STARTS = 2  # of the first points, and as often again of any that turned out better
STEPS = 12  # of least squares from a start, at most
STEP = 0.05  # of a range, to either side: differences so far apart are not those of chance
SETTLED = 1e-4  # step, as a share of the range, and relative gain with which a search ends
ABSENT = 1e3  # residual of a number without a value, such as a loss that is never reached
EDGE = 0.005  # of a range: as close to an end, the fit may lie beyond it

Reading = list[float]
"""A number over all seeds, then that of each seed."""


@dataclass(frozen=True)
class Job:
    """A scenario to simulate, and the targets that read it."""

    scenario: Scenario
    targets: tuple[Target, ...]
    seeds: range

    def key(self, engine: str) -> str:
        """Hash everything that determines the readings."""
        parts = [Task(a, self.seeds.start, 0, engine).key(self.scenario) for a in self._used]
        parts += [each.text for each in self.targets]
        return hashlib.sha256(store.dump([parts, len(self.seeds)])).hexdigest()[:32]

    @property
    def _used(self) -> list[Any]:
        labels = {label for each in self.targets for label in each.labels(self.scenario)}
        return [each for each in self.scenario.algorithm if each.label in labels]

    def readings(self, execution: Execution) -> list[Reading]:
        """Simulate the algorithms that the targets name, and read each target's number."""
        run = self.scenario.model_copy(update={"algorithm": tuple(self._used)})
        seeds = list(self.seeds)
        runs = [each for a in run.algorithm for each in execution.run(run, a, seeds)]
        whole = Result(run, seeds, runs)
        results = [whole, *alone(whole)] if len(seeds) > 1 else [whole, whole]
        rows = [{row["label"]: row for row in each.algorithms} for each in results]
        labels = [each.labels(self.scenario) for each in self.targets]
        return [
            [each.of(row, names) for row in rows]
            for each, names in zip(self.targets, labels, strict=True)
        ]


@dataclass(frozen=True)
class FitResult:
    """Keys with their values, and what became of each target; see `json`."""

    scenario: Scenario
    file: str
    keys: list[dict[str, Any]]
    fitted: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    undetermined: list[str]
    unexplained: dict[str, Any]
    evaluations: int
    seeds: list[int]

    @property
    def sets(self) -> list[str]:
        """The fitted values, as `--set` takes them."""
        return [f"{row['key']}={row['text']}" for row in self.keys]

    @property
    def sentences(self) -> list[str]:
        """What the fit leaves open, one sentence each."""
        ends = [row["key"] for row in self.keys if row["at_end"]]
        said = [f"{each} ends where its range does: widen it, or doubt the model." for each in ends]
        return [f"{each}." for each in self.undetermined] + said + [self.unexplained["sentence"]]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline fit --json`: docs/how-to/fit-a-scenario.md."""
        about = {"title": self.scenario.title, "file": self.scenario.file}
        own = {key: value for key, value in vars(self).items() if key != "scenario"}
        found = {"scenario": about, "targets": own.pop("file"), **own, "sets": self.sets}
        return dict(statistics.jsonable(found))


@dataclass
class _Bench:
    """Measures targets at places of the keys, each once.

    `measure` turns jobs into readings; `known` are those by values and target, `seen` the places
    by values.
    """

    keys: list[Key]
    seeds: range
    measure: Callable[[Sequence[Job]], list[list[Reading]]]
    known: dict[tuple[Any, ...], Reading] = field(default_factory=dict)
    seen: dict[tuple[float, ...], np.ndarray] = field(default_factory=dict)
    step: float = STEP

    def at(self, targets: Sequence[Target], places: Sequence[np.ndarray]) -> np.ndarray:
        """Return readings, shape (places, targets, 1 + seeds)."""
        points = [self.values(each) for each in places]
        self.seen |= dict(zip(points, places, strict=True))
        missing: dict[tuple[Any, ...], tuple[Scenario, list[Target]]] = {}
        for point in dict.fromkeys(points):
            for each in targets:
                if (point, each.label) not in self.known:
                    group = (point, id(each.variant))
                    if group not in missing:
                        missing[group] = each.moved(self.keys, point), []
                    missing[group][1].append(each)
        jobs = [Job(where, tuple(wanted), self.seeds) for where, wanted in missing.values()]
        for (point, *_), job, found in zip(missing, jobs, self.measure(jobs), strict=True):
            for target, one in zip(job.targets, found, strict=True):
                self.known[point, target.label] = one
        return np.array([[self.known[p, each.label] for each in targets] for p in points])

    def values(self, places: np.ndarray) -> tuple[float, ...]:
        """Return the values of the keys at a place."""
        return tuple(key.at(float(z)) for key, z in zip(self.keys, places, strict=True))

    def residuals(self, targets: Sequence[Target], places: Sequence[np.ndarray]) -> np.ndarray:
        """Return what is missed, in standard errors, shape (places, targets)."""
        scale = np.array([each.tolerance / NORMAL for each in targets])
        found = (self.at(targets, places)[..., 0] - [each.value for each in targets]) / scale
        return np.asarray(np.where(np.isfinite(found), found, ABSENT))

    def jacobian(self, targets: Sequence[Target], place: np.ndarray) -> np.ndarray:
        """Return the residuals' derivatives by the keys' places, shape (targets, keys)."""
        ends = [self._ends(index, place) for index in range(len(self.keys))]
        found = self.residuals(targets, [each for pair in ends for each in pair])
        columns = []
        for index, (low, high) in enumerate(ends):
            key = self.keys[index]
            wide = key.place(key.at(high[index])) - key.place(key.at(low[index]))
            apart = found[2 * index + 1] - found[2 * index]
            apart[(np.abs(found[2 * index : 2 * index + 2]) == ABSENT).any(axis=0)] = 0
            columns.append(apart / wide if wide else np.zeros(len(targets)))
        return np.array(columns).T

    def _ends(self, index: int, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two places, one key apart: at least a whole number's two neighbours."""
        key, step = self.keys[index], self.step
        if key.whole:
            x = key.at(float(place[index]))
            step = max(step, key.place(min(x + 1, key.high)) - key.place(max(x - 1, key.low)))
        low, high = place.copy(), place.copy()
        low[index], high[index] = max(place[index] - step, 0.0), min(place[index] + step, 1.0)
        return low, high


def fit(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    targets: str | Path,
    *,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    force: bool = False,
) -> FitResult:
    """Find the values of keys with which a scenario's numbers meet targets.

    `targets`: a TOML file of keys with ranges and of numbers with tolerances, as
    docs/how-to/fit-a-scenario.md has it. Those held out are predicted, and not used. The other
    options are `simulate`'s; with `out`, the results of simulations stay there, so that the same
    call resumes. Raises InputError, also for a target that no key moves, and where no target is
    within reach.
    """
    base = scenario if isinstance(scenario, Scenario) else load(scenario)
    file = Path(targets)
    keys, every = reading.read(file, base)
    numbers = seed_range(base, seeds, seed)
    execution = Execution(engine, jobs, dask)
    ends = _ends_of(keys, every)
    if not force:
        size.demand([(each, numbers) for each in ends], execution)
    how = {"seeds": seeds, "seed": seed, "engine": engine}
    own = settings("fit", base, None, targets=untrusted.text(file), **how)
    with (
        opened(out, overwrite, store.FitDirectory, own) as directory,
        executors.start(execution) as executor,
    ):
        kept = directory.kept if directory else {}
        count, most = 0, _first(keys) + 2 * STARTS * STEPS * (1 + 2 * len(keys))

        def measure(jobs: Sequence[Job]) -> list[list[Reading]]:
            nonlocal count
            names = [each.key(engine) for each in jobs]
            todo = {i: each for i, each in enumerate(jobs) if names[i] not in kept}
            versions = plugins.versions(*(each.scenario.objective for each in jobs))
            do = partial(_work, execution=execution, expected=versions)
            work = executors.Work(do, _description)
            count += len(jobs) - len(todo)

            def say(under_way: float = 0.0) -> None:
                if progress:
                    progress(min(count / len({id(each.variant) for each in every}), most), most)

            for index, found in executors.results(executor, work, todo, say):
                kept[names[index]] = found
                count += 1
                say()
                if directory:
                    directory.keep_record(names[index], found)
            return [[[nan if x is None else x for x in one] for one in kept[n]] for n in names]

        result = _fitted(base, file, _Bench(keys, numbers, measure), every, lambda: count)
        if directory:
            directory.replace({}, result.json())
    return result


def _ends_of(keys: Sequence[Key], every: Sequence[Target]) -> list[Scenario]:
    """Return the targets' scenarios at both ends of the keys' ranges. Raises InputError."""
    ends = []
    for place in (0.0, 1.0):
        values = [key.at(place) for key in keys]
        moved = [target.moved(keys, values) for target in every]
        for target, scenario in zip(every, moved, strict=True):
            demand_algorithms(scenario, None)
            target.labels(scenario)
        ends += moved
    return ends


def _work(job: Job, *, execution: Execution, expected: Mapping[str, str]) -> Any:
    store.demand_versions(expected)
    return statistics.jsonable(job.readings(execution))


def _description(job: Job) -> str:
    return f"target {job.targets[0].label} ({statistics.seeds(job.seeds)})"


def _first(keys: Sequence[Key]) -> int:
    return 1 << max(3, ceil(log2(4 * len(keys))))


def _fitted(
    base: Scenario, file: Path, bench: _Bench, every: Sequence[Target], count: Callable[[], int]
) -> FitResult:
    """Search, then say what was found. Raises InputError."""
    used = [each for each in every if not each.held]
    keys = bench.keys
    best = _search(bench, used, file)
    _demand_within_reach(bench, used, file)
    residuals = bench.residuals(used, [best])[0]
    freedom = len(used) - len(keys)
    reduced = float(residuals @ residuals) / freedom if freedom > 0 else nan
    widened = max(1.0, reduced**0.5) if freedom > 0 else 1.0
    jacobian = bench.jacobian(used, best)
    scale = np.array([each.tolerance / NORMAL for each in used])
    each_seed = bench.at(used, [best])[0, :, 1:]
    noise = np.zeros((len(used), len(used)))
    if (several := each_seed.shape[1]) > 1:
        noise = np.nan_to_num(np.cov(each_seed / scale[:, None]).reshape(noise.shape) / several)
    known = Sensitivity.of(keys, best, jacobian, noise, widened)
    held = [each for each in every if each.held]
    fitted = [_row(bench, each, best, None) for each in used]
    predicted = [_row(bench, each, best, known) for each in held]
    missed = [row for row in fitted if row["verdict"] != "met"]
    missed.sort(key=lambda row: -abs(row["residual"]))
    return FitResult(
        base,
        str(file),
        [_key_row(key, index, known) for index, key in enumerate(keys)],
        fitted,
        predicted,
        known.sentences,
        {
            "targets": [row["target"] for row in missed],
            "reduced_chi2": reduced,
            "widened": widened,
            "sentence": _unexplained(len(fitted), missed, widened),
        },
        count(),
        list(bench.seeds),
    )


def _search(bench: _Bench, used: Sequence[Target], file: Path) -> np.ndarray:
    """Return the best place. Raises InputError for a number that never moves."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import
    from scipy.stats import qmc  # noqa: PLC0415

    count, size = _first(bench.keys), len(bench.keys)
    spread = [*qmc.Sobol(size, seed=0).random(count)]
    numbers = bench.at(used, spread)[..., 0]
    for each, column in zip(used, numbers.T, strict=True):
        if not np.isfinite(column).any():
            raise InputError(f"{file}: target {each.label}: {each.text} has no value anywhere")
        if np.isfinite(column).all() and np.ptp(column) <= 1e-12 * np.abs(column).max():
            raise InputError(
                f"{file}: target {each.label}: {each.text} is {column[0]:.6g} at all values of the "
                "keys; name a key that it depends on, or hold the target out"
            )

    def residuals(place: np.ndarray) -> np.ndarray:
        return np.asarray(bench.residuals(used, [place])[0])

    def cost(place: np.ndarray) -> float:
        return float((residuals(place) ** 2).sum())

    def descended(start: np.ndarray, close: float = SETTLED) -> np.ndarray:
        how: dict[str, Any] = {"xtol": close, "ftol": close, "gtol": None, "max_nfev": STEPS}
        inside, jac = np.clip(start, SETTLED, 1 - SETTLED), partial(bench.jacobian, used)
        return np.asarray(least_squares(residuals, inside, jac=jac, bounds=(0, 1), **how).x)

    def best() -> np.ndarray:
        return min(bench.seen.values(), key=cost)

    ends = [descended(each) for each in sorted(spread, key=cost)[:STARTS]]
    for _ in range(STARTS):
        if any(np.abs(best() - each).max() < SETTLED for each in ends):
            break
        ends += [best(), descended(best())]
    if all(deterministic(each.variant) for each in used):  # so that differences may be close
        bench.step = STEP / 50
        descended(best(), SETTLED**2)
    return _settled(bench, best(), cost)


def _settled(bench: _Bench, best: np.ndarray, cost: Callable[[np.ndarray], float]) -> np.ndarray:
    """Move whole numbers to a neighbour, and any key to the end of its range, while that gains."""
    while True:
        near = []
        for index, (key, z) in enumerate(zip(bench.keys, best, strict=True)):
            x = key.at(float(z))
            places = [key.place(y) for y in (x - 1, x + 1) if key.low <= y <= key.high]
            if not key.whole:
                places = [float(round(z))] if min(z, 1 - z) < EDGE else []
            near += [np.array([*best[:index], place, *best[index + 1 :]]) for place in places]
        better = min(near, key=cost, default=best)
        if cost(better) >= cost(best):
            return best
        best = better


def _demand_within_reach(bench: _Bench, used: Sequence[Target], file: Path) -> None:
    """Raise InputError where no target's number came within its tolerance, or on both sides."""
    ends = [_reach(bench, each) for each in used]
    if not any(_within(each, *end) for each, end in zip(used, ends, strict=True)):
        said = "; ".join(
            f"{each.label} wants {statistics.number(each.value)}, and is "
            f"{statistics.number(low)} to {statistics.number(high)}"
            for each, (low, high) in zip(used, ends, strict=True)
        )
        raise InputError(f"{file}: out of reach within these ranges: {said}; widen the ranges")


def _reach(bench: _Bench, target: Target) -> tuple[float, float]:
    found = [one[0] for (_, label), one in bench.known.items() if label == target.label]
    return min(x for x in found if isfinite(x)), max(x for x in found if isfinite(x))


def _within(target: Target, low: float, high: float) -> bool:
    return low - target.tolerance <= target.value <= high + target.tolerance


def _row(
    bench: _Bench, target: Target, best: np.ndarray, known: Sensitivity | None
) -> dict[str, Any]:
    """Say what became of a target; `known`: of one held out, whose number has an interval, too."""
    found, *seeds = bench.at([target], [best])[0, 0]
    error = float(np.std(seeds, ddof=1) / len(seeds) ** 0.5) if len(seeds) > 1 else None
    off = (found - target.value) / target.tolerance
    row = {"target": target.label, "number": target.text, "value": target.value}
    row |= {"tolerance": target.tolerance, "found": found, "standard_error": error}
    row |= {"residual": off, "verdict": "met" if abs(off) <= 1 else "missed"}
    if known is None:
        reach = _reach(bench, target)
        if not _within(target, *reach):
            row["verdict"] = "out of reach"
        return row | {"reach": [*reach]}
    slope = bench.jacobian([target], best)[0] * target.tolerance / NORMAL
    if (np.abs(known.free @ slope) * FREE > target.tolerance).any():
        return row | {"interval": None}
    half = NORMAL * float(np.hypot((slope @ known.covariance @ slope) ** 0.5, error or 0.0))
    return row | {"interval": [found - half, found + half]}


def _key_row(key: Key, index: int, known: Sensitivity) -> dict[str, Any]:
    place = float(known.places[index])
    value, interval = key.at(place), known.interval(index)
    return {
        "key": key.name,
        "value": value,
        "unit": key.unit,
        "text": key.text(value),
        "interval": interval and [*interval],
        "range": [key.low, key.high],
        "scale": "log" if key.log else "linear",
        "at_end": min(place, 1 - place) < EDGE,
    }


def _unexplained(count: int, missed: Sequence[Mapping[str, Any]], widened: float) -> str:
    if not missed:
        return "Every target is met within its tolerance."
    worst = missed[0]
    said = (
        f"Left unexplained: {len(missed)} of {count} targets, most of all {worst['target']}, by "
        f"{abs(worst['residual']):.1f} tolerances"
    )
    return said + (f"; intervals are {widened:.1f} times as wide for it." if widened > 1 else ".")
