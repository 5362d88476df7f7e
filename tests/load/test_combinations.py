"""Combinations of pieces, programs and clusters: what makes no sense is refused with the reason."""

import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.objectives.build import dimension_of
from paceline.simulator.objectives.softmax import INPUTS, load_data
from paceline.simulator.programs import catalogue
from tests.helpers.cases import named
from tests.helpers.programs import ROWS
from tests.helpers.worlds import RING, TIME_ONLY, scenario, simulate

SMALL = {"kind": "quadratic", "dimension": 50}
CODECS = {
    "top-k": {"kind": "top-k", "ratio": 0.1},
    "random-k": {"kind": "random-k", "ratio": 0.1},
    "dgc": {"kind": "dgc", "ratio": 0.1, "warmup": 4},
    "qsgd": "qsgd",
    "fp16": "fp16",
    "power-sgd": {"kind": "power-sgd", "rank": 1},
}


def test_averaging_a_model_may_cost_more_than_averaging_a_gradient():
    """Said beside hpsgd, it weighs on local-sgd alone, and the result says so."""
    hpsgd, local, ssgd = {"name": "hpsgd"}, {"name": "local-sgd", "tau": 5}, {"name": "ssgd"}
    network = {"collective": "ring", "latency": "0 s", "bandwidth": "1 Mbit/s"}
    plain = scenario(hpsgd, local, ssgd, network=network, steps=100)
    heavy = scenario(
        hpsgd | {"local_sgd_sync_multiplier": 2.4}, local, ssgd, network=network, steps=100
    )
    before, after = ([simulate(item, index) for index in range(3)] for item in (plain, heavy))
    assert after[0].curve["time"] == before[0].curve["time"]
    assert after[2].curve["time"] == before[2].curve["time"]
    sent = [sum(run.links.values()) for run in (before[1], after[1])]
    assert sent[1] == pytest.approx(2.4 * sent[0])
    assert after[1].seconds["communicate"] == pytest.approx(2.4 * before[1].seconds["communicate"])
    assert any("2.4 of a gradient" in note for note in after[1].notes)


def test_dimensions_of_objectives_are_known_before_they_are_built():
    for data in INPUTS:
        actual = load_data(data)
        table = {"kind": "softmax", "data": data}
        inputs = actual.train_x.shape[1]
        assert dimension_of(scenario(objective=table).objective) == inputs * actual.classes
        deeper = dimension_of(scenario(objective=table | {"hidden": 7}).objective)
        assert deeper == inputs * 7 + 8 * actual.classes
    assert dimension_of(scenario().objective) is None


PARAMETERS = {row.name: row.variants[0] for row in ROWS}
FEEDING_BACK = {"top-k", "random-k", "power-sgd", "sparse-loco"}
LINED = [name for name, item in catalogue().items() if "codec" in item.parameters.model_fields]
ACCEPTED = [
    (name, codec)
    for name in LINED
    for codec in CODECS
    if not (codec == "power-sgd" and catalogue()[name].server)
    and not (codec == "dgc" and not catalogue()[name].sends_gradients)
    and not (codec in FEEDING_BACK and catalogue()[name].sends_distances)
]


def test_every_program_with_a_line_takes_a_codec():
    """Each program one codec, and each codec some program; the others nightly."""
    for index, name in enumerate(LINED):
        codecs = [codec for program, codec in ACCEPTED if program == name]
        with named(name):
            takes(name, codecs[index % len(codecs)])


@pytest.mark.nightly
@pytest.mark.parametrize("codec", CODECS)
def test_every_program_with_a_line_takes_every_codec_that_is_not_refused(codec):
    for name in (name for name, kind in ACCEPTED if kind == codec):
        with named(name):
            takes(name, codec)


def takes(name, codec):
    """And sends fewer bytes, the same in a run that only tells the time; fp16 halves them."""
    algorithm = {"name": name, **PARAMETERS[name], "codec": CODECS[codec]}
    raw = {key: value for key, value in algorithm.items() if key != "codec"}
    tables = {"network": RING, "lr": 0.02, "steps": 24, "model": {"parameters": 2500}}
    coded = simulate(scenario(algorithm, objective=SMALL, **tables))
    plain = simulate(scenario(raw, objective=SMALL, **tables))
    assert coded.curve["loss"][-1] < coded.curve["loss"][0]
    up, total = sum(coded.links.values()), sum(plain.links.values())
    assert up < total
    if codec == "fp16" and not catalogue()[name].server:
        assert up == pytest.approx(total / 2, rel=0.01)
    if name != "adacomm" and codec != "dgc":  # adacomm needs a loss; dgc samples its threshold
        blind = simulate(scenario(algorithm, objective=TIME_ONLY, **tables))
        # counted in whole bytes: the two may round a payload of half a byte differently
        assert blind.links == pytest.approx(coded.links, rel=0.002)
        assert blind.duration == pytest.approx(coded.duration)


def test_compression_costs_compute_time():
    """Encoding every gradient, and decoding those of everyone where they are gathered."""
    codec = {"kind": "top-k", "ratio": 0.1, "compress": "300 ms", "decompress": "20 ms"}
    run = simulate(
        scenario({"name": "ssgd", "codec": codec}, workers=5, objective=SMALL, compute="1 s")
    )
    assert run.duration / run.steps == pytest.approx(1 + 0.3 + 5 * 0.02)
    assert run.seconds["compute"] == pytest.approx(run.duration)


def test_groups_that_hold_all_workers_need_no_usual_time_or_price():
    settings = {"compute": "1 s", "node_hour": 2.0}
    groups = [settings | {"name": name, "workers": len(name)} for name in ("a", "bc")]
    table = {
        "model": {"parameters": 10}, "objective": {"kind": "none"}, "run": {"steps": 2},
        "cluster": {"workers": 3, "group": groups},
        "network": {"latency": "1 ms"}, "algorithm": [{"name": "ssgd"}],
    }  # fmt: skip
    assert parse(table).cost.node_hour == 0.0
    table["cluster"]["workers"] = 4
    with pytest.raises(InputError, match=r"cluster\.compute: missing"):
        parse(table)


def test_a_missing_rate_is_missed_in_its_table():
    table = {
        "model": {"parameters": 10}, "objective": {"kind": "quadratic"}, "run": {"steps": 2},
        "cluster": {"workers": 3, "compute": "1 s"}, "network": {"latency": "1 ms"},
        "algorithm": [{"name": "ssgd"}],
    }  # fmt: skip
    with pytest.raises(InputError, match=r"optimizer\.lr: missing; add it: learning rate"):
        parse(table)
