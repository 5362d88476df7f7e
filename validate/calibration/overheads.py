"""Fit the terms of [[overhead]] to events of real runs.

Every term is a mean over events of one kind: of the time since the node's last event, or of the
event's duration beyond the prescribed one. Nothing is fitted to the duration of whole runs, so it
remains a test of the terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, hypot, sqrt
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.network.collectives import COLLECTIVES
from paceline.simulator.scenario.overhead import NO_PASSAGE, Overhead, at
from paceline.simulator.scenario.scenario import Algorithm, Scenario

from ..training.events import AGREE, COLLECT, ISSUE, SEND, SERVE, STEP, TAKE, WAIT
from . import profile
from .independence import jackknife
from .profile import Profile

TERMS = ("issue", "collect", "collective", "agree", "send", "message", "receive")
NOTHING = Profile({})
WARM_UP = 0.1  # share of the steps, at the start, that are left out
AT_ONCE = 1e-4  # seconds of a wait up to which its result counts as ready beforehand
TELLING = 0.1  # least difference of collectives per step between algorithms that separates terms
GLOO, TCP, PACKET = 48, 52, 1500  # bytes of headers (gloo/transport/tcp/pair.h; RFC 9293, 7323)
BLOCKS = 8  # of a node's events in order, whose means are nearly independent, unlike events


@dataclass(frozen=True)
class RunEvents:
    """One real run. `events`: of dtype `training.events.EVENT`."""

    scenario: Scenario
    algorithm: Algorithm
    seed: int
    events: np.ndarray


@dataclass(frozen=True)
class Term:
    """A mean (seconds, or a factor) of `samples` samples.

    `se`: its standard error; `spread`: standard deviation of one sample.
    """

    mean: float
    se: float
    samples: int
    spread: float = 0.0


Array = np.ndarray[Any, Any]
"""Samples: seconds."""


def fit(runs: Sequence[RunEvents]) -> dict[str, Term]:
    """Fit the terms of [[overhead]], by key, to runs with the same number of workers.

    Terms that the runs do not contain are left out.
    """
    nodes = []
    for run in runs:
        costs = Nominal(run.scenario)
        for rank in np.unique(run.events["node"]):
            events = run.events[run.events["node"] == rank]
            nodes.append(_Node(run, events[events["step"] > WARM_UP * events["step"].max()], costs))
    bare = [node for node in nodes if node.is_real]
    servers = [node for node in nodes if node.serves]
    plain = _term(nodes, "plain")
    terms = {
        **_between(nodes, plain.mean if plain else None),
        "collect": _term(nodes, "collect"),
        "agree": _term(nodes, "agree"),
        "send": _term(servers, "send"),
        "receive": _term(servers, "receive"),
        "message": _term(bare, "message"),
    }
    late = _term([node for node in nodes if not node.is_real] or bare, "late")
    collect = terms["collect"]
    if late is not None and collect is not None:
        # a waiting worker collects its result during the wait, others after it
        rest = late.mean - collect.mean
        errors = [late.se, collect.se]
        awake = _term(nodes, "awake")
        if awake is not None and plain is not None:  # all workers wake together and share the cores
            rest += awake.mean - plain.mean
            errors += [awake.se, plain.se]
        terms["collective"] = Term(max(0.0, rest), hypot(*errors), late.samples)
    return {key: term for key, term in terms.items() if term is not None}


def _between(nodes: Sequence["_Node"], plain: float | None) -> dict[str, Term | None]:
    """Fit the terms of steps and of starting collectives, which least squares separate."""
    # Programs do their arithmetic before or after a collective, so the next event does not tell
    # whose a gap is. After a wait only `plain` counts, because the rest affects waiting nodes only.
    late, issued = _term(nodes, "step"), _term(nodes, "issue")
    workers = [node for node in nodes if node.count(STEP)]
    rows = np.array([(worker.count(STEP), worker.count(ISSUE)) for worker in workers], float)
    gaps = np.array([worker.pauses(plain) for worker in workers])
    if late is None:
        return {"step": None, "issue": issued}
    (of_step, of_issue), errors = _solved(rows, gaps)
    step = Term(late.mean + of_step, hypot(late.se, errors[0]), late.samples, late.spread)
    if issued is not None:
        issued = Term(issued.mean + of_issue, hypot(issued.se, errors[1]), issued.samples)
    return {"step": step, "issue": issued}


def _solved(rows: Array, gaps: Array) -> tuple[Array, Array]:
    """Return seconds of gap per step and collective, with errors; steps get the inseparable."""
    from scipy.optimize import nnls  # noqa: PLC0415 - a fifth of a second

    inseparable = np.ptp(rows[:, 1] / rows[:, 0]) < TELLING

    def solve(chosen: Array) -> Array:
        if inseparable:
            return np.array([gaps[chosen].sum() / rows[chosen, 0].sum(), 0.0])
        weights = 1 / rows[chosen, 0]  # long and short runs count equally
        return np.asarray(nnls(rows[chosen] * weights[:, None], gaps[chosen] * weights)[0])

    count = len(rows)
    errors = np.diag(jackknife(solve, np.arange(count))) ** 0.5 if count > 2 else np.zeros(2)
    return solve(np.ones(count, bool)), errors


class _Node:
    """Events of one node in one run, in order, without the warm-up.

    `samples`: seconds by key of [[overhead]]; besides "plain", between two steps; "awake", between
    the end of a wait and the next event; "late", the delay of an awaited collective beyond the
    prescribed time. Without emulated delays nothing is prescribed, and the last node to join also
    waited.
    """

    def __init__(self, run: RunEvents, events: np.ndarray, costs: "Nominal") -> None:
        self.is_real = run.scenario.validation.network != "emulated"
        self.serves = bool((events["kind"] == SERVE).any())
        inside = events[events["kind"] == COLLECT]
        apart = np.sort(events[events["kind"] < COLLECT], order="start")  # the rest are parts
        lasted = apart["end"] - apart["start"]
        gaps = np.diff(apart["start"], prepend=np.nan)
        gaps[1:] -= lasted[:-1]
        # whether the previous event was a wait for a result that was not ready
        self._waited = np.append(False, (apart["kind"] == WAIT) & (lasted > AT_ONCE))[:-1]
        kinds = STEP, ISSUE, WAIT, SEND, AGREE, TAKE, SERVE
        self._of = of = {kind: (apart["kind"] == kind) & ~np.isnan(gaps) for kind in kinds}
        self._gaps = gaps
        computed, _, waits, sent, questions, took, served = (apart[value] for value in of.values())
        issued = apart[apart["kind"] == ISSUE]
        late = waits["end"] - waits["due"]
        if self.is_real:
            prescribed = np.array([costs.mean(size) for size in waits["bytes"]])
            ready = _landed(waits, np.sort(inside["start"])) - waits["start"] > AT_ONCE
            if costs.staggered and (last := ready & _joined_last(waits, issued)).any():
                ready = last
            late = (late - prescribed)[ready]
        else:
            late = late[waits["due"] > waits["start"]]
        # the server's work is spread over its messages
        more = float((gaps[of[SERVE]] + served["end"] - served["due"]).sum()) / max(len(took), 1)
        busy = gaps[of[TAKE]] + took["end"] - np.fmax(took["start"], took["due"])
        transits = np.array([costs.message(size) for size in took["bytes"]])
        steps = apart["kind"] == STEP
        self.samples = {
            "plain": gaps[1:][steps[1:] & steps[:-1]],
            "awake": gaps[self._waited],
            "step": np.nan_to_num(computed["end"] - computed["due"]),
            "issue": issued["end"] - issued["start"],
            "collect": inside["end"] - inside["start"],
            "late": late,
            "agree": gaps[of[AGREE]] + questions["end"] - questions["joined"],
            "send": gaps[of[SEND]] + sent["end"] - sent["start"],
            "message": took["due"] - took["joined"] - transits,
            "receive": busy + more,
        }

    def count(self, kind: int) -> int:
        """Return the number of events of a kind."""
        return int(self._of[kind].sum())

    def pauses(self, plain: float | None) -> float:
        """Return the total gap (s) before steps and collectives."""
        mine = self._of[STEP] | self._of[ISSUE] | self._of[WAIT]
        gaps = self._gaps if plain is None else np.where(self._waited, plain, self._gaps)
        return float(gaps[mine].sum())


def _landed(waits: Array, landings: Array) -> Array:
    """Return when results were ready (s), or when their wait began if that is later."""
    times = np.append(landings, np.inf)[np.searchsorted(landings, waits["start"])]
    return np.where(times <= waits["end"], times, waits["start"])


def _joined_last(waits: Array, issued: Array) -> Array:
    """Mark waits for collectives that this node joined, and thus got, last."""
    before = np.searchsorted(issued["start"], waits["start"], side="right") - 1
    starts = issued[before] if len(issued) else waits
    within = (starts["start"] - AT_ONCE <= waits["joined"]) & (waits["joined"] <= starts["end"])
    return np.asarray(within & (before >= 0))


def gloo_bytes(segment: float, workers: int) -> float:
    """Return the bytes of a segment of gloo's ring on a link, with all headers.

    A segment has a header, and is announced in a separate packet. Between two workers the link also
    carries the other direction's notifications that a receiver is ready, and acknowledgements.
    """
    packets = ceil((segment + GLOO) / (PACKET - TCP))
    apart = 1 if workers > 2 else 2 + packets / 2 * TCP / (GLOO + TCP)
    return segment + GLOO + packets * TCP + apart * (GLOO + TCP)


def message_bytes(size: float) -> float:
    """Return the bytes of a message on a link, relative to its payload.

    They include acknowledgements of a message in the other direction.
    """
    packets = ceil((size + GLOO) / (PACKET - TCP))
    return (size + 2 * GLOO + (1.5 * packets + 1) * TCP) / size


class Nominal:
    """Expected seconds that a scenario prescribes without emulation, by bytes.

    `latency`: seconds of an all-reduce of 0 bytes; `hops`: the number of link latencies in it;
    `gloo`: latency of gloo's ring, whatever the scenario's collective; `question`: seconds of a
    poll of all workers. `headers`: whether payloads have headers that the scenario does not
    prescribe. They lengthen transmissions by `mean_factor` and `message_factor`, and by `hop_bytes`
    per hop, those of two empty segments. `staggered`: whether workers get a mean at different
    times.
    """

    def __init__(self, scenario: Scenario) -> None:
        network = ClosedForm(scenario.nominal)
        plan = network.mean_plan
        self._held, self.latency, self.hops = plan.held, plan.latency, plan.hops
        self.staggered = network.staggered
        team = tuple(range(network.workers))
        self.gloo = self.latency  # a library's own latencies are prescribed already
        if scenario.network.library == "ideal" and len(team) > 1:
            self.gloo = 2 * COLLECTIVES["ring"].formula(network, team).latency
        self._network = network
        self._link = network.link(0, network.workers)
        kernel = scenario.validation.network == "kernel"
        self.headers = kernel and scenario.network.transport == "ideal"
        segment, bare = network.model_bytes / (2 * len(team)), gloo_bytes(0.0, len(team))
        self.mean_factor = (gloo_bytes(segment, len(team)) - bare) / segment
        self.hop_bytes = 2 * bare
        added = self.hop_bytes / network.mean_plan.rate if self.headers else 0.0
        self.question = 2 * network.word + added
        self.message_factor = message_bytes(network.model_bytes) if self.headers else 1.0

    def mean(self, size: float) -> float:
        """Return seconds of an all-reduce of `size` bytes."""
        way = self._network.way("mean", size, None)
        return sum(way.cost(Overhead(), self._held * size, self.latency, NO_PASSAGE))

    def message(self, size: float) -> float:
        """Return seconds of a message of `size` bytes to the server."""
        return self._link.latency + size * self.message_factor / self._link.bandwidth


def _term(nodes: Sequence[_Node], key: str) -> Term | None:
    """Average samples over nodes; means of blocks give the error."""
    samples = [node.samples[key] for node in nodes if len(node.samples[key])]
    if not samples:
        return None
    together = np.concatenate(samples)
    blocks = [part.mean() for rows in samples for part in np.array_split(rows, BLOCKS) if len(part)]
    error = float(np.std(blocks, ddof=1) / sqrt(len(blocks))) if len(blocks) > 1 else 0.0
    spread = float(together.std(ddof=1)) if len(together) > 1 else 0.0
    return Term(float(together.mean()), error, len(together), spread)


@dataclass(frozen=True)
class OverheadTables:
    """The [[overhead]] tables by number of workers; `sd`: relative standard errors."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    sd: dict[str, float] = field(default_factory=dict)

    @property
    def parsed(self) -> tuple[Overhead, ...]:
        """Return the tables as a scenario parses them."""
        return Profile({"overhead": self.tables}).overheads


