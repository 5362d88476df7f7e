"""The page of `paceline report`, read as a file and seen in a browser."""

import html
import json
import math
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import paceline
import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.reports.page import changes, reading
from paceline.simulator.reports.page.page import report
from paceline.simulator.reports.page.sections import ranking, series
from paceline.simulator.results import intervals, read, verdict, wording
from paceline.simulator.results.figures.chart import apart
from paceline.simulator.results.figures.curves import error_panel, in_picture, on_a_grid
from paceline.simulator.results.figures.interactive import literal
from paceline.simulator.results.figures.interactive import spec as described
from paceline.simulator.results.intervals import difference
from paceline.simulator.results.statistics import crossing, human, number
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.sweep import sweep
from paceline.simulator.studies.tune.figures import dominated, tradeoffs
from paceline.simulator.studies.tune.tune import tune
from paceline.validate.comparison.compare import compare
from tests.helpers.browser import CLASHES, PHONE, WIDTHS, Watched, barriers, chromium
from tests.helpers.cases import beside, looped
from tests.helpers.measured import given_as_real
from tests.helpers.processes import loaded
from tests.helpers.waiting import PATIENCE, wait_until
from tests.helpers.worlds import DIGITS, QUADRATIC, RING, TIME_ONLY, scenario

ROOT = Path(__file__).parents[2]
BAD = "</script><script>alert(1)</script><b>%{x}&lt;"
PAPER = 673  # pixels between the margins of A4
COMPUTE = {"dist": "shifted-exponential", "shift": "50 ms", "mean": "100 ms"}


