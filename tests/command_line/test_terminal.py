"""What a terminal is owed: completion, silence, other words for a key, and counts as 1e3."""

import inspect
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import typer.main

import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load, parse
from paceline.simulator.reports import terminal
from paceline.simulator.scenario.scenario import json_schema
from paceline.simulator.studies import executors, size
from tests.command_line.test_command_line import run
from tests.helpers.cases import beside, looped
from tests.helpers.worlds import QUADRATIC, RING, scenario

OWN = beside(__file__, "own.toml")
FLOATS = {
    "1_000": "1e3", "workers = 4": "workers = 4.0", "= 40": "= 4e1", "[2, 4]": "[2.0, 4e0]",
    "= 4\ncodec": "= 4.0\ncodec",
}  # fmt: skip
OTHER = OWN
for whole, written in FLOATS.items():
    OTHER = OTHER.replace(whole, written)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "other.toml").write_text(OTHER)
    return tmp_path


def completed(monkeypatch, capsys, words):
    """Return what bash is offered for the last of `words`."""
    monkeypatch.setenv("_PACELINE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        paceline.command_line.run([])
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


@looped(
    ("words", "offered"),
    [
        ("paceline simu", ["simulate"]),
        ("paceline theory own.toml --quie", ["--quiet"]),
    ],
)
def test_a_shell_completes(words, offered, folder, monkeypatch, capsys):
    assert completed(monkeypatch, capsys, words) == offered


def test_the_script_for_a_shell_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    with suppress(SystemExit):  # some shells end the process, as typer sees fit
        paceline.command_line.run(["--show-completion", "bash"])
    assert "complete -o default -F _paceline_completion paceline" in capsys.readouterr().out


def test_every_command_can_be_quiet():
    commands = paceline.command_line.app.registered_commands
    assert len(commands) > 15
    for command in commands:
        assert "quiet" in inspect.signature(command.callback).parameters, command.name


def test_o_is_out_wherever_that_is_an_option_or_the_scenario_that_fit_writes():
    short = {}
    for name, command in typer.main.get_command(paceline.command_line.app).commands.items():
        for option in command.params:
            if "--out" in option.opts or "-o" in option.opts:
                short.setdefault(name, set()).update(option.opts)
    assert len(short) > 12
    assert all({"-o", "--out"} <= opts for opts in short.values())
    assert [name for name, opts in short.items() if opts != {"-o", "--out"}] == ["fit"]


@pytest.mark.parametrize("before", [True, False])
def test_quiet_writes_results_alone(before, folder, capsys):
    plain = "simulate", "own.toml", "--set", 'objective.kind="none"', "--out", "runs"
    loud = run(capsys, *plain)
    quiet = run(capsys, *(["-q", *plain] if before else [*plain, "--quiet"]))
    assert loud[2].startswith("paceline: --set objective.kind")
    assert quiet == (0, loud[1], "")

    status, _, error = run(capsys, "simulate", "gone.toml", "-q")
    assert (status, error.count("\n")) == (2, 1)


def test_jobs_have_one_default():
    actual = {
        str(parameter.default.default)
        for command in paceline.command_line.app.registered_commands
        for name, parameter in inspect.signature(command.callback).parameters.items()
        if name == "jobs"
    }
    assert actual == {"None"}
    assert not size.brief(load("quickstart"), None)
    small = scenario({"name": "ssgd", "lr": 0.1}, objective=QUADRATIC, network=RING)
    assert size.brief(small, 3)


def test_algorithms_is_another_word_for_programs(capsys):
    assert run(capsys, "list", "algorithms") == run(capsys, "list", "programs")


def test_theory_begins_with_its_answer():
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "theory", "adacomm/figure2"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
        cwd=Path(paceline.__file__).parents[1],
    )  # fmt: skip
    assert done.stdout.startswith("A delay of 1 step hides an average at every step.\ntau ")
    assert "\npaceline: tau_star" in done.stdout


