"""Mutants of the core: changes of one place each, which the tests must notice.

    python -m tests.reliability mutants --seconds 3600

Made by cosmic-ray in a copy of the tree, in an order that is random and always the same, a group
after the other for its share of the time. Those that survive are named, to be looked at.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
TITLE = "Mutants of the core"
LONGEST = 300  # seconds of tests; a mutant that hangs is noticed
LEFT_OUT = ("ReplaceBinaryOperator_BitOr", "Variable")  # annotations alone; needs arguments

GROUPS = {
    "theory": (["theory.py", "saturation.py"], ["theory"]),
    "schedules and other pieces": (
        ["pieces/*.py", "effects.py", "streams.py"],
        ["pieces", "schedules", "streams", "identities", "adacomm", "graph", "conformance"],
    ),
    "interpreters": (
        [
            "engines/virtual.py",
            "engines/node.py",
            "engines/simulation.py",
            "engines/collective.py",
            "engines/lockstep.py",
            "engines/observer.py",
            "engines/lane.py",
            "engines/batched.py",
            "engines/ledger.py",
        ],
        ["conformance", "virtual", "batched", "server", "staleness", "observer", "identities"],
    ),
}
"""What is changed, in simulator/, and the tests that must notice, the quickest first."""


class Mutant(NamedTuple):
    """The `occurrence`-th place of a file that an operator of cosmic-ray can change."""

    file: Path
    operator: str
    occurrence: int


def mutants(root: Path, patterns: Sequence[str]) -> list[Mutant]:
    """All mutants of the files, in a random order that is always the same."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    found = []
    for file in sorted(path for each in patterns for path in (root / "simulator").glob(each)):
        nodes = [*ast_nodes(get_ast_from_path(file))]
        for name in sorted(operator_names()):
            if any(each in name for each in LEFT_OUT):
                continue
            operator = get_operator(name)()
            places = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            found += [Mutant(file, name, place) for place in range(places)]
    random.Random(0).shuffle(found)
    return found


def survives(root: Path, mutant: Mutant, tests: Sequence[str]) -> bool:
    """Whether the tests pass with the change, which is undone again."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    with use_mutation(mutant.file, get_operator(mutant.operator)(), mutant.occurrence):
        return passes(root, tests)


def passes(root: Path, tests: Sequence[str]) -> bool:
    """Run test files of the tree until one fails, or takes too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not gpu and not alone and not browser"]
    surroundings = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [*command, *(f"tests/test_{name}.py" for name in tests)],
        cwd=root,
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(LONGEST) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return False


def measure(seconds: float) -> list[dict[str, Any]]:
    """Try mutants of each group for its share of the time."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "tree")
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "site", ".*_cache")
        shutil.copytree(ROOT, root, ignore=ignored)
        for group, (patterns, tests) in GROUPS.items():
            if not passes(root, tests):
                raise SystemExit(f"the tests of {group} fail without any change")
            end = time.monotonic() + seconds / len(GROUPS)
            tried, survivors = 0, []
            todo = mutants(root, patterns)
            for mutant in todo:
                if time.monotonic() > end:
                    break
                tried += 1
                if survives(root, mutant, tests):
                    place = f"{mutant.file.relative_to(root)}: {mutant.operator}"
                    survivors.append(f"{place}, place {mutant.occurrence}")
            rows.append(
                {
                    "what": f"{group} ({tried} of {len(todo)} mutants)",
                    "tried": tried,
                    "handled": tried - len(survivors),
                    "how": "python -m tests.reliability mutants",
                    "missed": survivors,
                }
            )
    return rows
