"""The loss of a baseline against the tokens that it has seen: a published law, or a user's own run.

loss(tokens) = floor + scale (tokens + shift)^-exponent, with the uncertainty of all four numbers.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...inputs import log_table
from ...inputs.messages import visible
from ...results import intervals

CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
"""Re-fit of Hoffmann et al.'s law by Besiroglu et al. (arXiv 2404.10102)."""
ERRORS = {"E": 0.03, "alpha": 0.02, "beta": 0.02}
"""Standard errors there. A and B move with their exponents, so that the loss stays at MIDDLE."""
MIDDLE = {"A": ("alpha", 1e9), "B": ("beta", 2e10)}  # parameters and tokens, about, of its runs
RUNS = (1e9, 5e11)  # tokens of those runs, about
START = math.log(32_000)  # loss before training: a token is any of as many
DRAWS, SEED = 200, 0

NEEDED = "a log has a column of steps or tokens and one of losses, such as step, loss"
FEWEST, LARGEST = 8, 1e18  # points of a curve; tokens or steps
BINS = 200  # means of neighbouring points, for the fit
BLOCKS = (8, 24)  # of neighbouring bins, which the bootstrap draws
OUTLIER = 3.0  # median absolute errors, beyond which a point counts less
EXPONENTS, SHIFTS = np.geomspace(0.03, 6.0, 56), np.geomspace(1e-6, 10.0, 120)
# factors of the best exponent, and of the best shift of each, among which the bootstrap chooses:
# far from the fit, and near it, where one that is 10 % off moves the other as much
FAR = np.geomspace(0.5, 2.0, 13)
NEAR = np.geomspace(1 / 1.5, 1.5, 33), np.geomspace(0.8, 1.25, 21)
KINDS = {
    "tokens": "tokens tokens_seen seen_tokens num_tokens n_tokens total_tokens consumed_tokens "
    "train_tokens samples consumed_samples num_samples",
    "step": "step steps global_step iteration iter it train_step",
    "run": "run seed",
}
KINDS_OF = {word: kind for kind, spelled in KINDS.items() for word in spelled.split()}
EVALUATED = {"val", "valid", "validation", "eval", "evaluation", "test", "dev"}
SAID = EVALUATED | {"train", "training", "lm", "mean", "avg", "average", "loss", "cross", "entropy"}


@dataclass(frozen=True)
class Curve:
    """The expected loss of a baseline.

    `batch`: tokens of a step, of all its workers. `fitted`: tokens from the first to the last point
    that was seen. `draws`: rows of (floor, scale, exponent, shift), uncertain together. `basis`:
    where it comes from, in words. `warmup`: steps over which the learning rate rose: from then on
    batches and programs differ by a factor of steps; `lr`: that rate, beside which SGD's have own.
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
    lr: float | None = None

    def loss(self, tokens: Any) -> Any:
        """Return the expected loss after so many tokens."""
        return self.floor + self.scale * (np.asarray(tokens) + self.shift) ** -self.exponent

    def drawn(self, tokens: Any) -> np.ndarray:
        """Return the loss after so many tokens by each of the draws, shape (draws, tokens)."""
        floor, scale, exponent, shift = self.draws.T[:, :, None]
        losses: np.ndarray = floor + scale * (np.atleast_1d(tokens) + shift) ** -exponent
        return losses

    def interval90(self, tokens: float) -> tuple[float, float]:
        """Return the 90 % interval of the expected loss after so many tokens."""
        low, high = np.quantile(self.drawn(tokens), intervals.TAILS)
        return float(low), float(high)

    def tokens_to(self, loss: float) -> float:
        """Return the tokens after which the loss is reached, inf for one never reached."""
        if loss <= self.floor:
            return math.inf
        logs = -math.log((loss - self.floor) / self.scale) / self.exponent
        return max(math.exp(logs) - self.shift, 0.0) if logs < 700 else math.inf

    def at(self, step: Any, progress: Any = 1.0) -> Any:
        """Return its tokens when it is as far as a run that goes `progress` of its steps in one.

        Over the warm-up all go alike, by their small rate.
        """
        warm = np.minimum(step, self.warmup)
        return warm * self.batch + (step - warm) * self.batch * progress

    def even(self, tokens: Any, progress: Any = 1.0) -> Any:
        """Return what goes by steps as tokens would without a warm-up: the inverse of `at`."""
        return tokens + (progress - 1) * np.minimum(tokens, self.warmup * self.batch)

    def behind(self, log_steps: Any, step: Any, progress: float = 1.0) -> Any:
        """Return the log ratio of the loss of a run that takes so many times the steps."""
        slow = self.at(step, progress * np.exp(-log_steps))
        return np.log(self.loss(slow) / self.loss(self.at(step, progress)))

    def ratio(self, log: float, sd: float, step: float, progress: Any = 1.0) -> tuple[float, float]:
        """Return the same and its standard deviation, by the log of the steps and its own."""
        low, middle, high = self.behind(log + sd * np.arange(-1, 2), step, progress).tolist()
        return middle, (high - low) / 2

    def steps_to(self, loss: Any) -> np.ndarray:
        """Return steps after the warm-up by the curve, then by each draw: (1 + draws, losses)."""
        best = [self.floor, self.scale, self.exponent, self.shift]
        floor, scale, exponent, shift = np.vstack([best, self.draws]).T[:, :, None]
        above = np.maximum(np.atleast_1d(loss) - floor, 1e-12) / scale
        tokens = above ** (-1 / exponent) - shift - self.warmup * self.batch
        steps: np.ndarray = np.clip(tokens, 1.0, LARGEST) / self.batch
        return steps


def from_law(table: Mapping[str, Any], batch: float) -> Curve:
    """Return the curve of a published law: loss = E + A / parameters^alpha + B / tokens^beta.

    `table`: `law` ("chinchilla"), `parameters`, and constants of the user's own. Such a law speaks
    of the loss at the end of a run that was planned for so many tokens: the curve is the envelope
    of runs planned to end at each time, below that of any one of them until it ends.
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
    sentence = (
        f"{table.get('law', 'chinchilla')} ({basis}), the envelope of runs planned to end then"
    )
    floor, scale, exponent, shift = rows[0]
    return Curve(floor, scale, exponent, shift, batch, RUNS, np.array(rows[1:]), sentence)


