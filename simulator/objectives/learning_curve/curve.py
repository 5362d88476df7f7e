"""Model a baseline's loss against its tokens, by a published law or a log.

loss(tokens) = floor + scale (tokens + shift)^-exponent, with the uncertainty of all four numbers.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...inputs import log_table, untrusted
from ...inputs.messages import visible
from ...results import intervals
from . import power_law

CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
"""Re-fit of Hoffmann et al.'s law by Besiroglu et al. (arXiv 2404.10102)."""
ERRORS = {"E": 0.03, "alpha": 0.02, "beta": 0.02}
"""Standard errors of that fit. A and B change with their exponents, so the loss at MIDDLE stays."""
MIDDLE = {"A": ("alpha", 1e9), "B": ("beta", 2e10)}  # typical parameters and tokens of its runs
RUNS = (1e9, 5e11)  # approximate range of those runs' tokens
START = math.log(32_000)  # loss before training: all of 32,000 tokens are equally likely
DRAWS, SEED = power_law.DRAWS, power_law.SEED

NEEDED = "a log has a column of steps or tokens and one of losses, such as step, loss"
FEWEST, LARGEST = 8, 1e18  # points of a curve; tokens or steps
HELD = 0.1  # share of a log to hold out
RISE, MISS, DEPARTURE = 4.0, 2.0, 1.0
"""Standard errors from which a rise, a held-out error or a departure at a log's end counts."""
PARTS, FALL = 20, 3.0  # of a log; standard deviations by which its end has to be lower
COVERED = 0.01  # least share of the steps so far
RESTARTS = 20  # most restarts of a job
WARMING, LONGEST = 0.6, 0.1
"""Share of the ignored first points that counts as the warm-up (0.57 and 0.67 in two small GPTs),
and the longest warm-up as a share of the log."""
WARM, SURE = 0.005, 0.9  # least share of the log, and of the draws, for a warm-up
ROSE = 0.05  # tolerated rise of a log, as a share of its fall
SPIKE, SLIGHT, AT_BOUND = 6.0, 0.01, 0.2
"""Error of a spike, in standard deviations and relative; share of draws at a bound."""
WORDS = untrusted.packaged(__file__, "curve.toml")
KINDS_OF = {word: kind for kind, words in WORDS["kinds"].items() for word in words.split()}
EVALUATED = {*WORDS["evaluated"].split()}
LOSS_WORDS = EVALUATED | {*WORDS["loss"].split()}


@dataclass(frozen=True)
class Curve:
    """The expected loss of a baseline.

    `batch`: tokens per step of all workers. `fitted`: tokens of the first and the last fitted
    point. `draws`: joint draws of (floor, scale, exponent, shift). `basis`: a phrase on the
    curve's origin. `warmup`: steps over which the learning rate rose; later, batches and programs
    differ by a factor of steps. `held`: draws without the last tenth of the log. `notes`: parts of
    the log that do not follow the law.
    """

    floor: float
    scale: float
    exponent: float
    shift: float
    batch: float
    fitted: tuple[float, float]
    draws: np.ndarray
    basis: str = ""
    warmup: float = 0.0
    held: np.ndarray = field(default_factory=lambda: np.empty((0, 4)))
    notes: tuple[str, ...] = ()

    def loss(self, tokens: Any) -> Any:
        """Return the expected loss after some number of tokens."""
        shifted = self._shifted(np.asarray(tokens), self.shift)
        return self.floor + self.scale * shifted**-self.exponent

    def drawn(self, tokens: Any) -> np.ndarray:
        """Return the loss after some number of tokens by draw, shape (draws, tokens)."""
        floor, scale, exponent, shift = self.draws.T[:, :, None]
        shifted = self._shifted(np.atleast_1d(tokens), shift)
        return np.asarray(floor + scale * shifted**-exponent)

    def _shifted(self, tokens: np.ndarray, shift: Any) -> Any:
        """Return tokens + shift; at least half of that if a warm-up has moved the law."""
        first = self.fitted[0]
        early = (tokens < first) & (np.asarray(shift) < 0)
        slow = (first + shift) * (1 + tokens / max(first, 1.0)) / 2
        return np.maximum(np.where(early, slow, tokens + shift), 1e-9)

    def interval90(self, tokens: float) -> tuple[float, float]:
        """Return the 90 % interval of the expected loss after some number of tokens."""
        low, high = np.quantile(self.drawn(tokens), intervals.TAILS)
        return float(low), float(high)

    def tokens_to(self, loss: float) -> float:
        """Return the tokens to reach a loss, inf if it is never reached."""
        if loss <= self.floor:
            return math.inf
        logs = -math.log((loss - self.floor) / self.scale) / self.exponent
        return max(math.exp(logs) - self.shift, 0.0) if logs < 700 else math.inf

    def at(self, step: Any, progress: Any = 1.0) -> Any:
        """Return the baseline's tokens at a `step` worth `progress` of its steps.

        During the warm-up all runs progress alike, because their rates are small.
        """
        warm = np.minimum(step, self.warmup)
        return warm * self.batch + (step - warm) * self.batch * progress

    def even(self, tokens: Any, progress: Any = 1.0) -> Any:
        """Convert the baseline's tokens to tokens without a warm-up: the inverse of `at`."""
        return tokens + (progress - 1) * np.minimum(tokens, self.warmup * self.batch)

    def behind(self, log_steps: Any, step: Any, progress: float = 1.0) -> Any:
        """Return the losses' log ratio if a run needs exp(`log_steps`) times the steps."""
        slow = self.at(step, progress * np.exp(-log_steps))
        return np.log(self.loss(slow) / self.loss(self.at(step, progress)))


