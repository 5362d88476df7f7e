"""Scenarios: what is read, what is refused and in which words."""

import copy
import datetime
import json
import pickle
import tomllib

import jsonschema
import pytest
from pydantic import ValidationError

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import value_at
from paceline.simulator.inputs.untrusted import LARGEST
from paceline.simulator.load.document import shipped
from paceline.simulator.load.load import load, parse
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.scenario.scenario import json_schema
from tests.helpers.cases import beside, looped, named
from tests.helpers.processes import loaded

SHIPPED = [*shipped().values()]

BASE = beside(__file__, "four-continents.toml")
QUADRATIC = 'kind = "quadratic"\ndimension = 200'
DIGITS = 'kind = "softmax"\ndata = "digits"\n'
COMPUTE = 'compute = { dist = "shifted-exponential", shift = "250 ms", mean = "300 ms" }'


def change(old, new):
    assert BASE.count(old) == 1, f"{old!r} must name one place of the scenario"
    return BASE.replace(old, new)


def table(text=BASE):
    return tomllib.loads(text)


def message(text, *overrides):
    with pytest.raises(InputError) as caught:
        parse(table(text), file="my.toml", overrides=overrides)
    return str(caught.value)


def test_a_whole_scenario_is_read_in_si_units():
    scenario = parse(table(), file="my.toml")
    assert scenario.title == "Four continents"
    assert scenario.file == "my.toml"
    assert scenario.table == table()
    assert scenario.model.bytes == 25_557_032 * 4
    assert scenario.cluster.compute.expectation == pytest.approx(0.3)
    assert scenario.cluster.group[0].compute.is_constant
    assert scenario.network.latency.expectation == pytest.approx(0.08)
    assert scenario.network.bandwidth == pytest.approx(34e6 / 8)
    assert scenario.network.link[0].between == ("tokyo", "virginia")
    assert scenario.server.apply == pytest.approx(0.01)
    assert scenario.theory.durations == (60.0, 1000.0)
    assert scenario.tune.programs["local-sgd"]["tau"] == (1, 2, 4, 8)
    assert scenario.cluster.extra_share == 0
    assert scenario.run.timeline_spans == 5000


def test_the_example_of_the_least_needs_little():
    least = """
    [model]
    parameters = 10
    [cluster]
    workers = 2
    compute = "1 s"
    [network]
    latency = "1 ms"
    [run]
    duration = "2 h"
    [[algorithm]]
    name = "ssgd"
    """
    scenario = parse(table(least))
    assert scenario.objective.kind == "none"
    assert scenario.run.duration == 7200
    assert scenario.algorithm[0].parameters["lr"](1) > 0


def test_algorithms_take_lr_and_momentum_from_the_optimizer_unless_they_say_otherwise():
    text = change("momentum = 0.0", "momentum = 0.9").replace("tau = 10", "tau = 10\nlr = 0.4")
    ssgd, local = parse(table(text)).algorithm
    assert ssgd.parameters["lr"](1) == 0.05
    assert local.parameters["lr"](1) == 0.4
    assert ssgd.parameters["momentum"] == local.parameters["momentum"]
    assert ssgd.parameters["momentum"].mu == 0.9
    assert local.table == {"name": "local-sgd", "tau": 10, "lr": 0.4}


def test_a_schedule_may_stand_for_the_learning_rate():
    schedule = 'lr = { schedule = "steps", start = 0.4, factor = 0.1, at = [80] }'
    scenario = parse(table(change("lr = 0.05", schedule)))
    assert scenario.optimizer.lr["start"] == 0.4
    lr = scenario.algorithm[0].parameters["lr"]
    assert (lr(80), lr(81)) == (0.4, pytest.approx(0.04))


def test_labels():
    assert [item.label for item in parse(table()).algorithm] == ["ssgd", "local-sgd tau=10"]
    named = parse(table(change("tau = 10", 'tau = 10\nlabel = "ours"')))
    assert named.algorithm[1].label == "ours"
    outer = 'tau = 10\nouter = { kind = "momentum", mu = 0.3 }'
    long = parse(table(change("tau = 10", outer)))
    assert long.algorithm[1].label == "local-sgd tau=10 outer=momentum(mu=0.3)"


def test_users_programs_may_be_named():
    ours = catalogue()["local-sgd"]
    mine = Program("mine", ours.worker, "nowhere")
    text = BASE.replace('name = "local-sgd"', 'name = "mine"')
    scenario = parse(table(text), programs={**catalogue(), "mine": mine})
    assert scenario.algorithm[1].name == "mine"
    assert "mine" in json.dumps(json_schema({"mine": mine}))
    assert "unknown; write one of: psgd" in message(text)


