"""List collectives by their names in [network], with formulas and messages.

To add a collective, add its name to `scenario.network.CollectiveName` and one entry to
`COLLECTIVES`; the two network models, the checks and the reports follow from the entry.

m is the number of workers of the team. Both descriptions of a collective must move the same bytes
over every link, and take the same time on equal links with no other traffic
(tests/network/test_collectives.py).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from ..distributions.law import Law
from ..scenario.network import CollectiveName
from .fabric.messages import MessageBuilder, Messages, Team

Regions = Sequence[object]
"""The region of each worker, by rank."""


@dataclass(frozen=True)
class RegionPath:
    """One direction between two places, for any number of concurrent transfers.

    `name`: "from->to". `laws`: a hop's latency (s) is the sum of one draw from every law.
    `bandwidth`: bytes/s of one transfer, inf: unlimited. `out`, `into`: total bytes/s that the
    source can send, and the destination receive.
    """

    name: str
    laws: tuple[Law, ...]
    bandwidth: float
    out: float
    into: float

    @property
    def latency(self) -> float:
        """Expected seconds of one hop."""
        return sum(law.expectation for law in self.laws)

    @property
    def is_constant(self) -> bool:
        """Whether every hop takes the same time."""
        return all(law.is_constant for law in self.laws)

    def sample(self, rng: np.random.Generator, hops: int) -> float:
        """Draw the time (s) of `hops` consecutive hops."""
        return float(sum(law.sample(rng, hops).sum() for law in self.laws))


RegionLinks = Any
"""A `closed_form.ClosedForm`, whose `link`, `regions` and `card` a formula uses."""


@dataclass(frozen=True)
class CollectivePlan:
    """The cost of a collective in closed form, per byte of its payload.

    `path`: hops on the critical path, by link; every hop draws the link's latency. `held`: seconds
    per payload byte that the collective occupies the workers' links. `moved`: bytes over each
    link, by name, per payload byte. `ring`: number of workers in a ring that a double tree could
    replace; else 1.
    """

    path: dict[RegionPath, int]
    held: float
    moved: dict[str, float]
    ring: int = 1

    @cached_property
    def hops(self) -> int:
        """Number of hops on the path."""
        return sum(self.path.values())

    @cached_property
    def rate(self) -> float:
        """Bytes per second of the slowest link on the path."""
        return min((link.bandwidth for link in self.path), default=inf)

    @property
    def latency(self) -> float:
        """Expected seconds of all hops on the path."""
        return sum(link.latency * hops for link, hops in self.path.items())


NOTHING_SENT = CollectivePlan({}, 0.0, {})


@dataclass(frozen=True)
class CollectiveKind:
    """One collective; `formula` needs two workers or more, `messages` any team.

    `messages` is None if only the closed form supports the collective: through the server, or by
    [network].duration. `needs_regions`: every worker must be in a region.
    """

    formula: Callable[[RegionLinks, Team], CollectivePlan]
    messages: Callable[[MessageBuilder, Team, Regions], Any] | None
    needs_regions: bool = False


# Around a ring


def around(links: RegionLinks, team: Team, hops: int, volume: float) -> CollectivePlan:
    """Cost `hops` steps around a ring that move `volume` payloads over each link.

    Steps overlap around the ring, so the slowest link sets the time per step, and the `hops`
    consecutive links with the largest sum of latencies are the critical path.
    """
    ring = [links.link(a, b) for a, b in pairwise([*team, team[0]])]
    laps, rest = divmod(hops, len(ring))
    sums = np.cumsum([0.0, *(link.latency for link in ring + ring)])
    first = int(np.argmax(sums[rest : rest + len(ring)] - sums[: len(ring)]))
    worst = Counter({link: times * laps for link, times in Counter(ring).items() if laps})
    worst.update((ring + ring)[first : first + rest])
    held = volume / min(link.bandwidth for link in ring)
    return CollectivePlan(dict(worst), held, _volumes((link, volume) for link in ring))


def _volumes(used: Iterable[tuple[RegionPath, float]]) -> dict[str, float]:
    """Sum the payloads that pass each link, by name."""
    moved: defaultdict[str, float] = defaultdict(float)
    for link, volume in used:
        moved[link.name] += volume
    return dict(moved)


def _ring_plan(links: RegionLinks, team: Team) -> CollectivePlan:
    m = len(team)
    return replace(around(links, team, 2 * (m - 1), 2 * (m - 1) / m), ring=m)


def _ring(builder: MessageBuilder, team: Team, _regions: Regions) -> None:
    """Reduce-scatter and all-gather in 2(m - 1) steps of 1/m (Patarasuk & Yuan 2009)."""
    builder.ring(team, 2, 1 / len(team))


def gather_plan(links: RegionLinks, team: Team) -> CollectivePlan:
    """Cost an all-gather, the same for all collectives of [network]."""
    return around(links, team, len(team) - 1, float(len(team) - 1))


def gather(team: Team) -> Messages:
    """Pass all payloads to all workers around the ring, in m - 1 steps."""
    builder = MessageBuilder()
    builder.ring(team, 1, 1.0, passing_on=True)
    return builder.messages()


# Through the first worker


def _star_plan(links: RegionLinks, team: Team) -> CollectivePlan:
    """Cost a first worker that receives m - 1 payloads, and sends m - 1 answers."""
    spokes = [links.link(rank, team[0]) for rank in team[1:]]
    back = [links.link(team[0], rank) for rank in team[1:]]
    reduce = max(sum(1 / link.into for link in spokes), *(1 / link.bandwidth for link in spokes))
    broadcast = max(sum(1 / link.out for link in back), *(1 / link.bandwidth for link in back))
    worst = max(spokes, key=lambda link: link.latency)
    moved = _volumes((link, 1) for pair in zip(spokes, back, strict=True) for link in pair)
    return CollectivePlan({worst: 2}, reduce + broadcast, moved)


def _star(builder: MessageBuilder, team: Team, _regions: Regions) -> None:
    """Send all payloads to the first worker at once, then all answers at once."""
    head, *rest = team
    arrived = builder.add([(rank, head) for rank in rest], 1.0, [[]] * len(rest))
    builder.add([(head, rank) for rank in rest], 1.0, [arrived] * len(rest))


def server_plan(links: RegionLinks, team: Team, duplex: bool = False) -> CollectivePlan:
    """Cost a server that receives m payloads and sends the mean to all workers.

    Workers have separate lines, of which the slowest counts; all payloads pass the server's
    network card. `duplex`: part of the mean returns while the rest is still on its way.
    """
    server, card = len(links.regions), len(team) / links.card
    up = [links.link(rank, server) for rank in team]
    down = [links.link(server, rank) for rank in team]
    ways = [max(card, *(1 / link.bandwidth for link in way)) for way in (up, down)]
    held = max(ways) if duplex else sum(ways)
    slowest = Counter(max(way, key=lambda link: link.latency) for way in (up, down))
    return CollectivePlan(dict(slowest), held, _volumes((link, 1) for link in up + down))


# By regions


def _hierarchical_plan(links: RegionLinks, team: Team) -> CollectivePlan:
    """Cost rings in all regions, a ring of first workers, and pipelines back."""
    parts = _by_region(team, links.regions)
    several = [part for part in parts if len(part) > 1]
    phases = [[_ring_plan(links, part) for part in several]]
    if len(parts) > 1:
        phases.append([_ring_plan(links, [part[0] for part in parts])])
        phases.append([_pipeline_plan(links, part) for part in several])
    path: Counter[RegionPath] = Counter()
    held, moved = 0.0, Counter[str]()
    for phase in filter(None, phases):
        path.update(max(phase, key=lambda plan: plan.latency).path)
        held += max(plan.held for plan in phase)
        for plan in phase:
            moved.update(plan.moved)
    return CollectivePlan(dict(path), held, dict(moved))


def _pipeline_plan(links: RegionLinks, team: Team) -> CollectivePlan:
    """Cost a chain through all workers: m - 1 hops of one payload."""
    chain = Counter(links.link(a, b) for a, b in pairwise(team))
    moved = {link.name: float(hops) for link, hops in chain.items()}
    return CollectivePlan(dict(chain), 1 / min(link.bandwidth for link in chain), moved)


def _hierarchical(builder: MessageBuilder, team: Team, regions: Regions) -> None:
    """Send around rings in regions, around the first workers, then along chains."""
    parts = _by_region(team, regions)
    if len(parts) == 1:
        builder.ring(team, 2, 1 / len(team))
        return
    for part in parts:
        builder.last[part[0]] = builder.ring(part, 2, 1 / len(part))
    heads = [part[0] for part in parts]
    builder.ring(heads, 2, 1 / len(heads))
    for part in parts:
        if len(part) > 1:
            builder.add([tuple(part)], 1.0, [builder.last[part[0]]])


def _by_region(team: Team, regions: Regions) -> list[list[int]]:
    """Split a team by region, in order of the regions' first workers."""
    parts: dict[object, list[int]] = {}
    for rank in team:
        parts.setdefault(regions[rank], []).append(rank)
    return list(parts.values())


