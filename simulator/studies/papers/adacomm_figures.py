"""AdaComm's figures, redrawn."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from paceline.simulator.results.figures import curves
from paceline.simulator.studies.papers.lab import Lab

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.figure import Figure


def _error(name: str, loss: str = "training loss") -> Callable[[Lab], "Figure"]:
    """Error against time of one scenario."""

    def draw(lab: Lab) -> "Figure":
        scenario = lab.scenario(name)
        groups = lab.runs(name).groups
        return curves.error(
            groups, title=scenario.title, target=scenario.run.target_loss, loss=loss
        )

    return draw


def _period(lab: Lab) -> "Figure":
    """AdaComm's period against time."""
    name = "adacomm/figure1"
    figure = curves.tau(lab.runs(name).groups, title="AdaComm: the period of figure 1's run")
    assert figure is not None  # AdaComm's period changes
    return figure


FIGURES: Mapping[str, tuple[str, Callable[[Lab], "Figure"]]] = {
    "figure1": (
        "Error against time: the large period falls first and slows down, tau = 1 starts last; "
        "AdaComm falls as fast as the large period and then passes it.",
        _error("adacomm/figure1"),
    ),
    "period": (
        "AdaComm's period in those runs: each minute it shrinks as the loss does.",
        _period,
    ),
    "figure3": (
        "The bound of Theorem 2 against time: tau = 10 falls first, tau = 1 ends lower.",
        _error("adacomm/figure3", "bound on the squared gradient"),
    ),
    "resnet50": (
        "Where averages are cheap, tau = 1 is about as good as any fixed period.",
        _error("adacomm/resnet50-fixed"),
    ),
}
