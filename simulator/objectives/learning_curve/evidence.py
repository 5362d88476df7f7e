"""Estimate the cost of local steps in loss, from published and the user's runs.

The published law is the log of the final loss over the data-parallel loss at equal tokens, for M
replicas that average every H steps, and N parameters,

a + d ln(N / 1e9) + b log2(M)^c (N / 1e9)^-g    at H = 30.

Below H = 30 it grows with ln H from zero at H = 1; above, for M > 1, by k for every factor e, times
(20 / tokens per parameter)^sparse: with few tokens, rare averages cost more.
`tests/lab/evidence/diloco.py` fits it to the published tables; diloco_law.toml has the fit, and
evidence.toml the other constants (`FACTS`).

Errors are arrays of `DRAWS` draws of a log ratio. Sources of errors have names, and a source has
the same draws everywhere, so errors common to two algorithms cancel between them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...inputs import untrusted
from ...results import intervals
from .curve import DRAWS

FACTS = SimpleNamespace(**untrusted.packaged(__file__, "evidence.toml"))
PUBLISHED = ("diloco", "streaming-diloco")
ALIKE = (*PUBLISHED, "delayed-diloco", "eager-diloco")  # the latter apply the same steps later
OF_RUNS = "published runs of {:.2g} to {:.2g} parameters".format(*FACTS.parameters)
SLIGHT = math.log10(1.1)  # negligible decades: a period of 32 for 30 changes the loss by 0.03 %
NO_ERRORS = np.zeros(DRAWS)
Place = tuple[float, float, float]
"""Replicas, period and parameters."""


@dataclass(frozen=True)
class Law:
    """The fitted law: `theta` = (a, d, ln b, c, g, k), and its covariance.

    `spread`: relative standard deviation of a single run's loss.
    """

    theta: np.ndarray
    covariance: np.ndarray
    spread: float

    def mean(
        self, parameters: float, replicas: float, period: float, ratio: float = FACTS.tokens
    ) -> float:
        """Return the expected log ratio; `ratio`: tokens per parameter."""
        theta = np.append(self.theta[:-1], self.theta[-1] * (FACTS.tokens / ratio) ** FACTS.sparse)
        return float(law_of(theta, parameters, replicas, period))

    def errors(self, program: str, place: Place) -> tuple[float, np.ndarray]:
        """Return the deviation of the log ratio of two runs, and draws.

        They are the errors of the fit, of the baseline's run and of the program's run.
        """
        replicas, period, parameters = place
        slope = slopes(lambda theta: law_of(theta, parameters, replicas, period), self.theta)
        sd = math.sqrt(slope @ self.covariance @ slope + self.spread**2 * 2 * (period > 1))
        numbers = slope @ np.linalg.cholesky(self.covariance)
        of_fit = numbers @ [drawn(f"law {index}") for index in range(len(numbers))]
        of_runs = drawn(program, place) - drawn("baseline")
        return sd, of_fit + self.spread * (period > 1) * of_runs


@dataclass(frozen=True)
class OwnRun:
    """A user's run with local steps: `log_ratio` to data-parallel loss, and `sd`.

    `source`: name of its error, whose draws are the same for all uses of the run.
    """

    program: str
    place: Place
    log_ratio: float
    sd: float
    source: str = "own run"


@dataclass(frozen=True)
class Penalty:
    """The log of the final loss over the data-parallel one at equal tokens.

    `errors`: draws of its error, with deviation `sd`. `basis`: "measured", "published", "mechanism"
    or "extrapolated", with a `sentence` on it, and `why`: reasons for extrapolation.
    """

    log_ratio: float
    sd: float
    basis: str
    sentence: str
    errors: np.ndarray
    why: tuple[str, ...] = ()


@lru_cache(4096)
def drawn(source: str, place: Place | None = None) -> np.ndarray:
    """Draw a source of errors: `DRAWS` standard normal numbers, fixed by its name.

    With a place, the source's errors at all places share FACTS.common of their variance.
    """
    if place is not None:
        local_source = f"{source} at {[*map(float, place)]}"
        common = FACTS.common
        mixed: np.ndarray = common**0.5 * drawn(source) + (1 - common) ** 0.5 * drawn(local_source)
        return mixed
    return np.random.default_rng([*source.encode()]).standard_normal(DRAWS)


def penalty(  # noqa: PLR0913
    program: str,
    replicas: float,
    period: float,
    parameters: float,
    *,
    tokens: float | None = None,
    outer_lr: float | None = None,
    outer_momentum: float = 0.9,
    overlap: int = 0,
    own: Sequence[OwnRun] = (),
    gain: Callable[[float], float] = lambda replicas: 0.05 * math.log2(max(replicas, 1)),
) -> Penalty | None:
    """Return the cost of local steps in loss; None without published or user's runs.

    `tokens`: of the whole run (default: 20 per parameter). `overlap`: steps that an average may
    take. `own`: the user's runs; with a law, runs of other programs count less, and without one not
    at all. `gain`: log ratio of one replica's loss to the loss of a number of replicas.
    """
    runs = [run for run in own if program in (*ALIKE, run.program)]
    if program not in ALIKE and not runs:
        return None
    if period <= 1:
        sentence = f"{program} with period 1 is data-parallel"
        return Penalty(0.0, 0.0, "published", sentence, NO_ERRORS)
    ratio = (tokens or FACTS.tokens * parameters) / parameters
    # If 79.5 of 80 clients count on average, the place equals that of a run with 80 replicas.
    same = (run.place[0] for run in runs if not _decades(replicas, *[run.place[0]] * 2))
    at = next(same, replicas), period, parameters
    mean, sd, reasons, errors = by_law(program, at, ratio, overlap)
    basis, source = "extrapolated" if reasons else "published", OF_RUNS
    if outer_lr is not None and program in ALIKE:
        best = float(np.interp(math.log2(max(replicas, 1)), range(4), FACTS.outer))
        doublings = abs(math.log2(outer_lr / (1 - min(outer_momentum, 0.999)) / (10 * best)))
        if doublings > FACTS.robust:
            shift = FACTS.untuned * (doublings - FACTS.robust)
            mean, sd = mean + shift, math.hypot(sd, shift)
            errors = errors + shift * drawn("untuned")
            reasons.append(
                f"{shift:+.1%} assumed, not published, for an outer step far from the best one "
                f"(outer_lr {best:g}, outer_momentum 0.9)"
            )
    if runs:
        mean, sd, errors = _updated(at, (mean, sd), runs, program, gain)
        off = np.abs(np.log2(at) - np.log2([run.place for run in runs]))
        near = (_alike(program, runs) & (off <= FACTS.near).all(axis=1)).any()
        basis, reasons = ("measured", []) if near else ("extrapolated", ["far from your own run"])
        source = f"your own run{'s' * (len(runs) > 1)} of {runs[0].program}"
    else:
        other = FACTS.papers * min(math.log(period) / math.log(FACTS.usual), 1.0)
        sd, errors = math.hypot(sd, other), errors + other * drawn("set-up diloco", at)
        source += ": a gain within the law's own error counts as none" * (mean == 0)
    low, high = np.expm1(ends(mean, errors))
    sentence = (
        f"{program}, {replicas} replicas, period {period:g}: final loss "
        f"{math.expm1(mean):+.2%} ({intervals.USUAL}: {low:+.2%} to {high:+.2%}) against "
        f"data-parallel at equal tokens, {basis}: {'; '.join([source, *reasons])}"
    )
    beyond = tuple(reasons) if basis == "extrapolated" else ()
    return Penalty(mean, sd, basis, sentence, errors, beyond)


def ends(mean: float, errors: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Return the 90 % interval of a log ratio, for a share of its error."""
    tails = np.quantile(errors, intervals.TAILS, method="inverted_cdf")
    return np.asarray(mean + share * tails)


