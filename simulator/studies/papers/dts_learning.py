"""DTS: claims about accuracy, on a stand-in."""

from functools import partial

from paceline.simulator.studies.papers.claim import Assumption, Claim
from paceline.simulator.studies.papers.dts_measures import (
    DELAY,
    DELAYS,
    SPARSITY,
    against,
    compressed,
    loss_per_delay,
)

NOISE = -0.5  # points: the loss in the notes on DGA from D = 5 to D = 20 with compensation
PUBLISHED = {5: (88.7, 89.2), 10: (86.9, 89.3), 15: (85.5, 89.0), 20: (84.2, 88.7)}
PARITY = f"accuracy is that of synchronous SGD, within noise (here {-NOISE} points)."

HALF = Assumption("half the learning rate, for all", ("optimizer.lr.peak=0.0625",))
QUARTER = Assumption("a quarter of the learning rate, for all", ("optimizer.lr.peak=0.03125",))
UNEVEN = Assumption("classes dealt unevenly", ("objective.partition={ dirichlet = 0.3 }",))
DGC = "algorithm.'compressed'.codec={{ kind = 'dgc', ratio = {}, momentum = 0.9 }}"
RATE = "{ schedule = 'warmup-cosine', peak = 0.5, warmup = 270, steps = 5400 }"
THREE = Assumption("3 % of the entries instead of 1 %", (DGC.format(0.03),))
TENTH = Assumption("10 % of the entries", (DGC.format(0.1),))
FASTER = Assumption(
    "10 % of the entries, at four times the learning rate",
    (DGC.format(0.1), f"algorithm.'compressed'.lr={RATE}"),
)


def lecture(delay: int) -> Assumption:
    """The published notes' compensation instead of the exact one."""
    sets = (f"algorithm.'D = {delay}'.compensation=lecture",)
    return Assumption("compensated as in the notes on DGA", sets)


def late(delay: int) -> Claim:
    """Compensated delay costs nothing."""
    return Claim(
        name=f"accuracy at D = {delay}",
        says=f"With compensation, {delay} steps late, {PARITY}",
        measure=partial(against, name=DELAY, label=f"D = {delay}", other="ssgd"),
        neutral=NOISE,
        unit="points",
        why="Compensation replays momentum SGD on averaged gradients. Until a mean arrives each "
        "worker is off, and the longer the delay, the smaller the largest stable rate.",
        assumptions=(lecture(delay), HALF, UNEVEN),
    )


def better(delay: int) -> Claim:
    """Compensated delay is better than uncorrected delay."""
    bare, whole = PUBLISHED[delay]
    return Claim(
        name=f"compensation at D = {delay}",
        says=f"Accuracy is {bare} % without compensation and {whole} % with it (notes on DGA, "
        "ResNet-18 on CIFAR-10).",
        measure=partial(
            against, name=DELAY, label=f"D = {delay}", other=f"uncorrected D = {delay}"
        ),
        neutral=0,
        unit="points",
        why="Without compensation every gradient is applied late, which is less stable with "
        "momentum.",
        assumptions=(lecture(delay), HALF, UNEVEN),
    )


def rare(label: str, what: str, *assumptions: Assumption) -> Claim:
    """Sparsity costs nothing."""
    return Claim(
        name=f"accuracy at {label}",
        says=f"{what}, {PARITY}",
        measure=partial(against, name=SPARSITY, label=label, other="ssgd"),
        neutral=NOISE,
        unit="points",
        why="Between means workers drift apart, and a delayed mean brings them back late. Delay "
        "and "
        "drift add up, and a smaller rate tolerates more of both.",
        assumptions=assumptions,
    )


LEARNING = (
    *map(late, DELAYS),
    *map(better, DELAYS),
    Claim(
        name="uncorrected delay",
        says="Without compensation, accuracy falls with every five steps of delay (88.7 / 86.9 / "
        "85.5 / 84.2 %).",
        measure=loss_per_delay,
        neutral=0,
        below=True,
        unit="points per 5 steps",
        why="The older a gradient, the less it says about the present model.",
        assumptions=(HALF, UNEVEN),
    ),
    *(rare(f"p = {p}", f"With a mean every {p} steps", UNEVEN) for p in (5, 10, 20)),
    rare("D = p = 4", "With a mean every 4 steps, 4 steps late", HALF, UNEVEN),
    rare("D = p = 20", "With a mean every 20 steps, 20 steps late", HALF, QUARTER),
    Claim(
        name="accuracy with compression",
        says=f"With compression too, at D = p = 4, {PARITY}",
        measure=compressed,
        neutral=NOISE,
        unit="points",
        why="Entries left out are sent later, a delay without compensation. Entries sent lose "
        "their "
        "momentum, so sending more calls for a larger rate. We do not test which share a model "
        "of 25 million parameters tolerates.",
        assumptions=(THREE, TENTH, FASTER),
    ),
)
