"""Figures and timelines: what they show, and that the same runs give the same bytes."""

import contextlib
import json
import math

import numpy as np
import pytest

from paceline.simulator.results import intervals, store
from paceline.simulator.results.figures import curves, drawing, interactive, style
from paceline.simulator.results.run import FIRST, SPAN, Kind, trace
from tests.helpers.cases import looped
from tests.results.test_staleness import lines
from tests.results.test_statistics import make_run

pytestmark = pytest.mark.usefixtures("figures")

NAN = math.nan


def falling(label, *, end=100.0, low=0.05, seeds=3, points=30):
    """Runs whose loss falls exponentially from 2 to about `low` at `end` seconds."""
    runs = []
    for seed in range(seeds):
        time = np.linspace(0, end * (1 + 0.05 * seed), points)
        loss = 2 * (low / 2) ** (time / time[-1]) * (1 + 0.02 * seed)
        runs.append(make_run(loss, time=time, label=label, seed=seed, tau=np.ones(points)))
    return runs


def texts(axes):
    return [text.get_text() for text in axes.texts]


def named(axes):
    """The entries of the legend."""
    return {text.get_text() for text in axes.get_legend().get_texts()}


def draw(chart):
    figure = drawing.draw(chart)
    figure.draw_without_rendering()
    return figure, figure.axes[0]


def chart(groups, rows=(), **options):
    shown = curves.of_groups(groups, rows)
    return curves.error(shown, **({"title": "A title", "target": None} | options))


GROUPS = {name: falling(name, end=end) for name, end in (("ssgd", 400), ("local", 100))}


@looped("formats", [None, ("pdf",)])
def test_every_figure_in_every_format(formats):
    groups = GROUPS | {"adacomm": [make_run([2, 1, 0.1], label="adacomm", tau=[NAN, 8, 1])]}
    groups["adacomm"][0].staleness = {0: 2, 5: 1}
    with style.formats(formats) if formats else contextlib.nullcontext():
        files = curves.figures(lines(groups), title="A title", target=0.1)
        assert curves.figures(lines(groups), title="A title", target=0.1) == files
    kinds = formats or ("png", "svg")
    assert set(files) == {f"{name}.{kind}" for name in store.FIGURES for kind in kinds}
    assert all(data.startswith(b"\x89PNG") for name, data in files.items() if name.endswith("png"))
    assert all(b"<svg" in data for name, data in files.items() if name.endswith("svg"))
    assert all(data.startswith(b"%PDF") for name, data in files.items() if name.endswith("pdf"))
    assert style.CHOSEN.get() == ("png", "svg")


def test_lines_are_named_and_seeds_shown():
    _, axes = draw(chart(GROUPS, target=0.1, loss="training loss"))
    assert named(axes) == {"ssgd", "local", "target 0.1"}
    assert "mean of 3 seeds; band: 90 %" in texts(axes)
    assert axes.get_xlabel() == "wall-clock time (min)"
    assert axes.get_ylabel() == "training loss"
    assert len(axes.collections) == 2  # a band each
    _, alone = draw(chart({"ssgd": falling("ssgd", seeds=1)}))
    assert "one seed" in texts(alone)
    assert not alone.collections


def test_both_renderers_draw_the_mean_and_the_interval_that_tables_state():
    runs = [make_run([1.0, level], label="x", seed=s) for s, level in enumerate([0.8, 0.9, 0.4])]
    row = {"label": "x", "loss": {"last": 0.7}, "interval90": {"loss": [0.35, 1.4]}}
    of_seeds = intervals.estimate([0.8, 0.9, 0.4]).interval
    for rows, ends in (((), of_seeds), ([row], (0.35, 1.4))):  # a model adds its error
        described = chart({"x": runs}, rows=rows)
        (line,) = described.panels[0].lines
        actual = line.band[0][-1], line.y[-1], line.band[1][-1]
        assert actual == pytest.approx((ends[0], 0.7, ends[1]))
        assert described.panels[0].y.limits[0] < ends[0] < ends[1] < described.panels[0].y.limits[1]
        _, axes = draw(described)
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), line.y)
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        band, mean = interactive.traces(described.panels[0])
        assert mean["y"] == pytest.approx(line.y, rel=1e-4)
        for drawn in (edges, band["y"]):
            assert min(drawn) == pytest.approx(ends[0], rel=1e-4)


def test_wide_ranges_ask_for_logarithmic_axes():
    for low, log in ((0.5, False), (0.01, True)):
        assert chart({"x": falling("x", low=low)}).panels[0].y.log == log
    for ends, log in (((100, 400), False), ((1, 4000), True)):
        described = chart({str(end): falling(str(end), end=end) for end in ends}, target=0.1)
        assert described.panels[0].x.log == log
        assert draw(described)[1].get_xscale() == ("log" if log else "linear")


