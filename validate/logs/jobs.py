"""Read jobs.toml: logs of jobs, and their descriptions."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import messages, paths
from paceline.simulator.load.document import read_toml
from paceline.simulator.load.load import parse
from paceline.simulator.scenario.fields import Duration, Many, Name, Section
from paceline.simulator.scenario.scenario import Scenario

from ..calibration.profile import checked
from . import tables
from .tables import ROWS, SPELLINGS, Log

MOST = 1000  # jobs
PAUSE = 5.0  # times the median: a longer step includes an evaluation, a checkpoint or a pause
UNKNOWN_LINK = {"bandwidth": "1 Gbit/s"}  # default of a job that states none; its factor is fitted
LINKS = {"bandwidth", "link", "regions", "platform"}
UNSAID = {"latency": "0 s"}


class _Table(Section):
    """One [[job]] table; `parse` checks its scenario tables."""

    log: Name = Field(description="its log, beside this file")
    algorithm: dict[str, Any] | Name = Field(description="what it ran, as in a scenario")
    workers: int = Field(description="number of workers")
    compute: Duration | None = Field(
        default=None, description="mean computing of a step, where it is known beside the log"
    )
    region: Name | None = Field(default=None, description="the one box that its workers are in")
    accumulation: int = Field(default=1, description="micro-batches of a step")
    model: dict[str, Any] = Field(description="what it sent, as in a scenario")
    network: dict[str, Any] = Field(default={}, description="its links, as in a scenario")
    warmup: int = Field(default=10, ge=0, le=10**9, description="steps left out")
    columns: dict[str, Name] = Field(default={}, description="names of the log's columns")
    machine: Name | None = Field(default=None, description="jobs of one machine compute alike")


class _File(Section):
    """A file of jobs."""

    job: Many[_Table] = Field(min_length=1, max_length=MOST)


@dataclass(frozen=True)
class Job:
    """A job: its log without the warm-up, and its scenario without compute times.

    `network`: its table as written; `knows_link`: whether it states a bandwidth; `machine`: its
    machine, on which jobs of one model compute alike; `compute`: a step's compute time (seconds),
    if stated; `from_zero`: whether the log has a step 0.
    """

    name: str
    log: Log
    scenario: Scenario
    network: dict[str, Any]
    machine: str | None = None
    compute: float | None = None
    from_zero: bool = False

    @property
    def knows_link(self) -> bool:
        """Return whether the job states the bandwidth of its network."""
        return bool(LINKS & self.network.keys())

    @property
    def family(self) -> str:
        """Return how its algorithm's workers communicate."""
        return self.scenario.programs[self.scenario.algorithm[0].name].family

    @property
    def slowed(self) -> bool:
        """Return whether it may compute on GPUs while collectives run."""
        return self.scenario.network.library == "nccl" and self.family == "overlapped"


def read(path: Path, *, allow_paths: bool = False) -> list[Job]:
    """Read a file of [[job]] tables, and their logs. Raises InputError.

    Logs must lie in the file's folder, unless `allow_paths`.
    """
    jobs = checked(_File, read_toml(path), path).job
    return [_job(path, index, job, allow_paths) for index, job in enumerate(jobs)]


def _job(path: Path, index: int, table: _Table, allow_paths: bool) -> Job:
    where = f"{path}: job[{index}]"
    if not allow_paths and paths.leaves(table.log, path.parent):
        raise InputError(
            f"{where}.log = {messages.show(table.log)}: outside the folder of that file; "
            f"{paths.REMEDY}"
        )
    for wrong in table.columns.keys() - SPELLINGS.keys():
        nearest = messages.nearest(wrong, SPELLINGS, "a log's columns are")
        raise InputError(f"{where}.columns.{wrong}: unknown; {nearest}")
    algorithm = {"name": table.algorithm} if isinstance(table.algorithm, str) else table.algorithm
    network = dict(table.network)
    link = {} if LINKS & network.keys() else UNKNOWN_LINK
    inside = {"link": [{"between": [table.region] * 2}]} if table.region else {}
    cluster = {"workers": table.workers, "compute": "1 s", "accumulation": table.accumulation}
    whole = {
        "model": table.model,
        "cluster": cluster | ({"region": table.region} if table.region else {}),
        "network": inside | UNSAID | network | link,
        "run": {"steps": 1},
        "algorithm": [algorithm],
    }
    scenario = parse(whole, file=where, folder=path.parent, allow_paths=allow_paths)
    program, flows = scenario.programs[scenario.algorithm[0].name], network.get("model")
    if program.family in ("server", "gossip") or flows == "flows":
        what = "network.model" if flows == "flows" else "algorithm.name"
        raise InputError(
            f"{where}.{what}: logs are fitted to the closed formulas of collectives; calibrate "
            'servers and gossip from runs of paceline validate, and write model = "closed-form"'
        )
    log = tables.read(path.parent / table.log, table.columns)
    ranks = len(np.unique(log.rank))
    if ranks > table.workers:
        raise InputError(
            f"{where}.workers = {table.workers}: {log.path} has {ranks} ranks; correct one of them"
        )
    if table.compute and not np.isnan(log.compute).any():
        raise InputError(f"{where}.compute: {log.path} has computing in a column; leave one out")
    from_zero = not log.step.all()
    keep = log.step - log.steps >= int((log.step - log.steps).min()) + table.warmup
    if not keep.any():
        raise InputError(
            f"{where}.warmup = {table.warmup}: {log.path} has no steps after that; write a smaller "
            "number"
        )
    log = replace(log, **{name: getattr(log, name)[keep] for name in ROWS})
    return Job(table.log, log, scenario, network, table.machine, table.compute, from_zero)


def template(path: Path) -> str:
    """Return a sentence on a log, with a jobs.toml to complete.

    Raises InputError for a log that cannot be read.
    """
    from jinja2 import Environment  # noqa: PLC0415 - used for one message

    try:
        logs = [(tables.read(path), dict[str, str]())]
    except InputError:
        logs = []
        with suppress(InputError):
            logs = [(tables.read(path, run), run) for run in tables.runs(path)]
        if not logs:
            raise
    text = Path(__file__).with_name("jobs.toml.j2").read_text("utf-8")
    jobs = [(described(log), len(np.unique(log.rank)), run) for log, run in logs]
    return Environment().from_string(text).render(jobs=jobs, name=json.dumps(path.name))


def described(log: Log) -> str:
    """Describe a log in a line, such as "a.csv: nanoGPT, 61 lines of 61 steps, ..."."""
    lasted, ranks = log.seconds / log.steps, len(np.unique(log.rank))
    slow, usual = np.quantile(lasted, (0.95, 0.5))
    pauses = int((lasted > PAUSE * usual).sum())
    parts = [
        *filter(None, [log.framework]),
        f"{len(lasted)} lines of {log.steps.sum():.0f} steps, {log.step.min()} to {log.step.max()}",
        f"{usual:.4g} s a step in the median, {slow:.4g} s or less in 95 of 100",
        *([f"{pauses} longer than {PAUSE:.0f} times that"] if pauses else []),
        f"{ranks} rank" + "s" * (ranks > 1),
    ]
    return f"{log.path}: {', '.join(parts)}"


def common(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the keys of [network] that are equal in all jobs."""
    first = jobs[0].network
    return {k: v for k, v in first.items() if all(job.network.get(k) == v for job in jobs)}
