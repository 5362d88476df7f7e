"""Runs under a learning curve: the baseline's loss, limits that hold, and every program's curve."""

import json
import math
import re
import tomllib
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from paceline.command_line import app
from paceline.simulator.engines import normalisation
from paceline.simulator.engines.dispatch import run_seeds, with_tuned_rate
from paceline.simulator.load.load import parse
from paceline.simulator.objectives.learning_curve import evidence
from paceline.simulator.objectives.learning_curve.objective import expect
from paceline.simulator.reports import terminal
from paceline.simulator.results import consumption, wording
from paceline.simulator.results.intervals import stated
from paceline.simulator.results.statistics import number
from paceline.simulator.scenario.scenario import World
from paceline.simulator.studies.learning import expected, penalties
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.sweep import sweep
from paceline.simulator.studies.tune import parts
from paceline.simulator.studies.tune.tune import tune
from tests.helpers.cases import looped
from tests.helpers.programs import ROWS, cases

CLOSE = 1e-3
PHASES = (Phase.explicit, Phase.generate)  # what fails says enough
LAW = {"law": "chinchilla", "parameters": 1.3e8}
INFINITE = 1e30
MOMENTUM = {"kind": "nesterov", "mu": 0.9}


def scenario(*algorithms, workers=4, steps=400, run=(), **objective):
    """A learning curve in which communication takes hardly any time."""
    table = {
        "model": {"parameters": 130_000_000},
        "objective": {"kind": "learning-curve", "curve": LAW, "tokens": 65536.0, **objective},
        "cluster": {"workers": workers, "compute": {"dist": "exponential", "mean": "1 s"}},
        "network": {"latency": "1 us", "bandwidth": "100 Gbit/s"},
        "run": {"steps": steps, **dict(run)},
        "algorithm": [dict(algorithm) for algorithm in algorithms],
    }
    return parse(table)


def far_apart(bandwidth, *algorithms, steps=600, **tables):
    """The same over links of 40 ms, as a table; `tables` replace whole ones."""
    network = {"latency": "40 ms", "bandwidth": bandwidth}
    plain = scenario(*(algorithms or [{"name": "ssgd"}]), steps=steps).table
    return {**plain, "network": network, "run": {"steps": steps, "seeds": 2}, **tables}


def shown_at_80(*blocks):
    """What a terminal of 80 columns shows."""
    console = Console(width=80, file=StringIO())
    for block in blocks:
        console.print(block)
    return console.file.getvalue()


def ran(algorithm, seed=0, engine="auto", **settings):
    """One run, its scenario, and what its loss is expected to be."""
    world = scenario(algorithm, **settings)
    (run,) = run_seeds(world, world.algorithm[0], [seed], engine=engine)
    return run, expect(World(world, world.algorithm[0]).under())


def off(run, curve, tokens):
    """The largest relative difference between the losses of a run and a curve at so many tokens."""
    wanted = curve.loss(np.array(run.curve["step"]) * tokens)
    return float(np.abs(np.array(run.curve["loss"]) / wanted - 1).max())


curves = st.fixed_dictionaries(
    {
        "law": st.just("chinchilla"),
        "parameters": st.floats(1e6, 1e12),
        "E": st.floats(0.01, 3.0),
        "B": st.floats(1.0, 5000.0),
        "beta": st.floats(0.1, 0.6),
    }
)


@settings(max_examples=6, phases=PHASES)
@given(
    curves,
    st.floats(256, 4e6),
    st.integers(1, 9),
    st.sampled_from(["ssgd", "dts"]),
    st.floats(1e3, 1e9),
)
def test_data_parallel_training_has_the_baseline_s_loss(curve, tokens, workers, name, noise):
    """`dts` without delay runs on the surrogate, as programs do that no evidence speaks of."""
    case = {"name": name, **({"delay": 0} if name == "dts" else {})}
    run, errors = ran(
        case, workers=workers, curve={**curve, "batch": tokens * workers}, tokens=tokens,
        noise_scale=noise,
    )  # fmt: skip
    assert off(run, errors.curve, tokens * workers) < CLOSE


@settings(max_examples=4, phases=PHASES)
@given(curves, st.integers(2, 64), st.sampled_from([{"name": "ssgd"}, {"name": "dts", "delay": 0}]))
def test_an_infinite_noise_scale_is_linear_speed_up(curve, workers, case):
    run, errors = ran(case, workers=workers, curve=curve, noise_scale=INFINITE)
    assert off(run, errors.curve, 65536.0 * workers) < CLOSE


def test_without_noise_a_larger_batch_is_no_help():
    run, errors = ran({"name": "ssgd"}, workers=16, noise_scale=1e-6)
    assert off(run, errors.curve, 65536.0) < 1e-6


@looped(
    "case",
    [
        {"name": "ssgd"},
        {"name": "local-sgd", "tau": 8},
        {"name": "local-sgd", "tau": 8, "momentum": 0.9},
        {"name": "dts", "delay": 3},
        {"name": "asgd"},
        {"name": "psgd"},
    ],
)
def test_one_worker_has_its_own_curve(case):
    run, errors = ran(case, workers=1, steps=2000)
    late = np.array(run.curve["step"]) > 200  # momentum has to build up
    wanted = errors.curve.loss(np.array(run.curve["step"]) * 65536.0)
    assert np.abs(np.array(run.curve["loss"]) / wanted - 1)[late].max() < CLOSE