def from_file(path: Path | str, table: Mapping[str, Any]) -> Curve:
    """Fit a curve to a log: CSV of W&B, TensorBoard's scalars or a loop's own, or JSON lines.

    `table`: `tokens` for each worker and step, and `workers`, which give the tokens of a step and,
    where the log has steps alone, the tokens; `columns`: names of columns by quantity (tokens,
    step, loss, run); `warmup`: steps that the fit leaves out. Raises InputError, which names file,
    line, column and remedy.
    """
    warmup, near = float(table.get("warmup") or 0), os.path.relpath(path)
    path = path if near.startswith(os.pardir) else near
    tokens, loss, run, batch, _ = points(path, table)
    try:
        curve = fit(tokens, loss, run, batch=batch, warmup=warmup)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return replace(curve, basis=f"fitted to {path}", lr=table.get("lr"))


def points(
    path: Path | str, table: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, str]:
    """Read tokens, losses, numbers of runs, a step's tokens, and the losses' column from a log.

    As `from_file`. Raises InputError.
    """
    try:
        chosen, by, lines = _columns(Path(path), table.get("columns") or {})
        run = by.get("run", np.zeros(len(lines)))
        axis = "tokens" if "tokens" in by else "step"
        order = np.argsort(run, kind="stable")
        back = (np.diff(by[axis][order]) <= 0) & (np.diff(run[order]) == 0)
        if back.any():
            raise ValueError(
                f"line {lines[order][1:][int(back.argmax())]}, column {chosen[axis]}: not above "
                "the line before; cut the log where the job resumed, one line for each step"
            )
        batch = float(table.get("tokens") or 0) * float(table.get("workers") or 1)
        if not batch and {"tokens", "step"} <= by.keys() and np.ptp(by["step"]) > 0:
            batch = float(np.ptp(by["tokens"]) / np.ptp(by["step"]))
        if not batch > 0:
            raise ValueError(
                "the tokens of a step are unknown; say `tokens`, of one worker's step (--tokens)"
            )
    except ValueError as error:
        raise InputError(f"{path}: {visible(str(error))}") from None
    seen = by[axis] * (1.0 if axis == "tokens" else batch)
    return seen[order], by["loss"][order], run[order], batch, visible(chosen["loss"])


