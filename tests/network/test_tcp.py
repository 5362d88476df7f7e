"""TCP over the links of [network]: never faster than ideal ones, and why it is slower."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import simulate
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.network import tcp
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.network.mean_cost import mean_cost
from paceline.simulator.scenario.cluster import Group
from paceline.simulator.scenario.overhead import Overhead
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario

LINE = {"latency": "20 ms", "bandwidth": "100 Mbit/s"}
MODEL = {"parameters": 1_000_000}


def world(*algorithms, compute="10 ms", payload=MODEL, workers=4, steps=6, **network):
    return scenario(
        *(algorithms or ({"name": "ssgd"},)),
        workers=workers, compute=compute, model=payload, steps=steps, network=LINE | network,
    )  # fmt: skip


def paces(made, **options):
    return [item["seconds_per_step"]["mean"] for item in simulate(made, **options).algorithms]


def test_a_packet_carries_its_headers_and_every_second_one_is_acknowledged():
    """1448 of 1514 bytes, and 66 back for 3028; 8948 of 9014 with jumbo frames."""
    assert tcp.share(1500) == pytest.approx(1448 / 1514)
    assert tcp.acknowledgements(1500) == pytest.approx(66 / 3028)
    assert tcp.share(9000) == pytest.approx(8948 / 9014)
    cost = {name: mean_cost(world(transport="tcp", collective=name)) for name in ("ring", "tree")}
    ideal = {name: mean_cost(world(collective=name)) for name in cost}
    ratio = {name: cost[name].transmission / ideal[name].transmission for name in cost}
    median = tcp.measured()["median"]  # what links of the kernel add to all this
    assert ratio["tree"] == pytest.approx(median * 1514 / 1448)  # nor do payloads meet acks there
    assert ratio["ring"] == pytest.approx(median * 1514 / 1448 * (1 + 66 / 3028))


def test_slow_start_by_hand():
    """Windows of 1, 2, 4 kB over a pipe of 10 kB: 100 ms less each window's own time."""
    rate, trip = 100_000.0, 0.1
    assert tcp.start([7000.0], rate, trip, 1000.0) == pytest.approx(0.09 + 0.08)
    assert tcp.start([7001.0], rate, trip, 1000.0) == pytest.approx(0.09 + 0.08 + 0.06)
    assert tcp.start([1e9], rate, trip, 1000.0) == pytest.approx(0.09 + 0.08 + 0.06 + 0.02)
    assert tcp.start([1000.0] * 3, rate, trip, 1000.0) == 0.0  # each within its window
    assert tcp.start([1000.0, 2001.0], rate, trip, 1000.0) == pytest.approx(0.08)
    assert tcp.start([1e9], rate, 0.0, 1000.0) == 0.0
    assert tcp.start([3000.0], inf, trip, 1000.0) == pytest.approx(0.1)


def test_a_window_halves_with_each_time_out_of_a_pause():
    assert [tcp.resumed(10.0, 70.0, count) for count in range(5)] == [80.0, 40.0, 20.0, 10.0, 10.0]
    made = ClosedForm(world(transport="tcp"))
    added, _ = made.after_pause("mean", range(4), made.model_bytes)
    assert added[0] == added[1] == 0.0  # what is left is still the round trip's worth
    assert added == sorted(added)
    assert added[-1] > 0.1


sizes = st.lists(st.floats(1, 1e9), min_size=1, max_size=20)


@given(sizes, st.floats(1e3, 1e10), st.floats(0, 1), st.floats(1e3, 1e6), st.floats(1, 4))
def test_slow_start_costs_less_with_larger_windows_and_shorter_round_trips(
    sizes, rate, trip, first, more
):
    lost = tcp.start(sizes, rate, trip, first)
    assert lost >= 0
    assert tcp.start(sizes, rate, trip / more, first) <= lost + 1e-9
    assert tcp.start(sizes, rate, trip, 2 * first) <= lost + 1e-9
    assert lost <= 40 * len(sizes) * trip


@given(
    collective=st.sampled_from(["ring", "tree", "star"]),
    workers=st.integers(2, 9),
    latency=st.integers(0, 300_000),
    rate=st.integers(100, 10**8),
    parameters=st.integers(100, 10**8),
    sockets=st.integers(1, 8),
)
def test_tcp_is_never_faster_and_larger_packets_and_more_sockets_never_slower(
    collective, workers, latency, rate, parameters, sockets
):
    def cost(**network):
        made = world(
            workers=workers, collective=collective, latency=f"{latency} us",
            bandwidth=f"{rate} kbit/s", payload={"parameters": parameters}, **network,
        )  # fmt: skip
        actual, whole = ClosedForm(made), mean_cost(made)
        cold = actual.after_pause("mean", range(workers), made.model.bytes)[0][-1]
        return whole.transmission + whole.latency, cold if actual.pause < inf else 0.0

    over = 1 + 1e-9
    ideal, tcp_1500 = cost(), cost(transport="tcp")
    jumbo = cost(transport="tcp", mtu=9000)
    several = cost(transport="tcp", sockets=sockets)
    assert ideal[1] == 0.0
    assert ideal[0] <= tcp_1500[0] * over
    assert jumbo[0] <= tcp_1500[0] * over
    assert several[0] <= tcp_1500[0] * over
    assert sum(several) <= sum(tcp_1500) * over


