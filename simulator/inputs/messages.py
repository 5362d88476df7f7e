"""Write error messages for the author of a scenario: place, problem and remedy."""

import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any

from pydantic_core import ErrorDetails

from . import untrusted

KeyPath = tuple[str | int, ...]
CONTROL_CHARACTERS = re.compile(
    "(?![\n\t])[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)  # line ends and tabs are harmless
"""Characters that control a terminal or reverse the direction of text."""
WORDS = untrusted.packaged(__file__, "messages.toml")
"""Sentences by pydantic's type of error, and names that users mistake for keys."""
_TABLES = ("model_type", "model_attributes_type", "dict_type", "dataclass_type")
_LISTS = ("tuple_type", "list_type")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
COMPARED = 1000  # most names to compare with a wrong one; a comparison takes about 20 us
LISTED = 50  # most names in a message, enough for every list of `paceline list`
LONGEST = 200  # characters of a wrong name that are compared
TAGS = ("dist", "kind", "schedule")
"""Keys whose value selects the kind of a table (a member of a union)."""


def visible(text: str) -> str:
    """Return `text` with control characters escaped, as in TOML, JSON and Python."""
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def nearest(word: str, options: Iterable[str], introduction: str, most: int = LISTED) -> str:
    """Suggest the option closest to `word`, if any is close, and list at most `most` options."""
    names = {option.lower().replace("_", "-"): option for option in islice(options, COMPARED)}
    word, misnomers = word[:LONGEST].lower().replace("_", "-"), WORDS["misnomers"]
    close = [name for name in misnomers.get(word, ()) if name in names]
    close = close or get_close_matches(word, names, n=1)
    guess = f"did you mean `{names[close[0]]}`? " if close else ""
    listed = [*islice(names.values(), most), *["..."] * (len(names) > most)]
    return f"{guess}{introduction}: {', '.join(listed) or 'none'}"


def sentence(error: ErrorDetails, path: KeyPath, value: Any) -> str:
    """Describe the fault of the `value` at `path`, and the remedy."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in WORDS["sentences"]:
        return str(WORDS["sentences"][kind].format(**context))
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected", context.get("expected_tags")))
        options = re.findall(r"'([^']*)'", expected) or [expected]
        return f"unknown; {nearest(str(value), options, 'write one of')}"
    if kind in _TABLES:
        problem = "a list where one table belongs" if isinstance(value, list) else "not a table"
        section = "" if any(isinstance(part, int) for part in path) else f"[{dotted(path)}], or "
        return f"{problem}; write {section}{{ key = value }}"
    if kind in _LISTS:
        table = isinstance(value, dict)
        problem = "one table where a list of tables belongs" if table else "not a list"
        return f"{problem}; write {f'[[{dotted(path)}]]' if table else 'it in square brackets'}"
    return "not accepted; see the key in the output of `paceline list schema`"


def with_control_characters(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of texts and keys that hold control characters."""
    if isinstance(value, str) and CONTROL_CHARACTERS.search(value):
        yield path
    parts: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in parts:
        if isinstance(key, str) and CONTROL_CHARACTERS.search(key):
            yield (*path, key)
        else:
            yield from with_control_characters(entry, (*path, key))


def dotted(path: KeyPath) -> str:
    """Write a key's path as in a scenario: `cluster.group[0].compute.mean`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{quoted(part)}" for part in path)[
        1:
    ]


def quoted(name: str) -> str:
    """Write a key as TOML, quoted if it must be."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else toml(name)


def show(value: Any) -> str:
    """Write a value as TOML, cut at 80 characters."""
    text = toml(value)
    return text if len(text) <= 80 else text[:77] + "..."


def toml(value: Any) -> str:
    """Write a value as TOML, in one line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{quoted(key)} = {toml(entry)}" for key, entry in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str | bool):
        return visible(json.dumps(value, ensure_ascii=False))
    return str(value)


def has_key(table: Any, part: str | int) -> bool:
    """Return whether `table[part]` exists."""
    if isinstance(table, list):
        return isinstance(part, int) and 0 <= part < len(table)
    return isinstance(table, dict) and part in table


def value_at(table: Any, path: KeyPath) -> Any:
    """Return the value at `path`, or None if there is none."""
    for part in path:
        if not has_key(table, part):
            return None
        table = table[part]
    return table
