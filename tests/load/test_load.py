"""Scenarios: what is read, what is refused and in which words."""

import copy
import datetime
import json
import pickle
import subprocess
import sys
import tomllib

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.untrusted import LARGEST
from paceline.simulator.load.explain import value_at
from paceline.simulator.load.listing import shipped
from paceline.simulator.load.load import load, parse
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.scenario.scenario import Scenario, json_schema, unusual
from tests.helpers.cases import looped, named

SHIPPED = [*shipped().values()]

BASE = """
title = "Four continents"

[model]
parameters = 25_557_032
bytes_per_parameter = 4

[objective]
kind = "quadratic"
dimension = 200

[optimizer]
lr = 0.05
momentum = 0.0

[cluster]
workers = 4
compute = { dist = "shifted-exponential", shift = "250 ms", mean = "300 ms" }
region = "virginia"

[[cluster.group]]
name = "asia"
workers = 1
compute = { dist = "constant", value = "350 ms" }
region = "tokyo"

[network]
collective = "ring"
latency = "80 ms"
bandwidth = "34 Mbit/s"

[[network.link]]
between = ["tokyo", "virginia"]
latency = "150 ms"

[server]
receive = "2 ms"
apply = "10 ms"

[run]
steps = 2000
target_loss = 0.1
seeds = 8

[[algorithm]]
name = "ssgd"

[[algorithm]]
name = "local-sgd"
tau = 10

[tune]
local-sgd = { tau = [1, 2, 4, 8] }
adacomm = { gamma = { low = 0.1, high = 0.9 } }

[theory]
periods = [1, 10]
durations = ["60 s", "1000 s"]

[cost]
node_hour = 2.5
"""
QUADRATIC = 'kind = "quadratic"\ndimension = 200'
DIGITS = 'kind = "softmax"\ndata = "digits"\n'
BOUND = 'kind = "bound"\ninitial_gap = 1.0\nsmoothness = 1.0\ngradient_variance = 1.0'
COMPUTE = 'compute = { dist = "shifted-exponential", shift = "250 ms", mean = "300 ms" }'

REGION = 'region = "virginia"'


def crash(worker: str, *recovery: str, lasts: str = 'lasts = "1 s"', device: bool = False) -> str:
    """The cluster's tables with a crash, or none, and a [recovery] of these lines."""
    lines = [REGION]
    if worker:
        lines += ["[[cluster.crash]]", worker, 'at = "1 s"', lasts]
    if device:
        lines += ["[[cluster.device]]", 'name = "a10"', "shared_by = 2"]
        lines += ["[[cluster.group]]", 'name = "pair"', "workers = 2", 'device = "a10"']
    return "\n".join([*lines, *(["[recovery]", *recovery] if recovery else [])])


def change(old: str, new: str) -> str:
    assert BASE.count(old) == 1, f"{old!r} must name one place of the scenario"
    return BASE.replace(old, new)


def table(text: str = BASE) -> dict:
    return tomllib.loads(text)


