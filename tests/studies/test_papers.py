"""Claims of papers: what is said of them, and that those about time hold."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import InputError, reproduce
from paceline.command_line import run
from paceline.simulator.studies.papers import measures
from paceline.simulator.studies.papers import reproduce as page
from paceline.simulator.studies.papers.measures import (
    QUICK,
    Claim,
    Finding,
    Kind,
    Lab,
    Paper,
    Verdict,
)
from tests.helpers.cases import beside

DOCS = Path(__file__).parents[2] / "docs/evidence"
REAL = page.paper_of(page.REAL)
ALL = [(name, item) for name in page.NAMES for item in page.paper_of(name).claims]


def speedup(lab):
    """Seconds per step of ssgd over local-sgd's, of AdaComm's figure 2."""
    groups = lab.runs("adacomm/figure2", "run.steps=200").groups
    paces = [
        a.duration / b.duration
        for a, b in zip(groups["ssgd"], groups["local-sgd tau=10"], strict=True)
    ]
    return measures.mean(paces, "computed")


MADE = Paper(
    name="adacomm",
    title="Made up",
    source="nowhere",
    settings="Nothing.",
    claims=(
        Claim("faster", "2.5 times", speedup, "because", expected=2.5, neutral=1, timing=True),
        Claim(
            "far faster",
            "5 times",
            speedup,
            "because",
            expected=5,
            neutral=1,
            assumptions=({"what": "averages are free", "sets": ["network.duration=0 s"]},),
        ),
        Claim("faster at all", "faster", speedup, "because", neutral=1),
        Claim("contradicted", "9 times", speedup, "because", expected=9, inconsistent=True),
        Claim("slower", "slower", speedup, "because", neutral=1, below=True),
        Claim("any size", "any", lambda lab: Finding(2.5, (0.0, 5.0)), "because", neutral=1),
    ),
    figures={},
)


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(page, "paper_of", lambda name: MADE)


VERDICTS = [*csv.DictReader(beside(__file__, "verdicts.csv").splitlines())]


def test_verdicts():
    for row in VERDICTS:
        keys = {key: float(row[key]) for key in ("expected", "neutral", "within") if row[key]}
        signs = {key: row[key] == "yes" for key in ("below", "inconsistent")}
        one = Claim("c", "says", speedup, "why", **keys, **signs)
        ends = (float(row["from"]), float(row["to"])) if row["from"] else None
        verdict = Verdict[row["verdict"].replace(" ", "_").upper()]
        assert one.verdict(Finding(float(row["found"]), ends)) is verdict, row


def test_claims_can_be_contradicted_and_say_what_they_rest_on():
    for one in [*(one for _, one in ALL), *REAL.claims]:
        assert one.expected is not None or one.neutral is not None, one.name
        assert bool(one.basis) is not (one.kind is Kind.PRINTED), one.name
        assert one.given_by == "paper" or one.kind is not Kind.PRINTED, one.name


def tables(folder, name=page.TABLE):
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def test_claims_are_checked_once_and_shown(made, tmp_path, capsys):
    out, docs = tmp_path / "runs", tmp_path / "docs"
    document = reproduce(["adacomm"], jobs=1, out=out, report=docs)
    rows = {row["claim"]: row for row in document["claims"]}
    assert {row["verdict"] for row in rows.values()} == set(Verdict)
    assert rows["faster"]["verdict"] == "holds"
    assert rows["far faster"]["verdict"] == "holds in sign"
    assert rows["slower"]["verdict"] == "does not hold"
    assert rows["far faster"]["value"] == rows["faster"]["value"] == pytest.approx(2.5, rel=0.05)
    (free,) = rows["far faster"]["sensitivity"]
    assert 1 < free["value"] < rows["faster"]["value"]  # H(16) over the largest mean of ten
    low, high = rows["faster"]["ci95"]
    assert low < rows["faster"]["value"] < high
    for row, shown in zip(rows.values(), tables(docs), strict=True):
        assert (shown["claim"], shown["verdict"]) == (row["claim"], row["verdict"])
        assert float(shown["ours"]) == pytest.approx(row["value"], rel=1e-3)
        sides = {"far faster": "above", "slower": "below"}
        assert shown["side"] == sides.get(row["claim"], shown["side"])
    (experiment,) = tables(docs, page.EXPERIMENTS)
    assert experiment["sets"] == "network.duration=0 s"
    assert float(experiment["ours"]) == pytest.approx(free["value"], rel=1e-3)
    text = (docs / page.PAGE).read_text("utf-8")
    assert "Of the 6 claims that the papers print, 2 hold here.** Holds in sign: 1" in text

    count = len([*(out / ".runs").glob("*.npz")])
    assert count == 2 * 3 * QUICK  # network.duration or not, three algorithms
    stored = (out / "claims.json").read_bytes()
    assert json.loads(stored)["claims"] == document["claims"]


def test_finished_runs_are_not_made_again(made, tmp_path, monkeypatch):
    first = reproduce(["adacomm"], jobs=1, out=tmp_path, report=None)

    def run_block(*_, **__):
        raise RuntimeError("made anew")

    monkeypatch.setattr("paceline.simulator.studies.simulate.run_block", run_block)
    assert reproduce(["adacomm"], jobs=1, out=tmp_path, report=None) == first
    with pytest.raises(RuntimeError, match="anew"):  # more seeds are more runs
        reproduce(["adacomm"], full=True, jobs=1, out=tmp_path, report=None)


def test_all_runs_share_the_processes(made, tmp_path, monkeypatch):
    """Their start takes longer than most runs."""
    started = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, jobs):
            super().__init__(jobs)
            started.append(jobs)

    monkeypatch.setattr("paceline.simulator.studies.executors.Processes", Pool)
    shared = reproduce(["adacomm"], jobs=2, out=tmp_path / "shared", report=None)
    assert started == [2]
    assert shared == reproduce(["adacomm"], jobs=1, out=tmp_path / "alone", report=None)
    assert started == [2]


def test_the_command(made, tmp_path, capsys):
    options = ["--out", str(tmp_path / "runs"), "--report", str(tmp_path / "docs"), "--jobs", "1"]
    assert run(["reproduce", "adacomm", "--timing", *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["claims"]
    assert row.keys() >= {"paper", "claim", "kind", "expected", "value", "ci95", "verdict"}
    assert row["kind"] == "printed"
    assert document["summary"]["printed"]["holds"] == 1
    assert not any(document["summary"]["fitted"].values())
    assert run(["reproduce", "adacomm", "--timing", *options]) == 0
    assert "holds" in capsys.readouterr().out


def test_other_data_take_the_place_of_those_that_scenarios_train_on(made, tmp_path, capsys):
    lab = Lab(trained=("objective.batch=2",))
    assert lab.scenario("hpsgd/accuracy").objective.batch == 2
    assert lab.scenario("hpsgd/accuracy", "objective.batch=3").objective.batch == 3  # a claim's
    assert lab.scenario("dts/delay").objective.batch == 2
    assert lab.scenario("adacomm/figure2").objective.kind == "none"
    options = ["--out", str(tmp_path / "runs"), "--report", str(tmp_path), "--timing", "--json"]
    assert run(["reproduce", "adacomm", "--set", "objective.batch=2", *options]) == 0
    assert json.loads(capsys.readouterr().out)["claims"][0]["sets"] == []  # it trains nothing
    assert lab.changed
    assert not (tmp_path / "runs" / page.PAGE).exists()
    assert run(["reproduce", "adacomm", "--set", "cluster.compute=1 s", *options]) == 2
    assert "cluster has no effect" in capsys.readouterr().err


def test_claims_on_real_data_have_scenarios_and_a_claim_on_a_stand_in():
    """Their scenarios load; the digits take the place of data that may not be installed."""
    lab = Lab(trained=("objective.data=digits",))
    stand_ins = {f"{name}: {one.name}" for name, one in ALL}
    for one in REAL.claims:
        assert one.stand_in in stand_ins, one.name
        how = one.measure.keywords
        for row in how.get("table", [how]):
            for rate in how.get("rates", ["run.seeds=1"]):
                name = row.get("scenario", row.get("name"))
                scenario = lab.scenario(name, *row.get("sets", ()), rate)
                labels = {0, 1, 2, -1, "best", *(item.label for item in scenario.algorithm)}
                assert {how.get(key, 0) for key in ("a", "b", "than", "other")} <= labels


def test_the_page_on_real_data_shows_the_stand_ins_verdicts(tmp_path, monkeypatch):
    claims = [replace(one, stand_in=f"adacomm: {one.name}") for one in MADE.claims[:2]]
    real = replace(MADE, name=page.REAL, claims=tuple(claims))
    monkeypatch.setattr(page, "paper_of", lambda name: real)
    (tmp_path / page.TABLE).write_text("paper,claim,verdict\nadacomm,far faster,undecided\n")
    reproduce([page.REAL], jobs=1, out=tmp_path / "runs", report=tmp_path)
    text = (tmp_path / "real-data.md").read_text("utf-8")
    assert "| holds in sign | undecided |" in text
    assert "- **far faster**: because" in text
    assert len(tables(tmp_path, "real-data.csv")) == 2


@pytest.mark.slow
def test_a_claim_by_real_gradients(monkeypatch, tmp_path):
    claims = tuple(one for one in REAL.claims if one.name == "HPSGD: final accuracy")
    monkeypatch.setattr(page, "paper_of", lambda name: replace(REAL, claims=claims, figures={}))
    sets = ["objective.data=digits", "run.steps=200"]
    (row,) = reproduce([page.REAL], overrides=sets, jobs=2, out=tmp_path)["claims"]
    assert row["verdict"] == Verdict.HOLDS
    assert row["note"].count("optimizer.lr=") == 2
    assert row["sets"] == sets


def test_wrong_input(tmp_path, capsys):
    with pytest.raises(InputError, match="did you mean `adacomm`"):
        reproduce(["adacom"], out=tmp_path, report=None)
    assert run(["reproduce", "nothing", "--out", str(tmp_path)]) == 2
    assert "adacomm, dts, hpsgd, hybrid" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["reproduce", "--out", str(tmp_path / "file")]) == 2
    missing = ["--set", f"objective.folder={tmp_path}", "--out", str(tmp_path / "runs")]
    assert run(["reproduce", "real-data", *missing]) == 2
    assert "apt install dataset-fashion-mnist" in capsys.readouterr().err


# The papers


def test_claims_are_told_apart():
    for name in (*page.NAMES, page.REAL):
        paper = page.paper_of(name)
        assert paper.name == name
        assert len({one.name for one in paper.claims}) == len(paper.claims) > 5
        for one in paper.claims:
            assert one.says, one.name
            assert one.why.endswith((".", ".)")), one.name
            assert one.place, one.name


def test_what_may_not_hold_has_an_experiment_under_it():
    for _, item in ALL:
        sure = item.timing and not item.inconsistent and item.name not in OTHERS
        assert sure or item.assumptions, item.name


OTHERS = {  # than "holds", of claims about time; an experiment shows what is behind each
    "scale efficiency: local-sgd drops drastically": Verdict.FAILS,  # no law has it
    "latency alone": Verdict.FAILS,  # it is bandwidth
}


@pytest.mark.parametrize("name", page.NAMES)
def test_claims_about_time(name):
    """What needs no learning holds, contradicts the rest of the paper, or is listed above."""
    lab = Lab()
    for one in page.paper_of(name).claims:
        if one.timing:
            usual = Verdict.INCONSISTENT if one.inconsistent else Verdict.HOLDS
            assert one.verdict(one.measure(lab)) is OTHERS.get(one.name, usual), one.name


def test_the_table_has_these_claims():
    """Make it anew where claims were changed: `paceline reproduce --report docs/evidence`."""
    rows = tables(DOCS)
    assert [(row["paper"], row["claim"]) for row in rows] == [(name, one.name) for name, one in ALL]
    tried = {(row["paper"], row["claim"]) for row in tables(DOCS, page.EXPERIMENTS)}
    bare = {(row["paper"], row["claim"]) for row in rows if row["verdict"] != Verdict.HOLDS}
    assert bare <= tried  # an experiment shows what is behind each


@pytest.mark.slow
def test_every_claim(tmp_path):
    rows = reproduce(out=tmp_path / "runs", report=tmp_path / "docs")["claims"]
    assert {row["paper"] for row in rows} == set(page.NAMES)
    assert all(row["why"] for row in rows)
    failing = {(row["paper"], row["claim"]) for row in rows if row["verdict"] == Verdict.FAILS}
    assert failing == {
        (row["paper"], row["claim"]) for row in tables(DOCS) if row["verdict"] == Verdict.FAILS
    }
