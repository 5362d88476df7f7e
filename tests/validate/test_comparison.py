"""Comparison: every number checked by hand, and injected causes are found."""

import csv
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import paceline
import paceline.command_line
from paceline.validate.comparison import compare as comparing
from paceline.validate.comparison import quantities
from tests.command_line.test_command_line import run
from tests.helpers.cases import beside, looped
from tests.helpers.measured import given_as_real

ROOT = Path(paceline.__file__).parents[1]
SCENARIO = beside(__file__, "comparison.toml")
LABELS = ["ssgd", "local-sgd tau=10", "dts delay=4 period=4", "asgd"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Simulate SCENARIO with overrides into a directory, once; return the directory."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "test.toml").write_text(SCENARIO)
    results = {}

    def simulated(*overrides, **options):
        key = (*overrides, *sorted(options.items()))
        if key not in results:
            results[key] = folder / str(len(results))
            scenario = paceline.load(folder / "test.toml", overrides)
            paceline.simulate(scenario, out=results[key], **options)
        return results[key]

    return simulated


@pytest.fixture
def edited(world, tmp_path):
    """Copy a run directory with its summary changed by a function."""

    def copy(source, change, name="copy"):
        out = tmp_path / name
        out.mkdir()
        document = json.loads((source / "run.json").read_text())
        change(document["summary"])
        (out / "run.json").write_text(json.dumps(document))
        (out / "curves.csv").write_bytes((source / "curves.csv").read_bytes())
        return out

    return copy


def real(folder):
    """Copy a simulated directory as one of real runs, once."""
    out = folder.with_name(f"{folder.name}-real")
    return out if out.exists() else given_as_real(folder, out)


def compare(predicted, simulated):
    """Compare with a simulation that counts as real."""
    return comparing.compare(predicted, real(simulated))


def curves(directory, label):
    """Return each seed's columns of curves.csv, read without Paceline."""
    with open(directory / "curves.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["label"] == label]
    return [
        {
            column: np.array([float(line[column]) for line in lines if line["seed"] == seed])
            for column in ("time", "step", "loss", "bytes")
        }
        for seed in dict.fromkeys(line["seed"] for line in lines)
    ]


def rows(document, quantity):
    return {row["algorithm"]: row for row in document["rows"] if row["quantity"] == quantity}


def evidence(**reasons):
    def change(summary):
        summary["evidence"] = {
            row["label"]: {
                "admitted": row["name"] not in reasons,
                "reasons": [reasons[row["name"]]] if row["name"] in reasons else [],
            }
            for row in summary["algorithms"]
        }

    return change


SLOWER = ('network.latency="25 ms"', 'cluster.compute.mean="110 ms"')


def test_every_number_by_hand(world):
    one, other = world(), world(*SLOWER)
    document = compare(one, other).json()
    assert set(document) >= {"rows", "median_absolute_error", "kendall_tau", "attribution"}
    errors, times = [], []
    for label in LABELS:
        sides = curves(one, label), curves(other, label)
        seeds = [curve for side in sides for curve in side]
        end = min(curve["time"][-1] for curve in seeds)
        last = min(curve["step"][-1] for curve in seeds)

        def check(quantity, measure, label=label, sides=sides):
            predicted, measured = ([measure(curve) for curve in side] for side in sides)
            row = rows(document, quantity)[label]
            p, m = np.mean(predicted), np.mean(measured)
            assert (row["predicted"], row["measured"]) == pytest.approx((p, m))
            assert row["error"] == pytest.approx(p / m - 1)
            ends = row["measured_interval"]
            assert ends is None if len(set(measured)) == 1 else 0 < ends[0] < m < ends[1]
            apart = np.subtract(predicted, measured)
            half = stats.t.ppf(0.95, 2) * np.std(apart, ddof=1) / math.sqrt(3)
            assert row["within_noise"] is bool(abs(apart.mean()) <= half)
            return row

        def settled(curve):
            first = np.flatnonzero(curve["step"] >= curve["step"][-1] / 10)[0]
            time, step = curve["time"], curve["step"]
            return (time[-1] - time[first]) / (step[-1] - step[first])

        def crossing(curve):
            i = np.flatnonzero(curve["loss"] <= 0.4)[0]
            return np.interp(-0.4, -curve["loss"][i - 1 : i + 1], curve["time"][i - 1 : i + 1])

        errors.append(abs(check("seconds_per_step", settled)["error"]))
        times.append(check("time_to_target", crossing))
        for name, share in zip(
            ("quarter", "half", "three_quarters", "end"), (0.25, 0.5, 0.75, 1), strict=True
        ):
            check(f"loss_at_{name}", lambda c, t=share * end: np.interp(t, c["time"], c["loss"]))
        check("loss_at_equal_steps", lambda c, last=last: np.interp(last, c["step"], c["loss"]))
        check("bytes_per_step", lambda c: c["bytes"][-1] / c["step"][-1])
    assert document["median_absolute_error"] == pytest.approx(np.median(errors))
    assert document["median_absolute_errors"]["seconds_per_step"] == pytest.approx(
        np.median(errors)
    )
    predicted, measured = ([row[w] for row in times] for w in ("predicted", "measured"))
    assert document["kendall_over"] == "time_to_target"
    assert document["kendall_tau"] == pytest.approx(stats.kendalltau(predicted, measured)[0])
    picked, best = int(np.argmin(predicted)), int(np.argmin(measured))
    assert document["regret"] == {
        "over": "time_to_target",
        "picked": LABELS[picked],
        "best": LABELS[best],
        "value": pytest.approx(measured[picked] / measured[best] - 1),
    }


def test_what_run_json_has_is_what_is_compared(world):
    one, other = world(), world(*SLOWER)
    document = compare(one, other).json()
    for world_, path in (("predicted", one), ("measured", other)):
        for row in json.loads((path / "run.json").read_text())["summary"]["algorithms"]:
            label = row["label"]
            for kind, share in row["breakdown"].items():
                assert rows(document, f"{kind}_share")[label][world_] == share
            for quantity, wanted in (
                ("bytes_per_step", row["bytes_per_step"]),
                ("time_to_target", row["time_to_target"]["mean"]),
            ):
                assert rows(document, quantity)[label][world_] == pytest.approx(wanted)
    for row in rows(document, "wait_share").values():
        assert row["error"] == pytest.approx(row["predicted"] - row["measured"])
        assert row["error_is"] == "difference"


TAIL = 'cluster.compute={ dist = "shifted-exponential", shift = "20 ms", mean = "100 ms" }'
SCALED = 'cluster.compute={ dist = "shifted-exponential", shift = "60 ms", mean = "120 ms" }'


@looped(
    ("change", "causes", "seeds"),
    [
        (SCALED, dict.fromkeys(LABELS, "contention"), 3),
        (SCALED, dict.fromkeys(LABELS, "contention"), 1),
        (TAIL, {"ssgd": "compute tail"}, 1),
        ('network.latency="40 ms"', dict.fromkeys(LABELS[:2] + LABELS[3:], "link"), 1),
        ('network.latency="250 ms"', {"dts delay=4 period=4": "overlap"}, 3),
        ("optimizer.lr=0.005", dict.fromkeys(LABELS, "error model"), 3),
    ],
)
def test_what_was_changed_explains_the_error(world, change, causes, seeds):
    result = compare(world(seeds=seeds), world(change, seeds=seeds))
    for label, cause in causes.items():
        actual = result.attribution[label]
        assert actual["to_blame"] == cause
        assert actual["sentence"].startswith(f"{cause}: ")


def test_one_curve_tells_its_own_noise(world):
    """With other times other workers come first: asgd's loss differs by no model error."""
    result = compare(world(seeds=1), world(TAIL, seeds=1))
    row = result.of("loss_at_equal_steps")["asgd"]
    assert abs(row["error"]) > comparing.LOOSE
    assert row["within_noise"] is True
    curve = curves(world(seeds=1), "asgd")[0]
    late = curve["step"] >= 0.8 * curve["step"][-1]
    fit = stats.linregress(curve["step"][late], curve["loss"][late])
    rest = curve["loss"][late] - fit.intercept - fit.slope * curve["step"][late]
    run = result.predicted.runs["asgd"][0]
    wanted = math.sqrt(sum(rest**2) / (len(rest) - 2))
    assert quantities.fluctuation(run, curve["step"][-1]) == pytest.approx(wanted)


def test_a_faster_reality_has_a_cause_too(world):
    result = compare(world(SCALED), world())
    assert result.attribution["ssgd"]["to_blame"] == "contention"
    assert " less per step than predicted" in result.attribution["ssgd"]["sentence"]


@looped("change", [SCALED, TAIL, 'network.latency="40 ms"'])
def test_the_causes_add_up_to_the_whole_difference(world, change):
    result = compare(world(), world(change))
    for label, actual in result.attribution.items():
        pace = result.of("seconds_per_step")[label]
        whole = pace["measured"] - pace["predicted"]
        assert sum(actual["seconds_per_step"].values()) == pytest.approx(whole, abs=1e-12)


@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    st.floats(0.2, 5),
    st.floats(1e-3, 1e3),
)
def test_slower_computing_explains_waiting_in_proportion(spent, slower, unit):
    """If all compute times grow by a factor, so does waiting for the slowest."""
    compute, wait, communicate = spent

    def world(*seconds):
        total = sum(seconds)
        shares = [second / total for second in seconds]
        kinds = dict(zip(("compute", "wait", "communicate"), shares, strict=True))
        return {"breakdown": kinds, "staleness": None}, unit * total

    one, p = world(compute, wait, communicate)
    other, m = world(slower * compute, slower * wait, communicate)
    actual = comparing.causes(one, other, {"predicted": p, "measured": m, "error": p / m - 1})
    assert actual["contention"] == pytest.approx(
        unit * (slower - 1) * (compute + wait), abs=unit * 1e-12
    )
    assert actual["compute tail"] == pytest.approx(0, abs=unit * 1e-12)
    assert actual["link"] == pytest.approx(0, abs=unit * 1e-12)


@settings(max_examples=12)
@given(
    st.sampled_from(["ssgd", "local-sgd", "asgd", "adacomm", "d-psgd"]),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 3),
    st.booleans(),
)
def test_a_run_agrees_with_itself(tmp_path_factory, name, workers, steps, seeds, target):
    more = {"local-sgd": "tau = 3", "adacomm": "tau0 = 4"}.get(name, "")
    head = SCENARIO.split("[[algorithm]]", maxsplit=1)[0]
    head = head if target else head.replace("target_loss = 0.4\n", "")
    folder = tmp_path_factory.mktemp("self")
    text = f'{head}[[algorithm]]\nname = "{name}"\n{more}\n[[algorithm]]\nname = "psgd"\n'
    (folder / "s.toml").write_text(text)
    overrides = [f"cluster.workers={workers}", f"run.steps={steps}"]
    scenario = paceline.load(folder / "s.toml", overrides)
    paceline.simulate(scenario, seeds=seeds, out=folder / "out")
    document = compare(folder / "out", folder / "out").json()
    assert {row["error"] for row in document["rows"]} <= {0, None}
    assert {row["within_noise"] for row in document["rows"]} <= {True, None}
    assert set(document["median_absolute_errors"].values()) <= {0, None}
    assert document["kendall_tau"] is None or document["kendall_tau"] == pytest.approx(1)
    assert document["regret"] is None or document["regret"]["value"] == 0
    assert {cause["to_blame"] for cause in document["attribution"].values()} == {"none"}
    assert document["notes"] == []