def message(text: str, *overrides: str) -> str:
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
    assert scenario.tune["local-sgd"]["tau"] == (1, 2, 4, 8)
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
    assert [each.label for each in parse(table()).algorithm] == ["ssgd", "local-sgd tau=10"]
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
WRONG = {
    "overhead of an unknown program": (
        ('title = "Four continents"', 'overhead = [{ algorithm = "sgsd" }]'),
        ['overhead[0].algorithm = "sgsd"', "unknown program", "did you mean `ssgd`?"],
    ),
    "unknown section": (
        ("[server]", "[sever]"),
        ["sever = {", "unknown key", "did you mean `server`?"],
    ),
    "unknown key": (
        ('latency = "80 ms"', 'latncy = "80 ms"'),
        ['network.latncy = "80 ms"', "did you mean `latency`?", "bandwidth"],
    ),
    "key of another section": (
        ('title = "Four continents"', "workers = 4"),
        ["workers = 4", "unknown key", "it belongs in [cluster]"],
    ),
    "unknown key of a group": (
        ('name = "asia"', 'name = "asia"\nregoin = "x"'),
        ['cluster.group[0].regoin = "x"', "did you mean `region`?"],
    ),
    "key of a device in a group": (
        ('name = "asia"', 'name = "asia"\nspeed = 0.95'),
        ["cluster.group[0].speed = 0.95", "it belongs in [[cluster.device]]", "compute"],
    ),
    "unknown key of a link": (
        ('latency = "150 ms"', 'latency = "150 ms"\nloss = 0.1'),
        ["network.link[0].loss = 0.1", "the keys here are: bandwidth, jitter"],
    ),
    "unknown key of a distribution": (
        ("shift =", "shfit ="),
        ['cluster.compute.shfit = "250 ms"', "did you mean `shift`?", "cluster.compute.shift"],
    ),
    "unknown key of the objective": (
        ("dimension = 200", "dimensions = 200"),
        ["objective.dimensions = 200", "did you mean `dimension`?"],
    ),
    "key of another objective": (
        ("dimension = 200", "batch = 32"),
        ["objective.batch = 32", "the keys here are: kind, dimension, spectrum"],
    ),
    "deadline of a run": (
        ("seeds = 8", 'deadline = "1 h"'),
        ['run.deadline = "1 h"', "did you mean `duration`?"],
    ),
    "steps by another word": (
        ("seeds = 8", "iterations = 8"),
        ["run.iterations = 8", "did you mean `steps`?"],
    ),
    "name and kind of a codec": (
        ('name = "ssgd"', 'name = "ssgd"\ncodec = { name = "top-k", kind = "top-k", ratio = 0.1 }'),
        ['algorithm[0].codec.name = "top-k"', "another word for kind, which is there"],
    ),
    "bits or bytes": (
        ('bandwidth = "34 Mbit/s"', 'bandwidth = "1 gbps"'),
        ['did you mean "1 Gbit/s" (bits) or "1 GB/s" (bytes)?'],
    ),
    "bits, but not by the second": (
        ('bandwidth = "34 Mbit/s"', 'bandwidth = "34 kibit"'),
        ['did you mean "34 Kibit/s"? write a bandwidth'],
    ),
    "scenario to extend": (
        ('title = "Four continents"', 'extends = "one-box"'),
        ["extends = 'one-box'", "nothing extends", "change a copy of"],
    ),
    "key in quotes": (
        ("seeds = 8", '"se eds" = 8'),
        ['run."se eds" = 8', "did you mean `seeds`?"],
    ),
    "case and underscore": (
        ('name = "local-sgd"', 'name = "Local_SGD"'),
        ['algorithm[1].name = "Local_SGD"', "did you mean `local-sgd`?"],
    ),
    "unknown parameter": (
        ("tau = 10", "tua = 10"),
        ["algorithm[1].tua = 10", "did you mean `tau`?"],
    ),
    "parameter of another program": (
        ('name = "ssgd"', 'name = "ssgd"\ntau = 4'),
        [
            "algorithm[0].tau = 4",
            "unknown key",
            "the keys here are: name, label, recovery, lr, momentum",
        ],
    ),
    "missing parameter": (("tau = 10", ""), ["algorithm[1].tau", "missing", "period"]),
    "impossible parameter": (("tau = 10", "tau = 0"), ["algorithm[1].tau = 0", "1"]),
    "wrong kind of parameter": (("tau = 10", 'tau = "ten"'), ['algorithm[1].tau = "ten"']),
    "unknown kind in a parameter": (
        ("tau = 10", 'tau = 10\nouter = { kind = "momentm" }'),
        ['algorithm[1].outer.kind = "momentm"', "did you mean `momentum`?"],
    ),
    "missing key in a parameter": (
        ("tau = 10", 'tau = 10\nouter = { kind = "momentum" }'),
        ["algorithm[1].outer.mu", "missing"],
    ),
    "text for a table in a parameter": (
        ("tau = 10", 'tau = 10\nouter = "average"'),
        ['algorithm[1].outer = "average"', "write a number from 0 (off)", "or a table"],
    ),
    "algorithm without a name": (
        ('name = "ssgd"', ""),
        ["algorithm[0].name", "missing", "ssgd"],
    ),
    "algorithm that is no text": (
        ('name = "ssgd"', "name = 3"),
        ["algorithm[0].name = 3", "unknown", "write one of"],
    ),
    "label that is no text": (
        ('name = "ssgd"', 'name = "ssgd"\nlabel = 3'),
        ["algorithm[0].label = 3", "not a text", "in quotes"],
    ),
    "labels alike": (
        ('name = "local-sgd"\ntau = 10', 'name = "ssgd"'),
        ["algorithm[1].label", '"ssgd" is also the label of algorithm[0]', "its own"],
    ),
    "unit missing": (
        ('latency = "80 ms"', "latency = 80"),
        ["network.latency = 80", "without a unit", '"300 ms"'],
    ),
    "unit missing in text": (
        ('bandwidth = "34 Mbit/s"', 'bandwidth = "34"'),
        ['network.bandwidth = "34"', "not a bandwidth", '"34 Mbit/s"'],
    ),
    "unit missing in a distribution": (
        ('mean = "300 ms"', "mean = 0.3"),
        ["cluster.compute.mean = 0.3", "without a unit", '"300 ms"'],
    ),
    "unit of another dimension": (
        ('latency = "80 ms"', 'latency = "80 MB"'),
        ['network.latency = "80 MB"', "not a time", '"300 ms"'],
    ),
    "unit unknown": (
        ('receive = "2 ms"', 'receive = "2 parsecs"'),
        ['server.receive = "2 parsecs"', "not a quantity", '"300 ms"'],
    ),
    "unit in a list": (
        ('durations = ["60 s", "1000 s"]', 'durations = ["60 s", 1000]'),
        ["theory.durations[1] = 1000", "without a unit"],
    ),
    "negative latency": (
        ('latency = "80 ms"', 'latency = "-80 ms"'),
        ['network.latency = "-80 ms"', "negative"],
    ),
    "negative latency of a link": (
        ('latency = "150 ms"', 'latency = { dist = "constant", value = "-1 ms" }'),
        ['network.link[0].latency.value = "-1 ms"', "negative"],
    ),
    "no bandwidth at all": (
        ('bandwidth = "34 Mbit/s"', 'bandwidth = "0 bit/s"'),
        ['network.bandwidth = "0 bit/s"', "above 0"],
    ),
    "zero workers": (
        ("workers = 4", "workers = 0"),
        ["cluster.workers = 0", "too small", "1 or more"],
    ),
    "half a worker": (
        ("workers = 4", "workers = 4.5"),
        ["cluster.workers = 4.5", "not a whole number"],
    ),
    "workers in quotes": (
        ("workers = 4", 'workers = "4"'),
        ['cluster.workers = "4"', "not a whole number", "without quotes"],
    ),
    "workers as a truth": (
        ("workers = 4", "workers = true"),
        ["cluster.workers = true", "not a whole number"],
    ),
    "too many workers": (
        ("workers = 4", "workers = 1_000_000"),
        ["cluster.workers = 1000000", "too large", "65535 or less"],
    ),
    "nan": (
        ("target_loss = 0.1", "target_loss = nan"),
        ["run.target_loss = nan", "finite"],
    ),
    "inf": (("node_hour = 2.5", "node_hour = inf"), ["cost.node_hour = inf", "finite"]),
    "negative lr": (("lr = 0.05", "lr = -0.05"), ["optimizer.lr = -0.05", "above zero"]),
    "lr that is nan": (("lr = 0.05", "lr = nan"), ["optimizer.lr = nan", "finite"]),
    "negative lr of one algorithm": (
        ("tau = 10", "tau = 10\nlr = -1"),
        ["algorithm[1].lr = -1", "above zero"],
    ),
    "lr missing": (("lr = 0.05", ""), ["optimizer.lr", "missing", "learning rate"]),
    "lr in quotes": (("lr = 0.05", 'lr = "0.05"'), ['optimizer.lr = "0.05"', "a number"]),
    "unknown schedule": (
        ("lr = 0.05", 'lr = { schedule = "step", start = 1.0 }'),
        ['optimizer.lr.schedule = "step"', "did you mean `steps`?", "constant"],
    ),
    "unknown key of a schedule": (
        ("lr = 0.05", 'lr = { schedule = "steps", start = 1.0, factr = 0.1, at = [8] }'),
        ["optimizer.lr.factr = 0.1", "did you mean `factor`?"],
    ),
    "momentum of one": (
        ("momentum = 0.0", "momentum = 1.0"),
        ["optimizer.momentum = 1.0", "up to, not including, 1"],
    ),
    "compute takes no time": (
        (COMPUTE, 'compute = "0 s"'),
        ['cluster.compute = "0 s"', "takes no time", "cluster.allow_zero = true"],
    ),
    "compute of a group takes no time": (
        ('value = "350 ms"', 'value = "0 ms"'),
        ["cluster.group[0].compute = {", "takes no time", "cluster.allow_zero = true"],
    ),
    "compute missing": ((COMPUTE, ""), ["cluster.compute", "missing", "time to compute"]),
    "unknown distribution": (
        ('dist = "shifted-exponential"', 'dist = "shifted-exponentail"'),
        ["cluster.compute.dist", "did you mean `shifted-exponential`?", "weibull, pareto"],
    ),
    "distribution without a name": (
        (COMPUTE, 'compute = { mean = "1 s" }'),
        ["cluster.compute = {", "dist", "exponential"],
    ),
    "samples missing": (
        (COMPUTE, 'compute = { dist = "empirical", file = "gone.csv" }'),
        [
            "cluster.compute = {",
            "gone.csv: cannot be read (No such file or directory)",
            "write one time per line",
        ],
    ),
    "mean below shift": (
        ('mean = "300 ms"', 'mean = "200 ms"'),
        ["cluster.compute = {", "mean", "above shift"],
    ),
    "unknown objective": (
        ('kind = "quadratic"', 'kind = "quadratc"'),
        ['objective.kind = "quadratc"', "did you mean `quadratic`?", "bound", "softmax"],
    ),
    "objective without a kind": (
        ('kind = "quadratic"', ""),
        ["objective.kind", "missing", "bound, quadratic, softmax"],
    ),
    "unknown collective": (
        ('collective = "ring"', 'collective = "rings"'),
        ['network.collective = "rings"', "did you mean `ring`?", "hierarchical"],
    ),
    "unknown data": (
        (QUADRATIC, 'kind = "softmax"\ndata = "mnist"'),
        ['objective.data = "mnist"', "digits, random-classification"],
    ),
    "unknown partition": (
        (QUADRATIC, DIGITS + 'partition = "non-iid"'),
        ['objective.partition = "non-iid"', "iid", "{ dirichlet = 0.3 }"],
    ),
    "dirichlet of zero": (
        (QUADRATIC, DIGITS + "partition = { dirichlet = 0 }"),
        ["objective.partition.dirichlet = 0", "above 0"],
    ),
    "unknown key of a partition": (
        (QUADRATIC, DIGITS + "partition = { dirichlt = 0.3 }"),
        ["objective.partition.dirichlt = 0.3", "did you mean `dirichlet`?"],
    ),
    "batch of zero": (
        (QUADRATIC, DIGITS + "batch = 0"),
        ["objective.batch = 0", "1 or more"],
    ),
    "neither steps nor duration": (
        ("steps = 2000", ""),
        ["run = {", "neither steps nor duration", "run.steps", "run.duration"],
    ),
    "steps and tokens": (
        ("steps = 2000", "steps = 2000\ntokens = 1e9"),
        ["run = {", "both steps and tokens", "write one of them"],
    ),
    "tokens of no known step": (
        ("steps = 2000", "tokens = 1e9"),
        ["run = {", "tokens need objective.tokens", "write steps"],
    ),
    "no run": (
        ("[run]\nsteps = 2000\ntarget_loss = 0.1\nseeds = 8", ""),
        ["run: missing", "[run]"],
    ),
    "no model": (
        ("[model]\nparameters = 25_557_032\nbytes_per_parameter = 4", ""),
        ["model: missing", "[model]"],
    ),
    "given without a duration": (
        ('collective = "ring"', 'collective = "given"'),
        ['network.collective = "given"', "network.duration"],
    ),
    "duration with a collective": (
        ('collective = "ring"', 'collective = "ring"\nduration = "1 s"'),
        ['network.duration = "1 s"', "contradicts", "remove it", '"given"'],
    ),
    "latency missing": (('latency = "80 ms"', ""), ["network.latency", "missing", '"80 ms"']),
    "server without latency": (
        ('collective = "ring"\nlatency = "80 ms"', 'collective = "given"\nduration = "1 s"'),
        ["network.latency", "missing", "asgd sends messages"],
        "algorithm.0.name=asgd",
    ),
    "groups larger than the cluster": (
        ("workers = 1\n", "workers = 5\n"),
        ["cluster.workers = 4", "5 workers in all"],
    ),
    "extra without a share": (
        ('region = "virginia"', 'extra = "1 s"'),
        ['cluster.extra = "1 s"', "extra_share"],
    ),
    "share without extra": (
        ('region = "virginia"', "extra_share = 0.5"),
        ["cluster.extra_share = 0.5", "add cluster.extra"],
    ),
    "group's extra without a share": (
        ('name = "asia"', 'name = "asia"\nextra = "1 s"'),
        ['cluster.group[0].extra = "1 s"', "add extra_share"],
    ),
    "group's share without extra": (
        ('name = "asia"', 'name = "asia"\nextra_share = 1'),
        ["cluster.group[0].extra_share = 1", "add extra"],
    ),
    "share that rounds to nobody": (
        ('region = "virginia"', 'extra = "1 s"\nextra_share = 0.001'),
        ["cluster.extra_share = 0.001", "none of", "write a share of at least"],
    ),
    "share above one": (
        ('region = "virginia"', 'extra = "1 s"\nextra_share = 50'),
        ["cluster.extra_share = 50", "1 or less"],
    ),
    "share of nobody": (
        ('region = "virginia"', 'extra = "1 s"\nextra_share = 0'),
        ["cluster.extra_share = 0", "above 0"],
    ),
    "group names alike": (
        ('region = "tokyo"', '[[cluster.group]]\nname = "asia"\nworkers = 1\nregion = "tokyo"'),
        ['cluster.group[1].name = "asia"', "also the name of cluster.group[0]"],
    ),
    "group instead of a list": (
        ("[[cluster.group]]", "[cluster.group]"),
        ["cluster.group = {", "write [[cluster.group]]"],
    ),
    "list instead of a table": (
        ("[server]", "[[server]]"),
        ["server = [", "write [server]"],
    ),
    "text instead of a table": (
        ("[cost]\nnode_hour = 2.5", ""),
        ['cost = "free"', "not a table", "[cost]"],
        "cost=free",
    ),
    "link to nowhere": (
        ('between = ["tokyo", "virginia"]', 'between = ["tokio", "virginia"]'),
        ['network.link[0].between[0] = "tokio"', "no worker", "did you mean `tokyo`?"],
    ),
    "link with one end": (
        ('between = ["tokyo", "virginia"]', 'between = ["tokyo"]'),
        ["network.link[0].between", "missing"],
    ),
    "link with three ends": (
        ('between = ["tokyo", "virginia"]', 'between = ["tokyo", "virginia", "oregon"]'),
        ["network.link[0].between = [", "too long", "2"],
    ),
    "links alike": (
        (
            'latency = "150 ms"',
            'latency = "150 ms"\n[[network.link]]\nbetween = ["virginia", "tokyo"]',
        ),
        ["network.link[1].between = [", "network.link[0] joins the same two", "keep one"],
    ),
    "region of the server": (
        ('region = "virginia"', 'region = "server"'),
        ['cluster.region = "server"', "parameter server's own"],
    ),
    "hierarchical without regions": (
        ('region = "virginia"', ""),
        ['network.collective = "hierarchical"', "region", "cluster.region"],
        "network.collective=hierarchical",
    ),
    "evaluations beyond the end": (
        ("seeds = 8", "evaluate_every = 2001"),
        ["run.evaluate_every = 2001", "run.steps = 2000"],
    ),
    "no seeds": (("seeds = 8", "seeds = 0"), ["run.seeds = 0", "1 or more"]),
    "no steps": (("steps = 2000", "steps = 0"), ["run.steps = 0", "1 or more"]),
    "no time": (("steps = 2000", 'duration = "0 s"'), ['run.duration = "0 s"', "above 0"]),
    "time only with a target": (
        (QUADRATIC, 'kind = "none"'),
        ["run.target_loss = 0.1", 'objective.kind = "none"', "remove the target"],
    ),
    "time only with a loss-driven program": (
        (QUADRATIC, 'kind = "none"'),
        ['algorithm[0].name = "adacomm"', "reads the training loss", 'kind = "quadratic"'],
        'algorithm.0={name="adacomm", tau0=4}',
    ),
    "bound with a loss-driven program": (
        (QUADRATIC, BOUND),
        ['algorithm[0].name = "adacomm"', "reads the training loss", 'kind = "quadratic"'],
        'algorithm.0={name="adacomm", tau0=4}',
    ),
    "bound with a program it does not cover": (
        (QUADRATIC, BOUND),
        ['algorithm[0].name = "asgd"', 'objective.kind = "bound"', "local-sgd"],
        "algorithm.0.name=asgd",
    ),
    "bound without its constants": (
        (QUADRATIC, 'kind = "bound"\ninitial_gap = 1.0'),
        ["objective.smoothness: missing", "Lipschitz", "objective.gradient_variance: missing"],
    ),
    "tuned program unknown": (
        ("adacomm = {", "adacom = {"),
        ["tune.adacom = {", "did you mean `adacomm`?"],
    ),
    "tuned parameter unknown": (
        ("local-sgd = { tau", "local-sgd = { tua"),
        ["tune.local-sgd.tua = [", "did you mean `tau`?"],
    ),
    "tuned value impossible": (
        ("tau = [1, 2, 4, 8]", "tau = [1, 0]"),
        ["tune.local-sgd.tau[1] = 0", "1"],
    ),
    "tuned without values": (
        ("tau = [1, 2, 4, 8]", "tau = []"),
        ["tune.local-sgd.tau = []", "1 or more"],
    ),
    "tuned by a single value": (
        ("tau = [1, 2, 4, 8]", "tau = 4"),
        ["tune.local-sgd.tau = 4", "not a list", "square brackets"],
    ),
    "tuned range upside down": (
        ("low = 0.1, high = 0.9", "low = 0.9, high = 0.1"),
        ["tune.adacomm.gamma.low = 0.9", "not below high = 0.1", "swap"],
    ),
    "tuned range beyond the possible": (
        ("low = 0.1, high = 0.9", "low = 0.1, high = 9"),
        ["tune.adacomm.gamma.high = 9", "below 1"],
    ),
    "tuned range with a wrong key": (
        ("low = 0.1, high = 0.9", "low = 0.1, hihg = 0.9"),
        ["tune.adacomm.gamma.hihg = 0.9", "did you mean `high`?", "gamma.high: missing"],
    ),
    "profile that ends at zero": (
        ('region = "virginia"', 'profile = { at = ["0 s", "1 h"], factor = [1, 0] }'),
        ["cluster.profile = {", "zero for good", "above 0"],
    ),
    "profile of nothing": (
        ('region = "virginia"', "profile = {}"),
        ["cluster.profile.at: missing", "cluster.profile.factor: missing"],
    ),
    "profile of an unknown kind": (
        ('region = "virginia"', 'profile = { kind = "dayly", low = 0.5, high = 1 }'),
        ['cluster.profile.kind = "dayly"', "steps, daily, trace"],
    ),
    "profile with a wrong key": (
        (
            'name = "asia"',
            'name = "asia"\nprofile = { kind = "daily", low = 0.5, high = 1, peek = "1 h" }',
        ),
        ["cluster.group[0].profile.peek", "did you mean `peak`?", "profile.peak: missing"],
    ),
    "profile below zero": (
        ('region = "virginia"', 'profile = { at = ["0 s"], factor = [-1] }'),
        ["cluster.profile.factor[0] = -1", "write 0 or more"],
    ),
    "device unknown": (
        (
            'name = "asia"',
            'name = "asia"\nworkers = 1\ndevice = "a10"\n[[cluster.device]]\n'
            'name = "a100"\n[[cluster.group]]\nname = "b"\ndevice = "a100"',
        ),
        ['cluster.group[0].device = "a10"', "did you mean `a100`?"],
    ),
    "failures that take no time": (
        (REGION, REGION + '\nfailures = { between = "0 s", repair = "1 min" }'),
        ['cluster.failures.between = "0 s"', "write a value above 0"],
    ),
    "crash of nobody": (
        (REGION, crash("worker = 4")),
        ["cluster.crash[0].worker = 4", "there is none", "from 0 to 3"],
    ),
    "crash of a rank below zero": (
        (REGION, crash("worker = -1")),
        ["cluster.crash[0].worker = -1"],
    ),
    "crash of a server that is not there": (
        (REGION, crash('worker = "server"')),
        ['cluster.crash[0].worker = "server"', "no algorithm here has a server; remove it"],
    ),
    "crash on a shared device": (
        (REGION, crash("worker = 0", device=True)),
        ["cluster.crash[0].worker = 0", "shares a device", "write a worker that has its own"],
    ),
    "crash for good, and restart": (
        (REGION, crash("worker = 0", 'policy = "restart"', "checkpoint = { every = 5 }", lasts="")),
        ["cluster.crash[0] = {", "no restart can go on without this worker", 'lasts = "10 min"'],
    ),
    "restart without a checkpoint": (
        (REGION, crash("worker = 0", 'policy = "restart"')),
        ['recovery.policy = "restart"', "no checkpoint to restart from", "add recovery.checkpoint"],
    ),
    "quorum that is neither a number nor a share": (
        (REGION, REGION + '\n[recovery]\npolicy = "quorum"\nquorum = 1.5'),
        ["recovery.quorum = 1.5", "a number of workers", "a share of all", "0.75"],
    ),
    "backup beside waiting": (
        (REGION, crash("worker = 0", "backup = 1")),
        ["recovery.backup = 1", "does not wait", 'policy = "shrink"'],
    ),
    "backup beside restart": (
        (
            REGION,
            crash("worker = 0", "backup = 1", 'policy = "restart"', "checkpoint = { every = 5 }"),
        ),
        ["recovery.backup = 1", 'not with policy = "restart"'],
    ),
    "backup of everybody": (
        (REGION, REGION + "\n[recovery]\nbackup = 4"),
        ["recovery.backup = 4", "leaves out all 4 workers", "write 3 or less"],
    ),
    "backup on a shared device": (
        (REGION, crash("", "backup = 1", device=True)),
        ["recovery.backup = 1", "shares a device", "or cluster.device"],
    ),
    "checkpoint that never ends": (
        (REGION, crash("worker = 0", 'policy = "restart"', "checkpoint = { every = 0 }")),
        ["recovery.checkpoint.every = 0", "write 1 or more"],
    ),
    "torch": (
        (
            QUADRATIC,
            'kind = "torch"\nmodel = "mlp"\ndata = "cifar10"',
        ),
        ["objective.data", '"cifar10"', "unknown", "did you mean `cifar-10`"],
    ),
    "a date": (
        ("seeds = 8", "seeds = 2026-01-01"),
        ["run.seeds = 2026-01-01", "not a whole number"],
    ),
}


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
    with pytest.raises(InputError, match=r"optimizer\.momentum = 0\.9: mine has none; write"):
        parse(table(text), programs=mine)
    assert parse(table(text), programs=mine, overrides=["optimizer.momentum=0"])


