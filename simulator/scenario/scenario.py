"""Define `Scenario`: its tables, and its algorithms as their programs parse them.

Shapes and single values are checked here; `load.checks` refuses settings that contradict each
other, and `load.load` reads files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, inf
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..distributions.distribution import Distribution
from ..inputs.messages import nearest
from ..programs import Program, catalogue
from ..programs.codecs.codec import Raw
from ..programs.pieces.piece import TomlSchema
from . import tables
from .cluster import Cluster, Recovery
from .fields import Many, Name, Section, optional
from .hardware import fill_devices
from .network import Network, Server
from .overhead import Calibration, CodecCost, Overhead, at
from .team import Team

OWN = ("name", "label", "recovery")
"""Keys of an [[algorithm]] table that are not parameters of its program."""
MEASURED = ("overhead", "codec", "calibration")
"""Tables of a real system's overheads, which the other tables do not include."""


def _policy(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


class Algorithm(Section):
    """One curve: a program with its parameters.

    `parameters`: typed keyword arguments for the program; `table`: the table as written;
    `written`: the parameters as written, including those of [optimizer]; `notes`: effects of
    other tables; `bound`: whether workers never communicate, so it is shown but never picked;
    `served`: whether it has a server; `samples`: whether its rounds can sample clients;
    `recovers`: the recovery policies that its program supports; `recovery`: None if [recovery]
    applies unchanged.
    """

    name: Name
    label: Name
    parameters: dict[str, Any]
    table: dict[str, Any]
    written: dict[str, Any]
    notes: tuple[str, ...] = ()
    bound: bool = False
    served: bool = False
    samples: bool = False
    recovers: tuple[str, ...] = ()
    recovery: Annotated[Recovery | None, BeforeValidator(_policy)] = None

    @property
    def words(self) -> str:
        """Name and parameters in one line, regardless of the label."""
        return _words(self.table)


def refusal(where: tuple[str | int, ...], sentence: str, value: Any) -> ValidationError:
    """Make an error at a key of the table under validation, with our message."""
    kind = PydanticCustomError("refusal", "{sentence}", {"sentence": sentence})
    details = InitErrorDetails(type=kind, loc=where, input=value)
    return ValidationError.from_exception_data("scenario", [details])


def _brief(value: Any) -> str:
    """Write a parameter briefly, for the legend of a figure."""
    if isinstance(value, dict):
        names = ("kind", "schedule", "policy")
        inner = {key: entry for key, entry in value.items() if key not in names}
        name = next((value[key] for key in names if key in value), "")
        return f"{name}({', '.join(f'{key}={_brief(entry)}' for key, entry in inner.items())})"
    if isinstance(value, list):
        return "/".join(map(_brief, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(table: Mapping[str, Any]) -> str:
    """Return the name and the parameters of an [[algorithm]] table in one line."""
    given = {key: value for key, value in table.items() if key not in ("name", "label")}
    return " ".join([table["name"], *(f"{key}={_brief(value)}" for key, value in given.items())])


def arguments(program: Program, own: dict[str, Any], optimizer: tables.Optimizer) -> dict[str, Any]:
    """Return a program's parameters: keys set in [optimizer], overridden by its `own`."""
    names = {"momentum": program.local_momentum}
    set_here = optimizer.model_fields_set
    defaults = {names.get(key, key): getattr(optimizer, key) for key in set_here}
    return {k: v for k, v in defaults.items() if k in program.parameters.model_fields} | own


def _algorithm(value: Any, info: ValidationInfo) -> Any:
    """Let a program parse its [[algorithm]] table, with [optimizer]'s defaults."""
    if not isinstance(value, dict):
        return value
    program, label = _program(value, info), value.get("label")
    given = {key: entry for key, entry in value.items() if key not in OWN}
    for key in (key for key in given if key in program.refuses):
        raise refusal((key,), f"{value['name']} has none: {program.refuses[key]}", given[key])
    optimizer, objective = info.data.get("optimizer"), info.data.get("objective")
    written = arguments(program, given, optimizer or tables.Optimizer())
    any_rate = objective is None or isinstance(objective, tables.NoObjective | tables.LearningCurve)
    if optimizer is None or (any_rate and optimizer.lr is None):
        # The rate does not matter: a table is refused already, or the loss does not depend on it.
        optimizer = (optimizer or tables.Optimizer()).model_copy(update={"lr": 1.0})
    parameters = program.parse(arguments(program, given, optimizer))
    if "buckets" in parameters and "buckets" not in given:
        buckets = _buckets(info.data.get("model"), info.data.get("network"))
        parameters["buckets"] = buckets or parameters["buckets"]
    return {
        "name": value["name"],
        "label": _words(value) if label is None else label,
        "parameters": parameters,
        "table": value,
        "written": written,
        "bound": program.bound,
        "served": program.server is not None,
        "samples": program.rounds or program.selects,
        "notes": _unsampled(program, info.data.get("cluster")),
        "recovers": program.under(parameters).recovers,
        "recovery": value.get("recovery"),
    }


def _program(value: Mapping[str, Any], info: ValidationInfo) -> Program:
    """Return the program that an [[algorithm]] table names."""
    programs: Mapping[str, Program] = (info.context or {}).get("programs") or catalogue()
    name = value.get("name")
    if name is None:
        raise refusal(("name",), f"missing; write one of: {', '.join(programs)}", value)
    if not isinstance(name, str) or name not in programs:
        raise refusal(("name",), f"unknown; {nearest(str(name), programs, 'write one of')}", name)
    return programs[name]


def _buckets(model: tables.Model | None, network: Network | None) -> Any:
    """Return DistributedDataParallel's buckets, by tensors or for NCCL, or None."""
    if model is None or model.buckets:
        return model and model.buckets
    nccl = network is not None and network.library == "nccl"
    return max(1, ceil(model.bytes / tables.BUCKET)) if nccl else None


def _over(general: Recovery, special: Recovery) -> Recovery:
    """Override keys of `general` by those that `special` and its checkpoint set."""
    update = {key: getattr(special, key) for key in special.model_fields_set}
    if special.checkpoint is not None and general.checkpoint is not None:
        keys = special.checkpoint.model_fields_set
        saved = {key: getattr(special.checkpoint, key) for key in keys}
        update["checkpoint"] = general.checkpoint.model_copy(update=saved)
    return general.model_copy(update=update)


def _unsampled(program: Program, cluster: Cluster | None) -> tuple[str, ...]:
    """Note that [cluster.sampling] has no effect on a program."""
    if cluster is None or cluster.sampling is None or program.rounds or program.selects:
        return ()
    why = "its workers do not all continue from one mean"
    return (f"cluster.sampling has no effect on {program.name}, because {why}: all take part",)


def _recovering(algorithm: Algorithm, tables_before: Mapping[str, Any]) -> Algorithm:
    """Complete an algorithm's recovery by [recovery]; note settings without effect."""
    recovery, update = tables_before.get("recovery") or Recovery(), dict[str, Any]()
    if algorithm.recovery is not None:
        recovery = update["recovery"] = _over(recovery, algorithm.recovery)
    policy = "backup" if recovery.policy in algorithm.recovers else recovery.policy
    if policy not in algorithm.recovers and (policy != "backup" or recovery.backups):
        update["recovery"] = Recovery().model_copy(update={"reload": recovery.reload})
        why = f"{algorithm.name} has no means over all workers"
        notes = [f'recovery "{policy}" has no effect, because {why}']
    else:
        notes = [*_without_effect(recovery, tables_before, served=algorithm.served)]
    return algorithm.model_copy(update=update | {"notes": (*algorithm.notes, *notes)})


def _without_effect(
    recovery: Recovery, tables_before: Mapping[str, Any], *, served: bool
) -> Iterator[str]:
    """Note the keys of a recovery that have no effect, with the reason."""
    if (cluster := tables_before.get("cluster")) is None:
        return
    policy, crashes = recovery.policy, cluster.fails(served and tables_before.get("server"))
    other = {"quorum": "quorum", "grace": "quorum", "checkpoint": "restart"}
    idle = [key for key, needed in other.items() if policy != needed]
    calm: list[str] = []
    if not crashes and not cluster.elastic:
        calm = ["timeout", "reload", *["checkpoint"] * (policy == "restart")]
    elif policy == "wait" and not cluster.elastic:
        idle.append("timeout")
    if policy in ("shrink", "restart") and not crashes:
        yield f'recovery "{policy}" has no effect, because nothing ever crashes'
    for keys, why in (idle, f'the policy is "{policy}"'), (calm, "nothing ever crashes"):
        names = [f"recovery.{key}" for key in keys if key in recovery.model_fields_set]
        if names:
            yield f"no effect of {', '.join(names)}, because {why}"


class Scenario(Section):
    """All inputs of a simulation."""

    extends: Name | None = optional(
        "profile or scenario (file, or shipped name) whose keys fill those missing here"
    )
    title: str = optional("title of figures and reports", "")
    model: tables.Model
    objective: tables.Objective = optional("objective that predicts the error", tables.NO_OBJECTIVE)
    optimizer: tables.Optimizer = tables.Optimizer()
    cluster: Cluster
    network: Network
    server: Server = Server()
    recovery: Recovery = Recovery()
    run: tables.RunSettings
    algorithm: Many[Annotated[Algorithm, BeforeValidator(_algorithm)]] = optional(
        "the algorithms to compare", ()
    )
    tune: tables.Tune = tables.Tune()
    theory: tables.Theory = tables.Theory()
    validation: tables.ValidationSettings = tables.ValidationSettings()
    cost: tables.Prices = Field(tables.Prices(), validate_default=True)
    overhead: Many[Overhead] = optional("overheads of a real system, by the number of workers", ())
    codec: Many[CodecCost] = optional(
        "measured times of codecs, for algorithms without `compress` and `decompress`", ()
    )
    calibration: Calibration | None = optional(
        "origin of measured numbers, and their standard errors"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_devices(cls, document: Any) -> Any:
        """Fill missing keys from the catalogue's numbers of named devices."""
        return fill_devices(document)

    @field_validator("run")
    @classmethod
    def _of_tokens(cls, run: tables.RunSettings, info: ValidationInfo) -> tables.RunSettings:
        """Convert tokens of all workers to local steps."""
        cluster, tokens = info.data.get("cluster"), getattr(info.data.get("objective"), "tokens", 0)
        if run.tokens is None or cluster is None:
            return run
        if run.steps is not None:
            raise ValueError("both steps and tokens; write one of them")
        if not tokens:
            raise ValueError("tokens need objective.tokens (of a worker's step); write steps")
        steps = ceil(run.tokens / (tokens * cluster.participants))
        return run.model_copy(update={"steps": steps})

    @field_validator("cost")
    @classmethod
    def _of_groups(cls, cost: tables.Prices, info: ValidationInfo) -> tables.Prices:
        """Allow a missing price if groups with prices have all workers."""
        cluster = info.data.get("cluster")
        if cluster is None or sum(group.workers for group in cluster.group) < cluster.workers:
            return cost
        usual = {
            key: 0.0
            for key in ("node_hour", "device_hour")
            if getattr(cost, key) is None
            and all(getattr(group, key) is not None for group in cluster.group)
        }
        return cost.model_copy(update=usual)

    @field_validator("tune", mode="before")
    @classmethod
    def _name_tuning(cls, tune: Any, info: ValidationInfo) -> Any:
        """Refuse a key that is neither a setting nor a program."""
        keys = tables.Tune.model_fields
        accepted = {*keys, *((info.context or {}).get("programs") or catalogue())}
        for key, value in tune.items() if isinstance(tune, dict) else ():
            if key not in accepted and not isinstance(value, dict):
                near = nearest(key, keys, "the keys here are tables of programs, and")
                raise refusal((key,), f"unknown; {near}", value)
        return tune

    @field_validator("algorithm")
    @classmethod
    def _complete(
        cls, algorithms: tuple[Algorithm, ...], info: ValidationInfo
    ) -> tuple[Algorithm, ...]:
        """Apply [recovery], and the size of averages that an hpsgd table sets."""
        algorithms = tuple(_recovering(algorithm, info.data) for algorithm in algorithms)
        key = "local_sgd_sync_multiplier"
        stated = [algorithm.parameters[key] for algorithm in algorithms if key in algorithm.table]
        if not stated:
            return algorithms
        note = f"averaging a model counts as {stated[0]:g} of a gradient (hpsgd's {key})"

        def heavier(algorithm: Algorithm) -> Algorithm:
            parameters = algorithm.parameters | {"codec": Raw(times=stated[0])}
            notes = (*algorithm.notes, note)
            return algorithm.model_copy(update={"notes": notes, "parameters": parameters})

        return tuple(
            heavier(one) if one.name == "local-sgd" and "codec" not in one.table else one
            for one in algorithms
        )

    _loaded: dict[str, Any] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Store the file, table and notes of a loaded scenario."""
        keys = ("file", "table", "notes", "added")
        self._loaded = {key: context[key] for key in keys if key in (context or {})}

    @property
    def file(self) -> str:
        """Path of the scenario as the user gave it."""
        return str(self._loaded.get("file", "<scenario>"))

    @property
    def table(self) -> dict[str, Any]:
        """The TOML table after overrides, as JSON values."""
        table: dict[str, Any] = self._loaded.get("table", {})
        return table

    @property
    def added(self) -> Mapping[str, Program]:
        """A user's programs, in addition to the catalogue's; their code has no version."""
        added: Mapping[str, Program] = self._loaded.get("added", {})
        return added

    @property
    def programs(self) -> Mapping[str, Program]:
        """All programs that an algorithm may name."""
        return {**catalogue(), **self.added}

    def with_programs(self, added: Mapping[str, Program]) -> Self:
        """Return a copy with further programs of the user."""
        copied = self.model_copy()
        copied._loaded = self._loaded | {"added": {**self.added, **added}}
        return copied

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how keys were interpreted, and on the assumption of a loss's law."""
        goal: Any = self.objective
        notes: list[str] = [*self._loaded.get("notes", ())]
        law = isinstance(goal, tables.LearningCurve) and isinstance(goal.curve, tables.CurveOfLaw)
        if law and goal.curve.batch is None and self.cluster.workers > 1:
            steps = f"steps of {goal.tokens:,.0f} tokens, those of one worker"
            notes.append(f"no objective.curve.batch: the law is applied to {steps}")
        return tuple(notes)

    @property
    def heavy_tailed(self) -> bool:
        """Whether a random time has infinite variance: few runs cannot show its mean."""
        return any(law.variance == inf for law in laws(self.cluster, self.network, self.server))

    @property
    def deterministic(self) -> bool:
        """Whether runs are the same with every seed; False if that is uncertain.

        It is uncertain with codecs and with a user's programs.
        """
        cluster, programs = self.cluster, catalogue()
        drawn = any(any(cluster.of_workers(key)) for key in ("bursts", "drop", "extra"))
        measured = self.overhead or self.codec or self.calibration
        return not (drawn or measured or self.troubled) and (
            self.objective.kind in ("none", "bound")  # without random draws
            and all(law.is_constant for law in laws(cluster, self.network))
            and all(
                one.name in programs and not programs[one.name].gossips and "codec" not in one.table
                for one in self.algorithm
            )
        )

    @cached_property
    def team(self) -> Team:
        """The resolved workers, computed once for this scenario."""
        boxes_apart = self.network.library != "byteps"  # BytePS's means include those of boxes
        return Team(self.cluster, self.model.bytes, boxes_apart)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some values changed, which computes its own `team`."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("team", None)
        return copied

    @property
    def unstable(self) -> bool:
        """Whether nodes can crash, or workers come and go."""
        return self.cluster.fails(self.server) or self.cluster.elastic

    @property
    def troubled(self) -> bool:
        """Whether nodes can crash, or means may leave workers out."""
        left_out = self.recovery.backups > 0 or self.recovery.policy == "quorum"
        return left_out or self.unstable or self.cluster.sampling is not None

    def under(self, algorithm: Algorithm) -> "Scenario":
        """Return the scenario with an algorithm's recovery and overheads."""
        names = {overhead.algorithm for overhead in self.overhead}
        name = algorithm.name if algorithm.name in names else None
        update: dict[str, Any] = {"recovery": algorithm.recovery} if algorithm.recovery else {}
        if names - {name}:
            update["overhead"] = tuple(one for one in self.overhead if one.algorithm == name)
        return self.model_copy(update=update) if update else self

    def participants(self, algorithm: Algorithm) -> int:
        """Return the number of workers that train at a time: fewer if clients are sampled."""
        return self.cluster.participants if algorithm.samples else self.cluster.workers

    @property
    def costs(self) -> Overhead:
        """Overheads of a real system with this number of workers, for all algorithms.

        `under` applies the overheads of single algorithms.
        """
        common = [one for one in self.overhead if one.algorithm is None]
        return at(common or self.overhead, self.cluster.workers)

    @property
    def nominal(self) -> "Scenario":
        """The scenario without overheads and calibration."""
        bare = self.model_copy(update={"overhead": (), "codec": (), "calibration": None})
        table = {key: value for key, value in self.table.items() if key not in MEASURED}
        bare._loaded = self._loaded | {"table": table}
        return bare


@dataclass(frozen=True)
class World:
    """All inputs of a run except the seed."""

    scenario: Scenario
    algorithm: Algorithm

    @property
    def program(self) -> Program:
        """The program of the algorithm."""
        program = self.scenario.programs[self.algorithm.name]
        return program.under(self.algorithm.parameters)

    def under(self) -> Self:
        """Return the world with the algorithm's recovery and overheads applied."""
        return replace(self, scenario=self.scenario.under(self.algorithm))

    def changed(self, **update: Any) -> Self:
        """Return the world with some tables of the scenario replaced."""
        return replace(self, scenario=self.scenario.model_copy(update=update))

    @property
    def workers(self) -> int:
        """Number of workers that train at a time: fewer if clients are sampled."""
        return self.scenario.participants(self.algorithm)


def laws(*values: Any) -> Iterator[Distribution]:
    """Yield the laws of random times among `values`, also in inner tables and lists."""
    for value in values:
        if isinstance(value, Distribution):
            yield value
        elif isinstance(value, BaseModel):
            yield from laws(*(getattr(value, key) for key in type(value).model_fields))
        elif isinstance(value, tuple):
            yield from laws(*value)


def json_schema(programs: Mapping[str, Program] | None = None) -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a scenario and all programs.

    The result is shared by all callers with the same programs: do not change it.
    """
    return _json_schema(tuple((programs or catalogue()).items()))


@cache
def _json_schema(named: tuple[tuple[str, Program], ...]) -> dict[str, Any]:
    programs = dict(named)
    models: list[Any] = [Scenario, tables.Range, tables.Tune, Recovery]
    models += [program.parameters for program in programs.values()]
    references, root = models_json_schema(
        [(model, "validation") for model in models], schema_generator=TomlSchema
    )
    defined = root["$defs"]

    def table(model: Any) -> dict[str, Any]:
        return dict(defined[references[model, "validation"]["$ref"].removeprefix("#/$defs/")])

    span = references[tables.Range, "validation"]
    recovery = {
        "description": "recovery of this algorithm: a policy, or keys that override [recovery]",
        "anyOf": [table(Recovery)["properties"]["policy"], references[Recovery, "validation"]],
    }
    items, choices = [], {}
    for name, program in programs.items():
        parameters = table(program.parameters)
        properties = parameters.get("properties", {})
        given = {"lr", "momentum"}  # [optimizer] may set them
        head = {
            "name": {"const": name, "description": program.summary},
            "label": {"type": "string", "description": "unique name of its curve"},
            "recovery": recovery,
        }
        required = sorted({"name", *parameters.get("required", ())} - given)
        node = {"title": name, "properties": head | properties, "required": required}
        items.append(parameters | node)
        tried = {
            key: {"anyOf": [{"type": "array", "items": node, "minItems": 1}, span]}
            for key, node in properties.items()
        }
        choices[name] = {
            "type": "object",
            "description": f"values or ranges of {name}'s parameters",
            "additionalProperties": False,
            "properties": tried,
        }
    scenario = table(Scenario)
    algorithm, tune = scenario["properties"]["algorithm"], table(tables.Tune)
    tuned = {"properties": tune["properties"] | choices, "additionalProperties": False}
    scenario["properties"] |= {
        "algorithm": algorithm | {"items": {"anyOf": items}}, "tune": tune | tuned,
    }  # fmt: skip
    unused = {"Scenario", "Algorithm", "Tune", *programs}
    used = {key: node for key, node in defined.items() if key not in unused}
    return {"$schema": GenerateJsonSchema.schema_dialect, **scenario, "$defs": used}
