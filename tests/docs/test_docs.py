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
        (path.name, shown[1] or shown[2])
        for path in PAGES
        for shown in COMMAND.finditer(path.read_text("utf-8"))
    ]


def test_every_program_has_its_page():
    for name in PROGRAMS:
        text = page(name)
        assert text.startswith(f"# {name}\n")
        headings = re.findall("^## (.+)$", text, re.MULTILINE)
        assert headings[:3] == ["When to use it", "Parameters", "Reading the figure"], name
        assert headings[3:] in (["Paper"], ["Papers"]), name
        assert "$$" in text.split("## ")[0], name
        assert f"`paceline simulate programs/{name}`" in text, name
        assert f"]({name}.png)" in text, name


def test_parameters_and_results_of_pages_are_up_to_date():
    for name in PROGRAMS:
        text = page(name)
        assert build.main(["--check", name]) == 0, name
        assert all(f"| `{key}` |" in text for key in catalogue()[name].describe()), name
        labels = [algorithm.label for algorithm in scenario(name).algorithm]
        row = r"^\| (\S.*?)(?: \(a bound\))? \| [\d.]+ (?:ms|s|min) \|"
        assert re.findall(row, text, re.MULTILINE) == labels, name


def test_the_scenario_of_a_program_compares_it_with_something():
    for name in PROGRAMS:
        names = [algorithm.name for algorithm in scenario(name).algorithm]
        assert name in names
        assert len(names) > 1, name
        assert scenario(name).run.seeds == 4, name


def scenario(name):
    return load(f"programs/{name}")


def test_the_index_has_every_program_once():
    rows = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)\.md\) \|", page("README"), re.MULTILINE)
    assert sorted(rows) == [(name, name) for name in PROGRAMS]


def test_links_lead_somewhere():
    broken = []
    for path in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text("utf-8")):
            if "://" not in link and not (path.parent / link).is_file():
                broken.append((path.name, link))
    assert not broken


def test_source_files_that_are_named_exist():
    files = r"`((?:simulator|validate|paceline|tests|scenarios)/[\w./-]+)`"
    gone = [
        (path.name, name)
        for path in PAGES
        for name in re.findall(files, path.read_text("utf-8"))
        if not (ROOT / re.sub("[A-Z]{2}.*", "", name)).exists()
    ]
    assert not gone


def test_pages_of_programs_are_short_and_equations_survive_markdown():
    for name in PROGRAMS:
        text = page(name)
        assert len(text.splitlines()) <= 80, name
        for shown in EQUATION.finditer(text):
            equation = shown[1] or shown[2]
            assert not re.search(r"\\[^A-Za-z]", equation), equation
            assert equation.count("{") == equation.count("}"), equation


def test_the_map_has_every_folder_and_no_file_that_is_gone():
    place, named = [], set()
    for line in (ROOT / "README.md").read_text("utf-8").split("```\n")[-2].splitlines():
        entry, description = line[:22].rstrip(), line[22:]
        if entry:
            place[(len(entry) - len(entry.lstrip())) // 2 :] = [entry.strip()]
            assert ROOT.joinpath(*place).exists(), entry
            named.add("".join(place))
        for file in re.findall(r"[\w/]+\.py", description):
            assert ROOT.joinpath(*place, file).is_file(), f"{entry}: {file}"
        named |= {"".join(place) + folder for folder in re.findall(r"\w+/", description)}
    inits = [*ROOT.glob("simulator/**/__init__.py"), *ROOT.glob("validate/**/__init__.py")]
    assert {f"{init.parent.relative_to(ROOT)}/" for init in inits} <= named


def test_nothing_is_left_of_a_program_that_is_gone():
    names = {*PROGRAMS, "README"}
    assert {path.stem for path in build.PAGES.glob("*.md")} == names
    assert {path.stem for path in (ROOT / "scenarios/programs").glob("*.toml")} <= names
    shown = {
        file for name in names for file in build.figures(page(name), name).values()
    }  # every figure is on the page that it is made for
    assert {path.name for path in build.PAGES.glob("*.png")} == shown


def test_commands_that_are_shown_can_be_given():
    group = typer.main.get_command(paceline.command_line.app)
    for place, command in commands():
        line = shlex.split(command, comments=True)[1:]
        line = line[: line.index(">")] if ">" in line else line
        try:
            with group.make_context("paceline", line, resilient_parsing=True) as context:
                name, chosen, rest = group.resolve_command(context, line)
                options = chosen.make_context(name, rest).params
            path = options.get("scenario")
            if path and not path.startswith(("my", "SCENARIO")):  # the reader's own
                load(path, options["overrides"] or ())
        except Exception as error:
            pytest.fail(f"{place}: {command}: {error}")


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
