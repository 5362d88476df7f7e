"""The verdict on made-up runs: what is decided, what is not, and what would decide it."""

import math

import numpy as np
import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.results import statistics
from paceline.simulator.results.order import MARGIN, MOST, order
from paceline.simulator.results.prediction_interval import Errors
from paceline.simulator.results.verdict import (
    ALONE,
    Compared,
    Known,
    Question,
    at_equal_loss,
    conclude,
    least_loss,
    of_runs,
    quickest,
    reasons_in,
    surest,
    to_run,
)
from paceline.simulator.results.wording import SENTENCES, Reason, all_of
from paceline.simulator.studies.simulate import simulate
from tests.helpers.cases import looped
from tests.lab.reliability import coverage, decisions
from tests.results.test_statistics import NAN, make_run, seeds_reaching, summary


def pick(*given):
    """The document of a pick, with the verdict and the codes of its reasons."""
    verdict = of_runs(*given)
    codes = {reason.code for reason in verdict.reasons}
    open_ = verdict.would_decide.code if verdict.would_decide else None
    order = {"ties": verdict.order.equivalent, "not_separated": verdict.order.unsettled}
    return verdict.keys | order | {"verdict": verdict, "codes": codes, "would_decide": open_}


def groups_reaching(**times):
    return {label: seeds_reaching(values, label) for label, values in times.items()}


def test_the_first_at_the_target_is_picked():
    choice = pick(groups_reaching(slow=[40.0, 42.0, 44.0], fast=[10.0, 12.0, 14.0]), 0.5)
    assert (choice["label"], choice["measure"], choice["value"]) == ("fast", "time_to_target", 12.0)
    assert choice["decided"]
    assert choice["alternatives"] == choice["ties"] == choice["not_separated"] == []
    assert "12.0 s" in choice["sentence"]
    assert "next is slow, 42.0 s" in choice["sentence"]
    verdict = choice["verdict"].json()
    assert (verdict["pick"], verdict["candidates"], verdict["runner_up"]) == (
        "fast", ["fast"], "slow",
    )  # fmt: skip
    gap = verdict["gap"]
    assert (gap["value"], gap["unit"]) == (30.0, "s")  # with every seed
    assert verdict["would_decide"] is None
    assert verdict["sentence"] == choice["sentence"]


def test_seeds_are_compared_one_by_one():
    # Alike by their own intervals, but "second" is later by 3 s with every seed.
    times = np.array([20.0, 30.0, 40.0, 25.0])
    shuffled = times[[2, 0, 3, 1]] + 3
    assert pick(groups_reaching(second=times + 3, first=times), 0.5)["decided"]
    choice = pick(groups_reaching(shuffled=shuffled, first=times), 0.5)
    assert (choice["label"], choice["decided"], choice["not_separated"]) == (
        "first", False, ["shuffled"],
    )  # fmt: skip
    assert choice["verdict"].candidates == ["first", "shuffled"]
    assert choice["sentence"].endswith("; undecided: shuffled.")


def test_what_looks_much_slower_is_no_tie_but_not_separated():
    """44 % slower on average, at four seeds that scatter: simplicity may not choose it."""
    fast, slow = [8.0, 12.0, 9.0, 11.0], [9.0, 24.0, 10.0, 14.6]
    choice = pick(groups_reaching(fast=fast, slow=slow), 0.5)
    assert np.mean(slow) / np.mean(fast) == pytest.approx(1.44)
    assert (choice["ties"], choice["not_separated"]) == ([], ["slow"])
    assert 4 < choice["seeds_to_decide"] <= MOST
    assert choice["verdict"].would_decide == Reason("seeds", {"seeds": choice["seeds_to_decide"]})