def test_a_period_of_one_is_synchronous():
    first, _ = ran({"name": "ssgd"})
    for case in ({"name": "local-sgd", "tau": 1}, {"name": "diloco", "tau": 1}):
        second, _ = ran(case)
        assert second.curve["loss"] == first.curve["loss"]


@pytest.mark.long
@looped(
    ("case", "gain"),
    [
        ({"name": "local-sgd", "tau": 8, "outer": MOMENTUM}, 10.0),
        ({"name": "local-sgd", "tau": 8, "momentum": 0.9}, None),
        ({"name": "bmuf", "tau": 4, "momentum": 0.75}, 4.0),
        ({"name": "dts", "delay": 2, "momentum": 0.8}, 5.0),
        ({"name": "asgd"}, 4.0),
        ({"name": "k-async", "k": 2}, 2.0),
        ({"name": "hybrid", "step_size": 50}, 4.0),
        ({"name": "easgd", "tau": 2}, 4 / 5),
        ({"name": "d-psgd"}, 1.0),
    ],
)
def test_what_multiplies_a_gradient_is_no_speed_up(case, gain):
    """Momentum, outer steps and sums of gradients: the rate is one over the gain."""
    world = scenario(case, steps=4000)
    goal = with_tuned_rate(World(world, world.algorithm[0])).scenario.objective
    if gain is not None:
        assert goal.rate == pytest.approx(1 / gain, rel=0.01)
    run, errors = ran(case, steps=4000)
    ratio = run.curve["loss"][-1] / float(errors.parallel(run.steps))
    assert 0.99 < ratio < 1.03


def test_the_rate_of_the_real_optimizer_changes_nothing():
    cosine = {"schedule": "warmup-cosine", "peak": 3e-4, "steps": 400, "warmup": 40}
    losses = [
        ran({"name": "easgd", "tau": 4, **({"lr": lr} if lr else {})})[0].curve["loss"]
        for lr in (None, 0.3, cosine)
    ]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.long
def test_a_late_mean_costs_and_a_corrected_one_does_not():
    late, errors = ran({"name": "dts", "delay": 64, "compensation": "none"}, steps=4000)
    right, _ = ran({"name": "dts", "delay": 64}, steps=4000)
    assert late.curve["loss"][-1] > 1.02 * right.curve["loss"][-1]
    assert math.isfinite(late.curve["loss"][-1])
    assert off(right, errors.curve, 0) > 0


def test_numbers_do_not_depend_on_the_seeds_run_together():
    case = {"name": "easgd", "tau": 3}
    world = scenario(case)
    together = run_seeds(world, world.algorithm[0], [0, 1, 2])
    alone = ran(case, seed=2)[0]
    assert together[2].curve == alone.curve
    assert together[0].curve["loss"] != together[1].curve["loss"]


def test_adacomm_sees_the_loss_of_the_model():
    """In nats, floor included: its period falls as the root of the loss, not to one at once."""
    case = {"name": "adacomm", "tau0": 32, "interval": "60 s", "gamma": 0.9}
    run, _ = ran(case, steps=2000)
    periods = [period for period in run.curve["tau"] if math.isfinite(period)]
    assert periods[0] == 32
    assert 1 <= periods[-1] < 32


def check(case, workers=3, steps=40):
    """Demand a finite curve, the same from both engines."""
    runs = [ran(case, 1, engine, workers=workers, steps=steps)[0] for engine in ENGINES]
    losses = [run.curve["loss"] for run in runs]
    assert np.isfinite(losses).all()
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


ENGINES = ("virtual", "batched")


@looped("name", ["psgd", "easgd", "dts", "asgd", "d-psgd", "k-sync"])
def test_a_program_has_a_curve(name):
    (row,) = (entry for entry in ROWS if entry.name == name)
    check({"name": name, **row.variants[0]})


@pytest.mark.long
@looped("case", cases())
def test_every_variant_has_the_same_curve_in_every_engine(case):
    check(case, workers=5, steps=150)


@looped(
    "codec",
    [{"kind": "dgc", "ratio": 0.05}, {"kind": "random-k", "ratio": 0.05}, {"kind": "top-k"}],
)
@pytest.mark.long
def test_a_codec_is_no_speed_up_and_no_end(codec):
    """Its momentum counts as a gain, and what it sends late does not let the surrogate diverge."""
    for case in ({"name": "asgd"}, {"name": "dts", "delay": 4}):
        run, errors = ran({**case, "codec": codec}, workers=3, steps=1500)
        assert 0.99 < run.curve["loss"][-1] / float(errors.parallel(run.steps)) < 1.2


