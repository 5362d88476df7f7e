"""The order of layers, the size of every folder, and who may print.

ORDER is the one place where the order of rooms is written down: a file imports only from rooms
before its own, and files of one room import each other without a circle, imports for type checkers
included. LINES and WORDS are the budgets: whoever raises a number writes beside it what it buys.
"""

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.processes import loaded

ROOT = Path(__file__).parent.parent
SIMULATOR = sorted((ROOT / "simulator").rglob("*.py"))
VALIDATE = sorted((ROOT / "validate").rglob("*.py"))
DEPLOY = sorted((ROOT / "paceline" / "deploy").rglob("*.py"))
EFFECTS = ROOT / "simulator" / "programs" / "effects.py"
PROGRAMS = sorted({*(ROOT / "simulator" / "programs").glob("*.py")} - {EFFECTS})
FABRIC = sorted((ROOT / "simulator" / "network" / "fabric").glob("*.py"))
EMIT = sorted((ROOT / "paceline" / "deploy" / "emit").rglob("*.py"))
EVERYTHING = [*SIMULATOR, *VALIDATE, *DEPLOY]
PIECES = sorted((ROOT / "simulator" / "programs" / "pieces").glob("*.py"))

ORDER = {
    "simulator": """
        errors | inputs | distributions programs | scenario | cluster | network | results theory
        | objectives | load | engines | studies | reports""",
    "validate": """
        host | torch_objective | training | launch | measurement | comparison | validation
        | calibration | logs probe | matrix""",
    "deploy": """
        live emit | steering | watch checkpoint local_steps | transport plan | attached
        | session""",
}
FILES = {"simulator": SIMULATOR, "validate": VALIDATE, "deploy": DEPLOY}
MOST = {"simulator": 14, "validate": 12, "deploy": 10}  # entries that a newcomer can take in
LINES = """
    paceline/*.py              1060   19 commands with their options, and what --explain adds
    paceline/deploy            3310   sessions with islands, steering, a watcher that names steps
    simulator/*.py              440   theory.py: Theorems 1 and 2, HPSGD, Hybrid; one file of errors
    simulator/cluster           690   membership and failures as laws and traces
    simulator/distributions    1070   ten families, traces, and their order statistics
    simulator/engines          5910   two engines that agree to the last bit, clocks by a max, notes
    simulator/inputs           1050   units, bounds on files, and what twenty training loops print
    simulator/load             1420   refusals that name file, key, value and remedy; hardware
    simulator/network          3180   closed form, flows and TCP; how NCCL, gloo and BytePS behave
    simulator/objectives       2420   learning curves, their evidence, matched factors, one more run
    simulator/programs         3880   28 algorithms with HPSGD's two decisions, and twelve codecs
    simulator/reports          1770   terminal, page and sliders
    simulator/results          4640   intervals from published residuals, models of error, verdict
    simulator/scenario         2690   every key with its description; kinds of hardware by name
    simulator/studies          5730   search and sweep by time at equal loss, fit, papers, real data
    validate                  10400   real training, all rehearsed before; strangers' logs, matrix
    docs                        430   what generates pages
    tests                     36250   random scenarios, sessions, published rows, and tests/lab
"""
WORDS = 110_000  # of README.md and docs/
ARGUMENTS = 17  # functions that take more of them than ruff allows
FORMATTED_BY_HAND = 416  # pieces of code that the formatter must leave alone


def rank(package):
    """Rooms of a package and their places in its order: those of one place know no other."""
    places = [place.split() for place in ORDER[package].split("|")]
    return {room: number for number, rooms in enumerate(places) for room in rooms}


def module(path):
    """Name of a file's module without `paceline.`: simulator.load.load."""
    return ".".join(path.relative_to(root(path)).with_suffix("").parts).removesuffix(".__init__")


def root(path):
    """Folder below which a file's place is its module's name."""
    front = ROOT / "paceline"
    return front if path.is_relative_to(front) else ROOT


def edges(paths):
    """Modules that each of the modules imports, of `paths` alone."""
    modules = {module(path) for path in paths}
    results = {}
    for path in paths:
        names = {name.removeprefix("paceline.") for name in imports(path)}
        targets = {name if name in modules else name.rpartition(".")[0] for name in names}
        results[module(path)] = (targets & modules) - {module(path)}
    return results