def _columns(
    path: Path, given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, np.ndarray], np.ndarray]:
    """Read a log's columns; return their names and numbers by quantity, and the lines' numbers."""
    names, rows = log_table.read(path, NEEDED, "loss")
    few = [] if "loss" in given else _few(names, rows)
    chosen = log_table.choose([name for name in names if name not in few], given, _quantity)
    if "loss" not in chosen or not {"tokens", "step"} & chosen.keys():
        lacks = "losses" if "loss" not in chosen else "steps or tokens"
        shown = ", ".join(name[:40] for name in names[:12]) + ", ..." * (len(names) > 12)
        raise ValueError(f"no column of {lacks} among {shown}; {NEEDED}")
    count, above = _reader("number of steps or tokens", 0, LARGEST), _reader("loss", 1e-9, 1e6)
    columns = [(names.index(name), name, above if quantity == "loss" else count)
               for quantity, name in chosen.items()]  # fmt: skip
    numbers, lines, _ = log_table.numbers(rows, columns)
    if not len(lines):
        raise ValueError(f"no line has {' and '.join(chosen.values())} filled in; {NEEDED}")
    return chosen, dict(zip(chosen, numbers.T, strict=True)), lines


def _few(names: Sequence[str], rows: log_table.Rows) -> list[str]:
    """Return columns of losses with fewer points than a fit takes, where others have enough."""
    losses = [n for n, name in enumerate(names) if (_quantity(name) or [""])[0] == "loss"]
    filled = dict.fromkeys(losses, 0)
    for _, cells in rows() if len(losses) > 1 else ():
        for n in losses:
            filled[n] += cells[n] is not None and bool(str(cells[n]).strip())
    few = [names[n] for n, count in filled.items() if count < FEWEST]
    return few if len(few) < len(losses) else []


def _reader(what: str, least: float, most: float) -> Callable[[Any], float]:
    def read(cell: Any) -> float:
        """Read a number, nan for an empty cell. Raises ValueError."""
        if cell is None or not str(cell).strip():
            return math.nan
        try:
            value = float(cell)
        except (ValueError, TypeError, OverflowError):
            value = math.nan
        if not least <= value <= most:
            point = ", with a point for decimals" * ("," in str(cell))
            raise ValueError(f"no {what}; write a number from {least:g} to {most:g}{point}, or cut "
                             "the log where the run diverged")  # fmt: skip
        return value

    return read


def _quantity(name: str) -> tuple[str, int] | None:
    """Read a column's name: its quantity, and its place among several of that quantity.

    Losses of an evaluation come before others, and those before TensorBoard's "Value".
    """
    words = log_table.words(log_table.bare(name))
    if "loss" in words and {*words} <= SAID:
        return "loss", 1 - bool(EVALUATED & {*words})
    if words == ["value"]:
        return "loss", 2
    kind = KINDS_OF.get("_".join(words)) or KINDS_OF.get("_".join(words[1:]))  # "train/step"
    return (kind, 0) if kind else None


def fit(
    tokens: np.ndarray, loss: np.ndarray, run: np.ndarray, *, batch: float, warmup: float = 0.0
) -> Curve:
    """Fit floor and power law, and draw all four numbers by a bootstrap of blocks and runs.

    `run`: number of each point's run; points before the end of `warmup` (steps) are left out.
    Raises ValueError for a curve that is too short, or does not fall.
    """
    if warmup:
        tokens, loss, run = (points[tokens >= warmup * batch] for points in (tokens, loss, run))
    if (count := len(np.unique(tokens))) < FEWEST:
        where = f" after {warmup:g} steps of warm-up" * bool(warmup)
        raise ValueError(f"{count} points{where}; a fit takes {FEWEST} or more, so log more often")
    parts = np.array_split(loss[np.argsort(tokens, kind="stable")], 4)
    if not parts[-1].mean() < parts[0].mean() * (1 - 1e-9):
        raise ValueError(
            f"the loss does not fall (from {parts[0].mean():.4g} to {parts[-1].mean():.4g}); give "
            "a run that learns"
        )
    binned = [_binned(tokens[run == one], loss[run == one]) for one in np.unique(run)]
    u, y = np.concatenate(binned, axis=1)
    top = float(u.max())
    u, weight = u / top, y**-2.0
    for _ in range(2):  # points far off the fit count less (Huber)
        best = _best(u, y, weight)
        off = np.abs(best[0] + best[1] * (u + best[3]) ** -best[2] - y) / y
        weight = y**-2.0 / np.maximum(off / (OUTLIER * max(float(np.median(off)), 1e-12)), 1.0)
    best = _best(u, y, weight)
    rng = np.random.default_rng(SEED)
    factors = [_blocks(rng, points.shape[1]) for points in binned]
    if len(binned) > 1:
        runs = rng.exponential(size=(len(binned), DRAWS, 1))
        factors = [factor * of_run for factor, of_run in zip(factors, runs, strict=True)]
    near = best[2] * NEAR[0]
    cells = [_valley(u, y, weight, EXPONENTS, FAR), _valley(u, y, weight, near, NEAR[1])]
    draws, _ = _solve(u, y, weight * np.concatenate(factors, axis=1), np.concatenate(cells))
    rows = np.array([best, *draws]) * 1.0
    rows[:, 1] *= top ** rows[:, 2]
    rows[:, 3] *= top
    floor, scale, exponent, shift = rows[0].tolist()
    seen = float(tokens.min()), float(tokens.max())
    return Curve(floor, scale, exponent, shift, batch, seen, rows[1:], warmup=warmup)