def test_what_is_not_known_widens_the_interval():
    def width(**objective):
        case = {"name": "diloco", "tau": 30, **objective.pop("also", {})}
        world = scenario(case, steps=2000, run={"target_loss": 4.5}.items(), **objective)
        row = simulate(world, seeds=2).algorithms[0]
        assert row["loss"]["interval90"][0] < row["loss"]["last"] < row["loss"]["interval90"][1]
        low, high = row["time_to_target"]["interval90"]
        assert low < row["time_to_target"]["mean"] < high
        return math.log(row["loss"]["interval90"][1] / row["loss"]["interval90"][0])

    error = width(noise_scale=1e6)
    assert width(noise_scale=[1e5, 1e7]) > error
    assert width(noise_scale=1e6, also={"name": "local-sgd"}) > error


def caps(tau, **run):
    """Time to a loss, and basis, of diloco under a cap that does not bind."""
    case = {"name": "diloco", "tau": tau}
    world = scenario(case, run={"target_loss": 4.5, "evaluate_every": 10, **run}.items())
    (row,) = simulate(world, seeds=1).algorithms
    return row["time_to_target"]["mean"], row["time_to_target"]["interval90"]


def test_a_cap_that_does_not_bind_changes_nothing():
    """What a step is worth depends on the tokens of the run, which ends at its target."""
    short, long, timed = (caps(30, **table) for table in (
        {"steps": 2000}, {"steps": 40_000}, {"steps": 40_000, "duration": "2500 s"}
    ))  # fmt: skip
    assert short == long == timed


def test_the_interval_of_a_pick_holds_the_draws_of_the_model():
    world = scenario({"name": "diloco", "tau": 30}, {"name": "ssgd"}, steps=2000)
    result = simulate(world, seeds=4)
    label = result.verdict.pick
    (row,) = (row for row in result.algorithms if row["label"] == label)
    (low, high), model = row["interval90"]["loss"], result.loss_models[label]
    drawn = row["loss"]["last"] * model.factors(2000.0)[:, 0]
    assert 0.88 <= np.mean((drawn >= low) & (drawn <= high)) <= 0.92
    assert result.pick["basis"].endswith("the model")


@looped("seeds", [1, 2])
def test_an_interval_with_the_error_of_the_loss_is_of_no_mean_over_seeds(seeds):
    """The number is by the curve as it is; a mean of all that it may be is another, or infinite."""
    cases = {"name": "diloco", "tau": 30}, {"name": "ssgd"}
    result = simulate(scenario(*cases, steps=3000, run={"target_loss": 4.5}.items()), seeds=seeds)
    assert result.pick["estimate"] == "best estimate"
    assert result.pick["ci95"] is None
    assert re.search(r"\(90 %: [^)]* min\)", result.verdict.sentence)
    assert result.pick["basis"].endswith("the model")
    for row in result.algorithms:
        days = row["to_target"]["days"]
        assert (days["estimate"], days["ci95"]) == ("best estimate", None)
        assert days["interval"] == pytest.approx(
            [end / 86400 for end in row["time_to_target"]["interval90"]]
        )
        interval = row["time_to_target"]  # by seeds alone
        assert interval["estimate"] == "mean"
        assert seeds == 1 or interval["ci95"][0] < interval["interval"][0] < interval["interval"][1]


