"""HPSGD: averaging in a second process (Zhou, Ye, Zhang & Lv, arXiv 2009.02701)."""

from functools import partial

from paceline.simulator.studies.papers import hpsgd_figures as figures
from paceline.simulator.studies.papers import hpsgd_runs as runs
from paceline.simulator.studies.papers.claim import Assumption, Claim, Paper
from paceline.simulator.studies.papers.hpsgd_assumptions import (
    BANDWIDTH,
    CHEAP,
    EPOCHS,
    FLUSHED,
    FOUR,
    FREE,
    HEAVIER,
    HEAVIER_CHEAP,
    HEAVIEST,
    SHARED,
    SMALL,
    STRAGGLERS,
)
from paceline.simulator.studies.papers.hpsgd_runs import COUNTS, LOCAL, TARGETS

FITTED = "The scenario's times are fitted to this claim"

CLAIMS = (
    Claim(
        "4 workers: over ssgd",
        "HPSGD has 133 % more throughput than ssgd",
        partial(runs.gain, workers=4, over="ssgd"),
        f"{FITTED} and the next: two numbers, two claims.",
        expected=133,
        neutral=0,
        unit="%",
        timing=True,
        assumptions=(FREE, STRAGGLERS, FLUSHED),
    ),
    Claim(
        "4 workers: against local-sgd",
        "HPSGD is as fast as local-sgd with gamma = 8 (here: the ratio of their times)",
        runs.parity,
        "HPSGD hides the average but has to ask whether it is there; local-sgd pays an eighth of "
        "it: both lose the same.",
        expected=1,
        timing=True,
        assumptions=(FREE, STRAGGLERS, FLUSHED),
    ),
    Claim(
        "4 workers: k",
        "the two gains at 4 workers fit t_sync / t_train = 1.88",
        runs.fit,
        "(1 + k) / (1 + k/8) = 2.33 where ssgd and local-sgd have no stragglers to wait for.",
        expected=1.88,
        timing=True,
        assumptions=(STRAGGLERS,),
    ),
    Claim(
        "4 workers: waiting",
        "the same fit has HPSGD wait 23.5 % of the time of a gradient",
        runs.waiting,
        "Parity with local-sgd makes it k/8. Why HPSGD alone waits is our choice: its workers "
        "have to agree whether the mean is there.",
        expected=23.5,
        unit="%",
        timing=True,
        assumptions=(FREE, STRAGGLERS),
    ),
    Claim(
        "sync period",
        "HPSGD averages every max(2, ceil(k)) iterations (the ratio to that which is furthest from "
        "1)",
        runs.window,
        "The first step on a fresh replica never asks; each later one does.",
        expected=1,
        within=0.01,
        timing=True,
        assumptions=(Assumption("8 workers", ("cluster.workers=8",)),),
    ),
    Claim(
        "16 workers: over ssgd",
        "HPSGD has 250 % more throughput than ssgd",
        partial(runs.gain, workers=16, over="ssgd"),
        f"{FITTED}, too, by the latency of a hop: a ring's bandwidth makes an average of 16 only a "
        "quarter longer than one of 4.",
        expected=250,
        neutral=0,
        unit="%",
        timing=True,
        assumptions=(CHEAP, FREE, BANDWIDTH, SMALL, SHARED),
    ),
    Claim(
        "16 workers: over local-sgd",
        "HPSGD has 75 % more throughput than local-sgd with gamma = 8",
        runs.impossible,
        "It contradicts the 250 % over ssgd unless averaging models costs more than averaging "
        "gradients.",
        expected=75,
        neutral=0,
        inconsistent=True,
        unit="%",
        timing=True,
        assumptions=(HEAVIER, HEAVIER_CHEAP, HEAVIEST),
    ),
    *(
        Claim(
            f"scale efficiency: {workers} workers",
            "HPSGD scales better than ssgd (ratio of their efficiencies)",
            partial(runs.efficiency, workers=workers),
            "An average takes longer than a gradient, and only ssgd waits for it.",
            neutral=1,
            timing=True,
            assumptions=(FREE,) if workers == 16 else (),
        )
        for workers in COUNTS
    ),
    *(
        Claim(
            f"scale efficiency: growing lead over {name}",
            f"the more workers, the further HPSGD is ahead of {name} (smallest growth of the "
            "ratio from one number of workers to the next)",
            partial(runs.growth, over=over),
            "An average takes longer with more workers, a gradient does not.",
            neutral=0,
            timing=True,
            assumptions=(FREE, BANDWIDTH),
        )
        for name, over in (("ssgd", "ssgd"), ("local-sgd", LOCAL))
    ),
    Claim(
        "time per epoch: over psgd",
        "psgd, which never communicates, is the lower bound (seconds that HPSGD takes longer)",
        partial(runs.epoch, than="hpsgd", ours="psgd"),
        "The rest is the time spent asking.",
        neutral=0,
        unit="s",
        timing=True,
    ),
    Claim(
        "time per epoch: under ssgd",
        "an epoch of HPSGD is shorter than one of ssgd, 4 workers (seconds saved)",
        partial(runs.epoch, than="ssgd"),
        "HPSGD goes on training while gradients are averaged.",
        neutral=0,
        unit="s",
        timing=True,
        assumptions=(FREE,),
    ),
    Claim(
        "time per epoch: under local-sgd",
        "an epoch of HPSGD is shorter than one of local-sgd, 16 workers (seconds saved)",
        partial(runs.epoch, than=LOCAL, workers=16),
        "With 16 workers an eighth of an average costs more than asking.",
        neutral=0,
        unit="s",
        timing=True,
        assumptions=(FREE, BANDWIDTH),
    ),
    *(
        Claim(
            f"breakdown: against {name}",
            f"HPSGD spends less of its time on communication than {name}, 4 workers (difference "
            "of the shares)",
            partial(runs.hidden, than=than),
            "The average runs beside the gradients, so no step waits for the network.",
            neutral=0,
            below=True,
            unit="points",
            timing=True,
        )
        for name, than in (("ssgd", "ssgd"), ("local-sgd", LOCAL))
    ),
    Claim(
        "accuracy at epoch 100",
        "HPSGD ends at about the accuracy of ssgd (ratio of the two)",
        runs.final_accuracy,
        "Each gradient is applied once, a window late, and at this learning rate a window moves "
        "little.",
        expected=1,
        within=0.02,
        assumptions=EPOCHS,
    ),
    *(
        Claim(
            f"time to {100 * accuracy:g} %: {name}",
            f"{said} (ratio of their times)",
            partial(runs.sooner, accuracy=accuracy, first=first, then=then),
            why,
            neutral=1,
            assumptions=(FOUR,),
        )
        for accuracy in TARGETS
        for name, first, then, said, why in (
            (
                "HPSGD before local-sgd",
                "hpsgd",
                LOCAL,
                "HPSGD gets there first",
                "Faster steps make up for a window's delay with 16 workers; with 4, whose steps "
                "are equally fast, nothing does.",
            ),
            (
                "local-sgd before ssgd",
                LOCAL,
                "ssgd",
                "local-sgd gets there before ssgd",
                "Both need about as many iterations, and local-sgd averages at every eighth.",
            ),
        )
    ),
)