def from_law(table: Mapping[str, Any], batch: float) -> Curve:
    """Return the curve of E + A / parameters^alpha + B / tokens^beta.

    `table`: `law` ("chinchilla"), `parameters`, and the user's constants. The law gives the loss at
    the end of a run that was planned for its tokens. So the curve is the envelope of runs planned
    for every length, and lies below the curve of any of these runs before its end.
    """
    best = {key: float(table.get(key, value)) for key, value in CHINCHILLA.items()}
    errors = np.random.default_rng(SEED).standard_normal((DRAWS, 3)) * [*ERRORS.values()]
    rows = []
    for error in [np.zeros(3), *errors]:
        law = best | {key: best[key] + off for key, off in zip(ERRORS, error, strict=True)}
        for key, (exponent, middle) in MIDDLE.items():
            law[key] *= middle ** (law[exponent] - best[exponent])
        floor = law["E"] + law["A"] / float(table["parameters"]) ** law["alpha"]
        shift = (law["B"] / max(START - floor, 0.1)) ** (1 / law["beta"])
        rows.append((floor, law["B"], law["beta"], shift))
    constants = [key for key in CHINCHILLA if key in table]
    basis = f"law with the user's {' and '.join(constants)}" if constants else "arXiv 2404.10102"
    sentence = f"{table.get('law', 'chinchilla')} ({basis}), the envelope of runs of every length"
    floor, scale, exponent, shift = rows[0]
    return Curve(floor, scale, exponent, shift, batch, RUNS, np.array(rows[1:]), sentence)


def from_file(path: Path | str, table: Mapping[str, Any]) -> Curve:
    """Fit a curve to a log: CSV (of W&B or a training loop), TensorBoard, JSON lines.

    `table`: `tokens` per worker and step, and `workers`, which determine the tokens of a step and
    of a log with steps only; `columns`: column names by quantity (tokens, step, loss);
    `warmup`: steps that the fit ignores, estimated if missing. Raises InputError with file, line,
    column and remedy.
    """
    warmup, near = table.get("warmup"), os.path.relpath(path)
    path = path if near.startswith(os.pardir) else near
    tokens, loss, batch, _, notes = points(path, table)
    try:
        curve = fit(tokens, loss, batch=batch, warmup=warmup)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    notes += curve.notes
    return replace(curve, basis=f"fitted to {path}", notes=notes)


