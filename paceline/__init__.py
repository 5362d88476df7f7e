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
    from paceline.simulator.theory import tabulate as theory
    from paceline.validate.calibration.calibrate import calibrate
    from paceline.validate.comparison.compare import compare
    from paceline.validate.measurement.telemetry import Telemetry
    from paceline.validate.probe.probe import probe
    from paceline.validate.torch_objective.data import Data, register_data
    from paceline.validate.torch_objective.models import register_model
    from paceline.validate.validation import validate

    __version__: str

_SIMULATOR, _VALIDATE = "paceline.simulator", "paceline.validate"
_PIECES, _CODECS = f"{_SIMULATOR}.programs.pieces", f"{_SIMULATOR}.programs.codecs"
_COMMANDS = {  # public name: its module, and its name there if different
    "main": ("paceline.command_line",),
    "load": (f"{_SIMULATOR}.load.load",),
    "simulate": (f"{_SIMULATOR}.studies.simulate",),
    "sweep": (f"{_SIMULATOR}.studies.sweep.sweep",),
    "theory": (f"{_SIMULATOR}.theory", "tabulate"),
    "tune": (f"{_SIMULATOR}.studies.tune.tune",),
    "TuneResult": (f"{_SIMULATOR}.studies.tune.result",),
    "reproduce": (f"{_SIMULATOR}.studies.papers.reproduce",),
    "report": (f"{_SIMULATOR}.reports.page.page",),
    "validate": (f"{_VALIDATE}.validation",),
    "probe": (f"{_VALIDATE}.probe.probe",),
    "calibrate": (f"{_VALIDATE}.calibration.calibrate",),
    "compare": (f"{_VALIDATE}.comparison.compare",),
    "Telemetry": (f"{_VALIDATE}.measurement.telemetry",),
    "InputError": (f"{_SIMULATOR}.errors",),
    "ProgramError": (f"{_SIMULATOR}.errors",),
    "RunError": (f"{_SIMULATOR}.errors",),
}
_PLUG_INS = {  # for writing programs, pieces, codecs, objectives, models and data sets
    "Program": (f"{_SIMULATOR}.programs.program",),
    "doc": (f"{_SIMULATOR}.programs.program",),
    **dict.fromkeys(
        ("ANY", "Encoded", "Handle", "NOTHING", "Node", "Payload", "Vector"),
        (f"{_SIMULATOR}.programs.effects",),
    ),
    "Seconds": (f"{_SIMULATOR}.inputs.units",),
    **dict.fromkeys(("Number", "piece"), (f"{_PIECES}.piece",)),
    "bounded_lead": (f"{_PIECES}.gate",),
    "Threshold": (f"{_PIECES}.threshold",),
    **dict.fromkeys(("PeriodOfSteps", "Rate", "Schedule"), (f"{_PIECES}.schedule",)),
    **dict.fromkeys(
        ("AdamW", "Fraction", "Identity", "Momentum", "Nesterov", "Transform", "TransformOf"),
        (f"{_PIECES}.transform",),
    ),
    **dict.fromkeys(("Graph", "GraphOf", "Ring"), (f"{_PIECES}.graph",)),
    **dict.fromkeys(("Channel", "Codec"), (f"{_CODECS}.channel",)),
    "MessageCodec": (f"{_CODECS}.message_codec",),
    **dict.fromkeys(("CodecOf", "Raw"), (f"{_CODECS}.codec",)),
    "Scenario": (f"{_SIMULATOR}.scenario.scenario",),
    **dict.fromkeys(("GradientSource", "Objective"), (f"{_SIMULATOR}.objectives.objective",)),
    "Evaluation": (f"{_SIMULATOR}.objectives.evaluation",),
    **dict.fromkeys(("ObjectivePlugin", "ObjectiveError"), (f"{_SIMULATOR}.objectives.plugins",)),
    "register_model": (f"{_VALIDATE}.torch_objective.models",),
    **dict.fromkeys(("Data", "register_data"), (f"{_VALIDATE}.torch_objective.data",)),
}
_NAMES = _COMMANDS | _PLUG_INS

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
    if name not in _NAMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    module, *attribute = _NAMES[name]
    return getattr(importlib.import_module(module), *attribute or [name])


def __dir__() -> list[str]:
    return [*globals(), *_NAMES]
