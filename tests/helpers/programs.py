"""The shared table of programs: one row each, run by every engine."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A program of the catalogue.

    `variants`: parameters to run it with, beside the scenario's learning rate. `timeless`:
    durations never change its parameters, as it reads no clock and never takes the message that
    arrives first. `batches`: its server updates with several gradients at once, so that an
    update need not come at a whole step.
    """

    name: str
    variants: tuple[dict[str, Any], ...] = ({},)
    timeless: bool = True
    batches: bool = False


DECAY = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [5, 12]}
GROWING = {"schedule": "steps", "start": 2, "factor": 2, "at": [6]}
BLOCK_MOMENTUM = {"kind": "momentum", "mu": 0.3}
TOP_K = {"kind": "top-k", "ratio": 0.4}
EAGER = {"tau0": 5, "interval": "4 s"}
CONSTANTS = {"average": "2 s", "smoothness": 3.0, "gradient_variance": 20.0}  # periods of 1 to 7

ROWS = (
    Row("psgd", ({}, {"momentum": 0.9})),
    Row("ssgd", ({}, {"momentum": 0.9, "lr": DECAY})),
    Row("ssgd-bucketed", (
        {"buckets": 1}, {"momentum": 0.9}, {"buckets": 9},
        {"buckets": [1, 4, 2], "overlap": False},
    )),
    Row("local-sgd", (
        {"tau": 1}, {"tau": 4, "momentum": 0.9, "outer": BLOCK_MOMENTUM}, {"tau": GROWING},
    )),
    Row("fedavg", (
        {"tau": 3},
        {"tau": 4, "momentum": 0.9, "mu": 0.1, "outer": "fedadam", "outer_lr": 0.1},
        {"tau": GROWING, "outer": "fedadam", "codec": TOP_K},
    )),
    Row("fedbuff", (
        {"tau": 3, "buffer": 2},
        {"tau": 2, "buffer": 1, "staleness": "none", "mu": 0.1},
        {"tau": 2, "buffer": 1, "max_staleness": 1},
    ), timeless=False, batches=True),
    Row("post-local-sgd", ({"switch_step": 7, "tau": 3, "momentum": 0.9},)),
    Row("adacomm", (
        EAGER,
        {**EAGER, "momentum": 0.9, "block_momentum": 0.3, "slack": 1, "lr_exponent": 3},
        {**EAGER, "lr": DECAY, "gate_lr_until_tau_is_1": True},
        {"tau0": 9, "variant": "paddle"},
        {**EAGER, "loss_of": "boundary", "constants": CONSTANTS},
    ), timeless=False),
    Row("easgd", ({"tau": 3}, {"tau": GROWING, "alpha": 0.1, "momentum": 0.9})),
    Row("bmuf", ({"tau": 3, "lr": DECAY}, {"tau": 4, "momentum": 0.3, "local_momentum": 0.9})),
    Row("dts", (
        {"delay": 0},
        {"delay": 3, "momentum": 0.9, "lr": DECAY},
        {"delay": 5, "period": 3, "codec": TOP_K},
        {"delay": 2, "period": 4, "compensation": "lecture", "momentum": 0.5},
        {"delay": 4, "compensation": "displacement", "momentum": 0.9},
        {"delay": 4, "compensation": "none", "lr": 0.02},
        {"delay": 2, "period": 2, "inner": "adamw"},
    )),
    Row("cocod-sgd", ({"tau": 3, "momentum": 0.9},)),
    Row("overlap-local-sgd", ({"tau": 3}, {"tau": 1, "beta": 0.0, "codec": TOP_K})),
    Row("hpsgd", (
        {}, {"epoch": 6}, {"epoch": 6, "epoch_flush": "paper"}, {"shortest_window": 1},
    ), timeless=False),
    Row("diloco", ({"tau": 3}, {"tau": 3, "inner": 0.9, "codec": TOP_K})),
    Row("streaming-diloco", (
        {"tau": 4}, {"tau": 5, "fragments": 3, "overlap": 3, "alpha": 0.0, "inner": 0.5},
    )),
    Row("delayed-diloco", ({"tau": 3},)),
    Row("eager-diloco", ({"tau": 3, "codec": TOP_K},)),
    Row("decoupled-diloco", (
        {"tau": 4, "fragments": 2, "quorum": 2, "grace": "300 ms"},
        {"tau": 3, "fragments": 2, "overlap": 0, "alpha": 0.0, "inner": 0.5, "grace": "50 ms",
         "codec": TOP_K},
        {"tau": 6, "fragments": 3, "overlap": 2, "quorum": 9},
    ), timeless=False, batches=True),
    Row("asgd", ({}, {"momentum": 0.5, "lr": DECAY, "codec": TOP_K}), timeless=False),
    Row("ssp", ({"staleness": 0}, {"staleness": 2, "momentum": 0.5}), timeless=False),
    Row("k-sync", ({"k": 2}, {"k": 1, "codec": TOP_K}), timeless=False, batches=True),
    Row("k-async", ({"k": 2}, {"k": 1, "momentum": 0.5}), timeless=False, batches=True),
    Row("k-batch-async", ({"k": 2}, {"k": 1, "lr": DECAY}), timeless=False, batches=True),
    Row("hybrid", (
        {"step_size": 9},
        {"step_size": 2, "wait": False, "aggregate": "mean", "count": "updates"},
        {"threshold": {"schedule": "piecewise", "values": [1, 3], "at": [20]}},
    ), timeless=False, batches=True),
    Row("d-psgd", ({}, {"graph": "complete", "momentum": 0.9})),
    Row("d2", ({}, {"graph": {"kind": "random", "degree": 3}})),
    Row("ad-psgd", ({}, {"graph": "complete", "momentum": 0.5}), timeless=False),
)  # fmt: skip


def cases(rows: tuple[Row, ...] = ROWS) -> list[dict[str, Any]]:
    """Every variant of the rows as an [[algorithm]] table."""
    return [{"name": row.name, **variant} for row in rows for variant in row.variants]


BATCHES = {row.name for row in ROWS if row.batches}


def called(case: dict[str, Any]) -> str:
    """A short name for a test of one case."""
    return " ".join([case["name"], *(key for key in case if key != "name")])