def test_equivalent_is_what_is_known_to_differ_by_less_than_the_margin():
    near = np.array([10.0, 10.2, 9.9, 10.1])
    swapped = near[[1, 0, 3, 2]]
    choice = pick(groups_reaching(one=near, two=swapped, same=near, far=2 * near), 0.5)
    assert {choice["label"], *choice["ties"]} == {"one", "two", "same"}
    assert (choice["not_separated"], choice["decided"]) == ([], False)
    assert choice["would_decide"] == "equivalent"
    behind = pick(groups_reaching(one=near, two=1.02 * near), 0.5)  # known, and of no account
    assert (behind["decided"], behind["ties"]) == (True, ["two"])
    assert pick(groups_reaching(one=near, two=(1 + 2 * MARGIN) * near), 0.5)["ties"] == []


def test_one_seed_decides_nothing_unless_nothing_is_random():
    groups = groups_reaching(slow=[40.0], fast=[1.0])
    choice = pick(groups, 0.5)
    assert (choice["label"], choice["decided"], choice["ci95"]) == ("fast", False, None)
    assert (choice["ties"], choice["not_separated"]) == ([], ["slow"])
    assert choice["would_decide"] == "one-seed"
    assert choice["verdict"].candidates == ["fast", "slow"]
    sure = pick(groups, 0.5, Known(exact=True))
    assert (sure["decided"], sure["would_decide"]) == (True, None)


def plain(**changes):
    table = {
        "model": {"parameters": 1000},
        "cluster": {"workers": 2, "compute": "100 ms"},
        "network": {"latency": "10 ms", "bandwidth": "1 Mbit/s"},
        "run": {"steps": 20},
        "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 4}, {"name": "psgd"}],
    }
    for name, change in changes.items():
        table[name] = table[name] | change if isinstance(change, dict) else change
    return parse(table)


RANDOM = [
    {"cluster": {"compute": {"dist": "exponential", "mean": "1 s"}}},
    {"cluster": {"bursts": {"factor": 2, "on": "1 s", "off": "1 s"}}},
    {"cluster": {"extra": "1 s", "extra_share": 0.5}},
    {"cluster": {"failures": {"between": "1 h", "repair": "1 s"}}},
    {"network": {"jitter": {"dist": "exponential", "mean": "1 ms"}}},
    {"algorithm": [{"name": "ad-psgd", "graph": "ring"}]},
]


def test_a_scenario_without_chance_needs_one_seed():
    assert plain().deterministic
    result = simulate(plain()).pick
    assert (result["label"], result["decided"]) == ("local-sgd tau=4", True)


@looped("changes", RANDOM)
def test_chance_is_noticed_wherever_it_comes_from(changes):
    assert not plain(**changes).deterministic


def test_rounding_decides_nothing():
    times = np.array([10.0, 11.0, 12.0])
    choice = pick(groups_reaching(one=times, two=times * (1 + 1e-12)), 0.5)
    assert (choice["decided"], choice["not_separated"], len(choice["ties"])) == (False, [], 1)


def test_who_missed_the_target_once_is_not_known_to_be_worse():
    choice = pick(groups_reaching(risky=[1.0, 1.0, math.inf], sure=[50.0, 51.0, 52.0]), 0.5)
    assert (choice["label"], choice["decided"]) == ("sure", False)
    assert choice["verdict"].would_decide == Reason("not-reached", {"labels": ["risky"]})
    never = pick(groups_reaching(hopeless=[math.inf] * 3, sure=[50.0, 51.0, 52.0]), 0.5)
    assert never["decided"]  # its runs went on for twice as long
    assert "only" in never["codes"]


def test_else_the_most_often_then_the_median():
    never = math.inf
    groups = groups_reaching(
        once=[1.0, never, never], late=[30.0, 31.0, never], soon=[20.0, 21.0, never]
    )
    choice = pick(groups, 0.5)
    assert (choice["label"], choice["measure"], choice["value"]) == ("soon", "reached", 2)
    assert not choice["decided"]
    assert "soon: 2 of 3 seeds reached it; undecided: once and late." in choice["sentence"]
    alone = pick(groups_reaching(once=[1.0, never]), 0.5)
    assert not alone["decided"]
    assert alone["verdict"].candidates == ["once"]
    none = groups_reaching(one=[never, never], two=[never, never])
    assert pick(none, 0.5)["codes"] >= {"missed"}
    assert pick(none, 0.5)["measure"] == "loss"


