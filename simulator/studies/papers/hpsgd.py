"""HPSGD: measures of the claims of hpsgd.toml: times, shares, accuracies, a value per seed."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from ...results.run import Run
from ...results.statistics import crossing, number, sampled, seconds_per_step
from .claim import Finding, mean
from .lab import Lab

TIME, ACCURACY = "hpsgd/time", "hpsgd/accuracy"
LOCAL = "local-sgd tau=8"
GAMMA = 8  # local-sgd's period
COUNTS = (4, 8, 12, 16)  # numbers of workers
TARGETS = (0.4, 0.8)  # accuracies
BATCHES = 391  # iterations of an epoch: 50,000 samples, 128 each
BANDWIDTHS = ("60 Gbit/s", "8 Gbit/s", "4 Gbit/s", "2.5 Gbit/s", "2 Gbit/s")
FREE_ASKING = "overhead=[]"


def timing(lab: Lab, workers: int, *sets: str) -> dict[str, list[Run]]:
    """Runs of all algorithms about time, with so many workers."""
    return lab.runs(TIME, f"cluster.workers={workers}", *sets).groups


def paces(lab: Lab, workers: int, *sets: str) -> dict[str, np.ndarray]:
    """Seconds per iteration of each algorithm, one per seed."""
    found = timing(lab, workers, *sets)
    return {name: np.array([seconds_per_step(run) for run in runs]) for name, runs in found.items()}


def shares(lab: Lab, workers: int, name: str) -> np.ndarray:
    """Shares of the time spent on compute, wait, communicate; shape (seeds, 3).

    Compute is the time of psgd, which does nothing else; asking for the mean is a wait.
    """
    found = timing(lab, workers)
    return np.array(
        [
            (own := seconds_per_step(alone) / seconds_per_step(run), 1 - own - sent, sent)
            for run, alone in zip(found[name], found["psgd"], strict=True)
            for sent in [run.seconds["communicate"] / sum(run.seconds.values())]
        ]
    )


def reaching(runs: list[Run], accuracy: float, by: str = "time") -> np.ndarray:
    """Seconds (or steps) until a test accuracy is first reached, one per seed; inf if never."""
    falling = [
        replace(
            run,
            curve={"time": run.curve[by], "loss": [-each for each in run.curve["accuracy"]]},
        )
        for run in runs
    ]
    return np.array([crossing(run, -accuracy) for run in falling])


def gain(lab: Lab, *, workers: int, over: str) -> Finding:
    """Return by how many percent HPSGD's throughput is higher than that of `over`."""
    took = paces(lab, workers)
    return mean(100 * (took[over] / took["hpsgd"] - 1), _times(took))


def parity(lab: Lab) -> Finding:
    """Local SGD's seconds per iteration over HPSGD's, 4 workers."""
    took = paces(lab, 4)
    return mean(took[LOCAL] / took["hpsgd"], _times(took))


def impossible(lab: Lab) -> Finding:
    """HPSGD's gain over local SGD with 16 workers, and why it contradicts that over ssgd."""
    took = paces(lab, 16)
    compute, ours, ssgd = (took[name].mean() for name in ("psgd", "hpsgd", "ssgd"))
    k = 1 / (1 - 2 / 8)  # 1 + k = 2 (1 + k/8)
    wanted = (1.75 * ours - compute) / ((ssgd - compute) / 8)
    return mean(
        100 * (took[LOCAL] / took["hpsgd"] - 1),
        f"Both gains together: ssgd takes 3.5/1.75 = {3.5 / 1.75:g} times local-sgd's step, "
        f"1 + k = 2 (1 + k/8), so k = {k:.3f}, and HPSGD's step would take (1 + k)/3.5 = "
        f"{(1 + k) / 3.5:.3f} gradients, less than the one that it computes. Here averaging the "
        f"model would "
        f"have to cost {wanted:.2f} times averaging the gradient; where HPSGD loses no time, "
        f"{8 * 0.75 / 2.5:.1f} times.",
    )


def fit(lab: Lab) -> Finding:
    """Time of an average over that of a gradient."""
    return mean([_k(run) for run in timing(lab, 4)["ssgd"]])


