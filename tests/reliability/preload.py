"""What commands import, once for all of them. No threads: processes are forked from here."""

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.pyplot
import optuna
import rich.console
import scipy.stats
import sklearn.datasets

import paceline
import simulator.pages.page
import simulator.papers.reproduce
import simulator.sweep
import simulator.tables
import simulator.tune

USED = (
    matplotlib, optuna, rich, scipy, sklearn, paceline, simulator
)  # fmt: skip
