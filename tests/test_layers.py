"""Who may import whom, and who may print."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SIMULATOR = sorted((ROOT / "simulator").rglob("*.py"))
VALIDATE = sorted((ROOT / "validate").rglob("*.py"))
PROGRAMS = sorted((ROOT / "simulator" / "programs").glob("*.py"))
FABRIC = sorted((ROOT / "simulator" / "fabric").glob("*.py"))
PIECES = sorted((ROOT / "simulator" / "pieces").glob("*.py"))


def called(path):
    return str(path.relative_to(ROOT))


def imports(path):
    """Full names of all that a file imports, wherever in it."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return found


def below(names, *packages):
    """Those of the names that are, or are in, one of the packages."""
    return {n for n in names for package in packages if f"{n}.".startswith(f"{package}.")}


def test_files_are_found():
    assert len(SIMULATOR) > 20
    assert len(PROGRAMS) > 3
    assert VALIDATE


def test_imports_are_seen_wherever_they_hide(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "simulator" / "deep" / "file.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import torch.nn as n\nfrom . import a\nfrom ..b import c\n"
        "def f():\n  from torch import x\n  importlib.import_module('validate.y')\n"
    )
    assert imports(path) == {
        "torch.nn", "simulator.deep.a", "simulator.b.c", "torch.x", "validate.y"
    }  # fmt: skip
    assert below(imports(path), "torch", "valid") == {"torch.nn", "torch.x"}


@pytest.mark.parametrize("path", SIMULATOR, ids=called)
def test_the_simulator_imports_neither_torch_nor_validate(path):
    assert not below(imports(path), "torch", "validate", "paceline", "tests")


@pytest.mark.parametrize("path", FABRIC, ids=called)
def test_the_fabric_knows_nothing_but_itself(path):
    ours = below(imports(path), "simulator")
    assert {name.split(".")[1] for name in ours} <= {"fabric"}


@pytest.mark.parametrize("path", VALIDATE, ids=called)
def test_validate_imports_no_simpy(path):
    assert not below(imports(path), "simpy", "simulator.engines.virtual", "paceline", "tests")


@pytest.mark.parametrize("path", PROGRAMS, ids=called)
def test_programs_know_effects_and_pieces_only(path):
    allowed = {"effects", "pieces", "codecs", "programs", "units", "errors"}
    ours = below(imports(path), "simulator")
    assert {name.split(".")[1] for name in ours} <= allowed


@pytest.mark.parametrize("path", [*PIECES, ROOT / "simulator" / "effects.py"], ids=called)
def test_pieces_and_effects_know_no_program(path):
    ours = below(imports(path), "simulator")
    assert {name.split(".")[1] for name in ours} <= {"effects", "pieces", "units"}


@pytest.mark.parametrize("path", [*PROGRAMS, *PIECES], ids=called)
def test_programs_and_pieces_read_no_clock_and_draw_no_numbers(path):
    """Time comes from the node and randomness from keyed streams, or interpreters would differ."""
    assert not below(imports(path), "time", "random", "numpy", "asyncio", "threading", "datetime")


@pytest.mark.parametrize("path", PIECES, ids=called)
def test_pieces_never_await(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Await | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", [*SIMULATOR, *VALIDATE], ids=called)
def test_nothing_below_the_front_door_prints(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("print", "input", "pprint", "sys.exit", "exit")
        elif isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("sys.stdout", "sys.stderr", "sys.__stdout__")


def test_everything_is_simulated_without_torch():
    """Every module of the simulator is imported, and a scenario run, where there is no torch."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in SIMULATOR
    ]
    code = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "validate"):
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
for name in {modules!r}:
    importlib.import_module(name)
from tests.worlds import DIGITS, scenario, simulate
print(simulate(scenario({{"name": "ssgd"}}, objective=DIGITS)).steps)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("20.0\n", "", 0)


def test_simulating_time_loads_nothing_heavy():
    """Statistics, plots and data sets load only where they are used."""
    code = """
import sys
from tests.worlds import EXPONENTIAL, RING, scenario, simulate
simulate(scenario({"name": "ssgd"}, {"name": "asgd"}, compute=EXPONENTIAL, network=RING))
heavy = {"scipy.stats", "matplotlib", "sklearn", "torch", "pandas"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
