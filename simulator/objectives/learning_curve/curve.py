"""The loss of a baseline against the tokens that it has seen: a published law, or a user's own run.

loss(tokens) = floor + scale (tokens + shift)^-exponent, with the uncertainty of all four numbers.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table
from paceline.simulator.inputs.escaping import visible
from paceline.simulator.inputs.messages import nearest

CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
"""Re-fit of Hoffmann et al.'s law by Besiroglu et al. (arXiv 2404.10102)."""
ERRORS = {"E": 0.03, "alpha": 0.02, "beta": 0.02}
"""Standard errors there. Those of A and B are these of their exponents: with them, they move so
that the loss stays in the middle of the runs that were fitted."""
MIDDLE = {"alpha": 1e9, "beta": 2e10}  # parameters and tokens there
RUNS = (1e9, 5e11)  # tokens of those runs, about
START = math.log(32_000)  # loss before training: a token is any of as many
DRAWS, SEED = 200, 0

NEEDED = "a log has a column of steps or tokens and one of losses, such as step, loss"
FEWEST = 8  # points of a curve
LARGEST = 1e18  # tokens or steps
HIGHEST = 1e6  # loss
BINS = 200  # means of neighbouring points, for the fit
BLOCKS = (8, 24)  # of neighbouring bins, which the bootstrap draws
OUTLIER = 3.0  # median absolute errors, beyond which a point counts less
EXPONENTS, SHIFTS = np.geomspace(0.03, 6.0, 56), np.geomspace(1e-6, 10.0, 18)
ZOOMS = 3
LIKELY = 500  # cells among which the bootstrap chooses
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
    where it comes from, in words.
    """

    floor: float
    scale: float
    exponent: float
    shift: float
    batch: float
    fitted: tuple[float, float]
    draws: np.ndarray
    basis: str = ""

    def loss(self, tokens: Any) -> Any:
        """Return the expected loss after so many tokens."""
        return _loss(self.floor, self.scale, self.exponent, self.shift, np.asarray(tokens, float))

    def interval90(self, tokens: float) -> tuple[float, float]:
        """Return the 90 % interval of the expected loss after so many tokens."""
        low, high = np.quantile(_loss(*self.draws.T, np.float64(tokens)), (0.05, 0.95))
        return float(low), float(high)

    def tokens_to(self, loss: float) -> float:
        """Return the tokens after which the loss is reached, inf for one never reached."""
        if loss <= self.floor:
            return math.inf
        with np.errstate(over="ignore"):
            found = np.float64((loss - self.floor) / self.scale) ** (-1 / self.exponent)
        return max(float(found) - self.shift, 0.0)


def _loss(floor: Any, scale: Any, exponent: Any, shift: Any, tokens: Any) -> Any:
    return floor + scale * (tokens + shift) ** -exponent


def from_law(table: Mapping[str, Any], batch: float) -> Curve:
    """Return the curve of a published law: loss = E + A / parameters^alpha + B / tokens^beta.

    `table`: `law` ("chinchilla"), `parameters`, and constants of the user's own. Such a law speaks
    of the loss at the end of a run that was planned for so many tokens: the curve is the envelope
    of runs planned to end at each time, below that of any one of them until it ends.
    """
    size = float(table["parameters"])
    middle = {key: float(table.get(key, value)) for key, value in CHINCHILLA.items()}
    moved = np.random.default_rng(SEED).standard_normal((DRAWS, len(ERRORS)))
    errors = moved * [*ERRORS.values()]
    drawn = [middle | {key: middle[key] + row[n] for n, key in enumerate(ERRORS)} for row in errors]
    for each in drawn:
        for key, exponent in (("A", "alpha"), ("B", "beta")):
            each[key] *= MIDDLE[exponent] ** (each[exponent] - middle[exponent])
    best, *draws = (_at(size, each) for each in (middle, *drawn))
    own = [key for key in CHINCHILLA if key in table]
    basis = f"law with the user's {', '.join(own)}" if own else "arXiv 2404.10102"
    said = f"{table.get('law', 'chinchilla')} ({basis}), the envelope of runs planned to end then"
    return Curve(*best, batch, RUNS, np.array(draws), said)


def _at(size: float, law: Mapping[str, float]) -> list[float]:
    floor = law["E"] + law["A"] / size ** law["alpha"]
    shift = (law["B"] / max(START - floor, 0.1)) ** (1 / law["beta"])
    return [floor, law["B"], law["beta"], shift]


def from_file(path: Path | str, table: Mapping[str, Any]) -> Curve:
    """Fit a curve to a log: CSV of W&B, TensorBoard's scalars or a loop's own, or JSON lines.

    `table`: `tokens` for each worker and step, and `workers`, which give the tokens of a step and,
    where the log has steps alone, the tokens; `columns`: names of columns by quantity (tokens,
    step, loss, run). Raises InputError, which names file, line, column and remedy.
    """
    tokens, loss, run, batch = points(path, table)
    try:
        return fit(tokens, loss, run, batch=batch, basis=f"fitted to {path}")
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def points(
    path: Path | str, table: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Read tokens, losses and numbers of runs from a log, and the tokens of a step.

    As `from_file`. Raises InputError.
    """
    path = Path(path)
    try:
        names, rows = log_table.read(path, NEEDED, "loss")
        chosen = _choose(names, table.get("columns") or {})
        wanted = [each for each in ("run", "tokens", "step", "loss") if each in chosen]
        readers = [
            (names.index(chosen[each]), chosen[each], _positive if each == "loss" else _count)
            for each in wanted
        ]
        found, lines, _ = log_table.numbers(rows, readers)
        if not len(lines):
            raise ValueError(f"no line has {' and '.join(chosen.values())} filled in; {NEEDED}")
        columns = dict(zip(wanted, found.T, strict=True))
        run = columns.get("run", np.zeros(len(lines)))
        axis = "tokens" if "tokens" in columns else "step"
        order = np.lexsort((np.arange(len(lines)), run))
        back = (np.diff(columns[axis][order]) <= 0) & (np.diff(run[order]) == 0)
        if back.any():
            raise ValueError(
                f"line {lines[order][1:][int(back.argmax())]}, column {chosen[axis]}: not above "
                "the line before; cut the log where the job resumed, one line for each step"
            )
        batch = float(table.get("tokens") or 0.0) * float(table.get("workers") or 1)
        if not batch and axis == "tokens" and "step" in columns:
            steps = np.diff(columns["step"])
            batch = float(np.median(np.diff(columns["tokens"])[steps > 0] / steps[steps > 0]))
        if not batch > 0:
            raise ValueError(
                "the tokens of a step are unknown; say `tokens`, of one worker's step (--tokens)"
            )
        seen = columns[axis] * (1.0 if axis == "tokens" else batch)
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: {visible(str(error))}") from None
    return seen[order], columns["loss"][order], run[order], batch


