"""AdaComm: adaptive communication periods (Wang & Joshi, arXiv 1810.08313)."""

from functools import partial

from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import at, seconds_per_step
from paceline.simulator.studies.papers import adacomm_figures as figures
from paceline.simulator.studies.papers.adacomm_learning import CLAIMS as LEARNING
from paceline.simulator.studies.papers.claim import Claim, Finding, Paper, mean
from paceline.simulator.studies.papers.lab import Lab

FIGURE2, FIGURE3 = "adacomm/figure2", "adacomm/figure3"


def _simulated_step(lab: Lab, tau: int) -> Finding:
    """Seconds per local step, simulated; the note has Theorem 1's."""
    groups = lab.runs(FIGURE2).groups
    runs = groups["ssgd"] if tau == 1 else groups[f"local-sgd tau={tau}"]
    theorem = _row(lab, tau)["seconds_per_step"]
    return mean(list(map(seconds_per_step, runs)), f"Theorem 1 says {theorem:.4f} s.")


def _simulated_speedup(lab: Lab) -> Finding:
    """Seconds per step of tau = 1 over those of tau = 10, seed by seed."""
    groups = lab.runs(FIGURE2).groups
    pairs = zip(groups["ssgd"], groups["local-sgd tau=10"], strict=True)
    ratios = [seconds_per_step(one) / seconds_per_step(ten) for one, ten in pairs]
    return mean(ratios, f"Theorem 1 says {_row(lab, 10)['speedup']:.4f}.")


def _row(lab: Lab, tau: int, name: str = FIGURE2) -> dict[str, float]:
    """Theory's row of one period."""
    rows: list[dict[str, float]] = lab.theory(name)["periods"]
    return next(row for row in rows if row["tau"] == tau)


def _crossing(lab: Lab, key: str) -> Finding:
    (row,) = lab.theory(FIGURE3)["crossings"]
    return Finding(row[key])


def _crosses(one: Run, ten: Run) -> float:
    """Time (s) at which the curve of tau = 1 falls below that of tau = 10 for good."""
    times = [time for time in one.curve["time"][1:] if ten.curve["time"][1] < time < ten.duration]
    ahead = [at(one, time) - at(ten, time) for time in times]
    last = max(i for i, difference in enumerate(ahead) if difference > 0)
    share = ahead[last] / (ahead[last] - ahead[last + 1])
    return times[last] + share * (times[last + 1] - times[last])


def _simulated_crossing(lab: Lab) -> Finding:
    groups = lab.runs(FIGURE3).groups
    pairs = zip(groups["ssgd"], groups["local-sgd tau=10"], strict=True)
    found = [_crosses(one, ten) for one, ten in pairs]
    return mean(found, f"By the theorem it is {_crossing(lab, 'time').value:.1f} s.")


def _best(lab: Lab, duration: float) -> dict[str, float]:
    rows: list[dict[str, float]] = lab.theory(FIGURE3)["tau_star"]
    return next(row for row in rows if row["duration"] == duration)


_theory = partial(Claim, timing=True)


PASGD = "With tau = 10 workers wait once in ten steps, for sums of ten times, which vary less."
STEPS = (
    _theory(
        "figure 2: a synchronous step, by Theorem 1",
        "16 workers, exponential steps of mean 1, an average of 1: H(16) + 1",
        lambda lab: Finding(_row(lab, 1)["seconds_per_step"]),
        expected=4.3807,
        why="The largest of 16 exponentials has mean H(16).",
        unit="s",
    ),
    _theory(
        "figure 2: a synchronous step, simulated",
        "the same by simulation",
        lambda lab: _simulated_step(lab, 1),
        expected=4.3807,
        why="Every step waits for the slowest of 16.",
        unit="s",
    ),
    _theory(
        "figure 2: a step at tau = 10, by Theorem 1",
        "the largest of 16 means of 10 exponentials, and a tenth of an average",
        lambda lab: Finding(_row(lab, 10)["seconds_per_step"]),
        expected=1.7337,
        why=PASGD,
        unit="s",
    ),
    _theory(
        "figure 2: a step at tau = 10, simulated",
        "the same by simulation",
        lambda lab: _simulated_step(lab, 10),
        expected=1.7337,
        why=PASGD,
        unit="s",
    ),
    _theory(
        "figure 2: speed-up of tau = 10, by Theorem 1",
        "local steps go 2.5 times as fast as synchronous ones",
        lambda lab: Finding(_row(lab, 10)["speedup"]),
        expected=2.527,
        why=PASGD,
    ),
    _theory(
        "figure 2: speed-up of tau = 10, simulated",
        "the same by simulation",
        _simulated_speedup,
        expected=2.527,
        why=PASGD,
    ),
)

