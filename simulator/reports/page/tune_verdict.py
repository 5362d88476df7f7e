"""The verdict of a search."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.simulator.reports.page.parts import percent
from paceline.simulator.reports.page.reading import FoundRun
from paceline.simulator.reports.page.sentences import BASELINES, CHANGE, MARGIN, SURE, RunVerdict
from paceline.simulator.results import wording
from paceline.simulator.results.intervals import Estimate, stated
from paceline.simulator.results.statistics import human, number
from paceline.simulator.studies.tune.verdict import uncertainty

Row = Mapping[str, Any]
Say = Callable[[Any], str]


def unit(tune: Row) -> str:
    """Return the unit of a search's values: "s", or "" for a loss or money."""
    return "s" if tune["objective"] == "time-to-loss" else ""


def says(tune: Row) -> Say:
    """Return the function that writes a search's values: as times, or as numbers."""
    if unit(tune):
        return human
    return lambda value: "-" if value is None else number(value)


def verdict(found: FoundRun) -> RunVerdict:
    """Return the verdict of a RUN of `paceline tune`."""
    tune = found.tune
    assert tune is not None
    best, say = tune["ranking"][0], says(tune)
    if not best["reached"]:
        return RunVerdict(found.name, "Nothing to deploy yet", tune["sentence"], _warned(tune))
    headline = f"Deploy {best['label']}"
    if tune["simplest"] != best["label"]:
        headline += f"; the simpler {tune['simplest']} may be as good"
    facts = [
        (MARGIN, [*_margins(tune)]),
        (SURE, [_sure(tune)]),
        (CHANGE, [*_change(tune)]),
    ]
    within = wording.qualified(stated(best, "value"), unit(tune))
    value = say(best["value"])
    return RunVerdict(found.name, headline, tune["sentence"], facts, best["label"], value, within)


def _warned(tune: Row) -> list[tuple[str, list[str]]]:
    return [(CHANGE, [_sentence(text) for text in tune["warnings"]])]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _margins(tune: Row) -> Iterator[str]:
    """Say how far the next and the best baseline are behind, paired over seeds."""
    best, *others = tune["ranking"]
    if not others:
        yield "No other configuration was tried."
        return
    roles = [(others[0], "the next")]
    plain = next((row for row in others if row["name"] in BASELINES), None)
    if plain and plain is not others[0]:
        roles.append((plain, f"the best {plain['name']}"))
    word = {"time-to-loss": "sooner", "cost-to-loss": "cheaper"}.get(tune["objective"], "lower")
    for row, role in roles:
        if row["value"] is None or best["value"] is None:
            reached = f"{row['reached']} of {row['seeds']} seeds"
            yield f"{row['label']}, {role}, reached the target with only {reached}."
            continue
        gap, within = wording.difference(_behind(row, best), unit(tune))
        yield f"{gap} {word} than {row['label']}, {role}{within}."


def _behind(row: Row, best: Row) -> Estimate:
    """Return how far a row is behind the best; documents of earlier versions have an interval."""
    if row.get("behind"):
        return stated(row["behind"], "value")
    ends = row["behind_ci95"]
    value = sum(ends) / 2 if ends else row["value"] - best["value"]
    return stated({"mean": value, "ci95": ends})


def _sure(tune: Row) -> str:
    count, seeds = len(tune["ranking"]), tune["ranking"][0]["seeds"]
    if seeds == 1:
        return "One seed cannot tell chance from merit; run more with `--seeds 8`."
    if not tune["ties"]:
        return (
            f"Distinguishable from all {count - 1} other configurations at 95 % with {seeds} seeds."
        )
    names = ", ".join(row["label"] for row in tune["ties"][:4])
    more = f" and {len(tune['ties']) - 4} more" if len(tune["ties"]) > 4 else ""
    return (
        f"Not distinguishable from {len(tune['ties'])} of the other {count - 1} configurations "
        f"({names}{more}) at 95 % with {seeds} seeds; {tune['simplest']} is the simplest of these."
    )


def _change(tune: Row) -> Iterator[str]:
    """Say with which changes of the scenario another candidate is first."""
    best = tune["ranking"][0]["label"]
    steady: dict[str, list[float]] = {}
    for world in tune["regret"]:
        cost = world["regret"].get(best)
        if not world["input"]:
            continue
        if cost == 0:
            steady.setdefault(world["input"], []).append(world["change"])
            continue
        known = {k: v for k, v in world["values"].items() if v is not None}
        first = (
            f"{min(known, key=lambda k: known[k])} is first" if known else "none reaches the target"
        )
        stay = "does not reach the target" if cost is None else f"costs {percent(cost, 1)} more"
        yield _sentence(f"{world_name(world)}: {first}, and this pick {stay}")
    if steady:
        worlds = [_both(what, changes) for what, changes in steady.items()]
        yield f"It stays first with {', '.join(worlds)}."
    stated = uncertainty(tune["ranking"][0]["seeds"], len(tune["ties"]))  # by `_sure`
    yield from (_sentence(text) for text in tune["warnings"] if text != stated)


def _both(what: str, changes: Sequence[float]) -> str:
    if len(changes) == 1:
        return world_name({"input": what, "change": changes[0]})
    return f"{what} ±{100 * abs(changes[0]):.0f}\N{NO-BREAK SPACE}%"


def world_name(world: Row) -> str:
    """Name a changed scenario by its input and the change in percent."""
    if not world["input"]:
        return "as written"
    sign = "+" if world["change"] > 0 else "−"
    return f"{world['input']} {sign}{100 * abs(world['change']):.0f}\N{NO-BREAK SPACE}%"
