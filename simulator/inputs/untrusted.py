"""Files that somebody else may have written, or changed: their bytes, their JSON and TOML."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, BinaryIO

CHUNK = 1 << 20  # bytes
DEEPEST = 48  # tables and lists within each other: a document has a scenario's and some around it


def content(file: BinaryIO, largest: int) -> bytes:
    """Return what is in a file. Raises ValueError above so many bytes, however many there are."""
    found = bytearray()
    while part := file.read(CHUNK):
        found += part
        if len(found) > largest:
            raise ValueError(f"above {largest / 1e6:.0f} MB")
    return bytes(found)


def loads(text: str | bytes) -> Any:
    """Return what a text of JSON says. Raises ValueError for anything else, whatever it is."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def document(text: str | bytes) -> dict[str, Any]:
    """Return the object that a text of JSON says. Raises ValueError for anything else."""
    found = loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    if not shallow(found, DEEPEST):
        raise ValueError("nested too deeply")  # for whoever walks through it
    return found


def shallow(value: Any, deepest: int) -> bool:
    """Whether no more than `deepest` tables and lists are within each other."""
    level = [value]
    for _ in range(deepest):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [one for each in inner for one in each if isinstance(one, Mapping | list)]
        if not level:
            return True
    return False


def toml(text: str, deepest: int) -> dict[str, Any]:
    """Return what a text of TOML says. Raises ValueError for anything else, whatever it is."""
    # tomllib takes time as the square of a key's parts
    part = r"""(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
    if re.search(rf"(?<![\w-])(?:{part}){{{deepest}}}", text):
        raise ValueError("nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
