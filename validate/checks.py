"""Refuse settings that a real run cannot follow, instead of ignoring them."""

from collections.abc import Iterator

from paceline.simulator.errors import InputError
from paceline.simulator.programs.pieces.schedule import paced
from paceline.simulator.scenario.scenario import Scenario

SHORTEST = 0.001  # seconds of a stretched step


def require_runnable(scenario: Scenario, launched: bool) -> None:
    """Raise InputError for settings that cannot run for real, one line per reason.

    `launched`: a launcher has started every process.
    """
    problems = [f"{scenario.file}: {key}: {why}" for key, why in _problems(scenario, launched)]
    if problems:
        raise InputError("\n".join(problems))


def _problems(scenario: Scenario, launched: bool) -> Iterator[tuple[str, str]]:
    network, cluster = scenario.network, scenario.cluster
    links = scenario.validation.network
    kernel = links == "kernel"
    jittered = network.jitter or any(link.jitter for link in network.link)
    stretched = scenario.validation.compute == "stretched"
    step = min(scenario.team.mean_compute)
    for key, why, holds in (
        ("algorithm", "nothing to run; add an [[algorithm]] table (paceline list algorithms)",
         not scenario.algorithm),
        (f'network.model = "{network.model}"',
         "only delays in closed form can be added to a real run; write "
         'network.model = "closed-form", or validation.network = "real" or "kernel"',
         links == "emulated" and not network.closed_form),
        ('network.collective = "given"',
         "the kernel's links have a latency and a bandwidth; write those, or "
         'validation.network = "emulated"',
         kernel and network.collective == "given"),
        ("cluster.drop", "real clients are not stopped during a round; remove it", cluster.drops),
        ("cluster.sampling",
         "means among selected clients are only simulated; remove it, or choose fedbuff",
         cluster.sampling and any(one.samples and not one.served for one in scenario.algorithm)),
        *((key, "crashes, absences and workers that means leave out are only simulated; remove "
           "them", True) for key in _troubled(scenario)),
        *((f"algorithm.{algorithm.label}",
           "different periods of workers are only simulated; write tau as a number of steps",
           paced(algorithm.parameters)) for algorithm in scenario.algorithm),
        ("cluster.compute",
         f"steps of {step * 1e3:.3g} ms cannot be held; write {SHORTEST * 1e3:g} ms or more, or "
         'validation.compute = "real" for real durations',
         stretched and step < SHORTEST),
        ('validation.network = "kernel"',
         "the kernel's links need processes that this command starts; run it without a launcher, "
         'or write "emulated" or "real"',
         kernel and launched),
        ("network.jitter",
         "the kernel's links delay all packets equally; remove it, or write "
         'validation.network = "emulated"',
         kernel and jittered),
    ):  # fmt: skip
        if holds:
            yield key, why


def _troubled(scenario: Scenario) -> list[str]:
    """Return the keys by which workers can be absent."""
    selected = scenario.cluster.model_copy(update={"sampling": None})
    whole = scenario.model_copy(update={"cluster": selected})
    rows = [
        f"algorithm[{index}].recovery"
        for index, algorithm in enumerate(scenario.algorithm)
        if whole.under(algorithm).troubled
    ]
    return ["cluster"] if whole.troubled and rows else rows
