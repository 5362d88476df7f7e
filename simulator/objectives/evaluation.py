"""What an observer sees of a model."""

from typing import NamedTuple


class Evaluation(NamedTuple):
    """Loss and accuracy; nan where the objective has no such number."""

    loss: float
    accuracy: float
