"""Devices to compute on: from the names that options and scenarios use to those of this machine."""

import torch

from paceline.simulator.errors import InputError

DEVICES = ("auto", "cpu", "cuda")  # values of --device


def device_types() -> tuple[str, ...]:
    """Return the types of device that torch can use here, the preferred one last."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def find_device(name: str) -> str:
    """Return the type that --device `name` asks for, "cpu" or "cuda"; each rank takes a GPU of it.

    Raises InputError.
    """
    if name not in DEVICES:
        raise InputError(f"device {name!r}: unknown; choose one of: {', '.join(DEVICES)}")
    there = device_types()
    if name not in ("auto", *there):
        raise InputError("device 'cuda': torch sees no GPU here; choose cpu")
    return there[-1] if name == "auto" else name


def numbered_device(name: str) -> torch.device:
    """Return the device that a scenario calls "cpu", "cuda" (the current GPU) or "cuda:1".

    Raises LookupError where there is none; its message follows the name of the scenario's key.
    """
    there = device_types()
    try:
        device = torch.device(name)
        if device.type not in there:
            raise RuntimeError
        if device.type == "cuda":
            torch.cuda.get_device_properties(device)
            if device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
    except (RuntimeError, AssertionError):
        unseen = "" if "cuda" in there else " (torch sees no GPU here)"
        raise LookupError(f"not found; write one of: {', '.join(there)}{unseen}") from None
    return device