def points(
    path: Path | str, table: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, float, str, tuple[str, ...]]:
    """Read tokens, losses, tokens per step, losses' column, and notes of a log.

    `table`: see `from_file`. Raises InputError.
    """
    try:
        chosen, by, lines = read_columns(Path(path), table.get("columns") or {})
        axis = "tokens" if "tokens" in by else "step"
        back = np.diff(by[axis]) <= 0
        later = np.minimum.accumulate(by[axis][::-1])[::-1]
        latest = np.append(by[axis][:-1] < later[1:], True)  # no later line repeats or precedes it
        if (resumed := int(back.sum())) > RESTARTS or latest.mean() < 0.5:
            raise ValueError(
                f"line {lines[1:][int(back.argmax())]}, column {chosen[axis]}: not above the "
                "previous line; cut the log where the job resumed, to one line per step"
            )
        batch = float(table.get("tokens") or 0) * float(table.get("workers") or 1)
        if not batch and {"tokens", "step"} <= by.keys() and np.ptp(by["step"]) > 0:
            batch = float(np.ptp(by["tokens"]) / np.ptp(by["step"]))
        if not batch > 0:
            raise ValueError(
                "the tokens per step are unknown; give the tokens of a worker's step (--tokens)"
            )
    except ValueError as error:
        raise InputError(f"{path}: {visible(str(error))}") from None
    tokens = by[axis][latest] * (1.0 if axis == "tokens" else batch)
    notes = [f"its steps go back ({resumed} x), so the job resumed: the later lines count"]
    column = visible(chosen["loss"])
    return tokens, by["loss"][latest], batch, column, tuple(notes * (resumed > 0))


def read_columns(
    path: Path, given: Mapping[str, str], *, cut: log_table.Cut | None = None
) -> tuple[dict[str, str], dict[str, np.ndarray], np.ndarray]:
    """Read a log's columns: names and numbers by quantity, and line numbers.

    A log that is `cut`, because it grows, may lack losses, which are infinite then. Raises
    ValueError.
    """
    names, rows = log_table.read(path, NEEDED, "loss", cut)
    few = [] if "loss" in given else _few(names, rows)
    chosen = log_table.choose([name for name in names if name not in few], given, _quantity)
    if "loss" not in chosen or not {"tokens", "step"} & chosen.keys():
        lacks = "losses" if "loss" not in chosen else "steps or tokens"
        shown = ", ".join(name[:40] for name in names[:12]) + ", ..." * (len(names) > 12)
        raise ValueError(f"no column of {lacks} among {shown}; {NEEDED}")
    count = partial(_number, kind="number of steps or tokens", least=0, most=LARGEST)
    least, most = (1e-9, 1e6) if cut is None else (-math.inf, math.inf)
    above = partial(_number, kind="loss", least=least, most=most)
    readers = {quantity: above if quantity == "loss" else count for quantity in chosen}
    columns = [(names.index(name), name, readers[quantity]) for quantity, name in chosen.items()]
    numbers, lines, _ = log_table.numbers(rows, columns)
    if not len(lines):
        raise ValueError(f"no line has {' and '.join(chosen.values())} filled in; {NEEDED}")
    return chosen, dict(zip(chosen, numbers.T, strict=True)), lines


def _few(names: Sequence[str], rows: log_table.Rows) -> list[str]:
    """Return columns of losses with too few points for a fit, if others have enough."""
    losses = [n for n, name in enumerate(names) if (_quantity(name) or [""])[0] == "loss"]
    filled = dict.fromkeys(losses, 0)
    for _, cells in rows() if len(losses) > 1 else ():
        for n in losses:
            filled[n] += cells[n] is not None and bool(str(cells[n]).strip())
    few = [names[n] for n, count in filled.items() if count < FEWEST]
    return few if len(few) < len(losses) else []


def _number(cell: Any, kind: str, least: float, most: float) -> float:
    """Read a number, nan for an empty cell, infinite if `most` is. Raises ValueError."""
    if cell is None or not str(cell).strip():
        return math.nan
    if isinstance(cell, str) and re.fullmatch(r"\s*\d+,\d+\s*", cell) and most < LARGEST:
        cell = cell.replace(",", ".")  # the decimal comma of many countries
    with suppress(ValueError, TypeError, OverflowError):
        value = float(cell)
        if least <= value <= most:
            return value
    if most < math.inf:
        raise ValueError(
            f"no {kind}; write a number from {least:g} to {most:g}, or cut the log where the run "
            "diverged"
        )
    return most


