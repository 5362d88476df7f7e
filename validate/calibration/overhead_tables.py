"""[[overhead]] tables of a profile, from events of runs and a base profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.scenario.overhead import Overhead, at

from . import overheads, profile
from .overheads import Nominal, RunEvents, Term
from .profile import Profile

TERMS = ("issue", "collect", "collective", "agree", "send", "message", "receive")
NOTHING = Profile({})


@dataclass(frozen=True)
class OverheadTables:
    """`tables`: one of [[overhead]] for each number of workers; `sd`: relative standard errors.

    `comments` on both are by dotted key, as a profile has them.
    """

    tables: list[dict[str, Any]] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)
    sd: dict[str, float] = field(default_factory=dict)

    @property
    def parsed(self) -> tuple[Overhead, ...]:
        """Return the tables as a scenario parses them."""
        return profile.OVERHEADS.validate_python(tuple(self.tables))


def fit(teams: Mapping[int, Sequence[RunEvents]], base: Profile = NOTHING) -> OverheadTables:
    """Fit the runs of each number of workers; take what they do not show from `base`."""
    found = OverheadTables()
    for index, (workers, runs) in enumerate(sorted(teams.items())):
        terms = overheads.fit(runs)
        known, errors = at(base.overheads, workers), _standard_errors(base, workers)
        if (step := terms.get("step")) is None:
            raise InputError(
                f"{workers} workers: too few steps to measure what the system adds to one; record "
                "some hundred"
            )
        table = {"workers": workers, "step": profile.law(step.mean, step.spread)}
        sd = {"step": _relative(step)}
        for name in TERMS:
            if name in terms:
                table[name], sd[name] = profile.seconds(terms[name].mean), _relative(terms[name])
            elif getattr(known, name):
                table[name] = profile.seconds(getattr(known, name))
                sd[name] = errors.get(name, 0.0)
        scenario = runs[0].scenario
        if scenario.validation.network != "emulated":
            nominal = Nominal(scenario)
            _take_off_latencies(nominal, terms, table, sd)
            if nominal.headers:
                table["transmission_factor"] = profile.rounded(nominal.mean_factor)
                table["hop_bytes"] = profile.size(nominal.hop_bytes)
                table["message_factor"] = profile.rounded(nominal.message_factor)
        found.tables.append(table)
        for name in list(table)[1:]:
            key = f"overhead.{index}.{name}"
            said = "not shown by these runs" if name in TERMS else "of gloo"
            said = f"mean of {terms[name].samples}" if name in terms else said
            found.comments[key] = f"{Overhead.model_fields[name].description}; {said}"
            if sd.get(name):
                found.sd[key] = sd[name]
    return found


def _take_off_latencies(
    nominal: Nominal, terms: Mapping[str, Term], table: dict[str, Any], sd: dict[str, float]
) -> None:
    """Express the latencies of gloo in those of the scenario; what is left is added on any link.

    A hop of its ring waits for the receiver's word, and so does a question, which goes straight.
    """
    if nominal.latency:
        table["latency_factor"] = profile.rounded(nominal.gloo / nominal.latency)
        table["agree_latencies"] = 2.0
    taken = {"collective": nominal.gloo - nominal.latency, "agree": nominal.question}
    for name in taken.keys() & terms.keys():
        left = max(0.0, terms[name].mean - taken[name])
        table[name], sd[name] = profile.seconds(left), terms[name].se / left if left else 0.0


def _relative(term: Term) -> float:
    return term.se / term.mean if term.mean > 0 else 0.0


def _standard_errors(base: Profile, workers: int) -> dict[str, float]:
    """Return relative standard errors of a profile: for `workers` if measured, else combined."""
    known: Mapping[str, float] = base.tables.get("calibration", {}).get("sd", {})
    tables = base.tables.get("overhead", ())
    found: dict[str, float] = {}
    for index, table in enumerate(tables):
        exact = any(each.get("workers") == workers for each in tables)
        if not exact or table.get("workers") == workers:
            for name in TERMS:
                found[name] = hypot(found.get(name, 0.0), known.get(f"overhead.{index}.{name}", 0))
    return found
