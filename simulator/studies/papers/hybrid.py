"""Hybrid: from asynchronous to synchronous SGD (Vora, Patel & Joshi, arXiv 2407.00101)."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from paceline.simulator.studies.papers import hybrid_figures
from paceline.simulator.studies.papers.claim import Assumption, Claim, Finding, Paper, mean
from paceline.simulator.studies.papers.hybrid_tables import (
    BATCH,
    CIFAR,
    DELAY,
    MNIST,
    STEP,
    PaperTable,
    TableEntry,
    differences,
)
from paceline.simulator.studies.papers.lab import Lab

AT_ONCE = Assumption("the server answers workers at once", ("algorithm.0.wait=false",))
ENDS = (
    'algorithm=[{name="hybrid", label="hybrid, s = 100", step_size=100},'
    ' {name="hybrid", label="hybrid, s = 500", step_size=500}, {name="asgd"}]'
)
"""The step sizes that are compared, without the others."""

SUMS = (
    Assumption("a free server", ('server.receive="0 s"', 'server.apply="0 s"')),
    Assumption("an update of 20 ms", ('server.apply="20 ms"',)),
    Assumption("an update of 40 ms", ('server.apply="40 ms"',)),
    Assumption("the mean of the gradients is applied", ('algorithm.0.aggregate="mean"',)),
    AT_ONCE,
    Assumption("delays clipped at zero", ('cluster.extra.negative="clip"',)),
    Assumption("a gradient takes 250 ms", ('cluster.compute="250 ms"',)),
)
"""The paper's open settings, for the first step size of a scenario."""


def cell(lab: Lab, where: TableEntry) -> Finding:
    """One number of a table."""
    return mean(differences(lab, where))


def least(lab: Lab, table: PaperTable) -> Finding:
    """The smallest of a table's means over seeds, with its interval."""
    found = [differences(lab, where) for where in table.cells]
    place = int(np.argmin([values.mean() for values in found]))
    return mean(found[place], f"The smallest is at {table.key} {table.cells[place].name}.")


def step(lab: Lab, table: PaperTable, before: Sequence[int], after: Sequence[int]) -> Finding:
    """Mean of some cells minus that of others, per seed."""
    found = {place: differences(lab, table.cells[place]) for place in {*before, *after}}
    above, under = (np.mean([found[i] for i in each], axis=0) for each in (before, after))
    return mean(above - under, f"{above.mean():.3g} against {under.mean():.3g}.")


def trend(lab: Lab, table: PaperTable) -> Finding:
    """Spearman's rank correlation of the difference with the table's key, per seed."""
    from scipy.stats import spearmanr  # noqa: PLC0415 - a second

    found = np.array([differences(lab, where) for where in table.cells])
    ranks = [float(spearmanr(range(len(found)), column).statistic) for column in found.T]
    paper = spearmanr(range(len(found)), [each.paper for each in table.cells]).statistic
    return mean(ranks, f"The paper's own row has {paper:.2g}.")


def printed(lab: Lab) -> Finding:
    """Another table's number for the setting of batch 32 in the batch table."""
    other, here = STEP.at("500").paper, BATCH.at("32").paper
    values = differences(lab, BATCH.at("32"))
    half = float(np.ptp(values)) / 2
    return Finding(
        other,
        note=f"{here} - {other} = {here - other:.3f} points; the delay table says "
        f"{DELAY.at('0.25 s').paper}, too. Our seeds differ by ± {half:.2g}, so other "
        f"rounds may explain the difference.",
    )


def numbers(
    table: PaperTable, why: str, assumptions: tuple[Assumption, ...] = ()
) -> tuple[Claim, ...]:
    """A claim for each number of a table; the assumptions beside the first."""
    return tuple(
        Claim(
            name=f"{table.name} {where.name}",
            says=f"hybrid is {abs(where.paper)} points {'above' if where.paper > 0 else 'below'} "
            "async",
            measure=partial(cell, where=where),
            expected=where.paper,
            neutral=0,
            below=where.paper < 0,
            unit="points",
            why=why if where.paper > 0 else ODD,
            assumptions=() if place else assumptions,
        )
        for place, where in enumerate(table.cells)
    )


def order(
    name: str,
    says: str,
    measure: Callable[[Lab], Finding],
    why: str,
    assumptions: tuple[Assumption, ...] = (),
) -> Claim:
    """A claim about the shape of a table: a difference that should be above zero."""
    return Claim(
        name=name,
        says=says,
        measure=measure,
        neutral=0,
        why=why,
        unit="points",
        assumptions=assumptions,
    )