def waiting(lab: Lab) -> Finding:
    """Time of HPSGD's iteration beyond the gradient, in percent of the gradient."""
    return mean(_waits(lab, 4))


def _waits(lab: Lab, workers: int, *sets: str) -> np.ndarray:
    took = paces(lab, workers, *sets)
    found: np.ndarray = np.round(100 * (took["hpsgd"] / took["psgd"] - 1), 9)  # no rounding errors
    return found


def waits_more(lab: Lab, *, sets: Sequence[str]) -> Finding:
    """HPSGD's wait with the most workers minus that with the fewest, in percent of a gradient."""
    found = [_waits(lab, count, *sets) for count in COUNTS]
    said = ", ".join(
        f"{count}: {each.mean():.3g} %" for count, each in zip(COUNTS, found, strict=True)
    )
    return mean(found[-1] - found[0], f"Wait by workers: {said}.")


def window(lab: Lab) -> Finding:
    """Period over the formula's, of the network where it is furthest from 1."""
    ratios, notes = [], []
    for bandwidth in BANDWIDTHS:
        result = lab.runs(TIME, f"network.bandwidth={bandwidth}", FREE_ASKING)
        sent = {each["name"]: each["bytes_per_step"] for each in result.algorithms}
        k = _k(result.groups["ssgd"][0])
        period = sent["ssgd"] / sent["hpsgd"]
        ratios.append(period / max(2, ceil(k)))
        notes.append(f"k = {k:.2f}: {period:.2f}")
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return Finding(worst, note=f"Iterations per average at {', '.join(notes)}.")


def efficiency(lab: Lab, *, workers: int, of: str = "hpsgd") -> Finding:
    """One algorithm's scale efficiency over ssgd's."""
    took = paces(lab, workers)
    alone = took["psgd"].mean()
    said = ", ".join(f"{name} {alone / took[name].mean():.3f}" for name in ("hpsgd", LOCAL, "ssgd"))
    return mean(took["ssgd"] / took[of], f"Efficiencies: {said}.")


def kept(lab: Lab, *, of: str, over: str = "") -> Finding:
    """The percentage of its scale efficiency that one algorithm keeps from 4 to 16 workers.

    `over`: minus that of another.
    """
    few, many = paces(lab, COUNTS[0]), paces(lab, COUNTS[-1])
    left = {
        name: 100 * (few[name] / few["psgd"]) / (many[name] / many["psgd"])
        for name in ("hpsgd", LOCAL, "ssgd")
    }
    said = ", ".join(f"{name} {each.mean():.1f} %" for name, each in left.items())
    less = left[over] if over else 0.0
    return mean(np.round(left[of] - less, 9), f"Kept: {said}.")


def growth(lab: Lab, *, over: str) -> Finding:
    """The smallest rise of HPSGD's advantage from one number of workers to the next."""
    ratios = [(took := paces(lab, count))[over] / took["hpsgd"] for count in COUNTS]
    steps = np.diff(ratios, axis=0)
    least = steps[np.argmin(steps.mean(axis=1))]
    said = ", ".join(
        f"{count}: {ratio.mean():.3f}" for count, ratio in zip(COUNTS, ratios, strict=True)
    )
    return mean(least, f"{over}'s time over HPSGD's, by workers: {said}.")


def epoch(lab: Lab, *, than: str, ours: str = "hpsgd", workers: int = 4) -> Finding:
    """Seconds that an epoch takes longer with `than` than with `ours`."""
    took = paces(lab, workers)
    said = ", ".join(f"{name} {BATCHES * each.mean():.1f} s" for name, each in took.items())
    return mean(BATCHES * (took[than] - took[ours]), f"An epoch: {said}.")


def traffic(lab: Lab, of: str) -> Finding:
    """Bytes per step of ssgd over those of another, 4 workers."""
    sent = {each["label"]: each["bytes_per_step"] for each in lab.runs(TIME).algorithms}
    return Finding(sent["ssgd"] / sent[of])


