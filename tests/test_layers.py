"""The order of layers, and who may print.

ORDER is the one place where the order of rooms is written down: a file imports only from rooms
before its own, and files of one room import each other without a circle, imports for type checkers
included.
"""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SIMULATOR = sorted((ROOT / "simulator").rglob("*.py"))
VALIDATE = sorted((ROOT / "validate").rglob("*.py"))
DEPLOY = sorted((ROOT / "paceline" / "deploy").rglob("*.py"))
EFFECTS = ROOT / "simulator" / "programs" / "effects.py"
PROGRAMS = sorted({*(ROOT / "simulator" / "programs").glob("*.py")} - {EFFECTS})
FABRIC = sorted((ROOT / "simulator" / "network" / "fabric").glob("*.py"))
EMIT = sorted((ROOT / "paceline" / "deploy" / "emit").rglob("*.py"))
PIECES = sorted((ROOT / "simulator" / "programs" / "pieces").glob("*.py"))

ORDER = {
    "simulator": """
        errors | inputs | distributions programs | scenario | cluster | network | results theory
        | objectives | load | engines | studies | reports""",
    "validate": """
        checks host | torch_objective | training | launch | measurement | comparison | validation
        | calibration | logs probe | matrix""",
    "deploy": """
        live emit | steering | checkpoint local_steps | transport plan | attached | session""",
}
FILES = {"simulator": SIMULATOR, "validate": VALIDATE, "deploy": DEPLOY}
MOST = {"simulator": 14, "validate": 12, "deploy": 9}  # entries that a newcomer can take in


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
    known = {module(path) for path in paths}
    found = {}
    for path in paths:
        names = {name.removeprefix("paceline.") for name in imports(path)}
        targets = {name if name in known else name.rpartition(".")[0] for name in names}
        found[module(path)] = (targets & known) - {module(path)}
    return found


def called(path):
    return str(path.relative_to(ROOT))


def imports(path):
    """Full names of all that a file imports, wherever in it."""
    package = ("paceline", *path.relative_to(root(path)).with_suffix("").parts[:-1])
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
    known = edges(FILES[package])
    for source, targets in known.items():
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
    known = edges([*SIMULATOR, *VALIDATE, *DEPLOY])
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {error.args[1]}")


@pytest.mark.parametrize("path", EMIT, ids=called)
def test_code_is_emitted_without_any_framework(path):
    assert EMIT
    frameworks = ("accelerate", "flwr", "paddle", "torch", "torchft", "torchtitan")
    assert not below(imports(path), *frameworks, "paceline.validate", "tests")


@pytest.mark.parametrize("path", [*SIMULATOR, *VALIDATE, *DEPLOY], ids=called)
def test_a_folder_says_what_lives_in_it(path):
    """The first words of a folder: what it is, what may be imported of it, what is forbidden."""
    if path.name == "__init__.py":
        said = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        assert said
        assert 3 <= len(said.splitlines()) <= 15


@pytest.mark.parametrize("path", FABRIC, ids=called)
def test_the_fabric_knows_nothing_but_itself(path):
    ours = below(imports(path), "paceline")
    assert ours == below(ours, "paceline.simulator.network.fabric")


FORBIDDEN = {
    "simulator": ("torch", "paceline.validate", "paceline.deploy", "tests"),
    "validate": ("simpy", "paceline.simulator.engines.virtual", "paceline.deploy", "tests"),
    "deploy": ("simpy", "paceline.simulator.engines.virtual", "tests"),
}


@pytest.mark.parametrize("path", [*SIMULATOR, *VALIDATE, *DEPLOY], ids=called)
def test_the_simulator_knows_no_torch_and_validate_no_simpy(path):
    assert not below(imports(path), *FORBIDDEN[path.relative_to(root(path)).parts[0]])
    assert not front(path)


@pytest.mark.parametrize("path", PROGRAMS, ids=called)
def test_programs_know_effects_and_pieces_only(path):
    ours = below(imports(path), "paceline")
    allowed = ("programs", "inputs.units", "errors")
    assert ours == below(ours, *(f"paceline.simulator.{name}" for name in allowed))


@pytest.mark.parametrize("path", [*PIECES, EFFECTS], ids=called)
def test_pieces_and_effects_know_no_program(path):
    ours = below(imports(path), "paceline")
    allowed = ("programs.effects", "programs.pieces", "inputs.units")
    assert ours == below(ours, *(f"paceline.simulator.{name}" for name in allowed))


@pytest.mark.parametrize("path", [*PROGRAMS, *PIECES], ids=called)
def test_programs_and_pieces_read_no_clock_and_draw_no_numbers(path):
    """Time comes from the node and randomness from keyed streams, or interpreters would differ."""
    assert not below(imports(path), "time", "random", "numpy", "asyncio", "threading", "datetime")


@pytest.mark.parametrize("path", PIECES, ids=called)
def test_pieces_never_await(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Await | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", [*SIMULATOR, *VALIDATE, *DEPLOY], ids=called)
def test_nothing_below_the_front_door_prints(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("print", "input", "pprint", "sys.exit", "exit")
        elif isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("sys.stdout", "sys.stderr", "sys.__stdout__")


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
import sys
from tests.helpers.worlds import EXPONENTIAL, RING, scenario, simulate
simulate(scenario({"name": "ssgd"}, {"name": "asgd"}, compute=EXPONENTIAL, network=RING))
heavy = {"scipy.stats", "matplotlib", "sklearn", "torch", "pandas"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
