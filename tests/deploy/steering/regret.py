"""What each policy loses in changing worlds against the best fixed period in hindsight."""

from pathlib import Path
from statistics import median

import numpy as np

from paceline.deploy.steering.policies import AdaComm
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.programs.adaptive import PaperRule
from paceline.simulator.results.statistics import crossing
from tests.deploy.steering.worlds import (
    KINDS,
    PERIODS,
    STEPS,
    TARGET,
    model,
    scenario,
    schedules,
    steered,
)  # fmt: skip
from tests.lab import tables

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "steering.md"
SEEDS = range(3)
OTHERS = range(10, 12)  # of the pick, which must not know the world's own
ENOUGH = 1100  # steps to the target with a short period, and a third more
INTERVAL = 20.0  # of AdaComm's rule, seconds


def times(world, seeds):
    """Return the mean seconds to the target with each of `PERIODS`, in a world that it may take."""
    found = []
    for tau, algorithm in zip(PERIODS, world.algorithm, strict=True):
        run = world.run.model_copy(update={"steps": min(STEPS, ENOUGH + ENOUGH * tau // 80)})
        part = world.model_copy(update={"run": run})
        runs = run_seeds(part, algorithm, seeds, engine="batched")
        found.append(float(np.mean([crossing(run, TARGET) for run in runs])))
    assert np.isfinite(found).all()
    return found


_curves = {}  # in each process: the loss over steps depends on no world


def row(number):
    """Run one world under every policy."""
    world = schedules()[number]
    changing = scenario(world.link, world.slow, world.bandwidth)
    fixed = times(changing, SEEDS)
    known = scenario(None, None, world.bandwidth)
    tau = PERIODS[int(np.argmin(times(known, OTHERS)))]
    policies = {
        "model": lambda: model(world, _curves),
        "adacomm": lambda: AdaComm(PaperRule(2 * tau, INTERVAL, 0.5, 0, 1)),
    }
    found, changes = {}, []
    for name, policy in policies.items():
        reached = []
        for seed in SEEDS:
            first = 2 * tau if name == "adacomm" else tau
            run, controller, _ = steered(world, policy(), seed, tau=first)
            reached.append(crossing(run, TARGET))
            if name == "model":
                changes.append(sum(decision.clock < reached[-1] for decision in controller.log))
        found[name] = float(np.mean(reached))
    found |= {"best": min(fixed), "pick": fixed[PERIODS.index(tau)], "worst": max(fixed)}
    what = [word for word, part in (("link", world.link), ("worker", world.slow)) if part]
    return found | {
        "number": number, "kind": world.kind, "what": " and ".join(what) or "nothing",
        "bandwidth": world.bandwidth, "pick tau": tau, "changes": changes,
        "best tau": PERIODS[int(np.argmin(fixed))], "fixed": fixed,
    }  # fmt: skip


def regret(found, name):
    """Return the share of time that a policy loses against the best fixed period."""
    return found[name] / found["best"] - 1


POLICIES = {
    "model": "`model`", "adacomm": "`adacomm`", "pick": "`fixed`: the pick",
    "worst": "the worst fixed tau",
}  # fmt: skip


def page(rows):
    """Return a table in Markdown, and write one of all worlds."""
    lines = ["| regret, % | " + " | ".join([*KINDS, "all: median", "90 %", "worst"]) + " |"]
    lines.append("|---" * (len(KINDS) + 4) + "|")
    for name, label in POLICIES.items():
        by = [[100 * regret(r, name) for r in rows if r["kind"] == kind] for kind in KINDS]
        every = sorted(value for values in by for value in values)
        cells = [f"{median(values):.1f} (to {max(values):.1f})" for values in by if values]
        cells += [f"{value:.1f}" for value in np.quantile(every, [0.5, 0.9, 1])]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    missed = [r["number"] for r in rows if regret(r, "model") > 0.05]
    calm = [sum(r["changes"]) for r in rows if r["kind"] == "none"]
    lines += [
        "",
        f"Above 5 %: {len(missed)} of {len(rows)} worlds"
        + (f" ({', '.join(map(str, missed))})." if missed else ".")
        + f" Changes in the {len(calm)} unchanging worlds: {sum(calm)} in all, over "
        f"{len(calm) * len(SEEDS)} runs.",
        "",
    ]
    head = (
        "world",
        "changes",
        "Mbit/s at first",
        "best tau",
        "seconds",
        *POLICIES,
        "changes of tau",
    )
    worlds = [
        (r["number"], f"{r['kind']}: {r['what']}", r["bandwidth"], r["best tau"],
         f"{r['best']:.0f}", *(f"{100 * regret(r, name):+.1f}" for name in POLICIES),
         " ".join(map(str, r["changes"])))
        for r in rows
    ]  # fmt: skip
    return "\n".join([*lines, tables.write(PAGE.with_name("steering-worlds.csv"), head, worlds)])
