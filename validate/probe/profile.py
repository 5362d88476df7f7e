"""The profile that a probe writes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.results import store
from paceline.simulator.scenario.overhead import Overhead
from paceline.simulator.studies import execution

from ..calibration.overheads import TERMS
from ..calibration.profile import (
    Profile,
    between,
    law,
    model_error,
    rate,
    rounded,
    seconds,
    size,
)
from ..host import machine
from ..measurement import evidence
from ..measurement.alpha_beta import AlphaBeta
from .read import CodecTime, TeamMeasurement

SUSTAINED = (0.02, 0.05, 0.1)  # seconds of steps
COMMENTS = {
    "calibration": "where these numbers come from",
    "calibration.sd": "relative standard errors",
    "codec.0": "time for a vector, and for one message",
    "calibration.model_error": "of predictions: relative standard deviations, by family",
    "calibration.measured": "the range within which the numbers hold",
    "calibration.measured.step": "steps were stretched to lengths from one to the other",
    "probe": "for people: scenarios that extend this file do not read it",
    "probe.threads": "that each worker computes with",
    "probe.network": "whether costs are beyond an emulated delay, or all that there is",
    "probe.snapshot": "time that one snapshot of the parameters takes a worker",
    "probe.foreign_cpu": "share of the machine that others used meanwhile, at most",
    "probe.compute.0": "one gradient; of one worker alone, and of all at once",
    "probe.transfer.0": "alpha + bytes / bandwidth; error: relative rms of the fit",
    "probe.team.0": "results by number of workers",
    "probe.team.0.shortest_step": "held by all, with their CPU use at most 40 %",
    "probe.team.0.cpu": "of one core, per worker and stretched step",
    "probe.team.0.sustained": f"workers at steps of {', '.join(map(seconds, SUSTAINED))}",
}


@dataclass(frozen=True)
class ProbeSettings:
    """The settings of a probe. `delay`: seconds of an emulated all-reduce."""

    model: str
    data: str
    batch: int
    parameters: int
    device: str
    network: str
    delay: float


def profile(
    about: ProbeSettings,
    teams: Sequence[TeamMeasurement],
    transits: AlphaBeta,
    codecs: Sequence[CodecTime],
    notes: Sequence[str],
) -> Profile:
    """Return the profile of a machine; `teams`: by number of workers; `transits`: of messages."""
    tables = {
        "calibration": _calibration(about, teams, [*notes, *_notes(teams)]),
        "overhead": [_overhead(team) for team in teams],
        "codec": [
            {
                "kind": codec.kind, "size": size(codec.size), "compress": seconds(codec.compress),
                "decompress": seconds(codec.decompress),
            }
            for codec in codecs
        ],
        "probe": _probe(about, teams, transits),
    }  # fmt: skip
    comments = COMMENTS | {
        "calibration.measured.bytes": f"the payload of the costs below: {about.model}",
        "probe.team.0.hidden": f"share of a mean of {seconds(about.delay)} that a step hides",
    }
    for index, team in enumerate(teams):
        path = f"overhead.{index}"
        comments[path] = f"what is added with {team.workers} workers"
        for name, term in team.terms.items():
            said = f"{Overhead.model_fields[name].description}; {term.samples} samples"
            comments[f"{path}.{name}"] = said
    return Profile(tables, comments, _head(about, teams))


def _calibration(
    about: ProbeSettings, teams: Sequence[TeamMeasurement], notes: list[str]
) -> dict[str, Any]:
    """Return [calibration]: where the numbers come from, and their standard errors."""
    travels = 4.0 * about.parameters
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hardware": machine.describe(machine.hardware(about.device)),
        "notes": notes,
        "versions": store.versions("torch"),
        "sd": {
            f"overhead.{index}.{name}": rounded(term.se / term.mean)
            for index, team in enumerate(teams)
            for name, term in team.terms.items()
            if term.mean > 0 and term.se > 0
        },
        "model_error": model_error(about.network),
        "measured": {
            "workers": [teams[0].workers, teams[-1].workers],
            "step": between([each for team in teams for each in team.stretched]),
            "bytes": [travels, travels],
        },
    }


def _overhead(team: TeamMeasurement) -> dict[str, Any]:
    table: dict[str, Any] = {"workers": team.workers}
    for name in ("step", *TERMS):
        if (term := team.terms.get(name)) is not None:
            cost = law(term.mean, term.spread) if name == "step" else seconds(max(0.0, term.mean))
            table[name] = cost
    return table


def _probe(
    about: ProbeSettings,
    teams: Sequence[TeamMeasurement],
    transits: AlphaBeta,
) -> dict[str, Any]:
    """Return [probe]: what a scenario has no keys for."""
    table = asdict(about) | {
        "threads": 1,
        "snapshot": seconds(float(np.median([team.snapshot for team in teams]))),
        "foreign_cpu": rounded(max(team.foreign for team in teams)),
    }
    del table["delay"]
    fits = [(kind, team.workers, fit) for team in teams for kind, fit in team.collectives.items()]
    return table | {
        "compute": [_times(1, teams[0].alone), *(_times(t.workers, t.compute) for t in teams)],
        "transfer": [_transfer(*each) for each in [*fits, ("send", 2, transits)]],
        "team": [_team(team) for team in teams],
    }


def _times(workers: int, samples: np.ndarray) -> dict[str, Any]:
    return {
        "workers": workers,
        "mean": seconds(float(samples.mean())),
        "sd": seconds(float(samples.std())),
        "median": seconds(float(np.median(samples))),
        "p95": seconds(float(np.quantile(samples, 0.95))),
        "samples": len(samples),
    }


def _transfer(kind: str, workers: int, fit: AlphaBeta) -> dict[str, Any]:
    speed = {"bandwidth": rate(fit.bandwidth)} if isfinite(fit.bandwidth) else {}
    return {
        "kind": kind,
        "workers": workers,
        "alpha": seconds(fit.alpha),
        **speed,
        "error": rounded(fit.error),
        "bytes": [int(each) for each in fit.sizes],
        "times": [seconds(time) for time in fit.times],
    }


def _team(team: TeamMeasurement) -> dict[str, Any]:
    shortest = max(team.shortest, evidence.SHORTEST, shortest_by_cpu(team))
    return {
        "workers": team.workers,
        **({"shortest_step": seconds(shortest)} if isfinite(shortest) else {}),
        "cpu": seconds(team.cpu),
        "hidden": rounded(team.hidden),
        "sustained": [sustained(team, step) for step in SUSTAINED],
    }


def shortest_by_cpu(team: TeamMeasurement) -> float:
    """Return the step (seconds) at which a team's CPU use reaches the limit of evidence."""
    return team.workers * team.cpu / (evidence.OWN * execution.cores())


def sustained(team: TeamMeasurement, step: float) -> int:
    """Return the workers, each as costly as this team's, that steps of `step` seconds allow."""
    return int(evidence.OWN * execution.cores() * step / team.cpu)


def _notes(teams: Sequence[TeamMeasurement]) -> list[str]:
    busiest = max(team.foreign for team in teams)
    if busiest <= evidence.FOREIGN:
        return []
    return [
        f"others used up to {busiest:.0%} of the CPU meanwhile (evidence: {evidence.FOREIGN:.0%}); "
        "probe again when the machine is quiet"
    ]


def _head(about: ProbeSettings, teams: Sequence[TeamMeasurement]) -> tuple[str, ...]:
    """Return the head: what the file is, and tables that a scenario can copy from it."""
    from jinja2 import Environment  # noqa: PLC0415 - 50 ms

    text = Path(__file__).with_name("head.j2").read_text("utf-8")
    team = teams[-1]
    said = Environment(trim_blocks=True).from_string(text).render(
        about=about, m=team.workers, times=team.compute, ring=team.collectives["mean"],
        seconds=seconds, rate=rate,
    )  # fmt: skip
    return tuple(said.rstrip().split("\n"))
