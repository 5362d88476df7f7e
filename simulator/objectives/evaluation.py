"""The result of an evaluation of a model by an observer."""

from typing import NamedTuple


class Evaluation(NamedTuple):
    """Loss and accuracy; nan if the objective has none."""

    loss: float
    accuracy: float
