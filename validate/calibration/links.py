"""The links of recorded jobs: latency and bandwidth of a ring that takes as long as collectives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.errors import InputError

from ..measurement import alpha_beta
from ..training.events import WAIT
from . import profile

LIKE = 1.5  # ratio of sizes below which they do not determine a bandwidth
APART = 1.25  # ratio of times, compared with those over one link, from which links differ


@dataclass(frozen=True)
class Collectives:
    """Collectives with known bytes of one job of `workers`: bytes and seconds of each.

    `certain`: whether it is known when the last rank joined each, so that they contain no waiting.
    """

    path: Path
    workers: int
    sizes: np.ndarray
    lasted: np.ndarray
    certain: bool


@dataclass(frozen=True)
class Link:
    """A fitted hop: seconds of `latency` and per byte; `notes`: what was assumed, in sentences.

    `latency` is None where it cannot be told apart from the time per byte.
    """

    latency: float | None
    per_byte: float
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> dict[str, Any]:
        """Return the table [network]."""
        found = {"collective": "ring", "latency": profile.seconds(self.latency or 0.0)}
        return found | ({"bandwidth": profile.rate(1 / self.per_byte)} if self.per_byte else {})

    @property
    def words(self) -> str:
        """Return latency and bandwidth in words."""
        return ", ".join(list(self.table.values())[1:])


def collectives(path: Path, events: np.ndarray, workers: int) -> Collectives | None:
    """Read a recorded job's collectives; None if none has known bytes, or only one worker.

    Where it is unknown when the last rank joined, a collective took what it took the rank that
    waited the shortest.
    """
    waits = events[(events["kind"] == WAIT) & (events["bytes"] > 0)]
    if not len(waits) or workers < 2:
        return None
    certain = bool((~np.isnan(waits["joined"])).any())
    if certain:
        waits = waits[~np.isnan(waits["joined"])]
        lasted = waits["end"] - np.maximum(waits["start"], waits["joined"])
        return Collectives(path, workers, waits["bytes"], np.maximum(lasted, 0.0), certain)
    ranks = [waits[waits["node"] == rank] for rank in np.unique(waits["node"])]
    common = min(map(len, ranks))
    sizes = np.array([rank["bytes"][:common] for rank in ranks])
    if np.ptp(sizes, axis=0).any():  # the ranks have recorded different parts of the job
        return Collectives(path, workers, waits["bytes"], waits["end"] - waits["start"], certain)
    lasted = np.min([(rank["end"] - rank["start"])[:common] for rank in ranks], axis=0)
    return Collectives(path, workers, sizes[0], lasted, certain)


def fit(jobs: Sequence[Collectives]) -> Link:
    """Fit one link to all jobs. Raises InputError if they were recorded over different ones."""
    link = _fitted(jobs)
    ratios = [_ratio(job, link) for job in jobs]
    if max(ratios) > APART * min(ratios):
        speeds = "; ".join(f"{job.path}: {_fitted([job]).words}" for job in jobs)
        raise InputError(
            f"links of different speed ({speeds}): the collectives of these jobs take "
            f"{min(ratios):.3g} to {max(ratios):.3g} times as long as over one link (at most "
            f"{APART} apart), and a profile has one network; calibrate each job by itself"
        )
    return link


def _fitted(jobs: Sequence[Collectives]) -> Link:
    """Fit the link; collectives of all jobs count per hop of their ring, and once for each size."""
    sent = np.concatenate([job.sizes / job.workers for job in jobs])
    lasted = np.concatenate([job.lasted / (2 * (job.workers - 1)) for job in jobs])
    sizes, notes = np.unique(sent), []
    if not all(job.certain for job in jobs):
        notes.append(
            "when the last rank joined a collective is unknown: the shortest wait of the recorded "
            "ranks counts as its time, and may contain waiting for a rank that is slower than all "
            "of them"
        )
    if sizes.max() < LIKE * sizes.min():
        notes.append("all collectives have one size: their whole time counts as bandwidth")
        return Link(None, float(np.median(lasted)) / float(sizes.mean()), tuple(notes))
    if len(jobs) > 1 and all(job.sizes.max() < LIKE * job.sizes.min() for job in jobs):
        notes.append(
            "each job has collectives of one size: latency and bandwidth are told apart only if "
            "they were recorded over the same links"
        )
    samples = [np.maximum(lasted[sent == size], 1e-9) for size in sizes]
    line = alpha_beta.fit(sizes.tolist(), samples)
    return Link(line.alpha, line.beta, tuple(notes))


def _ratio(job: Collectives, link: Link) -> float:
    """Return the median time of a job's collectives, relative to that over the link."""
    over = 2 * (job.workers - 1) * ((link.latency or 0.0) + link.per_byte * job.sizes / job.workers)
    return float(np.median(job.lasted / np.maximum(over, 1e-9))) or math.ulp(1.0)