def tables(teams: Mapping[int, Sequence[RunEvents]], base: Profile = NOTHING) -> OverheadTables:
    """Fit the runs of each number of workers; take missing terms from `base`."""
    fitted = OverheadTables()
    for index, (workers, runs) in enumerate(sorted(teams.items())):
        terms = fit(runs)
        costs, errors = at(base.overheads, workers), _standard_errors(base, workers)
        if (step := terms.get("step")) is None:
            raise InputError(
                f"{workers} workers: too few steps to measure what the system adds to one; record "
                "some hundreds"
            )
        table = {"workers": workers, "step": profile.law(step.mean, step.spread)}
        sd = {"step": _relative(step)}
        for name in TERMS:
            if name in terms:
                table[name] = profile.seconds(max(0.0, terms[name].mean))
                sd[name] = _relative(terms[name])
            elif getattr(costs, name):
                table[name] = profile.seconds(getattr(costs, name))
                sd[name] = errors.get(name, 0.0)
        scenario = runs[0].scenario
        if scenario.validation.network != "emulated":
            nominal = Nominal(scenario)
            _take_off_latencies(nominal, terms, table, sd)
            if nominal.headers:
                table["transmission_factor"] = profile.rounded(nominal.mean_factor)
                table["hop_bytes"] = profile.size(nominal.hop_bytes)
                table["message_factor"] = profile.rounded(nominal.message_factor)
        fitted.tables.append(table)
        fitted.sd.update({f"overhead.{index}.{name}": error for name, error in sd.items() if error})
    return fitted


def _take_off_latencies(
    nominal: Nominal, terms: Mapping[str, Term], table: dict[str, Any], sd: dict[str, float]
) -> None:
    """Express gloo's latencies by the scenario's, and subtract them from terms."""
    if nominal.latency:
        table["latency_factor"] = profile.rounded(nominal.gloo / nominal.latency)
        table["agree_latencies"] = 2.0
    latencies = {"collective": nominal.gloo - nominal.latency, "agree": nominal.question}
    for name in latencies.keys() & terms.keys():
        rest = max(0.0, terms[name].mean - latencies[name])
        table[name], sd[name] = profile.seconds(rest), terms[name].se / rest if rest else 0.0


def _relative(term: Term) -> float:
    return term.se / term.mean if term.mean > 0 else 0.0


def _standard_errors(base: Profile, workers: int) -> dict[str, float]:
    """Return a profile's relative standard errors for a number of workers."""
    stated: Mapping[str, float] = base.tables.get("calibration", {}).get("sd", {})
    counts = [table.get("workers") for table in base.tables.get("overhead", ())]
    used = [n for n, count in enumerate(counts) if count == workers or workers not in counts]
    return {name: hypot(*(stated.get(f"overhead.{n}.{name}", 0.0) for n in used)) for name in TERMS}
