"""Logs of real jobs, of one rank's `step, seconds` alone, and what calibration makes of two.

They were measured over links of the kernel. `python -m tests.lab.evidence logs` prints how far
predictions at the other links were off: a table of docs/calibrate.md.
"""

import csv
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.simulator.load.load import parse
from paceline.simulator.studies.simulate import simulate
from paceline.validate.logs.calibrate import calibrate
from tests.helpers.hidden_laws import log

FILE = Path(__file__).with_name("real_logs.csv")
COUNTED = 192  # the last steps: whole periods, without the connections' first ones


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

    def tables(self, megabit: int) -> dict[str, Any]:
        """Return the tables of a scenario that a user knows of his job."""
        return {
            "model": {"parameters": self.parameters, "bytes_per_parameter": 4},
            "network": {
                "bandwidth": f"{megabit} Mbit/s", "latency": f"{self.latency} ms",
                "library": "gloo", "collective": "ring",
            },
            "algorithm": [{"name": "local-sgd", "tau": self.tau}],
            "run": {"steps": 200},
        }  # fmt: skip


Logs = dict[int, np.ndarray]  # seconds of each step, by Mbit/s


def known() -> dict[Job, Logs]:
    """Return the logs of each job."""
    logs: dict[Job, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(FILE.read_text("utf-8").splitlines()):
        job = Job(*(int(row[key]) for key in Job._fields))
        logs[job][int(row["megabit"])].append(float(row["seconds"]))
    return {job: {mbit: np.array(log) for mbit, log in by.items()} for job, by in logs.items()}


def predictions(
    job: Job, logs: Logs, given: tuple[int, ...], folder: Path
) -> Iterator[tuple[float, bool, float]]:
    """Calibrate from a job's logs at the `given` links; predict it at the others.

    Yield the relative error, whether the truth is in the interval, and the interval's width.
    """
    text = ""
    for megabit in given:
        (folder / f"{megabit}.csv").write_text(log(logs[megabit]), encoding="utf-8")
        text += (
            f'[[job]]\nlog = "{megabit}.csv"\nworkers = {job.workers}\n'
            f'algorithm = {{ name = "local-sgd", tau = {job.tau} }}\n'
            f'network = {{ bandwidth = "{megabit} Mbit/s", latency = "{job.latency} ms", '
            'library = "gloo" }\n'
            f"model = {{ parameters = {job.parameters}, bytes_per_parameter = 4 }}\n"
        )
    (folder / "jobs.toml").write_text(text, encoding="utf-8")
    calibrate([folder / "jobs.toml"]).profile.write(folder / "p.toml")
    for megabit in logs.keys() - {*given}:
        table = {"extends": "p.toml", "cluster": {"workers": job.workers}, **job.tables(megabit)}
        (row,) = simulate(parse(table, folder=folder)).json()["algorithms"]
        truth, actual = logs[megabit][-COUNTED:].mean(), row["seconds_per_step"]
        low, high = actual["interval90"]
        yield actual["mean"] / truth - 1, bool(low <= truth <= high), high / low - 1


def words() -> str:
    """Predict from each two links of each job all others; return a table, by job and in all."""
    rows: dict[str, list[tuple[float, bool, float]]] = defaultdict(list)
    for job, logs in known().items():
        packets = "alike" if job.mtu else "by the rate"
        size = f"{job.workers}, {4 * job.parameters // 1000} kB, {job.latency} ms, {job.tau}"
        for given in combinations(logs, 2):
            with tempfile.TemporaryDirectory() as folder:
                rows[f"{packets} | {size}"] += predictions(job, logs, given, Path(folder))
    rows["all | "] = [one for actual in rows.values() for one in actual]
    lines = [
        "| packets | workers, size, latency, tau | predictions | error, median | 90th percentile "
        "| largest | in the interval | its width, median |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        errors, inside, widths = np.abs(np.array(row).T)
        middle, most = np.quantile(errors, (0.5, 0.9))
        lines.append(
            f"| {name} | {len(errors)} | {middle:.2%} | {most:.2%} | {max(errors):.1%} "
            f"| {inside.mean():.0%} | {np.median(widths):.1%} |"
        )
    return "\n".join(lines)
