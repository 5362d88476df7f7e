"""The algorithms, and `effects.py`, the vocabulary that they are written in.

Import `catalogue()` for every algorithm by name, `program.Program` to describe one, `effects.Node`
for what a program may await. A program knows effects, pieces and codecs alone: no clock, no random
numbers of its own, no engine, so that every engine runs the same text.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from ..errors import InputError
from . import (
    adaptive,
    awaits,
    decoupled,
    diloco,
    federated,
    gossip,
    local,
    overlapped,
    server,
)
from .program import Program

__all__ = ["Program", "catalogue"]


@cache
def catalogue() -> Mapping[str, Program]:
    """Return every program by name: ours, then those of installed packages (`paceline.programs`).

    Raises InputError when an installed package offers something else, or a name that is taken.
    """
    modules = (local, adaptive, overlapped, diloco, decoupled, federated, server, gossip)
    programs = {p.name: p for module in modules for p in module.PROGRAMS}
    for entry in entry_points(group="paceline.programs"):
        program = entry.load()
        where = f"entry point {entry.name} of paceline.programs ({entry.value})"
        if not isinstance(program, Program):
            raise InputError(f"{where}: not a Program; make one with paceline.Program")
        if program.name in programs:
            raise InputError(f"{where}: the name {program.name} is taken; choose another")
        awaits.demand(program)
        programs[program.name] = program
    return programs
