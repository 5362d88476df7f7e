"""Define `Program`: an algorithm's coroutines, parameters, properties and paper."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache, cached_property
from types import MethodType
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from .effects import Node
from .pieces.schedule import OwnPeriod
from .pieces.transform import Identity

BOUND = "workers never meet (a bound, never a pick)"

Function = Callable[..., Coroutine[Any, Any, None]]


def doc(description: str, unit: str = "", shown: Any = None, **limits: Any) -> Any:
    """Describe a parameter: meaning, unit, and limits (pydantic's `ge`, `lt`, ...).

    `shown`: the default in the form of a scenario, if that differs from the Python value.
    """
    return Field(
        description=description, json_schema_extra={"unit": unit, "shown": shown}, **limits
    )


@dataclass(frozen=True)
class Program:
    """A named algorithm.

    `worker` runs on every worker; `server`, if any, on the parameter server. A scenario sets their
    keyword-only arguments, whose annotations pydantic understands. `source`: paper and equation.

    - `averages`: the observer evaluates the mean of the workers' models. Without it, workers never
    communicate, and the observer evaluates the first worker's model.
    - `needs_loss`: it reads the training loss, so the objective must have one.
    - `bound_covers`: AdaComm's Theorem 2 covers it.
    - `gossips`: its workers send messages to each other.
    - `overlaps`: its workers compute while their mean is under way.
    - `pooled`: its workers never wait for each other, so their steps are counted together.
    - `pooled_with`: parameters, with their default values, that make it pooled (see `under`).
    - `asks`: its workers poll whether a mean has arrived, and continue if it has not.
    - `linear`: without momentum it applies every gradient once, so on a quadratic the mean model
    does not depend on the frequency of averages.
    - `sends_gradients`: it averages gradients, not displacements of local steps.
    - `sends_distances`: it averages distances, not changes since its last mean.
    - `alike`: without a codec all its steps are equal, and end with a wait for their last mean.
    - `rounds`: after a mean all workers have the same model, so clients can be sampled.
    - `selects`: its server chooses the workers that train, which limits their number.
    - `local_momentum`: the parameter that [optimizer].momentum sets.
    - `needs_sgd`: the reason why its local steps must be SGD's, if no parameter enforces it.
    - `refuses`: parameters that users may expect but that it lacks, and the reasons.
    """

    name: str
    worker: Function
    source: str
    server: Function | None = None
    averages: bool = True
    needs_loss: bool = False
    bound_covers: bool = False
    gossips: bool = False
    overlaps: bool = False
    linear: bool = False
    pooled: bool = False
    pooled_with: Mapping[str, str] = field(default_factory=dict, hash=False)
    asks: bool = False
    sends_gradients: bool = False
    sends_distances: bool = False
    alike: bool = False
    rounds: bool = False
    selects: bool = False
    local_momentum: str = "momentum"
    needs_sgd: str = ""
    refuses: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __getstate__(self) -> dict[str, Any]:
        """Omit the cached model of parameters, which cannot be pickled."""
        return {key: value for key, value in self.__dict__.items() if key != "parameters"}

    @property
    def summary(self) -> str:
        """First line of the docstring of the server, or else of the worker."""
        return (inspect.getdoc(self.server or self.worker) or self.name).splitlines()[0]

    @property
    def family(self) -> str:
        """Form of communication: server, gossip, overlapped or blocking."""
        if self.server is not None:
            return "server"
        return "gossip" if self.gossips else "overlapped" if self.overlaps else "blocking"

    @property
    def asynchronous(self) -> bool:
        """Whether the numbers computed depend on when messages arrive."""
        return self.server is not None or self.pooled or self.asks

    @property
    def bound(self) -> bool:
        """Whether its workers never communicate; such a bound is never picked."""
        return not (self.averages or self.server or self.gossips)

    def under(self, parameters: Mapping[str, Any]) -> "Program":
        """Return the program as it is with these parameters."""
        pooled_with = self.pooled_with.items()
        if pooled_with and all(parameters.get(key, value) == value for key, value in pooled_with):
            return replace(self, pooled=True)
        return self

    @property
    def recovers(self) -> tuple[str, ...]:
        """Values of `recovery.policy` that the program supports."""
        meets = self.averages and not (self.server or self.gossips or self.pooled)
        policies = ("wait", "shrink", "restart", "backup", "quorum")
        return policies if meets else ("wait", "restart")

    def counted(self, workers: int, participants: int) -> int:
        """Return the number of a node's steps in one step of the run.

        Servers and pooled workers count the gradients of all workers: a step of the run has one
        gradient of every worker or, if the server chooses workers, of every training one.
        """
        together = self.server is not None or self.pooled
        return (participants if self.selects else workers) if together else 1

    def moves_alike(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether more averages leave the mean model on a quadratic unchanged."""
        plain = ("momentum", "inner", "outer", "block_momentum")
        return (
            self.linear
            and not any(parameters.get(key) not in (None, 0, Identity()) for key in plain)
            and getattr(parameters.get("codec"), "kind", "raw") == "raw"
            and parameters.get("compensation", "exact") == "exact"
        )

    @cached_property
    def parameters(self) -> type[BaseModel]:
        """The parameters as a pydantic model that refuses unknown keys."""
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
        """Call `function` (worker or server) with a node and its parameters."""
        names = _arguments(function)
        return function(me, **{k: _callable(v) for k, v in parameters.items() if k in names})

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return each parameter's default, unit and description, as values for JSON."""
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
    """Return a schedule's `__call__`, which is faster to call than the object."""
    if isinstance(value, OwnPeriod):
        return value
    method = getattr(value, "__call__", None)  # noqa: B004 - the method itself
    return method if isinstance(method, MethodType) else value