def logged(folder, **curve):
    """An objective from the log of a power law, of four workers."""
    steps = np.arange(20, 2001, 20)
    rows = (f"{step},{1.7 + 20 * (step * 2048.0 + 2e3) ** -0.25}" for step in steps)
    (folder / "base.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    curve = {"file": str(folder / "base.csv"), "workers": 4, **curve}
    return {"curve": curve, "tokens": 512, "noise_scale": [1e3, 4e3]}


@looped("warmup", [0, 100])
def test_a_factor_of_steps_has_draws_of_loss_and_of_steps_that_agree(warmup, tmp_path):
    """By each draw, the loss after its own steps is the one that was to be reached."""
    table = {"algorithm": "local-sgd", "workers": 4, "tau": 8, "log_steps": 0.5, "sd": 0.2}
    objective = logged(tmp_path, warmup=warmup)
    world = scenario({"name": "local-sgd", "tau": 8}, steps=2000, own=[table], **objective)
    errors = expect(World(world, world.algorithm[0]).under())

    def losses(step):
        loss = errors.parallel(step) * errors.ratio(step)
        return loss * np.array([errors.factors(item)[n, 0] for n, item in enumerate(step)])

    for step, gain in ((2000.0, 1.0), (800.0, 1.0), (1500.0, 0.97)):
        stretches = errors.stretches(step, gain)
        wanted = gain * float(errors.parallel(step) * errors.ratio(step))
        assert losses(step * stretches) == pytest.approx(wanted, rel=2e-3)
        assert np.log(stretches).std() == pytest.approx(0.2, rel=0.3)
    slow = warmup + (800 - warmup) * math.exp(-0.5)  # the ratio at any step is that of the factor
    behind = errors.curve.loss(errors.curve.at(slow)) / errors.curve.loss(errors.curve.at(800))
    assert float(errors.ratio(800.0)) == pytest.approx(behind, rel=0.02)


def test_the_time_to_a_loss_of_an_own_run_is_as_uncertain_as_its_factor_of_steps(tmp_path):
    """By hand: exp(4 - 1.645 0.2) to exp(4 + 1.645 0.2) times data-parallel's steps.

    So it is with 79.5 of the own run's 80 clients. Near the floor the ratio shrinks as the run goes
    on, the faster the larger the factor.
    """
    table = {"algorithm": "local-sgd", "workers": 80, "tau": 40, "log_steps": 4, "sd": 0.2}
    objective = logged(tmp_path) | {"noise_scale": 1e3}
    world = scenario(
        {"name": "local-sgd", "tau": 40}, workers=80, steps=10**8, own=[table], **objective,
        run={"target_loss": 1.95}.items(),
    )  # fmt: skip
    errors = expect(World(world, world.algorithm[0]).under(), counted=79.5)
    taken = errors.steps * math.exp(4)
    assert float(errors.parallel(taken) * errors.ratio(taken)) == pytest.approx(1.95, rel=2e-3)
    ends = np.quantile(errors.stretches(taken), [0.05, 0.95])
    assert np.log(ends) == pytest.approx([-0.33, 0.33], abs=0.06)  # by as few draws
    spread = np.std(np.log(errors.stretches(taken)))
    assert spread == pytest.approx(0.2 * np.std(evidence.drawn("run 0 of local-sgd")), rel=0.01)


def test_an_own_run_of_as_many_selected_clients_is_at_the_same_place():
    """However many of them report before the deadline, which the own run's had, too."""
    runs = [{"algorithm": "fedavg", "workers": 50, "tau": 20, "log_steps": 0.3, "sd": 0.1}]
    table = dict(scenario({"name": "fedavg", "tau": 20}, own=runs).table)
    results = []
    for deadline in ("1 h", "24 s"):
        sampling = {"clients": 50, "deadline": deadline}
        cluster = table["cluster"] | {"workers": 400, "sampling": sampling}
        world = parse(table | {"cluster": cluster})
        results.append(expected(world, world.algorithm[0]))
    whole, late = results
    assert late.workers < 44 < whole.workers == 50
    assert late.sd == pytest.approx(whole.sd, rel=0.03)
    assert "fedavg, 50 replicas" in late.sentence


def test_an_own_run_errs_alike_for_its_program_and_for_the_mechanism_beside_it(tmp_path):
    """What it missed of local steps cancels, as far as both rest on it."""
    table = {"algorithm": "local-sgd", "workers": 4, "tau": 30, "log_steps": 0.5, "sd": 0.1}
    cases = {"name": "local-sgd", "tau": 30}, {"name": "asgd"}
    world = scenario(*cases, own=[table], **logged(tmp_path))
    measured, beside = (
        expect(World(world, candidate).under(), apart=30.0) for candidate in world.algorithm
    )
    assert (measured.basis, beside.basis) == ("measured", "mechanism")
    source = evidence.drawn("run 0 of local-sgd")
    shares = [float(errors.errors @ source / (source @ source)) for errors in (measured, beside)]
    assert 1.5 * shares[0] < shares[1] < 0.2 * shares[0] < 0  # the rest is by published runs
    apart = np.std(measured.errors - beside.errors)
    assert apart < math.hypot(np.std(measured.errors), np.std(beside.errors))


def test_only_programs_whose_runs_are_evidence_offer_a_trial():
    """The steps between agreements that a probe measured, here 30, are not the period to train."""
    world = scenario(
        {"name": "ssgd"},
        {"name": "hpsgd"},
        {"name": "local-sgd", "tau": 8},
        {"name": "diloco", "tau": 6},
        {"name": "cocod-sgd", "tau": 6},
        {"name": "fedavg", "tau": 6, "mu": 0.1},
    )
    trials = [
        expect(World(world, algorithm).under(), apart=30.0).trial for algorithm in world.algorithm
    ]
    assert [trial.get("tau") for trial in trials] == [None, None, 8, 6, None, None]


def test_no_draw_of_a_loss_is_below_its_own_floor(tmp_path):
    """Where the penalty is as uncertain as it is for a hundred clients that nobody published."""
    world = scenario({"name": "local-sgd", "tau": 8}, steps=2000, **logged(tmp_path))
    errors = expect(World(world, world.algorithm[0]).under())
    for log, sd in ((0.25, 0.3), (0.0, 0.5)):
        wide = replace(errors, log_ratio=log, sd=sd, errors=sd * evidence.drawn("anything"))
        for step in (100.0, 2000.0):
            drawn = (wide.parallel(step) * wide.ratio(step) * wide.factors(step))[:, 0]
            assert (drawn >= wide.curve.draws[:, 0] * (1 - 1e-12)).all()
            assert drawn.min() < wide.parallel(step) < drawn.max()


def test_prices_to_a_target_have_the_interval_of_the_loss():
    world = scenario({"name": "diloco", "tau": 30}, steps=4000, run={"target_loss": 4.5}.items())
    priced = parse({**world.table, "cost": {"node_hour": 2.0}})
    (row,) = simulate(priced, seeds=2).algorithms
    until = row["to_target"]
    for key in ("tokens", "days", "device_hours", "cost"):
        low, high = (end / until[key]["mean"] for end in until[key]["interval"])
        assert low < 0.9
        assert high > 1.1
    assert row["used"]["tokens"]["ci95"] is None  # of the whole run: so many steps


def test_loss_at_tokens_is_the_law_s(monkeypatch):
    """At equal tokens: the curve times the penalty; what that saves is said, with its interval."""
    monkeypatch.setattr(parts, "alone", lambda scenario: None)
    world = parse(far_apart("1 Gbit/s", tune={"diloco": {"tau": [2, 20, 60]}}))
    result = tune(world, objective="loss-at-tokens")
    errors = expect(World(world, world.algorithm[0]).under())
    tokens = 600 * 4 * 65536.0
    assert result.objective.tokens == tokens
    for item in result.ranked:
        tau = item.candidate.parameters.get("tau", 1)
        cost = evidence.penalty("diloco", 4, tau, 1.3e8, tokens=tokens)
        wanted = float(errors.parallel(600)) * math.exp(
            cost.log_ratio * -math.expm1(-600 / (4 * tau))
        )
        assert item.mean() == pytest.approx(wanted, rel=1e-9)
        assert item.used("tokens") == tokens
    verdict, rows = result.verdict, result.rows(result.ranked)
    assert (verdict.question.measure, verdict.baseline) == ("days_at_equal_loss", "ssgd")
    # the pick takes the fewest days to the baseline's loss, by what 5 % of the tokens are worth
    worth = min(choice.model.margin for choice in result.ranked)
    first = next(choice for choice in result.ranked if choice.candidate.name == "ssgd").mean()
    for item, row in zip(result.ranked, rows, strict=True):
        equal = item.used("days") * (item.mean() / first) ** (math.log(1.05) / math.log1p(worth))
        assert row["at_equal_loss"]["value"] == pytest.approx(equal, rel=1e-6)
    days = [row["at_equal_loss"]["value"] for row in rows]
    assert days == sorted(days)
    assert verdict.pick == rows[0]["label"]
    assert re.search(r"min, .*loss \+.*% \(.*\) against ssgd", verdict.sentence)
    shares = [row["to_reference"] for row in result.rows(result.ranked)]
    assert [share and share["label"] for share in shares].count("ssgd") == 3
    assert all(share["value"] > 0 for share in shares if share)
    assert any(note.startswith("basis of losses: ") for note in result.notes)
    assert {row["basis"] for row in result.rows(result.ranked)} <= {"published", "extrapolated"}


def test_the_surrogate_of_an_algorithm_is_fitted_once(monkeypatch):
    made = []
    real = normalisation.goal
    monkeypatch.setattr(normalisation, "goal", lambda *item: made.append(1) or real(*item))
    world = scenario({"name": "easgd", "tau": 7})
    for seed in range(3):
        run_seeds(world, world.algorithm[0], [seed])
    assert len(made) == 1


@looped("case", [
    {"name": "ssgd-bucketed", "buckets": 2, "codec": {"kind": "power-sgd", "rank": 1}},
    {"name": "local-sgd", "tau": 10, "codec": "qsgd"},
    {"name": "streaming-diloco", "tau": 8, "codec": {"kind": "top-k", "ratio": 0.2}},
])  # fmt: skip
def test_a_codec_s_loss_is_that_of_a_run_with_vectors(case, monkeypatch):
    """Runs on their own tell all seeds' losses, whoever asks first, and for however long."""
    world = scenario(case, steps=160, run={"evaluate_every": 20}.items())
    short = scenario(case, steps=None, run={"duration": "99 s", "evaluate_every": 20}.items())
    (brief,) = run_seeds(short, short.algorithm[0], [1])
    first, second = run_seeds(world, world.algorithm[0], [0, 1])
    (reference,) = run_seeds(world, world.algorithm[0], [1], engine="virtual")
    assert first.curve["loss"] == second.curve["loss"] == reference.curve["loss"]
    assert first.curve["time"] != second.curve["time"]
    assert brief.curve["step"][-1] < 160
    monkeypatch.setattr(normalisation, "_by_steps", lambda world: False)
    (whole,) = run_seeds(world, world.algorithm[0], [1])
    # Beside evidence the mechanism's own start, which the raw program has as well, is left out.
    np.testing.assert_allclose(first.curve["loss"][4:], whole.curve["loss"][4:], rtol=3e-2)


def test_a_proximal_term_pulls_by_its_share_of_the_rate_that_the_user_writes():
    """Not of the surrogate's, at which 1 made a loss of 1e191."""
    lasts = []
    for mu in (0.0, 1.0, 4.0):
        world = scenario({"name": "fedavg", "tau": 10, "mu": mu, "lr": 0.1})
        lasts.append(run_seeds(world, world.algorithm[0], [0])[0].curve["loss"][-1])
    assert lasts[0] < lasts[1] < lasts[2] < 1.2 * lasts[0]


def test_no_codec_removes_what_evidence_says():
    """Its loss is the evidence's, times the mechanism with the codec over the one without."""
    last = {}
    for kind in ("raw", "qsgd", "int4"):
        world = scenario({"name": "streaming-diloco", "tau": 30, "codec": kind}, steps=1000)
        (run,) = run_seeds(world, world.algorithm[0], [0])
        last[kind] = run.curve["loss"][-1]
        assert expected(world, *world.algorithm).log_ratio > 1e-3
    assert last["raw"] * 0.9999 < min(last["qsgd"], last["int4"])
    assert max(last.values()) < 1.02 * last["raw"]


def test_a_slow_worker_is_hidden_by_no_delay():
    slow = {"name": "slow", "workers": 1, "compute": "2 s"}
    group = [{"name": "fast", "workers": 3}, slow]
    cluster = {"workers": 4, "compute": "1 s", "group": group}
    given = {"cluster": cluster, "network": {"collective": "given", "duration": "1.6 s"}}
    table = far_apart("", {"name": "dts", "delay": 1}, steps=50, **given)
    assert not [note for note in simulate(parse(table), seeds=1).notes if "would hide" in note]


def theory(file, *algorithms, workers=4):
    """What `paceline theory --json` says of a scenario that is written to `file`."""
    file.write_text(
        'model.parameters = 130_000_000\nnetwork = { latency = "1 ms", bandwidth = "1 Gbit/s" }\n'
        'objective = { kind = "learning-curve", curve = { law = "chinchilla", parameters = 1.3e8 },'
        f' tokens = 65536 }}\ncluster = {{ workers = {workers}, compute = "1 s" }}\n'
        f"run.steps = 500\nalgorithm = [{', '.join(algorithms)}]\n"
    )
    return json.loads(CliRunner().invoke(app, ["theory", str(file), "--json"]).stdout)


def test_theory_says_what_each_algorithm_costs(tmp_path):
    file = tmp_path / "loss.toml"
    rest = '{ name = "diloco", tau = 30 }', '{ name = "asgd" }'
    predictions = theory(file, '{ name = "ssgd" }', *rest)
    rows = {row["label"]: row for row in predictions["penalties"]}
    assert rows["ssgd"]["ratio"] == 1
    assert rows["ssgd"]["workers"] == 4
    assert rows["diloco tau=30"]["basis"] in ("published", "extrapolated")
    assert rows["asgd"]["basis"] == "mechanism"
    for row in rows.values():
        assert row["interval90"][0] <= row["ratio"] <= row["interval90"][1]
    table = _table(file) | {"tune": {"diloco": {"tau": [30]}}}
    parallel, run, _ = (row["loss"]["last"] for row in simulate(parse(table), seeds=1).algorithms)
    assert run / parallel == pytest.approx(rows["diloco tau=30"]["ratio"], rel=1e-9)
    predictions = tune(parse(table), seeds=2, objective="loss-at-tokens").json()["ranking"]
    (above,) = (row["to_reference"]["interval"] for row in predictions if row["name"] == "diloco")
    margins = [end - 1 for end in rows["diloco tau=30"]["interval90"]]
    assert above == pytest.approx(margins, abs=1e-4)  # the same draws


def test_theory_has_no_ratio_of_what_diverges(tmp_path):
    """A pull of 0.9 by each of 400 workers throws the centre of EASGD ever further."""
    algorithm = '{ name = "easgd", tau = 20, alpha = 0.9, lr = 0.1 }'
    predictions = theory(tmp_path / "loss.toml", algorithm, workers=400)
    (row,) = predictions["penalties"]
    assert row["ratio"] is row["interval90"] is None
    assert "alpha=0.9 lr=0.1 diverges" in predictions["notes"][-1]


def _table(file):
    return tomllib.loads(file.read_text())


def test_an_own_run_counts_more_than_published_ones():
    runs = [{"algorithm": "diloco", "workers": 4, "tau": 30, "log_steps": 0.4, "sd": 0.02}]
    rows = [
        penalties(scenario({"name": "diloco", "tau": 30}, **table))[0]
        for table in ({}, {"own": runs}, {"own": runs, "penalty": ["published"]})
    ]
    assert rows[1]["ratio"] > 1.03 > rows[0]["ratio"]
    assert rows[2] == rows[0]


@looped("more", [{}, {"outer": {"kind": "fedadam"}, "outer_lr": 0.5}])
def test_clients_whose_reports_never_count_teach_nothing(more):
    """Three of four clients miss each deadline: loss and tokens are those of the fourth alone."""
    table, world = {"name": "fedavg", "tau": 20, "lr": 0.1, **more}, dict(scenario().table)
    world["run"] = world["run"] | {"steps": 2000}  # in which an outer momentum settles
    results = []
    for sampling, slow in (({"clients": 40, "deadline": "30 s"}, 30), ({"clients": 10}, 0)):
        group = [{"name": "slow", "workers": slow, "compute": "10 s"}] if slow else []
        cluster = {"workers": 10 + slow, "compute": "1 s", "sampling": sampling, "group": group}
        (row,) = simulate(parse({**world, "algorithm": [table], "cluster": cluster})).algorithms
        results.append((row["curve"]["loss"][-1], row["used"]["tokens"]["mean"]))
    (loss, tokens), (alone, theirs) = results
    assert tokens == pytest.approx(theirs)
    assert loss == pytest.approx(alone, rel=1e-4)  # with numbers of their own


@looped("own", [{"name": "ssgd"}, {"name": "diloco", "tau": 20}])
@looped("policy", ["shrink", "quorum", "backup"])
def test_a_worker_that_no_mean_waits_for_trains_nothing(own, policy):
    """Four of which one is lost for good, or left out, have the tokens and the loss of three."""
    table = dict(scenario(own).table)
    table["cost"] = {"flops": "1 TFLOP/s", "flops_per_token": 1e3}
    results = []
    for workers in (4, 3):
        cluster = {"workers": workers, "compute": "1 s"}
        more = {"cluster": cluster}
        if workers == 4:
            more["recovery"] = {"policy": policy}
            if policy != "backup":
                cluster["crash"] = [{"worker": 3, "at": "0.5 s"}]
        (row,) = simulate(parse({**table, **more})).algorithms
        results.append((row["curve"]["loss"][-1], row["used"]["tokens"]["mean"]))
    (loss, tokens), (alone, theirs) = results
    assert tokens == pytest.approx(theirs, rel=0.01)
    assert loss == pytest.approx(alone, rel=1e-3)
    assert alone > 1.01 * simulate(parse(table)).algorithms[0]["curve"]["loss"][-1]


def test_a_sample_of_the_clients_has_its_own_tokens_penalty_and_end():
    """One in ten of 40 workers is as 4 of 4; programs that cannot sample take all of them."""
    both = [{"name": "fedavg", "tau": 20}, {"name": "dts", "delay": 0}]
    run, tuned = {"target_loss": 6.0}, {"fedavg": {"tau": [20]}, "dts": {"delay": [0]}}
    sampled = dict(scenario(*both, workers=40, run=run).table)
    sampled["cluster"] = {**sampled["cluster"], "compute": "1 s", "sampling": {"share": 0.1}}
    few, one = scenario(both[0], run=run), parse(sampled)
    four, tenth, all_of_them = (
        expect(World(world, world.algorithm[index]).under())
        for world, index in ((few, 0), (one, 0), (one, 1))
    )
    assert (tenth.steps, tenth.log_ratio, tenth.sd) == (four.steps, four.log_ratio, four.sd)
    assert all_of_them.steps < tenth.steps
    sampled["cost"] = {"flops": "1 TFLOP/s", "flops_per_token": 1e3}
    rows = simulate(parse(sampled)).algorithms
    for row, workers in zip(rows, (4, 40), strict=True):
        used = row["used"]["tokens"]["mean"]
        assert used == pytest.approx(workers * 65536 * row["steps"])
        assert row["tokens_per_second"] == pytest.approx(used / row["duration"])
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * 1e3 / 40e12)
    table = {key: value for key, value in sampled.items() if key != "algorithm"}
    result = tune(parse(table | {"run": {"steps": 400, "seeds": 1}, "tune": tuned}),
                  objective="loss-at-tokens")  # fmt: skip
    assert result.objective.tokens == 400 * 4 * 65536
    for row in result.rows(result.ranked):
        assert row["used"]["tokens"]["mean"] == pytest.approx(result.objective.tokens)


