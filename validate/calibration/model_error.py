"""The model's error of programs that no run was fitted to, as the validation matrix shows it."""

from collections.abc import Mapping
from typing import Any

from paceline.simulator.results import prediction_interval


def kind(network: str) -> str:
    """Return what a kind of network counts as: "emulated" delays, or "real" links.

    Links of the kernel and those of one machine are of one kind: nothing about them is prescribed,
    and a single condition of the matrix is over the latter.
    """
    return network if network == "emulated" else "real"


def shipped(network: str) -> Mapping[str, Any]:
    """Return the table [calibration.model_error] for predictions over this kind of network."""
    found: Mapping[str, Any] = prediction_interval.model_errors()[kind(network)]
    return found
