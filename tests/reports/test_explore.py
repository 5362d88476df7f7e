"""`paceline explore`: what sliders write, what previews are, and the page in a real browser."""

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tomllib
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.distributions.parametric import (
    Constant,
    Exponential,
    Gamma,
    LogNormal,
    ShiftedExponential,
    Uniform,
)
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load
from paceline.simulator.reports.explore import (
    address,
    export,
    pool,
    previews,
    scales,
    serve,
    spread,
    words,
)
from paceline.simulator.reports.explore.controls import changed, controls
from paceline.simulator.reports.explore.views import Explorer
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.theory import theory
from tests.helpers.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
QUICK = "adacomm/figure3"
SHIPPED = [QUICK, "quickstart", "four-continents", "clouds", "dts/delay", "programs/k-sync"]
SHOT = ROOT / "docs" / "screenshots" / "explore.png"


class Now(Executor):
    """Runs everything at once, in this very thread."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Never(Executor):
    """Begins nothing."""

    def submit(self, fn, /, *args, **kwargs):
        return Future()


@pytest.fixture(autouse=True)
def _as_urgent(monkeypatch):
    """`Now` computes in this process, which is to stay as urgent as it is."""
    monkeypatch.setattr(pool, "NICE", 0)


def sliders(name):
    scenario = load(name)
    return scenario, controls(scenario, Path(scenario.file).parent)


# what sliders write


@pytest.mark.parametrize("name", SHIPPED)
def test_every_slider_begins_at_the_scenarios_own_and_its_ends_are_accepted(name):
    scenario, found = sliders(name)
    assert found
    for control in found:
        assert control.own in control.texts
        steps = [control.read(text) for text in control.texts]
        assert steps == sorted(set(steps))
        for text in (control.texts[0], control.texts[-1]):
            changed(scenario, control.changes(text), Path(scenario.file).parent)


def test_sliders_are_those_that_the_scenario_has():
    assert [control.name for control in sliders(QUICK)[1]] == [
        "average", "straggling", "workers", "tau", "lr",
    ]  # fmt: skip
    assert [control.name for control in sliders("four-continents")[1]] == [
        "latency", "bandwidth", "straggling", "workers", "tau", "delay", "lr",
    ]  # fmt: skip
    assert "lr" not in [control.name for control in sliders("dts/latency")[1]]


def test_where_places_agree_a_slider_shows_their_value_else_a_factor():
    _, found = sliders("quickstart")
    tau, latency = (next(k for k in found if k.name == name) for name in ("tau", "latency"))
    assert tau.factor
    assert tau.changes("2") == {("algorithm", 1, "tau"): 16, ("algorithm", 2, "tau0"): 32}
    assert not latency.factor
    assert latency.changes("33 ms") == {("network", "latency"): "33 ms"}


@given(
    st.sampled_from([
        Constant(value="2 s"), Exponential(mean="2 s"), Gamma(mean="2 s", shape=3.0),
        ShiftedExponential(shift="1 s", mean="2 s"), LogNormal(mean="2 s", sd="1 s"),
        Uniform(low="1 s", high="3 s"),
    ]),
    st.floats(0.01, 0.5),
)  # fmt: skip
def test_a_wider_spread_keeps_the_mean(law, to):
    wide = spread.widened(law, to)
    assert wide.expectation == pytest.approx(2.0)
    assert spread.of(wide) == pytest.approx(to)
    again = type(wide).model_validate(spread.table(wide))
    assert again.expectation == pytest.approx(2.0)
    assert spread.of(again) == pytest.approx(to)


@given(st.floats(1e-6, 1e3), st.sampled_from(["time", "bandwidth", "number"]))
def test_values_are_written_as_they_are_read(value, kind):
    assert scales.read(scales.write(value, kind), kind) == pytest.approx(value, rel=1e-3)


# addresses


def test_an_address_holds_the_state():
    _, found = sliders("quickstart")
    state = {"latency": "33 ms", "workers": "12", "lr": "0.5"}
    assert address.read(address.write(state), found) == (state, [])


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("latency=33", "not a time; write a time with its unit"),
        ("latency=3 Mbit/s", "not a time"),
        ("latency=-1 s", "negative"),
        ("latency=9 h", "out of range; write 200 us to 2 s"),
        ("workers=2.5", "not a whole number"),
        ("workers=nan", "not finite"),
        ("lr=fast", "not a number"),
        ("latancy=33 ms", "did you mean `latency`?"),
        ("latency=%00", "not a quantity"),
        ("x=" + "y" * 3000, "too long"),
    ],
)
def test_bad_values_are_ignored_and_named(search, said):
    state, problems = address.read("?bandwidth=3 Mbit/s&" + search, sliders("quickstart")[1])
    assert said in " ".join(problems)
    assert state in ({"bandwidth": "3 Mbit/s"}, {})


@given(st.sampled_from(["", "average=", "lr=", "workers="]), st.text())
def test_no_address_is_an_error(name, text):
    state, _ = address.read(name + text, FIGURE3)
    assert isinstance(state, dict)


FIGURE3 = sliders(QUICK)[1]


def test_values_that_do_not_go_together_leave_what_was_shown():
    explorer = Explorer(load("programs/k-sync", ["run.seeds=1", "run.duration=1 s"]), Never())
    before = explorer.view("?latency=10 ms", rest=False)
    explorer.controls = tuple(
        control
        if control.name != "workers"
        else control.__class__(**{**vars(control), "texts": ("1", "99")})
        for control in explorer.controls
    )
    after = explorer.view("?workers=1", rest=False)
    assert after.state == before.state
    assert "The page shows the values before that." in " ".join(after.problems)


# views


def numbers(runs):
    return [(run.seed, run.curve["time"], run.curve["loss"]) for run in runs]


@pytest.mark.parametrize(
    ("name", "search", "overrides"),
    [
        (QUICK, "?average=2 s&tau=20&workers=8", ["network.duration=2 s",
         "algorithm.local-sgd.tau=20", "cluster.workers=8"]),
        ("programs/local-sgd", "?latency=40 ms&lr=0.5", ["network.latency=40 ms",
         *(f"algorithm[{i}].lr={0.5 * lr}" for i, lr in enumerate((8.0, 4.0, 4.0)))]),
    ],
)  # fmt: skip
def test_at_rest_the_numbers_are_those_of_simulate(name, search, overrides):
    short = ["run.seeds=3", *(["run.duration=4 s"] if "programs" in name else [])]
    explorer = Explorer(load(name, short), Now())
    view = explorer.view(search, rest=True)
    assert view.final
    wanted = simulate(load(name, [*short, *overrides]))
    found = [run for part in view.parts for run in part.runs]
    assert [n[0] for n in numbers(found)] == [n[0] for n in numbers(wanted.runs)]
    assert numbers(found) == numbers(wanted.runs)
    assert view.pick == wanted.pick["sentence"]


def test_a_whole_preview_has_simulates_numbers_at_fewer_points_and_a_short_one_its_beginning():
    explorer = Explorer(load(QUICK), Never())
    previewer = previews.Previewer()
    previewer.learn(explorer.scenario)
    wanted = simulate(explorer.scenario, seeds=1).groups
    for share in (1.0, 0.3):
        for index, algorithm in enumerate(explorer.scenario.algorithm):
            whole = wanted[algorithm.label][0]
            preview = previewer._draw(explorer.scenario, index, 1, share * whole.steps)
            run = preview.runs[0]
            assert preview.share == pytest.approx(share, abs=0.1)
            then = dict(zip(whole.curve["step"], whole.curve["time"], strict=True))
            both = [step for step in run.curve["step"] if step in then]
            assert len(both) > 3 or share < 1
            at = dict(zip(run.curve["step"], run.curve["time"], strict=True))
            assert [at[step] for step in both] == pytest.approx([then[step] for step in both])


def test_previews_say_what_is_missing():
    explorer = Explorer(load("quickstart"), Never())
    explorer._previewer.learn(explorer.scenario)
    view = explorer.view("?latency=40 ms", rest=False)
    assert not view.final
    assert view.shown.startswith("Preview: 1 of 8 seeds, fewer points; cut short: ")
    assert all(part.share > 0 for part in view.parts)


def test_blocks_grow_so_that_news_come_soon():
    assert [list(block) for block in pool.blocks(8)] == [[0], [1], [2, 3], [4, 5, 6, 7]]
    assert [len(block) for block in pool.blocks(3)] == [1, 1, 1]


def test_asking_for_another_state_drops_what_has_not_begun():
    asked = pool.Pool(Never())
    scenario = load(QUICK)
    asked.want((("tau", "2"),), scenario)
    waiting = list(asked._waiting.values())
    asked.want((("tau", "3"),), scenario)
    assert all(future.cancelled() for future in waiting)
    assert {state for state, *_ in asked._waiting} == {(("tau", "3"),)}


def test_theory_on_the_page_is_theorys():
    scenario = load(QUICK)
    said = dict(words.said(scenario, 1000.0))
    table = theory(scenario)
    best = next(row for row in table["tau_star"] if row["duration"] == 1000.0)
    assert said["τ* after 16.7 min"].startswith(str(best["random_delays"]))
    seconds = {tau: pace for _, _, pace, tau in words.theorem(scenario)}
    for row in table["periods"]:
        assert seconds[row["tau"]] == pytest.approx(row["seconds_per_step"])


# export


@pytest.mark.parametrize("name", SHIPPED)
def test_an_exported_scenario_loads_and_is_the_one_on_the_page(name, tmp_path):
    _, found = sliders(name)
    state = {control.name: control.texts[len(control.texts) // 2] for control in found}
    for overrides in ([], ["run.seeds=2"]):
        mine = load(name, overrides)
        path = tmp_path / "exported.toml"
        path.write_text(export.text(mine, state, found, overrides), encoding="utf-8")
        wanted = address.apply(mine, state, found, Path(mine.file).parent)
        exported = load(path, allow_paths=True)
        assert ("--allow-paths" in path.read_text()) == (name == "clouds")
        assert exported.model_dump(exclude={"network"}) == wanted.model_dump(exclude={"network"})
        assert exported.network.latency == wanted.network.latency
        assert exported.network.bandwidth == wanted.network.bandwidth
    assert "# Logistic regression" in export.text(*commented())


def commented():
    scenario, found = sliders("quickstart")
    return scenario, {"latency": "1 s"}, found, []


# the server


def test_only_loopback_is_local():
    assert all(map(serve.is_local, ("127.0.0.1", "::1", "localhost", "127.0.0.2")))
    assert not any(map(serve.is_local, ("0.0.0.0", "192.168.1.2", "::", "example.org")))


def run(*arguments, **more):
    command = [sys.executable, "-m", "paceline", "explore", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )


def test_what_cannot_be_served_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(QUICK, "--no-open", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert re.search(r"cannot listen here \(.*\); choose another --port, or 0", done.stderr)
    done = run(QUICK, "--no-open", "--port", "99999")
    assert (done.returncode, done.stdout) == (2, "")
    assert "write 0 (a free one) to 65535" in done.stderr


def test_without_dash_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dash", None)
    with pytest.raises(InputError, match=r'dash is not installed; pip install "paceline\[explore'):
        serve.explore(QUICK, say=print, opened=print)


@contextmanager
def served(*arguments):
    """A page in a process of its own; ends it in any case."""
    command = [sys.executable, "-m", "paceline", "explore", *arguments, "--no-open"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield process, re.search(r"http://\S+", line)[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_told_to_and_nothing_is_left(number):
    with served(QUICK) as (process, url):
        port = int(url.rsplit(":", 1)[1].strip("/"))
        children = _children(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 130
        assert process.stderr.read() == ""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port))
    wait_until(lambda: not any(map(_is_worker, children)))


def _is_worker(pid):
    try:
        return b"spawn" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


def _children(pid):
    task = Path(f"/proc/{pid}/task/{pid}/children")
    return task.read_text().split() if task.exists() else []


def test_a_host_that_others_reach_is_warned_of_and_other_names_are_refused():
    import urllib.error
    import urllib.request

    with served(QUICK) as (_, url):
        request = urllib.request.Request(url, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=PATIENCE)
        assert urllib.request.urlopen(url, timeout=PATIENCE).status == 200
    with served(QUICK, "--host", "0.0.0.0") as (process, _):
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        assert "warning: 0.0.0.0 is reachable from other machines" in process.stderr.read()


# the page


def settled(page):
    page.wait_for_function("document.querySelector('#shown')?.innerText.startsWith('Complete')")


def slider(page, name):
    return page.locator(f"#track-{name} [role=slider]")


def ys(page):
    return page.evaluate(
        "[...document.querySelectorAll('#error .js-line')].map(line => line.getAttribute('d'))"
    )


@pytest.fixture(scope="module")
def figure3():
    with served(QUICK) as (_, url):
        yield url


@contextmanager
def opened(url, **more):
    """A page in a browser; what it says and asks for is looked at in the end."""
    from tests.helpers.browser import Watched, chromium

    with chromium() as browser:
        page = browser.new_page(**(more or {"viewport": {"width": 1280, "height": 900}}))
        page.set_default_timeout(1000 * PATIENCE)
        watched = Watched(page)
        page.goto(url)
        settled(page)
        yield page
        assert watched.said == []
        here = "/".join(url.split("/")[:3])
        assert not [asked for asked in watched.asked if not asked.startswith(here)]


@pytest.mark.browser
def test_a_slider_moved_by_keys_changes_curves_and_address_and_a_reload_keeps_it(figure3):
    with opened(figure3) as page:
        before, said = ys(page), page.inner_text("#pick")
        slider(page, "average").focus()
        for pressed in range(1, 17):
            page.keyboard.press("ArrowRight")
            page.wait_for_function(f"window.paceline.at.average == {40 + pressed}")
        page.wait_for_function("location.search === '?average=6.3+s'")
        settled(page)
        assert ys(page) != before
        assert page.inner_text("#pick") != said
        assert slider(page, "average").get_attribute("aria-valuetext") == "6.3 s"
        assert "the time that one average takes" in slider(page, "average").get_attribute(
            "aria-label"
        )
        assert page.input_value("#box-average") == "6.3 s"
        now = page.inner_text("#pick")
        if os.environ.get("PACELINE_SCREENSHOTS"):
            SHOT.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SHOT)
        assert page.locator("#spent .bars .point").count() >= 5
        page.reload()
        settled(page)
        assert page.inner_text("#pick") == now
        assert page.input_value("#box-average") == "6.3 s"
        while here := page.evaluate("location.search"):  # once, unless the slider rested between
            page.go_back()
            page.wait_for_function(f"location.search !== '{here}'")
        page.wait_for_function("document.querySelector('#box-average').value == '1 s'")
        settled(page)
        assert page.inner_text("#pick") == said


@pytest.mark.browser
def test_exact_values_are_written_beside_and_the_export_gives_the_pages_numbers(figure3, tmp_path):
    with opened(f"{figure3}?average=6.3+s") as page:
        page.fill("#box-tau", "17")
        page.keyboard.press("Enter")
        page.wait_for_function("location.search === '?average=6.3+s&tau=17'")
        settled(page)
        with page.expect_download() as download:
            page.click("#export")
        exported = tmp_path / "exported.toml"
        download.value.save_as(exported)
        simulated = simulate(load(exported)).pick["sentence"]
        wait_until(lambda: page.inner_text("#pick") == simulated)
        assert tomllib.loads(exported.read_text())["algorithm"][1]["tau"] == 17
        page.click("#reset-tau")
        page.wait_for_function("location.search === '?average=6.3+s'")
        page.click("#reset")
        page.wait_for_function("location.search === ''")
        assert page.input_value("#box-average") == "1 s"


@pytest.mark.browser
def test_bad_values_are_named_on_the_page_and_the_rest_stands(figure3):
    with opened(f"{figure3}?tau=0.5&colour=red&average=2+s") as page:
        assert 'tau = "0.5" is ignored' in page.inner_text("#problems")
        assert "the sliders are" in page.inner_text("#problems")
        assert page.input_value("#box-average") == "2 s"
        page.fill("#box-average", "soon")
        page.keyboard.press("Enter")
        page.wait_for_function("document.querySelector('#problems').innerText.includes('soon')")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_cut_or_out_of_reach(width, figure3):
    from tests.helpers.browser import CLASHES, barriers

    with opened(f"{figure3}?average=2+s", viewport={"width": width, "height": 900}) as page:
        assert page.evaluate(CLASHES) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert barriers(page) == []


@pytest.mark.browser
def test_a_new_thumb_of_a_slider_has_its_name(figure3):
    with opened(figure3) as page:
        thumb = slider(page, "average")
        name = thumb.get_attribute("aria-label")
        assert name
        thumb.evaluate(
            "old => { const fresh = old.cloneNode(true); fresh.removeAttribute('aria-label');"
            " old.replaceWith(fresh); }"
        )
        assert slider(page, "average").get_attribute("aria-label") == name


@pytest.mark.browser
def test_it_fits_a_phone_in_the_dark(figure3):
    from tests.helpers.browser import PHONE

    with opened(f"{figure3}?average=2+s", viewport=PHONE, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


BARE = """
import sys
import tomllib
from dash import Dash, Input, Output, dcc, html
app = Dash(serve_locally=True)
curve = {"type": "scatter", "mode": "lines", "x": list(range(200)), "y": list(range(200))}
app.layout = html.Div([
    html.Div(dcc.Slider(id="s", min=0, max=80, step=1, value=40, updatemode="drag"), id="track-s"),
    dcc.Graph(id="error"),
])
@app.callback(Output("error", "figure"), Input("s", "value"))
def draw(value):
    return {"data": [curve] * 8, "layout": {"title": {"text": str(value)}}}
