"""The four papers, claim by claim: `paceline reproduce`.

A module for each: its claims, what measures them, and its figures. Scenarios are those of the same
name under scenarios/.
"""

import importlib

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import nearest
from paceline.simulator.studies.papers.claim import Paper

NAMES = ("adacomm", "dts", "hpsgd", "hybrid")


def paper(name: str) -> Paper:
    """The paper of that name. Raises InputError."""
    if name not in NAMES:
        raise InputError(f"reproduce {name}: no such paper; {nearest(name, NAMES, 'write one of')}")
    found = importlib.import_module(f"paceline.simulator.studies.papers.{name}").PAPER
    assert isinstance(found, Paper)
    return found
