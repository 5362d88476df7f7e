"""The shared table of programs: one row each, run by every interpreter."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A program of the catalogue.

    `variants`: parameters to run it with, beside the scenario's learning rate. `timeless`: how long
    anything takes never changes its parameters, as it reads no clock and takes no message from
    whoever comes first.
    """

    name: str
    variants: tuple[dict[str, Any], ...] = ({},)
    timeless: bool = True


DECAY = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [5, 12]}
GROWING = {"schedule": "steps", "start": 2, "factor": 2, "at": [6]}
BLOCK_MOMENTUM = {"kind": "block-momentum", "beta": 0.3}
EAGER = {"tau0": 5, "interval": "4 s"}

ROWS = (
    Row("psgd", ({}, {"momentum": 0.9})),
    Row("ssgd", ({}, {"momentum": 0.9, "lr": DECAY})),
    Row("ssgd-bucketed", ({"buckets": 1}, {"momentum": 0.9}, {"buckets": 9})),
    Row(
        "local-sgd",
        ({"tau": 1}, {"tau": 4, "momentum": 0.9, "outer": BLOCK_MOMENTUM}, {"tau": GROWING}),
    ),
    Row("post-local-sgd", ({"switch_step": 7, "tau": 3, "momentum": 0.9},)),
    Row(
        "adacomm",
        (
            EAGER,
            {**EAGER, "momentum": 0.9, "block_momentum": 0.3, "slack": 1, "lr_exponent": 3},
            {**EAGER, "lr": DECAY, "gate_lr_until_tau_is_1": True},
            {"tau0": 9, "variant": "paddle"},
        ),
        timeless=False,
    ),
    Row("asgd", ({}, {"momentum": 0.5, "lr": DECAY}), timeless=False),
)


def cases(rows: tuple[Row, ...] = ROWS) -> list[dict[str, Any]]:
    """Every variant of the rows as an [[algorithm]] table."""
    return [{"name": row.name, **variant} for row in rows for variant in row.variants]


def called(case: dict[str, Any]) -> str:
    """A short name for a test of one case."""
    return " ".join([case["name"], *(key for key in case if key != "name")])
