"""The four papers, claim by claim: `paceline reproduce`.

Of each, claims are in a TOML file, what measures them in a module of the same name, and its figures
in another: see `reading`. Scenarios are those of the same name under scenarios/.
"""

from ...errors import InputError
from ...inputs.messages import nearest
from . import reading
from .claim import Paper

NAMES = ("adacomm", "dts", "hpsgd", "hybrid")


def paper(name: str) -> Paper:
    """The paper of that name. Raises InputError."""
    if name not in NAMES:
        raise InputError(f"reproduce {name}: no such paper; {nearest(name, NAMES, 'write one of')}")
    return reading.read(name)
