"""The wheel holds what is installed, under one name, and works beside files of any name."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
FOLDERS = "paceline", "simulator", "validate", "scenarios"
SUFFIXES = {".py", ".pyi", ".typed", ".toml", ".csv", ".xml", ".j2", ".js", ".css"}
OTHERS = (  # of a user, who may call files as we call ours
    "simulator", "validate", "scenarios", "paceline_", "load", "errors", "network", "programs",
    "cluster", "results", "command_line", "theory", "engines", "tests",
)  # fmt: skip
SMALL = ("quickstart", "--seeds", "2", "--set", "run.duration=20 s")
SCRIPT = """
import paceline
found = paceline.simulate(paceline.load("quickstart", ["run.duration=20 s"]), seeds=2)
print(paceline.__file__, len(found.runs))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Wheel built from a source distribution of the working tree."""
    folder = tmp_path_factory.mktemp("build")
    ignored = shutil.ignore_patterns(".*", "build", "site", "runs", "*.egg-info", "__pycache__")
    tree = shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    checked(sys.executable, "-c", code, folder, cwd=tree)
    (source,) = folder.glob("*.tar.gz")
    pip = sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"
    checked(*pip, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Python of a new environment with the wheel, and the libraries of this one.

    An installation of the working tree is not found there: Python reads the .pth files of its own
    site-packages only.
    """
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    actual = folder / "bin" / "python"
    install = "install", "--quiet", "--no-deps", "--no-index", wheel
    checked(sys.executable, "-m", "pip", "--python", actual, *install, cwd=folder)
    (ours,) = folder.glob("lib/python*/site-packages")
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (ours / "others.pth").write_text("\n".join(theirs))
    return actual


@pytest.fixture
def folder(tmp_path):
    for name in OTHERS:
        (tmp_path / f"{name}.py").write_text('raise SystemExit("shadowed")\n')
    return tmp_path


def checked(*command, cwd):
    """Run a command without this process's PYTHONPATH; return what it prints."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_every_file_of_the_package_and_no_other(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    actual = {name for name in names if not name.startswith("paceline-")}
    files = {
        path.relative_to(ROOT)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
    }
    assert actual == {Path("paceline", *path.parts[path.parts[0] == "paceline":]).as_posix()
                     for path in files}  # fmt: skip
    assert {path.suffix for path in files} == SUFFIXES


@pytest.mark.parametrize("command", [["paceline"], ["python", "-m", "paceline"]])
def test_the_demo_runs_beside_files_of_our_names(python, folder, command):
    program, *rest = command
    output = checked(python.parent / program, *rest, "simulate", *SMALL, "--jobs", "2", cwd=folder)
    assert "local-sgd" in output
    assert (folder / "runs" / "quickstart" / "run.json").is_file()


def test_a_script_beside_files_of_our_names_simulates(python, folder):
    (folder / "script.py").write_text(SCRIPT)
    output = checked(python, "script.py", cwd=folder)
    assert output.startswith(str(python.parent.parent / "lib"))
