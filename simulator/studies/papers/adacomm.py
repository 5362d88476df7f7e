"""AdaComm: measures of the claims of adacomm.toml, about theory and about learning."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...network.mean_cost import mean_cost
from ...results.intervals import signed
from ...results.run import Run
from ...results.statistics import (
    at,
    crossing,
    human,
    number,
    sampled,
    seconds_per_step,
)
from .claim import Finding, mean
from .lab import Lab

FIGURE1, FIGURE2, FIGURE3 = "adacomm/figure1", "adacomm/figure2", "adacomm/figure3"
FREE = 'network.duration = "1 ms"'  # averages are almost free: periods differ by drift alone
VGG = ("adacomm/vgg16-fixed", "adacomm/vgg16-variable")
SETTINGS = (
    *VGG,
    "adacomm/resnet50-fixed",
    "adacomm/resnet50-variable",
    "adacomm/vgg16-block-momentum",
)
SAME = 0.95  # of tau = 1's final loss over AdaComm's: from here on AdaComm's counts as no higher
EARLY = 0.5  # a loss in the first descent; at 0.3 spikes decide the order
END = 0.2  # of a run's duration, over which a floor is averaged
SAMPLES = 50


def _row(lab: Lab, tau: int, name: str = FIGURE2) -> dict[str, float]:
    """Theory's row of one period."""
    rows: list[dict[str, float]] = lab.theory(name)["periods"]
    return next(row for row in rows if row["tau"] == tau)


def _best(lab: Lab, duration: float) -> dict[str, float]:
    rows: list[dict[str, float]] = lab.theory(FIGURE3)["tau_star"]
    return next(row for row in rows if row["duration"] == duration)


def _pairs(lab: Lab, name: str) -> list[tuple[Run, Run]]:
    """Runs of tau = 1 and of tau = 10, seed by seed."""
    groups = lab.runs(name).groups
    return list(zip(groups["ssgd"], groups["local-sgd tau=10"], strict=True))


def theorem(lab: Lab, tau: int, key: str, name: str = FIGURE2) -> Finding:
    """A number of theory about one period."""
    return Finding(_row(lab, tau, name)[key])


def simulated_step(lab: Lab, tau: int) -> Finding:
    """Seconds per local step, simulated; the note has Theorem 1's."""
    runs = [one if tau == 1 else ten for one, ten in _pairs(lab, FIGURE2)]
    said = _row(lab, tau)["seconds_per_step"]
    return mean(list(map(seconds_per_step, runs)), f"Theorem 1 says {said:.4f} s.")


def simulated_speedup(lab: Lab) -> Finding:
    """Seconds per step of tau = 1 over those of tau = 10, seed by seed."""
    ratios = [seconds_per_step(one) / seconds_per_step(ten) for one, ten in _pairs(lab, FIGURE2)]
    return mean(ratios, f"Theorem 1 says {_row(lab, 10)['speedup']:.4f}.")


def crossing_bounds(lab: Lab, key: str) -> Finding:
    """Time or bound at which the bounds of tau = 1 and 10 cross."""
    (row,) = lab.theory(FIGURE3)["crossings"]
    return Finding(row[key])


def _crosses(one: Run, ten: Run) -> float:
    """Time (s) at which the curve of tau = 1 falls below that of tau = 10 for good."""
    times = [time for time in one.curve["time"][1:] if ten.curve["time"][1] < time < ten.duration]
    ahead = [at(one, time) - at(ten, time) for time in times]
    last = max(i for i, difference in enumerate(ahead) if difference > 0)
    share = ahead[last] / (ahead[last] - ahead[last + 1])
    return times[last] + share * (times[last + 1] - times[last])


def crossing_curves(lab: Lab) -> Finding:
    """Time at which the simulated curves cross."""
    found = [_crosses(one, ten) for one, ten in _pairs(lab, FIGURE3)]
    return mean(found, f"By the theorem it is {crossing_bounds(lab, 'time').value:.1f} s.")


def best(lab: Lab, duration: float, key: str) -> Finding:
    """A number of theory about the best period for a duration (s)."""
    return Finding(_best(lab, duration)[key])


