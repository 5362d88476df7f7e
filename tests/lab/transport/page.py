"""docs/evidence/transport.md: every measured cell, the model beside it, and its residuals.

And what the simulator says of them, in a file beside `prediction_interval`.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.simulator.network.tcp import MEASURED
from paceline.simulator.scenario.overhead import GIGABIT
from tests.lab import tables
from tests.lab.transport import fit, measure
from tests.lab.transport.fit import Measured

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "transport.md"
HEAD = Path(__file__).with_name("head.md")


def words(record: dict[str, Any]) -> str:
    """Return a record in a line."""
    return (
        f"{record['number']:3d} {record['kind']:8s} m={record['ranks']} {record['rate']:6g} Mbit/s "
        f"{1000 * record['latency']:4g} ms {record['payload']:9d} B mtu {record['mtu']} "
        f"burst {record['burst']} queue {record['queue']} {record['congestion']} "
        f"ai={record['after_idle']} idle={record['idle']}: {record['seconds']:.5f} s "
        f"(+-{100 * measure.spread(record):.1f} %, {len(record['each']) - 1}), drops "
        f"{record['drops']}, again {record['again']}, others {100 * record['others']:.0f} %, relay "
        f"{100 * record['relay']:.0f} %"
    )


def write() -> str:
    """Write the page; return a sentence."""
    every = fit.cells()
    calm = [each for each in every if each.calm]
    best = fit.fitted(calm)
    stated = fit.stated(calm)
    dates = sorted(each.record["date"] for each in every)
    text = [
        HEAD.read_text("utf-8").format(
            published=_published(), cells=fit.CELLS, first=dates[0], last=dates[-1],
            late=1e6 * best.late, gloo=1e3 * best.gloo, collectives=stated["collectives"],
            **{key: f"{100 * (stated[key] - 1):+.1f} %" for key in ("low", "median", "high")},
            **{key: each / GIGABIT for key, each in stated.items() if key.startswith("hosts_")},
            **{key: f"{100 * each:.2g} %" for key, each in fit.left_one_out(calm).items()},
            **{key: every[0].record[key] for key in ("kernel", "torch", "python")},
        ),
        _residuals(every, calm),
        "\nBeside links that carry payload alone, through the same buckets, collectives took "
        f"{100 * stated['longer']:.1f} % longer in the median, {100 * stated['most']:.1f} % at the "
        "95th percentile.\n",
        _cells(every),
    ]  # fmt: skip
    PAGE.write_text("".join(text), encoding="utf-8")
    told = "".join(f"{key} = {value}\n" for key, value in stated.items())
    MEASURED.write_text(f"# Written by `python -m tests.lab.transport page`\n{told}", "utf-8")
    return f"{PAGE}: {len(every)} cells, {len(calm)} undisturbed"


def _published() -> str:
    """Write a table of published rates, each beside what the other sources lead to."""
    head = ("hosts x GPUs", "card", "moved", "stated", "inside", "source", "what")
    rows = [
        (
            f"{row['hosts']} x {row['devices'] or '?'}", row["card"], row["moved"], f"{stated:.1f}",
            "yes" if inside else "no", row["source"], row["how"],
        )
        for row, stated, inside in fit.left_source_out()
    ]  # fmt: skip
    return tables.write(PAGE.with_name("transport-published.csv"), head, rows)


def _residuals(every: Sequence[Measured], calm: Sequence[Measured]) -> str:
    """Return a table of residuals by group, of undisturbed cells."""
    lines = [
        f"\n## Residuals\n\nMeasured against predicted seconds, of {len(calm)} undisturbed cells "
        f"among {len(every)}; without a rate: with what is fitted to the other rates.\n\n"
        "| cells | number | median | 95th percentile | worst |\n|---|---:|---:|---:|---:|\n"
    ]
    plain = [each for each in calm if each.plain]
    groups: dict[str, Callable[[Measured], bool]] = {
        "all": lambda _: True,
        "without loss": lambda each: not each.record["drops"],
        "sockets": lambda each: each.cell.kind != "gloo",
        **{kind: lambda each, k=kind: each.cell.kind == k for kind in fit.KINDS},
        **{name: lambda each, n=name: each.cell.congestion == n for name in fit.CONTROLS},
    }  # fmt: skip
    for name, holds in groups.items():
        lines.append(_row(name, [each.missed() for each in calm if holds(each)]))
    exact = [math.log(each.lasted / each.simulated()) for each in plain]
    lines.append(_row("the simulator itself: `ring`, `tree`, `gloo`", exact))
    out = fit.left_out(calm)
    lines += [_row(f"without {rate:g} Mbit/s", missed) for rate, missed in out.items()]
    lines.append(_row("these together", [each for missed in out.values() for each in missed]))
    return "".join(lines)


def _row(name: str, missed: Sequence[float]) -> str:
    if not missed:
        return f"| {name} | 0 | - | - | - |\n"
    middle, most = fit.typical(missed)
    worst = max(map(abs, missed))
    shown = " | ".join(f"{100 * each:.2f} %" for each in (middle, most, worst))
    return f"| {name} | {len(missed)} | {shown} |\n"


def _cells(every: Sequence[Measured]) -> str:
    """Write the table of all cells; return the section that shows it."""
    head = (
        "number", "kind", "ranks", "Mbit/s", "ms", "payload", "mtu", "bucket", "queue", "control",
        "restarts", "idle", "lost", "ideal s", "model s", "measured s", "residual %", "others %",
        "disturbed",
    )  # fmt: skip
    rows = []
    for cell, record, fitted in ((each.cell, each.record, each) for each in every):
        predicted = fitted.predicted()
        rows.append((
            cell.number, cell.kind, cell.ranks, f"{cell.rate:g}", f"{1e3 * cell.latency:g}",
            cell.payload, cell.mtu, cell.burst, cell.queue, cell.congestion, cell.after_idle,
            cell.idle, record["drops"], f"{cell.ideal:.4f}", f"{predicted:.4f}",
            f"{record['seconds']:.4f}", f"{100 * math.log(record['seconds'] / predicted):+.1f}",
            f"{100 * record['others']:.0f}", "" if fitted.calm else "yes",
        ))  # fmt: skip
    link = tables.write(PAGE.with_name("transport-cells.csv"), head, rows)
    return (
        "\n## Every cell\n\n`bucket` and `queue` in bytes; `idle`: seconds between repetitions; "
        "`restarts`: `tcp_slow_start_after_idle`; `lost`: packets dropped per repetition; "
        f"`others`: share of the CPU that other processes used.\n\n{link}\n"
    )
