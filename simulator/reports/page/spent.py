"""The sections about time per step, the first rounds as a timeline, and the use of links."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...results.figures.style import PARTS
from ...results.statistics import human, time_unit, with_unit
from . import parts
from .parts import Cell, Json, percent
from .reading import FoundRun, spans
from .series import Series

HATCHES = {
    "compute": "", "wait": ".", "communicate": "/", "serve": "x", "stalled": "-", "lost": "+",
    "down": "\\", "absent": "", "unselected": "|",
}  # fmt: skip
COLOURS = {part: f"--part-{part}" for part in PARTS}
ROUNDS = 24  # spans of each worker in a timeline, about
ROWS = 32  # workers of a timeline
SPANS = 1200  # of all workers of a timeline together, at most
ALL_SPANS = 12_000  # of all timelines together, at most
LINKS = 24  # rows of the table of links that is not folded
MOST = 600  # rows of the folded one
LAST = re.compile(r"\d+")  # what tells links of one kind apart
SAID = 6  # bottlenecks that are listed, at most


def _look(part: str) -> Json:
    """Return colour, and a hatch for readers who cannot tell colours."""
    pattern = {"shape": HATCHES[part], "fgcolor": "--page/0.55", "fillmode": "overlay", "size": 6}
    return {"color": COLOURS[part], "line": {"width": 0}, "pattern": pattern}


def _bars(part: str, names: Sequence[str], x: list[float], about: list[Any], hover: str) -> Json:
    """Return bars of a part, whose `hover` text shows what they are `about`."""
    where = {"type": "bar", "orientation": "h", "y": [*map(parts.literal, names)], "x": x}
    said = {"name": part, "customdata": about, "hovertemplate": hover}
    return where | said | {"marker": _look(part)}


def breakdown(lines: Sequence[Series]) -> parts.PageSection:
    """Draw and tabulate seconds per local step by part."""
    known = [line for line in lines if line.row["seconds_per_step"]["mean"]]
    totals = [line.row["seconds_per_step"]["mean"] for line in known]
    scale, unit = time_unit(max(totals, default=1.0))
    kinds = [part for part in PARTS if any(line.row["breakdown"].get(part) for line in known)]
    data = []
    for part in kinds:
        shares = [line.row["breakdown"].get(part) or 0.0 for line in known]
        widths = [share * total / scale for share, total in zip(shares, totals, strict=True)]
        text = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        hover = f"{part}: %{{x:.3~g}} {unit} (%{{customdata}})<extra></extra>"
        shown = [*map(percent, shares)]
        names = [line.name for line in known]
        bars = _bars(part, names, widths, shown, hover)
        data.append(bars | text | {"text": shown, "textfont": {"color": f"--on-{part}"}})
    layout: Json = {
        "barmode": "stack",
        "uniformtext": {"minsize": 11, "mode": "hide"},  # labels without room are hidden
        "xaxis": {"title": {"text": f"time per local step ({unit})"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": True,
    }
    predicted = [line for line in known if not line.measured]
    busy = {line.title: _busy(line.row["breakdown"]) for line in predicted}
    sampled = any("unselected" in line.row["breakdown"] for line in predicted)
    whole = "of all clients' time, " * sampled
    heading = "Where the time goes"
    if busy:
        worst, best = min(busy, key=lambda k: busy[k]), max(busy, key=lambda k: busy[k])
        there = " in which clients take part" * sampled
        heading = f"{worst} computes {percent(busy[worst])} of the time{there}"
        if worst != best:
            heading += f", {best} {percent(busy[best])}"
    says = f"time per local step of each algorithm, split into {', '.join(kinds)}: {heading}"
    figure = parts.Figure("breakdown", says, data, layout, height=130 + 42 * len(known))
    table = parts.PageTable(
        f"Time per local step and its shares, {whole}mean over workers and seeds",
        ("algorithm", "time per step", *kinds),
        [
            (line.name, human(total), *(percent(line.row["breakdown"].get(p)) for p in kinds))
            for line, total in zip(known, totals, strict=True)
        ],
        folded="The numbers",
    )
    several = len({line.found.name for line in known}) > 1
    said = dict.fromkeys(
        f"{line.found.name}: " * several + line.row["bottleneck"]
        for line in known
        if line.row.get("bottleneck") and not line.measured
    )
    return parts.PageSection("breakdown", heading, "", [figure], [table], [*said][:SAID])


def _busy(share: Mapping[str, float | None]) -> float:
    """Return the share that computing has of the time; of clients, while they are selected."""
    kinds = ("absent", "unselected") if "unselected" in share else ()
    away = sum(share.get(kind) or 0.0 for kind in kinds)
    return (share.get("compute") or 0.0) / (1.0 - away or 1.0)


def timeline(every: Sequence[FoundRun]) -> parts.PageSection | None:
    """Draw what each worker does in the first rounds, one algorithm at a time."""
    shown: dict[str, dict[str, list[Json]]] = {}
    for found in every:
        for side, run in found.sides.items():
            about = [] if len(every) == 1 else [found.name]
            about += [side] if len(found.sides) > 1 else []
            for process, threads in spans(run).items():
                label = process.removesuffix(" (only the beginning)")
                shown[": ".join([*about, label])] = threads
    if not shown:
        return None
    most = min(SPANS, ALL_SPANS // len(shown))
    first = {name: dict([*each.items()][:ROWS]) for name, each in shown.items()}
    choices = {name: _rounds(threads, most) for name, threads in first.items()}
    lead = "One seed. timeline.json has the whole timeline; open it with ui.perfetto.dev."
    if any(len(each) > ROWS for each in shown.values()):
        lead = f"{ROWS} workers. {lead}"
    rows = [row for each in every for run in each.sides.values() for row in run.rows.values()]
    if any(row["breakdown"].get(each) for row in rows for each in ("absent", "unselected")):
        lead += " Down: also if absent or not selected."
    says = "a row for each worker with what it does in the first rounds, against time"
    return parts.PageSection(
        "timeline",
        "The first rounds, worker by worker",
        lead,
        [parts.Figure("timeline", says, choices=choices, height=0)],
    )


def _rounds(threads: dict[str, list[Json]], most: int) -> Json:
    each = min(ROUNDS, max(3, most // max(1, len(threads))))
    ends = [
        sorted(event["ts"] + event["dur"] for event in events)[:each][-1]
        for name, events in threads.items()
        if name != "server"
    ]
    until = min(ends, default=1.0) / 1e6
    scale, unit = (1e-3, "ms") if until < 2 else time_unit(until)
    data = []
    seen = {event["name"] for events in threads.values() for event in events}
    for part in [part for part in COLOURS if part in seen]:
        rows = [
            (name, event["ts"] / 1e6, event["dur"] / 1e6, event.get("args", {}).get("step", ""))
            for name, events in threads.items()
            for event in events
            if event["name"] == part and event["ts"] / 1e6 < until
        ]
        if not rows:
            continue
        lengths = [float(f"{min(long, until - s) / scale:.5g}") for _, s, long, _ in rows]
        hover = f"{part}, %{{x:.3~g}} {unit}, to step %{{customdata}}<extra>%{{y}}</extra>"
        steps = [step for *_, step in rows]
        bars = _bars(part, [name for name, *_ in rows], lengths, steps, hover)
        starts = [float(f"{start / scale:.6g}") for _, start, _, _ in rows]
        data.append(bars | {"base": starts, "width": 0.78})
    layout: Json = {
        "barmode": "overlay",
        "xaxis": {"title": {"text": f"wall-clock time ({unit})"}, "range": [0, until / scale]},
        "yaxis": parts.categories(reversed(threads)),
        "showlegend": True,
    }
    return {"data": data, "layout": layout, "height": 130 + 24 * len(threads)}


def links(lines: Sequence[Series]) -> parts.PageSection | None:
    """Tabulate bytes over each link and, where transfers share links, the link's utilisation."""
    rows = [row for line in lines for row in _shared(line)]
    if not rows:
        plain = [row for line in lines for row in _carried(line, lambda _, sent: f"{sent:.1e}")]
        lead = 'Links have a utilisation where transfers share them: `network.model = "flows"`.'
        own = [row for line in lines for row in _carried(line, lambda name, _: LAST.sub("", name))]
        own = own if len(plain) > LINKS else []  # and the others on demand
        heads = ("algorithm", "links", "sent over each", "mean rate")
        tables = _folded(heads, own + plain, len(own) or LINKS)
        section = parts.PageSection("links", "Bytes sent over each link", lead, tables=tables)
        return section if plain else None
    carried = [
        (line, each) for line in lines for each in (line.row["network"] or {}).get("lines", ())
    ]
    by, most = max(carried, key=lambda pair: pair[1]["utilisation"] or 0.0)
    used = percent(most["utilisation"])
    heading = f"The busiest link, {_arrow(most['line'])}, is {used} utilised, by {by.name}"
    columns = ("algorithm", "link", "sent", "mean rate", "bandwidth", "saturated", "utilisation")
    lead = "Utilisation: bytes sent over the bytes that the link could have carried; busiest first."
    rows.sort(key=lambda row: -(row[-1].bar or 0.0) if isinstance(row[-1], Cell) else 0.0)
    return parts.PageSection("links", heading, lead, tables=_folded(columns, rows))