def best_whole(lab: Lab, duration: float) -> Finding:
    """The best whole period for a duration (s), whether Theorem 2 covers it or not."""
    best = _best(lab, duration)
    over = best["unconstrained"] > best["cap"]
    covered = f"Above the cap of {best['cap']}, where Theorem 2 ends" if over else "Below the cap"
    ratio = best["unconstrained"] / best["constant_delays"]
    return Finding(best["unconstrained"], note=f"{covered}; {ratio:.1f} times eq. 4's.")


class Curves(NamedTuple):
    """Runs of tau = 1, of the largest fixed tau, of all fixed ones, and of AdaComm."""

    one: Sequence[Run]
    large: Sequence[Run]
    fixed: Sequence[Sequence[Run]]
    adaptive: Sequence[Run]
    target: float


def curves(lab: Lab, name: str, *sets: str) -> Curves:
    """Runs of a scenario that lists tau = 1 first, the largest tau and AdaComm last; its target."""
    result = lab.runs(name, *sets)
    *fixed, adaptive = result.groups.values()
    target = result.scenario.run.target_loss
    assert target is not None
    return Curves(fixed[0], fixed[-1], fixed, adaptive, target)


def _times(runs: Sequence[Run], target: float) -> np.ndarray:
    """Seconds to the target; the run's duration where the target is not reached."""
    return np.array([min(crossing(run, target), run.duration) for run in runs])


def _never(runs: Sequence[Run], target: float) -> int:
    return sum(crossing(run, target) > run.duration for run in runs)


def _ends(runs: Sequence[Run]) -> np.ndarray:
    """Mean loss over the last part of each run."""
    return np.array(
        [
            np.mean([at(run, each * run.duration) for each in np.linspace(1 - END, 1, SAMPLES)])
            for run in runs
        ]
    )


def _plus_minus(values: np.ndarray) -> str:
    low, high = signed(values).ci95 or (values.min(), values.max())
    return f"{number(low)} to {number(high)}"


def ratio(lab: Lab, name: str, *sets: str) -> float:
    """Seconds of an average over those of a gradient."""
    scenario = lab.scenario(name, *sets)
    cost = mean_cost(scenario)
    return (cost.transmission + cost.latency) / scenario.team.mean_compute[0]


def speedup(lab: Lab, name: str, sets: Sequence[str] = ()) -> Finding:
    """Time of tau = 1 to the target over AdaComm's."""
    runs = curves(lab, name, *sets)
    one, adaptive = _times(runs.one, runs.target), _times(runs.adaptive, runs.target)
    note = (
        f"Loss {runs.target:g}: {human(one.mean())} to {human(adaptive.mean())}; an average takes "
        f"{ratio(lab, name, *sets):.3g} of a gradient's time."
    )
    never = {
        "tau = 1": _never(runs.one, runs.target),
        "AdaComm": _never(runs.adaptive, runs.target),
    }
    for who, count in never.items():
        if count:
            note += f" In {count} of {len(one)} runs {who} does not get there before the end."
    if any(never.values()):
        lower, upper = map(bool, never.values())
        bound = "no bound" if lower and upper else "a lower bound" if lower else "an upper bound"
        note += f" So the ratio is {bound}."
    return mean(one / adaptive, note)


def _of_fixed(runs: Curves) -> tuple[dict[str, np.ndarray], str]:
    """Seconds to the target of each fixed period, by label; and which of them is the best."""
    times = {fixed[0].label: _times(fixed, runs.target) for fixed in runs.fixed}
    return times, min(times, key=lambda label: float(times[label].mean()))


def first(lab: Lab, name: str) -> Finding:
    """Time of the best fixed period to the target over AdaComm's."""
    runs = curves(lab, name)
    times, best = _of_fixed(runs)
    note = f"The best fixed period is that of {best}."
    return mean(times[best] / _times(runs.adaptive, runs.target), note)


def floor(lab: Lab, name: str, *, synchronous: bool = False) -> Finding:
    """Final loss of the largest period, or of tau = 1, over AdaComm's."""
    runs = curves(lab, name)
    one, large, adaptive = map(_ends, (runs.one, runs.large, runs.adaptive))
    note = (
        f"Mean loss over the last fifth: tau = 1 {_plus_minus(one)}, {runs.large[0].label} "
        f"{_plus_minus(large)}, AdaComm {_plus_minus(adaptive)}."
    )
    return mean((one if synchronous else large) / adaptive, note)


