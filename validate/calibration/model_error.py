"""The model's error of programs that no run was fitted to, as the validation matrix shows it."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from paceline.simulator.load import toml_file

FILE = Path(__file__).with_name("model_error.toml")
"""Written by `python -m paceline.validate.matrix.remake` from the matrix's measurements."""


def kind(network: str) -> str:
    """Return what a kind of network counts as: "emulated" delays, or "real" links.

    Links of the kernel and those of one machine are of one kind: nothing about them is prescribed,
    and a single condition of the matrix is over the latter.
    """
    return network if network == "emulated" else "real"


@cache
def shipped(network: str) -> Mapping[str, Any]:
    """Return the table [calibration.model_error] for predictions over this kind of network."""
    return dict(toml_file.read(FILE)[kind(network)])