def _shared(line: Series) -> list[tuple[Cell | str, ...]]:
    duration = line.row["duration"] or 1
    return [
        (
            line.name,
            _arrow(each["line"]),
            with_unit(each["bytes"], "B"),
            with_unit(each["bytes"] / duration, "B/s"),
            "no limit" if each["bandwidth"] is None else with_unit(each["bandwidth"], "B/s"),
            percent(each["saturated"]),
            Cell(percent(each["utilisation"], 1), each["utilisation"]),
        )
        for each in (line.row.get("network") or {}).get("lines", ())
    ]


def _carried(line: Series, kind: Callable[[str, float], str]) -> list[tuple[Cell | str, ...]]:
    """Rows of other links; those of one `kind`, by name and bytes, share a row."""
    groups: dict[str, dict[str, float]] = {}
    for link, count in (line.row.get("links") or {}).items():
        groups.setdefault(kind(link, count), {})[link] = count
    rows: list[tuple[Cell | str, ...]] = []
    for group in groups.values():
        first, mean = next(iter(group)), sum(group.values()) / len(group)
        name = first if len(group) == 1 else f"{len(group)} links such as {first}"
        rate = with_unit(mean / (line.row["duration"] or 1), "B/s")
        sent, ends = (
            with_unit(mean, "B"),
            [with_unit(end(group.values()), "B") for end in (min, max)],
        )
        sent += f" ({' to '.join(ends)})" * (len({sent, *ends}) > 1)
        rows.append((line.name, _arrow(name), sent, rate))
    return rows


def _arrow(link: str) -> str:
    return link.replace("->", " → ")


def _folded(
    columns: Sequence[str], rows: Sequence[Sequence[Cell | str]], shown: int = LINKS
) -> list[parts.PageTable]:
    return parts.folded("Links, mean over seeds", columns, rows, texts=2, shown=shown, most=MOST)