def test_momentum_is_left_to_the_program_where_the_optimizer_sets_none():
    async def heavy(me, *, lr: float, momentum: float = 0.9) -> None: ...

    mine = {"mine": Program("mine", heavy, "nowhere")}
    text = BASE.split("[[algorithm]]", maxsplit=1)[0] + '[[algorithm]]\nname = "mine"'
    scenario = parse(table(text.replace("momentum = 0.0", "")), programs=mine)
    assert scenario.algorithm[0].parameters == {"lr": 0.05, "momentum": 0.9}


# files


def refusal(path) -> str:
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


SET = [
    ("run.seeds=3", ("run", "seeds"), 3),
    ("network.latency=20 ms", ("network", "latency"), "20 ms"),
    ('network.latency="20 ms"', ("network", "latency"), "20 ms"),
    ("network . latency = 20 ms ", ("network", "latency"), "20 ms"),
    ("network.collective=tree", ("network", "collective"), "tree"),
    ("title=a = b # c", ("title",), "a = b # c"),
    ("title=1\ntitle=2", ("title",), "1\ntitle=2"),
    ("optimizer.lr=1e-2", ("optimizer", "lr"), 0.01),
    ("algorithm.1.tau=4", ("algorithm", 1, "tau"), 4),
    ("algorithm[1].tau=4", ("algorithm", 1, "tau"), 4),
    ("cluster.group[0] . workers = 2", ("cluster", "group", 0, "workers"), 2),
    ("theory.periods[1]=3", ("theory", "periods", 1), 3),
    ("algorithm.local-sgd.tau=4", ("algorithm", 1, "tau"), 4),
    ('algorithm."local-sgd".tau=4', ("algorithm", 1, "tau"), 4),
    ("algorithm.local-sgd.label=ours", ("algorithm", 1, "label"), "ours"),
    ("cluster.group.asia.workers=2", ("cluster", "group", 0, "workers"), 2),
    ("cluster.group.asia.compute=1 s", ("cluster", "group", 0, "compute"), "1 s"),
    ('cluster.compute={dist="constant", value="1 s"}', ("cluster", "compute", "value"), "1 s"),
    ("theory.periods=[1, 2]", ("theory", "periods"), [1, 2]),
    ("theory.periods.1=3", ("theory", "periods", 1), 3),
    ("cost.egress_per_gb=0.09", ("cost", "egress_per_gb"), 0.09),
    ("tune.adacomm.tau0=[4, 8]", ("tune", "adacomm", "tau0"), [4, 8]),
    ("tune.hasty={}", None, None),
]