# Along a binomial tree


def _tree_rounds(team: Team) -> list[list[tuple[int, int]]]:
    """Return rounds of messages (sender, receiver): up a binomial tree, then down."""
    m = len(team)
    reach = [2**level for level in range((m - 1).bit_length())]
    up = [[(team[low + far], team[low]) for low in range(0, m - far, 2 * far)] for far in reach]
    down = [[(low, high) for high, low in pairs] for pairs in reversed(up)]
    return up + down


def _tree_plan(links: RegionLinks, team: Team) -> CollectivePlan:
    """Cost the rounds of a tree; a round lasts as long as its slowest message."""
    worst: Counter[RegionPath] = Counter()
    held, volumes = 0.0, list[tuple[RegionPath, float]]()
    for pairs in _tree_rounds(team):
        used = [links.link(a, b) for a, b in pairs]
        worst[max(used, key=lambda link: link.latency)] += 1
        held += 1 / min(link.bandwidth for link in used)
        volumes += [(link, 1.0) for link in used]
    return CollectivePlan(dict(worst), held, _volumes(volumes))


def _tree(builder: MessageBuilder, team: Team, _regions: Regions) -> None:
    """Send every message once its sender and receiver have ended earlier rounds."""
    for pairs in _tree_rounds(team):
        numbers = builder.add(pairs, 1.0, builder.after_both(pairs))
        builder.last |= {r: [n] for n, pair in zip(numbers, pairs, strict=True) for r in pair}


