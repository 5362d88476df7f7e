"""Store a program's state as containers, numbers and tensors for `torch.load`."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from paceline.simulator.errors import InputError
from paceline.simulator.programs.codecs.power import PowerMatrix, UnderWay
from paceline.simulator.programs.effects import Encoded
from paceline.validate.training.collectives import RealCollective

KIND = "paceline"  # key that marks one of these containers
RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (Encoded, UnderWay, PowerMatrix)}
CONTAINERS: dict[str, Any] = {
    "deque": deque, "dict": dict, "Counter": lambda pairs: Counter(dict(pairs)),
}  # fmt: skip


class Freezer(NamedTuple):
    """A converter of a program's values to plain ones and back.

    An object's `KEPT` names its saved fields. `live`: the vector behind the parameters, which is
    saved once; `generators`: the program's generators in order; `land`: completes a collective
    under way.
    """

    live: Tensor
    generators: list[np.random.Generator]
    land: Callable[[RealCollective], Any]

    def freeze(self, value: Any) -> Any:  # noqa: PLR0911 - one per kind
        """Return a value as plain containers."""
        kind = type(value).__name__
        if value is self.live:
            return {KIND: "live", "is": None}
        if isinstance(value, RealCollective):
            return {KIND: "collective", "of": value.kind, "is": self.freeze(self.land(value))}
        if isinstance(value, np.random.Generator):
            same = [generator is value for generator in self.generators]
            return {KIND: "generator", "is": same.index(True)}
        if isinstance(value, np.ndarray | np.generic):
            return {KIND: "array", "is": value.tolist(), "of": str(value.dtype)}
        if kind == "LateLoss":
            return float(value)
        if kind in RECORDS:
            names = getattr(value, "_fields", None) or [field.name for field in fields(value)]
            return {KIND: kind, "is": [self.freeze(getattr(value, name)) for name in names]}
        if kind in CONTAINERS:
            items = [list(item) for item in value.items()] if isinstance(value, dict) else value
            return {KIND: kind, "is": [self.freeze(item) for item in items]}
        if isinstance(value, list | tuple):
            return type(value)(self.freeze(item) for item in value)
        plain = value is None or isinstance(value, bool | int | float | str | Tensor)
        return value if plain and not hasattr(type(value), "KEPT") else self._freeze_object(value)

    def _freeze_object(self, value: Any) -> Any:
        names = getattr(value, "KEPT", vars(value))
        frozen = [[name, self.freeze(getattr(value, name))] for name in names]
        return {KIND: "object", "of": type(value).__name__, "is": frozen}

    def thaw(self, value: Any, like: Any = None) -> Any:  # noqa: PLR0911 - one per kind
        """Undo `freeze`; `like`: the value that a new program has in that place."""
        if isinstance(value, list | tuple):
            alike = isinstance(like, list | tuple) and len(like) == len(value)
            return type(value)(map(self.thaw, value, like if alike else repeat(None)))
        if not isinstance(value, dict):
            return value.to(self.live.device) if isinstance(value, Tensor) else value
        kind, content = value[KIND], value["is"]
        if kind == "live":
            return self.live
        if kind == "collective":
            handle = RealCollective(0, value["of"], 0)
            handle.settled, handle.result = True, self.thaw(content)
            return handle
        if kind == "generator":
            return self.generators[content]
        if kind == "array":
            return np.array(content, dtype=value["of"])
        if kind == "object":
            if value["of"] != type(like).__name__:
                raise InputError(f"state: it is of {value['of']}, not of {type(like).__name__}")
            for name, item in content:
                setattr(like, name, self.thaw(item, getattr(like, name)))
            return like
        items = self.thaw(content)
        return RECORDS[kind](*items) if kind in RECORDS else CONTAINERS[kind](items)