def _binned(tokens: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Average neighbouring points of a long curve, ever more of them; shape (2, bins)."""
    if len(tokens) <= BINS:
        return np.stack([tokens, loss])
    place = np.log1p(np.arange(len(tokens)) * BINS / len(tokens))
    _, place = np.unique((place / place[-1] * BINS).astype(int), return_inverse=True)
    return np.stack([np.bincount(place, values) for values in (tokens, loss)]) / np.bincount(place)


def _blocks(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draw a factor for each block of neighbours (Rubin 1981), for each draw: of mean 1.

    Their variance makes up for the four numbers that are fitted.
    """
    blocks = min(max(length // 4, BLOCKS[0]), BLOCKS[1])
    factors = rng.gamma(1 - 4 / blocks, 1 / (1 - 4 / blocks), size=(DRAWS, blocks))
    return factors[:, np.arange(length) * blocks // length]


def _best(u: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the best (floor, scale, exponent, shift), searched from the best cell of a grid.

    Exponent and shift are nearly exchangeable: on a grid of shifts the exponent is off with them.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - takes 0.2 s

    cells = np.stack(np.meshgrid(EXPONENTS, SHIFTS[::6]), axis=-1).reshape(-1, 2)
    (start,), _ = _solve(u, y, weight[None], cells)
    least = 1e-15 * float(weight @ (y * y))  # of rounding

    def missed(logs: np.ndarray) -> float:
        _, ((error,),) = _solve(u, y, weight[None], np.exp(logs)[None])
        return math.log(min(max(float(error), least), sys.float_info.max))

    ends = [(math.log(grid[0]), math.log(grid[-1])) for grid in (EXPONENTS, SHIFTS)]
    optimum = minimize(missed, np.log(start[2:]), method="Nelder-Mead", bounds=ends)
    best: np.ndarray = _solve(u, y, weight[None], np.exp(optimum.x)[None])[0][0]
    return best


def _valley(
    u: np.ndarray, y: np.ndarray, weight: np.ndarray, exponents: np.ndarray, factors: np.ndarray
) -> np.ndarray:
    """Return (exponent, shift) with these factors of the best shift of each exponent."""
    cells = np.stack(np.meshgrid(exponents, SHIFTS), axis=-1)
    _, error = _solve(u, y, weight[None], cells.reshape(-1, 2))
    shifts = SHIFTS[error.reshape(cells.shape[:2]).argmin(axis=0)]
    return np.stack(np.broadcast_arrays(exponents, np.outer(factors, shifts)), -1).reshape(-1, 2)


def _solve(
    u: np.ndarray, y: np.ndarray, weights: np.ndarray, cells: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best (floor, scale, exponent, shift) for each row of weights, and all errors.

    Given exponent and shift, floor and scale follow by least squares, neither below zero.
    """
    exponent, shift = cells.T
    x = (u[:, None] + shift) ** -exponent
    norm = x.max(axis=0)
    x /= norm
    one, sy, syy = (part[:, None] for part in (weights @ np.stack([y**0, y, y * y], axis=1)).T)
    sx, sxx, sxy = weights @ x, weights @ (x * x), weights @ (x * y[:, None])
    spread = np.maximum(one * sxx - sx * sx, 1e-12 * one * sxx)
    scale = (one * sxy - sx * sy) / spread
    floor = (sy - scale * sx) / one
    scale = np.where(floor < 0, sxy / sxx, scale)
    floor = np.maximum(floor, 0.0)
    error = syy - 2 * floor * sy - 2 * scale * sxy
    error += floor**2 * one + 2 * floor * scale * sx + scale**2 * sxx
    error[scale <= 0] = np.inf
    row, best = np.arange(len(weights)), error.argmin(axis=1)
    columns = [floor[row, best], (scale / norm)[row, best], exponent[best], shift[best]]
    return np.stack(columns, axis=1), error
