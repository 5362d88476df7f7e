"""From what the nodes of real runs did to what a real system adds: the terms of [[overhead]].

Every term is a mean over events of one kind: of the time since the node's last event, and of what
the event itself took beyond what was prescribed. So nothing is fitted to how long a run was as a
whole, and that can test the terms.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any

import numpy as np

from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.validate.training.events import AGREE, COLLECT, ISSUE, SEND, SERVE, STEP, TAKE, WAIT

WARM_UP = 0.1  # share of the steps that come first and are left out
AT_ONCE = 1e-4  # seconds: a result that takes no longer was there
TELLING = 0.1  # collectives a step: programs that differ by less tell nothing apart
BLOCKS = 8  # of a node's events in order: their means are nearly independent, as events are not


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
    """The terms that these runs, all with as many workers, show: by the keys of [[overhead]].

    Terms of which they say nothing are left out.
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
        "message": _term(bare, _Node.ways),
    }
    late = _term(prescribed or bare, _Node.late)
    collect = found["collect"]
    if late is not None and collect is not None:
        # who finds a result there takes it over afterwards, who waits meanwhile
        rest = late.mean - collect.mean
        errors = [late.se, collect.se]
        awake = _term(nodes, _Node.after_waits)
        if awake is not None and plain is not None:  # all wake up at once, and share the cores
            rest += awake.mean - plain.mean
            errors += [awake.se, plain.se]
        found["collective"] = Term(max(0.0, rest), hypot(*errors), late.samples)
    return {key: term for key, term in found.items() if term is not None}


def _between(nodes: Sequence["_Node"], plain: float | None) -> dict[str, Term | None]:
    """Of steps, and of starting collectives: their own excess, and what lies between events.

    A program does its arithmetic now before a collective and now after it, so that gaps cannot be
    told apart by what they come before. Programs that average more and less often tell them: their
    gaps are those of so many steps and so many collectives, by least squares. After a wait only
    `plain` is counted, what lies between two steps, if any do: the rest has only who waits.
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
    """Seconds between events for each step and each collective, with their standard errors.

    All of it is the steps' where nobody averages more often than another. Errors by leaving out
    one node after another.
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
    """The events of one node in one run, without the warm-up, in order."""

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
        """How many events of a kind there are."""
        return len(self._of(kind)[0])

    def pauses(self, plain: float | None) -> float:
        """Seconds before steps and collectives, all together; after a wait `plain`, if known."""
        mine = np.isin(self._events["kind"], (STEP, ISSUE, WAIT)) & ~np.isnan(self._gaps)
        gaps = self._gaps if plain is None else np.where(self._waited, plain, self._gaps)
        return float(gaps[mine].sum())

    @property
    def _waited(self) -> Array:
        """Whether the event before each was a wait for what was not there yet."""
        waits = self._events["kind"] == WAIT
        waits &= self._events["end"] - self._events["start"] > AT_ONCE
        return np.append(False, waits[:-1])

    def between_steps(self) -> Array:
        """What lies between two steps that follow each other."""
        steps = self._events["kind"] == STEP
        return np.asarray(self._gaps[1:][steps[1:] & steps[:-1]])

    def after_waits(self) -> Array:
        """What lies between the end of a wait and the next event."""
        return np.asarray(self._gaps[self._waited])

    def own(self, kind: int) -> Array:
        """All of an event, and the time before it."""
        events, gaps = self._of(kind)
        return np.asarray(gaps + events["end"] - events["start"])

    def lasted(self, kind: int) -> Array:
        """What an event took, also one within another."""
        events = np.concatenate([self._inside, self._events])
        events = events[events["kind"] == kind]
        return np.asarray(events["end"] - events["start"])

    def lateness(self) -> Array:
        """What steps took beyond what was drawn."""
        events, _ = self._of(STEP)
        return np.asarray(np.nan_to_num(events["end"] - events["due"]))

    def late(self) -> Array:
        """How much later than prescribed collectives were there, for those who waited for them.

        Where nobody emulates delays, all of it is real, and whoever came last waited, too.
        """
        events, _ = self._of(WAIT)
        if not self.is_real:
            return np.asarray((events["end"] - events["due"])[events["due"] > events["start"]])
        prescribed = np.array([self._costs.mean(size) for size in events["bytes"]])
        waited = self._landed(events) - events["start"] > AT_ONCE
        return np.asarray((events["end"] - events["due"] - prescribed)[waited])

    def _landed(self, waits: Array) -> Array:
        """When the results of waits were there; their start where they had been before."""
        landings = np.sort(self._inside["start"])
        following = np.searchsorted(landings, waits["start"])
        known = np.append(landings, np.inf)[following]
        return np.where(known <= waits["end"], known, waits["start"])

    def questions(self) -> Array:
        """What answers took since the last node had asked."""
        events, gaps = self._of(AGREE)
        return np.asarray(gaps + events["end"] - events["joined"])

    def ways(self) -> Array:
        """What messages took on their way, beyond what is prescribed."""
        events, _ = self._of(TAKE)
        prescribed = [self._costs.message(size) for size in events["bytes"]]
        return np.asarray(events["due"] - events["joined"] - np.array(prescribed))

    def services(self) -> Array:
        """What taking a message over and serving it took the server beyond what is prescribed."""
        events, gaps = self._of(TAKE)
        taken = gaps + events["end"] - np.fmax(events["start"], events["due"])
        served, pauses = self._of(SERVE)
        more = float((pauses + served["end"] - served["due"]).sum())
        return np.asarray(taken + more / max(len(taken), 1))


class Nominal:
    """What a scenario prescribes where nothing emulates it: expected seconds by bytes.

    `latency`: what a mean takes however small it is; `hops`: latencies that are in it.
    """

    def __init__(self, scenario: Scenario) -> None:
        network = ClosedForm(scenario.nominal)
        self._held = network.mean_plan.held
        path = network.mean_plan.path
        self.latency = sum(link.latency * hops for link, hops in path.items())
        self.hops = sum(path.values())
        self._way = network.link(0, network.workers)

    def mean(self, size: float) -> float:
        """Of a mean."""
        return self._held * size + self.latency

    def message(self, size: float) -> float:
        """Of a message to the server."""
        return self._way.latency + size / self._way.bandwidth


def _nodes(run: RunEvents) -> Iterator[_Node]:
    costs = Nominal(run.scenario)
    for rank in np.unique(run.events["node"]):
        events = run.events[run.events["node"] == rank]
        yield _Node(run, events[events["step"] > WARM_UP * events["step"].max()], costs)


def _term(nodes: Sequence[_Node], samples: Callable[[_Node], np.ndarray]) -> Term | None:
    """The mean of samples of all nodes; its error from the means of blocks of neighbours."""
    each = [found for found in map(samples, nodes) if len(found)]
    if not each:
        return None
    together = np.concatenate(each)
    blocks = [part.mean() for own in each for part in np.array_split(own, BLOCKS) if len(part)]
    error = float(np.std(blocks, ddof=1) / sqrt(len(blocks))) if len(blocks) > 1 else 0.0
    spread = float(together.std(ddof=1)) if len(together) > 1 else 0.0
    return Term(float(together.mean()), error, len(together), spread)
