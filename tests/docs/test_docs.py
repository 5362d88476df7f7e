"""The documentation agrees with the code: pages, parameters, figures, scenarios, commands."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

import paceline
import paceline.command_line
from docs import build
from paceline.simulator.load.load import load
from paceline.simulator.programs import catalogue

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(catalogue())
PAGES = sorted((ROOT / "docs").rglob("*.md"))
EQUATION = re.compile(r"\$\$(.+?)\$\$|(?<!\$)\$([^$\n]+)\$(?!\$)", re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(paceline .+)$|`(paceline [a-z]+ [^`]+)`", re.MULTILINE)


def page(name):
    return (build.PAGES / f"{name}.md").read_text("utf-8")


def commands():
    """Every command that the documentation shows, with where."""
    return [
        pytest.param(found[1] or found[2], id=f"{path.name}: {found[1] or found[2]}")
        for path in sorted(PAGES)
        for found in COMMAND.finditer(path.read_text("utf-8"))
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_its_page(name):
    text = page(name)
    assert text.startswith(f"# {name}\n")
    headings = re.findall("^## (.+)$", text, re.MULTILINE)
    assert headings[:3] == ["When to use it", "Parameters", "Reading the figure"]
    assert headings[3:] in (["Paper"], ["Papers"])
    assert "$$" in text.split("## ")[0]
    assert f"`paceline simulate programs/{name}`" in text
    assert f"]({name}.png)" in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_parameters_and_results_are_up_to_date(name):
    text = page(name)
    assert build.main(["--check", name]) == 0
    assert all(f"| `{key}` |" in text for key in catalogue()[name].describe())
    labels = [algorithm.label for algorithm in scenario(name).algorithm]
    row = r"^\| (\S.*?)(?: \(a bound\))? \| [\d.]+ (?:ms|s|min) \|"
    assert re.findall(row, text, re.MULTILINE) == labels


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_scenario_compares_it_with_something(name):
    names = [algorithm.name for algorithm in scenario(name).algorithm]
    assert name in names
    assert len(names) > 1
    assert scenario(name).run.seeds == 4


def scenario(name):
    return load(f"programs/{name}")


def test_the_index_has_every_program_once():
    rows = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)\.md\) \|", page("README"), re.MULTILINE)
    assert sorted(rows) == [(name, name) for name in PROGRAMS]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8"))
    broken = [each for each in links if "://" not in each and not (path.parent / each).is_file()]
    assert not broken


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_source_files_that_are_named_exist(path):
    named = re.findall(
        r"`((?:simulator|validate|paceline|tests|scenarios)/[\w./-]+)`", path.read_text("utf-8")
    )
    gone = [each for each in named if not (ROOT / re.sub("[A-Z]{2}.*", "", each)).exists()]
    assert not gone


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_page_is_short_and_its_equations_survive_markdown(name):
    text = page(name)
    assert len(text.splitlines()) <= 80
    for found in EQUATION.finditer(text):
        equation = found[1] or found[2]
        assert not re.search(r"\\[^A-Za-z]", equation), equation
        assert equation.count("{") == equation.count("}"), equation


def test_the_map_has_every_folder_and_no_file_that_is_gone():
    place, named = [], set()
    for line in (ROOT / "README.md").read_text("utf-8").split("```\n")[-2].splitlines():
        entry, said = line[:22].rstrip(), line[22:]
        if entry:
            place[(len(entry) - len(entry.lstrip())) // 2 :] = [entry.strip()]
            assert ROOT.joinpath(*place).exists(), entry
            named.add("".join(place))
        for file in re.findall(r"[\w/]+\.py", said):
            assert ROOT.joinpath(*place, file).is_file(), f"{entry}: {file}"
        named |= {"".join(place) + folder for folder in re.findall(r"\w+/", said)}
    inits = [*ROOT.glob("simulator/**/__init__.py"), *ROOT.glob("validate/**/__init__.py")]
    assert {f"{each.parent.relative_to(ROOT)}/" for each in inits} <= named


def test_nothing_is_left_of_a_program_that_is_gone():
    known = {*PROGRAMS, "README"}
    assert {path.stem for path in build.PAGES.glob("*.md")} == known
    assert {path.stem for path in (ROOT / "scenarios/programs").glob("*.toml")} <= known
    shown = {
        file for name in known for file in build.figures(page(name), name).values()
    }  # every figure is on the page that it is made for
    assert {path.name for path in build.PAGES.glob("*.png")} == shown


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_shown_can_be_given(command):
    line = shlex.split(command, comments=True)[1:]
    line = line[: line.index(">")] if ">" in line else line
    group = typer.main.get_command(paceline.command_line.app)
    with group.make_context("paceline", line, resilient_parsing=True) as context:
        name, chosen, rest = group.resolve_command(context, line)
        options = chosen.make_context(name, rest).params
    if options.get("scenario") and not options["scenario"].startswith("my"):  # the reader's own
        load(options["scenario"], options["overrides"] or ())


def test_what_is_out_of_date_is_seen(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "PAGES", tmp_path)
    (tmp_path / "dts.md").write_text("a\n<!-- parameters -->\nold\n<!-- end -->\nb\n", "utf-8")
    assert build.main(["--check", "dts"]) == 1
    assert "dts.md" in capsys.readouterr().err
    new = build.filled((tmp_path / "dts.md").read_text("utf-8"), "parameters", "new")
    assert new == "a\n<!-- parameters -->\nnew\n<!-- end -->\nb\n"
    with pytest.raises(SystemExit):
        build.main(["--check", "no-such-program"])


def test_defaults_are_shown_as_a_scenario_writes_them():
    table = build.parameters(catalogue()["streaming-diloco"])
    assert '| `inner` | `{ kind = "adamw" }` | |' in table
    assert "| `tau` | required | steps |" in table
    assert '`"exact"`, `"lecture"`' in build.parameters(catalogue()["dts"])
    assert "| `alpha` | 0.9 / workers | |" in build.parameters(catalogue()["easgd"])
