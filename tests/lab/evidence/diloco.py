"""Fit the law of `objectives.learning_curve.evidence` to published losses.

`diloco_losses.csv`: Charles et al., arXiv 2503.09799, table 4; Kale et al., arXiv 2502.12996. The
period is also fitted to the one number that Douillard et al. (arXiv 2311.08105, section 3.1)
publish of their sweep. `python -m tests.lab.evidence.diloco` writes the law of the package.
"""

import csv
import math
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from paceline.simulator.objectives.learning_curve import evidence
from paceline.simulator.objectives.learning_curve.evidence import Law, law_of, slopes

TABLE = Path(__file__).with_name("diloco_losses.csv")
SWEEP = (150e6, 8, 50, 1000, math.log(1 + math.log(1.029) / math.log(15.02)))
"""Parameters, replicas, two periods, and the log ratio of their losses: perplexity grows by 2.9 %,
from about 15 (arXiv 2311.08105, section 3.1 and table 2)."""
SWEEP_SD = 0.3  # relative: those runs had uneven data, and more tokens for each parameter
ROUNDED = 0.005 / 3**0.5  # nats: standard deviation of a loss given to two digits
COLUMNS = ("parameters", "replicas", "period", "group", "log_ratio", "rounding")
START = (-2e-3, -4e-4, math.log(0.003), 1.5, 0.25, 4e-3)
BOUNDS = ((-1, -1, -20, 0.1, -2, -1), (1, 1, 0, 5, 2, 1))
SCALE = (1e-3, 1e-4, 0.1, 0.1, 0.1, 1e-3)
HEAD = """# The law of `evidence.Law`, fitted to tests/lab/evidence/diloco_losses.csv by
# `python -m tests.lab.evidence.diloco`, which writes this file.
"""


def rows() -> np.ndarray:
    """Read the published losses as rows of `COLUMNS`."""
    lines = [*csv.DictReader(TABLE.read_text("utf-8").splitlines())]
    below = {(line["source"], line["parameters"]): (number, float(line["loss"]))
             for number, line in enumerate(lines) if line["method"] == "data-parallel"}  # fmt: skip
    table = []
    for line in lines:
        group, base = below[line["source"], line["parameters"]]
        rounded = ROUNDED if len(line["loss"].partition(".")[2]) == 2 else 0.0
        if line["method"] != "data-parallel":
            numbers = [float(line[key]) for key in ("parameters", "replicas", "period")]
            loss = float(line["loss"])
            table.append([*numbers, group, math.log(loss / base), rounded / loss])
    return np.array(table)


def fit(given: np.ndarray) -> Law:
    """Fit the law to rows by generalised least squares: equal sizes share a baseline."""
    *places, group, losses, rounding = given.T
    alike = group[:, None] == group
    rounded = np.diag(rounding**2) + alike * np.outer(rounding, rounding)
    parameters, replicas, *periods, rise_stated = SWEEP
    sweep = np.full(2, parameters), np.full(2, replicas), np.array(periods)
    law, theta = Law(np.empty(0), np.empty(0), 5e-4), np.array(START)
    for _ in range(3):
        root = np.linalg.cholesky(law.spread**2 * (np.eye(len(losses)) + alike) + rounded)

        def wrong(theta: np.ndarray, root: np.ndarray = root) -> np.ndarray:
            rise = np.diff(law_of(theta, *sweep)) - rise_stated
            whitened = np.linalg.solve(root, law_of(theta, *places) - losses)
            return np.append(whitened, rise / (SWEEP_SD * rise_stated))

        theta = least_squares(wrong, theta, bounds=BOUNDS, x_scale=SCALE).x
        steep = slopes(wrong, theta)
        chi = float(np.square(wrong(theta)[:-1]).sum()) / max(len(losses) - len(theta), 1)
        law = Law(theta, np.linalg.inv(steep.T @ steep), law.spread * math.sqrt(chi))
    return law


if __name__ == "__main__":
    found = fit(rows())
    covariance = "".join(f"    {row!r},\n" for row in found.covariance.tolist())
    numbers = f"theta = {found.theta.tolist()!r}\ncovariance = [\n{covariance}]\n"
    path = Path(evidence.__file__).with_name("diloco_law.toml")
    path.write_text(f"{HEAD}{numbers}spread = {found.spread!r}\n", "utf-8")
