"""The documentation as a site: it builds without a warning, needs no network, and its commands
print what it shows."""

import doctest
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import paceline
import paceline.command_line
from docs import build, console, generated
from paceline.simulator.programs.pieces.schedule import PeriodOfSteps, Rate
from tests.helpers.browser import PHONE, Watched, chromium
from tests.helpers.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NUMBER = re.compile(r"\d[\d,.]*")
DURATION = re.compile(r" in \d+ s\.")  # how long a command took
SLOW = pytest.param("how-to/phones.md", marks=pytest.mark.slow)
COMMANDS = [
    "tutorial.md", "how-to/add-an-algorithm.md", "how-to/fit-a-scenario.md",
    "how-to/sweep-on-dask.md", "how-to/one-box.md", "how-to/two-boxes.md", SLOW,
    "how-to/teach.md", "how-to/which-h.md",
]  # fmt: skip
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site: warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)]
    surroundings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


class Fetched(HTMLParser):
    """Addresses that a browser fetches by itself, and links to places in the site."""

    def __init__(self):
        super().__init__()
        self.fetched = []

    def handle_starttag(self, tag, attributes):
        about = dict(attributes)
        if tag == "link" and about.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(about["href"])
        elif about.get(FETCHED.get(tag)):
            self.fetched.append(about[FETCHED[tag]])


@pytest.mark.long
def test_no_page_fetches_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text("utf-8"))
        assert parser.fetched
        assert not [item for item in parser.fetched if re.match(r"(https?:)?//", item)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", style.read_text("utf-8")), style


@pytest.mark.long
def test_equations_are_mathml(site):
    for page in (site / "programs").glob("*.html"):
        text = page.read_text("utf-8")
        assert "<math" in text or page.stem == "index", page.name
        assert not re.search(r'class="arithmatex">\\[(\[]', text), page.name


@pytest.mark.long
def test_every_page_has_its_place_in_the_menu(site):
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert {re.sub("README$", "index", page) for page in pages} <= built


@pytest.mark.browser
def test_a_reader_without_a_network_reads_and_searches(site):
    with chromium() as browser:
        page = browser.new_page(viewport=PHONE)
        page.set_default_timeout(1000 * PATIENCE)
        watched = Watched(page)
        page.goto((site / "programs" / "adacomm.html").as_uri())
        equation = page.locator("math[display=block]").first.bounding_box()
        assert equation["height"] > 20  # of fractions: it is laid out
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("heterogeneity")
        page.locator("a.md-search-result__link").first.wait_for()
        assert not watched.said
        assert all(address.startswith("file://") for address in watched.asked)
        page.close()


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run_as_written(name, tmp_path):
    page = (DOCS / name).read_text("utf-8")
    shown = [output for _, output in console.BLOCK.findall(page)]
    assert shown
    for pair in zip(shown, console.outputs(page, tmp_path), strict=True):
        before, now = (" ".join(DURATION.sub("", text).split()) for text in pair)
        assert NUMBER.sub("#", now) == NUMBER.sub("#", before)
        assert numbers(now) == pytest.approx(numbers(before), rel=0.05)  # processors round


def numbers(text):
    return [float(number.replace(",", "").rstrip(".")) for number in NUMBER.findall(text)]


def test_an_algorithm_takes_few_lines():
    page = (DOCS / "how-to" / "add-an-algorithm.md").read_text("utf-8")
    (_, program), *_ = console.FILE.findall(page)
    assert len(program.splitlines()) < 30


@pytest.mark.parametrize("block", range(2))
def test_the_readme_s_python_runs(block, tmp_path, monkeypatch):
    code = PYTHON.findall((ROOT / "README.md").read_text("utf-8"))[block]
    names = ["ssgd", "mine"] if "programs=" in code else ["ssgd", "local-sgd"]
    (tmp_path / "my.toml").write_text(small(names), "utf-8")
    monkeypatch.chdir(tmp_path)
    actual = {"paceline": paceline}  # the second block goes on from the first
    exec(code, actual)
    if "curves" in actual:
        assert actual["result"].pick["sentence"]
        assert all(len(curve["loss"]) == 8 for curve in actual["curves"].values())


@pytest.mark.parametrize("name", ["design.md", "concepts/engines.md"])
def test_the_program_that_is_shown_is_local_sgd(name, tmp_path):
    actual = {"count": itertools.count}
    exec(PYTHON.findall((DOCS / name).read_text("utf-8"))[0], actual)
    shown = actual["local_sgd"]
    shown.__annotations__ = {"lr": Rate, "tau": PeriodOfSteps}
    path = tmp_path / "my.toml"
    path.write_text(small(["local-sgd", "shown"]), "utf-8")
    ours, theirs = paceline.simulate(path, programs={"shown": shown}).runs
    assert np.array_equal(ours.curve["loss"], theirs.curve["loss"])
    assert np.array_equal(ours.curve["time"], theirs.curve["time"])


SMALL = """
model.parameters = 650
objective = { kind = "softmax", data = "digits" }
optimizer.lr = 1.0
cluster = { workers = 3, compute = "10 ms" }
network.latency = "1 ms"
run.steps = 20
"""


def small(names):
    """A scenario of a second or so, with these algorithms."""
    period = {"local-sgd": "tau = 4\n", "shown": "tau = 4\n"}
    return SMALL + "".join(
        f'[[algorithm]]\nname = "{name}"\n{period.get(name, "")}' for name in names
    )


@pytest.mark.parametrize("name", sorted({*paceline._MODULES.values()}))
def test_docstrings_that_show_a_session_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_key_is_described():
    rows = [row for row in generated.scenario().splitlines() if row.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_reference_of_keys_is_up_to_date(tmp_path, monkeypatch, capsys):
    assert build.keys(check=True) == 0
    monkeypatch.setattr(build, "KEYS", tmp_path / "scenario.md")
    build.KEYS.write_text("# Scenario keys\n", "utf-8")
    assert build.keys(check=True) == 1
    assert "scenario.md is out of date" in capsys.readouterr().err
    assert build.keys(check=False) == 0
    assert build.keys(check=True) == 0


def test_every_command_and_public_name_is_in_the_reference():
    commands = generated.commands()
    assert all(
        f"## {item.name}" in commands for item in paceline.command_line.app.registered_commands
    )
    listed = (DOCS / "reference" / "python.md").read_text("utf-8")
    private = {"main", "__version__"}
    assert all(re.search(rf"\b{name}\b", listed) for name in {*paceline.__all__} - private)


def test_a_page_is_filled_with_what_its_commands_write(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    block = '```toml title="a.txt"\nhello\n```\n\n```console\n$ cat a.txt\nold\n```\n'
    page.write_text(block, "utf-8")
    monkeypatch.setattr(sys, "argv", ["console.py", str(page)])
    console.main()
    assert page.read_text("utf-8") == block.replace("old", "hello")
    assert shutil.which("cat")
    page.write_text("```console\n$ false\n```\n", "utf-8")
    with pytest.raises(RuntimeError, match="false: exit status 1"):
        console.main()
