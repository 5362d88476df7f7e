"""DTS: measures of the claims of dts.toml: seconds per step, scalability, traffic, accuracy."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...network.mean_cost import mean_cost
from ...theory import scalability
from .claim import Finding, mean
from .lab import Lab

CONTINENTS, LATENCY = "dts/four-continents", "dts/latency"
DELAY, SPARSITY, COMPRESSION = "dts/delay", "dts/sparsity", "dts/compression"
PERIODS = (1, 4, 8, 12, 16, 20)
DELAYS = (5, 10, 15, 20)
HOPS = 6  # of a ring of four
LIGHT = 299_792_458  # m/s


def settled(lab: Lab, name: str, label: str, *sets: str) -> float:
    """Seconds per step of the second half of the run, after the start-up."""
    (run, *_) = lab.runs(name, *sets).groups[label]
    time, step = run.curve["time"], run.curve["step"]
    half = len(time) // 2
    return (time[-1] - time[half]) / (step[-1] - step[half])


def accuracy(lab: Lab, name: str, label: str) -> np.ndarray:
    """Final test accuracy in percent, of every seed."""
    return np.array([100 * run.curve["accuracy"][-1] for run in lab.runs(name).groups[label]])


def scales(lab: Lab, name: str, label: str, sets: Sequence[str] = ()) -> Finding:
    """Share of a settled step that is spent computing."""
    step = settled(lab, name, label, *sets)
    compute = lab.scenario(name, *sets).cluster.compute.expectation
    return Finding(scalability(compute, step), note=f"A step takes {step:.4g} s.")


def sparse(lab: Lab, period: int, latency: float) -> Finding:
    """Scalability with a mean every `period` steps, without delay; `latency` of a message (s)."""
    made = [f"{{ name = 'dts', label = 'p = {p}', delay = 0, period = {p} }}" for p in PERIODS]
    sets = f"algorithm=[{', '.join(made)}]", f"network.latency={latency} s"
    return scales(lab, LATENCY, f"p = {period}", sets)


def sparser(lab: Lab) -> Finding:
    """The smallest gain in scalability from one period to the next, over latencies."""
    found = {at: [sparse(lab, p, at).value for p in PERIODS] for at in (0.01, 0.1, 0.3, 1.0)}
    said = "; ".join(
        f"{1000 * at:.0f} ms: {', '.join(f'{each:.3f}' for each in row)}"
        for at, row in found.items()
    )
    least = min(float(np.diff(row).min()) for row in found.values())
    return Finding(least, note=f"p = {', '.join(map(str, PERIODS))} at {said}.")


def latency_alone(lab: Lab) -> Finding:
    """Scalability of ssgd where bytes take no time."""
    found = scales(lab, CONTINENTS, "ssgd", ["network.bandwidth=1000 Tbit/s"])
    most = scales(lab, CONTINENTS, "ssgd").value
    return Finding(
        found.value, note=f"{found.note} With the scenario's bandwidth it scales to {most:.4f}."
    )


def dts_scales(lab: Lab) -> Finding:
    """Scalability of DTS with compression; the note has that without."""
    plain = scales(lab, CONTINENTS, "uncompressed").value
    found = scales(lab, CONTINENTS, "compressed")
    return Finding(found.value, note=f"{found.note} Uncompressed it scales to {plain:.3f}.")


def gain(lab: Lab, codec: str = "") -> Finding:
    """Return the speed-up of DTS over ssgd; `codec`: another one's overrides."""
    sets = [codec] if codec else []
    times = [settled(lab, CONTINENTS, label, *sets) for label in ("ssgd", "compressed")]
    return Finding(times[0] / times[1], note="{:.4g} s a step against {:.3g} s.".format(*times))


def tolerated(lab: Lab, label: str = "D = 20") -> Finding:
    """Seconds that a mean may take without cost, extrapolated from two longer ones."""
    means, steps = [], []
    for latency in ("network.latency=2 s", "network.latency=3 s"):
        cost = mean_cost(lab.scenario(LATENCY, latency))
        means.append(cost.latency + cost.transmission)
        steps.append(settled(lab, LATENCY, label, latency))
    compute = lab.scenario(LATENCY).cluster.compute.expectation
    slope = (means[1] - means[0]) / (steps[1] - steps[0])
    sending = f"sending the bytes takes {cost.transmission:.2g} s of it"
    note = f"{slope:.4g} gradients of {compute:g} s; {sending}."
    return Finding(means[0] - slope * (steps[0] - compute), note=note)


def off_by_one(lab: Lab) -> Finding:
    """The same with one step of delay less, as the paper's eq. 3 counts."""
    whole = tolerated(lab).value
    return Finding(tolerated(lab, "D = 19").value, note=f"20 whole steps hide {whole:.4g} s.")


def hidden_per_step(lab: Lab) -> Finding:
    """Seconds of latency hidden by a step of delay, by least squares over the delays."""
    delays = (4, 8, 12, 16, 20)
    hidden = [tolerated(lab, f"D = {D}").value for D in delays]
    slope, _ = np.polyfit(delays, hidden, 1)
    shown = ", ".join(f"{D}: {value:.3g} s" for D, value in zip(delays, hidden, strict=True))
    return Finding(float(slope), note=f"Hidden at D = {shown}.")


def second(lab: Lab) -> Finding:
    """Scalability at 1000 ms a message; ssgd's for comparison."""
    plain = scales(lab, LATENCY, "ssgd").value
    return Finding(scales(lab, LATENCY, "D = 20").value, note=f"ssgd scales to {plain:.3f}.")


def traffic(lab: Lab) -> Finding:
    """Bytes per step of ssgd over those of DTS with p = 20."""
    rows = {row["label"]: row["bytes_per_step"] for row in lab.runs(CONTINENTS).algorithms}
    most, least = rows["ssgd"], rows["D = p = 20"]
    return Finding(most / least, note=f"{most / 1e6:.4g} MB a step against {least / 1e6:.3g} MB.")


def footnote(lab: Lab) -> Finding:
    """Round-trip time of light, in milliseconds."""
    return Finding(2 * 11_725e3 / LIGHT * 1e3)


def against(lab: Lab, name: str, label: str, other: str) -> Finding:
    """Final test accuracy of one algorithm less that of another, in points, per seed."""
    ours, theirs = accuracy(lab, name, label), accuracy(lab, name, other)
    return mean(np.round(ours - theirs, 9), f"{ours.mean():.1f} % against {theirs.mean():.1f} %.")


def loss_per_delay(lab: Lab) -> Finding:
    """Points of accuracy lost for five more steps of uncorrected delay, least squares per seed."""
    found = np.array([accuracy(lab, DELAY, f"uncorrected D = {D}") for D in DELAYS])
    slopes = 5 * np.polyfit(DELAYS, found, 1)[0]
    shown = " / ".join(f"{row.mean():.1f}" for row in found)
    whole = accuracy(lab, DELAY, "ssgd").mean()
    return mean(slopes, f"{shown} %; ssgd {whole:.1f} %.")


def compressed(lab: Lab, codec: str) -> Finding:
    """Points of accuracy with compression less those of ssgd; the note has the same one's speed."""
    found = against(lab, COMPRESSION, "compressed", "ssgd")
    plain = accuracy(lab, COMPRESSION, "uncompressed").mean()
    note = f"{found.note} Uncompressed it has {plain:.1f} %."
    speed = replace(lab, sets=tuple(each for each in lab.sets if "codec" in each))
    fast = gain(speed, codec).value  # which takes no rate, as it learns nothing
    return Finding(found.value, found.ci95, f"{note} It is {fast:.3g} times as fast as ssgd.")