@looped(
    ("old", "new", "says"),
    [
        ('dist = "gamma"', 'kind = "gamma"', ["cluster.compute = {", "dist = "]),
        ("tau = 4", "H = 4", ["algorithm[0].H = 4", "did you mean `tau`?"]),
        ("workers = 4", "workers = 4.5", ["cluster.workers = 4.5", "not a whole number"]),
        ("seeds = 2", "seeds = 0.0", ["run.seeds = 0", "too small"]),
    ],
)
def test_another_word_for_a_key_is_refused_with_the_right_one(old, new, says, folder):
    Path("both.toml").write_text(OWN.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        load("both.toml")
    assert [words for words in says if words not in str(refused.value)] == []


def test_whole_numbers_may_be_written_as_floats(folder):
    assert load("other.toml", ["run.seeds=1e0"]).table == load("own.toml", ["run.seeds=1"]).table


def test_a_program_of_ones_own_keeps_its_own_words():
    async def mine(me, *, lr: float, H: int, tau: int = 1):
        me.mark(me.start)

    table = {
        "model": {"parameters": 10},
        "objective": QUADRATIC,
        "cluster": {"workers": 2, "compute": "1 s"},
        "network": RING,
        "run": {"steps": 2},
        "algorithm": [{"name": "mine", "lr": 0.1, "H": 3}],
    }
    assert parse(table, programs={"mine": mine}).algorithm[0].parameters["H"] == 3


def test_counts_on_the_command_line(folder, capsys):
    status, _, error = run(capsys, "simulate", "own.toml", "--seeds", "1.5")
    assert status == 2
    assert "Invalid value for '--seeds'" in error


@looped("name", ["quickstrt.toml", "scenarios/quickstart", "runs/figure2"])
def test_an_unknown_file_suggests_a_shipped_one(name, capsys):
    status, _, error = run(capsys, "simulate", name)
    assert status == 2
    match = re.search(r"`(.*)`\? shipped scenarios: .* \(paceline list scenarios\)", error)
    assert ("figure2" if "figure" in name else "quickstart") in match[1]


def test_the_schema_has_one_word():
    law = json.dumps(json_schema()["$defs"]["Exponential"])
    assert '"dist"' in law
    assert '"kind"' not in law


def test_what_is_left_is_told_by_the_pace_of_each_part(monkeypatch, capsys):
    """A command that counts anew, as for the next condition, forgets how long the last one took."""
    executors.UNDER_WAY.set("")  # of earlier commands in this process
    now = iter([0, 0, 1000, 3000, 3000, 3020, 3060, 3080, 3120])
    monkeypatch.setattr(paceline.command_line.time, "monotonic", lambda: next(now))
    show = paceline.command_line._lines("training", "runs", paceline.command_line.Remaining(0.01))
    for done in (0, 5, 10, 0, 0, 0, 1, 2):
        show(done, 10)
    actual = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("paceline: training: ") for line in actual] == [
        "5 of 10 runs, about 17 min left", "0 of 10 runs", "0 of 10 runs",
        "2 of 10 runs, about 8 min left",
    ]  # fmt: skip


def test_no_number_is_cut_where_a_table_is_wider_than_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    table = terminal.headed("configuration", "cost", "days")
    table.add_row(
        "streaming-diloco tau=100", "123456789.0\n(123456780.0–123456799.5)", "12.25–13.75"
    )
    paceline.command_line._show([table])
    shown = capsys.readouterr().out
    for text in ("configuration", "streaming-diloco", "(123456780.0–123456799.5)", "12.25–13.75"):
        assert text in shown
    assert "…" not in shown
    monkeypatch.setenv("COLUMNS", "80")
    parameters = {"tau": {"default": "required", "unit": "steps of a worker between averages"}}
    about = {
        "name": "local-sgd",
        "summary": "Local steps. " * 9,
        "source": "arXiv 1810.08313, " * 3,
    }
    paceline.command_line._show([terminal.listing([about | {"parameters": parameters}])])
    shown = capsys.readouterr().out
    assert shown.count("1810.08313,") == 3
    assert max(map(len, shown.splitlines())) <= 80