# In two binary trees at once

Hosts = Sequence[Sequence[int]]
"""A team by host: workers of a host form a chain, and the hosts' first workers a tree."""


def _binary_tree(size: int) -> dict[int, int]:
    """Return the parents of 1 to `size` - 1 in a tree with root 0 and odd leaves."""
    parents = {}
    for number in range(1, size):
        low = number & -number
        up = (number ^ low) | 2 * low
        parents[number] = up if up < size else number ^ low
    return parents


def _two_trees(hosts: Hosts) -> list[dict[int, int]]:
    """Return each rank's parent in two trees.

    The second tree is the first one mirrored, so that no host is inner in both, or, for an odd
    number of hosts, shifted by one (Sanders, Speck & Traff 2009; NCCL 2.21, src/graph/trees.cc).
    """
    size = len(hosts)
    tree = _binary_tree(size)
    chains = {to: source for host in hosts for source, to in pairwise(host)}
    places = [range(size), [(n + 1) % size if size % 2 else size - 1 - n for n in range(size)]]
    return [
        {hosts[place[low]][0]: hosts[place[high]][0] for low, high in tree.items()} | chains
        for place in places
    ]


def _to_root(tree: dict[int, int], rank: int) -> list[tuple[int, int]]:
    """Return the hops from a rank up to the root."""
    hops = []
    while rank in tree:
        hops.append((rank, tree[rank]))
        rank = tree[rank]
    return hops