def test_what_others_disturbed_is_said_in_one_sentence(world, edited):
    def change(summary):
        evidence()(summary)
        for label, share in zip(
            [r["label"] for r in summary["algorithms"]], (0.05, 0.1), strict=False
        ):
            summary["evidence"][label]["disturbed"] = share

    beside = compare(world(), edited(world(*SLOWER), change))
    assert beside.sentence.startswith("Others used up to 10% of the machine during 2 algorithms'")
    assert beside.sentence.count("Others used") == 1


def test_what_is_no_evidence_is_left_out(world, edited):
    real = world(*SLOWER)
    marked = edited(real, evidence(ssgd="own CPU use 55 %"))
    plain, without = compare(world(), real), compare(world(), marked)
    errors = [abs(row["error"]) for k, row in plain.of("seconds_per_step").items() if k != "ssgd"]
    assert without.json()["median_absolute_error"] == pytest.approx(np.median(errors))
    assert len(without.rows) == len(plain.rows)
    assert [row["counted"] for row in without.rows].count(False) == len(
        [row for row in plain.rows if row["algorithm"] == "ssgd"]
    )
    assert without.not_counted == {"ssgd": ["own CPU use 55 %"]}
    assert "ssgd: not counted: own CPU use 55 %" in without.notes
    assert "ssgd" not in without.sentence
    few = edited(real, evidence(ssgd="a", asgd="b"), "few").parent / "few"
    assert compare(world(), few).json()["kendall_over"] == "seconds_per_step"
    none = edited(real, evidence(**{k.split()[0]: "x" for k in LABELS}), "none")
    document = compare(world(), none).json()
    assert document["median_absolute_error"] is document["kendall_tau"] is None
    assert document["regret"] is None
    assert document["sentence"].startswith("No measured run counts")