def test_the_rate_of_fedbuff_is_that_of_as_many_clients_as_are_at_work():
    """Ten of 400, and ten alone, whose reports are as late: with 400 at work they would be later.

    The probe lasts until reports have come, however many steps each takes.
    """
    own = {"name": "fedbuff", "tau": 200, "buffer": 2, "lr": 0.1}
    results = []
    for clients in ({"workers": 400, "sampling": {"clients": 10}, "drop": 0.1}, {"workers": 10}):
        cluster = {"compute": {"dist": "exponential", "mean": "1 s"}, **clients}
        world = parse({**dict(scenario(steps=8000).table), "algorithm": [own], "cluster": cluster})
        results.append(with_tuned_rate(World(world, world.algorithm[0])).scenario.objective.rate)
        (row,) = simulate(world, seeds=1).algorithms
        assert row["loss"]["last"] < 0.7 * row["loss"]["first"]
    assert results[0] == pytest.approx(results[1], rel=0.1)


def test_what_a_loss_takes_is_counted_in_nights_rounds_and_bytes_of_a_client():
    """A night's six hours have 18 rounds of 20 min, each with a tenth of the clients."""
    cluster = {
        "workers": 40, "compute": "1 min", "sampling": {"clients": 4},
        "membership": {"daily": "00:00-06:00"},
    }  # fmt: skip
    more = {"algorithm": [{"name": "fedavg", "tau": 20}], "cluster": cluster}
    more["network"] = {"collective": "server", "latency": "1 us", "bandwidth": "1 Tbit/s"}
    more["server"] = {"bandwidth": "1 Tbit/s"}

    table, aim = {**scenario().table, **more}, {"duration": "40 h", "target_loss": 5.2}

    def row(**run):
        return simulate(parse(table | {"run": run})).algorithms[0]

    reached = row(duration="40 h", target_loss=5.2)
    points = sweep(parse(table | {"run": aim}), {"run.duration": ["1 h", "40 h"]})
    chart = points._chart()
    assert chart is not None
    assert chart.panels[0].y.title.startswith("time to loss 5.2")
    swept = terminal.sweep(points)
    shown = {column.header: [*column.cells] for column in swept.columns}
    missed, there = shown["to loss 5.2\n(90 %)"]
    assert missed == "not reached"
    assert re.fullmatch(r"[\d.]+ h\s[\d.]+–[\d.]+", there), there
    until, (_, cells) = reached["to_target"], consumption.cells([reached], 5.2)
    ends = r"[\d.]+( [MG]B)? \([\d.]+–[\d.]+\)"
    for key in ("nights", "rounds", "bytes/client"):
        assert re.fullmatch(ends, cells[f"{key} (90 %)"](reached)), key
    spent = {key: quantity["mean"] for key, quantity in until.items()}
    assert 1 < spent["nights"] < 2, spent
    result = tune(parse(table | {"run": aim, "tune": {"fedavg": {}}}), seeds=1, jobs=1)
    (best,) = result.rows(result.ranked)
    nights = best["used"]["nights"]
    low, high = map(number, nights["interval"])
    assert low < number(nights["mean"]) < high
    assert f"90 %: {wording.format_interval(stated(best, 'value'), 's')}" in result.verdict.sentence
    assert spent["rounds"] == pytest.approx(18 * spent["nights"], rel=0.02)
    assert spent["client_bytes"] == pytest.approx(spent["rounds"] / 10 * 2 * 0.52e9, rel=0.05)
    short, day = row(duration="3 h"), row(duration="24 h")
    for item in (short, day, reached):  # rates do not depend on the duration
        steps = 18 * 4 * 20
        assert item["clients_at_work"]["mean"] == pytest.approx(4, rel=0.05)
        assert item["gradients_per_hour"]["mean"] == pytest.approx(steps / 6, rel=0.1)
        assert item["tokens_per_second"] * 86400 == pytest.approx(65536 * steps, rel=0.1)


