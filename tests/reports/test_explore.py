"""`paceline explore`: what sliders write, what previews are, and the page in a real browser."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load
from paceline.simulator.reports.explore import explorer, serve
from paceline.simulator.reports.explore.explorer import Explorer, changed, controls
from paceline.simulator.studies.simulate import simulate
from tests.helpers.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
QUICK = "adacomm/figure3"
SHIPPED = [QUICK, "quickstart", "four-continents", "clouds", "dts/delay", "programs/k-sync"]
SHOT = ROOT / "docs" / "screenshots" / "explore.png"


def sliders(name, *overrides):
    scenario = load(name, overrides)
    return scenario, controls(scenario)


# what sliders write


def test_every_slider_begins_at_the_scenarios_own_and_its_values_are_accepted():
    for name in SHIPPED:
        scenario, actual = sliders(name)
        assert actual, name
        for control in actual.values():
            assert control.own in control.texts
            if control.name != "codec":
                steps = [*map(float, control.texts)]
                assert steps == sorted(set(steps)), (name, control.name)
            changed(scenario, control.changes(control.texts[len(control.texts) // 2]))


def test_sliders_are_those_that_the_scenario_has():
    assert [*sliders("four-continents")[1]] == [
        "workers", "codec", "latency", "bandwidth", "tau", "delay", "price", "lr",
    ]  # fmt: skip
    assert [*sliders(QUICK)[1]] == ["workers", "average", "tau", "lr"]
    assert "lr" not in sliders("dts/latency")[1]


def test_sites_overlap_price_and_codec_move_what_they_name():
    page = Explorer(load("llm/four-sites"))
    state = {"sites": "2", "overlap": "5", "price": "2", "codec": "fp16"}
    assert {*state} <= {*page.controls}
    actual = page.apply(state)
    assert (actual.cluster.workers, actual.cost.node_hour) == (2, 2 * page.scenario.cost.node_hour)
    assert actual.objective.tokens == 2 * page.scenario.objective.tokens  # the same global batch
    streaming = actual.algorithm[2].parameters
    assert (streaming["overlap"], streaming["codec"].kind) == (5, "fp16")
    assert "zip" not in page.controls["codec"].texts


def test_a_factor_multiplies_every_value_and_counts_stay_whole():
    actual = sliders("quickstart")[1]
    tau = {("algorithm", 1, "tau"): 12, ("algorithm", 2, "tau0"): 24}
    assert actual["tau"].changes("1.5") == tau
    assert actual["latency"].changes("2") == {("network", "latency"): "0.04 s"}


# results


def numbers(runs):
    return [(run.seed, run.curve["time"], run.curve["loss"]) for run in runs]


def test_the_numbers_are_those_of_simulate():
    cases = {
        (QUICK, ("average=2", "tau=2", "workers=8")): ["network.duration=2 s",
         "algorithm.local-sgd.tau=20", "cluster.workers=8"],
        ("programs/local-sgd", ("latency=0.8", "lr=0.5")): ["network.latency=40 ms",
         *(f"algorithm[{i}].lr={0.5 * lr}" for i, lr in enumerate((8.0, 4.0, 4.0)))],
    }  # fmt: skip
    for (name, moved), overrides in cases.items():
        short = ["run.seeds=3", *(["run.duration=4 s"] if "programs" in name else [])]
        page = Explorer(load(name, short))
        state = dict(text.split("=") for text in moved)
        result = page.result(state)
        wanted = simulate(load(name, [*short, *overrides]))
        assert numbers(result.runs) == numbers(wanted.runs), name
        assert result.pick == wanted.pick
        assert len(result.verdict.headline.split()) <= 15
        assert page.result(state) is result  # remembered
        drawn = explorer.figures(result)
        assert drawn.keys() == {"error"}
        means = [trace for trace in drawn["error"]["data"] if trace.get("meta") == "mean"]
        assert len(means) == len(result.groups)


# export


def test_an_exported_scenario_loads_and_is_the_one_on_the_page(tmp_path):
    for name in SHIPPED:
        for overrides in ([], ["run.seeds=2"]):
            page = Explorer(load(name, overrides))
            state = {name: item.texts[len(item.texts) // 2] for name, item in page.controls.items()}
            path = tmp_path / "exported.toml"
            path.write_text(explorer.exported(page, state), encoding="utf-8")
            wanted, exported = page.apply(state), load(path, allow_paths=True)
            assert ("--allow-paths" in path.read_text()) == (name == "clouds")
            without = {"exclude": {"network"}}
            assert exported.model_dump(**without) == wanted.model_dump(**without), name
            assert exported.network.latency == wanted.network.latency
            assert exported.network.bandwidth == wanted.network.bandwidth


# the server


def test_what_cannot_be_served_is_said(capsys):
    command = ["explore", QUICK, "--no-open", "--port"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert paceline.command_line.run([*command, str(taken.getsockname()[1])]) == 2
    shown = capsys.readouterr().err
    assert re.search(r"cannot listen here \(.*\); choose another --port, or 0", shown)
    assert paceline.command_line.run([*command, "99999"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, "write 0 (a free one) to 65535" in shown.err) == ("", True)


def test_without_dash_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dash", None)
    with pytest.raises(InputError, match=r'dash is not installed; pip install "paceline\[explore'):
        serve.explore(QUICK, opened=print)


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


def ended(process, url, number):
    """End a page by a signal; nothing is left. Return what was said."""
    port = int(url.rsplit(":", 1)[1].strip("/"))
    process.send_signal(number)
    assert process.wait(PATIENCE) == 130
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port))
    return process.stderr.read()


def test_malformed_requests_and_other_names_are_refused():
    with served(QUICK) as (process, url):
        request = urllib.request.Request(url, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=PATIENCE)
        assert urllib.request.urlopen(url, timeout=PATIENCE).status == 200
        target = f"{url}_dash-update-component"
        for body in (b"", b"[]", b"{}", b"no json", b'{"output": "x.y", "inputs": 3}'):
            request = urllib.request.Request(target, body, {"Content-Type": "application/json"})
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(request, timeout=PATIENCE)
        assert ended(process, url, signal.SIGTERM) == ""


# the page


def settled(page):
    page.wait_for_function("document.querySelector('#shown')?.innerText.startsWith('Complete')")


def slider(page, name):
    return page.locator(f"#track-{name} [role=slider]")


def moved(page):
    """Move the slider of averages to 6.3 times their second."""
    slider(page, "average").focus()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('#value-average').innerText === '6.3'")
    settled(page)


def ys(page):
    return page.evaluate(
        "[...document.querySelectorAll('#plot-error .js-line')].map(line => line.getAttribute('d'))"
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
def test_a_slider_moved_by_keys_changes_curves(figure3):
    with opened(figure3) as page:
        before, text = ys(page), page.inner_text("#pick")
        moved(page)
        page.wait_for_function(f"document.querySelector('#pick').innerText !== {json.dumps(text)}")
        assert ys(page) != before
        assert slider(page, "average").get_attribute("aria-valuetext") == "6.3"
        assert "the time of one average" in slider(page, "average").get_attribute("aria-label")
        if os.environ.get("PACELINE_SCREENSHOTS"):
            SHOT.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=SHOT)
        table = page.locator("#results tbody tr").all_inner_texts()
        assert [row.split("\t")[0] for row in table] == [one.label for one in load(QUICK).algorithm]


@pytest.mark.browser
def test_the_export_gives_the_pages_numbers(figure3, tmp_path):
    with opened(figure3) as page:
        moved(page)
        with page.expect_download() as download:
            page.click("#export")
        exported = tmp_path / "exported.toml"
        download.value.save_as(exported)
        simulated = simulate(load(exported)).verdict.headline
        wait_until(lambda: page.inner_text("#pick") == simulated)
        assert tomllib.loads(exported.read_text())["network"]["duration"] == "6.3 s"
        page.click("#reset")
        page.wait_for_function("document.querySelector('#value-average').innerText === '1'")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_cut_or_out_of_reach(width, figure3):
    from tests.helpers.browser import CLASHES, barriers

    how = {"viewport": {"width": width, "height": 900}}
    how |= {"color_scheme": "dark"} if width == 390 else {}
    with opened(figure3, **how) as page:
        assert page.evaluate(CLASHES) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert barriers(page) == []
        thumb = slider(page, "average")  # a new one has its name
        name = thumb.get_attribute("aria-label")
        thumb.evaluate(
            "old => { const fresh = old.cloneNode(true); fresh.removeAttribute('aria-label');"
            " old.replaceWith(fresh); }"
        )
        assert slider(page, "average").get_attribute("aria-label") == name