def test_a_scenario_is_frozen_and_survives_pickling(tmp_path):
    (tmp_path / "times.csv").write_text("0.2\n0.3\n")
    file = tmp_path / "my.toml"
    file.write_text(change(COMPUTE, 'compute = { dist = "empirical", file = "times.csv" }'))
    scenario = load(file)
    assert scenario.cluster.compute.expectation == pytest.approx(0.25)
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario
    assert (again.file, again.table) == (str(file), scenario.table)
    assert again.cluster.compute.expectation == pytest.approx(0.25)
    with pytest.raises(ValidationError, match="frozen"):
        scenario.run.seeds = 9


def test_parsing_leaves_the_callers_table_alone():
    before = table()
    after = copy.deepcopy(before)
    parse(after, overrides=["run.seeds=3"])
    assert before == after


# what is changed -> what the message must hold, besides the file
CASES = tomllib.loads(beside(__file__, "wrong.toml"))
WRONG = {
    name: ((case["old"], case["new"]), case["says"], *case.get("set", ()))
    for name, case in CASES.items()
}
BEYOND_SCHEMA = [name for name, case in CASES.items() if not case.get("schema", True)]
JARGON = ("type=", "pydantic", "http", "Input should", "Traceback", "validation error")


def test_wrong_input_is_refused_with_file_key_value_and_remedy():
    for name, ((old, new), expected, *overrides) in WRONG.items():
        with named(name):
            text = message(change(old, new), *overrides)
            assert [words for words in expected if words not in text] == []
            lines = text.splitlines()
            assert all(line.startswith("my.toml") for line in lines)
            assert len(lines) <= 6
            assert [words for words in JARGON if words in text] == []


def test_an_override_without_a_value_unsets_a_key():
    plain = table()
    again = parse(plain, overrides=["run.target_loss=0.1", "run.target_loss="]).table
    assert "target_loss" not in again["run"]
    with pytest.raises(InputError, match=r"run\.target_los is not set; write a value"):
        parse(plain, overrides=["run.target_los="])


def test_several_problems_are_told_at_once_but_not_too_many():
    two = change("seeds = 8", "seeds = 0").replace("node_hour = 2.5", "node_hour = -1")
    assert len(message(two).splitlines()) == 2
    many = change("seeds = 8", "\n".join(f"wrong{i} = {i}" for i in range(9)))
    assert message(many).splitlines()[5:] == ["my.toml: 4 more, shown once these are corrected"]


def test_allow_zero_allows_a_compute_time_of_zero():
    scenario = parse(table(change(COMPUTE, 'compute = "0 s"\nallow_zero = true')))
    assert scenario.cluster.compute.expectation == 0


def test_a_group_may_take_its_share_or_its_extra_from_the_cluster():
    text = change('region = "virginia"', 'region = "virginia"\nextra = "1 s"\nextra_share = 0.5')
    group = text.replace('name = "asia"', 'name = "asia"\nextra_share = 1')
    assert parse(table(group)).cluster.group[0].extra_share == 1
    text = change('region = "virginia"', 'region = "virginia"\nextra_share = 1')
    group = text.replace('name = "asia"', 'name = "asia"\nextra = "1 s"')
    assert parse(table(group)).cluster.extra is None


def test_momentum_that_a_program_does_not_have_is_refused():
    async def plain(me, *, lr: float) -> None: ...

    mine = {**catalogue(), "mine": Program("mine", plain, "nowhere")}
    text = change('name = "ssgd"', 'name = "mine"').replace("momentum = 0.0", "momentum = 0.9")
    with pytest.raises(InputError, match=r"optimizer\.momentum = 0\.9: mine has no momentum; set"):
        parse(table(text), programs=mine)
    assert parse(table(text), programs=mine, overrides=["optimizer.momentum=0"])


def test_momentum_is_left_to_the_program_where_the_optimizer_sets_none():
    async def heavy(me, *, lr: float, momentum: float = 0.9) -> None: ...

    mine = {"mine": Program("mine", heavy, "nowhere")}
    text = BASE.split("[[algorithm]]", maxsplit=1)[0] + '[[algorithm]]\nname = "mine"'
    scenario = parse(table(text.replace("momentum = 0.0", "")), programs=mine)
    assert scenario.algorithm[0].parameters == {"lr": 0.05, "momentum": 0.9}


# files