def hidden(lab: Lab, *, than: str) -> Finding:
    """HPSGD's share of time in communication minus another's, in percentage points."""
    parts = {name: shares(lab, 4, name) for name in ("hpsgd", than)}
    said = "; ".join(
        f"{name} " + "/".join(f"{round(100 * share)}" for share in each.mean(axis=0))
        for name, each in parts.items()
    )
    less = parts["hpsgd"][:, 2] - parts[than][:, 2]
    return mean(100 * less, f"Compute/wait/communicate, in %: {said}.")


def final_accuracy(lab: Lab, sets: Sequence[str] = (), over: str = "ssgd") -> Finding:
    """Accuracy after 100 epochs over that of another algorithm."""
    last = {
        label: np.array([run.curve["accuracy"][-1] for run in runs])
        for label, runs in lab.runs(ACCURACY, *sets).groups.items()
    }
    said = ", ".join(f"{name} {each.mean():.4f}" for name, each in last.items())
    return mean(last["hpsgd"] / last[over], f"Test accuracy: {said}.")


def by_then(lab: Lab, *, than: str) -> Finding:
    """HPSGD's smallest lead in test accuracy at a quarter, half and all of its time, in points."""
    runs = lab.runs(ACCURACY).groups
    times = np.array([0.25, 0.5, 1.0]) * min(run.duration for run in runs["hpsgd"])
    ours, theirs = (100 * sampled(runs[name], "accuracy", times) for name in ("hpsgd", than))
    leads = np.round(ours - theirs, 9)
    least = int(np.argmin(leads.mean(axis=0)))
    said = ", ".join(
        f"{when:.3g} s: {mine:.1f} against {other:.1f} %"
        for when, mine, other in zip(times, ours.mean(axis=0), theirs.mean(axis=0), strict=True)
    )
    return mean(leads[:, least], f"After {said}.")


def smoother(lab: Lab, *, than: str) -> Finding:
    """Roughness of another's curve of accuracy over HPSGD's: mean absolute second differences."""
    rough = {
        label: np.array([np.abs(np.diff(run.curve["accuracy"][1:], n=2)).mean() for run in runs])
        for label, runs in lab.runs(ACCURACY).groups.items()
    }
    said = ", ".join(f"{name} {100 * each.mean():.3g}" for name, each in rough.items())
    return mean(rough[than] / rough["hpsgd"], f"In points: {said}.")


def in_a_loop(lab: Lab, *, what: str) -> Finding:
    """HPSGD's gradients or synchronisations in the loop that section 3.2 gives local-sgd."""
    result = lab.runs(TIME, FREE_ASKING)
    sent = {each["name"]: each["bytes_per_step"] for each in result.algorithms}
    step = np.array([seconds_per_step(run) for run in result.groups["hpsgd"]])
    ssgd = result.groups["ssgd"][0]
    loop = (GAMMA + 1 + _k(ssgd)) * seconds_per_step(result.groups["psgd"][0])
    times = 1.0 if what == "gradients" else sent["hpsgd"] / sent["ssgd"]
    return mean(np.round(times * loop / step, 9), f"k = {_k(ssgd):.3f}.")


def sooner(  # noqa: PLR0913 - which runs, and what of them
    lab: Lab,
    *,
    accuracy: float,
    first: str,
    then: str,
    sets: Sequence[str] = (),
    by: str = "time",
) -> Finding:
    """Return the time (or step) at which `then` reaches `accuracy` over that of `first`."""
    runs = lab.runs(ACCURACY, *sets).groups
    found = {name: reaching(each, accuracy, by) for name, each in runs.items()}
    unit = " s" if by == "time" else ""
    said = ", ".join(f"{name} {number(each.mean())}{unit}" for name, each in found.items())
    return mean(found[then] / found[first], f"Reached after {said}.")


def _k(run: Run) -> float:
    """Time of an average over that of a gradient; `run` must be ssgd's."""
    return run.seconds["communicate"] / run.seconds["compute"]


def _times(took: dict[str, np.ndarray]) -> str:
    said = ", ".join(f"{name} {1000 * each.mean():.1f}" for name, each in took.items())
    return f"Milliseconds per iteration: {said}."
