"""Tables on a narrow terminal."""

import re
from io import StringIO

from rich.console import Console

import paceline
from paceline.simulator.reports import terminal
from paceline.simulator.results import wording
from paceline.simulator.results.intervals import stated
from tests.helpers.cases import beside

SCENARIO = beside(__file__, "tables.toml")


def printed(*tables: object) -> str:
    """Return tables as a terminal of 80 columns shows them."""
    out = StringIO()
    Console(file=out, width=80).print(*tables)
    return out.getvalue()


def test_no_name_is_cut_however_wide_the_intervals(tmp_path):
    (tmp_path / "a.toml").write_text(SCENARIO, "utf-8")
    scenario = paceline.load(tmp_path / "a.toml")
    axes = {"network.latency": ["10 ms", "20 ms"], "network.bandwidth": ["10 Mbit/s", "1 Gbit/s"]}
    swept = printed(terminal.sweep(paceline.sweep(scenario, axes, out=tmp_path / "sweep")))
    assert "(median" in swept
    assert "local-sgd" in swept
    assert "\N{HORIZONTAL ELLIPSIS}" not in swept
    actual = printed(*terminal.tune(paceline.tune(scenario, trials=4, out=tmp_path / "tune")))
    assert "tau=" in actual
    assert "\N{HORIZONTAL ELLIPSIS}" not in actual


def test_a_sweep_shows_a_parameter_only_of_the_program_that_has_it(tmp_path):
    both = SCENARIO + '[[algorithm]]\nname = "ssgd"\nlr = 0.1\n'
    (tmp_path / "a.toml").write_text(both, "utf-8")
    axes = {"algorithm.local-sgd.tau": [4, 8]}
    swept = terminal.sweep(paceline.sweep(paceline.load(tmp_path / "a.toml"), axes))
    tau, programs = ([*column.cells] for column in swept.columns[:2])
    assert [*zip(tau, programs, strict=True)] == [
        ("4", "local-sgd"), ("-", "ssgd"), ("8", "local-sgd")
    ]  # fmt: skip


def test_one_seed_has_no_heading_of_intervals(tmp_path):
    (tmp_path / "a.toml").write_text(SCENARIO, "utf-8")
    shown = printed(terminal.summary(paceline.simulate(tmp_path / "a.toml", seeds=1)))
    assert "to loss 0.5" in shown
    assert "%)" not in shown


def test_an_interval_is_in_the_unit_of_its_mean():
    for value, ends, text in (
        (53.0, [52.3, 13_248.0], "53.0 s (52.3–13248)"),
        (2500.0, [3139.2, None], "41.7 min (> 52.3)"),
        (0.2, [0.1, 1.5], "200 ms (100–1500)"),
        (2.0, [1.999, 2.001], "2.00 s"),
    ):
        estimate = stated({"mean": value, "interval": ends})
        assert wording.cell(estimate, "s") == text


def test_shares_of_time_that_say_nothing_are_no_table():
    def tables(compute):
        rest = {"wait": 0.01, "communicate": 0.0, "lost": 0.0, "absent": 0.62, "unselected": 0.35}
        return terminal.spent([{"label": "a", "breakdown": {"compute": compute, **rest}}])

    assert (len(tables(0.01)), len(tables(0.03))) == (0, 1)


def test_the_numbers_of_the_answer_are_in_the_table(tmp_path):
    endless = SCENARIO.replace("target_loss = 0.5", "")
    assert endless != SCENARIO
    other = '[[algorithm]]\nname = "ssgd"\nlr = 0.1\n'
    for text in (endless, endless.replace('kind = "quadratic"', 'kind = "none"')):
        (tmp_path / "a.toml").write_text(text + other, "utf-8")
        result = paceline.simulate(tmp_path / "a.toml", seeds=4)
        shown, sentence = printed(terminal.summary(result)), result.verdict.sentence
        numbers = re.findall(r"\d+\.\d+", sentence.removeprefix(result.verdict.pick))
        assert len(numbers) > 1
        assert [number for number in numbers if number not in shown] == [], (sentence, shown)