def test_overrides_set_any_key():
    for override, path, value in SET:
        with named(override):
            if path is None:
                text = message(BASE, override)
                assert f"my.toml with --set {override}: tune.hasty = {{}}" in text
            else:
                assert value_at(parse(table(), overrides=[override]).table, path) == value


def test_overrides_make_tables_that_are_missing():
    text = BASE.replace("[cost]\nnode_hour = 2.5", "")
    assert parse(table(text), overrides=["cost.node_hour=3"]).cost.node_hour == 3


def test_the_last_override_wins_and_labels_work_too():
    labelled = table(change("tau = 10", 'tau = 10\nlabel = "ours"'))
    scenario = parse(labelled, overrides=["algorithm.ours.tau=4", "algorithm.ours.tau=5"])
    assert scenario.algorithm[1].parameters["tau"](1) == 5


IMPOSSIBLE = [
    ("", ["--set ", "not table.key=value", "run.seeds=8"]),
    ("run.seeds", ["--set run.seeds:", "not table.key=value"]),
    ("=3", ["--set =3:", "not table.key=value"]),
    ("run..seeds=3", ["--set run..seeds=3:", "not table.key=value"]),
    ("run.seedz=", ["--set run.seedz=: run.seedz is not set"]),
    ("theory.periods=[1, 2", ["--set theory.periods=[1, 2:", "not TOML"]),
    ("title.x=3", ["--set title.x=3:", 'title = "Four continents" is not a table']),
    ("algorithm[2].tau=4", ["--set algorithm[2].tau=4:", "numbers from 0 to 1"]),
    ("algorithm[tau=4", ["not table.key=value"]),
    ("algorithm.2.tau=4", ["--set algorithm.2.tau=4:", "numbers from 0 to 1"]),
    ("algorithm.locl-sgd.tau=4", ["did you mean `local-sgd`?", "numbers from 0 to 1"]),
    ("cluster.group.europe.workers=1", ["cluster.group has no entry europe", "asia"]),
    ("run.seeds=0", ["my.toml with --set run.seeds=0: run.seeds = 0", "1 or more"]),
    ("netwrk.latency=1 s", ["with --set netwrk.latency=1 s: netwrk", "`network`"]),
    ("network.latency=20", ["with --set network.latency=20: network.latency = 20", "unit"]),
    ("run.seeds=\udcff", ['run.seeds = "\\udcff"']),
]