def _count(cell: Any) -> float:
    value = _number(cell)
    if not (math.isnan(value) or 0 <= value <= LARGEST):
        raise ValueError(f"no number of steps or tokens; write one from 0 to {LARGEST:g}")
    return value


def _positive(cell: Any) -> float:
    value = _number(cell)
    if not (math.isnan(value) or 0 < value <= HIGHEST):
        raise ValueError(f"no loss; write one above 0 and up to {HIGHEST:g}")
    return value


def _number(cell: Any) -> float:
    """Read a number, nan for an empty cell. Raises ValueError."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return math.nan
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        raise ValueError("not a number; write one")
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        raise ValueError("not a number; write one") from None
    if not math.isfinite(value):
        raise ValueError("not finite; cut the log where the run diverged")
    return value


def _choose(names: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each quantity. Raises ValueError if one lacks or several could be it."""
    found = {}
    for quantity, name in given.items():
        if name not in names:
            raise ValueError(f"columns.{quantity}: {nearest(name, names, 'its columns are')}")
        found[quantity] = name
    several: dict[tuple[str, int], list[str]] = {}
    for name in names:
        if (read := _read(name)) and read[0] not in found and name not in found.values():
            several.setdefault(read, []).append(name)
    for (quantity, _), alike in sorted(several.items()):
        if quantity in found:
            continue
        if len(alike) > 1:
            raise ValueError(
                f"columns {' and '.join(alike[:3])} could all be {quantity}; choose one, such as "
                f'columns = {{ {quantity} = "{alike[0]}" }} (--column {quantity}="{alike[0]}")'
            )
        found[quantity] = alike[0]
    if "loss" not in found or not {"tokens", "step"} & found.keys():
        shown = ", ".join(names[:12]) + ", ..." * (len(names) > 12)
        raise ValueError(f"no column of {'losses' if 'loss' not in found else 'steps or tokens'} "
                         f"among {shown}; {NEEDED}")  # fmt: skip
    return found


def _read(name: str) -> tuple[str, int] | None:
    """Read a column's name: its quantity, and its place among several of that quantity.

    Losses of an evaluation come before others, and those before TensorBoard's "Value".
    """
    said = log_table.words(log_table.bare(name))
    if log_table.is_range(name) or not said:
        return None
    if "loss" in said and {*said} <= SAID:
        return "loss", 1 - bool(EVALUATED & {*said})
    if said == ["value"]:
        return "loss", 2
    kind = KINDS_OF.get("_".join(said)) or KINDS_OF.get("_".join(said[1:]))  # "train/step"
    return (kind, 0) if kind else None