SERVER = "One update for several gradients relieves the server that async queues for."
ODD = (
    "Nothing in the method singles this setting out, and the paper's other three have the opposite "
    "sign: probably noise over five rounds."
)

LARGER = "A larger batch takes longer to compute, and the server is less of a bottleneck."

CLAIMS = (
    *numbers(MNIST, SERVER, SUMS),
    order(
        "MNIST: falling with the batch",
        "32 gains more than 64",
        partial(step, table=MNIST, before=(0, 2), after=(1, 3)),
        LARGER,
        (Assumption("a gradient of any batch takes 496 ms", ('cluster.compute="496 ms"',)),),
    ),
    *numbers(CIFAR, SERVER),
    order(
        "CIFAR-10: falling with the batch",
        "32 gains more than 64",
        partial(step, table=CIFAR, before=(0, 2), after=(1, 3)),
        LARGER,
    ),
    order(
        "CIFAR-10 over MNIST",
        "the harder task gains more: all four numbers are larger",
        lambda lab: mean(
            np.mean([differences(lab, each) for each in CIFAR.cells], axis=0)
            - np.mean([differences(lab, each) for each in MNIST.cells], axis=0)
        ),
        "Accuracy that is still rising after 100 s gains more from each further gradient.",
    ),
    *numbers(BATCH, SERVER),
    order(
        "batch: decreasing",
        "8 gains more than 128",
        partial(step, table=BATCH, before=(0,), after=(4,)),
        LARGER,
    ),
    Claim(
        name="batch: rank correlation",
        says="the gain falls with the batch",
        measure=partial(trend, table=BATCH),
        neutral=0,
        below=True,
        why="Spearman's, over the five batches. " + LARGER,
    ),
    *numbers(STEP, SERVER),
    order(
        "step size: rises at first",
        "300 gains more than 100",
        partial(step, table=STEP, before=(1,), after=(0,)),
        "A short step size soon waits for all workers, the delayed among them.",
        (AT_ONCE,),
    ),
    order(
        "step size: the peak above its left",
        "500 gains more than 100",
        partial(step, table=STEP, before=(2,), after=(0,)),
        "The cost of an update decides where the peak lies: the higher it is, the sooner the "
        "server has to be relieved, even if it then waits for delayed workers.",
        (
            Assumption("an update of 20 ms", (ENDS, 'server.apply="20 ms"')),
            Assumption("an update of 40 ms", (ENDS, 'server.apply="40 ms"')),
        ),
    ),
    order(
        "step size: the peak above its right",
        "500 gains more than 1000",
        partial(step, table=STEP, before=(2,), after=(4,)),
        "With a long step size hybrid is asynchronous for most of the time and gains little.",
    ),
    *numbers(DELAY, SERVER),
    order(
        "delay: always positive",
        "hybrid wins at every sd from 0.25 to 1.25 s",
        partial(least, table=DELAY),
        "Even delayed workers make more gradients than the server can apply one by one, though "
        "fewer with longer delays.",
    ),
    Claim(
        name="one setting, one number",
        says="batch 32, step size 500 and sd 0.25 s are the same setting: 4.222 in one table",
        measure=printed,
        expected=4.222,
        unit="points",
        inconsistent=True,
        why="The tables come from different rounds or different defaults; the paper does not say "
        "which.",
    ),
)

PAPER = Paper(
    name="hybrid",
    title="Hybrid Approach to Parallel Stochastic Gradient Descent",
    source="Vora, Patel & Joshi, arXiv 2407.00101",
    settings="Test accuracy of hybrid minus that of async, averaged over 100 simulated seconds, in "
    "percentage points; 25 workers, half of them delayed by |N(0, sd)|, learning rate 0.01, and a "
    "round per seed, in which both begin with the same weights. The digits of scikit-learn stand "
    "for "
    "MNIST (softmax regression) and for CIFAR-10 (a network with a hidden layer); the random data "
    "are made as in the paper and learnt by such a network. Compare signs and shapes, not numbers: "
    "the paper says neither what its server's updates cost nor how long a gradient takes, and "
    "those two decide. The cost of an update is fitted to the step-size table, the same "
    "for all five.",
    claims=CLAIMS,
    figures=hybrid_figures.FIGURES,
)
