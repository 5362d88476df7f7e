"""Assumptions about HPSGD's open settings, each with other values than the scenarios'."""

from paceline.simulator.studies.papers.claim import Assumption
from paceline.simulator.studies.papers.hpsgd_runs import FREE_ASKING

MULTIPLIER = "algorithm.hpsgd.local_sgd_sync_multiplier"
WASTE_NOTHING = (FREE_ASKING, "network.latency=0 s", "network.bandwidth=4.47 Gbit/s")

FREE = Assumption("asking whether the mean is there costs nothing", (FREE_ASKING,))
STRAGGLERS = Assumption(
    "HPSGD waits for stragglers instead; bandwidth and spread fitted to the same pair",
    (
        FREE_ASKING,
        'cluster.compute={ dist = "shifted-exponential", shift = "27.5 ms", mean = "60 ms" }',
        "network.bandwidth=6.81 Gbit/s",
    ),
)
FLUSHED = Assumption("nothing is pending at the end of an epoch", ("algorithm.hpsgd.epoch=391",))
CHEAP = Assumption("16 workers lose no time, and an average takes 2.5 gradients", WASTE_NOTHING)
BANDWIDTH = Assumption(
    "a hop has no latency, and the bandwidth alone gives the average of 4 workers",
    ("network.latency=0 s", "network.bandwidth=4.755 Gbit/s"),
)
SMALL = Assumption(
    "four processes with 8 samples each use a GPU a quarter less well than one with 32",
    ("cluster.compute=75 ms",),
)
SHARED = Assumption(
    "8 samples take a quarter of the time, and four processes share a GPU: the same",
    (
        "cluster.compute=15 ms",
        'cluster.device=[{ name = "gpu", shared_by = 4 }]',
        'cluster.group=[{ name = "all", workers = 16, device = "gpu" }]',
        "run.steps=96",  # processor sharing is simulated event by event
        "run.evaluate_every=48",
    ),
)
HEAVIER = Assumption("a model weighs 2.4 gradients, in bytes", (f"{MULTIPLIER}=2.4",))
HEAVIER_CHEAP = Assumption(
    "the same, where 16 workers lose no time, and an average takes 2.5 gradients",
    (f"{MULTIPLIER}=2.4", *WASTE_NOTHING),
)
HEAVIEST = Assumption(
    "a model weighs 4.81 gradients, in bytes; its average takes no more hops",
    (f"{MULTIPLIER}=4.81",),
)
FOUR = Assumption("4 workers", ("cluster.workers=4", "objective.batch=32"))
EPOCHS = tuple(
    Assumption(what, ("algorithm.hpsgd.epoch=11", f"algorithm.hpsgd.epoch_flush={flush}"))
    for what, flush in (
        ("nothing is pending at the end of an epoch", "exact"),
        ("the published code: it drops a window there, and applies the last one twice", "paper"),
    )
)
