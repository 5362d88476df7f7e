"""Fit a single file: a law of compute times, or a link."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import csv_files, units, untrusted
from paceline.simulator.results import store

from ..calibration import compute_laws, profile
from ..calibration.calibrate import HEAD, CalibrationResult
from ..calibration.profile import Profile
from . import tables

LARGEST = 100_000_000  # bytes
NCCL = re.compile(r"^(.*?)#? +size +count +type\b.*\bbusbw\b", re.MULTILINE)
"""The head of nccl-tests' table; mpirun may write a prefix before every line."""
RANK = re.compile(r"^#? *Rank +\d+.*?\bon +(\S+)", re.MULTILINE)
TIME = re.compile(r"[\d.]+(e-?\d+)?( ?[nmuµμ]?s)?")
HOPS = 2.0, 1.0  # passes of a ring: an all-reduce; an all-gather or its reverse
AGREES = 0.05  # largest relative difference of a table's ratio from these
SATURATED = 0.95  # share of the rate asked for, above which it was not the link that limited it
EXACT = 1.0  # rate (GB/s) from which two digits suffice


@dataclass(frozen=True)
class Link:
    """A fitted link: its `latency` and its time per byte, in seconds; `notes`: assumptions.

    `latency` is None if it cannot be separated from the time per byte.
    """

    latency: float | None
    per_byte: float
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> dict[str, Any]:
        """Return the table [network]."""
        table = {"collective": "ring", "latency": profile.seconds(self.latency or 0.0)}
        return table | ({"bandwidth": profile.rate(1 / self.per_byte)} if self.per_byte else {})


def calibrate(path: Path) -> CalibrationResult | None:
    """Fit a profile to a file of compute times, of nccl-tests, or of iperf3 (JSON).

    Returns None for other files. Raises InputError for a damaged file.
    """
    try:
        with untrusted.unpacked(path) as file:
            text = untrusted.content(file, LARGEST).decode("utf-8-sig")
    except (OSError, ValueError):  # none of these formats: the next reader reports the fault
        return None
    with untrusted.refused(path, "give the whole output"):
        if "busbw" in text and (head := NCCL.search(text)):
            lines = [line.removeprefix(head[1]) for line in text.splitlines()]
            return _profile(path, _nccl("\n".join(lines)))
        if text.lstrip()[:1] == "{" and ('"sum_received"' in text or '"iperf 3' in text):
            return _profile(path, _iperf(text))
    written = map(str.strip, StringIO(text, newline=None))
    lines = [*islice((line for line in written if line[:1] not in ("", "#")), 2)]
    named = path.name.endswith(tables.TEXTS) and lines and not {",", "\0"} & {*lines[0]}
    if not named or not TIME.fullmatch(lines[-1]):
        return None
    return _times(path, lines[0])


def _times(path: Path, first: str) -> CalibrationResult:
    """Fit a law to a single column of compute times, whose name may state their unit."""
    scale = tables.scale(first)
    try:
        times = np.array([*csv_files.rows(path, [units.seconds], "one time")])[:, 0] * scale
    except ValueError as error:
        raise InputError(str(error)) from None
    law = compute_laws.fit([times])
    about = {
        **_origin(path),
        "sd": {"cluster.compute": law.sd},
        "notes": law.notes,
        "measured": {"step": profile.between([float(times.mean())])},
    }
    whole = Profile({"calibration": about, "cluster": law.tables}, HEAD, law.files)
    return CalibrationResult(whole, law, [])


def _profile(path: Path, link: Link) -> CalibrationResult:
    """Return a profile that has only a link."""
    about = {**_origin(path), "notes": [*link.notes]}
    nothing = compute_laws.FittedLaws({}, [], {}, [], 0.0)
    whole = Profile({"calibration": about, "network": link.table}, HEAD)
    return CalibrationResult(whole, nothing, [])


def _origin(path: Path) -> dict[str, Any]:
    """Return the keys of [calibration] that describe the origin of the numbers."""
    return {
        "date": profile.today(),
        "runs": [str(path)],
        "fingerprints": store.fingerprints([path]),
    }


def _nccl(text: str) -> Link:
    """Fit the hop of a ring to a table from nccl-tests. Raises ValueError."""
    hosts = RANK.findall(text)
    ranks = len(hosts)
    if ranks < 2:
        raise ValueError("no lines '# Rank ...' of at least two ranks")
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\S+\s+[a-z]", line)]
    # Each line ends in time, two rates and errors, out of place and in place.
    numbers = np.array([[float(row[n]) for n in (0, -8, -6)] for row in rows if row[0] != "0"])
    if len(numbers) < 2:
        raise ValueError("no lines of two sizes")
    sizes, lasted, bus = numbers.T
    algorithm = sizes / lasted / 1e3  # old versions print another rate for gathers
    fast = algorithm >= min(EXACT, algorithm.max())
    factor = float(np.median(bus[fast] / algorithm[fast]))
    ring = [hops for hops in HOPS if abs(factor / (hops * (ranks - 1) / ranks) - 1) < AGREES]
    hops, share = (ring[0] * (ranks - 1), 1 / ranks) if ring else (1.0, 1.0)
    latency, per_byte = alpha_beta(sizes * share, np.split(lasted * 1e-6 / hops, len(lasted)))
    where = f"{ranks} ranks on {len({*hosts})} host" + "s" * (len({*hosts}) > 1)
    kind = "a ring" if ring else "messages of one hop"
    note = f"nccl-tests, {where}, {len(sizes)} sizes as {kind}: measures the slowest link per hop"
    return Link(latency, per_byte, (note, "let each worker be one rank, or each region one host"))


def _iperf(text: str) -> Link:
    """Read a link from iperf3's JSON, or from its stream of events. Raises ValueError."""
    events = [*map(untrusted.loads, text.splitlines())] if '"event"' in text[:100] else []
    document = {one["event"]: one["data"] for one in events} if events else untrusted.loads(text)
    if problem := document.get("error"):
        raise ValueError(f"iperf3 failed: {problem}")
    end, test = document["end"], document["start"]["test_start"]
    streams, asked = test["num_streams"], float(test.get("target_bitrate") or 0)
    rate = float(end["sum_received"]["bits_per_second"]) / 8
    if not rate > 0:
        raise ValueError("nothing was received")
    if asked and 8 * rate > SATURATED * asked * streams:
        most = asked * streams / 1e6
        raise ValueError(f"it was to send no more than {most:g} Mbit/s; measure with -b 0")
    trips = [stream["sender"].get("min_rtt", 0) for stream in end["streams"] if "sender" in stream]
    latency = min(filter(None, trips), default=0) / 2e6  # microseconds, there and back
    notes = [f"iperf3, {streams} stream" + "s" * (streams > 1)]
    if streams > 1:
        notes.append("gloo has one connection per pair: measure one stream for it")
    if not latency:
        notes.append("it states no round trip: write network.latency, half of ping's time")
    return Link(latency or None, 1 / rate, tuple(notes))


def alpha_beta(sizes: np.ndarray, samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """Fit a latency and seconds per byte to times by size (Hockney, 1994).

    Least squares of relative errors with non-negative numbers, over medians per size, since a busy
    machine delays some samples a lot.
    """
    from scipy.optimize import nnls  # noqa: PLC0415

    times = np.maximum([np.median(sample) for sample in samples], 1e-9)
    columns = np.stack([np.ones(len(times)), sizes], axis=1)
    scale = columns.max(axis=0)  # otherwise rounding hides the seconds per byte
    (alpha, beta), _ = nnls(columns / scale / times[:, None], np.ones(len(times)))
    return float(alpha), float(beta / scale[1])
