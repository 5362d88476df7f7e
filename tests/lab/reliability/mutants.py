"""Make mutants of the core, changes of one place each, which tests must notice.

    python -m tests.lab.reliability mutants --seconds 3600

cosmic-ray makes them, in a copy of the tree per core, in a fixed random order, group by group, each
for its share of the time. Survivors are named for inspection. Arithmetic is not replaced by
operators on bits, which floats refuse without any test.
"""

import os
import queue
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from paceline.simulator.studies.execution import cores
from tests.helpers.cases import beside

ROOT = Path(__file__).parents[3]
TITLE = "Mutants of the core"
PATIENCE = 3.0  # times the usual duration, after which a mutant hangs, and counts as noticed
MEMORY = 8 << 30  # most bytes of a process, because a change can make it use ever more
LEFT_OUT = re.compile(r"BinaryOperator_\w*(Bit|Shift)|Variable")  # annotations; need arguments

REMARKS = """\
Tests that came later notice nine of these. Seven cannot be noticed: compensation.py:118 and
node.py:262 of `batched` change what is not used, theory.py:73, 165, 269 and 356 no result. Open:
piece.py:71, observer.py:136 and node.py:329 of `virtual`."""

GROUPS = tomllib.loads(beside(__file__, "mutants.toml"))


class Mutant(NamedTuple):
    """The `occurrence`-th place in a file that an operator of cosmic-ray can change."""

    file: Path
    """Paths below the root of a tree."""

    operator: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        line = (ROOT / self.file).read_text("utf-8").splitlines()[self.line - 1]
        return f"{self.file}:{self.line}: {self.operator.partition('/')[2]}: {line}"


def mutants(patterns: Sequence[str]) -> list[Mutant]:
    """Return all mutants of the files, in a fixed random order."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    actual = []
    for file in sorted(path for pattern in patterns for path in (ROOT / "simulator").glob(pattern)):
        nodes = [*ast_nodes(get_ast_from_path(file))]
        for name in sorted(operator_names()):
            if LEFT_OUT.search(name):
                continue
            operator = get_operator(name)()
            places = (place for node in nodes for place in operator.mutation_positions(node))
            actual += [
                Mutant(file.relative_to(ROOT), name, number, begin[0])
                for number, (begin, _) in enumerate(places)
            ]
    random.Random(1).shuffle(actual)  # not the order of 2026-11-22, whose survivors have tests
    return [mutant for mutant in actual if "@abstractmethod" not in str(mutant)]  # no test can tell


def survives(root: Path, mutant: Mutant, tests: Sequence[str], longest: float) -> bool:
    """Return whether the tests pass with the change, which is then undone."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    with use_mutation(root / mutant.file, get_operator(mutant.operator)(), mutant.occurrence):
        return passes(root, tests, longest)


def passes(root: Path, tests: Sequence[str], longest: float | None = None) -> bool:
    """Run the tree's test files until one fails, or `longest` seconds have passed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "first failure"]
    command += ["-m", "not slow and not gpu and not alone and not browser"]
    command += ["-k", "not memory"]  # these notice nothing more, and take the longest
    surroundings = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [*command, *(f"tests/{name}.py" for name in tests)],
        cwd=root,
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(longest) == 0
    except subprocess.TimeoutExpired:
        print(f"stopped after {longest:.0f} s:", end=" ", file=sys.stderr)
        os.killpg(process.pid, 9)
        process.wait()
        return False


def measure(seconds: float) -> list[dict[str, Any]]:
    """Try the mutants of every group for its share of the time."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most))  # the tests inherit this limit
    with tempfile.TemporaryDirectory() as name:
        trees = [copied(Path(name, str(number))) for number in range(cores())]
        return [_tried(group, trees, seconds / len(GROUPS)) for group in GROUPS]


def copied(root: Path) -> Path:
    """Copy the tree to a new folder."""
    names = ".git", ".venv", ".compat", ".hypothesis", "build", "runs", "site", "__pycache__"
    shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*names, ".*_cache"))
    return root


def _tried(group: str, trees: Sequence[Path], seconds: float) -> dict[str, Any]:
    """Try mutants of a group, one at a time in each tree."""
    patterns, tests = GROUPS[group].values()
    begin = time.monotonic()
    end = begin + seconds

    with ThreadPoolExecutor(cores()) as pool:  # with the usual load
        if not all(pool.map(lambda tree: passes(tree, tests), trees)):
            raise SystemExit(f"the tests of {group} fail without any change")
    longest = PATIENCE * (time.monotonic() - begin)
    idle: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for tree in trees:
        idle.put(tree)

    def one(mutant: Mutant) -> bool | None:
        if time.monotonic() > end:
            return None
        tree = idle.get()
        try:
            survived = survives(tree, mutant, tests, longest)
            print("survives:" if survived else "killed:", mutant, file=sys.stderr, flush=True)
            return survived
        finally:
            idle.put(tree)

    every = mutants(patterns)
    with ThreadPoolExecutor(cores()) as pool:
        survived = dict(zip(every, pool.map(one, every), strict=True))
    tried = sum(outcome is not None for outcome in survived.values())
    survivors = [str(mutant) for mutant, outcome in survived.items() if outcome]
    return {
        "what": f"{group} ({tried:,} of {len(every):,} mutants)",
        "tried": tried,
        "handled": tried - len(survivors),
        "how": "python -m tests.lab.reliability mutants",
        "missed": survivors,
    }
