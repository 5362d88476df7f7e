"""What the catalogue knows of a program: its coroutines, its parameters, its paper."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache, cached_property
from types import MethodType
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from paceline.simulator.programs.effects import Node
from paceline.simulator.programs.pieces.transform import Identity

Function = Callable[..., Coroutine[Any, Any, None]]


def doc(description: str, unit: str = "", shown: Any = None, **limits: Any) -> Any:
    """Describe a parameter: what it is, its unit, and its limits (pydantic's `ge`, `lt`, ...).

    `shown` is how a scenario writes the default, where that differs from the piece it stands for.
    """
    return Field(
        description=description, json_schema_extra={"unit": unit, "shown": shown}, **limits
    )


@dataclass(frozen=True)
class Program:
    """A named algorithm.

    `worker` runs on every worker; `server`, if there is one, on the parameter server. Their
    keyword-only arguments, with annotations that pydantic understands, are the parameters a
    scenario may set. `source`: paper and equation.

    - `averages`: its workers' models are one model, seen as their mean; where they never meet, the
      observer sees the first.
    - `needs_loss`: it reads the training loss, so an objective must have one.
    - `bound_covers`: AdaComm's Theorem 2 speaks of it.
    - `gossips`: its workers send messages to each other.
    - `pooled`: its workers never wait for each other, so that their steps are counted together.
    - `linear`: without momentum it applies every gradient once, so that on a quadratic the mean of
      its models does not depend on how often they average.
    - `sends_gradients`: what it averages are gradients, not displacements of local steps.
    - `local_momentum`: the parameter that [optimizer].momentum is for.
    - `refuses`: why it lacks parameters that one might expect.
    """

    name: str
    worker: Function
    source: str
    server: Function | None = None
    averages: bool = True
    needs_loss: bool = False
    bound_covers: bool = False
    gossips: bool = False
    linear: bool = False
    pooled: bool = False
    sends_gradients: bool = False
    local_momentum: str = "momentum"
    refuses: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def summary(self) -> str:
        """First line of the docstring of the server, which makes the algorithm, or the worker."""
        return (inspect.getdoc(self.server or self.worker) or self.name).splitlines()[0]

    @property
    def recovers(self) -> tuple[str, ...]:
        """What can be done when a worker crashes, as `recovery.policy` calls it."""
        meets = self.averages and not (self.server or self.gossips)
        return ("wait", "shrink", "restart") if meets else ("wait", "restart")

    def moves_alike(self, parameters: Mapping[str, Any]) -> bool:
        """Whether, with these parameters, the mean of the workers' models moves the same way on a
        quadratic however seldom they average."""
        plain = ("momentum", "outer", "block_momentum")
        return (
            self.linear
            and not any(parameters.get(key) not in (None, 0, Identity()) for key in plain)
            and getattr(parameters.get("codec"), "kind", "raw") == "raw"
            and parameters.get("compensation", "exact") == "exact"
        )

    @cached_property
    def parameters(self) -> type[BaseModel]:
        """The parameters as a model; unknown ones are refused."""
        fields: dict[str, Any] = {}
        for function in filter(None, (self.server, self.worker)):
            hints = get_type_hints(function, include_extras=True)
            for key, parameter in inspect.signature(function).parameters.items():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    default = ... if parameter.default is parameter.empty else parameter.default
                    fields[key] = (hints.get(key, Any), default)
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)
        return create_model(self.name, __config__=config, **fields)

    def parse(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return typed keyword arguments from a scenario's table.

        Raises pydantic.ValidationError, located by parameter name.
        """
        model = self.parameters.model_validate(table)
        return {key: getattr(model, key) for key in type(model).model_fields}

    def start(
        self, function: Function, me: Node, parameters: Mapping[str, Any]
    ) -> Coroutine[Any, Any, None]:
        """Begin `function` (worker or server) on a node, with those of `parameters` it takes."""
        names = _arguments(function)
        return function(me, **{k: _callable(v) for k, v in parameters.items() if k in names})

    def describe(self) -> dict[str, dict[str, Any]]:
        """Each parameter's default, unit and description, as JSON-able values."""
        described = {}
        for key, about in self.parameters.model_fields.items():
            extra = about.json_schema_extra if isinstance(about.json_schema_extra, dict) else {}
            default = "required" if about.is_required() else about.default
            if is_dataclass(default) and not isinstance(default, type):
                default = asdict(default)
            if extra.get("shown") is not None:
                default = extra["shown"]
            described[key] = {
                "default": default,
                "unit": extra.get("unit", ""),
                "description": about.description or "",
            }
        return described


@cache
def _arguments(function: Function) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _callable(value: Any) -> Any:
    """A schedule as its bound method, which CPython calls twice as fast as the object."""
    method = getattr(value, "__call__", None)  # noqa: B004 - not whether, but how
    return method if isinstance(method, MethodType) else value
