"""From events of real runs to what a real system adds: the terms of [[overhead]].

Every term is a mean over events of one kind: of the time since the node's last event, and of the
event's own time beyond what was prescribed. So nothing is fitted to the duration of whole runs,
which remains a test of the terms.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, hypot, sqrt
from typing import Any

import numpy as np

from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.network.collectives import COLLECTIVES
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.validate.training.events import AGREE, COLLECT, ISSUE, SEND, SERVE, STEP, TAKE, WAIT

WARM_UP = 0.1  # share of the steps that come first and are left out
AT_ONCE = 1e-4  # seconds: a wait that takes no longer found its result ready
TELLING = 0.1  # collectives per step: the least difference between algorithms that separates terms
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
    """A mean (seconds, or a factor) with its standard error, of so many samples.

    `spread`: standard deviation of one sample.
    """

    mean: float
    se: float
    samples: int
    spread: float = 0.0


Array = np.ndarray[Any, Any]
"""Samples: seconds."""


def fit(runs: Sequence[RunEvents]) -> dict[str, Term]:
    """Fit the terms of [[overhead]], by key, to runs with the same number of workers.

    Terms that the runs do not show are left out.
    """
    nodes = [each for run in runs for each in _nodes(run)]
    prescribed = [each for each in nodes if not each.is_real]
    bare = [each for each in nodes if each.is_real]
    servers = [each for each in nodes if each.serves]
    plain = _term(nodes, _Node.between_steps)
    found = {
        **_between(nodes, plain.mean if plain else None),
        "collect": _term(nodes, lambda node: node.lasted(COLLECT)),
        "agree": _term(nodes, _Node.questions),
        "send": _term(servers, lambda node: node.own(SEND)),
        "receive": _term(servers, _Node.services),
        "message": _term(bare, _Node.transits),
    }
    late = _term(prescribed or bare, _Node.late)
    collect = found["collect"]
    if late is not None and collect is not None:
        # a worker that finds its result ready collects it afterwards, one that waits meanwhile
        rest = late.mean - collect.mean
        errors = [late.se, collect.se]
        awake = _term(nodes, _Node.after_waits)
        if awake is not None and plain is not None:  # all wake at once and share the cores
            rest += awake.mean - plain.mean
            errors += [awake.se, plain.se]
        found["collective"] = Term(max(0.0, rest), hypot(*errors), late.samples)
    return {key: term for key, term in found.items() if term is not None}


def _between(nodes: Sequence["_Node"], plain: float | None) -> dict[str, Term | None]:
    """Fit the terms of steps and of starting collectives: own excess, and gaps between events.

    Programs do their arithmetic before a collective or after it, so gaps cannot be assigned by the
    event that follows. Least squares over programs that average more and less often separate them:
    total gaps = steps and collectives times their terms. After a wait only `plain`, the gap between
    two steps, is counted if known: the rest affects only nodes that wait.
    """
    late = _term(nodes, _Node.lateness)
    issued = _term(nodes, lambda node: node.lasted(ISSUE))
    workers = [each for each in nodes if each.count(STEP)]
    rows = np.array([(each.count(STEP), each.count(ISSUE)) for each in workers], float)
    gaps = np.array([each.pauses(plain) for each in workers])
    if late is None:
        return {"step": None, "issue": issued}
    (of_step, of_issue), errors = _solved(rows, gaps)
    step = Term(late.mean + of_step, hypot(late.se, errors[0]), late.samples, late.spread)
    if issued is None:
        return {"step": step, "issue": None}
    issue = Term(issued.mean + of_issue, hypot(issued.se, errors[1]), issued.samples)
    return {"step": step, "issue": issue}


def _solved(rows: Array, gaps: Array) -> tuple[Array, Array]:
    """Solve for seconds of gap per step and per collective, with standard errors (jackknife).

    All of it goes to steps if all nodes average equally often.
    """
    alike = np.ptp(rows[:, 1] / rows[:, 0]) < TELLING

    def solve(chosen: Array) -> Array:
        if alike:
            return np.array([gaps[chosen].sum() / rows[chosen, 0].sum(), 0.0])
        from scipy.optimize import nnls  # noqa: PLC0415 - a fifth of a second

        weights = 1 / rows[chosen, 0]  # long runs and short ones count alike
        return np.asarray(nnls(rows[chosen] * weights[:, None], gaps[chosen] * weights)[0])

    everyone = np.arange(len(rows))
    found = solve(everyone)
    if len(rows) < 3:
        return found, np.zeros(2)
    apart = np.array([solve(np.delete(everyone, one)) for one in everyone])
    n = len(rows)
    return found, np.sqrt((n - 1) / n * ((apart - apart.mean(axis=0)) ** 2).sum(axis=0))


class _Node:
    """Events of one node in one run, in order, without the warm-up."""

    def __init__(self, run: RunEvents, events: np.ndarray, costs: "Nominal") -> None:
        self.is_real = run.scenario.validation.network != "emulated"
        self.serves = bool((events["kind"] == SERVE).any())
        self._costs = costs
        inside = events["kind"] == COLLECT
        apart = np.sort(events[~inside], order="start")
        gaps = np.diff(apart["start"], prepend=np.nan)
        gaps[1:] -= (apart["end"] - apart["start"])[:-1]
        self._inside, self._events, self._gaps = events[inside], apart, gaps

    def _of(self, kind: int) -> tuple[Array, Array]:
        chosen = (self._events["kind"] == kind) & ~np.isnan(self._gaps)
        return self._events[chosen], self._gaps[chosen]

    def count(self, kind: int) -> int:
        """Return the number of events of a kind."""
        return len(self._of(kind)[0])

    def pauses(self, plain: float | None) -> float:
        """Return total seconds before steps and collectives, `plain` each after a wait if known."""
        mine = np.isin(self._events["kind"], (STEP, ISSUE, WAIT)) & ~np.isnan(self._gaps)
        gaps = self._gaps if plain is None else np.where(self._waited, plain, self._gaps)
        return float(gaps[mine].sum())

    @property
    def _waited(self) -> Array:
        """Whether the event before each was a wait for a result that was not ready."""
        waits = self._events["kind"] == WAIT
        waits &= self._events["end"] - self._events["start"] > AT_ONCE
        return np.append(False, waits[:-1])

    def between_steps(self) -> Array:
        """Return seconds between consecutive steps."""
        steps = self._events["kind"] == STEP
        return np.asarray(self._gaps[1:][steps[1:] & steps[:-1]])

    def after_waits(self) -> Array:
        """Return seconds between the end of a wait and the next event."""
        return np.asarray(self._gaps[self._waited])

    def own(self, kind: int) -> Array:
        """Return seconds of events and of the gaps before them."""
        events, gaps = self._of(kind)
        return np.asarray(gaps + events["end"] - events["start"])

    def lasted(self, kind: int) -> Array:
        """Return seconds of events, including those within others."""
        events = np.concatenate([self._inside, self._events])
        events = events[events["kind"] == kind]
        return np.asarray(events["end"] - events["start"])

    def lateness(self) -> Array:
        """Return seconds of steps beyond what was drawn."""
        events, _ = self._of(STEP)
        return np.asarray(np.nan_to_num(events["end"] - events["due"]))

    def late(self) -> Array:
        """Return by how many seconds collectives were later than prescribed, for nodes that waited.

        Without emulated delays all of it is real, and the last node to join waited, too.
        """
        events, _ = self._of(WAIT)
        if not self.is_real:
            return np.asarray((events["end"] - events["due"])[events["due"] > events["start"]])
        prescribed = np.array([self._costs.mean(size) for size in events["bytes"]])
        waited = self._landed(events) - events["start"] > AT_ONCE
        if self._costs.staggered and (last := waited & self._joined_last(events)).any():
            waited = last
        return np.asarray((events["end"] - events["due"] - prescribed)[waited])

    def _joined_last(self, waits: Array) -> Array:
        """Return which waits are for collectives that this node was the last to join.

        It has the result last: the others have it sooner (`ClosedForm.ahead`).
        """
        issues = self._events[self._events["kind"] == ISSUE]
        before = np.searchsorted(issues["start"], waits["start"], side="right") - 1
        own = issues[before] if len(issues) else waits
        within = (own["start"] - AT_ONCE <= waits["joined"]) & (waits["joined"] <= own["end"])
        return np.asarray(within & (before >= 0))

    def _landed(self, waits: Array) -> Array:
        """Return when the results of waits were ready, or the start of the wait if before it."""
        landings = np.sort(self._inside["start"])
        following = np.searchsorted(landings, waits["start"])
        known = np.append(landings, np.inf)[following]
        return np.where(known <= waits["end"], known, waits["start"])

    def questions(self) -> Array:
        """Return seconds from the last node's question to the answer."""
        events, gaps = self._of(AGREE)
        return np.asarray(gaps + events["end"] - events["joined"])

    def transits(self) -> Array:
        """Return seconds of messages in transit, beyond what is prescribed."""
        events, _ = self._of(TAKE)
        prescribed = [self._costs.message(size) for size in events["bytes"]]
        return np.asarray(events["due"] - events["joined"] - np.array(prescribed))

    def services(self) -> Array:
        """Return the server's seconds per message received and served, beyond those prescribed."""
        events, gaps = self._of(TAKE)
        taken = gaps + events["end"] - np.fmax(events["start"], events["due"])
        served, pauses = self._of(SERVE)
        more = float((pauses + served["end"] - served["due"]).sum())
        return np.asarray(taken + more / max(len(taken), 1))


