"""DTS: delayed and temporally sparse updates (Zhu, Lu, Lin & Han)."""

from functools import partial

from paceline.simulator.studies.papers import dts_figures
from paceline.simulator.studies.papers.claim import Assumption, Claim, Paper
from paceline.simulator.studies.papers.dts_learning import LEARNING
from paceline.simulator.studies.papers.dts_measures import (
    CENTRE,
    CONTINENTS,
    dts_scales,
    footnote,
    gain,
    hidden_per_step,
    latency_alone,
    off_by_one,
    scales,
    second,
    tolerated,
    traffic,
)

GATHERED = Assumption(
    "gathered: DGC keeps 1 % of the entries, in half the hops",
    ("algorithm.'compressed'.codec={ kind = 'dgc', ratio = 0.01, momentum = 0.9 }",),
)
TWICE = Assumption(
    "the momentum's buffer travels too, as exact compensation needs", ("optimizer.momentum=0.9",)
)
SLOWER = Assumption("a network of 30 Mbit/s", ("network.bandwidth=30 Mbit/s",))
FASTER = Assumption("a network of 36 Mbit/s", ("network.bandwidth=36 Mbit/s",))

PACE = (
    Claim(
        name="SSGD over four continents",
        says="Synchronous SGD scales to 0.008.",
        measure=partial(scales, name=CONTINENTS, label="ssgd"),
        expected=0.008,
        timing=True,
        why="A ring sends one and a half models over every link in each step. The paper does not "
        "give the bandwidth: ours is chosen to match this number.",
        assumptions=(SLOWER, FASTER),
    ),
    Claim(
        name="latency alone",
        says="It is the latency of the means, 479 ms, that makes synchronous SGD scale to 0.008.",
        measure=latency_alone,
        expected=0.008,
        inconsistent=True,
        timing=True,
        why="A mean of 479 ms beside a gradient of 300 ms costs less than two gradients, not a "
        "hundred: only bandwidth explains 0.008.",
    ),
    Claim(
        name="DTS over four continents",
        says="DTS scales to 0.72.",
        measure=dts_scales,
        expected=0.72,
        timing=True,
        why="Delay hides the latency; sparsity and compression together hide the bytes. The paper "
        "does not "
        "give D, p and the codec: 31 times fewer bytes are chosen to match this number.",
        assumptions=(GATHERED, TWICE, SLOWER, FASTER),
    ),
    Claim(
        name="the gain",
        says="DTS is 90 times as fast.",
        measure=gain,
        expected=90,
        timing=True,
        why="The ratio of the two.",
        assumptions=(GATHERED, TWICE),
    ),
    Claim(
        name="delay and sparsity alone",
        says="Without compression, p = 20 scales to no more than 0.163 (derived: compute time "
        "times p over transmission time).",
        measure=partial(scales, name=CONTINENTS, label="D > p = 20"),
        expected=0.163,
        timing=True,
        why="Once a delay above p keeps the links always busy, bytes are the bound: 0.72 needs "
        "compression.",
        assumptions=(SLOWER, FASTER),
    ),
    Claim(
        name="delay and sparsity alone, D = p",
        says="Without compression, D = p = 20 scales to 0.161 (derived).",
        measure=partial(scales, name=CONTINENTS, label="D = p = 20"),
        expected=0.161,
        timing=True,
        why="With D = p a mean ends before the next begins, so the links are idle in between.",
        assumptions=(SLOWER, FASTER),
    ),
    Claim(
        name="data centre",
        says="Inside a data centre, at 1 us, it scales to 0.78.",
        measure=partial(scales, name=CENTRE, label="ssgd"),
        expected=0.78,
        timing=True,
        why="At 1 us only bytes matter, and the paper does not give the bandwidth: ours is chosen "
        "to "
        "match this number, and usual links lie on both sides.",
        assumptions=(
            Assumption("links of 10 Gbit/s", ("network.bandwidth=10 Gbit/s",)),
            Assumption("links of 25 Gbit/s", ("network.bandwidth=25 Gbit/s",)),
        ),
    ),
    Claim(
        name="20 steps of delay",
        says="20 steps of delay tolerate 6 s: 20 gradients of 0.3 s.",
        measure=tolerated,
        expected=6.0,
        unit="s",
        timing=True,
        why="A mean may take as long as the steps that do not wait for it; sending the bytes is "
        "part of that.",
    ),
    Claim(
        name="20 steps of delay, as eq. 3 counts",
        says="20 steps of delay tolerate 6 s, where delay 1 of eq. 3 is synchronous SGD.",
        measure=off_by_one,
        expected=6.0,
        within=0.01,
        inconsistent=True,
        unit="s",
        timing=True,
        why="If a delay of 1 means none, a delay of 20 is one of 19 steps.",
    ),
    Claim(
        name="time hidden per step of delay",
        says="The tolerated latency grows by the compute time, 0.3 s, with each step of delay.",
        measure=hidden_per_step,
        expected=0.3,
        unit="s",
        timing=True,
        why="Each further step lets one more gradient be computed meanwhile.",
    ),
    Claim(
        name="1000 ms",
        says="1000 ms of latency cost nothing with 20 steps of delay.",
        measure=second,
        expected=1.0,
        timing=True,
        why="Six hops of a ring, one after another, take 6 s, as do 20 gradients.",
        assumptions=(
            Assumption("a tree instead of a ring: 4 hops", ("network.collective=tree",)),
            Assumption("8 workers: 14 hops", ("cluster.workers=8",)),
        ),
    ),
    Claim(
        name="traffic",
        says="A mean every 20 steps cuts traffic to a twentieth.",
        measure=traffic,
        expected=20,
        timing=True,
        why="A mean is as large as before, and there is one instead of 20.",
        assumptions=(TWICE,),
    ),
    Claim(
        name="footnote",
        says="Over 11,725 km, light takes 78.2 ms both ways.",
        measure=footnote,
        expected=78.2,
        unit="ms",
        timing=True,
        why="Arithmetic; light in glass takes 1.5 times as long.",
    ),
)


PAPER = Paper(
    name="dts",
    title="Distributed Training Across the World",
    source="Zhu, Lu, Lin & Han; numbers on delay without compensation from notes on its successor, "
    "Delayed Gradient Averaging",
    settings="Times are those of the paper's ResNet-50 (102 MB), 0.3 s a gradient, on a ring of "
    "four. "
    "Accuracies are those of a stand-in with real gradients, softmax regression on digits with the "
    "paper's "
    "recipe (120 epochs of momentum SGD, warm-up, cosine, four workers), at the learning rate that "
    "is best for synchronous SGD: compare signs, not sizes. The "
    "test set has 360 images: one is 0.28 points.",
    claims=(*PACE, *LEARNING),
    figures={
        "world": (
            "Share of a step spent computing, over four continents. Without compression, delay and "
            "sparsity up to 20 are not enough.",
            dts_figures.continents,
        ),
        "latency": (
            "Share of a step spent computing against latency: each curve is flat until a mean "
            "takes "
            "as long as D gradients, and then falls as one over the latency.",
            dts_figures.latencies,
        ),
        "accuracy": (
            "Final accuracy of the stand-in: uncorrected delay costs more with every step, "
            "compensated delay costs little, delay and sparsity together cost more.",
            dts_figures.delays,
        ),
    },
)