@looped(
    ("own", "window"),
    [
        ({}, tcp.WINDOW), ({"sockets": 4}, 4 * tcp.WINDOW), ({"tcp_window": "1 MB"}, 1e6),
        ({"library": "gloo"}, tcp.WINDOW), ({"library": "nccl"}, 2 * tcp.WINDOW),  # two channels
    ],
)  # fmt: skip
def test_a_window_s_worth_of_bytes_travels_in_a_round_trip(own, window):
    far = world(transport="tcp", latency="500 ms", bandwidth="10 Gbit/s", **own)
    assert ClosedForm(far).link(0, 1).bandwidth == pytest.approx(window)


@looped("engine", ["virtual", "batched"])
def test_only_a_mean_after_a_pause_starts_slowly(engine):
    """Steps of 150 ms are no pause; 30 of them, 4.5 s, last for 18 time-outs of 240 ms."""
    algorithms = {"name": "local-sgd", "tau": 1}, {"name": "local-sgd", "tau": 30}
    made = world(*algorithms, compute="150 ms", transport="tcp", steps=60)
    often, seldom = paces(made, engine=engine)
    network = ClosedForm(made)
    mean = sum((network.mean_cost().transmission, network.mean_cost().latency))
    cold = network.after_pause("mean", range(4), made.model.bytes)[0][-1]
    assert network.pause == pytest.approx(0.24)
    assert cold > 0.01
    assert often == pytest.approx(0.15 + mean + cold / 60)  # on new connections
    assert seldom == pytest.approx(0.15 + (mean + cold) / 30)


def test_a_bucket_lets_the_first_bytes_of_each_message_pass():
    """By hand: 3 kB of tokens, 1 kB/s; two seconds between messages refill 2 kB."""
    assert tcp.credit([5000.0], 1000.0, 0.0, 3000.0) == pytest.approx(3.0)
    assert tcp.credit([5000.0, 5000.0], 1000.0, 2.0, 3000.0) == pytest.approx(5.0)
    assert tcp.credit([1000.0] * 4, 1000.0, 0.0, 3000.0) == pytest.approx(3.0)
    assert tcp.credit([5000.0] * 2, 1000.0, 9.0, 3000.0) == pytest.approx(6.0)


@looped("engine", ["virtual", "batched"])
def test_a_bucket_is_as_full_as_the_pause_was_long(engine):
    """A step of 1 ms refills an eighth of the 100 kB that 8 ms do, at 100 Mbit/s."""
    saved = []
    for compute in ("1 ms", "100 ms"):
        line = {"compute": compute, "transport": "tcp", "latency": "0 s"}
        plain, shaped = (world(**line, **table) for table in ({}, {"burst": "100 kB"}))
        saved.append(6 * (paces(plain, engine=engine)[0] - paces(shaped, engine=engine)[0]))
    whole = 1e5 / (100e6 / 8)
    assert saved == pytest.approx([whole + 5 * 0.001, 6 * whole], rel=1e-3)


@settings(max_examples=12)
@given(
    collective=st.sampled_from(["ring", "tree", "star"]),
    tau=st.integers(1, 4),
    burst=st.sampled_from([{}, {"burst": "10 kB"}, {"burst": "1 MB"}]),
    mean=st.sampled_from(["20 ms", "100 ms", "300 ms"]),
)
def test_both_engines_state_the_same_numbers(collective, tau, burst, mean):
    law = {"dist": "exponential", "mean": mean}
    made = world(
        {"name": "local-sgd", "tau": tau}, {"name": "overlap-local-sgd", "tau": tau},
        compute=law, transport="tcp", collective=collective, **burst,
    )  # fmt: skip
    assert paces(made, engine="virtual", seeds=2) == paces(made, engine="batched", seeds=2)


@looped("case", [{"name": "ssgd"}, {"name": "diloco", "tau": 5}])
def test_until_a_deadline_all_seeds_run_at_once_over_tcp(case):
    """What is asked for beyond the deadline never begins; slow start must bear that."""
    made = scenario(
        case, compute={"dist": "exponential", "mean": "1 s"}, model=MODEL, steps=None,
        network=LINE | {"transport": "tcp"}, run={"duration": "60 s", "seeds": 3},
    )  # fmt: skip
    result = simulate(made)
    assert result.engine == "batched"
    assert [run.duration for run in result.runs] == [
        run.duration for run in simulate(made, engine="virtual").runs
    ]