def gloo_bytes(payload: float, workers: int) -> float:
    """Return the bytes that a mean by gloo occupies a link with, relative to the payload's share.

    A segment of 1/(2m) has a header, and is announced in a packet of its own. Between two workers
    the link has the other direction's words that a receiver is ready, and acknowledgements, too.
    """
    segment = payload / (2 * workers)
    packets = ceil((segment + GLOO) / (PACKET - TCP))
    apart = 1 if workers > 2 else 2 + packets / 2 * TCP / (GLOO + TCP)
    return (segment + GLOO + packets * TCP + apart * (GLOO + TCP)) / segment


def message_bytes(size: float) -> float:
    """Return the bytes that a message occupies a link with, relative to its payload.

    With what acknowledges a message that travels the other way meanwhile.
    """
    packets = ceil((size + GLOO) / (PACKET - TCP))
    return (size + 2 * GLOO + (1.5 * packets + 1) * TCP) / size


class Nominal:
    """Expected seconds that a scenario prescribes without emulation, by bytes.

    `latency`: seconds of an all-reduce of 0 bytes; `hops`: the number of link latencies in it;
    `gloo`: seconds of those in gloo's ring, whatever the scenario's collective; `question`: of two.
    `headers`: whether payloads travel with headers that the scenario does not prescribe, by which
    they occupy links longer by `mean_factor` and `message_factor`. `staggered`: whether workers
    have a mean at times of their own.
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
        self.question = 2 * network.hop
        self._link = network.link(0, network.workers)
        kernel = scenario.validation.network == "kernel"
        self.headers = kernel and scenario.network.transport == "ideal"
        self.mean_factor = gloo_bytes(network.model_bytes, network.workers)
        self.message_factor = message_bytes(network.model_bytes) if self.headers else 1.0

    def mean(self, size: float) -> float:
        """Return seconds of an all-reduce of `size` bytes."""
        way = self._network.way("mean", size, None)
        return sum(way.spend(self._held * size, self.latency))

    def message(self, size: float) -> float:
        """Return seconds of a message of `size` bytes to the server."""
        return self._link.latency + size * self.message_factor / self._link.bandwidth


def _nodes(run: RunEvents) -> Iterator[_Node]:
    costs = Nominal(run.scenario)
    for rank in np.unique(run.events["node"]):
        events = run.events[run.events["node"] == rank]
        yield _Node(run, events[events["step"] > WARM_UP * events["step"].max()], costs)


def _term(nodes: Sequence[_Node], samples: Callable[[_Node], np.ndarray]) -> Term | None:
    """Average samples over all nodes; the error comes from means of blocks of neighbours."""
    each = [found for found in map(samples, nodes) if len(found)]
    if not each:
        return None
    together = np.concatenate(each)
    blocks = [part.mean() for own in each for part in np.array_split(own, BLOCKS) if len(part)]
    error = float(np.std(blocks, ddof=1) / sqrt(len(blocks))) if len(blocks) > 1 else 0.0
    spread = float(together.std(ddof=1)) if len(together) > 1 else 0.0
    return Term(float(together.mean()), error, len(together), spread)