@looped(("more", "both", "decided"), [(7, 0, True), (5, 2, True), (4, 3, False), (6, 1, True)])
def test_how_often_the_target_is_reached_is_compared_exactly(more, both, decided):
    """`more` seeds on which one alone got there, `both` on which either did; one on which neither.

    Five of five coins fall alike with 6 %, four of four with 13 %.
    """
    often = [10.0] * (more + both) + [math.inf]
    seldom = [math.inf] * more + [10.0] * both + [math.inf]
    assert pick(groups_reaching(often=often, seldom=seldom), 0.5)["decided"] == decided


def test_without_a_target_losses_are_compared_at_the_end_of_the_shortest_run():
    quick = [make_run([1.0, 0.4], time=[0, 10], label="quick", seed=s) for s in range(2)]
    # Lower in the end, but still at 0.9 after 10 s.
    long = [make_run([1.0, 0.0], time=[0, 100], label="long", seed=s) for s in range(2)]
    choice = pick({"long": long, "quick": quick}, None)
    assert (choice["label"], choice["value"], choice["decided"]) == ("quick", 0.4, True)
    assert "10.0 s" in choice["sentence"]


def test_what_diverged_is_left_out():
    good = [make_run([1.0, 0.9], label="good", seed=s) for s in range(2)]
    bad = [make_run([1.0, 0.1], label="bad"), make_run([1.0, NAN], label="bad", seed=1)]
    choice = pick({"bad": bad, "good": good}, None)
    assert (choice["label"], choice["decided"]) == ("good", True)
    assert statistics.notes({"bad": bad, "good": good}) == [
        "bad: diverged with 1 of 2 seeds; try a smaller lr"
    ]


def test_what_stands_still_is_left_out():
    """Though it seems the fastest."""
    good = [make_run([1.0, 0.9], label="good", seed=s) for s in range(2)]
    stuck = [make_run([1.0, 0.1], label="stuck", seed=s) for s in range(2)]
    stuck[1].stall = "worker 0 waits for worker 1"
    for target in (None, 0.5, 0.95):
        choice = pick({"stuck": stuck, "good": good}, target)
        assert choice["label"] == "good"
        assert Reason("stalled", {"labels": ["stuck"]}) in choice["verdict"].reasons
    none = pick({"stuck": stuck}, None)
    assert (none["label"], none["ties"]) == (None, [])
    assert none["sentence"] == "Nothing to pick. Excluded because they stall for good: stuck."
    assert summary(stuck)["stall"] == "worker 0 waits for worker 1"


def test_a_bound_is_shown_and_never_picked():
    """psgd's workers never meet, so that nothing is faster, and nothing is learnt together."""
    result = simulate(plain(cluster={"compute": {"dist": "exponential", "mean": "1 s"}}), seeds=4)
    rows = {row["label"]: row for row in result.algorithms}
    assert [label for label, row in rows.items() if row["bound"]] == ["psgd"]
    paces = {label: row["seconds_per_step"]["mean"] for label, row in rows.items()}
    assert min(paces, key=paces.get) == "psgd"
    assert result.pick["label"] == "local-sgd tau=4"
    assert Reason("bound", {"labels": ["psgd"]}) in result.verdict.reasons
    alone = simulate(plain(algorithm=[{"name": "psgd"}])).verdict
    assert (alone.pick, alone.decided, alone.candidates) == (None, False, [])


def test_without_a_loss_the_fewest_seconds_per_step_are_picked():
    slow = [make_run([NAN, NAN], time=[0, 20], label="slow", seed=s) for s in range(2)]
    fast = [make_run([NAN, NAN], time=[0, 10], label="fast", seed=s) for s in range(2)]
    found = pick({"slow": slow, "fast": fast}, None)
    assert (found["label"], found["measure"], found["value"]) == ("fast", "seconds_per_step", 2.0)