def by_law(
    program: str, at: Place, ratio: float, overlap: int = 0
) -> tuple[float, float, list[str], np.ndarray]:
    """Return the law's mean and deviation, reasons for extrapolation, and errors.

    `ratio`: tokens per parameter. A program without a law has mean and deviation 0.
    """
    law, (replicas, period, size) = published(), at
    # Below the published sizes the law grows without bound, unlike the cost in small models.
    parameters = max(size, FACTS.parameters[0])
    if program not in ALIKE:
        return 0.0, 0.0, [], NO_ERRORS
    far = {
        "parameters": _decades(size, *FACTS.parameters),
        "replicas": _decades(replicas, *FACTS.replicas),
        "period": _decades(period, FACTS.usual, FACTS.longest.get(f"{replicas:g}", FACTS.usual)),
        "tokens per parameter": _decades(ratio, FACTS.tokens / 2, FACTS.tokens * 2),
    }
    without = law.mean(parameters, 1, period)
    terms = abs(without) + law.mean(parameters, max(replicas, 2), period) - without
    further = {f"beyond {name}": terms * FACTS.beyond[name] * value for name, value in far.items()}
    reasons = [f"{name} outside the published runs" for name, value in far.items() if value > 0]
    if program not in PUBLISHED or overlap > 1:
        further[program] = FACTS.late_sd * max(1.0, overlap / FACTS.usual)
        subject = f"overlap = {overlap}" if overlap > 1 else "this program"
        reasons.append(f"no published run of {subject}")
    mean = law.mean(parameters, replicas, period, ratio)
    further["growth"] = abs(mean - law.mean(parameters, replicas, period)) / 2  # of one source
    sd, errors = law.errors(program, (replicas, period, parameters))
    for source, more in further.items():
        errors = errors + more * drawn(source)
    sd = math.hypot(sd, *further.values())
    clamped = replicas > 1 and -intervals.NORMAL * sd < mean < 0  # the gain is within its own error
    return 0.0 if clamped else mean, sd, reasons, errors


