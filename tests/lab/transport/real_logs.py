"""Logs of real jobs here, of one rank's `step, seconds` alone, and what calibration makes of two.

`python -m tests.lab.transport logs` measures those that are missing over links of the kernel, and
prints how far predictions at the other links were off: a table of docs/calibrate.md. A run that
others disturbed is measured again by the next call.
"""

import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.simulator.load.load import parse
from paceline.simulator.studies.simulate import simulate
from paceline.validate.logs.calibrate import calibrate
from tests.helpers.hidden_laws import log

FILE = Path(__file__).with_name("real_logs.csv")
MEGABIT = {9000: (5, 9, 16, 28, 50), 0: (5, 12, 25, 50, 100)}  # by `mtu`
STEPS, COUNTED = 200, 192  # the last ones: whole periods, without the connections' first ones


class Job(NamedTuple):
    """Local SGD over links of `latency` ms; `parameters`, of 4 bytes each, are averaged.

    `mtu`: bytes of a packet on all links; 0: those that pass in 1 ms, so that headers weigh less on
    fast links, which nothing in a log says.
    """

    mtu: int
    workers: int
    parameters: int
    latency: int
    tau: int

    def tables(self, megabit: float) -> dict[str, Any]:
        """Return the tables of a scenario that a user knows of his job."""
        return {
            "model": {"parameters": self.parameters, "bytes_per_parameter": 4},
            "network": {
                "bandwidth": f"{megabit} Mbit/s", "latency": f"{self.latency} ms",
                "library": "gloo", "collective": "ring",
            },
            "algorithm": [{"name": "local-sgd", "tau": self.tau}],
            "run": {"steps": STEPS},
        }  # fmt: skip


JOBS = tuple(
    Job(mtu, *job)
    for mtu in MEGABIT
    for job in ((3, 60_000, 5, 4), (4, 30_000, 10, 8), (2, 100_000, 2, 4))
)
Logs = dict[tuple[Job, int], np.ndarray]  # seconds of each step, by job and Mbit/s


def known() -> Logs:
    """Return the logs that there are."""
    found: dict[tuple[Job, int], list[float]] = defaultdict(list)
    if FILE.exists():
        with FILE.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                job = Job(*(int(row[key]) for key in Job._fields))
                found[job, int(row["megabit"])].append(float(row["seconds"]))
    return {key: np.array(each) for key, each in found.items()}


def write(logs: Logs) -> None:
    """Write all logs."""
    with FILE.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*Job._fields, "megabit", "step", "seconds"])
        for (job, megabit), lasted in sorted(logs.items()):
            for step, each in enumerate(lasted, start=1):
                rows.writerow([*job, megabit, step, f"{each:.6f}"])


def measured(job: Job, megabit: int, folder: Path) -> tuple[np.ndarray, list[str]]:
    """Run a job; return the seconds of rank 0's steps, and why the run is no evidence."""
    spread = {"dist": "lognormal", "mean": "50 ms", "sd": "4 ms"}
    known = job.tables(megabit)
    table = known | {
        "cluster": {"workers": job.workers, "compute": spread},
        "network": known["network"] | ({"transport": "tcp", "mtu": job.mtu} if job.mtu else {}),
        "objective": {"kind": "none"},
        "validation": {"network": "kernel"},
    }
    out = folder / f"{job.mtu}-{job.workers}-{megabit}"
    paceline.validate(parse(table, folder=folder), out=out)
    summary = json.loads((out / "measured" / "run.json").read_text(encoding="utf-8"))["summary"]
    (evidence,) = summary["evidence"].values()
    with (out / "measured" / "events.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["node"] == "0"]
    begins = [float(row["start"]) for row in rows if row["kind"] == "step"]
    return np.diff([*begins, float(rows[-1]["end"])]), evidence["reasons"]


def measure() -> None:
    """Measure what is missing, one job after the other."""
    logs = known()
    with tempfile.TemporaryDirectory() as folder:
        for job in JOBS:
            for megabit in MEGABIT[job.mtu]:
                if (job, megabit) in logs:
                    continue
                lasted, reasons = measured(job, megabit, Path(folder))
                print(
                    job, megabit, f"{1e3 * lasted[-COUNTED:].mean():.2f} ms", *reasons, flush=True
                )
                if not reasons:
                    logs[job, megabit] = lasted
                    write(logs)


class Predicted(NamedTuple):
    """A prediction at a link from logs at others: relative error, and whether it is inside."""

    job: Job
    megabit: int
    error: float
    inside: bool
    width: float


def predictions(logs: Logs, job: Job, given: tuple[int, ...], folder: Path) -> Iterator[Predicted]:
    """Calibrate from a job's logs at the `given` links; predict it at the others."""
    text = ""
    for megabit in given:
        (folder / f"{megabit}.csv").write_text(log(logs[job, megabit]), encoding="utf-8")
        text += (
            f'[[job]]\nlog = "{megabit}.csv"\nworkers = {job.workers}\n'
            f'algorithm = {{ name = "local-sgd", tau = {job.tau} }}\n'
            f'network = {{ bandwidth = "{megabit} Mbit/s", latency = "{job.latency} ms", '
            'library = "gloo" }\n'
            f"model = {{ parameters = {job.parameters}, bytes_per_parameter = 4 }}\n"
        )
    (folder / "jobs.toml").write_text(text, encoding="utf-8")
    calibrate([folder / "jobs.toml"]).profile.write(folder / "p.toml")
    for megabit in set(MEGABIT[job.mtu]) - set(given):
        table = {"extends": "p.toml", "cluster": {"workers": job.workers}, **job.tables(megabit)}
        (row,) = simulate(parse(table, folder=folder)).json()["algorithms"]
        truth, found = logs[job, megabit][-COUNTED:].mean(), row["seconds_per_step"]
        low, high = found["interval90"]
        yield Predicted(
            job, megabit, found["mean"] / truth - 1, bool(low <= truth <= high), high / low - 1
        )


def words() -> str:
    """Predict from each two links of each job all others; return a table, and a line for all."""
    logs, found = known(), list[Predicted]()
    for job in JOBS:
        for given in combinations(MEGABIT[job.mtu], 2):
            with tempfile.TemporaryDirectory() as folder:
                found += predictions(logs, job, given, Path(folder))
    lines = [
        "| packets | workers, size, latency, tau | predictions | error, median | 90th percentile "
        "| largest | in the interval | its width, median |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for job in (*JOBS, *MEGABIT):
        each = [one for one in found if job in (one.job, one.job.mtu)]
        errors = [abs(one.error) for one in each]
        name = f"{each[0].job.mtu or 'that pass in 1 ms'} | all" if job in MEGABIT else (
            f"{job.mtu or 'that pass in 1 ms'} | {job.workers}, {4 * job.parameters // 1000} kB, "
            f"{job.latency} ms, {job.tau}"
        )  # fmt: skip
        lines.append(
            f"| {name} | {len(each)} | {np.median(errors):.2%} | {np.quantile(errors, 0.9):.2%} "
            f"| {max(errors):.1%} "
            f"| {np.mean([one.inside for one in each]):.0%} "
            f"| {np.median([one.width for one in each]):.1%} |"
        )
    return "\n".join(lines)
