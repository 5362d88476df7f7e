"""Define the algorithms as programs, and the actions that programs may take.

Import `catalogue()` for every algorithm by name, `program.Program` to describe one, `effects.Node`
for the actions of a program. A program uses effects, pieces and codecs only: no clock, generator or
engine besides them, so that every engine runs the same text.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from ..errors import InputError
from . import (
    adaptive,
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
    """Return all programs by name: built-in ones, then those of packages.

    Packages offer programs as entry points of `paceline.programs`. Raises InputError for an entry
    point that is not a program, or whose name is taken.
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
        programs[program.name] = program
    return programs
