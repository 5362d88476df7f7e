"""Report broken rules between settings by the sentences of refusals.toml."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from ...inputs import untrusted
from ...inputs.messages import KeyPath, nearest

Rule = tuple[object, str | KeyPath, str]
"""Whether the rule is broken, the key at fault (dotted, or as a path), and the reason."""


class Problem(NamedTuple):
    """The path of a key, and a sentence with its fault and the remedy."""

    path: KeyPath
    sentence: str


def broken(*rules: Rule, **values: object) -> Iterator[Problem]:
    """Yield a problem for each broken rule; `values` fill its sentence."""
    for holds, key, reason in rules:
        if holds:
            path = tuple(key.split(".")) if isinstance(key, str) else key
            sentence = untrusted.packaged(__file__, "refusals.toml")[reason]
            yield Problem(path, sentence.format(**values))


def unknown(
    path: KeyPath, name: str | None, names: Collection[str], kind: str
) -> Iterator[Problem]:
    """Yield a problem if a given name is not one of `names`; `kind`: their kind."""
    if name is not None and name not in names:
        yield Problem(path, f"unknown {kind}; {nearest(name, names, f'{kind}s')}")
