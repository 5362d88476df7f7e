"""Escape control characters: those that a terminal acts upon, or that reverse text."""

import re

CONTROL_CHARACTERS = re.compile(
    "(?![\n\t])[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)  # ends of lines and tabs do no harm


def visible(text: str) -> str:
    """Return `text` with control characters escaped, as TOML, JSON and Python write them."""
    return CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
