"""The profile that a probe writes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from paceline.simulator.results import store
from paceline.simulator.studies import execution

from ..calibration.overheads import TERMS
from ..calibration.profile import (
    Profile,
    between,
    ends,
    law,
    model_error,
    rate,
    rounded,
    seconds,
    size,
    today,
)
from ..host import machine
from ..measurement import evidence
from ..measurement.alpha_beta import AlphaBeta
from .read import CodecTime, TeamMeasurement

SUSTAINED = (0.02, 0.05, 0.1)  # seconds of steps
HEAD = (
    'A machine as `paceline probe` has measured it. A scenario takes it in by extends = "THIS',
    'FILE"; docs/probe.md and docs/reference/scenario.md explain the keys.',
)


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
    busiest, notes = max(team.foreign for team in teams), [*notes]
    if busiest > evidence.FOREIGN:
        notes.append(
            f"others used up to {busiest:.0%} of the CPU meanwhile (evidence: "
            f"{evidence.FOREIGN:.0%}); probe again when the machine is quiet"
        )
    travels = 4.0 * about.parameters
    tables = {
        "calibration": {
            "date": today(),
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
                "workers": ends([team.workers for team in teams]),
                "step": between([step for team in teams for step in team.stretched]),
                "bytes": [travels, travels],
            },
        },
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
    return Profile(tables, HEAD)


def _overhead(team: TeamMeasurement) -> dict[str, Any]:
    table: dict[str, Any] = {"workers": team.workers}
    if (step := team.terms.get("step")) is not None:
        table["step"] = law(step.mean, step.spread)
    measured = [name for name in TERMS if name in team.terms]
    return table | {name: seconds(max(0.0, team.terms[name].mean)) for name in measured}


def _probe(
    about: ProbeSettings, teams: Sequence[TeamMeasurement], transits: AlphaBeta
) -> dict[str, Any]:
    """Return [probe]: what a scenario has no keys for."""
    settings = asdict(about)
    del settings["delay"]
    lines = [
        (kind, team.workers, line) for team in teams for kind, line in team.collectives.items()
    ]
    return settings | {
        "threads": 1,
        "snapshot": seconds(float(np.median([team.snapshot for team in teams]))),
        "foreign_cpu": rounded(max(team.foreign for team in teams)),
        "compute": [
            {
                "workers": workers,
                "mean": seconds(float(samples.mean())),
                "sd": seconds(float(samples.std())),
                "median": seconds(float(np.median(samples))),
                "p95": seconds(float(np.quantile(samples, 0.95))),
                "samples": len(samples),
            }
            for workers, samples in (
                (1, teams[0].alone), *((team.workers, team.compute) for team in teams)
            )
        ],
        "transfer": [
            {
                "kind": kind,
                "workers": workers,
                "alpha": seconds(line.alpha),
                **({"bandwidth": rate(line.bandwidth)} if isfinite(line.bandwidth) else {}),
                "error": rounded(line.error),
                "bytes": [int(size) for size in line.sizes],
                "times": [seconds(time) for time in line.times],
            }
            for kind, workers, line in [*lines, ("send", 2, transits)]
        ],
        "team": [_team(team) for team in teams],
    }  # fmt: skip


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