def _quantity(name: str) -> tuple[str, int] | None:
    """Return the quantity of a column by its name, and its rank among such columns."""
    words = log_table.words(log_table.bare(name))
    if "loss" in words and {*words} <= LOSS_WORDS:
        return "loss", 1 - bool(EVALUATED & {*words})
    if words == ["value"]:
        return "loss", 2
    kind = KINDS_OF.get("_".join(words)) or KINDS_OF.get("_".join(words[1:]))  # "train/step"
    return (kind, 0) if kind else None


def fit(
    tokens: np.ndarray, loss: np.ndarray, *, batch: float, warmup: float | None = None
) -> Curve:
    """Fit floor and power law to the part of a log that follows them; tokens increase.

    `warmup`: steps to ignore, estimated if None. Raises ValueError for a log that is too short,
    does not fall, or rises at its end.
    """
    if warmup:
        tokens, loss = (points[tokens >= warmup * batch] for points in (tokens, loss))
    if (count := len(tokens)) < FEWEST:
        where = f" after {warmup:g} steps of warm-up" if warmup else ""
        raise ValueError(f"{count} points{where}; a fit needs {FEWEST} or more: log more often")
    if tokens[0] > (1 - COVERED) * tokens[-1]:
        raise ValueError("its steps begin far from zero; count them from the start of the training")
    demand_fall(loss)
    with np.errstate(all="ignore"):  # candidates may not fit at all
        law = power_law.fit(tokens, loss, whole=warmup is not None)
        demand_no_rise(tokens / batch, loss, law.noise)
        late, notes = _late(law, tokens, loss, batch)
        held, missed = _held_out(law, tokens, loss, warmup is not None)
        spikes = _spikes(law, tokens, loss, batch)
    if missed:
        sentence = f"predicted from the rest, the last tenth of the log is off by {missed:+.1%}"
        notes.append(f"{sentence}: this widens the interval")
    errors = late + missed * _normal(2)
    first, rose = float(tokens[law.begin]), float(np.median(law.warmup))
    if law.begin:
        sentence = f"its first {first / batch:.0f} steps do not follow the law, and are ignored"
        notes.insert(0, sentence)
        if warmup is None:  # a rate that rises over a part of these steps explains the departure
            warmup = min(WARMING * first, LONGEST * float(tokens[-1])) / batch
    elif warmup is None and np.mean(law.warmup > 0) > SURE and rose > WARM * tokens[-1]:
        first, warmup = float(tokens[np.searchsorted(tokens, rose)]), rose / batch
        sentence = f"its warm-up takes about {warmup:.2g} steps (--warmup sets another number)"
        notes.insert(0, sentence)
    rows = law.rows.copy()
    rows[1:, :2] *= np.exp(errors)[:, None]
    if not np.isfinite(rows).all():
        raise ValueError("no power law fits these losses; give a run that learns")
    floor, scale, exponent, shift = rows[0].tolist()
    fitted = first, float(tokens[law.end - 1])
    law_of = floor, scale, exponent, shift, batch, fitted, rows[1:]
    notes += [*spikes, *_bounds(rows[1:])]
    return Curve(*law_of, warmup=warmup or 0.0, held=held, notes=tuple(notes))


