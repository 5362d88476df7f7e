"""The verdict of a search; its ranking, and the cost of being wrong about an input."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...results import wording
from ...results.intervals import USUAL, Estimate, stated
from ...results.order import MARGIN
from ...results.pick import ALONE, ENOUGH, ONE_SEED, any_of, decided, headline
from ...results.statistics import number, time_unit, with_unit
from ...results.usage import few
from ...studies.tune.objective import PACES
from ...studies.tune.regret import cost, notes
from . import compared, parts, sentences
from .reading import FoundRun
from .series import apart

SHOWN = 20  # configurations in the figure and the first table; the others are folded
FOLDED = 300

Row = Mapping[str, Any]
Say = Callable[[Any], str]


def _says(tune: Row) -> Say:
    return partial(with_unit, unit=tune["unit"])


def verdict(found: FoundRun) -> sentences.RunVerdict:
    """Return the verdict of a RUN of `paceline tune`."""
    tune = found.tune
    assert tune is not None
    best, say = tune["ranking"][0], _says(tune)
    if not best["reached"]:
        warned = [(sentences.CHANGE, [*map(_sentence, tune["warnings"])])]
        return sentences.RunVerdict(found.name, "Nothing to deploy yet", tune["sentence"], warned)
    pick = tune["pick"]
    facts = [
        *([(sentences.SPENT, tune["lines"])] if tune.get("lines") else []),
        (sentences.MARGIN, [*_margins(tune)]),
        (sentences.SURE, [*_sure(tune)]),
        (sentences.CHANGE, [*_change(tune)]),
    ]
    shown, label = pick, pick["label"]
    if tune.get("trade") and not decided(pick) and tune.get("extremes"):
        chosen = dict.fromkeys(tune["extremes"][key]["label"] for key in ("soonest", "cheapest"))
        label = any_of([*chosen])
        shown = next((row for row in tune["ranking"] if row["label"] in chosen), pick)
    within = wording.qualified(stated(shown, "value"), tune["unit"])
    return sentences.RunVerdict(
        found.name, headline(pick), tune["sentence"], facts, label, decided(pick),
        say(shown["value"]), within, tune.get("loss_basis") or "", tune["measure"],
    )  # fmt: skip


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _margins(tune: Row) -> Iterator[str]:
    """Say how far the next and the best baseline are behind, paired over seeds."""
    best, *others = tune["ranking"]
    if not others:
        yield "No other configuration was tried."
        return
    roles = [(others[0], "the next")]
    plain = next((row for row in others if row["name"] in sentences.BASELINES), None)
    if plain and plain is not others[0]:
        roles.append((plain, f"the best {plain['name']}"))
    word = {"time-to-loss": "sooner", "cost-to-loss": "cheaper"}.get(tune["objective"], "lower")
    own = "" if best["label"] == tune["pick"]["label"] else f"{best['label']}: "
    for row, role in roles:
        if None in (row["behind"], best["value"]):
            reached = f"{row['reached']} of {row['seeds']} seeds"
            yield f"{row['label']}, {role}, reached the target with only {reached}."
            continue
        behind = stated(row["behind"], "value")
        if behind.span == (0.0, 0.0):
            yield f"{own or 'No '}{'no ' if own else ''}{word} than {row['label']}, {role}."
            continue
        gap, within = wording.difference(behind, tune["unit"])
        yield f"{own}{gap} {word} than {row['label']}, {role}{within}."


def _sure(tune: Row) -> Iterator[str]:
    pick, rows = tune["pick"], tune["ranking"]
    seeds = rows[0]["seeds"]
    early = sum(bool(row["stopped"]) for row in rows if row["label"] not in _alternatives(tune))
    if seeds == 1 and not decided(pick):
        yield f"One seed cannot tell chance from merit; run more with `--seeds {ENOUGH}`."
    elif decided(pick) and len(rows) > 1:
        if ran := len(rows) - 1 - early:
            than = few(ran, "other", "others")
            yield f"Known at {USUAL}: {rows[0]['label']} is better than {than} with {seeds} seeds."
    else:
        yield from sentences.unsure(pick)
    if early:
        yield (
            f"{few(early, 'other was', 'others were')} given up early, as worse by three standard "
            "errors."
        )


def _change(tune: Row) -> Iterator[str]:
    """Say with which changes of the scenario another candidate is known to be better."""
    best = tune["pick"]["label"]
    steady: dict[str, list[float]] = {}
    for world in tune["regret"]:
        if not world["input"]:
            continue
        if _good(world, best):
            steady.setdefault(world["input"], []).append(world["change"])
            continue
        values = {label: each for label, each in world["values"].items() if each is not None}
        first = min(values, key=lambda label: values[label], default=None)
        costs = cost(world, best, " %")
        missed = costs == "not reached"
        stay = "does not reach the target" if missed else f"costs {costs} more"
        ahead = f"{first} is better, and" if first else "none reaches the target;"
        yield _sentence(f"{_world_name(world)}: {ahead} this pick {stay}")
    if steady:
        worlds = [_both(what, changes) for what, changes in steady.items()]
        yield f"It stays the best, or is not known to be worse, with {', '.join(worlds)}."
    yield from (_sentence(text) for text in tune["warnings"] if text != ONE_SEED)  # by `_sure`


def _good(world: Row, label: str) -> bool:
    """Whether a candidate is the best in a world, or not known to be worse than that."""
    return world["regret"].get(label) == 0 or label in world.get("not_worse", ())


def _both(what: str, changes: Sequence[float]) -> str:
    if len(changes) == 1:
        return _world_name({"input": what, "change": changes[0]})
    return f"{what} ±{100 * abs(changes[0]):.0f}\N{NO-BREAK SPACE}%"


def _world_name(world: Row) -> str:
    if not world["input"]:
        return "as written"
    sign = "+" if world["change"] > 0 else "−"
    return f"{world['input']} {sign}{100 * abs(world['change']):.0f}\N{NO-BREAK SPACE}%"


def ranking(found: FoundRun, place: int) -> parts.PageSection:
    """Draw and tabulate the ranking."""
    tune = found.tune
    assert tune is not None
    say, rows = _says(tune), tune["ranking"]
    pick, figure = tune["pick"], _figure(tune, place)
    lead = f"Filled, with {USUAL} bars: the best, and all not known to be worse."
    heading = (
        f"The best of {len(rows)} configurations is known"
        if decided(pick)
        else f"{len(_alternatives(tune))} of {few(len(rows), 'configuration', 'configurations')} "
        "may be the best"
    )
    return parts.PageSection(f"tune-{place}", heading, lead, [figure], _tables(tune, say))


def _figure(tune: Row, place: int) -> parts.Figure:
    rows = tune["ranking"]
    good = _alternatives(tune)
    shown = [row for row in rows[:SHOWN] if row["value"] is not None][::-1]
    names = apart([row["label"] for row in shown])
    worst = max((row["value"] for row in shown), default=1.0)
    scale, unit = time_unit(worst) if tune["unit"] == "s" else (1.0, tune["unit"])
    pairs = list(zip(shown, names, strict=True))
    data = [
        _dots([each for each in pairs if (each[0]["label"] in good) == alike], scale, unit, alike)
        for alike in (True, False)
    ]
    edges = [edge for row in shown for edge in _bar(row, row["label"] in good).span] or [0.0, 1.0]
    least, most = min(edges), max(edges)
    least = least - 0.05 * (most - least) if least > 0.5 * most else 0.0
    title = f"{tune['measure']} ({unit})" if unit else tune["measure"]
    layout: parts.Json = {
        "xaxis": {
            "title": {"text": parts.literal(title)},
            "range": [least / scale, (most + 0.05 * (most - least)) / scale],
        },
        "yaxis": parts.categories(names),
    }
    says = f"{tune['measure']} of the best {len(shown)} configurations with their intervals"
    return parts.Figure(f"ranking-{place}", says, data, layout, height=90 + 24 * len(shown))


def _dots(rows: Sequence[tuple[Row, str]], scale: float, unit: str, filled: bool) -> parts.Json:
    """Return the dots of rows, each with its name."""
    found = [_bar(row, filled) for row, _ in rows]
    colour = "--c0" if filled else "--c1"
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [each.value / scale for each in found],
        "y": [parts.literal(name) for _, name in rows],
        "error_x": parts.error_bars(found, scale, thickness=1.2, width=0, color=colour),
        "marker": {"color": colour, "symbol": "circle" if filled else "circle-open", "size": 9},
        "hovertemplate": f"%{{y}}: %{{x:.3g}} {unit}<extra></extra>",
    }


def _bar(row: Row, good: bool) -> Estimate:
    """Return a value with its interval, unless given up early: that of two seeds dwarfs others.

    `good`: it may be the best nevertheless.
    """
    found = stated(row, "value")
    return replace(found, interval=None) if row["stopped"] and not good else found


def _alternatives(tune: Row) -> set[str]:
    """Return the labels of the best and of all that are not known to be worse."""
    pick = tune["pick"]
    return {tune["ranking"][0]["label"], *pick.get("alternatives", pick["ties"])}


def _tables(tune: Row, say: Say) -> list[parts.PageTable]:
    def value(row: Row) -> str:
        if row["value"] is not None:
            return say(row["value"])
        return f"above {say(row['at_least'])}" if row["at_least"] else missed

    missed = "beyond the cap" if tune["objective"] in PACES else "not reached"
    best, pick = tune["ranking"][0]["label"], tune["pick"]
    first = (tune.get("extremes") or {}).get("best", {}).get("label", best)
    apart = pick.get("not_separated", pick["ties"])
    ties = {pick["label"], *pick["ties"]}.difference(apart)

    def verdict(row: Row) -> str:
        if row["label"] == best:
            return "best of these" if first == ALONE else "best"
        said = "not separated" if row["label"] in apart else ""
        said = "equivalent" if row["label"] in ties else said
        return said or ("given up early" if row["stopped"] else "")

    based = ["basis"] * any(row.get("basis") for row in tune["ranking"])
    columns = ("configuration", "verdict", *based, tune["measure"], USUAL, "reached")
    rows = [
        (
            parts.Cell(row["label"], strong=row["label"] == pick["label"]),
            verdict(row),
            *(row[key] or "" for key in based),
            value(row),
            wording.qualified(stated(row, "value"), tune["unit"]),
            f"{row['reached']} of {row['seeds']}",
        )
        for row in tune["ranking"]
    ]
    caption = "Configurations, best first"
    used = [(row["label"], row) for row in tune["ranking"][:SHOWN]]
    return [
        *parts.folded(caption, columns, rows, texts=2 + len(based), shown=SHOWN, most=FOLDED),
        *compared.in_units(used, "What each used"),
        *_tradeoffs(tune),
    ]


def _tradeoffs(tune: Row) -> Iterator[parts.PageTable]:
    """Tabulate what less time costs in loss after as many tokens."""
    rows = tune.get("tradeoffs", [])
    if len(rows) < 2:
        return
    spent = {"days": "days", "cost": f"cost ({tune['ranking'][0].get('currency')})"}
    spent = {key: head for key, head in spent.items() if key in rows[0]["used"]}
    columns = ["configuration", f"loss ({USUAL})", "days saved", *spent.values()]
    table = [
        [
            row["label"],
            wording.above(row["loss_above"], row["interval"]),
            number(row["days_saved"]),
            *[wording.cell(stated(row["used"][key]), "") for key in spent],
        ]
        for row in rows
    ]
    caption = (
        f"Each {100 * MARGIN:.0f} % or more sooner or cheaper than all above, for more loss after "
        "as many tokens"
    )
    yield parts.PageTable(caption, columns, table)


def sensitivity(found: FoundRun, place: int) -> parts.PageSection | None:
    """Tabulate what being wrong about an input costs each candidate."""
    tune = found.tune
    assert tune is not None
    if not tune["regret"]:
        return None
    worlds, pick = tune["regret"], tune["pick"]["label"]
    most = max((_size(world, label) for world in worlds for label in world["values"]), default=0)
    heads = list(map(_world_name, worlds))
    rows = [
        [label, *(_share(world, label, most or 1.0) for world in worlds)]
        for label in worlds[0]["values"]
    ]
    flipped = [
        head
        for head, world in zip(heads, worlds, strict=True)
        if world["input"] and not _good(world, pick)
    ]
    heading = (
        f"Another configuration is better with {', '.join(flipped)}"
        if flipped
        else "No other is known to be better if latency, bandwidth or straggling is 20 % off"
    )
    lead = "What each candidate costs beyond the best of them if the scenario is wrong."
    return parts.PageSection(
        f"sensitivity-{place}",
        heading,
        " ".join([lead, *notes(worlds)]),
        tables=[parts.PageTable("Above the best of these", ("configuration", *heads), rows)],
    )


def _size(world: Row, label: str) -> float:
    """Return what is known of a candidate's cost, as a share; 0 where nothing is."""
    bound = world.get("regret_at_least", {}).get(label)
    return (world["regret"].get(label) if bound is None else bound) or 0.0


def _share(world: Row, label: str, most: float) -> parts.Cell:
    said = cost(world, label, " %")
    bar = 1.0 if said == "not reached" else _size(world, label) / most
    return parts.Cell(said, bar, strong=world["regret"].get(label) == 0)
