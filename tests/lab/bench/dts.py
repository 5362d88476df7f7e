"""What a delay costs under each compensation: the tables of docs/dts.md.

    python -m tests.lab.bench.dts          accuracy and loss, at the best rate for ssgd (minutes)
    python -m tests.lab.bench.dts period   the same with a mean every `delay` steps (minutes)
    python -m tests.lab.bench.dts rates    each at its own best rate, and docs/dts.png (an hour)
    python -m tests.lab.bench.dts limits   the largest stable rates on a quadratic

Runs go to runs/dts; when interrupted, the same command resumes.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

import paceline
from paceline.simulator.results.figures.style import COLOURS, DASHES, style
from paceline.simulator.results.intervals import signed

RATES = [2.0**k for k in range(-6, -1)]
PARTITIONS = {"iid": '"iid"', "dirichlet(0.3)": "{ dirichlet = 0.3 }"}
KINDS = ("none", "displacement", "lecture", "exact")
DELAYS = (5, 10, 15, 20)
FIGURE = Path(__file__).parents[3] / "docs" / "dts.png"

Finals = dict[str, np.ndarray]
"""Final loss and accuracy (percent) of every seed, shape (2, seeds), by label."""


def finals(folder: str, *overrides: str, only: str = "") -> Finals:
    """Run the algorithms whose labels hold `only`."""
    scenario = paceline.load("dts/compensation", overrides)
    chosen = tuple(each for each in scenario.algorithm if only in each.label)
    scenario = scenario.model_copy(update={"algorithm": chosen})
    out = Path("runs/dts", folder)
    groups = paceline.simulate(scenario, jobs=os.cpu_count() or 1, out=out).groups
    return {
        label: np.array(
            [(run.curve["loss"][-1], 100 * run.curve["accuracy"][-1]) for run in runs]
        ).T
        for label, runs in groups.items()
    }


def mean(values: np.ndarray, digits: int = 1) -> str:
    low, high = signed(values).interval or (np.nan, np.nan)
    return f"{values.mean():.{digits}f} ± {(high - low) / 2:.{digits}f}"


def show(title: str, head: Iterable[object], rows: Iterable[Sequence[str]]) -> None:
    names = [str(each) for each in head]
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    print(f"\n{title}\n", *(f"| {' | '.join(line)} |" for line in lines), sep="\n")


def by_delay(title: str, found: Finals) -> None:
    for column, (name, digits) in enumerate((("training loss", 3), ("test accuracy, %", 1))):
        rows = [
            [kind, *(mean(found[f"{kind} {D}"][column], digits) for D in DELAYS)] for kind in KINDS
        ]
        head = f"{title}: {name}; ssgd {mean(found['ssgd'][column], digits)}"
        show(head, ["D =", *DELAYS], rows)


def delay() -> None:
    for name, partition in PARTITIONS.items():
        by_delay(name, finals(name, f"objective.partition={partition}"))


def period() -> None:
    seldom = [f"algorithm.'{kind} {D}'.period={D}" for kind in KINDS for D in DELAYS]
    by_delay("iid, a mean every D steps", finals("seldom", *seldom))


def rates() -> None:
    found: dict[str, list[Finals]] = {}
    for name, partition in PARTITIONS.items():
        only = "" if name == "iid" else "ssgd"
        found[name] = [
            finals(
                f"{name} {rate:g}",
                f"objective.partition={partition}",
                f"optimizer.lr.peak={rate}",
                only=only,
            )
            for rate in RATES
        ]
    head = ["peak learning rate", *(f"1/{1 / rate:g}" for rate in RATES)]
    rows = [[name, *(mean(each["ssgd"][1]) for each in row)] for name, row in found.items()]
    show("ssgd: test accuracy, %", head, rows)

    def best(label: str) -> str:
        rate, values = max(
            ((rate, each[label][1]) for rate, each in zip(RATES, found["iid"], strict=True)),
            key=lambda pair: pair[1].mean(),
        )
        return f"{mean(values)} (1/{1 / rate:g})"

    rows = [[kind, *(best(f"{kind} {D}") for D in DELAYS)] for kind in KINDS]
    title = f"iid: test accuracy, %, at the best rate of each; ssgd {best('ssgd')}"
    show(title, ["D =", *DELAYS], rows)
    draw(found["iid"])


def draw(grid: Sequence[Finals]) -> None:
    """Accuracy against learning rate: a panel for each compensation, a line for each delay."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        panels = figure.subplots(1, len(KINDS), sharey=True)
        for panel, kind in zip(panels, KINDS, strict=True):
            for D, colour in zip((*DELAYS, 0), (*COLOURS[:4], "#000000"), strict=True):
                values = np.array([each[f"{kind} {D}" if D else "ssgd"][1] for each in grid])
                label, dash = (f"D = {D}", "-") if D else ("ssgd", DASHES["dash"])
                panel.plot(RATES, values.mean(axis=1), color=colour, linestyle=dash, label=label)
            panel.set_xscale("log", base=2)
            panel.set_xticks(RATES, [f"1/{1 / rate:g}" for rate in RATES])
            panel.set_title(kind)
        panels[0].set_ylabel("test accuracy, %")
        figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside right")
        figure.supxlabel("peak learning rate", fontsize=9)
        figure.savefig(FIGURE, dpi=150)


def modes(kind: str, D: int, mu: float, a: float) -> np.ndarray:
    """Characteristic polynomial of x on a quadratic, with a = learning rate x curvature, period 1.

    For "none" it is the workers' mean that is unstable first, for the others (whose mean moves as
    ssgd's) what each is away from it.
    """
    if kind == "none":  # x(n+1) - x(n) = mu (x(n) - x(n-1)) - a x(n-D)
        return np.array([1, -1 - mu, mu, *[0] * (D - 2), a])
    if kind == "displacement":  # as below, but what u holds is never made up for
        return np.array([1, a - 1 - mu, mu, *[0] * (D - 2), -a, a * mu])
    if kind == "lecture":  # the same with x(n) - x(n-D) for x(n-D); its root 1 divided out
        return np.array([1, a - mu, *[a] * (D - 1)])
    # x(n) = -a sum of (1 + mu + ... + mu^(k-1)) x(n-k), over k = 1 ... D
    return np.array([1, *a * np.cumsum(mu ** np.arange(D))])


def limit(kind: str, D: int, mu: float) -> float:
    """Learning rate x curvature, to 0.5 %, from which on some mode grows."""
    for a in np.geomspace(1e-3, 4, 1660):
        if np.abs(np.roots(modes(kind, D, mu, a))).max() > 1 + 1e-6:
            return float(a)
    return np.inf


def limits() -> None:
    for mu in (0.9, 0.0):
        rows = [[kind, *(f"{limit(kind, D, mu):.2g}" for D in DELAYS)] for kind in KINDS]
        show(
            f"momentum {mu:g}: largest stable lr x curvature; ssgd {2 * (1 + mu):g}",
            ["D =", *DELAYS],
            rows,
        )


TABLES = {each.__name__: each for each in (delay, period, rates, limits)}

if __name__ == "__main__":
    TABLES[sys.argv[1] if len(sys.argv) > 1 else "delay"]()