def test_days_and_prices_of_a_search_have_the_interval_of_the_links():
    """In the rows, the sentence and the tables; the traffic's price does not move."""
    cost = {"currency": "USD", "node_hour": 20.0, "egress_per_gb": 0.05}
    table = far_apart("1 Gbit/s", cost=cost, tune={"diloco": {"tau": [20, 60]}})
    table["network"]["transport"] = "tcp"
    result = tune(parse(table), objective="loss-at-tokens")
    for row in (row for row in result.rows(result.ranked) if row["workers"] > 1):
        used, share = row["used"], simulate(parse(table), seeds=2).algorithms[0]["breakdown"]
        low, high = (end / used["days"]["mean"] for end in used["days"]["interval"])
        assert used["days"]["basis"].endswith("of one run")
        traffic = 0.05 * used["egress_bytes"]["mean"] / 1e9
        for end, edge in zip((low, high), used["cost"]["interval"], strict=True):
            moved = traffic + (used["cost"]["mean"] - traffic) * end
            assert edge == pytest.approx(moved)
        assert low < 0.97
        assert high > 1.05
        assert used["tokens"]["interval"] is None
    assert share["communicate"] > 0.5
    verdict = result.verdict
    assert verdict.pick == "diloco tau=60"
    edges = [reason.numbers for reason in verdict.reasons if reason.code == "edge"]
    assert edges == [{"label": verdict.pick, "key": "tau", "value": 60, "side": "highest"}]
    cell = wording.cell(stated(result.rows(result.ranked)[0]["used"]["cost"]), "")
    assert cell.split(" ")[0] in shown_at_80(*terminal.tune(result))