def test_a_sentence_names_a_few():
    assert all_of("ab") == "a and b"
    assert all_of("abc") == "a, b and c"
    assert all_of("abcde") == "a, b and 3 others"


def test_more_seeds_than_are_worth_their_while_are_not_estimated():
    wild = np.exp([0.0, 3.0, -3.0, 1.0, -1.0, 2.0, -2.0, 0.5])
    actual = order({"one": wild, "two": wild[::-1]})
    assert (actual.unsettled != [], actual.seeds) == (True, None)


def test_between_equals_hardly_ever_is_one_called_the_best():
    for row in decisions.errors(100):
        low, _ = coverage.bounds(row, 0.9)
        assert row["handled"] >= low, row["what"]


def test_a_true_gap_of_a_tenth_is_found():
    row = decisions.power(200)
    assert row["handled"] >= 0.95 * row["tried"]


def test_the_estimated_number_of_seeds_decides():
    row = decisions.estimates(150)
    assert row["handled"] >= 0.6 * row["tried"]


def told(rng, gap, shared, separate, seeds=4, noise=1e-3):
    """The order of two losses that a model gets wrong: by `shared` alike, and by `own` each."""
    wrong = np.exp(shared * rng.standard_normal() + separate * rng.standard_normal(2))
    losses = np.array([[2.0], [2.0 * (1 + gap)]]) * wrong[:, None]
    losses = losses * (1 + noise * rng.standard_normal((2, seeds)))
    drawn = np.exp(shared * rng.standard_normal(200) + separate * rng.standard_normal((2, 200)))
    scores, factors = (dict(zip("ab", item, strict=True)) for item in (losses, drawn))
    return order(scores, factors=factors), order(scores)


def test_equals_are_seldom_decided_however_far_a_model_is_off():
    """With the model's error known, in at most 10 %; by seeds alone nearly always."""
    rng = np.random.default_rng(5)
    actual = [told(rng, 0.0, 0.05, 0.01) for _ in range(400)]
    assert sum(item.decided for item, _ in actual) <= 56  # 10 % is 40; 56 with one in 200
    assert sum(item.decided for _, item in actual) > 300
    assert any(answer.model for answer, _ in actual)


def test_what_two_share_cancels_and_what_they_do_not_is_in_the_interval():
    rng = np.random.default_rng(6)
    alike = [told(rng, 0.01, 0.05, 1e-4)[0] for _ in range(50)]
    assert all(item.decided and item.best == "a" for item in alike)
    assert not alike[0].model
    for actual in alike:
        low, high = actual.estimates["a"].interval
        assert np.log(high / low) == pytest.approx(2 * 1.645 * 0.05, rel=0.25)


def test_a_target_that_neither_reaches_says_nothing_of_which_is_first():
    """Where the curve's floor may be above the target, only draws that reach it are compared."""
    times = {"a": np.array([10.0, 10.1]), "b": np.array([20.0, 20.2])}
    never = np.where(np.arange(200) < 60, math.inf, 1.0)
    actual = order(times, factors=dict.fromkeys("ab", never))
    assert actual.decided
    assert actual.estimates["a"].interval[1] == math.inf
    assert not order(times, factors={"a": never, "b": np.ones(200)}).decided


def test_one_worker_alone_is_an_answer_that_no_code_runs():
    rows = [{"label": ALONE}, {"label": "ssgd"}]
    better = {"pick": {"label": ALONE}, "ranking": rows}
    with pytest.raises(InputError, match=r"runs/my: one worker alone .* name it: 'ssgd'"):
        to_run(better, None, "runs/my")
    assert to_run(better, "ssgd", "runs/my") == "ssgd"
    assert to_run({"pick": {"label": "ssgd"}}, None, "runs/my") == "ssgd"
    assert to_run({"pick": {"label": None}}, None, "runs/my") is None


