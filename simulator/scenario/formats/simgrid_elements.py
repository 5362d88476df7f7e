"""Check elements of SimGrid's platform files, and read quantities such as "1.25GBps"."""

import re
from collections.abc import Callable, Mapping
from itertools import product
from math import isfinite
from xml.etree.ElementTree import Element

from ...inputs.units import demand_within

ALIASES = {"AS": "zone", "ASroute": "zoneRoute", "DijkstraCache": "Dijkstra"}
ATTRIBUTES = {
    "platform": "version",
    "zone": "id routing",
    "host": "id speed core pstate coordinates",
    "router": "id coordinates",
    "link": "id bandwidth latency sharing_policy",
    "route": "src dst symmetrical",
    "zoneRoute": "src dst gw_src gw_dst symmetrical",
    "link_ctn": "id direction",
    "cluster": "id prefix suffix radical speed core bw lat sharing_policy bb_bw bb_lat router_id "
    "limiter_link loopback_bw loopback_lat topology",
}
CHILDREN = {
    "platform": ("zone",),
    "zone": ("zone", "cluster", "host", "router", "link", "route", "zoneRoute"),
    "route": ("link_ctn",),
    "zoneRoute": ("link_ctn",),
}
LONGEST = 200  # characters of an attribute: names are shown in messages and results
SILENT = ("prop", "disk")  # change nothing that is simulated here
_TIMES = {
    "ps": 1e-12, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0,
    "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0,
}  # fmt: skip
_PREFIXES = {"": 1.0, "k": 1e3}
for _power, _letter in enumerate("KMGTPE", start=1):
    _PREFIXES |= {_letter: 1000.0**_power, f"{_letter}i": 1024.0**_power}
_RATES = {
    prefix + unit: factor * scale
    for (prefix, factor), (unit, scale) in product(
        _PREFIXES.items(), (("Bps", 1.0), ("bps", 1 / 8))
    )
}


def seconds(text: str) -> float:
    """Read a time; without a unit it is in seconds. Raises ValueError."""
    time = _quantity(text, _TIMES, 'not a time; write one such as "50us"')
    demand_within(time, "time")
    return time


def bytes_per_second(text: str) -> float:
    """Read a bandwidth above 0; without a unit it is in bytes/s. Raises ValueError."""
    wrong = 'not a bandwidth; write one above zero, such as "125MBps"'
    rate = _quantity(text, {"": 1.0} | _RATES, wrong)
    if rate <= 0:
        raise ValueError(wrong)
    demand_within(rate, "bandwidth")
    return rate


def _quantity(text: str, units: Mapping[str, float], wrong: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in units or not isfinite(float(match[1])):
        raise ValueError(wrong)
    return float(match[1]) * units[match[2]]  # may be infinite: callers bound it


class Elements:
    """Reads attributes of one file's elements; refusals name file and element."""

    def __init__(self, file: str) -> None:
        self.file = file

    def fault(self, element: Element, what: str) -> ValueError:
        """Make an error that names the file and the element."""
        name = element.get("id") or "->".join(filter(None, map(element.get, ("src", "dst"))))
        where = f"{element.tag} {name}" if name else element.tag
        return ValueError(f"{self.file}: <{where[:LONGEST]}>: {what}")

    def check(self, element: Element) -> str:
        """Refuse content that would change results but is not read; return the tag."""
        tag = ALIASES.get(element.tag, element.tag)
        known = ATTRIBUTES[tag].split()
        for key, value in element.attrib.items():
            if key not in known:
                raise self.fault(element, f"{key[:LONGEST]} is not simulated; remove it")
            if len(value) > LONGEST and key != "radical":
                raise self.fault(element, f"{key} is too long; write at most {LONGEST} characters")
        for child in element:
            inner = ALIASES.get(child.tag, child.tag)
            if inner not in (*CHILDREN.get(tag, ()), *SILENT):
                raise self.fault(child, f"not simulated inside <{element.tag}>; remove it")
        return tag

    def get(self, element: Element, key: str) -> str:
        """Return a required attribute."""
        value = element.get(key)
        if not value:
            raise self.fault(element, f"{key} is missing; add it")
        return value

    def choice(self, element: Element, key: str, default: str, options: tuple[str, ...]) -> str:
        """Return an attribute that must be one of `options`."""
        value = element.get(key) or default
        value = ALIASES.get(value, value)
        if value not in options:
            raise self.fault(element, f'{key} = "{value}" is unknown; write one of: '
                             f"{', '.join(options)}")  # fmt: skip
        return value

    def latency(self, element: Element, key: str) -> float:
        """Return a time in seconds, zero if it is left out."""
        return self._number(element, key, seconds) if element.get(key) else 0.0

    def bandwidth(self, element: Element, key: str) -> float:
        """Return a rate in bytes/s."""
        return self._number(element, key, bytes_per_second)

    def _number(self, element: Element, key: str, parse: Callable[[str], float]) -> float:
        text = self.get(element, key)
        try:
            return parse(text)
        except ValueError as error:
            raise self.fault(element, f'{key} = "{text}": {error}') from None