def as_low(lab: Lab) -> Finding:
    """AdaComm's largest speed-up over tau = 1 among the settings where its final loss is as low."""
    found, said = [], []
    for name in SETTINGS:
        faster, lower = speedup(lab, name), floor(lab, name, synchronous=True)
        said.append(f"{name.removeprefix('adacomm/')} {faster.value:.2f} ({lower.value:.2f})")
        if lower.value >= SAME:
            found.append(faster)
    best = max(found, key=lambda each: each.value)
    note = f"Speed-up, and final loss of tau = 1 over AdaComm's: {', '.join(said)}. {best.note}"
    return Finding(best.value, best.ci95, note)


def trade_off(lab: Lab) -> Finding:
    """The smallest ratio of the best fixed period's time, or final loss, to AdaComm's, VGG-16."""
    found, said = [], []
    for name in VGG:
        runs = curves(lab, name)
        lowest = min(map(_ends, runs.fixed), key=np.mean)
        sooner, lower = first(lab, name), mean(lowest / _ends(runs.adaptive))
        found += [sooner, lower]
        where = name.removeprefix("adacomm/")
        said.append(f"{where}: time {sooner.value:.2f}, final loss {lower.value:.2f}")
    least = min(found, key=lambda each: each.value)
    return Finding(least.value, least.ci95, f"{'; '.join(said)}.")


def start(lab: Lab, name: str = FIGURE1, place: int = -1) -> Finding:
    """Time of tau = 1 to an early loss over that of a fixed period, the largest or by its place."""
    runs = curves(lab, name)
    one, large = _times(runs.one, EARLY), _times(runs.fixed[place], EARLY)
    note = f"Loss {EARLY}: {human(one.mean())} against {human(large.mean())}."
    return mean(one / large, note)


def final_accuracy(lab: Lab, name: str) -> Finding:
    """AdaComm's final test accuracy minus that of tau = 1, in points."""
    runs = curves(lab, name)
    adaptive, one = (
        np.array([100 * run.curve["accuracy"][-1] for run in each])
        for each in (runs.adaptive, runs.one)
    )
    return mean(adaptive - one, f"{adaptive.mean():.1f} % against {one.mean():.1f} %.")


def throughout(lab: Lab, name: str, sets: Sequence[str] = ()) -> Finding:
    """The smallest ratio over time of a fixed period's loss to AdaComm's, of means over seeds."""
    runs, interval = curves(lab, name, *sets), 60.0
    times = np.arange(2 * interval, min(run.duration for run in runs.one), interval / 2)
    ours = sampled(runs.adaptive, "loss", times)
    ratios = np.array([sampled(each, "loss", times) / ours for each in runs.fixed])
    least = np.unravel_index(np.argmin(ratios.mean(axis=1)), (len(ratios), len(times)))
    which, when = map(int, least)
    label = runs.fixed[which][0].label
    return mean(ratios[which, :, when], f"The smallest is that of {label} at {times[when]:.0f} s.")


def plateau(lab: Lab, steps: int, sets: Sequence[str] = ()) -> Finding:
    """AdaComm's fall in the time that tau = 1 takes for `steps`, over that of tau = 1.

    From the loss about the middle of that time to the one at its end, a fifth of it each.
    """
    runs = curves(lab, "adacomm/vgg16-block-momentum", *sets)
    falls, said = [], []
    for name, each in (("tau = 1", runs.one), ("AdaComm", runs.adaptive)):
        ends = [np.interp(steps, run.curve["step"], run.curve["time"]) for run in runs.one]
        middle, end = (
            np.array(
                [
                    np.mean([at(run, share * until) for share in np.linspace(*part, SAMPLES)])
                    for run, until in zip(each, ends, strict=True)
                ]
            )
            for part in ((0.4, 0.6), (0.8, 1.0))
        )
        falls.append(middle / end)
        said.append(f"{name} {number(middle.mean())} to {number(end.mean())}")
    return mean(falls[1] / falls[0], f"Loss about the middle and at the end: {'; '.join(said)}.")