def demand_fall(loss: np.ndarray) -> float:
    """Refuse losses that fall by no more than their noise; return the noise of `demand_no_rise`.

    Second differences of medians of a log's parts show noise, because a curve is smooth.
    """
    parts = np.array([np.median(one) for one in np.array_split(loss, min(len(loss), PARTS))])
    few, quarter = len(parts) < FEWEST, max(len(parts) // 4, 1)
    spread = 0.0 if few else 1.4826 * float(np.median(np.abs(np.diff(parts, 2)))) / math.sqrt(6)
    first, last = float(parts[:quarter].mean()), float(parts[-quarter:].mean())
    if not first - last > max(FALL * spread * math.sqrt(2 / quarter), 1e-9 * first):
        raise ValueError(
            f"the loss does not fall (from {first:.4g} to {last:.4g}) by more than its noise; give "
            "a run that learns, or a longer log"
        )
    return math.inf if few else (spread / last) ** 2 * len(loss) / len(parts)


def demand_no_rise(steps: np.ndarray, loss: np.ndarray, noise: float) -> None:
    """Refuse a log that ends above its lowest losses, because no law fits it.

    `noise`: variance of a mean relative error times the number of its points.
    """
    late = max(len(loss) // 30, 2)
    means = np.convolve(loss, np.ones(late) / late, "valid")
    lowest = int(means.argmin())
    rise, least = means[-1] - means[lowest], means[lowest]
    if rise > max(RISE * least * math.sqrt(noise / late), ROSE * (means[0] - least)):
        raise ValueError(
            f"the loss rises from about step {steps[lowest + late - 1]:.0f} on, from {least:.4g} "
            f"to {means[-1]:.4g}; cut the log there, or train on until the loss falls again"
        )


def _late(
    law: power_law.Fitted, tokens: np.ndarray, loss: np.ndarray, batch: float
) -> tuple[np.ndarray, list[str]]:
    """Return the log's departure from its law at the end, as draws, and notes."""
    missed, sds = law.off(tokens[law.end :], loss[law.end :]) if law.end < len(loss) else (0.0, 0.0)
    if abs(missed) <= SLIGHT or abs(sds) <= DEPARTURE:
        return np.zeros(DRAWS), []
    sentence = (
        f"the loss {'falls below' if missed < 0 else 'stays above'} its law from about step "
        f"{tokens[law.end] / batch:.0f} on, by {abs(missed):.1%}, perhaps because the learning "
        "rate changes: these steps are ignored, and widen the interval"
    )
    # A longer run may or may not end with such a decay.
    return missed / 3 + missed * 2 / 3 * _normal(0), [sentence]


def _held_out(
    law: power_law.Fitted, tokens: np.ndarray, loss: np.ndarray, whole: bool
) -> tuple[np.ndarray, float]:
    """Return the law without the last tenth of a log, and its significant error there."""
    before = round(min(law.end, (1 - HELD) * len(loss)))
    held = power_law.fit(tokens, loss, whole=whole, window=(law.begin, before))
    last = slice(before, law.end)
    missed, sds = held.off(tokens[last], loss[last]) if before < law.end else (0.0, 0.0)
    return held.rows, missed if abs(sds) > MISS else 0.0


def _normal(number: int) -> np.ndarray:
    return np.random.default_rng([SEED, number]).standard_normal(DRAWS)


def _spikes(law: power_law.Fitted, tokens: np.ndarray, loss: np.ndarray, batch: float) -> list[str]:
    """Note the points far above the law, which count as outliers."""
    inside = slice(max(law.begin, int(np.searchsorted(tokens, np.median(law.warmup)))), law.end)
    over = loss[inside] / power_law.losses(law.rows[:1], tokens[inside])[0] - 1
    high = over > max(SPIKE * 1.4826 * float(np.median(np.abs(over))), SLIGHT)
    count = int(np.count_nonzero(high & ~np.roll(high, 1)))
    top = int(over.argmax())
    sentence = f"{count} spike{'s' * (count > 1)} or restart{'s' * (count > 1)}"
    highest = f"the highest at step {tokens[inside][top] / batch:.0f} ({over[top]:+.0%})"
    return [f"{sentence}, {highest}: ignored"] if count else []


def _bounds(draws: np.ndarray) -> list[str]:
    """Note the numbers that the log does not determine."""
    notes = []
    low, high = np.exp(power_law.LOW[0]), np.exp(power_law.HIGH[0])
    near = np.mean((draws[:, 2] < 1.15 * low) | (draws[:, 2] > high / 1.15))
    if near > AT_BOUND:
        notes.append(f"the exponent is at its bound ({low:.2g} to {high:.2g}): give a longer log")
    least, most = np.quantile(draws[:, 0], intervals.TAILS)
    if least < 0.1 * most:
        notes.append(
            f"the log does not show its floor ({intervals.USUAL}: {least:.2g} to {most:.3g}): far "
            "beyond the log, trust only the interval"
        )
    return notes