def refusal(path):
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_files_that_are_not_scenarios(tmp_path):
    file = tmp_path / "my.toml"
    assert "no such file" in refusal(file)
    assert "a directory" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / ("x" * 5000))
    assert "cannot be read" in refusal(f"{tmp_path}/\0")
    file.write_bytes(b"")
    assert "empty" in refusal(file)
    file.write_bytes(b"\n \n")
    assert "empty" in refusal(file)
    file.write_bytes(b'title = "a"\nx = "\xff"\n')
    assert "line 2 is not UTF-8" in refusal(file)
    file.write_bytes('title = "a"'.encode("utf-16"))
    assert "not UTF-8" in refusal(file)
    file.write_bytes(b"x = 1\n[run\n")
    assert "line 2, column 5" in refusal(file)
    file.write_bytes(b"x = " + b"9" * 5000)
    assert "not TOML" in refusal(file)
    file.write_bytes(b"x = " + b"[" * 100_000)
    assert "nested too deeply" in refusal(file)
    file.write_bytes(b"#" * (LARGEST + 1))
    assert "above 10 MB" in refusal(file)
    file.write_bytes(b"x = " + b"9" * 400)
    assert "unknown key" in refusal(file)
    file.write_bytes(BASE.replace("lr = 0.05", "lr = " + "9" * 400).encode())
    assert "optimizer.lr" in refusal(file)


def test_a_byte_order_mark_is_no_offence(tmp_path):
    file = tmp_path / "my.toml"
    file.write_bytes(BASE.encode("utf-8-sig"))
    assert load(file).title == "Four continents"


# overrides


OVERRIDES = tomllib.loads(beside(__file__, "overrides.toml"))


def test_overrides_set_any_key():
    for case in OVERRIDES["set"]:
        with named(case):
            read = parse(table(), overrides=[case["text"]]).table
            assert value_at(read, case["path"]) == case["value"]
    hasty = "tune.hasty={}"
    assert f"my.toml with --set {hasty}: tune.hasty = {{}}" in message(BASE, hasty)


def test_overrides_make_tables_that_are_missing():
    text = BASE.replace("[cost]\nnode_hour = 2.5", "")
    assert parse(table(text), overrides=["cost.node_hour=3"]).cost.node_hour == 3


def test_the_last_override_wins_and_labels_work_too():
    labelled = table(change("tau = 10", 'tau = 10\nlabel = "ours"'))
    scenario = parse(labelled, overrides=["algorithm.ours.tau=4", "algorithm.ours.tau=5"])
    assert scenario.algorithm[1].parameters["tau"](1) == 5


def test_overrides_that_cannot_be_are_refused_by_their_text():
    for case in OVERRIDES["refused"]:
        with named(case):
            text = message(BASE, case["text"])
            assert [words for words in case["says"] if words not in text] == []
    wording = message(BASE, "run.seeds=\udcff")
    assert 'run.seeds = "\\udcff"' in wording
    wording.encode()


@looped("override", ['objective.kind="none"', 'objective={kind="none"}'])
def test_an_override_that_there_is_no_loss_drops_what_only_a_loss_has(override):
    scenario = parse(table(), overrides=[override])
    assert (scenario.objective.kind, scenario.run.target_loss) == ("none", None)
    (note,) = scenario.notes
    assert note.startswith(f"--set {override}: ")
    assert "run.target_loss" in note
    assert ("objective.dimension" in note) == ("kind=" not in override.partition("=")[2])
    for more in ("objective.dimension=3", "run.target_loss=0.2"):
        with pytest.raises(InputError, match=more.partition("=")[0]):
            parse(table(), overrides=[override, more])
    for key in ("objective.dimension", "run.target_loss"):  # in a file nothing is dropped
        text = change('kind = "quadratic"', 'kind = "none"')
        text = text if "dim" in key else text.replace("dimension = 200", "")
        with pytest.raises(InputError, match=key):
            parse(table(text))


def test_an_override_that_names_two_algorithms_is_refused():
    twice = change('name = "ssgd"', 'name = "local-sgd"\ntau = 2')
    text = message(twice, "algorithm.local-sgd.tau=4")
    assert "2 entries of algorithm are called local-sgd" in text
    assert "algorithm.0, algorithm.1" in text


# schema


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(schema, allow_nan=False)))


def test_shipped_scenarios_load_and_fit_the_schema(validator):
    for path in SHIPPED:
        with named(path):
            written, real = tomllib.loads(path.read_text()), path.parent.name == "real-data"
            # data that may not be installed, and parts of scenarios
            assert load(path, ["objective.data=digits"] if real else ()).algorithm
            assert real or validator.validate(written) is None


def test_the_schema_accepts_what_is_read(validator):
    validator.validate(table())
    schedule = 'lr = { schedule = "steps", start = 0.4, factor = 0.1, at = [80] }'
    validator.validate(table(change("lr = 0.05", schedule)))
    validator.validate(table(change(QUADRATIC, DIGITS + "partition = {dirichlet=1}")))


def test_without_a_loss_evaluations_may_lie_beyond_the_end():
    text = change("seeds = 8", "evaluate_every = 2001")
    assert message(text)
    settings = table(text) | {"objective": {"kind": "none"}}
    settings["run"].pop("target_loss", None)
    assert parse(settings).run.evaluate_every == 2001


