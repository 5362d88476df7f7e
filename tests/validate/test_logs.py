"""`paceline calibrate jobs.toml`: logs of all forms, hidden laws, and what is not a log."""

import gzip
import json
import math
import re
import tomllib
from contextlib import suppress
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.command_line import run
from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table
from paceline.simulator.load.load import load, parse
from paceline.simulator.scenario.network import Network
from paceline.simulator.scenario.overhead import GIGABIT, Overhead
from paceline.simulator.studies.simulate import simulate
from paceline.validate.logs import jobs, link_law, steps, tables
from paceline.validate.logs.calibrate import calibrate
from tests.helpers.cases import looped
from tests.helpers.hidden_laws import HiddenLaw, drawn, job, log

SIZE, LATENCY = 40e6, 50e-6
OVER = {"workers": 4, "size": SIZE, "latency": LATENCY}
SLOW, FAST = 0.2 * GIGABIT, GIGABIT


def written(folder, text, name="log.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def over(folder, law, *links, seed=0, count=400, extra=""):
    """Write a log, and its [[job]], for each (bandwidth, tau); return the file of jobs."""
    rng, text = np.random.default_rng(seed), ""
    for n, (bandwidth, tau) in enumerate(links):
        table = OVER | {"bandwidth": bandwidth, "tau": tau}
        written(folder, log(law.steps(rng, steps=count, **table)[0]), f"{n}.csv")
        text += job(f"{n}.csv", extra=extra, **table)
    return written(folder, text, "jobs.toml")


def predicted(folder, bandwidth, tau, workers=4, **tables):
    """Simulate a scenario that extends the profile; return its seconds_per_step."""
    name = {"name": "local-sgd", "tau": tau} if tau > 1 else {"name": "ssgd"}
    network = {"bandwidth": f"{8e-6 * bandwidth:.12g} Mbit/s", "latency": "50 us"}
    table = {
        "extends": "p.toml", "cluster": {"workers": workers}, "network": network,
        "run": {"steps": 400}, "algorithm": [name], **tables,
    }  # fmt: skip
    result = simulate(parse(table, folder=folder))
    return result.json()["algorithms"][0]["seconds_per_step"]


def profiled(folder, path):
    calibrate([path]).profile.write(folder / "p.toml")


@pytest.fixture
def brief(monkeypatch):
    """Let fits simulate buckets for a quarter of their steps, whose paces here hardly vary."""
    monkeypatch.setattr(link_law, "PIECES", 256)


# Hidden laws


@pytest.fixture(scope="module")
def two_links(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two links")
    return calibrate([over(folder, HiddenLaw(), (SLOW, 8), (FAST, 8))])


def test_two_links_predict_others(tmp_path, two_links):
    law = HiddenLaw()
    two_links.profile.write(tmp_path / "p.toml")
    for bandwidth, tau, workers in ((0.5 * GIGABIT, 8, 4), (0.1 * GIGABIT, 16, 4), (FAST, 2, 8)):
        prediction = predicted(tmp_path, bandwidth, tau, workers)
        truth = law.pace(bandwidth=bandwidth, tau=tau, **OVER | {"workers": workers})
        assert prediction["mean"] == pytest.approx(truth, rel=0.02)
        low, high = prediction["interval90"]
        assert low <= truth <= high < 1.03 * low  # a double tree, 1 % likely, is not in it


def test_a_profile_of_gloos_jobs_is_for_gloos_jobs(tmp_path):
    """Its law comes on top of what gloo does, whose two latencies a hop it does not count again."""
    law = HiddenLaw()
    path = over(tmp_path, law, (SLOW, 8), (FAST, 8))
    written(tmp_path, path.read_text().replace("latency =", 'library = "gloo", latency ='), path)
    profiled(tmp_path, path)
    prediction = predicted(tmp_path, 0.5 * GIGABIT, 8)
    made = load(scenario_of(tmp_path))
    assert (made.network.library, made.costs.agree_latencies) == ("gloo", 2)
    truth = law.pace(bandwidth=0.5 * GIGABIT, tau=8, **OVER)
    assert prediction["mean"] == pytest.approx(truth, rel=0.01)


def test_logs_that_compute_a_little_apart_say_nothing_of_the_links(tmp_path):
    """A per cent between two jobs, by chance of what ran beside them, is no error of the law."""
    path = over(tmp_path, HiddenLaw(), (SLOW, 8), (FAST, 8))
    table = OVER | {"bandwidth": FAST, "tau": 8}
    faster = HiddenLaw(compute=0.198)
    written(tmp_path, log(faster.steps(np.random.default_rng(1), steps=400, **table)[0]), "1.csv")
    profiled(tmp_path, path)
    low, high = predicted(tmp_path, 0.1 * GIGABIT, 8)["interval90"]
    truth = HiddenLaw().pace(bandwidth=0.1 * GIGABIT, tau=8, **OVER)
    assert low < truth < high < 1.03 * low


@pytest.mark.long
def test_intervals_widen_with_the_distance_from_what_was_measured(tmp_path):
    profiled(tmp_path, over(tmp_path, HiddenLaw(), (SLOW, 4), (FAST, 4)))

    def width(bandwidth, **tables):
        low, high = predicted(tmp_path, bandwidth, 4, **tables)["interval90"]
        return math.log(high / low)

    widths = [width(SLOW / by) for by in (1, 5, 25, 125)]
    assert widths == sorted(widths)
    assert widths[-1] > 2 * widths[0]


@looped("links", [((SLOW, 8), (FAST, 8)), ((SLOW, 1), (FAST, 1), (FAST, 4))])
@pytest.mark.slow
def test_a_hundred_hidden_laws(tmp_path, links):
    """Errors are of the mean pace; intervals are of a run, as long as the predicted one."""
    errors, inside = [], []
    for seed in range(100):
        law = drawn(np.random.default_rng(seed))
        profiled(tmp_path, over(tmp_path, law, *links, seed=seed))
        for bandwidth in (0.1 * GIGABIT, 0.5 * GIGABIT, 2 * GIGABIT):
            prediction = predicted(tmp_path, bandwidth, 8)
            truth = law.pace(bandwidth=bandwidth, tau=8, **OVER)
            errors.append(abs(prediction["mean"] / truth - 1))
            rng, table = np.random.default_rng(1000 + seed), {"bandwidth": bandwidth, "tau": 8}
            ran = law.steps(rng, steps=400, **table, **OVER).mean()
            inside.append(prediction["interval90"][0] <= ran <= prediction["interval90"][1])
    assert np.median(errors) < 0.005
    assert np.quantile(errors, 0.9) < 0.02
    assert 0.85 <= np.mean(inside) <= 0.97


@pytest.mark.long
def test_where_every_step_communicates_two_links_tell_computing_apart(tmp_path):
    law = HiddenLaw(compute=0.3)
    profiled(tmp_path, over(tmp_path, law, (SLOW, 1), (FAST, 1)))
    loaded = load(scenario_of(tmp_path)).cluster.compute.expectation
    assert loaded == pytest.approx(0.3, rel=0.1)
    one = calibrate([over(tmp_path, law, (SLOW, 1))])
    assert "computing and communicating cannot be separated" in " ".join(one.notes)
    factors = one.profile.tables["calibration"]["draws"]["cluster.compute"]
    assert np.std(np.log(factors)) > 0.05  # and its intervals say so


def test_the_error_of_a_pace_is_that_of_its_log(tmp_path):
    """Workers that wait for the slowest: a long step of a rank shortens its wait."""
    table, results = OVER | {"bandwidth": SLOW, "tau": 8}, []
    path = over(tmp_path, HiddenLaw(spread=0.3), (SLOW, 8))
    for seed in range(60):
        lasted = HiddenLaw(spread=0.3).steps(np.random.default_rng(seed), steps=200, **table)[0]
        written(tmp_path, log(lasted), "0.csv")
        results.append(steps.observe(jobs.read(path)[0]))
    stated = np.sqrt(np.mean([calibration.covariance[1, 1] for calibration in results]))
    assert stated == pytest.approx(np.std(np.log([item.pace for item in results])), rel=0.3)


def ddp(folder, name, algorithm, lasted, more="", noise=0.01):
    """Write a log of GPT-2 on 8 GPUs with a bus bandwidth of 20 GB/s, and return its [[job]]."""
    rng = np.random.default_rng(1)
    written(folder, log(lasted * (1 + noise * rng.standard_normal(len(lasted)))), name)
    return (
        f'[[job]]\nlog = "{name}"\nworkers = 8\nalgorithm = {algorithm}\n{more}'
        'network = { library = "nccl", bandwidth = "20 GB/s", latency = "0 us" }\n'
        'model = { tensors = "gpt2", bytes_per_parameter = 4 }\n'
    )


@pytest.mark.usefixtures("brief")
def test_what_ddp_hides_is_said_as_a_range_until_something_tells_it(tmp_path, capsys):
    """A step of 426 ms, 410 of them computing: from DDP's log alone, with compute, with a log more.

    Communication that is hidden leaves no trace in the pace.
    """
    alone = ddp(tmp_path, "ddp.csv", '"ssgd-bucketed"', np.full(300, 0.426))
    where = written(tmp_path, alone, "jobs.toml")
    assert run(["calibrate", str(where), "-o", str(tmp_path / "p.toml")]) == 0
    output = capsys.readouterr()
    assert "computing and communicating cannot be separated: computing takes" in output.err
    assert "tests nothing" in " ".join(output.out.split())
    assert "within 0.00" not in output.out
    model = {"tensors": "gpt2", "bytes_per_parameter": 4}
    exact = predicted(tmp_path, 20e9, 8, 8, model=model, network={"library": "nccl"})
    low, high = exact["interval90"]
    assert low < 0.41 + 0.055 / 8 < high
    assert high < 1.12 * low

    stated = ddp(tmp_path, "ddp.csv", '"ssgd-bucketed"', np.full(300, 0.426),
                 'compute = "410 ms"\n')  # fmt: skip
    two = alone + ddp(
        tmp_path, "local.csv", '{ name = "local-sgd", tau = 8 }',
        np.where(np.arange(1, 301) % 8, 0.41, 0.41 + 0.055),
    )  # fmt: skip
    for text in (stated, two):
        calibration = calibrate([written(tmp_path, text, "jobs.toml")])
        assert "cannot be separated" not in " ".join(calibration.notes)
        calibration.profile.write(tmp_path / "p.toml", overwrite=True)
        assert load(scenario_of(tmp_path)).cluster.compute.expectation == pytest.approx(
            0.41, rel=0.005
        )
    for wrong, why in (("2 s", "less than the compute"), ("410", "compute")):
        with pytest.raises(InputError, match=why):
            calibrate([written(tmp_path, stated.replace("410 ms", wrong), "jobs.toml")])


@pytest.fixture(scope="module")
def misfit(tmp_path_factory):
    """Profile a log of DDP on 8 GPUs, 391 ms a step, where 11 GB/s and 310 ms would make 330 ms."""

    @cache
    def fitted(*stated, pace=0.391, overlap="true"):
        paces = pace * (1 + 0.004 * np.random.default_rng(2).standard_normal(190))
        folder = tmp_path_factory.mktemp("misfit")
        written(folder, log(paces), "ddp.csv")
        link = 'bandwidth = "11 GB/s", ' * ("bandwidth" in stated)
        text = (
            '[[job]]\nlog = "ddp.csv"\nworkers = 8\nwarmup = 0\n'
            f'algorithm = {{ name = "ssgd-bucketed", buckets = 6, overlap = {overlap} }}\n'
            f'network = {{ {link}latency = "10 us", library = "nccl" }}\n'
            "model = { parameters = 304_000_000, bytes_per_parameter = 2 }\n"
        ) + 'compute = "310 ms"\n' * ("compute" in stated)
        calibration = calibrate([written(folder, text, "jobs.toml")])
        calibration.profile.write(folder / "p.toml")
        return folder, calibration, paces.mean()

    return fitted


def rows_of(folder, overlap=True):
    table = {
        "extends": "p.toml", "objective": {"kind": "none"}, "run": {"steps": 96, "seeds": 2},
        "algorithm": [{"name": "ssgd-bucketed", "buckets": 6, "overlap": overlap},
                      {"name": "local-sgd", "tau": 32}],
    }  # fmt: skip
    rows = simulate(parse(table, folder=folder)).json()["algorithms"]
    return [row["seconds_per_step"] for row in rows]


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    "stated",
    [
        ("bandwidth",),
        ("bandwidth", "compute"),
        *(pytest.param(stated, marks=pytest.mark.nightly) for stated in ((), ("compute",))),
    ],
)
def test_a_profile_has_the_pace_of_its_own_log(stated, misfit):
    folder, actual, pace = misfit(*stated)
    measured, _ = rows_of(folder)
    assert measured["mean"] == pytest.approx(pace, rel=0.004)
    low, high = measured["interval90"]
    assert low < pace < high < 1.05 * low
    assert abs(actual.checks[0].error) < 0.004


@pytest.mark.usefixtures("brief")
@looped(
    ("pace", "noise", "error"),
    [
        (0.5, 0.03, 0.001),  # buckets that are just hidden: one way or the other, by each number
        (0.425, 0.03, 0.012),  # and more than can be hidden: the log counts more than the usual
    ],
)
def test_the_fit_meets_its_log_where_buckets_are_hidden_no_longer(
    pace, noise, error, tmp_path, monkeypatch
):
    monkeypatch.setattr(link_law._Law, "draw", lambda law, point, rng: point)
    paces = pace * (1 + noise * np.random.default_rng(2).standard_normal(300))
    written(tmp_path, log(paces), "ddp.csv")
    text = (
        '[[job]]\nlog = "ddp.csv"\nworkers = 8\nwarmup = 0\nregion = "box"\ncompute = "420 ms"\n'
        'algorithm = { name = "ssgd-bucketed", buckets = 6 }\n'
        'network = { library = "nccl", bandwidth = "12 GB/s", latency = "0 us" }\n'
        "model = { parameters = 1_100_000_000, bytes_per_parameter = 2 }\n"
    )
    (check,) = calibrate([written(tmp_path, text, "jobs.toml")]).checks
    assert abs(check.error) < error


@pytest.mark.usefixtures("brief")
def test_a_log_at_odds_with_what_is_stated_says_so(misfit):
    """Slow links, not a set-up of 68 ms, explain it; without `compute` the interval is wider."""
    folder, profile, _ = misfit("bandwidth", "compute")
    (note,) = [text for text in profile.notes if "contradicts" in text]
    for part in ("busbw", "overlap", "no_sync"):
        assert part in note
    law = profile.profile.tables["overhead"][0]
    assert float(law["collective"].removesuffix(" ms")) < 5
    sure = rows_of(folder)[1]["interval90"]
    folder, other, _ = misfit("bandwidth")
    assert not [text for text in other.notes if "contradicts" in text]
    assert [note for note in other.notes if "cannot be separated" in note]
    wide = rows_of(folder)[1]["interval90"]
    assert wide[1] - wide[0] > sure[1] - sure[0], (wide, sure)


def test_computing_that_a_log_shows_is_taken_as_measured(tmp_path):
    """Where every step communicates too, and whatever its law: by each worker, and by one."""
    shapes = {"exponential": 1.0, "gamma": 4.0}
    for ranks, (name, shape) in product((1, 4), shapes.items()):
        times = np.random.default_rng(0).gamma(shape, 0.2 / shape, (4, 400))
        waits = times.max(axis=0) - times + 0.5
        lines = [
            f"{rank},{k},{times[rank, k]:.6f},{waits[rank, k]:.6f}"
            for rank in range(ranks)
            for k in range(400)
        ]
        text = "\n".join(["rank,step,compute,wait", *lines])
        written(tmp_path, text, "0.csv")
        path = written(tmp_path, job("0.csv", **OVER | {"bandwidth": FAST, "tau": 1}), "jobs.toml")
        calibration = calibrate([path])
        calibration.profile.write(tmp_path / "p.toml", overwrite=True)
        stated = times[:ranks, 10:].mean()
        made = load(scenario_of(tmp_path)).cluster.compute.expectation
        assert made == pytest.approx(stated, rel=1e-3), (name, ranks)


@pytest.mark.long
def test_where_every_step_communicates_computing_may_be_what_is_left(tmp_path):
    """Beside a collective of half a second, one of a fiftieth more hides a fifth of computing."""
    law = HiddenLaw(compute=0.05)
    path = over(tmp_path, law, (SLOW, 1), (FAST, 1))
    (note,) = [text for text in calibrate([path]).notes if "cannot be separated" in text]
    assert "0.csv, 1.csv: every step communicates" in note
    profiled(tmp_path, path)
    actual = [predicted(tmp_path, bandwidth, 1) for bandwidth in (FAST, 5 * GIGABIT)]
    near, far = (math.log(pace["interval90"][1] / pace["interval90"][0]) for pace in actual)
    assert far > 5 * near
    truth = law.pace(bandwidth=5 * GIGABIT, tau=1, **OVER)
    assert abs(math.log(truth / actual[1]["mean"])) < far


def scenario_of(folder):
    text = 'extends = "p.toml"\n[network]\nbandwidth = "1 Gbit/s"\n[run]\nsteps = 8\n'
    return written(folder, text + '[[algorithm]]\nname = "ssgd"\n', "s.toml")


@pytest.mark.long
def test_jobs_that_compute_apart_are_conditions_of_their_own(tmp_path):
    path = over(tmp_path, HiddenLaw(), (SLOW, 8))
    slower = HiddenLaw(compute=0.3)
    table = OVER | {"bandwidth": FAST, "tau": 8}
    written(tmp_path, log(slower.steps(np.random.default_rng(3), steps=400, **table)[0]), "b.csv")
    path.write_text(path.read_text() + job("b.csv", **table))
    calibration = calibrate([path])
    assert "so each has its own condition" in " ".join(calibration.notes)
    assert all(abs(check.error) < 0.01 for check in calibration.checks)
    calibration.profile.write(tmp_path / "p.toml")
    low, high = predicted(tmp_path, FAST, 64)["interval90"]
    assert low < 0.21
    assert high > 0.29


def test_evaluations_between_steps_are_left_out(tmp_path, two_links):
    path = over(tmp_path, HiddenLaw(), (SLOW, 8), (FAST, 8))
    for name in ("0.csv", "1.csv"):
        lasted = tables.read(tmp_path / name).seconds
        lasted[99::100] += 20  # such as an evaluation takes
        written(tmp_path, log(lasted), name)
    calibration = calibrate([path])
    assert "1.csv: a pause every 100 steps (4 in all) is left out" in calibration.notes
    for one, other in zip(two_links.checks, calibration.checks, strict=True):
        assert one.predicted == pytest.approx(other.predicted, rel=2e-3)
    short = "".join(f"{n},0.4\n" for n in range(1, 14))
    with pytest.raises(InputError, match=r"0.csv: 3 lines after the warm-up; give 4"):
        calibrate([written(tmp_path, "step,seconds\n" + short, "0.csv").with_name("jobs.toml")])


@pytest.mark.usefixtures("brief")
def test_buckets_may_take_longer_than_whole_means(tmp_path):
    """DistributedDataParallel whose buckets go through a double tree, beside means by a ring."""
    law, text, sizes = HiddenLaw(), "", [1e6, 13e6, 13e6, 13e6]
    path = over(tmp_path, law, (SLOW, 8), (FAST, 8))

    def step(bandwidth, rng=None, workers=4):
        done = law.compute / 3
        for n, size in enumerate(sizes):  # a tree moves 2 payloads, a ring of 4 moves 3/2
            ready = law.compute / 3 * (1 + 2 * sum(sizes[: n + 1]) / sum(sizes))
            tree = workers / (workers - 1)
            taken = law.collective(workers, tree * size, bandwidth, LATENCY)
            done = max(done, ready) + taken
        return max(done, law.compute) * (1 + 0.002 * rng.standard_normal() if rng else 1)

    rng = np.random.default_rng(4)
    written(tmp_path, log([step(0.5 * GIGABIT, rng) for _ in range(400)]), "2.csv")
    table = OVER | {"bandwidth": 0.5 * GIGABIT, "tau": 1}
    named = f'{{ name = "ssgd-bucketed", buckets = {[int(size) for size in sizes]} }}'
    text = job("2.csv", **table).replace('{ name = "ssgd" }', named)
    path.write_text(path.read_text() + text)
    profiled(tmp_path, path)
    ddp = {"name": "ssgd-bucketed", "buckets": [int(size) for size in sizes]}
    more = predicted(tmp_path, SLOW, 1, workers=8, algorithm=[ddp])
    assert more["mean"] == pytest.approx(step(SLOW, workers=8), rel=0.05)
    by_ring = more["mean"] * 16 / 14  # were it no tree, but slow links, on 4 workers
    assert more["interval90"][0] < step(SLOW, workers=8) < more["interval90"][1] < by_ring
    for bandwidth in (0.1 * GIGABIT, FAST):
        prediction = predicted(tmp_path, bandwidth, 1, algorithm=[ddp])
        assert prediction["mean"] == pytest.approx(step(bandwidth), rel=0.03)
        means = predicted(tmp_path, bandwidth, 8)
        assert means["mean"] == pytest.approx(
            law.pace(bandwidth=bandwidth, tau=8, **OVER), rel=0.02
        )


def test_the_fit_tells_its_steps(tmp_path):
    runs = []
    two = '{ name = "ssgd-bucketed", buckets = 2 }'
    path = written(tmp_path, ddp(tmp_path, "ddp.csv", two, np.full(300, 0.4)), "jobs.toml")
    calibrate([path], progress=lambda done, total: runs.append((done, total)))
    assert runs[:3] == [(0, 3), (1, 3), (2, 3)]
    steps = [done for done, _ in runs[3:-1]]
    assert {of for _, of in runs[3:-1]} == {24}  # draws
    assert steps == sorted(steps)
    assert len({*steps}) > 20
    assert runs[-1] == (3, 3)


def test_an_unknown_link_is_fitted_by_itself(tmp_path):
    path = over(tmp_path, HiddenLaw(), (SLOW, 8))
    text = re.sub(r"network = .*\n", "", path.read_text())
    path.write_text(text)
    calibration = calibrate([path])
    assert "its link is unknown" in " ".join(calibration.notes)
    speed = calibration.profile.tables["network"]["bandwidth"]
    assert float(speed.split()[0]) == pytest.approx(200 * 0.93, rel=0.1)
    assert speed.endswith("Mbit/s")


def test_overlapped_programs_are_fitted_by_their_own_text(tmp_path):
    """Logs that the simulator writes itself, of an algorithm that hides its means."""
    table = {
        "model": {"parameters": 10_000_000}, "cluster": {"workers": 4, "compute": "100 ms"},
        "overhead": [{"transmission_factor": 1.1, "collective": "2 ms"}],
        "run": {"steps": 200, "evaluate_every": 1},
        "algorithm": [{"name": "cocod-sgd", "tau": 4}],
    }  # fmt: skip
    text = ""
    for n, speed in enumerate(("250 Mbit/s", "1 Gbit/s")):
        network = {"bandwidth": speed, "latency": "1 ms"}
        (done,) = simulate(parse(table | {"network": network})).runs
        written(tmp_path, log(np.diff(done.curve["time"])), f"{n}.csv")
        text += (
            f'[[job]]\nlog = "{n}.csv"\nworkers = 4\n'
            'algorithm = { name = "cocod-sgd", tau = 4 }\n'
            f'network = {{ bandwidth = "{speed}", latency = "1 ms" }}\n'
            "model = { parameters = 10_000_000 }\n"
        )
    calibration = calibrate([written(tmp_path, text, "jobs.toml")])
    assert all(abs(check.error) < 0.005 for check in calibration.checks)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("latency", ["0 us", pytest.param("5 us", marks=pytest.mark.nightly)])
def test_one_log_over_one_fast_link_is_a_profile_that_loads(latency, tmp_path):
    """One link tells nothing of how its law depends on the rate: the exponent is about 0."""
    paces = np.random.default_rng(5).gamma(400, 0.260 / 400, 290)
    text = ddp(tmp_path, "run.csv", '"ssgd-bucketed"', paces, noise=0.0)
    text = re.sub(r"network = .*", f'network = {{ library = "nccl", bandwidth = "10 GB/s", '
                  f'latency = "{latency}" }}', text)  # fmt: skip
    text = re.sub(
        r"model = .*", "model = { parameters = 100_000_000, bytes_per_parameter = 2 }", text
    )
    profiled(tmp_path, written(tmp_path, text, "jobs.toml"))
    table = {
        "extends": "p.toml", "run": {"steps": 200, "seeds": 2},
        "algorithm": [{"name": "ssgd-bucketed"}],
    }  # fmt: skip
    (row,) = simulate(parse(table, folder=tmp_path)).json()["algorithms"]
    low, high = row["seconds_per_step"]["interval90"]
    assert low < 0.260 < high
    assert row["seconds_per_step"]["mean"] == pytest.approx(0.260, rel=0.02)


# What the keys of the law mean


def test_the_law_is_what_the_simulator_charges():
    network = {"bandwidth": "200 Mbit/s", "latency": "3 ms"}
    overhead = {
        "collective": "1 ms", "hop": "2 ms", "latency_factor": 1.5, "transmission_factor": 1.1,
        "transmission_exponent": 0.05, "per_byte": 1e-9, "tree_exponent": 0.5,
    }  # fmt: skip
    table = {
        "model": {"parameters": 10**6}, "cluster": {"workers": 4, "compute": "1 s"},
        "network": network, "overhead": [overhead], "run": {"steps": 5},
        "algorithm": [{"name": "ssgd"}],
    }  # fmt: skip
    (done,) = simulate(parse(table)).runs
    volume = 6 / 4 * 4e6
    passed = volume / 25e6 * 1.1 * (4 / 3) ** 0.5 * 0.2**-0.05 + volume * 1e-9
    assert done.duration == pytest.approx(5 * (1 + 1e-3 + 6 * 2e-3 + 6 * 1.5 * 3e-3 + passed))
    assert Overhead(transmission_factor=1.3).of_collective(1.0, 0.0) == (1.3, 0.0)


@looped("model", ["closed-form", "flows"])
@looped(
    ("network", "parameters", "by"),
    [
        ({}, 10**6, 8 / 7),
        ({"collective": "double-tree"}, 10**6, 1),
        ({"library": "nccl"}, 10**6, 8 / 7),
        ({"library": "nccl"}, 10**3, 1),  # by a tree, as the tuner chooses
        ({"library": "gloo"}, 10**6, 1),
    ],
)
def test_only_what_is_declared_a_ring_may_be_a_tree(network, parameters, by, model):
    """A declared tree, and gloo, whose rings are rings, take what their formula says."""

    def duration(exponent):
        table = {
            "model": {"parameters": parameters}, "cluster": {"workers": 8, "compute": "1 ms"},
            "network": {"bandwidth": "1 Gbit/s", "latency": "0 s", "model": model} | network,
            "overhead": [{"tree_exponent": exponent}], "run": {"steps": 2},
            "algorithm": [{"name": "ssgd"}],
        }  # fmt: skip
        (done,) = simulate(parse(table)).runs
        return done.duration - 2e-3

    assert duration(1.0) == pytest.approx(by * duration(0.0), rel=1e-3)


# Forms of logs

PLAIN = np.array([0.2, 0.21, 0.19, 0.5] * 10)


def rows(unit=1.0, first=1):
    return [(k, seconds / unit) for k, seconds in enumerate(PLAIN, start=first)]


def lines(head, values, by=",", end="\n"):
    return end.join([head, *(by.join(map(str, row)) for row in values), ""])


FORMS = {
    "seconds.csv": lines("step,seconds", rows()),
    "milliseconds.csv": lines("step,step_ms", rows(1e-3)),
    "spaces.csv": lines("Step , Step time (ms)", rows(1e-3)),
    "camel.csv": lines("globalStep,stepTimeMs", rows(1e-3)),
    "windows.csv": "\ufeff" + lines("step;seconds", rows(), ";", "\r\n").replace(".", ","),
    "tabs.tsv": lines("iteration\titeration_time_us", rows(1e-6), "\t"),
    "said.csv": lines("step,step_time", [(k, f"{1e3 * seconds} ms") for k, seconds in rows()]),
    "comments.csv": "# a job\n\n" + lines("step,seconds,loss", [(*row, "nan") for row in rows()]),
    "elapsed.csv": lines("step,time_s", [(k, t) for k, t in enumerate(np.cumsum([0.7, *PLAIN]))]),
    "wandb.csv": lines(
        '"Step","eager-fox-3 - train/step_ms","eager-fox-3 - train/step_ms__MIN"',
        [(k, f'"{seconds}"', seconds) for k, seconds in rows(1e-3)] + [(41, "", "")],
    ),
    "history.jsonl": "\n".join(
        json.dumps({"_step": k, "_runtime": t, "loss": None, "note": "x"})
        for k, t in enumerate(np.cumsum([1.0, *PLAIN]))
    ),
    "clocks.csv": lines(
        "step,elapsed", [(k, f"1:00:{t:09.6f}") for k, t in enumerate(np.cumsum([1.0, *PLAIN]))]
    ),
    "moments.csv": lines(
        "step,timestamp",
        [(k, f"2026-01-31T12:00:{t:09.6f}Z") for k, t in enumerate(np.cumsum([1.0, *PLAIN]))],
    ),
    "list.json": json.dumps([{"step": k, "dt_s": seconds} for k, seconds in rows()]),
    "tensorboard.csv": lines(
        "Wall time,Step,Value",
        [(1.7e9 + t, k, 2.3) for k, t in enumerate(np.cumsum([1.0, *PLAIN]))],
    ),
    "split.csv": lines(
        "rank,step,compute,wait",
        [(r, k, 0.19, round(seconds - 0.19, 9)) for r in (0, 1) for k, seconds in rows()],
    ),
}


FORMS |= {f"{name}.gz": gzip.compress(FORMS[name].encode()) for name in ("tabs.tsv", "list.json")}
FORMS["named-for-nothing.gz"] = FORMS["tabs.tsv.gz"]


@looped("name", FORMS)
def test_forms_of_a_log(name, tmp_path):
    contents = tables.read(written(tmp_path, FORMS[name], name))
    chief = contents.rank == 0
    assert contents.step[chief].tolist() == list(range(1, 41))
    assert contents.seconds[chief] == pytest.approx(PLAIN, rel=1e-5)
    assert np.isnan(contents.compute).all() == (name != "split.csv")


def test_a_sparse_log_counts_the_steps_between_its_lines(tmp_path):
    text = lines("step,elapsed_s", [(10 * k, 10 * k * 0.31) for k in range(20)])
    contents = tables.read(written(tmp_path, text))
    assert (contents.seconds / contents.steps).tolist() == pytest.approx([0.31] * 19)
    columns = {"step": "n", "seconds": "took [ms]"}
    contents = tables.read(written(tmp_path, lines("n,took", rows(1e-3))), columns)
    assert contents.seconds == pytest.approx(PLAIN)


def test_a_column_that_only_grows_is_a_clock(tmp_path):
    """Since the start, by rank, since 1970, or resumed: refused, and read where called time."""
    clock = np.cumsum(0.095 * (1 + 0.05 * np.random.default_rng(0).standard_normal(60)))
    of_ranks = [(k, r, 1e3 * (t + 9 * r)) for k, t in enumerate(clock) for r in range(2)]
    for head, made in (
        ("step,c", [(k, round(1e3 * t)) for k, t in enumerate(clock)]),
        ("step,c", [(50 * k, round(1e3 * 50 * t)) for k, t in enumerate(clock)]),
        ("step,c", [(k, round(1.7e12 + 1e3 * t)) for k, t in enumerate(clock)]),
        ("step,rank,c", of_ranks),
    ):
        path = written(tmp_path, lines(head, made))
        with pytest.raises(InputError, match="column c: it only grows"):
            tables.read(path, {"seconds": "c [ms]"})
        contents = tables.read(path, {"time": "c [ms]"})
        assert (contents.seconds / contents.steps).mean() == pytest.approx(0.095, rel=0.03)
    resumed = lines("step,seconds", enumerate(np.concatenate([clock, clock])))
    with pytest.raises(InputError, match="column seconds: it only grows"):
        tables.read(written(tmp_path, resumed))
    saw = lines("step,step_ms", [(k, f"95.{k % 10}") for k in range(60)])
    assert tables.read(written(tmp_path, saw)).seconds.mean() == pytest.approx(0.0954, rel=1e-3)


@looped("every, first", [(20, 20), (50, 49), (50, 5), (15, 15)])
def test_a_log_of_every_kth_step_shows_the_mean_of_all(tmp_path, every, first):
    """Whether they all average, none does, or some do."""
    lasted = HiddenLaw().steps(np.random.default_rng(0), steps=4000, bandwidth=SLOW, tau=10, **OVER)
    zero = int(first == 49)
    chosen = [(k, lasted[0][k - 1 + zero]) for k in range(first, 4000, every)]
    path = over(tmp_path, HiddenLaw(), (SLOW, 10))
    written(tmp_path, lines("step,seconds", chosen), "0.csv")
    profiled(tmp_path, path)
    low, high = predicted(tmp_path, SLOW, 10)["interval90"]
    assert low <= lasted.mean() <= high < (1.02 if every == 15 else 4) * low
    if every == 20:
        written(tmp_path, lines("step,seconds", [(k - first, t) for k, t in chosen]), "0.csv")
        with pytest.raises(InputError, match="whether steps count from 0 or 1"):
            calibrate([path])


# What is not a log


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.text(max_size=200), st.binary(max_size=200)),
    st.sampled_from(["", "step,seconds\n", "{"]),
)
def test_any_file_is_a_log_or_refused(tmp_path_factory, content, head):
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    path = written(tmp_path_factory.mktemp("any"), head.encode() + data)
    with suppress(InputError):  # and nothing else
        tables.read(path)