def test_regret_is_what_the_wrong_pick_costs():
    def table(**pairs):
        return {k: {"predicted": p, "measured": m} for k, (p, m) in pairs.items()}

    actual = quantities.regret(table(a=(1.0, 3.0), b=(2.0, 2.0)))
    assert actual == {"picked": "a", "best": "b", "value": 0.5}
    assert quantities.regret(table(a=(1.0, None), b=(2.0, 2.0)))["value"] is None
    assert quantities.regret(table(a=(None, 1.0))) is None
    assert quantities.ranks(table(a=(1.0, 3.0), b=(2.0, 2.0))) == -1
    assert quantities.ranks(table(a=(1.0, 3.0))) is None


def test_a_target_that_only_one_reaches_is_said_in_words(world):
    one, other = world(), world("optimizer.lr=0.0002")
    result = compare(one, other)
    for label, row in result.of("time_to_target").items():
        assert row["predicted"] > 0
        assert row["measured"] is row["error"] is None
        assert row["note"] == "predicted: reached by 3 of 3 seeds; measured: not reached"
        assert any(note.startswith(f"{label}: time to loss 0.4: ") for note in result.notes)
    assert result.json()["kendall_over"] == "seconds_per_step"
    assert compare(other, other).of("time_to_target")["ssgd"]["note"] == "not reached, as predicted"