FLOOR = "In the limit only gradient noise and drift between averages remain."
LATER = "A larger period takes more steps per second at first and drifts more in the end."
BOUNDS = (
    _theory(
        "figure 3: when the bounds of tau = 1 and 10 cross",
        "from that time on tau = 1 has the lower bound",
        lambda lab: _crossing(lab, "time"),
        expected=1148.9,
        why=LATER,
        unit="s",
    ),
    _theory(
        "figure 3: when the bounds cross, simulated",
        "the same for the curves of simulated runs",
        _simulated_crossing,
        expected=1148.9,
        why=LATER,
        unit="s",
    ),
    _theory(
        "figure 3: the bound where they cross",
        "the error of both at that time",
        lambda lab: _crossing(lab, "bound"),
        expected=0.1003,
        why=LATER,
    ),
    _theory(
        "figure 3: floor of tau = 1",
        "the limit of Theorem 2's bound over time",
        lambda lab: Finding(_row(lab, 1, FIGURE3)["floor"]),
        expected=0.005,
        why=FLOOR,
    ),
    _theory(
        "figure 3: floor of tau = 10",
        "the limit of Theorem 2's bound over time",
        lambda lab: Finding(_row(lab, 10, FIGURE3)["floor"]),
        expected=0.0626,
        why=FLOOR,
    ),
    _theory(
        "Theorem 2: largest period",
        "lr L + lr^2 L^2 tau (tau - 1) <= 1 allows tau up to 12",
        lambda lab: Finding(_best(lab, 60)["cap"]),
        expected=12,
        why="The theorem does not cover larger periods.",
    ),
)

CONSTANT = {60: 8.07, 100: 6.25, 500: 2.80, 1000: 1.98}
UNCONSTRAINED = {60: 19, 100: 14, 500: 5, 1000: 4}


def _eq4(duration: int, tau: float) -> Claim:
    return _theory(
        f"eq. 4: best tau for T = {duration} s",
        "the best period if all steps and averages took their mean time",
        lambda lab: Finding(_best(lab, duration)["constant_delays"]),
        expected=tau,
        why="The longer the training, the more the floor matters.",
    )


def _integer(duration: int, tau: int) -> Claim:
    def measure(lab: Lab) -> Finding:
        best = _best(lab, duration)
        over = best["unconstrained"] > best["cap"]
        covered = (
            f"Above the cap of {best['cap']}, where Theorem 2 ends" if over else "Below the cap"
        )
        ratio = best["unconstrained"] / best["constant_delays"]
        return Finding(best["unconstrained"], note=f"{covered}; {ratio:.1f} times eq. 4's.")

    return _theory(
        f"Theorem 2: best whole tau for T = {duration} s",
        "with exponential steps, over all whole numbers",
        measure,
        expected=tau,
        why="Eq. 4 ignores that a larger tau also shortens the wait for the slowest worker.",
    )


BEST = (
    *(_eq4(duration, tau) for duration, tau in CONSTANT.items()),
    *(_integer(duration, tau) for duration, tau in UNCONSTRAINED.items()),
)

PAPER = Paper(
    name="adacomm",
    title="Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in "
    "Local-Update SGD",
    source="Wang & Joshi, arXiv 1810.08313",
    settings="The claims about theory use the paper's numbers. In the experiments, softmax "
    "regression "
    "on digits, dealt unevenly to 4 workers, at a learning rate near its limit, stands for VGG-16 "
    "and ResNet-50 on CIFAR: compare ratios of times, not minutes or losses. A gradient takes a "
    "quarter of an average's time for VGG-16, and twice an average's for ResNet-50. We assume "
    "which speed-up belongs to which schedule of the learning rate: of VGG-16's two, the one to "
    "the lower loss to the rate that steps down; ResNet-50's to the fixed rate.",
    claims=(*STEPS, *BOUNDS, *BEST, *LEARNING),
    figures=figures.FIGURES,
)