def double_tree_plan(links: RegionLinks, hosts: Hosts) -> CollectivePlan:
    """Cost two trees, up and down at once, with half of the payload in each tree.

    In a pipeline of small parts all hops transmit at once, so the busiest card sets the time. Then
    the last part travels the longest path up and down.
    """
    home = {rank: number for number, host in enumerate(hosts) for rank in host}
    cards: defaultdict[tuple[object, ...], float] = defaultdict(float)
    moved: defaultdict[str, float] = defaultdict(float)
    longest: list[RegionPath] = []
    for tree in _two_trees(hosts):
        for a, b in [*tree.items(), *((high, low) for low, high in tree.items())]:
            link, inside = links.link(a, b), home[a] == home[b]
            cards["out", a, inside] += 0.5 / link.out
            cards["into", b, inside] += 0.5 / link.into
            cards[a, b] += 0.5 / link.bandwidth
            moved[link.name] += 0.5
        ways = [_to_root(tree, rank) for rank in tree]
        up = max(([links.link(*hop) for hop in way] for way in ways), key=_seconds)
        down = max(([links.link(b, a) for a, b in way] for way in ways), key=_seconds)
        longest = max(longest, up + down, key=_seconds)
    return CollectivePlan(dict(Counter(longest)), max(cards.values()), dict(moved))


def _seconds(way: Iterable[RegionPath]) -> float:
    return sum(link.latency for link in way)


def double_tree(hosts: Hosts, builder: MessageBuilder | None = None) -> Messages:
    """Stream half of the payload through each tree, then the last part up and down.

    The stream of a hop is one message. The last part of a stream costs only latency: it leaves a
    rank after the parts below it arrive, and on the longest path after all streams have passed.
    """
    builder, trees = builder or MessageBuilder(), _two_trees(hosts)
    streams: list[dict[tuple[int, int], int]] = []
    for lane, tree in enumerate(trees):
        hops = [*tree.items(), *((high, low) for low, high in tree.items())]
        numbers = builder.add(hops, 0.5, [[]] * len(hops), lane)
        streams.append(dict(zip(hops, numbers, strict=True)))
    everything = [number for stream in streams for number in stream.values()]
    for lane, (tree, stream) in enumerate(zip(trees, streams, strict=True)):
        below: defaultdict[int, list[int]] = defaultdict(list)
        for low, high in tree.items():
            below[high].append(low)
        ways = {rank: _to_root(tree, rank) for rank in tree}
        ranks = sorted(ways, key=lambda rank: -len(ways[rank]))  # from the leaves up
        first = ways[ranks[0]][0][1] if ranks else None  # above the deepest leaf
        ends = {rank: [stream[rank, tree[rank]]] for rank in ranks if rank not in below}
        for rank in [*(rank for rank in ranks if rank in below), *({*below} - {*ranks})]:
            after = [number for low in below[rank] for number in ends[low]]
            after = everything if rank == first else after
            if rank in tree:
                ends[rank] = builder.add([(rank, tree[rank])], 0.0, [after], lane)
            else:
                ends[rank] = after
        for rank in reversed(ranks):
            after = ends[tree[rank]]
            ends[rank] = builder.add([(tree[rank], rank)], 0.0, [after], lane)
    return builder.messages()


# The table

COLLECTIVES: dict[CollectiveName, CollectiveKind] = {
    "ring": CollectiveKind(_ring_plan, _ring),
    "tree": CollectiveKind(_tree_plan, _tree),
    "star": CollectiveKind(_star_plan, _star),
    "hierarchical": CollectiveKind(_hierarchical_plan, _hierarchical, needs_regions=True),
    "double-tree": CollectiveKind(
        lambda links, team: double_tree_plan(links, [[rank] for rank in team]),
        lambda builder, team, _regions: double_tree([[rank] for rank in team], builder),
    ),
    "server": CollectiveKind(server_plan, None),
    "given": CollectiveKind(lambda _links, _team: NOTHING_SENT, None),
}
"""The collectives of a mean by their names in `network.collective`."""


def messages(name: CollectiveName, team: Team, regions: Regions = ()) -> Messages:
    """Return the messages of a mean over `team`, by the collective's name."""
    make, builder = COLLECTIVES[name].messages, MessageBuilder()
    assert make is not None, name
    make(builder, team, regions)
    return builder.messages()