def test_labels_in_one_directory_only_are_named(world):
    fewer = world('algorithm=[{ name = "asgd" }, { name = "psgd" }]')
    result = compare(world(), fewer)
    assert result.labels == ["asgd"]
    assert f"{', '.join(LABELS[:3])}: only predicted, so not compared" in result.notes
    assert "psgd: only measured, so not compared" in result.notes


def test_other_seeds_are_unpaired(world):
    result = compare(world(), world(seed=7))
    assert "different seeds" in result.notes[0]
    for row in result.rows:
        one, other = row["predicted_interval"], row["measured_interval"]
        if one and other:
            assert row["within_noise"] is (one[0] <= other[1] and other[0] <= one[1])
    assert {row["to_blame"] for row in result.attribution.values()} == {"none"}


@pytest.mark.usefixtures("figures")
def test_without_a_loss_time_is_compared(world, tmp_path):
    bare = ["objective={ kind = 'none' }", "run={ steps = 50 }"]
    result = compare(world(*bare), world(*bare, 'network.latency="20 ms"'))
    wanted = {"seconds_per_step", "bytes_per_step"}
    assert {q for q in {row["quantity"] for row in result.rows} if "share" not in q} == wanted
    result.save(tmp_path)
    assert (tmp_path / "comparison.png").stat().st_size