app.run(port=int(sys.argv[1]), debug=False)
"""

PRESSES = """() => {
  window.drawn = [];
  const draw = window.Plotly.react;
  window.Plotly.react = async (plot, ...rest) => {
    await draw(plot, ...rest);
    if (plot === 'error' || plot.closest?.('#error')) window.drawn.push(performance.now());
  };
  window.addEventListener('keydown', () => { window.pressed = performance.now(); }, true);
}"""


def redraws(page, name, ready):
    """Milliseconds from a key's press to the redrawn figure, of ten."""
    page.wait_for_selector("#error .main-svg", state="attached")
    ready(page)
    page.evaluate(PRESSES)
    slider(page, name).focus()
    found = []
    for _ in range(10):
        page.keyboard.press("ArrowRight")
        page.wait_for_function("window.drawn.some(each => each > window.pressed)")
        found.append(page.evaluate("window.drawn.find(e => e > window.pressed) - window.pressed"))
        page.wait_for_timeout(20)
    return statistics.median(found)


@pytest.mark.browser
@pytest.mark.alone
@pytest.mark.parametrize("name", [QUICK, "quickstart"])
def test_a_figure_is_redrawn_within_a_few_times_of_what_a_bare_dash_page_takes(name):
    from tests.helpers.browser import chromium

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bare = subprocess.Popen(
        [sys.executable, "-c", BARE, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with chromium() as browser, served(name, "--set", "run.seeds=2") as (_, url):
            page = browser.new_page()
            page.goto(url)
            ours = redraws(page, "average" if name == QUICK else "latency", settled)
            page.goto("about:blank")
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            theirs = redraws(page, "s", lambda page: page.wait_for_timeout(500))
    finally:
        bare.terminate()
        bare.wait(PATIENCE)
    print(f"{name}: a redraw {ours:.0f} ms; a bare Dash page's {theirs:.0f} ms")
    assert ours < 8 * theirs