def test_a_simpler_pick_names_what_is_ahead_of_it():
    scores = {"a": [10.0, 10.1], "b": [10.3, 10.4]}
    ranked = order(scores)
    actual = conclude(
        Question("time", "least time", "{}"), ranked, Compared(scores), Known(), pick="b"
    )
    assert "; as good: a, 10.1 s" in actual.sentence
    (ahead,) = [reason for reason in actual.reasons if reason.code == "ahead"]
    assert (ahead.numbers["label"], ahead.numbers["gap"]["value"]) == ("a", pytest.approx(0.3))


def test_of_equals_the_one_with_the_narrower_interval_is_taken():
    scores = {"wide": [1.18, 1.78, 1.0, 0.8], "sure": [1.18, 1.21, 1.19, 1.185], "far": [9.0] * 4}
    ranked = order(scores)
    assert ranked.best == "wide"
    pick, (reason,) = surest(ranked, ranked.best, lambda label: label != "wide", "s")
    assert (pick, reason.code, reason.numbers["label"]) == ("sure", "surer", "wide")
    alike = order(scores | {"wide": [1.19, 1.2, 1.18, 1.19]})
    assert surest(alike, alike.best, len, "s") == ("wide", [])  # then the simplest


def test_what_limits_an_answer_comes_first_and_a_pace_differs_per_step():
    scores = {"a": [0.1, 0.11], "b": [0.6, 0.62]}
    edge = Reason("edge", {"label": "a", "key": "tau", "value": 1, "side": "lowest"})
    for measure in ("seconds_per_step", "seconds-per-step"):
        question = Question(measure, "least time per step", "{} per step")
        actual = conclude(question, order(scores), Compared(scores), Known(), reasons=[edge])
        assert [reason.code for reason in actual.reasons] == ["edge", "next"]
        assert actual.reasons[1].numbers["more"] == "more per step"
    plain = scores | {"c": [0.9]}  # given up after one seed: the gap is that of the table's values
    verdict = conclude(question, order(scores), Compared(plain), Known(names={"c": "ssgd"}))
    assert verdict.reasons[-1].numbers["gap"]["value"] == pytest.approx(0.9 - 0.105)


def test_losses_within_their_error_leave_the_choice_to_time():
    rng = np.random.default_rng(0)
    factors = {label: np.exp(rng.normal(0, 0.3, 500)) for label in ("best", "quick", "other")}
    times = {"best": [10.0, 10.1], "quick": [10.2, 10.3], "other": [10.4, 10.3]}
    ranked = order(times, factors=factors)
    losses = Compared({label: [2.0, 2.0] for label in times}, factors)
    assert ranked.model
    pick, (reason,) = quickest(ranked, losses, {"best": 5.0, "quick": 3.0, "other": 3.1})
    assert (pick, reason.code) == ("quick", "by-time")  # of the quickest the best at equal loss
    sure = order({"best": [1.0, 1.0], "quick": [2.0, 2.0]})
    assert quickest(sure, losses, {"best": 5.0, "quick": 3.0}) == ("best", [])


def test_among_what_costs_as_much_the_loss_that_is_surest_to_be_low_is_picked():
    spread = {"cheap": [2.0, 2.02], "sure": [2.0, 2.0], "wide": [1.9, 2.2], "dear": [1.9, 1.9]}
    losses = Compared({"base": [2.0, 2.0], **spread})
    ranked = order(
        {"cheap": [10.0] * 2, "sure": [10.4] * 2, "wide": [10.1] * 2, "dear": [11.0] * 2}
    )
    pick, (reason,) = least_loss(ranked, losses, "base")
    assert (pick, reason.code) == ("sure", "by-loss")
    assert least_loss(order({"cheap": [1.0] * 2}), losses, "base") == ("cheap", [])