@pytest.mark.usefixtures("figures")
def test_the_command_prints_tables_or_json_and_writes_only_when_told(
    world, edited, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    one, other = world(), real(edited(world(*SLOWER), evidence(asgd="own CPU use 55 %")))
    before = {*tmp_path.rglob("*")}
    status, out, err = run(capsys, "compare", one, other)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "not counted" in out
    assert "explained by" in out
    assert err.count("not counted: own CPU use 55 %") == 1
    assert {*tmp_path.rglob("*")} == before
    for folder in ("a", "b"):
        status, out, err = run(capsys, "compare", one, other, "--json", "--out", folder)
        assert status == 0
        document = json.loads(out)
        assert {frozenset(row) >= {"algorithm", "quantity", "predicted", "measured", "error"}
                for row in document["rows"]} == {True}  # fmt: skip
        assert set(document["attribution"]) == set(LABELS)
        for row in document["attribution"].values():
            assert set(row) >= {"to_blame", "seconds_per_step", "sentence"}
        assert json.loads(Path(folder, "comparison.json").read_text()).items() >= document.items()
    names = {path.name for path in Path("a").iterdir()}
    figures = {f"comparison.{kind}" for kind in ("png", "svg")}
    assert names == {"comparison.json"} | figures
    for name in names:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_runs_do_not_confirm_the_profile_that_they_made(world, edited):
    measured = given_as_real(edited(world(), lambda summary: None))
    made = hashlib.sha256((measured / "run.json").read_bytes()).hexdigest()
    for fingerprint, own in ((made, True), ("other", False)):
        predicted = world(f'calibration.fingerprints=["{fingerprint}"]')
        comparison = comparing.compare(predicted, measured)
        assert ("so agreement proves nothing" in comparison.sentence) is own


def test_wrong_input_is_one_message(world, edited, capsys, tmp_path):
    other = real(world('algorithm=[{ name = "psgd" }]'))
    broken = edited(world(), lambda summary: summary.pop("algorithms"), "broken")
    bare = edited(world(), lambda summary: None, "bare")
    (bare / "curves.csv").unlink()
    odd = edited(world(), lambda summary: None, "odd")
    (odd / "curves.csv").write_text("label,seed\nssgd,0\n")
    document = json.loads((odd / "run.json").read_text())
    (odd / "run.json").write_text(json.dumps(document | {"parts": []}))
    (tmp_path / "file").write_text("")
    for arguments, says in (
        ((world(), tmp_path / "nowhere"), "nowhere"),
        ((tmp_path, world()), "not a run directory"),
        ((world(), broken), "broken/run.json: not written by Paceline"),
        ((world(), bare), "curves.csv is missing"),
        ((odd, world()), "odd: not a run directory"),
        ((world(), other), "no algorithm with points in both"),
        ((world(), real(world()), "--out", tmp_path / "file"), "cannot write here"),
        ((world(), world()), "the same run as"),
        ((world(), world(*SLOWER)), "simulated, not measured"),
        ((real(world()), world()), "measured, so it predicts nothing"),
        ((world(),), "MEASURED_DIR"),
    ):
        status, out, err = run(capsys, "compare", *arguments)
        assert (status, out) == (2, "")
        assert err.startswith("paceline: error: ")
        assert says in err
        assert "Traceback" not in err


def test_comparing_needs_no_torch(world):
    code = (
        "import sys; import paceline.command_line; "
        f"paceline.command_line.run(['compare', {str(world())!r}, {str(real(world()))!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_a_simulation_given_as_measured_is_called_one_everywhere(world, capsys, tmp_path):
    """In every sentence, heading, figure and document, of the command and of its page."""
    one, other = world(seeds=2), world(*SLOWER, seeds=2)
    for pair in ((one, one), (one, other)):
        out = tmp_path / str(pair.index(other) if other in pair else 0)
        given = (*pair, "--as-measured", "--figure", "svg", "--out", out)
        status, output, err = run(capsys, "compare", *given)
        assert status == 0
        assert "given as measured (--as-measured)" in err
        assert not re.search(r"(?<!as )(?<!-)measured", " ".join(output.split()))
        comparison = comparing.compare(*pair, as_measured=True)
        document = comparison.json()
        assert document["basis"] == "simulated"
        blamed = [cause["sentence"] for cause in document["attribution"].values()]
        for text in (*blamed, document["sentence"]):
            assert text.startswith("Simulation against simulation: ")
            assert text.count("Simulation against simulation") == 1
        for row in document["rows"]:
            assert "measured" not in (row["note"] or "")
        drawn = (out / "comparison.svg").read_text()
        assert "simulated" in drawn
        assert "measured" not in drawn
        page = paceline.report([out], out / "page.html").read_text()
        body = page[page.rindex("</style>") :].split("<script")[0]
        assert "Simulation against simulation" in body
        assert "predicted against measured" not in body.lower()
        assert ">measured<" not in body


def test_a_comparison_of_other_runs_is_not_replaced_unasked(world, tmp_path):
    first, second = compare(world(), world(*SLOWER)), compare(world(), world(TAIL))
    first.save(tmp_path)
    first.save(tmp_path)
    with pytest.raises(paceline.InputError, match="holds the results of other settings"):
        second.save(tmp_path)
    second.save(tmp_path, overwrite=True)
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"] == second.json()["rows"]


def test_a_simulation_whose_document_calls_it_real_is_refused(world, capsys, tmp_path):
    copy = Path(shutil.copytree(world(), tmp_path / "copy"))
    document = json.loads((copy / "run.json").read_text())
    for row in document["summary"]["algorithms"]:
        row["engine"] = "real"
    (copy / "run.json").write_text(json.dumps(document))
    status, _, err = run(capsys, "compare", world(), copy)
    assert status == 2
    assert "describes simulated runs as real" in err