def test_overrides_that_cannot_be_are_refused_by_their_text():
    for override, expected in IMPOSSIBLE:
        with named(override):
            text = message(BASE, override)
            text.encode()
            assert [words for words in expected if words not in text] == []


@looped("said", ['objective.kind="none"', 'objective={kind="none"}'])
def test_an_override_that_there_is_no_loss_drops_what_only_a_loss_has(said):
    scenario = parse(table(), overrides=[said])
    assert (scenario.objective.kind, scenario.run.target_loss) == ("none", None)
    (note,) = scenario.notes
    assert note.startswith(f"--set {said}: ")
    assert "run.target_loss" in note
    assert ("objective.dimension" in note) == ("kind=" not in said.partition("=")[2])
    for more in ("objective.dimension=3", "run.target_loss=0.2"):
        with pytest.raises(InputError, match=more.partition("=")[0]):
            parse(table(), overrides=[said, more])
    for kept in ("objective.dimension", "run.target_loss"):  # in a file nothing is dropped
        text = change('kind = "quadratic"', 'kind = "none"')
        text = text if "dim" in kept else text.replace("dimension = 200", "")
        with pytest.raises(InputError, match=kept):
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
            assert load(path).algorithm
            validator.validate(tomllib.loads(path.read_text()))


def test_the_schema_accepts_what_is_read(validator):
    validator.validate(table())
    schedule = 'lr = { schedule = "steps", start = 0.4, factor = 0.1, at = [80] }'
    validator.validate(table(change("lr = 0.05", schedule)))
    validator.validate(table(change(QUADRATIC, DIGITS + "partition = {dirichlet=1}")))