def test_a_message_after_a_long_step_starts_slowly():
    quick, slow = (
        world({"name": "asgd"}, compute=name, transport="tcp") for name in ("1 ms", "1 s")
    )
    actual = ClosedForm(slow).message_link(0, 4)
    assert actual.bandwidth == ClosedForm(quick).message_link(0, 4).bandwidth
    assert actual.latency > ClosedForm(quick).message_link(0, 4).latency == pytest.approx(0.02)


@looped("case", [{"name": "ssgd"}, {"name": "asgd"}])
@looped("model", ["closed-form", "flows"])
def test_what_a_profile_measured_takes_its_headers_once(case, model):
    """A profile of ideal transport predicts over TCP's the same times: no links but its own."""
    costs = {
        "transmission_factor": 1.04, "transmission_exponent": 0.02, "message_factor": 1.05,
        "hop_bytes": "300 B", "collective": "1 ms",
    }  # fmt: skip
    line = {"latency": "0 s", "bandwidth": "50 Mbit/s", "model": model}

    def pace(known, **more):
        made = scenario(case, network=line | more, overhead=[costs], calibration=known)
        return simulate(made).algorithms[0]["seconds_per_step"]["mean"] - 1  # of computing

    ideal, over = pace({}), pace({}, transport="tcp")
    assert over == pytest.approx(ideal, rel=1e-9)
    assert pace({"transport": "tcp"}, transport="tcp") > 1.02 * over
    emulated = {"step": "1 ms"}  # whose factors are of no link
    assert tcp.costs(
        scenario(case, network=line | {"transport": "tcp"}, overhead=[emulated], calibration={})
    ) == Overhead.model_validate(emulated)


def test_a_bandwidth_that_payloads_had_is_not_reduced_again(tmp_path):
    profile = '[network]\nbandwidth = "186 Mbit/s"\n[[overhead]]\ncollective = "1 ms"\n'
    (tmp_path / "p.toml").write_text(profile + "[calibration]\n")
    table = {
        "extends": "p.toml", "model": {"parameters": 1000}, "run": {"steps": 2},
        "cluster": {"workers": 2, "compute": "1 s"}, "algorithm": [{"name": "ssgd"}],
        "network": {"latency": "1 ms", "transport": "tcp"},
    }  # fmt: skip
    with pytest.raises(InputError, match=r"'186 Mbit/s' is the speed of payloads.*remove network"):
        parse(table, folder=tmp_path)
    parse(table | {"network": table["network"] | {"bandwidth": "200 Mbit/s"}}, folder=tmp_path)
    (tmp_path / "p.toml").write_text(profile + '[calibration]\ntransport = "tcp"\n')
    parse(table, folder=tmp_path)


@looped("library", ["ideal", "nccl"])
def test_without_a_profile_collectives_take_what_they_took_in_the_median(library):
    line = {"latency": "5 ms", "bandwidth": "10 Mbit/s", "sockets": 64, "transport": "tcp"}
    bare = world(library=library, steps=50, **line)
    silent = bare.model_copy(update={"overhead": (Overhead(),)})
    median = tcp.measured()["median"]
    costs = (pace - 0.01 for (pace,) in map(paces, (bare, silent)))
    assert next(costs) == pytest.approx(median * next(costs), rel=1e-4)
    assert tcp.costs(world(library="gloo", **line)).agree_latencies == 2


@looped("library", ["ideal", "nccl"])
def test_hosts_move_no_more_than_published_ones(library):
    slow, fast = (
        world(library=library, transport="tcp", latency="1 us", bandwidth=rate, sockets=2)
        for rate in ("1 Gbit/s", "100 Gbit/s")
    )
    measured = tcp.measured()
    assert tcp.missed(slow)[:3] == (measured["low"], measured["median"], measured["high"])
    carried = tcp.usable(fast.network) * 12.5e9
    power, usual = 1.859548 / 1.644854, measured["hosts_median"]  # Student's of nine hosts
    rates = [measured[f"hosts_{name}"] / usual for name in ("high", "median", "low")]
    assert tcp.missed(fast)[:3] == pytest.approx([carried / usual / r**power for r in rates])
    behind = fast.cluster.model_copy(update={"group": (Group(name="a", workers=1, up="1 Gbit/s"),)})
    assert tcp.missed(fast.model_copy(update={"cluster": behind})) == tcp.missed(slow)  # of a line


@looped("library", ["ideal", "gloo", "nccl"])
def test_a_faster_card_never_makes_a_mean_slower(library):
    """But for NCCL's choices by its own estimates, which cost a few per cent."""
    for workers in (2, 8):
        for parameters in (256, 25_000, 2_500_000, 250_000_000):
            spent = []
            for rate in (1, 10, 34, 100, 200, 400, 2000):
                network = {"transport": "tcp", "library": library, "latency": "100 us"}
                made = world(
                    workers=workers, payload={"parameters": parameters},
                    bandwidth=f"{rate} Gbit/s", **network,
                )  # fmt: skip
                cost = ClosedForm(made).mean_cost()
                spent.append(cost.transmission + cost.latency)
            assert all(after < 1.02 * before for before, after in pairwise(spent)), spent