PAPER = Paper(
    name="hpsgd",
    title="HPSGD: Hierarchical Parallel SGD With Stale Gradients Featuring",
    source="Zhou, Ye, Zhang & Lv, arXiv 2009.02701",
    settings="Time: `hpsgd/time`, iterations of 128 samples of CIFAR-10 on four GPUs, with "
    "ResNet-18's size; the paper gives ratios, not seconds, and bandwidth, latency and the cost of "
    "asking are fitted to three of them. Accuracy: `hpsgd/accuracy`, the same "
    "times with 16 workers, and real gradients of a small network on the digits, a stand-in.",
    claims=CLAIMS,
    figures={
        "scale": (
            "Scale efficiency by number of workers: as averages take longer, HPSGD loses least, in "
            "jumps where its windows grow; asking keeps it below psgd.",
            figures.scale,
        ),
        "epoch": (
            "Where an iteration's time goes with 4 and 16 workers: HPSGD never waits for "
            "communication, but "
            "asks whether the mean is there (counted as a wait).",
            figures.epoch,
        ),
        "accuracy": (
            "Accuracy of the stand-in, 16 workers: HPSGD and local-sgd are three times as fast as "
            "ssgd, and HPSGD is a little ahead.",
            figures.accuracy,
        ),
    },
)
