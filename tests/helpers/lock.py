"""Make requirements.lock: versions and hashes of everything that targets install.

    python -m tests.helpers.lock FILE...       print the lock of resolved files

Every part has only what earlier parts lack: `core` runs Paceline, `dev` its tests, `torch` real
training, and `tools` the other targets of the Makefile.
"""

import sys
from pathlib import Path

LOCK = Path(__file__).parents[2] / "requirements.lock"


def entries(text: str) -> list[str]:
    """Split a resolved file into requirements, each with the lines of its hashes."""
    requirements: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            requirements[-1] += f"\n{line}"
        elif line and not line.startswith("#"):
            requirements.append(line)
    return requirements


def parts() -> dict[str, list[str]]:
    """Return the requirements of the lock by name of their part."""
    sections = LOCK.read_text("utf-8").split("\n# ")
    return {name: entries(rest) for name, _, rest in (s.partition("\n") for s in sections[1:])}


def joined(files: list[Path]) -> str:
    """Return the text of the lock of resolved files."""
    lines = ["# Written by `make lock`; every part adds to the earlier parts."]
    seen: set[str] = set()
    for file in files:
        new = [entry for entry in entries(file.read_text("utf-8")) if entry not in seen]
        lines += [f"# {file.stem}", *new]
        seen |= {*new}
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(joined([Path(name) for name in sys.argv[1:]]))