# in these rows each value fits its own key; only several together, or what they stand for, do not
def test_without_a_loss_evaluations_may_lie_beyond_the_end():
    text = change("seeds = 8", "evaluate_every = 2001")
    assert message(text)
    own = table(text) | {"objective": {"kind": "none"}}
    own["run"].pop("target_loss", None)
    assert parse(own).run.evaluate_every == 2001


BEYOND_SCHEMA = {
    "labels alike", "unit missing in text", "unit of another dimension", "unit unknown",
    "steps and tokens", "tokens of no known step",
    "negative latency", "negative latency of a link", "no bandwidth at all", "nan", "inf",
    "lr missing", "lr that is nan", "compute takes no time", "compute of a group takes no time",
    "mean below shift", "samples missing", "neither steps nor duration", "given without a duration",
    "duration with a collective", "latency missing", "server without latency",
    "groups larger than the cluster", "extra without a share", "share without extra",
    "group's extra without a share", "group's share without extra", "group names alike",
    "share that rounds to nobody", "link to nowhere", "links alike", "region of the server",
    "hierarchical without regions", "evaluations beyond the end", "no time",
    "time only with a target",
    "time only with a loss-driven program", "bound with a loss-driven program",
    "bound with a program it does not cover", "tuned range upside down",
    "tuned range beyond the possible", "text instead of a table",
    "profile that ends at zero", "device unknown",
    "torch",
    "crash of nobody", "crash of a server that is not there", "crash on a shared device",
    "crash for good, and restart", "restart without a checkpoint", "checkpoint without restart",
    "time-out of those who wait", "backup beside waiting",
    "backup beside restart", "backup of everybody", "backup on a shared device",
    "failures that take no time", "overhead of an unknown program",
    "scenario to extend", "bits or bytes", "bits, but not by the second",
}  # fmt: skip


