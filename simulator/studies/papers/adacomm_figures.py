"""AdaComm's figures, redrawn."""

from ...results.figures import curves
from ...results.figures.style import Figure
from .lab import Lab


def error(lab: Lab, name: str, loss: str = "training loss") -> Figure:
    """Error against time of one scenario."""
    scenario = lab.scenario(name)
    groups = lab.runs(name).groups
    return curves.error(groups, title=scenario.title, target=scenario.run.target_loss, loss=loss)


def period(lab: Lab) -> Figure:
    """AdaComm's period against time."""
    groups = lab.runs("adacomm/figure1").groups
    figure = curves.tau(groups, title="AdaComm: the period of figure 1's run")
    assert figure is not None  # AdaComm's period changes
    return figure
