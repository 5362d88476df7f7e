"""DTS's figures, redrawn."""

import numpy as np

from ...network.closed_form import ClosedForm
from ...results.figures.drawing import label_ends
from ...results.figures.style import COLOURS, DASHES, Figure, one_panel, titled
from ...results.intervals import signed
from ...theory import delayed_seconds_per_step
from . import dts
from .lab import Lab

DRAWN = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0)  # seconds of latency of a message


def latencies(lab: Lab) -> Figure:
    """Scalability against the latency of a mean: theory as lines, runs as dots."""
    figure, axes = one_panel()
    scenario = lab.scenario(dts.LATENCY)
    compute = scenario.cluster.compute.expectation
    transmission = ClosedForm(scenario).mean_cost().transmission
    fine = np.geomspace(dts.HOPS * DRAWN[0], dts.HOPS * DRAWN[-1], 200)
    ends = []
    for delay, colour in zip((0, 4, 8, 12, 16, 20), COLOURS, strict=False):
        label = f"D = {delay}" if delay else "ssgd"
        said = [
            compute / delayed_seconds_per_step(compute, transmission, each, delay) for each in fine
        ]
        found = [
            compute / dts.settled(lab, dts.LATENCY, label, f"network.latency={s} s") for s in DRAWN
        ]
        axes.plot(fine, said, color=colour, linewidth=1.2)
        axes.plot(dts.HOPS * np.array(DRAWN), found, "o", color=colour, markersize=4)
        ends.append((label, colour, fine, np.array(said)))
    axes.set_xscale("log")
    axes.set_xticks([0.06, 0.2, 0.6, 2, 6], ["0.06", "0.2", "0.6", "2", "6"])
    axes.minorticks_off()
    axes.set(xlim=(fine[0] * 0.95, fine[-1] * 1.05), ylim=(0, 1.05), ylabel="scalability")
    axes.set_xlabel("latency of a mean (s); of a message a sixth")
    label_ends(figure, axes, ends)
    titled(axes, "D steps hide D gradients' time of latency", "dots: runs, lines: theory")
    return figure


def continents(lab: Lab) -> Figure:
    """Scalability over four continents, a bar for each variant."""
    names = {
        "ssgd": "ssgd",
        "ssgd, compressed": "ssgd, 31 times fewer bytes",
        "uncompressed": "D = p = 4",
        "D = p = 20": "D = p = 20",
        "compressed": "D = p = 4, 31 times fewer bytes",
    }
    compute = lab.scenario(dts.CONTINENTS).cluster.compute.expectation
    values = [compute / dts.settled(lab, dts.CONTINENTS, label) for label in names]
    figure, axes = one_panel(2.2)
    drawn = axes.barh(range(len(names)), values, height=0.6, color=COLOURS[0])
    axes.bar_label(drawn, [f"{value:.3f}" for value in values], padding=4)
    axes.set_yticks(range(len(names)), [*names.values()])
    axes.tick_params(axis="y", length=0, labelcolor="black")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="scalability: share of a step that is computing")
    axes.set_title("Four continents: only all three together scale")
    return figure


def delays(lab: Lab) -> Figure:
    """Final accuracy against delay, compensated and not, and against sparsity."""
    figure, axes = one_panel()
    lines = (
        ("compensated delay", dts.DELAY, "D = {}", dts.DELAYS, COLOURS[0]),
        ("uncorrected delay", dts.DELAY, "uncorrected D = {}", dts.DELAYS, COLOURS[1]),
        ("sparsity alone", dts.SPARSITY, "p = {}", (4, 20), COLOURS[2]),
        ("delay and sparsity", dts.SPARSITY, "D = p = {}", (4, 20), COLOURS[3]),
    )
    ends = []
    whole = dts.accuracy(lab, dts.DELAY, "ssgd")
    for index, (name, scenario, label, steps, colour) in enumerate(lines):
        found = np.array([whole, *(dts.accuracy(lab, scenario, label.format(n)) for n in steps)])
        x, middle = np.array([0, *steps]), found.mean(axis=1)
        bounds = np.array([signed(row).ci95 or (row[0], row[0]) for row in found])
        bars = np.abs(bounds - middle[:, None]).T
        shift = 0.12 * (index - 1.5)  # intervals at the same x stay apart
        axes.errorbar(x[1:] + shift, middle[1:], bars[:, 1:], fmt="none", ecolor=colour)
        axes.plot(x + shift, middle, "o", linestyle=DASHES["solid"], color=colour, markersize=3)
        ends.append((name, colour, x + shift, middle))
    axes.set_xlim(-0.4, 20.6)
    axes.set_xticks([0, 5, 10, 15, 20], ["0: ssgd", "5", "10", "15", "20"])
    axes.set(xlabel="steps of delay, or between means", ylabel="test accuracy at the end (%)")
    label_ends(figure, axes, ends)
    caption = f"mean of {len(whole)} seeds, bars: 95 % interval"
    titled(axes, "What late and rare means cost", caption)
    return figure