def world(latency="20 ms", title="A world", label="local", **options):
    """Three algorithms on the digits: one changes its period, one has a server."""
    return scenario(
        {"name": "ssgd", "lr": 1.0},
        {"name": "adacomm", "tau0": 4, "interval": "3 s", "lr": 1.0, "label": label},
        {"name": "asgd", "lr": 0.2},
        **{
            "compute": COMPUTE,
            "network": RING | {"latency": latency},
            "objective": DIGITS,
            "steps": 120,
            "run": {"target_loss": 0.5},
            "title": title,
            **options,
        },
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def run(folder):
    simulate(world(), seeds=2, out=folder / "near")
    return folder / "near"


@pytest.fixture(scope="module")
def far(folder):
    simulate(world("80 ms"), seeds=2, out=folder / "far")
    return folder / "far"


@pytest.fixture(scope="module")
def evil(folder):
    simulate(world(title=BAD, label=BAD), seeds=1, out=folder / "evil")
    return folder / "evil"


@pytest.fixture(scope="module")
def validated(folder):
    """As validate writes it; what is measured here is a simulation with other seeds."""
    out = folder / "validated"
    simulate(world(), seeds=2, out=out / "predicted")
    simulate(world("25 ms"), seeds=2, seed=5, out=out / "measured")
    given_as_real(out / "measured")
    compare(out / "predicted", out / "measured").save(out)
    return out


@pytest.fixture(scope="module")
def tuned(folder):
    space = {"ssgd": {"lr": [0.02, 0.05]}, "local-sgd": {"lr": [0.05], "tau": [2, 8]}}
    priced = {"cost": {"node_hour": 2.0, "egress_per_gb": 90.0, "currency": "EUR"}}
    easy = world(objective=QUADRATIC, tune=space, run={"target_loss": 0.3}, **priced)
    tune(easy, seeds=3, out=folder / "tuned")
    return folder / "tuned"


@pytest.fixture(scope="module")
def swept(folder):
    points = {"network.latency": ["1 ms", "200 ms"]}
    sweep(world(steps=60), points, seeds=2, out=folder / "swept")
    return folder / "swept"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def text(*runs, out):
    return report(runs, out).read_text("utf-8")


def answer(path):
    (found,) = reading.read([path])
    return found


def figures(page):
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    return json.loads(found.group(1))


# What it says


def test_the_gap_is_paired_over_seeds(run):
    found = answer(run)
    times = {
        label: np.array([crossing(each, 0.5) for each in runs])
        for label, runs in found.main.runs.items()
    }
    best = times.pop(found.verdict["pick"])
    second = min(times, key=lambda label: times[label].mean())
    assert found.verdict["runner_up"] == second
    gap = difference(times[second], best)
    assert found.verdict["gap"]["value"] == pytest.approx(gap.value)
    assert found.verdict["gap"]["interval90"] == pytest.approx([*gap.interval])
    assert any(f"{second} is next, {gap.value:#.3g} s" in reason for reason in found.reasons)


def test_gradients_of_sampled_clients_are_kept_for_the_page(folder):
    plans = {"name": "fedavg", "tau": 4}, {"name": "fedbuff", "tau": 4, "buffer": 2}
    made = scenario(
        *plans, workers=9, objective=TIME_ONLY, network=RING, steps=None,
        cluster={"sampling": {"clients": 3}, "membership": {"daily": "00:00-06:00"}},
        run={"duration": "5 min"},
    )  # fmt: skip
    found = simulate(made, seeds=2, out=folder / "sampled")
    assert answer(folder / "sampled").verdict["measure"] == "seconds_per_gradient"
    runs = read.read(folder / "sampled").runs
    scores = [verdict.scored(each, "seconds_per_gradient") for each in (runs, found.groups)]
    assert scores[0] == scores[1]


def test_a_page_says_what_the_verdict_of_its_run_says(run, tuned, validated, swept, folder):
    for path in (run, tuned, validated, swept):
        found = answer(path)
        page = text(path, out=folder / f"answer-{found.name}.html")
        heading = re.search(r'class="verdict".*?<h2>(.*?)</h2>', page, re.S)[1]
        assert html.unescape(heading).replace("\xa0", " ") == found.verdict["sentence"]
        assert found.verdict["sentence"]
    validation = answer(validated)
    assert validation.comparison["sentence"] in validation.reasons


def test_a_sweep_of_one_algorithm_claims_no_winner(tmp_path):
    one = parse(world().table | {"algorithm": [{"name": "ssgd"}]})
    sweep(one, {"network.latency": ["1 ms", "200 ms"]}, seeds=2, out=tmp_path / "one")
    found = answer(tmp_path / "one").verdict
    assert (found["candidates"], found["decided"]) == (["ssgd"], True)


def test_the_axis_of_a_ranking_holds_every_bar(tuned):
    (figure,) = ranking(reading.read([tuned])[0].tune, 0).figures
    panel = figure.panel
    bars = panel.lines[0].x_bars[1]  # of the candidates
    assert panel.x.limits[0] < max(bars) < panel.x.limits[1]


def test_one_seed_is_not_sold_as_certain(evil):
    found = answer(evil).verdict
    assert found["would_decide"]["code"] == "one-seed"
    assert not found["decided"]


# Lines and labels


def test_lines_differ_without_their_colours(run):
    first = reading.read([run])[0]
    rows = {f"a tau={tau}": row for tau, row in enumerate([*first.main.rows.values()] * 20)}
    many = replace(first, sides={"predicted": replace(first.main, rows=rows)})
    lines = series([many])
    assert (
        len({(line.curves.look.dash, line.curves.look.symbol) for line in lines})
        == len(lines)
        == 60
    )
    assert [line.curves.name for line in lines[:2]] == ["tau=0", "tau=1"]


@looped(
    ("labels", "brief"),
    [
        (["a lr=1 tau=1", "a lr=1 tau=2"], ["tau=1", "tau=2"]),
        (["ssgd", "diloco tau=2"], ["ssgd", "diloco tau=2"]),
        (["a lr=f(x=1, y=2)", "a lr=f(x=2, y=2)"], ["lr=f(x=1, y=2)", "lr=f(x=2, y=2)"]),
        (["a", "a tau=2"], ["a", "a tau=2"]),
        (["a b", "b a"], ["a b", "b a"]),
        (["one"], ["one"]),
    ],
)
def test_labels_leave_out_what_all_share(labels, brief):
    assert apart(labels) == brief


def test_one_line_does_not_stretch_the_axis_of_all(run):
    time = np.linspace(0, 1, 100)
    fair = np.array([2 - time, 2.1 - time])
    noisy = fair.copy()
    noisy[0, 50] = 1e-7  # one moment of one seed
    lost = np.array([2 + 1e6 * time, 2 + 1e5 * time])
    shown = in_picture([(time, fair), (time, noisy), (time, lost)], "loss")
    assert 0.4 < shown.min() < 1.1
    assert shown.max() < 7
    falling = np.array([10 ** (-6 * time)])  # which is no noise
    assert in_picture([(time, fair), (time, falling)], "loss").min() < 2e-6
    assert in_picture([(time, lost)], "bytes").max() == lost.max()


# Trade-offs


@given(arrays(float, st.tuples(st.integers(1, 12), st.integers(2, 3)), elements=st.integers(0, 4)))
def test_what_no_other_beats_is_what_a_loop_over_all_finds(table):
    for row, beaten in zip(table, dominated(table), strict=True):
        others = [other for other in table if (other <= row).all() and (other < row).any()]
        assert beaten == bool(others)


def test_a_deadline_is_no_choice_of_time(tuned):
    (found,) = reading.read([tuned])
    ranking = [
        {
            "label": str(loss),
            "value": loss,
            "used": {"days": {"mean": days}, "cost": {"mean": cost}},
        }
        for loss, days, cost in ((1.0, 1.0, 9.0), (2.0, 1.5, 5.0), (3.0, 2.0, 6.0))
    ]
    (panel,) = tradeoffs({**found.tune, "objective": "loss-at-deadline", "ranking": ranking}).panels
    assert panel.x.title.startswith("cost")


# What it holds


def test_figures_are_what_plotly_knows(run, far, validated, tuned, swept, folder):
    from plotly import graph_objects

    page = text(run, far, validated, tuned, swept, out=folder / "all.html")
    found = figures(page)
    kinds = {name.partition("-")[0] for name in found}
    assert kinds == {"error", "ranking", "tradeoffs", "sweep"}
    plain = json.loads(re.sub(r'"--[a-z0-9/.-]+"', '"#123456"', json.dumps(found)))
    for spec in plain.values():
        graph_objects.Figure(spec["data"], spec["layout"])


def test_nothing_of_a_scenario_is_markup(evil, folder):
    page = text(evil, out=folder / "evil.html")
    assert BAD not in page
    assert page.count("<script") == 3
    for spec in figures(page).values():
        for trace in spec["data"]:
            assert "<b>" not in str(trace.get("name"))


def test_plotly_shows_a_literal_as_it_is():
    assert not re.search(r"<|>|%\{|&(?!#)", literal(BAD))


def test_the_data_stay_small(run, folder):
    assert len(json.dumps(figures(text(run, out=folder / "r.html")))) < 4e5
    first = series(reading.read([run]))[0]
    many = [first.curves._replace(key=str(number)) for number in range(100)]
    panel = error_panel(many, 0.5, "loss")
    assert len(json.dumps(described(panel))) < 1e6


def test_sampling_keeps_the_values(run):
    for line in series(reading.read([run])):
        for column in ("loss", "bytes"):
            time, values = on_a_grid(line.curves.runs, column)
            assert np.all(np.diff(time) > 0)
            first = max(each.curve["time"][1] for each in line.curves.runs)
            assert not ((time > time[0]) & (time < first)).any()  # nothing is invented there
            for each, seen in zip(line.curves.runs, values, strict=True):
                expected = np.interp(time, each.curve["time"], each.curve[column])
                np.testing.assert_allclose(seen, expected)


def test_same_runs_same_page(run, folder):
    assert text(run, out=folder / "a.html") == text(run, out=folder / "b.html")


def test_several_runs_are_named_before_their_algorithms(run, far, folder):
    page = text(run, far, out=folder / "two.html")
    document = compare(run, far, as_measured=True).json()
    assert any('network.latency ("20 ms" against "80 ms")' in note for note in document["notes"])
    assert "near: asgd" in page
    assert "far: asgd" in page


def test_without_loss_or_target_there_is_a_page(folder):
    """Time alone; everything at a standstill is refused nowhere either."""
    alone = scenario({"name": "ssgd"}, {"name": "asgd"}, objective=TIME_ONLY, network=RING)
    simulate(alone, seeds=2, out=folder / "alone")
    page = text(folder / "alone", out=folder / "alone.html")
    assert "Only times are compared" in page
    assert figures(page)["error"]["layout"]["yaxis"]["title"]["text"] == "local steps done"


# Where it goes, and what it refuses


def test_the_command_writes_into_the_first_run(run, far, capsys):
    assert paceline.command_line.run(["report", str(run), str(far), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(run / "report.html")}
    assert (run / "report.html").is_file()
    (run / "report.html").unlink()


def test_the_comparison_alone_has_a_page(validated, folder):
    compare(validated / "predicted", validated / "measured").save(folder / "compared")
    assert "times per step are off by" in text(folder / "compared", out=folder / "compared.html")


def test_a_run_given_twice_is_refused(run):
    with pytest.raises(InputError, match="given twice; give every RUN once"):
        report([run, run / "."])


def test_names_of_any_bytes_are_shown(tmp_path):
    file = os.fsdecode(b"caf\xe9.toml")
    sweep(parse(world().table, file=file), {"run.steps": [3, 4]}, seeds=1, out=tmp_path / "one")
    assert "caf?" in text(tmp_path / "one", out=tmp_path / "page.html")


def test_where_nothing_can_be_written_is_said(run, tmp_path):
    with pytest.raises(InputError, match="a directory; give the file to write"):
        report([run], tmp_path)


def test_no_matplotlib_is_needed(run, tmp_path):
    code = f"import paceline\npaceline.report([{str(run)!r}], {str(tmp_path / 'x.html')!r})"
    assert loaded(code, "matplotlib", "torch", "sklearn", "plotly.graph_objects") == []


# In a browser


def show(browser, path, **options):
    """Open a page; return it and what it says and asks for."""
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(1000 * PATIENCE)
    watched = Watched(page)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    return page, watched


def shown(page, figure):
    """Names of the lines that a figure shows."""
    code = """id => document.getElementById(id)._fullData
        .filter(t => t.meta === "mean" && t.visible === true).map(t => t.name)"""
    return page.evaluate(code, f"plot-{figure}")


@pytest.fixture
def page_of(browser, folder):
    """Write a page of RUNs and open it."""
    pages = []

    def opened(*runs, **options):
        page, watched = show(
            browser, report(runs, folder / "shown.html", overwrite=True), **options
        )
        pages.append(page)
        return page, watched

    yield opened
    for page in pages:
        page.close()


@pytest.mark.browser
def test_it_opens_offline_without_complaint(run, far, validated, tuned, swept, page_of, folder):
    page, watched = page_of(run, far, validated, tuned, swept)
    assert watched.said == []
    assert watched.asked == [(folder / "shown.html").as_uri()]
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p.querySelector('.main-svg') !== null)"
    )
    assert len(drawn) >= 4
    assert all(drawn)


