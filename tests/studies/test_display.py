"""Results show, plot, tabulate and keep themselves, each in the same way."""

import pickle
import re
import sys

import numpy as np
import pytest
from matplotlib.axes import Axes

import paceline
from paceline.simulator.studies import display
from tests.helpers.cases import looped
from tests.helpers.worlds import QUADRATIC, scenario

TYPES = ("Result", "TuneResult", "SweepResult", "SolveResult", "Comparison")


def world(**tables):
    run = {"steps": 40, "target_loss": 0.5, "evaluate_every": 2, "seeds": 3}
    return scenario(
        {"name": "ssgd"}, {"name": "local-sgd", "tau": 4},
        compute={"dist": "exponential", "mean": "1 s"}, network={"latency": "1 s"},
        steps=None, objective=QUADRATIC, lr=0.1, title="A <world>",
        run=run, tune={"ssgd": {"lr": [0.05, 0.1]}, "local-sgd": {"tau": {"low": 2, "high": 8}}},
        **tables,
    )  # fmt: skip


class Made(dict):
    """Results by type, each made when it is first asked for."""

    def __init__(self, out):
        self.out = out

    def __missing__(self, name):
        base, one, other = world(), self.out / "one", self.out / "other"
        if name == "Comparison" and not one.exists():
            paceline.simulate(base, out=one)
            paceline.simulate(base, seed=3, out=other)
        condition = "seconds_per_step <= 8 s"
        points = {"network.latency": ["1 s", "2 s"], "cluster.workers": [2, 4]}
        how = {
            "Result": lambda: paceline.simulate(base),
            "TuneResult": lambda: paceline.tune(base, seeds=2, trials=6),
            "SweepResult": lambda: paceline.sweep(base, points, seeds=2),
            "SolveResult": lambda: paceline.solve(base, "network.latency", condition),
            "Comparison": lambda: paceline.compare(one, other, as_measured=True),
        }
        self[name] = how[name]()
        return self[name]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("runs"))


@looped("kind", TYPES)
def test_a_repr_is_a_few_short_lines(kind, results):
    result = results[kind]
    lines = repr(result).splitlines()
    assert 1 < len(lines) <= 3
    assert max(map(len, lines[1:])) <= display.LINE
    assert lines[0].startswith(f"<{type(result).__name__}: ")


@looped("kind", TYPES)
def test_a_notebook_gets_an_answer_and_a_figure_without_any_other_file(kind, results):
    result = results[kind]
    page = result._repr_html_()
    assert page.count("<img") == 1
    assert all(
        item.startswith("data:image/svg+xml;base64,") for item in re.findall('src="([^"]*)"', page)
    )
    assert not re.search(r"https?://|<script|<link|<world>", page)


@looped("kind", TYPES)
def test_the_figure_is_the_chart_and_pyplot_shows_it(kind, results, monkeypatch):
    result = results[kind]
    monkeypatch.setenv("MPLBACKEND", "agg")
    import matplotlib.pyplot as plt

    axes = result.plot()
    assert isinstance(axes, Axes)
    assert axes.figure.number in plt.get_fignums()
    plt.close("all")
    lines = {line.get_label(): line for line in axes.lines}
    described = [line for line in result._chart().panels[0].lines if line.named]
    assert described
    for line in described:
        drawn = lines[line.name].get_xdata(), lines[line.name].get_ydata()
        np.testing.assert_allclose(np.array(drawn, float), [line.x, line.y])


def alike(one, other):
    """Rows that are equal, as whole floats are to whole numbers, and nan to nan."""
    np.testing.assert_equal(one, other)
    return True


@looped("kind", TYPES)
def test_a_pickled_result_comes_back(kind, results):
    result = results[kind]
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == repr(result)
    assert again._repr_html_() == result._repr_html_()
    assert alike(again.records(), result.records())


@looped("kind", TYPES)
def test_records_become_a_data_frame(kind, results, monkeypatch):
    pytest.importorskip("pandas")
    actual, rows = results[kind].to_pandas(), results[kind].records()
    assert (len(actual), [*actual.columns]) == (len(rows), [*rows[0]])
    for key in (key for key, row in rows[-1].items() if isinstance(row, float)):
        np.testing.assert_equal(float(actual[key].to_list()[-1]), rows[-1][key])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(paceline.InputError, match=r'pip install "paceline\[pandas\]"'):
        results[kind].to_pandas()


def test_a_figure_for_a_paper_has_its_size_and_no_band(results):
    axes = results["Result"].plot(size=(3.3, 2.4), band=False)
    assert axes.figure.get_size_inches() == pytest.approx([3.3, 2.4])
    assert "PolyCollection" not in str([type(drawn) for drawn in axes.collections])


def test_a_report_is_the_path_of_a_page(results):
    made = results["Comparison"]
    path = paceline.report([made.predicted.path])
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