def test_every_reason_has_one_short_sentence():
    """At most 20 words, and read back from a document as it was written."""
    for code, text in SENTENCES.items():
        assert all(len(sentence.split()) <= 20 for sentence in text.split(". ")), code
    reason = Reason("edge", {"label": "a", "key": "tau", "value": 4, "side": "highest"})
    assert Reason.read(reason.json()) == reason
    assert str(reason) == "a: tau = 4 is the highest tried; a better one may lie beyond it."
    gap = Reason("next", {"label": "b", "gap": {"value": 3600.0, "interval90": [60.0, 7200.0],
                                                "unit": "s"}, "more": "later"})  # fmt: skip
    assert str(gap) == "b is next, 1.00 h (0.0167 to 2.00) later."


def test_after_equal_tokens_time_and_loss_are_one_question():
    """A loss that 5 % more tokens make up for is worth 5 % of the time."""
    quick = [make_run([3.0, 2.02], time=[0, 10], label="quick", seed=s) for s in range(2)]
    slow = [make_run([3.0, 2.0], time=[0, 100], label="slow", seed=s) for s in range(2)]
    even = [make_run([3.0, 2.1], time=[0, 95], label="even", seed=s) for s in range(2)]
    groups, names = {"quick": quick, "slow": slow, "even": even}, {"slow": "ssgd"}
    facts = Known(names=names, equal_tokens=True)
    actual = of_runs(groups, None, facts)
    assert (actual.pick, actual.question.measure) == ("quick", "days_at_equal_loss")
    assert actual.question.goal == "fewest days to the loss of slow"
    # without a law of its own a loss is worth as many tokens: 1 % higher, 1 % more
    assert actual.order.value("quick") == pytest.approx(10 * 1.01)
    assert actual.order.value("even") == pytest.approx(95 * 1.05)
    assert of_runs(groups, None, facts._replace(equal_tokens=False)).pick == "quick"
    rows = {label: {"used": {"tokens": {"mean": 9.0}}} for label in groups}
    rows["quick"]["used"]["tokens"]["mean"] = 3.0
    codes = [
        (reason.code, reason.numbers)
        for reason in of_runs(groups, None, facts._replace(rows=rows)).reasons
    ]
    assert codes[0] == ("fewer-tokens", {"label": "quick", "share": pytest.approx(1 / 3)})
    assert "fewer-tokens" not in [reason.code for reason in actual.reasons]
    # an error of times widens it: twice as long is within the error of both
    doubtful = Errors(times=np.array([0.1, 1.0, 10.0, 10.0]))
    paces = {label: doubtful if label == "even" else Errors() for label in groups}
    open_ = of_runs(groups, None, facts._replace(models=paces)).candidates
    assert (actual.candidates, open_) == (["quick"], ["quick", "even"])
    # an error that all losses share changes no days to the loss of one of them
    alike = dict.fromkeys(("slow", "quick"), np.array([0.9, 1.0, 1.1]))
    losses = Compared({"slow": [2.0, 2.0], "quick": [2.02, 2.02]}, alike)
    times = Compared({"slow": [100.0, 100.0], "quick": [10.0, 10.0]})
    shared = at_equal_loss(losses, times, "slow", [MARGIN])
    estimates = order(shared.values, shared.values, factors=shared.factors).estimates
    assert [estimate.span for estimate in estimates.values()] == [
        pytest.approx((value, value)) for value in (100, 10.1)
    ]
    weighed = Question("weighed", "least money and time", "{}", "USD")
    assert weighed.words(True) == "more of money and time"


def test_reasons_that_no_verdict_gives_are_refused():
    document = {"would_decide": None, "sentence": "", "basis": None}
    for reason in ({"code": "no such"}, {"code": "next"}, {"code": "next", "gap": 1, "label": "a"}):
        with pytest.raises(InputError, match=r"verdict\.reasons"):
            reasons_in(document | {"reasons": [reason]})
