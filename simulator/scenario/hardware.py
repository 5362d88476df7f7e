"""Catalogue hardware by name: links inside hosts, network cards, devices.

Numbers and their sources are in hardware.toml. A name gives the usual numbers; numbers in a
scenario replace them, and then their spread is unknown.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from ..inputs import untrusted
from ..inputs.messages import nearest
from ..inputs.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from .tables import sizes

FLOPS_PER_PARAMETER = 6.0  # per token: two forwards, four backwards (arXiv 2001.08361, section 2.1)


class LinkKind(BaseModel):
    """A kind of link: usual bandwidth each way, its range (5 and 95 %), and latency."""

    bandwidth: BytesPerSecond
    range: tuple[BytesPerSecond, BytesPerSecond] | None = None
    latency: Seconds
    about: str

    @property
    def slowdowns(self) -> tuple[float, float]:
        """The 90 % range of a transfer's time on other hosts, relative to the usual time."""
        low, high = self.range or (self.bandwidth, self.bandwidth)
        return self.bandwidth / high, self.bandwidth / low


class DeviceKind(BaseModel):
    """A kind of device: 16-bit peak, memory, and usual utilisation with its range."""

    flops: FlopsPerSecond
    memory: Bytes
    mfu: tuple[float, float, float]


class Hardware(BaseModel):
    """All kinds by name."""

    link: dict[str, LinkKind]
    device: dict[str, DeviceKind]


def written() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the catalogue as its file has it, with units."""
    tables: dict[str, dict[str, dict[str, Any]]] = untrusted.packaged(__file__, "hardware.toml")
    return tables


@cache
def hardware() -> Hardware:
    """Return the catalogue, in SI units."""
    return Hardware.model_validate(written())


def link_kind(name: Any) -> LinkKind:
    """Return a kind of link by its name. Raises ValueError for an unknown name."""
    links = hardware().link
    if not isinstance(name, str) or name not in links:
        raise ValueError(f"unknown; {nearest(str(name), links, 'write one of')}")
    return links[name]


def _of_card(table: Any, rates: tuple[str, ...]) -> Any:
    """Fill a table's bandwidth and latency from the kind that its `card` names."""
    if not isinstance(table, Mapping) or "card" not in table:
        return table
    link_kind(table["card"])
    kind = written()["link"][table["card"]]
    usual = {} if any(key in table for key in rates) else {"bandwidth": kind["bandwidth"]}
    return {"latency": kind["latency"]} | usual | dict(table)


def of_line(table: Any) -> Any:
    """Fill [network] or a [[network.link]] from the kind of its `card`."""
    return _of_card(table, ("bandwidth", "up", "down"))


def of_inner(value: Any) -> Any:
    """Turn the name of a kind of link into a table of a worker's inner links."""
    return _of_card({"card": value} if isinstance(value, str) else value, ("bandwidth",))


def _card(value: Any) -> Any:
    link_kind(value)
    return value


Card = Annotated[str, BeforeValidator(_card), Field(min_length=1)]


def fill_devices(document: Any) -> Any:
    """Fill a scenario's tables from its named devices: peak, and compute times.

    A step takes 6 operations per parameter and token (or `cost.flops_per_token`) at the usual
    utilisation, if neither [cluster] nor the group has `compute`.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("cluster"), Mapping):
        return document
    cluster, cost = document["cluster"], document.get("cost") or {}
    groups = cluster.get("group") or ()
    kinds = _kinds((cluster, *groups))
    if not kinds or not isinstance(cost, Mapping):
        return document
    cost = {"flops": written()["device"][kinds[0]]["flops"], **cost}
    operations = 0.0 if "compute" in cluster else _operations(document, cost)
    whole = {**_filled(cluster, None, operations)}
    if groups:
        whole["group"] = [_filled(group, cluster.get("device"), operations) for group in groups]
    return {**document, "cost": cost, "cluster": whole}


def _kinds(tables: Iterable[Any]) -> list[str]:
    """Return the catalogued kinds of device that tables name."""
    names = [table.get("device") for table in tables if isinstance(table, Mapping)]
    return [name for name in names if isinstance(name, str) and name in hardware().device]


def _filled(table: Any, usual: Any, operations: float) -> Any:
    """Return [cluster] or a group with the time of a step of `operations`."""
    if not isinstance(table, Mapping) or "compute" in table or not operations:
        return table
    kinds, many = _kinds([{"device": usual, **table}]), table.get("devices", 1)
    if not kinds or not isinstance(many, int) or many < 1:
        return table
    device = hardware().device[kinds[0]]
    return {**table, "compute": f"{operations / (many * device.flops * device.mfu[1])!r} s"}


def inner_spread(inner: Iterable[Any]) -> tuple[float, float]:
    """Return the least and largest factor of transfer times on a worker's inner links."""
    kinds = [(one, link_kind(one.card)) for one in inner if one is not None and one.card]
    spreads = [kind.slowdowns for one, kind in kinds if one.bandwidth == kind.bandwidth]
    return min([1.0, *(low for low, _ in spreads)]), max([1.0, *(high for _, high in spreads)])


def compute_spread(document: Mapping[str, Any]) -> tuple[float, float]:
    """Return least and largest factors of compute times, by devices' utilisation.

    `document`: a scenario as written. Both are 1 if it states all times.
    """
    cluster = document.get("cluster", {})
    groups = [*cluster.get("group", ())]
    stated = "compute" in cluster or (groups and all("compute" in group for group in groups))
    shares = [hardware().device[name].mfu for name in _kinds((cluster, *groups))]
    if stated or not shares:
        return 1.0, 1.0
    least = min(usual / high for _, usual, high in shares)
    return least, max(usual / low for low, usual, _ in shares)


def _operations(document: Mapping[str, Any], cost: Mapping[str, Any]) -> float:
    """Return the operations of a worker's step; 0: the scenario does not say."""
    model, goal = document.get("model") or {}, document.get("objective") or {}
    tokens = goal.get("tokens") or cost.get("tokens") or 0
    parts = sizes(model.get("tensors"))
    parameters = model.get("parameters", sum(part for part in parts if isinstance(part, int)))
    operations = cost.get("flops_per_token") or FLOPS_PER_PARAMETER * parameters
    numbers = isinstance(tokens, int | float) and isinstance(operations, int | float)
    return float(tokens * operations) if numbers else 0.0
