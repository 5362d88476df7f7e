"""Run a hundred changing worlds under each policy and write docs/evidence/steering.md.

    python -m tests.lab.steering

A policy's regret is what it loses against the best fixed period in hindsight. Exits 1 where the
median regret of `model` exceeds 5 %, or any exceeds 20 %.
"""

import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.results.statistics import crossing
from tests.deploy.steering import worlds
from tests.deploy.steering.worlds import KINDS, PERIODS, STEPS, TARGET
from tests.lab import tables

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "steering.md"
BEGIN, END = "<!-- python -m tests.lab.steering writes from here -->", "<!-- to here -->"
SEEDS = range(3)
OTHERS = range(10, 12)  # of the pick, which must not know the world's own
ENOUGH = 1100  # steps to the target with a short period, and a third more
POLICIES = {"model": "`model`", "pick": "`fixed`: the pick", "worst": "the worst fixed tau"}
_curves = {}  # in each process: the loss over steps depends on no world


def times(scenario, seeds):
    """Return the mean seconds to the target with each of `PERIODS`, in a world that it may take."""
    seconds = []
    for tau, algorithm in zip(PERIODS, scenario.algorithm, strict=True):
        run = scenario.run.model_copy(update={"steps": min(STEPS, ENOUGH + ENOUGH * tau // 80)})
        part = scenario.model_copy(update={"run": run})
        runs = run_seeds(part, algorithm, seeds, engine="batched")
        seconds.append(float(np.mean([crossing(run, TARGET) for run in runs])))
    assert np.isfinite(seconds).all()
    return seconds


def row(number):
    """Run one world under every policy."""
    world = worlds.schedules()[number]
    fixed = times(worlds.scenario(world.link, world.slow, world.bandwidth), SEEDS)
    tau = PERIODS[int(np.argmin(times(worlds.scenario(None, None, world.bandwidth), OTHERS)))]
    reached, changes = [], []
    for seed in SEEDS:
        run, controller, _ = worlds.steered(world, worlds.model(world, _curves), seed, tau=tau)
        reached.append(crossing(run, TARGET))
        changes.append(sum(decision.clock < reached[-1] for decision in controller.log))
    seconds = {"model": float(np.mean(reached))}
    seconds |= {"pick": fixed[PERIODS.index(tau)], "worst": max(fixed)}
    what = [word for word, part in (("link", world.link), ("worker", world.slow)) if part]
    return {
        "kind": world.kind, "what": " and ".join(what) or "nothing", "changes": changes,
        "bandwidth": world.bandwidth, "tau": PERIODS[int(np.argmin(fixed))], "best": min(fixed),
        "regret": {name: 100 * (value / min(fixed) - 1) for name, value in seconds.items()},
    }  # fmt: skip


def page(rows):
    """Return a table in Markdown, and write one of all worlds."""
    lines = ["| regret, % | " + " | ".join([*KINDS, "all: median", "90 %", "worst"]) + " |"]
    lines.append("|---" * (len(KINDS) + 4) + "|")
    for name, label in POLICIES.items():
        by = [[row["regret"][name] for row in rows if row["kind"] == kind] for kind in KINDS]
        cells = [f"{np.median(values):.1f} (to {max(values):.1f})" for values in by]
        cells += [f"{value:.1f}" for value in np.quantile(np.concatenate(by), [0.5, 0.9, 1])]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    missed = [str(n) for n, row in enumerate(rows) if row["regret"]["model"] > 5]
    calm = [sum(row["changes"]) for row in rows if row["kind"] == "none"]
    lines.append(
        f"\nAbove 5 %: {len(missed)} of {len(rows)} worlds ({', '.join(missed) or 'none'}). "
        f"Changes in the {len(calm)} unchanging worlds: {sum(calm)} in all, over "
        f"{len(calm) * len(SEEDS)} runs.\n"
    )
    head = ["world", "changes", "Mbit/s at first", "best tau", "seconds", *POLICIES]
    cells = [
        (n, f"{row['kind']}: {row['what']}", row["bandwidth"], row["tau"], f"{row['best']:.0f}",
         *(f"{row['regret'][name]:+.1f}" for name in POLICIES), " ".join(map(str, row["changes"])))
        for n, row in enumerate(rows)
    ]  # fmt: skip
    table = PAGE.with_name("steering-worlds.csv")
    return "\n".join([*lines, tables.write(table, [*head, "changes of tau"], cells)])


def main():
    """Run all worlds, and write."""
    with get_context("spawn").Pool() as pool:
        rows = pool.map(row, range(len(worlds.schedules())), chunksize=1)
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(rows)}\n\n{END}{rest.split(END)[1]}", "utf-8")
    regrets = [row["regret"]["model"] for row in rows]
    print(f"median {np.median(regrets):.1f} %, worst {max(regrets):.1f} %")
    return int(np.median(regrets) > 5 or max(regrets) > 20)


if __name__ == "__main__":
    sys.exit(main())