@pytest.mark.browser
def test_requests_are_forbidden(run, page_of):
    page, watched = page_of(run)
    assert (
        page.evaluate("fetch('https://example.com').then(() => 'came', () => 'refused')")
        == "refused"
    )
    assert all("Content Security Policy" in said for said in watched.said)


@pytest.mark.browser
def test_switches_work(run, page_of):
    page, watched = page_of(run)
    error = page.locator("figure", has=page.locator("#plot-error"))
    assert shown(page, "error") == ["ssgd lr=1.0", "local", "asgd lr=0.2"]
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    button = error.get_by_role("button", name="local")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert shown(page, "error") == ["ssgd lr=1.0", "asgd lr=0.2"]
    button.click()
    assert len(shown(page, "error")) == 3
    assert watched.said == []


@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_or_covered_or_out_of_reach(
    width, run, far, tuned, swept, validated, page_of
):
    page, watched = page_of(
        run, far, tuned, swept, validated, viewport={"width": width, "height": 900}
    )
    assert page.evaluate(CLASHES) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.said == []
    assert barriers(page) == []


@pytest.mark.browser
def test_a_phone_has_room(run, far, tuned, validated, page_of):
    page, watched = page_of(run, far, tuned, validated, viewport=PHONE)
    code = (
        "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length"
    )
    assert page.evaluate(code) == 0  # no column of a table runs off
    assert watched.said == []


