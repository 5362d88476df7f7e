"""Rules between settings: where a rule is broken, and its sentence.

A rule is a condition, the path of the key at fault, and the reason in refusals.toml, where the
sentence says what is wrong and what to write.
"""

from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...inputs import untrusted
from ...inputs.messages import KeyPath, nearest

Rule = tuple[object, str | KeyPath, str]
"""Whether a rule is broken, the key (dotted, or as a path), and the reason."""


class Problem(NamedTuple):
    """A key, and its fault with the remedy."""

    path: KeyPath
    what: str


@cache
def sentences() -> dict[str, str]:
    """Return the sentence of each reason."""
    text = untrusted.text(Path(__file__).with_name("refusals.toml"))
    return untrusted.toml(text, untrusted.DEEPEST)


def broken(*rules: Rule, **values: object) -> Iterator[Problem]:
    """Yield a problem for each rule that is broken; `values` fill its sentence."""
    for holds, key, reason in rules:
        if holds:
            path = tuple(key.split(".")) if isinstance(key, str) else key
            yield Problem(path, sentences()[reason].format(**values))


def unknown(
    path: KeyPath, name: str | None, names: Collection[str], what: str
) -> Iterator[Problem]:
    """Yield a problem if a given name is not one of `names`; `what`: their kind."""
    if name is not None and name not in names:
        yield Problem(path, f"unknown {what}; {nearest(name, names, f'{what}s')}")