def test_what_the_answer_names_is_in_the_table_however_short_and_in_the_json(monkeypatch):
    tuned = {"diloco": {"tau": [2, 5, 10, 20, 60]}}
    table = far_apart("100 Mbit/s", tune=tuned, cost={"node_hour": 1.0})
    table["run"]["duration"] = "60 s"
    result = tune(parse(table), objective="loss-at-tokens")
    (one,) = (row for row in result.json()["ranking"] if row["label"] == "one worker alone")
    days = one["used"]["days"]["mean"]  # no step of one worker waits for another
    assert days == pytest.approx(
        4 * 600 * result.space.scenario.team.mean_compute[0] / 86_400, rel=0.06
    )
    assert one["cost"] == pytest.approx(24 * days)
    assert any(note.startswith("run.duration = 60.0 s ends no run") for note in result.notes)
    monkeypatch.setattr(terminal, "TUNE_ROWS", 1)
    lines = [*map(str.split, shown_at_80(terminal.tune(result)[0]).splitlines())]
    assert any(line[:2] == result.verdict.pick.split() for line in lines)
    assert any(line[:1] == ["ssgd"] for line in lines)  # the others are compared with it
    assert any("(pick)" in line for line in lines)


def test_the_verdicts_of_a_search_are_whole_at_80_columns():
    tuned = {
        "ssgd-bucketed": {},
        "streaming-diloco": {"tau": [8], "overlap": [1]},
        "local-sgd": {"tau": [8]},
    }
    result = tune(parse(far_apart("100 Mbit/s", tune=tuned)), objective="loss-at-tokens")
    words = {word.strip(",") for word in shown_at_80(terminal.tune(result)[0]).split()}
    assert {"(pick)", "published"} <= words, words
