"""Refusal of what a real run cannot do: such settings are never ignored silently."""

from collections.abc import Iterator

from paceline.simulator.errors import InputError
from paceline.simulator.programs.pieces.schedule import paced
from paceline.simulator.scenario.scenario import Scenario


def require_runnable(scenario: Scenario, launched: bool) -> None:
    """Raise InputError for a scenario that cannot be run for real, with one line per reason.

    `launched`: each process has been started by a launcher.
    """
    found = [f"{scenario.file}: {where}: {what}" for where, what in _problems(scenario, launched)]
    if found:
        raise InputError("\n".join(found))


def _problems(scenario: Scenario, launched: bool) -> Iterator[tuple[str, str]]:
    settings, network = scenario.validation, scenario.network
    if not scenario.algorithm:
        yield "algorithm", "nothing to run; add an [[algorithm]] table (paceline list programs)"
    yield from _links(scenario)
    if scenario.cluster.drops:
        yield "cluster.drop", "a real client is not stopped amid its work; remove it"
    yield from _sampling(scenario)
    selected = scenario.cluster.model_copy(update={"sampling": None})
    every = scenario.model_copy(update={"cluster": selected})
    general = "cluster" if every.troubled else ""
    for where in dict.fromkeys(
        general or f"algorithm[{index}].recovery"
        for index, algorithm in enumerate(scenario.algorithm)
        if every.under(algorithm).troubled
    ):
        yield (
            where,
            "crashes, absences and workers that means leave out are only simulated; remove them",
        )
    for algorithm in scenario.algorithm:
        if paced(algorithm.parameters):
            yield (
                f"algorithm.{algorithm.label}",
                "a period of each worker's own is only simulated; write tau as a number of steps",
            )
    if scenario.team.shares_devices and settings.compute == "stretched":
        yield (
            "cluster.device",
            "steps of workers that share a device cannot be stretched; remove shared_by, or write "
            'validation.compute = "real"',
        )
    if scenario.job:
        yield "job", "other jobs on the network are only simulated; remove them"
    if settings.network == "kernel" and launched:
        yield (
            'validation.network = "kernel"',
            "the kernel's links are between processes that this command starts itself; run it "
            'without a launcher, or write "emulated" or "real"',
        )
    laws = [link.jitter for link in network.link] + [network.jitter]
    if settings.network == "kernel" and any(laws):
        yield (
            "network.jitter",
            "the kernel's links delay all packets alike; remove it, or write "
            'validation.network = "emulated"',
        )


def _links(scenario: Scenario) -> Iterator[tuple[str, str]]:
    settings, network = scenario.validation, scenario.network
    if settings.network == "emulated" and not network.closed_form:
        yield (
            f'network.model = "{network.model}"',
            "only delays in closed form can be added to a real run; write "
            'network.model = "closed-form", or validation.network = "real" or "kernel"',
        )
    if network.collective == "given" and settings.network == "kernel":
        yield (
            'network.collective = "given"',
            "the kernel's links have a latency and a bandwidth; write those, or "
            'validation.network = "emulated"',
        )


def _sampling(scenario: Scenario) -> Iterator[tuple[str, str]]:
    selects = scenario.cluster.sampling
    if selects is None or not any(each.samples and not each.served for each in scenario.algorithm):
        return
    if selects.over > 1 or selects.deadline is not None:
        yield (
            "cluster.sampling",
            "a real client is not stopped amid a step, as over and deadline stop those that are "
            "late; remove over and deadline",
        )
    if scenario.validation.network != "emulated":
        yield (
            "cluster.sampling",
            "real links carry each mean among all workers, not among those selected; write "
            'validation.network = "emulated"',
        )