def called(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path):
    """Parse a file once."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imports(path):
    """Full names of all that a file imports, wherever in it."""
    package = ("paceline", *path.relative_to(root(path)).with_suffix("").parts[:-1])
    actual = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            actual |= {f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            actual |= {item.value for item in node.args if isinstance(item, ast.Constant)}
    return actual


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
        "def f():\n  from torch import x\n  importlib.import_module('paceline.validate.y')\n"
    )
    assert imports(path) == {
        "torch.nn", "torch.x", "paceline.validate.y",
        "paceline.simulator.deep.a", "paceline.simulator.b.c",
    }  # fmt: skip
    assert below(imports(path), "torch", "valid") == {"torch.nn", "torch.x"}


def front(path):
    """What a file imports of the front door: names of `paceline` itself, or its command line."""
    ours = below(imports(path), "paceline")
    return ours - below(ours, "paceline.simulator", "paceline.validate", "paceline.deploy")


@pytest.mark.parametrize("package", ORDER)
def test_each_room_imports_only_those_before_it(package):
    place = rank(package)
    graph = edges(FILES[package])
    for source, targets in graph.items():
        if source == package:
            continue
        room = source.split(".")[1]
        rooms = {target.split(".")[1] for target in targets if target != package} - {room}
        late = {other for other in rooms if place[other] >= place[room]}
        assert not late, f"{source} imports {late}"


@pytest.mark.parametrize("package", ORDER)
def test_the_order_names_the_rooms_that_there_are(package):
    entries = {
        path.stem if path.is_file() else path.name
        for path in FILES[package][0].parent.iterdir()
        if path.name not in ("__init__.py", "__pycache__")
    }
    assert entries == {*rank(package)}
    assert len(entries) <= MOST[package]


def test_files_import_each_other_without_a_circle():
    graph = edges(EVERYTHING)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {error.args[1]}")


def test_code_is_emitted_without_any_framework():
    assert EMIT
    frameworks = ("accelerate", "flwr", "paddle", "torch", "torchft", "torchtitan")
    for path in EMIT:
        assert not below(imports(path), *frameworks, "paceline.validate", "tests"), called(path)


def test_a_folder_says_what_lives_in_it():
    """The first words of a folder: what it is, what may be imported of it, what is forbidden."""
    for path in EVERYTHING:
        if path.name == "__init__.py":
            first_words = ast.get_docstring(tree(path))
            assert first_words, called(path)
            assert 3 <= len(first_words.splitlines()) <= 15, called(path)


def only(path, *allowed):
    """Whether a file imports nothing of ours but these packages of the simulator."""
    ours = below(imports(path), "paceline")
    return ours == below(ours, *(f"paceline.simulator.{name}" for name in allowed))


def test_the_fabric_knows_nothing_but_itself():
    for path in FABRIC:
        assert only(path, "network.fabric"), called(path)


FORBIDDEN = {
    "simulator": ("torch", "paceline.validate", "paceline.deploy", "tests"),
    "validate": ("simpy", "paceline.simulator.engines.virtual", "paceline.deploy", "tests"),
    "deploy": ("simpy", "paceline.simulator.engines.virtual", "tests"),
}


def test_the_simulator_knows_no_torch_and_validate_no_simpy():
    for path in EVERYTHING:
        forbidden = FORBIDDEN[path.relative_to(root(path)).parts[0]]
        assert not below(imports(path), *forbidden), called(path)
        assert not front(path), called(path)


def test_programs_know_effects_and_pieces_only():
    for path in PROGRAMS:
        assert only(path, "programs", "inputs.units", "errors"), called(path)
    for path in [*PIECES, EFFECTS]:
        assert only(path, "programs.effects", "programs.pieces", "inputs.units"), called(path)


def test_programs_and_pieces_read_no_clock_and_draw_no_numbers():
    """Time comes from the node and randomness from keyed streams, or interpreters would differ."""
    sources = ("time", "random", "numpy", "asyncio", "threading", "datetime")
    for path in [*PROGRAMS, *PIECES]:
        assert not below(imports(path), *sources), called(path)


def test_pieces_never_await():
    for path in PIECES:
        waiting = [
            n for n in ast.walk(tree(path)) if isinstance(n, ast.Await | ast.AsyncFunctionDef)
        ]
        assert not waiting, called(path)


def test_nothing_below_the_front_door_prints():
    for path in EVERYTHING:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("print", "input", "pprint", "sys.exit", "exit"), called(path)
            elif isinstance(node, ast.Attribute):
                streams = ("sys.stdout", "sys.stderr", "sys.__stdout__")
                assert ast.unparse(node) not in streams, called(path)


def lines(place):
    """Count the lines of the Python files of a folder, or of a pattern's files."""
    paths = ROOT.glob(place) if "*" in place else (ROOT / place).rglob("*.py")
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def test_budget_of_every_folder():
    budgets = {place: int(most) for place, most, *_ in map(str.split, LINES.strip().splitlines())}
    over = {place: n for place, most in budgets.items() if (n := lines(place)) > most}
    assert not over, "these folders have more lines than LINES allows"
    for path in set(EVERYTHING) - {*(ROOT / "simulator").glob("*.py")}:
        assert any(path.is_relative_to(ROOT / place) for place in budgets), called(path)


def test_budget_of_words():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(path.read_text("utf-8").split()) for path in pages) <= WORDS


def complexity(function):
    """Count the decisions of a function, as McCabe does, with conditions in expressions."""
    kinds = ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.comprehension
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, kinds | ast.AsyncFor | ast.match_case)
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        count += len(node.ifs) if isinstance(node, ast.comprehension) else 0
    return count


def test_budget_of_complexity():
    """No function is hard to follow."""
    for path in [*EVERYTHING, *(ROOT / "paceline").glob("*.py")]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert complexity(node) <= 20, f"{called(path)}: {node.name}"


def test_budget_of_exceptions_from_style():
    ours = [*EVERYTHING, *(ROOT / "paceline").glob("*.py")]
    texts = [path.read_text("utf-8") for path in ours]
    assert sum(text.count("noqa: PLR0913") for text in texts) <= ARGUMENTS
    texts += [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    assert sum(text.count("fmt: " + "skip") for text in texts) <= FORMATTED_BY_HAND


def test_everything_is_simulated_without_torch():
    """Every module of the simulator is imported, and a scenario run, where there is no torch."""
    modules = [f"paceline.{module(path)}" for path in SIMULATOR]
    code = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if (name + ".").startswith(("torch.", "paceline.validate.")):
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
for name in {modules!r}:
    importlib.import_module(name)
from tests.helpers.worlds import DIGITS, scenario, simulate
print(simulate(scenario({{"name": "ssgd"}}, objective=DIGITS)).steps)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("20.0\n", "", 0)


def test_simulating_time_loads_nothing_heavy():
    """Statistics, plots and data sets load only where they are used."""
    code = """
from tests.helpers.worlds import EXPONENTIAL, RING, scenario, simulate
simulate(scenario({"name": "ssgd"}, {"name": "asgd"}, compute=EXPONENTIAL, network=RING))
"""
    assert loaded(code, "scipy.stats", "matplotlib", "sklearn", "torch", "pandas") == []