def test_the_schema_refuses_wrong_input_too(validator):
    for name, ((old, new), *_) in WRONG.items():
        if name not in BEYOND_SCHEMA:
            data = json.loads(json.dumps(table(change(old, new)), default=str))
            assert not validator.is_valid(data), name


def test_every_key_is_documented():
    schema = json_schema()
    sections = {key: node for key, node in schema["$defs"].items() if "kind" not in node}
    own = (
        "Cluster",
        "Group",
        "Model",
        "Network",
        "Link",
        "RunSettings",
        "Server",
        "Theory",
        "Prices",
    )
    for name in own:
        for key, node in sections[name]["properties"].items():
            assert "description" in node, f"{name}.{key}"
    assert '"type": "null"' not in json.dumps(schema)


# robustness

SECTIONS = tuple(Scenario.model_fields)
KEYS = st.sampled_from(
    [*SECTIONS, "name", "tau", "dist", "kind", "mean", "value", "group", "link", "workers",
     "compute", "latency", "lr", "momentum", "schedule", "between", "partition", "dirichlet",
     "components", "weight", "low", "high", "local-sgd", "ssgd", "adacomm", "outer", "file"]
) | st.text(max_size=5)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**310) | st.floats()
    | st.text(max_size=8) | st.dates() | st.times() | st.datetimes()
    | st.sampled_from(["300 ms", "1 Gbit/s", "constant", "mixture", "exponential", "steps",
                       "quadratic", "softmax", "bound", "ring", "given", "ssgd", "local-sgd"])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def read_or_refused(data: dict, *overrides: str) -> None:
    try:
        parse(data, overrides=overrides)
    except InputError as error:
        text = str(error)
        text.encode()
        assert "Input should" not in text
        assert "type=" not in text


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_junk_is_refused_and_never_crashes(data):
    read_or_refused(data)


