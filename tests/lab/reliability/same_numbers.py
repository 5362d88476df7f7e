"""Two commits on one machine: does every shipped scenario still give the same numbers?

    python -m tests.lab.reliability.same_numbers 855d71c [HEAD]

Each commit is exported and installed beside the other, with this environment's dependencies. Both
run `simulate --json` and `theory --json` of every scenario that both ship, and the tutorial's
`tune --json`, one process of each commit at a time, so that they share the machine evenly. Numbers
must be equal to the last bit. Texts that are worded otherwise and keys that are new are counted;
versions, file names and seconds of the machine's own clock are left out. The exit status is 0 where
no number differs and no key is gone.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
OWN = {"versions", "wall_seconds", "file"}  # keys that say where and with what it ran
SHOWN = 5  # differences of a command
TUTORIAL = re.compile(r'```toml title="my-cluster.toml"\n(.*?)```', re.DOTALL)

Command = tuple[str, ...]
Difference = tuple[str, Any, Any]  # path of a key, and what the commits have there


def main() -> int:
    """Run the command line; return 0 where all numbers are equal."""
    parser = argparse.ArgumentParser(description="Compare the numbers of two commits.")
    parser.add_argument("before", metavar="COMMIT")
    parser.add_argument("after", metavar="COMMIT", nargs="?", default="HEAD")
    parser.add_argument("--only", metavar="NAME", default="", help="scenarios that begin so")
    parser.add_argument(
        "--old-files", action="store_true", help="both run the files of the first commit"
    )
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        sides = [Path(folder) / name for name in ("before", "after")]
        for side, commit in zip(sides, (chosen.before, chosen.after), strict=True):
            install(side, commit)
        unequal = commands = reworded = values = 0
        for command in (each for each in shared(sides) if each[1].startswith(chosen.only)):
            asked = of_before(sides[0], command) if chosen.old_files else command
            one, other = pool.map(lambda side, given=asked: documents(side, given), sides)
            found = list(differences(one, other))
            numbers = [each for each in found if not is_wording(each)]
            commands, unequal = commands + 1, unequal + bool(numbers)
            reworded, values = reworded + len(found) - len(numbers), values + count(one)
            say(f"{'DIFFERS' if numbers else 'equal'}: paceline {' '.join(command)}")
            for path, first, second in numbers[:SHOWN]:
                say(f"    {path}: {first!r} became {second!r}")
    say(
        f"{commands - unequal} of {commands} commands give the same {values:,} numbers; {reworded} "
        f"texts and keys differ; {(time.monotonic() - began) / 60:.0f} min"
    )
    return int(unequal > 0)


def install(side: Path, commit: str) -> None:
    """Export a commit to `side/source` and install it, without dependencies, to `side/site`."""
    source = side / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(side / "site"), str(source)], check=True)
    page = (source / "docs" / "tutorial.md").read_text("utf-8")
    scenario = TUTORIAL.search(page)
    assert scenario, "docs/tutorial.md shows no my-cluster.toml"
    (side / "my-cluster.toml").write_text(scenario[1])


def shared(sides: list[Path]) -> Iterator[Command]:
    """Commands about all scenarios that both commits ship."""
    before, after = ({each["name"] for each in run(s, ("list", "scenarios"))[1]} for s in sides)
    for gone in sorted(before - after):
        say(f"no longer shipped: {gone}")
    for name in sorted(before & after):
        yield "simulate", name
        yield "theory", name
    yield "tune", "my-cluster.toml"


def of_before(before: Path, command: Command) -> Command:
    """Return a command about the first commit's file of its scenario."""
    kind, name = command
    file = before / "source" / "scenarios" / f"{name}.toml"
    return command if kind == "tune" else (kind, str(file))


def documents(side: Path, command: Command) -> Any:
    """Return the status of a command and its JSON document."""
    kept = () if command[0] == "theory" else ("--out", "run", "--overwrite")
    given = (*command, *kept)
    status, found = run(side, given)
    if kept and status == 2:  # two refusals would be equal
        raise SystemExit(f"paceline {' '.join(given)} was refused")
    return status, found


def run(side: Path, command: Command) -> tuple[int, Any]:
    """Run `paceline COMMAND --json` of one side; return its status and its document, if any."""
    environment = os.environ | {"PYTHONPATH": str(side / "site"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-P", "-m", "paceline", *command, "--json"]
    done = subprocess.run(
        line, cwd=side, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def differences(one: Any, other: Any, path: str = "") -> Iterator[Difference]:
    """Yield where two documents differ, with the dotted path of each place."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other} - OWN):
            if key in one and key in other:
                yield from differences(one[key], other[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}", *("there" if key in each else None for each in (one, other))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{path} (length)", len(one), len(other)
        for index, (first, second) in enumerate(zip(one, other, strict=False)):
            yield from differences(first, second, f"{path}[{index}]")
    elif (type(one), one) != (type(other), other):
        yield path, one, other


def is_wording(difference: Difference) -> bool:
    """Whether only words differ: both are texts, or the commit before lacked the key."""
    _, one, other = difference
    return (isinstance(one, str) and isinstance(other, str)) or (one is None and other == "there")


def count(document: Any) -> int:
    """Count the numbers of a document."""
    if isinstance(document, dict):
        return sum(count(value) for key, value in document.items() if key not in OWN)
    if isinstance(document, list | tuple):
        return sum(map(count, document))
    return isinstance(document, int | float) and not isinstance(document, bool)


def say(line: str) -> None:
    """Write a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