def fit(
    tokens: np.ndarray,
    loss: np.ndarray,
    run: np.ndarray | None = None,
    *,
    batch: float,
    basis: str = "",
) -> Curve:
    """Fit floor and power law, and draw all four numbers by a bootstrap of blocks and runs.

    `run`: number of each point's run. Raises ValueError for a curve that is too short, or does not
    fall.
    """
    if len(tokens) < FEWEST:
        raise ValueError(f"{len(tokens)} points; a fit takes {FEWEST} or more, so log more often")
    quarter = max(len(tokens) // 4, 2)
    inner = np.argsort(tokens, kind="stable")
    first, last = loss[inner[:quarter]].mean(), loss[inner[-quarter:]].mean()
    if not last < first * (1 - 1e-9):
        raise ValueError(
            f"the loss does not fall (from {first:.4g} to {last:.4g}); give a run that learns"
        )
    numbers = np.zeros(len(tokens)) if run is None else run
    return _fit(*(each.tobytes() for each in (tokens, loss, numbers)), batch, basis)


@lru_cache(64)  # every run and seed of a scenario asks again
def _fit(tokens: bytes, loss: bytes, run: bytes, batch: float, basis: str) -> Curve:
    binned = [_binned(*each) for each in _apart(*map(np.frombuffer, (tokens, loss, run)))]
    u, y = (np.concatenate([each[part] for each in binned]) for part in (0, 1))
    top = float(u.max())
    u = u / top
    weight = y**-2.0
    cells = _cells(EXPONENTS, SHIFTS)
    for _ in range(2):  # points far off the fit count less (Huber)
        (best,), (error,) = _solve(u, y, weight[None], cells)
        off = np.abs(y - _loss(*best, u)) / y
        weight = y**-2.0 / np.maximum(off / (OUTLIER * max(float(np.median(off)), 1e-12)), 1.0)
    for zoom in range(1, ZOOMS + 1):
        near = [value * np.exp(np.linspace(-1, 1, 9) / 4**zoom * np.log(grid[1] / grid[0]) * 2)
                for value, grid in zip(best[2:], (EXPONENTS, SHIFTS), strict=True)]  # fmt: skip
        (best,), _ = _solve(u, y, weight[None], _cells(*near))
    rng = np.random.default_rng(SEED)
    factors = [_blocks(rng, len(each[0])) for each in binned]
    if len(binned) > 1:
        runs = rng.exponential(size=(DRAWS, len(binned)))
        factors = [each * own[:, None] for each, own in zip(factors, runs.T, strict=True)]
    likely = cells[np.argsort(error)[:LIKELY]]
    draws, _ = _solve(u, y, weight * np.concatenate(factors, axis=1), likely)
    for each in (best, *draws):
        each[1] *= top ** each[2]
        each[3] *= top
    seen = float(u.min() * top), top
    return Curve(*map(float, best), batch, seen, draws, basis)


def _apart(tokens: np.ndarray, loss: np.ndarray, run: np.ndarray) -> list[list[np.ndarray]]:
    return [[tokens[run == one], loss[run == one]] for one in np.unique(run)]


def _binned(tokens: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average neighbouring points of a long curve, which lie ever further apart."""
    if len(tokens) <= BINS:
        return tokens, loss
    place = np.log1p(np.arange(len(tokens)) / (len(tokens) / BINS))
    _, place = np.unique((place / place[-1] * BINS).astype(int), return_inverse=True)
    count = np.bincount(place)
    return np.bincount(place, tokens) / count, np.bincount(place, loss) / count


def _blocks(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draw a factor for each block of neighbours (Rubin 1981), for each draw: of mean 1.

    Their variance makes up for the four numbers that are fitted.
    """
    blocks = min(max(length // 4, BLOCKS[0]), BLOCKS[1], length)
    shape = 1 - 4 / blocks
    factors = rng.gamma(shape, 1 / shape, size=(DRAWS, blocks))
    return factors[:, np.arange(length) * blocks // length]


def _cells(exponents: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    return np.stack(np.meshgrid(exponents, shifts, indexing="ij"), axis=-1).reshape(-1, 2)


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
    one, sy, syy = (each[:, None] for each in (weights @ np.stack([y**0, y, y * y], axis=1)).T)
    sx, sxx, sxy = weights @ x, weights @ (x * x), weights @ (x * y[:, None])
    spread = one * sxx - sx * sx
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(spread > 1e-12 * one * sxx, (one * sxy - sx * sy) / spread, 0.0)
    floor = (sy - scale * sx) / one
    scale = np.where(floor < 0, sxy / sxx, scale)
    floor = np.maximum(floor, 0.0)
    error = syy - 2 * floor * sy - 2 * scale * sxy
    error += floor**2 * one + 2 * floor * scale * sx + scale**2 * sxx
    error[scale <= 0] = np.inf
    row, best = np.arange(len(weights)), error.argmin(axis=1)
    columns = [floor[row, best], (scale / norm)[row, best], exponent[best], shift[best]]
    return np.stack(columns, axis=1), error
