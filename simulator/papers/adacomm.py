"""AdaComm: adaptive communication periods (Wang & Joshi, arXiv 1810.08313)."""

from simulator.papers.claim import Claim, Found, Paper
from simulator.papers.lab import Lab


def sync_step(lab: Lab) -> Found:
    """Seconds per step of synchronous SGD."""
    (ssgd, *_) = lab.runs("adacomm/figure2").algorithms
    low, high = ssgd["seconds_per_step"]["ci95"]
    said = lab.theory("adacomm/figure2")["sync_seconds_per_step"]
    return Found(ssgd["seconds_per_step"]["mean"], (low, high), f"Theorem 1 says {said:.4f}.")


CLAIMS = (
    Claim(
        name="figure 2: a synchronous step",
        says="16 workers, exponential steps of mean 1, an average of 1: H(16) + 1",
        measure=sync_step,
        expected=4.3807,
        unit="s",
        timing=True,
        why="The largest of 16 exponentials has mean H(16).",
    ),
)

PAPER = Paper(
    name="adacomm",
    title="Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in "
    "Local-Update SGD",
    source="Wang & Joshi, arXiv 1810.08313",
    settings="",
    claims=CLAIMS,
    figures={},
)