def test_the_schema_refuses_wrong_input_too(validator):
    for name, ((old, new), *_) in WRONG.items():
        if name not in BEYOND_SCHEMA:
            data = json.loads(json.dumps(table(change(old, new)), default=str))
            assert not validator.is_valid(data), name


def test_the_schema_has_no_null():
    assert '"type": "null"' not in json.dumps(json_schema())


# robustness


def test_a_date_is_no_title():
    data = {**table(), "title": datetime.date(2026, 1, 1)}
    with pytest.raises(InputError, match="title = 2026-01-01: not a text"):
        parse(data)


def test_loading_imports_nothing_heavy(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(BASE)
    code = f"from paceline.simulator.load.load import load; load({str(file)!r})"
    heavy = "scipy.special", "scipy.stats", "sklearn", "matplotlib", "torch", "simpy"
    assert loaded(code, *heavy) == []


def test_tokens_stand_for_the_steps_of_as_many_workers_as_there_are():
    goal = {"kind": "learning-curve", "tokens": 1000, "curve": {"law": "chinchilla", "batch": 1000}}
    goal["curve"]["parameters"] = 1e8
    group = [{"name": "near", "workers": 3}, {"name": "far", "workers": 1}]
    fields = table() | {"objective": goal, "run": {"tokens": 9.5e6}}
    fields |= {"network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"}}
    fields["cluster"] = {"workers": 4, "compute": "1 s", "group": group}
    assert parse(fields).run.steps == 2375
    fewer = parse(fields, overrides=["cluster.workers=3", "cluster.group.far.workers=0"])
    assert fewer.run.steps == 3167
    assert [*fewer.cluster.of_workers("region")] == [None] * 3
    assert parse(fields, overrides=["run.steps=100"]).run.steps == 100
    fields["run"] = {"steps": 100}
    assert parse(fields, overrides=["run.tokens=9.5e6"]).run.steps == 2375


def test_a_law_without_its_batch_says_of_which_steps_it_is_taken_to_speak():
    goal = 'objective={kind="learning-curve", tokens=512, curve={law="chinchilla", parameters=1e6'
    (note,) = parse(table(), overrides=[goal + "}}"]).notes
    assert "no objective.curve.batch" in note
    assert "steps of 512 tokens, those of one worker" in note
    assert parse(table(), overrides=[goal + ", batch=2048}}"]).notes == ()


EXTENDED = """
title = "base"
model.parameters = 1000
optimizer.lr = 0.1
objective = { kind = "quadratic", dimension = 4 }
cluster = { workers = 4, compute = { dist = "constant", value = "1 s" } }
network = { latency = "1 ms", bandwidth = "1 Gbit/s" }
run = { steps = 10, seeds = 2 }
algorithm = [{ name = "ssgd" }, { name = "local-sgd", tau = 2 }]
"""


def test_a_scenario_extends_a_scenario_key_by_key(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "base.toml").write_text(EXTENDED)
    middle, top = tmp_path / "middle.toml", tmp_path / "top.toml"
    middle.write_text('extends = "below/base.toml"\ncluster.workers = 8\nnetwork.latency = "5 ms"')
    top.write_text('extends = "middle.toml"\ntitle = "top"\nrun.seeds = 3\n'
                   'algorithm = [{ name = "asgd" }]\n[tune]\nasgd = { lr = [0.1] }')  # fmt: skip
    made = load(top)
    assert (made.title, made.cluster.workers, made.run.steps, made.run.seeds) == ("top", 8, 10, 3)
    assert made.network.latency.expectation == 0.005
    assert [algorithm.name for algorithm in made.algorithm] == ["asgd"]  # arrays are replaced
    assert parse(made.table).table == made.table  # from anywhere
    middle.write_text('extends = "below/base.toml"\ncluster.workers = 0')
    with pytest.raises(InputError, match=r"middle\.toml: cluster\.workers = 0: too small"):
        load(top)
    middle.write_text('extends = "top.toml"')
    with pytest.raises(InputError, match=r"middle\.toml: extends = .*extends itself"):
        load(top)
    middle.write_text('extends = "../other.toml"')
    with pytest.raises(InputError, match=r"middle\.toml: extends = .*outside the folder"):
        load(top)
    for number in range(9):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"')
    middle.write_text('extends = "0.toml"')
    with pytest.raises(InputError, match=r"6\.toml: extends = .*more than 8 files"):
        load(top)


def test_a_scenario_extends_a_shipped_one_by_its_name(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "llm/four-sites"\n[run]\ntokens = 10e9\n[tune]\nsites = [1, 2]')
    made, shipped = load(mine), load("llm/four-sites")
    assert made.tune.sites == (1, 2)
    assert made.tune.programs == shipped.tune.programs
    assert made.run.steps < shipped.run.steps  # tokens take the place of steps
    assert made.cluster == shipped.cluster
