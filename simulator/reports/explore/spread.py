"""Change the spread of random times: their coefficient of variation, at the same mean."""

import math
from typing import Any

from ...distributions import parametric
from ...distributions.law import Law

LIMITS: dict[type[Any], float] = {
    parametric.Constant: 1.0,
    parametric.Exponential: 1.0,
    parametric.ShiftedExponential: 1.0,
    parametric.Gamma: 3.0,
    parametric.LogNormal: 3.0,
    parametric.Normal: 0.3,  # beyond, folding negative times would move the mean
    parametric.Uniform: 0.55,  # the limit is 1/sqrt(3)
}


def known(law: Law) -> bool:
    """Whether `widened` and `table` know this kind of law."""
    return type(law) in LIMITS


def of(law: Law) -> float | None:
    """Return standard deviation over mean; None where no parameter of the law sets its spread."""
    if not known(law) or not law.expectation:
        return None
    return math.sqrt(law.variance) / law.expectation


def limit(law: Law) -> float:
    """Return the widest spread that a slider offers for this kind of law."""
    return LIMITS[type(law)]


def widened(law: Any, to: float) -> Any:
    """Return a law of the same mean with spread `to`, of the same kind if that has a spread."""
    mean = law.expectation
    if to < 1e-9:
        return parametric.Constant.model_construct(value=mean)
    match law:
        case parametric.Gamma():
            return parametric.Gamma.model_construct(mean=mean, shape=1 / to**2)
        case parametric.LogNormal():
            return parametric.LogNormal.model_construct(mean=mean, sd=to * mean)
        case parametric.Normal():
            return parametric.Normal.model_construct(mean=mean, sd=to * mean, negative=law.negative)
        case parametric.Uniform():
            half = math.sqrt(3) * to * mean
            return parametric.Uniform.model_construct(low=mean - half, high=mean + half)
    shift = max(0.0, (1 - to) * mean)
    return parametric.ShiftedExponential.model_construct(shift=shift, mean=mean)


def table(law: Any) -> dict[str, Any]:
    """Return the law as a scenario writes it."""
    fields = {key: getattr(law, key) for key in type(law).model_fields}
    times = law.times()
    return {key: f"{value:.12g} s" if key in times else value for key, value in fields.items()}
