"""Notes on predictions beyond the range of conditions that their profile was measured in."""

from collections.abc import Mapping, Sequence

from ..network.closed_form import ClosedForm
from ..scenario.overhead import MeasuredRange
from ..scenario.scenario import Scenario
from .run import Run


def notes(scenario: Scenario, groups: Mapping[str, Sequence[Run]]) -> list[str]:
    """Name the quantities of a prediction that are out of the calibrated range."""
    if scenario.calibration is None:
        return []
    said = outside(scenario, scenario.calibration.measured)
    found = [f"out of the calibrated range: {'; '.join(said)}"] if said else []
    if losses := scenario.calibration.measured.loss:
        found += _losses(scenario, groups, min(losses))
    return found


def outside(scenario: Scenario, measured: MeasuredRange) -> list[str]:
    """Return the quantities of a scenario that were not `measured`, each with its range in words.

    Steps, payloads and latencies may be half below the smallest measured one, or half above the
    largest.
    """
    said = []
    steps = scenario.team.mean_compute
    quantities = {  # the prediction's value, the measured ones, words for them, relative slack
        "workers": (scenario.cluster.workers, measured.workers, "{:.0f} workers", 0.0),
        "step": (sum(steps) / len(steps), measured.step, "steps of {:.3g} s", 0.5),
        "bytes": (scenario.model.bytes, measured.bytes, "payloads of {:.3g} bytes", 0.5),
        "latency": (ClosedForm(scenario).hop, measured.latency, "latencies of {:.3g} s", 0.5),
    }
    for value, limits, text, slack in quantities.values():
        if limits and not (1 - slack) * min(limits) <= value <= (1 + slack) * max(limits):
            low, high = (text.format(each) for each in (min(limits), max(limits)))
            where = low if low == high else f"{low} to {high}"
            said.append(f"{text.format(value)}, measured at {where}")
    return said


def _losses(scenario: Scenario, groups: Mapping[str, Sequence[Run]], low: float) -> list[str]:
    target = scenario.run.target_loss
    if target is not None and target < low:
        return [
            f"out of the calibrated range: run.target_loss = {target:g}, where losses down to "
            f"{low:.3g} were measured"
        ]
    below = [label for label, runs in groups.items() if min(runs[0].curve["loss"]) < low]
    if not below:
        return []
    return [
        f"{', '.join(below)}: below a loss of {low:.3g} nothing was measured: out of range there"
    ]
