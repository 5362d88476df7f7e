"""The device that real runs compute on."""

import torch

from paceline.simulator.errors import InputError

DEVICES = ("auto", "cpu", "cuda")


def find_device(name: str) -> str:
    """Return "cpu" or "cuda". Raises InputError."""
    if name not in DEVICES:
        raise InputError(f"device {name!r}: unknown; choose one of: {', '.join(DEVICES)}")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("device 'cuda': torch sees no GPU here; choose cpu")
    return "cuda" if there and name != "cpu" else "cpu"
