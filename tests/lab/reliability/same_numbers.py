"""Check that two commits give the same numbers on every shipped scenario.

    python -m tests.lab.reliability.same_numbers 855d71c [HEAD]

Each commit is exported and installed beside the other, with this environment's dependencies. Both
run `simulate --json` and `theory --json` of every scenario that both ship, and the tutorial's `tune
--json`. Numbers must be equal to the last bit. Changed texts and new keys do not count; versions,
file names and seconds of the machine's clock are left out. The exit status is 0 if no number
differs and no key is missing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
OWN = {"versions", "wall_seconds", "file"}  # keys on the place and the versions of a run
SHOWN = 5  # most differences shown per command
TUTORIAL = re.compile(r'```toml title="my-cluster.toml"\n(.*?)```', re.DOTALL)


def main() -> int:
    """Run the command line; return 0 if all numbers are equal."""
    parser = argparse.ArgumentParser(description="Compare the numbers of two commits.")
    parser.add_argument("before", metavar="COMMIT")
    parser.add_argument("after", metavar="COMMIT", nargs="?", default="HEAD")
    parser.add_argument("--only", metavar="NAME", default="", help="scenarios that begin so")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        sides = [Path(folder) / name for name in ("before", "after")]
        for side, commit in zip(sides, (chosen.before, chosen.after), strict=True):
            install(side, commit)
        lists = pool.map(lambda side: run(side, "list", "scenarios")[1], sides)
        before, after = ({row["name"] for row in names} for names in lists)
        print(*(f"no longer shipped: {name}" for name in sorted(before - after)), sep="\n")
        commands = [
            (kind, name) for name in sorted(before & after) for kind in ("simulate", "theory")
        ]
        unequal = 0
        for command in [*commands, ("tune", "my-cluster.toml")]:
            if command[1].startswith(chosen.only):
                one, other = pool.map(lambda side, given=command: run(side, *given), sides)
                actual = [*differences(one, other)]
                unequal += bool(actual)
                print("DIFFERS" if actual else "equal", *command, *actual[:SHOWN], flush=True)
    return int(unequal > 0)


def install(side: Path, commit: str) -> None:
    """Export a commit to `side/source` and install it, without dependencies, to `side/site`."""
    source = side / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(side / "site"), str(source)], check=True)
    scenario = TUTORIAL.search((source / "docs" / "tutorial.md").read_text("utf-8"))
    assert scenario, "docs/tutorial.md shows no my-cluster.toml"
    (side / "my-cluster.toml").write_text(scenario[1])


def run(side: Path, *command: str) -> tuple[int, Any]:
    """Run `paceline COMMAND --json` of one side; return its status and its document, if any."""
    environment = os.environ | {"PYTHONPATH": str(side / "site"), "OMP_NUM_THREADS": "1"}
    out = ("--out", "run", "--overwrite") if command[0] in ("simulate", "tune") else ()
    line = [sys.executable, "-P", "-m", "paceline", *command, *out, "--json"]
    done = subprocess.run(line, cwd=side, env=environment, capture_output=True, check=False)
    if out and done.returncode == 2:  # two refusals would be equal
        raise SystemExit(f"paceline {' '.join(command)} was refused: {done.stderr}")
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two documents beyond texts, with dotted paths."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() - OWN):  # keys that are new do not count
            if key in other:
                yield from differences(one[key], other[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}", "there", None
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{path} (length)", len(one), len(other)
        for index, (first, second) in enumerate(zip(one, other, strict=False)):
            yield from differences(first, second, f"{path}[{index}]")
    elif (type(one), one) != (type(other), other) and not isinstance(one, str):
        yield path, one, other


if __name__ == "__main__":
    sys.exit(main())