def test_a_curve_begins_with_its_first_evaluation_and_the_axis_shows_how_it_ends():
    fast = [make_run([10.0, 2.6, 2.4, 2.3], time=[0, 1, 2, 3], label="fast")]
    slow = [make_run([10.0, 2.6, 2.4, 2.3], time=[0, 20, 40, 60], label="slow")]
    panel = chart({"fast": fast, "slow": slow}).panels[0]
    assert panel.x.log
    assert [line.x[0] for line in panel.lines] == pytest.approx([1, 20], abs=1e-9)
    assert panel.x.limits == pytest.approx((1, 60))
    assert panel.y.limits[1] < 3  # the candidates, not the start


def test_figures_for_papers_have_type_42_fonts_and_a_size():
    figure = drawing.draw(chart(GROUPS), (3.3, 2.4))
    pdf = drawing.encode(chart(GROUPS), "pdf")
    assert figure.get_size_inches() == pytest.approx([3.3, 2.4])
    assert b"/Type3" not in pdf
    assert b"/CIDFontType2" in pdf


def test_a_target_outside_the_curves_is_in_the_picture():
    low, high = draw(chart(GROUPS, target=0.001))[1].get_ylim()
    assert low < 0.001 < high


def test_a_diverging_line_does_not_flatten_the_others():
    for worst in (1e30, math.inf, NAN):
        losses = [2.0, 50.0, worst]
        bad = [make_run(losses, time=[0, 50, 100], label="bad", seed=s) for s in range(2)]
        assert chart(GROUPS | {"bad": bad}).panels[0].y.limits[1] < 20, worst


def test_without_a_loss_the_steps_are_drawn():
    (panel,) = chart({"x": [make_run([NAN] * 3, label="x")]}, target=0.1).panels
    assert panel.y.title == "local steps done"
    assert panel.lines[0].y[-1] == 10


def test_unusual_runs_can_be_drawn():
    losses = ([1.0], [1.0, 1.0], [0.0, 0.0], [-1.0, -2.0], [0.0, 1e-3, 2e-3], [1e-9, 1e9])
    for loss in losses:
        assert curves.figures(lines({"x": [make_run(loss, label="x")]}), title="", target=0.5), loss


def test_dollars_and_underscores_are_not_mathematics():
    groups = {"a $x_1 $": falling("a $x_1 $")}
    assert curves.figures(lines(groups), title="$5 or 6_$", target=0.1)


def test_long_labels_take_two_lines():
    long = "adacomm lr=4.0 tau0=16 interval=5 s gamma=0.5"
    assert style.folded(long) == "adacomm lr=4.0 tau0=16\ninterval=5 s gamma=0.5"
    for short in ("local-sgd tau=10", "x" * 50):
        assert style.folded(short) == short
    _, axes = draw(chart({long: falling(long)}))
    assert named(axes) == {style.folded(long)}


def test_tau_is_drawn_where_it_changes():
    fixed = [make_run(label="fixed", tau=[NAN, 4, 4])]
    assert curves.tau(curves.of_groups({"fixed": fixed}), title="") is None
    adaptive = [make_run(label="adaptive", tau=[NAN, NAN, 8, 2], loss=[1.0] * 4)]
    groups = curves.of_groups({"fixed": fixed, "adaptive": adaptive})
    (panel,) = curves.tau(groups, title="").panels
    (line,) = panel.lines
    assert line.name == "adaptive"
    assert {*line.y[np.isfinite(line.y)]} == {8.0, 2.0}  # held between evaluations


def traced(label):
    run = make_run(label=label, seed=4)
    run.spans = np.array(
        [
            (0, Kind.COMPUTE, 0.0, 0.5, 1),
            (1, Kind.WAIT, 0.25, 0.5, 1),
            (2, Kind.SERVE, 0.5, 0.75, 0),
            (1, Kind.DOWN, 0.5, 1.0, 1),
        ],
        dtype=SPAN,
    )
    return run


def test_timeline_events():
    document = trace({"asgd": [traced("asgd"), make_run()], "none": [make_run()]})
    events = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    first = FIRST
    assert names == {(first, 0): "worker 0", (first, 1): "worker 1", (first, 2): "server"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["asgd"]
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        (0, "compute", 0.0, 500_000.0),
        (1, "wait", 250_000.0, 250_000.0),
        (2, "serve", 500_000.0, 250_000.0),
        (1, "down", 500_000.0, 500_000.0),
    ]
    assert document["otherData"] == {"asgd": "seed 4"}


def test_a_cut_timeline_says_so():
    run = traced("asgd")
    run.spans_truncated = True
    events = trace({"asgd": [run]})["traceEvents"]
    assert events[0]["args"]["name"] == "asgd (only the beginning)"
