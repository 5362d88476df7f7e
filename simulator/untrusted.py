"""Files that somebody else may have written, or changed: their bytes, their JSON and TOML."""

import json
import re
import tomllib
from typing import Any, BinaryIO

CHUNK = 1 << 20  # bytes


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
