"""Paceline predicts how long distributed training takes to reach an error.

`load` a scenario, then `simulate` it, or ask for its `theory`; in a shell, see `paceline --help`.
Importing this package imports nothing else of it: a name loads its module at its first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.command_line import main
    from paceline.simulator.errors import InputError, ProgramError, RunError
    from paceline.simulator.inputs.units import Seconds
    from paceline.simulator.load.load import load
    from paceline.simulator.objectives.evaluation import Evaluation
    from paceline.simulator.objectives.objective import GradientSource, Objective
    from paceline.simulator.objectives.plugins import ObjectiveError, ObjectivePlugin
    from paceline.simulator.programs.codecs.channel import Channel, Codec
    from paceline.simulator.programs.codecs.codec import CodecOf, Raw
    from paceline.simulator.programs.codecs.message_codec import MessageCodec
    from paceline.simulator.programs.effects import (
        ANY,
        NOTHING,
        Encoded,
        Handle,
        Node,
        Payload,
        Vector,
    )
    from paceline.simulator.programs.pieces.gate import bounded_lead
    from paceline.simulator.programs.pieces.graph import Graph, GraphOf, Ring
    from paceline.simulator.programs.pieces.piece import Number, piece
    from paceline.simulator.programs.pieces.schedule import PeriodOfSteps, Rate, Schedule
    from paceline.simulator.programs.pieces.threshold import Threshold
    from paceline.simulator.programs.pieces.transform import (
        AdamW,
        Fraction,
        Identity,
        Momentum,
        Nesterov,
        Transform,
        TransformOf,
    )
    from paceline.simulator.programs.program import Program, doc
    from paceline.simulator.reports.page.page import report
    from paceline.simulator.scenario.scenario import Scenario
    from paceline.simulator.studies.papers.reproduce import reproduce
    from paceline.simulator.studies.simulate import simulate
    from paceline.simulator.studies.sweep.sweep import sweep
    from paceline.simulator.studies.tune.result import TuneResult
    from paceline.simulator.studies.tune.tune import tune
    from paceline.simulator.theory import theory
    from paceline.validate.calibration.calibrate import calibrate
    from paceline.validate.comparison.compare import compare
    from paceline.validate.measurement.telemetry import Telemetry
    from paceline.validate.probe.probe import probe
    from paceline.validate.torch_objective.data import Data, register_data
    from paceline.validate.torch_objective.models import register_model
    from paceline.validate.validation import validate

    __version__: str

_COMMANDS = {  # public names by the module that has them
    "command_line": ("main",),
    "simulator.load.load": ("load",),
    "simulator.studies.simulate": ("simulate",),
    "simulator.studies.sweep.sweep": ("sweep",),
    "simulator.theory": ("theory",),
    "simulator.studies.tune.tune": ("tune",),
    "simulator.studies.tune.result": ("TuneResult",),
    "simulator.studies.papers.reproduce": ("reproduce",),
    "simulator.reports.page.page": ("report",),
    "validate.validation": ("validate",),
    "validate.probe.probe": ("probe",),
    "validate.calibration.calibrate": ("calibrate",),
    "validate.comparison.compare": ("compare",),
    "validate.measurement.telemetry": ("Telemetry",),
    "simulator.errors": ("InputError", "ProgramError", "RunError"),
}
_PLUG_INS = {  # for writing programs, pieces, codecs, objectives, models and data sets
    "simulator.programs.program": ("Program", "doc"),
    "simulator.programs.effects": (
        *("ANY", "NOTHING", "Encoded", "Handle", "Node", "Payload", "Vector"),
    ),
    "simulator.inputs.units": ("Seconds",),
    "simulator.programs.pieces.piece": ("Number", "piece"),
    "simulator.programs.pieces.gate": ("bounded_lead",),
    "simulator.programs.pieces.threshold": ("Threshold",),
    "simulator.programs.pieces.schedule": ("PeriodOfSteps", "Rate", "Schedule"),
    "simulator.programs.pieces.transform": (
        *("AdamW", "Fraction", "Identity", "Momentum", "Nesterov", "Transform", "TransformOf"),
    ),
    "simulator.programs.pieces.graph": ("Graph", "GraphOf", "Ring"),
    "simulator.programs.codecs.channel": ("Channel", "Codec"),
    "simulator.programs.codecs.message_codec": ("MessageCodec",),
    "simulator.programs.codecs.codec": ("CodecOf", "Raw"),
    "simulator.scenario.scenario": ("Scenario",),
    "simulator.objectives.objective": ("GradientSource", "Objective"),
    "simulator.objectives.evaluation": ("Evaluation",),
    "simulator.objectives.plugins": ("ObjectiveError", "ObjectivePlugin"),
    "validate.torch_objective.models": ("register_model",),
    "validate.torch_objective.data": ("Data", "register_data"),
}
_MODULES = {
    name: f"paceline.{module}"
    for module, names in (_COMMANDS | _PLUG_INS).items()
    for name in names
}

__all__ = [
    "ANY",
    "NOTHING",
    "AdamW",
    "Channel",
    "Codec",
    "CodecOf",
    "Data",
    "Encoded",
    "Evaluation",
    "Fraction",
    "GradientSource",
    "Graph",
    "GraphOf",
    "Handle",
    "Identity",
    "InputError",
    "MessageCodec",
    "Momentum",
    "Nesterov",
    "Node",
    "Number",
    "Objective",
    "ObjectiveError",
    "ObjectivePlugin",
    "Payload",
    "PeriodOfSteps",
    "Program",
    "ProgramError",
    "Rate",
    "Raw",
    "Ring",
    "RunError",
    "Scenario",
    "Schedule",
    "Seconds",
    "Telemetry",
    "Threshold",
    "Transform",
    "TransformOf",
    "TuneResult",
    "Vector",
    "__version__",
    "bounded_lead",
    "calibrate",
    "compare",
    "doc",
    "load",
    "main",
    "piece",
    "probe",
    "register_data",
    "register_model",
    "report",
    "reproduce",
    "simulate",
    "sweep",
    "theory",
    "tune",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from paceline.simulator.results.store import versions

        return versions()["paceline"]
    if name not in _MODULES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
