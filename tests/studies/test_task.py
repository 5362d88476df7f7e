"""The code that a kept run's key depends on."""

import ast
from pathlib import Path

from paceline.simulator.studies import task

SIMULATOR = Path(task.__file__).parents[1]
NEUTRAL = {  # imported by code that determines numbers, without a say in them
    "errors.py",
    "results/store.py",  # versions are part of the key themselves
}


def imported(path):
    """Files of simulator/ that a file imports, by name."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        module = getattr(node, "module", None)
        if isinstance(node, ast.ImportFrom) and module and module.startswith("paceline.simulator"):
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            files = {SIMULATOR.joinpath(*name.split(".")[2:]).with_suffix(".py") for name in names}
            actual |= {file.relative_to(SIMULATOR).as_posix() for file in files if file.is_file()}
    return actual


def test_the_key_covers_all_code_that_determines_numbers():
    sources = task.determining_sources()
    hashed = {source.relative_to(SIMULATOR).as_posix() for source in sources}
    assert len(hashed) == len(sources)
    assert all(source.is_file() for source in sources)
    needed = set().union(*map(imported, sources))
    assert needed - hashed <= NEUTRAL


def test_the_key_covers_no_code_that_only_shows_numbers():
    hashed = {source.relative_to(SIMULATOR).parts[0] for source in task.determining_sources()}
    assert not hashed & {"reports", "studies"}


def test_another_objective_has_another_hash(tmp_path):
    (tmp_path / "own.py").write_text("x = 1")
    assert task.code_hash(tmp_path / "own.py") != task.code_hash()