def test_gigantic_logs_are_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.write(b"step,seconds\n")
        file.truncate(log_table.LARGEST + 1)
    with pytest.raises(InputError, match="above 100 MB"):
        tables.read(path)
    monkeypatch.setattr(log_table, "MOST", 5)
    with pytest.raises(InputError, match="line 7: more than 5 rows"):
        tables.read(written(tmp_path, FORMS["seconds.csv"]))


# Jobs


SEVERAL = "\n".join(
    ['"Step","a - dt_ms","a - dt_ms__MIN","b - dt_ms","b - dt_ms__MIN"']
    + [f"{n},{400 + n % 3},1,{500 + n % 3 if n < 30 else ''},1" for n in range(1, 41)]
)


@looped(("text", "lengths"), [(FORMS["milliseconds.csv"], [40]), (SEVERAL, [40, 29])])
def test_a_log_alone_explains_what_is_missing(text, lengths, tmp_path, capsys):
    """And of every run that W&B exports into one file."""
    path = written(tmp_path, text)
    assert run(["calibrate", str(path)]) == 2
    output = capsys.readouterr().err
    assert all(f"{length} steps" in output for length in lengths)
    start = output.index("[[job]]")
    table = tomllib.loads(output[start : output.index("Add a [[job]]")])
    assert table["job"][0]["log"] == "log.csv"
    written(tmp_path, output[start : output.index("Add a [[job]]")], "jobs.toml")
    actual = jobs.read(tmp_path / "jobs.toml")
    assert [len(job.log.step) + 10 for job in actual] == lengths
    assert actual[0].scenario.cluster.workers == 2


@looped("first", [0, 1, 3])
def test_the_steps_that_communicate_are_found(tmp_path, first):
    path = over(tmp_path, HiddenLaw(), (SLOW, 5))
    table = OVER | {"bandwidth": SLOW, "tau": 5}
    lasted = HiddenLaw().steps(np.random.default_rng(0), steps=200, **table)[0]
    written(tmp_path, log(lasted, first=first), "0.csv")
    seen = steps.observe(jobs.read(path)[0])
    assert seen.pattern.period == 5
    assert seen.compute == pytest.approx(0.2, rel=0.02)
    assert bool(seen.notes) == (first == 3)


def test_the_command_of_the_documentation(tmp_path, capsys):
    """With the very tables of a user who names a library, where the network knows any."""
    path = over(tmp_path, HiddenLaw(), (SLOW, 4), (FAST, 4))
    if "library" in Network.model_fields:
        path.write_text(path.read_text().replace('us" }', 'us", library = "nccl" }'))
    out = tmp_path / "profile.toml"
    assert run(["calibrate", str(path), "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["checks"]) == 2
    assert "draws" in tomllib.loads(out.read_text())["calibration"]
