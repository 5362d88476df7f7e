"""The notebooks run as they are, in seconds, and are what jupytext reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.py"))


def test_the_page_names_every_notebook():
    page = (NOTEBOOKS[0].parent / "README.md").read_text("utf-8")
    assert re.findall(r"\]\(([\w/]+\.py)\)", page) == [
        "tutorial.py", "own_algorithm.py", "own_objective.py", "calibration.py",
    ]  # fmt: skip
    assert len(NOTEBOOKS) == 4


def test_notebooks_are_in_percent_format():
    header = r"# ---\n# jupyter:\n#   jupytext:\n(#.*\n)+?#       format_name: percent\n# ---\n"
    for path in NOTEBOOKS:
        text = path.read_text("utf-8")
        assert re.match(header, text), path
        cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
        prose = [cell for cell in cells if cell.startswith(" [markdown]\n")]
        assert len(cells) - len(prose) >= 3
        assert prose[0].startswith(" [markdown]\n# # ")
        lines = [line for cell in prose for line in cell.strip().splitlines()[1:]]
        assert all(line.startswith("#") for line in lines), path


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    """Every cell; the value that ends a cell is shown as a notebook would show it.

    Processes that it starts find it as the script, as where it is run as one.
    """
    shown = f"""
import ast, linecache, sys
sys.modules["__main__"].__file__ = {str(path)!r}
source = open({str(path)!r}, encoding="utf-8").read()
names = {{"__name__": "__main__"}}
for number, cell in enumerate(source.split("\\n# %%")[1:]):
    text, file = cell.split("\\n", 1)[1], f"<cell {{number}}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file  # as IPython does
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    value = eval(compile(ast.Expression(last.value), file, "eval"), names) if last else None
    for show in ("__repr__", "_repr_html_"):
        getattr(value, show, str)()
"""
    done = subprocess.run(
        [sys.executable, "-c", shown], cwd=tmp_path, env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