def gains_more(lab: Lab) -> Finding:
    """VGG-16's speed-up over ResNet-50's, seed by seed, with rates that step down."""
    found = []
    for name in ("adacomm/vgg16-variable", "adacomm/resnet50-variable"):
        runs = curves(lab, name)
        found.append(_times(runs.one, runs.target) / _times(runs.adaptive, runs.target))
    return mean(found[0] / found[1], f"{found[0].mean():.3g} against {found[1].mean():.3g}.")


def tail(lab: Lab) -> Finding:
    """Excess of the slowest hundredth of iterations over the mean: tau = 1 over tau = 10."""
    excess = []
    for label, tau in (("ssgd", 1), ("local-sgd tau=10", 10)):
        runs = lab.runs(FIGURE2, "run.steps=4000", f"run.evaluate_every={tau}").groups[label]
        took = [np.diff(run.curve["time"]) / tau for run in runs]
        excess.append(np.array([np.quantile(each, 0.99) - each.mean() for each in took]))
    said = "{:.3g} s against {:.3g} s.".format(*(each.mean() for each in excess))
    return mean(excess[0] / excess[1], said)


def interval_wise(lab: Lab) -> Finding:
    """The smallest ratio, at boundaries, of a fixed period's bound to that of the best ones."""
    scenario = lab.scenario(FIGURE3)
    interval, until = scenario.theory.interval, scenario.run.duration
    assert interval is not None
    assert until is not None
    periods = lab.theory(FIGURE3)["intervals"]
    changes = [[each["tau"] for each in periods], [each["steps"] for each in periods[1:]]]
    taus = {"best": "{{ schedule = 'piecewise', values = {}, at = {} }}".format(*changes)}
    taus |= {f"tau = {tau}": str(tau) for tau in sorted(set(changes[0]))}
    made = [f"{{ name='local-sgd', label='{name}', tau={tau} }}" for name, tau in taus.items()]
    result = lab.runs(FIGURE3, f"algorithm=[{', '.join(made)}]")
    times = np.arange(interval, until, interval)
    best, *fixed = (sampled(runs, "loss", times) for runs in result.groups.values())
    ratios = (np.array(fixed) / best).min(axis=(0, 2))
    shown = ", ".join(f"{each['tau']} from {human(each['time'])}" for each in periods[:6])
    return mean(ratios, f"Periods: {shown}, ... {periods[-1]['tau']}.")


def free_floor(lab: Lab) -> Finding:
    """Final loss of the large period over that of tau = 1, after as many steps."""
    runs = curves(lab, FIGURE1, FREE)
    one, large = _ends(runs.one), _ends(runs.large)
    steps = np.mean([run.steps for run in runs.one])
    note = (
        f"With averages that take almost no time, so that both do about {steps:.0f} steps: "
        f"{_plus_minus(large)} against {_plus_minus(one)}."
    )
    return mean(large / one, note)


def best_of_both(lab: Lab) -> Finding:
    """Smallest of the ratios of tau = 1's times and the large tau's final loss to AdaComm's."""
    runs = curves(lab, FIGURE1)
    start = _times(runs.one, EARLY) / _times(runs.adaptive, EARLY)
    sooner = _times(runs.one, runs.target) / _times(runs.adaptive, runs.target)
    lower = _ends(runs.large) / _ends(runs.adaptive)
    note = (
        f"Relative to AdaComm: tau = 1's time to loss {EARLY} {_plus_minus(start)}, to "
        f"{runs.target:g} {_plus_minus(sooner)}; the large period's final loss "
        f"{_plus_minus(lower)}."
    )
    return mean(np.minimum(np.minimum(start, sooner), lower), note)


def tau_one(lab: Lab) -> Finding:
    """Time of tau = 1 to the target over that of the best fixed period."""
    runs = curves(lab, "adacomm/resnet50-fixed")
    times, best = _of_fixed(runs)
    said = ", ".join(f"{label} {human(each.mean())}" for label, each in times.items())
    one, *_ = times.values()
    return mean(one / times[best], f"To loss {runs.target:g}: {said}.")