def places(data, path=()):
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*path, key)
            yield from places(data[key], (*path, key))


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(place=st.sampled_from(list(places(table()))), key=st.none() | KEYS, value=VALUES)
def test_junk_in_one_place_is_refused_and_never_crashes(place, key, value):
    data = table()
    *way, last = place
    inner = data
    for part in way:
        inner = inner[part]
    if key is None or not isinstance(inner[last], dict):
        inner[last] = value
    else:
        inner[last][key] = value
    read_or_refused(data)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.builds("{}.{}={}".format, KEYS, KEYS, st.text(max_size=8)))
def test_junk_overrides_are_refused_and_never_crash(text):
    read_or_refused(table(), text)


def test_a_date_is_no_title():
    data = {**table(), "title": datetime.date(2026, 1, 1)}
    with pytest.raises(InputError, match="title = 2026-01-01: not a text"):
        parse(data)


def test_loading_imports_nothing_heavy(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(BASE)
    code = (
        "import sys; from paceline.simulator.load.load import load; load(sys.argv[1]);"
        "heavy = {'scipy.special', 'scipy.stats', 'sklearn', 'matplotlib', 'torch', 'simpy'};"
        "print(*(set(sys.modules) & heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, file], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_the_time_of_a_step_of_several_micro_batches_is_said_to_be_that_of_all():
    assert parse(table()).notes == ()
    (note,) = parse(table(), overrides=["cluster.accumulation=4"]).notes
    assert "cluster.compute is read as the time of all 4 micro-batches of a step" in note


def test_tokens_stand_for_the_steps_of_as_many_workers_as_there_are():
    goal = {"kind": "learning-curve", "tokens": 1000, "curve": {"law": "chinchilla", "batch": 1000}}
    goal["curve"]["parameters"] = 1e8
    group = [{"name": "near", "workers": 3}, {"name": "far", "workers": 1}]
    own = table() | {"objective": goal, "run": {"tokens": 9.5e6}}
    own |= {"network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"}}
    own["cluster"] = {"workers": 4, "compute": "1 s", "group": group}
    assert parse(own).run.steps == 2375
    fewer = parse(own, overrides=["cluster.workers=3", "cluster.group.far.workers=0"])
    assert fewer.run.steps == 3167
    assert [*fewer.cluster.of_workers("region")] == [None] * 3
    assert parse(own, overrides=["run.steps=100"]).run.steps == 100
    own["run"] = {"steps": 100}
    assert parse(own, overrides=["run.tokens=9.5e6"]).run.steps == 2375


def test_a_law_without_its_batch_says_of_which_steps_it_is_taken_to_speak():
    goal = 'objective={kind="learning-curve", tokens=512, curve={law="chinchilla", parameters=1e6'
    (note,) = parse(table(), overrides=[goal + "}}"]).notes
    assert "objective.curve.batch is left out" in note
    assert "steps of 512 tokens, one worker's" in note
    assert parse(table(), overrides=[goal + ", batch=2048}}"]).notes == ()


def test_quantities_that_no_link_has_are_doubted_by_key_value_and_what_is_usual():
    odd = {"network.latency": "60 s", "network.bandwidth": "1 bit/s", "cluster.compute": "3 d"}
    (note,) = parse(table(), overrides=[f'{key}="{value}"' for key, value in odd.items()]).notes
    assert note.startswith("is the unit right? ")
    for key, value in odd.items():
        assert f"{key} = '{value}' (usual: " in note
    links = ['network.up="8 MB/s"', 'network.down="40 Mbit/s"']
    (note,) = parse(table(), overrides=links).notes
    assert note == "is the unit right? network.up = '8 MB/s' (usual: at most that of down)"
    assert parse(table(), overrides=[links[0].replace("MB", "Mbit"), links[1]]).notes == ()
    two_ways = 'network.link=[{between=["a", "b"], up="9 Mbit/s", down="8 Mbit/s"}]'
    assert not [*unusual(tomllib.loads(two_ways.removeprefix("network.")))]
    law = 'cluster.compute={dist="gamma", mean="2 h", shape=4}'
    (note,) = parse(table(), overrides=[law]).notes
    assert note == "is the unit right? cluster.compute.mean = '2 h' (usual: up to 1 h)"
