"""Characters that a terminal would act upon, or that turn text around: never shown as they are."""

import re

CONTROL_CHARACTERS = re.compile(
    "(?![\n\t])[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)  # ends of lines and tabs are what they seem


def visible(text: str) -> str:
    """Return `text` with such characters written as escapes, as TOML, JSON and Python do."""
    return CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
