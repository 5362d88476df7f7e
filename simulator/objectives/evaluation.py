"""The result of an evaluation of a model by an observer."""

from math import nan
from typing import NamedTuple


class Evaluation(NamedTuple):
    """Training loss, accuracy and loss on the test set; nan if the objective has none."""

    loss: float
    accuracy: float
    test_loss: float = nan
