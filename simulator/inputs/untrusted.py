"""Read untrusted files within bounds, with uniform errors for files that are wrong.

To read a new format, call `text` or `content` inside `refused`, and parse the result.
JSON and TOML are parsed here, within bounds on depth.
"""

import csv
import errno
import gzip
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import InputError

LARGEST = 10_000_000  # bytes of a file written by hand; a scenario has a few thousand
LARGEST_WRITTEN = 1_000_000_000  # bytes of a file that a program has written
CHUNK = 1 << 20  # bytes
DEEPEST = 48  # levels of tables and lists, enough for a scenario inside a document
WRONG = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
"""Errors that reading a damaged file raises; `ValueError` includes text that is not UTF-8."""


@contextmanager
def refused(
    path: Path | str,
    remedy: str,
    problem: str = "cannot be read",
    error: type[InputError | ValueError] = InputError,
) -> Iterator[None]:
    """Refuse the file if reading fails: raise `error` with path, reason and remedy.

    `error`: ValueError inside validators, whose messages become an InputError that names the key.
    """
    try:
        yield
    except (*WRONG, csv.Error) as cause:
        raise error(f"{path}: {problem} ({reason(cause)}); {remedy}") from None


def reason(error: Exception) -> str:
    """Describe in a few words why reading failed."""
    match error:
        case OSError(strerror=str(words)):
            return words
        case UnicodeDecodeError(object=content, start=start):
            line = content[:start].count(b"\n") + 1
            return f"line {line} is not UTF-8"
        case KeyError(args=(key, *_)):
            return f"unexpected or missing {key!r}"
        case TypeError() | IndexError() | AttributeError():
            return "not of the expected shape"
        case _:
            return str(error)


@contextmanager
def opened(path: Path | str) -> Iterator[BinaryIO]:
    """Open a regular file to read its bytes. Raises OSError, also for anything else.

    A named pipe would block until something writes into it; /dev/zero never ends. A pipe from the
    shell, as in <(...), is already open in this process, so it is allowed.
    """
    from_shell = re.fullmatch(r"/dev/(stdin|fd/[0-9]+)|/proc/self/fd/[0-9]+", str(path)) is not None
    number = os.open(path, os.O_RDONLY | (0 if from_shell else getattr(os, "O_NONBLOCK", 0)))
    with open(number, "rb") as file:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (stat.S_ISREG(mode) or (from_shell and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        yield file


@contextmanager
def unpacked(path: Path | str) -> Iterator[BinaryIO]:
    """Open a regular file, unpacked if gzipped. Raises OSError or ValueError."""
    with opened(path) as file:
        packed = cast(BufferedReader, file).peek(2)[:2] == b"\x1f\x8b"
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError("not a whole gzip file") from None


def text(path: Path | str, largest: int = LARGEST) -> str:
    """Return a UTF-8 file's text without byte-order mark. Raises OSError, ValueError."""
    return data(path, largest).decode("utf-8-sig")


def data(path: Path | str, largest: int = LARGEST) -> bytes:
    """Return a file's bytes. Raises OSError, and ValueError above `largest` bytes."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > largest:  # before reading it into memory
            raise ValueError(_above(largest))
        return content(file, largest)


def content(file: BinaryIO, largest: int) -> bytes:
    """Return an open file's bytes. Raises ValueError above `largest` bytes."""
    result = bytearray()
    while part := file.read(CHUNK):
        result += part
        if len(result) > largest:
            raise ValueError(_above(largest))
    return bytes(result)


def _above(largest: int) -> str:
    return f"above {largest / 1e6:.0f} MB"


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for other text and for excessive nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def document(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for others, or above `DEEPEST` levels."""
    result = loads(text)
    if not isinstance(result, dict):
        raise ValueError("not an object")
    if not shallow(result, DEEPEST):
        raise ValueError("nested too deeply")  # callers walk through the document recursively
    return result


def shallow(value: Any, deepest: int) -> bool:
    """Return whether tables and lists nest at most `deepest` levels."""
    level = [value]
    for _ in range(deepest):
        inner = (table.values() if isinstance(table, Mapping) else table for table in level)
        level = [value for values in inner for value in values if isinstance(value, Mapping | list)]
        if not level:
            return True
    return False


def toml(text: str, deepest: int) -> dict[str, Any]:
    """Parse TOML. Raises ValueError for anything else, and for over-deep keys."""
    # tomllib's time is quadratic in the number of parts of a key
    part = r"""(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
    if re.search(rf"(?<![\w-])(?:{part}){{{deepest}}}", text):
        raise ValueError("nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@cache
def packaged(module: str, name: str) -> Any:
    """Return the TOML file `name` beside a `module` (`__file__`), read once."""
    return tomllib.loads(text(Path(module).with_name(name)))
