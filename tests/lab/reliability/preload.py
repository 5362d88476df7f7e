"""Import what commands need, once: their processes are forked from here, so start no threads."""

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.pyplot
import optuna
import rich.console
import scipy.stats
import sklearn.datasets

import paceline
import paceline.simulator.reports.page.page
import paceline.simulator.reports.terminal
import paceline.simulator.studies.papers.reproduce
import paceline.simulator.studies.sweep.sweep
import paceline.simulator.studies.tune.tune

USED = (
    matplotlib, optuna, rich, scipy, sklearn, paceline
)  # fmt: skip