def luminance(colour):
    parts = np.array([int(each) for each in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    """WCAG 2.2, 1.4.3."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


COLOURS = """() => {
    const of = (selector, what) => getComputedStyle(document.querySelector(selector))[what];
    return {
        page: of("body", "backgroundColor"), card: of(".verdict", "backgroundColor"),
        body: of("body", "color"), lead: of(".lead", "color"), head: of("h1", "color"),
        because: of(".verdict p", "color"), axis: of("#plot-error .xtick text", "fill"),
        line: of("#plot-error .scatterlayer .js-line", "stroke"),
    };
}"""


def after(page, before):
    """Colours once the page has been told that they are to change, and figures have followed."""
    wait_until(lambda: page.evaluate(COLOURS)["axis"] != before["axis"])
    return page.evaluate(COLOURS)


@pytest.mark.browser
def test_text_is_readable_in_light_and_dark(run, page_of):
    page, watched = page_of(run)
    light = page.evaluate(COLOURS)
    page.emulate_media(color_scheme="dark")
    dark = after(page, light)
    assert luminance(light["page"]) > 0.9
    assert luminance(dark["page"]) < 0.02
    for colours in (light, dark):
        for name in ("body", "lead", "head", "because", "axis"):
            assert contrast(colours[name], colours["page"]) >= 4.5, name
        assert contrast(colours["because"], colours["card"]) >= 4.5
        assert contrast(colours["line"], colours["page"]) >= 3  # WCAG 1.4.11
    assert watched.said == []


@pytest.mark.browser
def test_print_is_light_and_has_no_controls(run, page_of):
    page, _ = page_of(run, color_scheme="dark")
    dark = page.evaluate(COLOURS)
    page.set_viewport_size({"width": PAPER, "height": 900})
    page.emulate_media(media="print")
    found = after(page, dark)
    assert luminance(found["page"]) > 0.9
    assert contrast(found["axis"], "rgb(255, 255, 255)") >= 4.5
    for summary in page.locator("summary").all():  # only headings of sections, which are open
        assert summary.is_visible() == bool(summary.locator("h2").count())
    tables = [table.bounding_box() for table in page.locator("table").all()]
    assert max(box["x"] + box["width"] for box in tables) <= PAPER
    svgs = page.locator(".plot .main-svg").all()
    assert max(svg.bounding_box()["width"] for svg in svgs) <= 700
    assert page.pdf(format="A4")


@pytest.mark.browser
def test_a_title_that_is_a_script_is_text(evil, page_of):
    asked = []
    page, watched = page_of(evil)
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    assert page.locator("h1").inner_text() == BAD
    assert page.locator(".legend button", has_text="alert(1)").count() >= 1
    assert (asked, watched.said) == ([], [])


@pytest.mark.browser
def test_screenshot_for_the_docs(page_of, run, folder):
    """With PACELINE_SCREENSHOTS the page of the quickstart is kept in docs/screenshots."""
    kept = os.environ.get("PACELINE_SCREENSHOTS")
    shot = folder / "report.png"
    if kept:
        run = folder / "quickstart"
        simulate("quickstart", seeds=4, out=run)
        shot = ROOT / "docs" / "screenshots" / "report.png"
        shot.parent.mkdir(exist_ok=True)
    page, _ = page_of(run, viewport={"width": 1280, "height": 1400})
    page.screenshot(path=shot)
    assert shot.stat().st_size > 20_000


def test_what_would_change_it_is_what_longer_simulations_say(folder):
    """Constant times, so that the short simulations of the page are exact."""
    plans = {"name": "ssgd"}, {"name": "local-sgd", "tau": 8}
    parts = {"workers": 4, "compute": "1 s", "objective": QUADRATIC, "steps": 400}
    model = {"model": {"parameters": 10_000_000}, "cost": {"currency": "USD", "node_hour": 2.0}}
    line = {"latency": "1 ms", "bandwidth": "1 Gbit/s"}
    simulate(scenario(*plans, network=line, **parts, **model), seeds=1, out=folder / "line")
    section = changes.section(answer(folder / "line"), 0)
    (table,) = section.tables
    rows = {row[0]: row[1:] for row in table.rows}
    slower = scenario(*plans, network=line | {"bandwidth": "500 Mbit/s"}, **parts, **model)
    expected = {row["label"]: row for row in simulate(slower, seeds=1).algorithms}
    for label, cell in zip(table.columns[1:], rows["half the bandwidth"], strict=True):
        cost = expected[label]["used"]["cost"]["mean"]
        assert cell == f"{human(expected[label]['duration'])}, {number(cost)} USD"
    assert {"as simulated", "twice the latency", "twice the price of time"} <= {*rows}
    measured = answer(folder / "line")
    foreign = replace(measured.main, table=measured.main.table | {"network": {"platform": "x.xml"}})
    assert changes.section(replace(measured, sides={"predicted": foreign}), 0) is None


def test_what_would_change_it_reads_files_below_the_working_directory_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.csv").write_text("seconds\n1.0\n1.2\n")
    plans = [{"name": "ssgd"}, {"name": "local-sgd", "tau": 8}]
    line = {"latency": "1 ms", "bandwidth": "1 Gbit/s"}
    table = scenario(*plans, objective=TIME_ONLY, steps=400, network=line).table
    table["cluster"]["compute"] = {"dist": "empirical", "file": "times.csv"}
    made = parse(table, file="named.toml")
    simulate(made, seeds=1, out="run")
    (found,) = reading.read([tmp_path / "run"])
    assert changes.section(found, 0).tables[0].rows[0][0] == "as simulated"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert changes.section(found, 0) is None


def test_a_margin_and_a_row_have_the_interval_of_the_terminal(folder):
    """Seeds agree, and links are known from published hosts: the margin is no surer than rows."""
    line = {"latency": "60 us", "bandwidth": "25 Gbit/s", "transport": "tcp", "library": "nccl"}
    made = scenario(
        {"name": "ssgd"}, {"name": "local-sgd", "tau": 8}, workers=2, objective=TIME_ONLY,
        network=line, model={"parameters": 304_000_000}, compute="0.4 s",
    )  # fmt: skip
    found = simulate(made, seeds=2, out=folder / "sockets")
    paces = [row["seconds_per_step"] for row in found.algorithms]
    low, high = paces[0]["interval90"]
    gap = paces[0]["mean"] - paces[1]["mean"]
    above = math.hypot(high - paces[0]["mean"], paces[1]["mean"] - paces[1]["interval90"][0])
    known = answer(folder / "sockets").verdict["gap"]
    assert known["value"] == pytest.approx(gap)
    assert known["interval90"][1] == pytest.approx(gap + above, rel=0.35)
    report([folder / "sockets"], folder / "sockets.html")
    page = (folder / "sockets.html").read_text("utf-8")
    assert paces[0]["mean"] < 1  # the unit is that of the mean
    assert f"({1e3 * low:.0f}–{1e3 * high:.0f})" in page
    assert "s/step (90\xa0%)" in page


def test_times_to_a_loss_have_the_terminal_s_interval_and_clients_their_own_time(folder):
    """Seeds hardly differ, the loss may; and sampled clients are elsewhere most of the time."""
    made = parse(tomllib.loads(beside(__file__, "nights.toml")))
    found = simulate(made, seeds=2, out=folder / "nights")
    (row,) = found.algorithms
    (low, high), size = row["time_to_target"]["interval90"], 3600.0
    report([folder / "nights"], folder / "nights.html")
    page = (folder / "nights.html").read_text("utf-8")
    ends = f"{number(low / size)} to {number(high / size)} h"
    assert found.verdict.sentence.count(f"90 %: {ends}") == 1
    own = intervals.stated(row["time_to_target"], one_run=True)
    assert wording.cell(own, "s").replace(" (", "\n(") in page
    (line,) = series(reading.read([folder / "nights"]))
    (mark,) = [each for each in error_panel([line.curves], 5.2, "loss").lines if each.x_bars]
    assert mark.x_bars[1] == [pytest.approx(own.span[1] / size)]
    row["time_to_target"]["interval90"] = [low, None]  # some draw never reaches the target
    mark = described(error_panel([line.curves._replace(row=row)], 5.2, "loss"))["data"][-1]
    assert math.isfinite(mark["error_x"]["array"][0])
