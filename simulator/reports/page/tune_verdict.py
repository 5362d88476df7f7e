"""The verdict of a search."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.simulator.reports.page.reading import FoundRun
from paceline.simulator.reports.page.sentences import (
    BASELINES,
    CHANGE,
    MARGIN,
    SURE,
    RunVerdict,
    unsure,
)
from paceline.simulator.results import wording
from paceline.simulator.results.intervals import Estimate, stated
from paceline.simulator.results.pick import ENOUGH, ONE_SEED, decided, headline
from paceline.simulator.results.statistics import human, number
from paceline.simulator.results.usage import few
from paceline.simulator.studies.tune.costs import cost

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
        warned = [(CHANGE, [*map(_sentence, tune["warnings"])])]
        return RunVerdict(found.name, "Nothing to deploy yet", tune["sentence"], warned)
    pick = picked(tune)
    facts = [
        (MARGIN, [*_margins(tune)]),
        (SURE, [*_sure(tune)]),
        (CHANGE, [*_change(tune)]),
    ]
    within = wording.qualified(stated(pick, "value"), unit(tune))
    return RunVerdict(
        found.name, headline(pick), tune["sentence"], facts, pick["label"], decided(pick),
        say(pick["value"]), within,
    )  # fmt: skip


def picked(tune: Row) -> Row:
    """Return the verdict of a search; earlier versions wrote only the best and its ties."""
    best = tune["ranking"][0]
    ties = [row["label"] for row in tune["ties"]]
    found: Row = tune.get("pick", best | {"ties": ties})
    return found


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
    own = "" if best["label"] == picked(tune)["label"] else f"{best['label']}: "
    for row, role in roles:
        if row["value"] is None or best["value"] is None:
            reached = f"{row['reached']} of {row['seeds']} seeds"
            yield f"{row['label']}, {role}, reached the target with only {reached}."
            continue
        gap, within = wording.difference(_behind(row, best), unit(tune))
        yield f"{own}{gap} {word} than {row['label']}, {role}{within}."


def _behind(row: Row, best: Row) -> Estimate:
    """Return how far a row is behind the best; documents of earlier versions have an interval."""
    if row.get("behind"):
        return stated(row["behind"], "value")
    ends = row["behind_ci95"]
    value = sum(ends) / 2 if ends else row["value"] - best["value"]
    return stated({"mean": value, "ci95": ends})


def _sure(tune: Row) -> Iterator[str]:
    pick, rows = picked(tune), tune["ranking"]
    seeds = rows[0]["seeds"]
    early = sum(bool(row["stopped"]) for row in rows)
    if seeds == 1 and not decided(pick):
        yield f"One seed cannot tell chance from merit; run more with `--seeds {ENOUGH}`."
    elif decided(pick) and len(rows) > 1:
        ran = len(rows) - 1 - early
        yield (
            f"Known at 95 %: {rows[0]['label']} is better than {few(ran, 'other', 'others')} "
            f"with {seeds} seeds."
        )
    else:
        yield from unsure(pick)
    if early:
        yield (
            f"{few(early, 'other was', 'others were')} given up early, as worse by three standard "
            "errors."
        )


def _change(tune: Row) -> Iterator[str]:
    """Say with which changes of the scenario another candidate is known to be better."""
    best = picked(tune)["label"]
    steady: dict[str, list[float]] = {}
    for world in tune["regret"]:
        if not world["input"]:
            continue
        if good(world, best):
            steady.setdefault(world["input"], []).append(world["change"])
            continue
        first = _first(world)
        costs = cost(world, best, " %")
        missed = costs == "not reached"
        stay = "does not reach the target" if missed else f"costs {costs} more"
        ahead = f"{first} is better, and" if first else "none reaches the target;"
        yield _sentence(f"{world_name(world)}: {ahead} this pick {stay}")
    if steady:
        worlds = [_both(what, changes) for what, changes in steady.items()]
        yield f"It stays the best, or is not known to be worse, with {', '.join(worlds)}."
    yield from (_sentence(text) for text in tune["warnings"] if text != ONE_SEED)  # by `_sure`


def good(world: Row, label: str) -> bool:
    """Whether a candidate is the best in a world, or not known to be worse than that."""
    return world["regret"].get(label) == 0 or label in world.get("not_worse", ())


def _first(world: Row) -> str | None:
    known = {label: value for label, value in world["values"].items() if value is not None}
    return min(known, key=lambda label: known[label], default=None)


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
