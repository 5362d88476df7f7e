"""The four papers, claim by claim: `paceline reproduce`.

The claims of each are in a TOML file (see `reading`), and functions of `measures` test them by runs
of the scenarios of the same name under scenarios/.
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
