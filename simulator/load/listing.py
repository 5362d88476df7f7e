"""List the names that a scenario may use, and shipped scenarios: `paceline list`."""

from typing import Any, get_args

from ..distributions.law import ComputeLaw
from ..inputs import untrusted
from ..programs import catalogue
from ..scenario import hardware as catalogued
from ..scenario.tables import Objective
from .document import shipped

Rows = list[dict[str, Any]]
"""Rows of name, summary, parameters by name, and source."""


def algorithms() -> Rows:
    """List the algorithms with their papers; `recovers`: see docs/failures.md."""
    return [
        _row(program.name, program.summary, program.describe(), program.source)
        | {"recovers": list(program.recovers)}
        for program in catalogue().values()
    ]


def distributions() -> Rows:
    """List the distributions of random times."""
    return _models(ComputeLaw, "dist")


def objectives() -> Rows:
    """List the objectives: the functions that a run may minimise."""
    return _models(Objective, "kind")


def scenarios() -> Rows:
    """List the shipped scenarios with their files."""
    return [
        _row(name, untrusted.packaged(path, path.name).get("title", ""), {}, str(path))
        for name, path in shipped().items()
    ]


def hardware() -> Rows:
    """List kinds of links and devices with their usual numbers and sources."""
    rows = []
    for name, kind in catalogued.written()["link"].items():
        summary = f"{kind['bandwidth']}, {kind['latency']}: {kind['about']}"
        rows.append(_row(name, summary, {}, kind["about"]) | kind)
    for name, kind in catalogued.written()["device"].items():
        summary = f"{kind['flops']}, {kind['memory']}, usual MFU {kind['mfu'][1]:.0%}"
        rows.append(_row(name, summary, {}, "data sheet") | kind)
    return rows


LISTS = {
    rows.__name__: rows for rows in (algorithms, distributions, objectives, scenarios, hardware)
}
LISTS["programs"] = algorithms  # the names in the code


def _models(union: Any, tag: str) -> Rows:
    """Describe the models of an annotated union in the form of `Program.describe`."""
    rows = []
    for model in get_args(get_args(union)[0]):
        schema = model.model_json_schema()
        name, required = schema["properties"].pop(tag)["const"], schema["required"]
        parameters = {}
        for key, value in schema["properties"].items():
            default = "required" if key in required else value.get("default")
            about = value.get("description", "")
            parameters[key] = {"default": default, "unit": "", "description": about}
        summary = schema["description"].split("\n\n")[0].replace("\n", " ")
        rows.append(_row(name, summary, parameters))
    return rows


def _row(name: str, summary: str, parameters: dict[str, Any], source: str = "") -> dict[str, Any]:
    return {"name": name, "summary": summary, "parameters": parameters, "source": source}
