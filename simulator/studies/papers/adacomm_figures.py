"""AdaComm's figures, redrawn."""

from ...results.figures import curves
from ...results.figures.chart import Chart
from .lab import Lab


def error(lab: Lab, name: str, loss: str = "training loss") -> Chart:
    """Error against time of one scenario."""
    scenario = lab.scenario(name)
    groups = lab.runs(name).groups
    return curves.error(groups, title=scenario.title, target=scenario.run.target_loss, loss=loss)


def period(lab: Lab) -> Chart:
    """AdaComm's period against time."""
    groups = lab.runs("adacomm/figure1").groups
    chart = curves.tau(groups, title="AdaComm: the period of figure 1's run")
    assert chart is not None  # AdaComm's period changes
    return chart