def _decades(value: float, low: float, high: float) -> float:
    beyond = max(math.log10(low / value), math.log10(value / high), 0.0)
    return beyond if beyond > SLIGHT else 0.0


def _alike(program: str, runs: Sequence[OwnRun]) -> np.ndarray:
    """Return whether each run is of the program's family."""
    family = ALIKE if program in ALIKE else (program,)
    return np.array([run.program in family for run in runs])


def _updated(
    at: Place,
    law: tuple[float, float],
    runs: Sequence[OwnRun],
    program: str,
    gain: Callable[[float], float],
) -> tuple[float, float, np.ndarray]:
    """Combine the law's mean and deviation with the user's runs, by a Gaussian process."""
    # The deviations are the law's and those of set-ups, a share of the workers' gain. Without a law
    # the runs alone determine the scale, without a pull towards zero.
    (mean, sd), has_law = law, program in ALIKE
    laws = [by_law(program, run.place, FACTS.tokens) for run in runs]
    places = np.array([at, *(run.place for run in runs)])
    logs, alike = np.log2(places), np.array([True, *_alike(program, runs)])
    shares = 1 - (1 + places[:, 1]) ** -FACTS.slower
    setup = np.array([gain(replicas) for replicas in places[:, 0]]) * shares
    setup *= FACTS.setup if has_law else FACTS.unknown
    sds = np.hypot(setup, [sd, *(law[1] for law in laws)])
    apart = np.abs(logs[:, None] - logs[None]) / FACTS.alike_within
    joint = np.outer(sds, sds) * (np.exp(-apart.sum(-1)) + (0.0 if has_law else FACTS.scaled**2))
    joint *= np.where(alike[:, None] == alike, 1.0, FACTS.others)
    observed = joint[1:, 1:] + np.diag([run.sd**2 + 1e-12 for run in runs])
    weights = np.linalg.solve(observed, joint[1:, 0])
    variance = max(joint[0, 0] - weights @ joint[1:, 0], 0.0)
    errors = np.zeros(DRAWS)
    for run, by, share in zip(runs, laws, weights.tolist(), strict=True):
        mean += share * (run.log_ratio - by[0])
        errors = errors - share * run.sd * drawn(run.source)
    of_runs = float(np.square(weights) @ [run.sd**2 for run in runs])
    rest = math.sqrt(max(variance - of_runs, 0.0))
    kind = "diloco" if has_law else runs[0].program
    return mean, math.sqrt(variance), errors + rest * drawn(f"set-up {kind}", at)


@cache
def published() -> Law:
    """Return the law of all published rows."""
    table = untrusted.packaged(__file__, "diloco_law.toml")
    return Law(np.array(table["theta"]), np.array(table["covariance"]), table["spread"])


def law_of(theta: np.ndarray, parameters: Any, replicas: Any, period: Any) -> np.ndarray:
    """Return the expected log ratios for a law's numbers."""
    a, d, log_b, c, g, k = theta
    size, beyond = np.log(parameters / 1e9), np.log(period / FACTS.usual)
    usual = a + d * size + np.log2(np.maximum(replicas, 1)) ** c * np.exp(log_b - g * size)
    grown = usual * (1 + np.minimum(beyond, 0) / math.log(FACTS.usual))
    ratio: np.ndarray = grown + k * np.maximum(beyond, 0) * (np.asarray(replicas) > 1)
    return ratio


def slopes(function: Callable[[np.ndarray], np.ndarray], theta: np.ndarray) -> np.ndarray:
    """Return the derivatives of a function's values by central differences."""
    ends = [(function(theta + e), function(theta - e)) for e in 1e-5 * np.eye(len(theta))]
    return np.stack([(above - below) / 2e-5 for above, below in ends], axis=-1)
