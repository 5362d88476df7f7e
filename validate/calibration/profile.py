"""Read and write profiles: measurements that scenarios extend."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.paths import refusals
from paceline.simulator.inputs.toml_text import write_toml
from paceline.simulator.load.document import SHOWN, read_toml
from paceline.simulator.load.explain import explain, line
from paceline.simulator.results import prediction_interval, store
from paceline.simulator.results.store import free_file
from paceline.simulator.scenario.fields import Many, Section
from paceline.simulator.scenario.overhead import Overhead

DIGITS = 4  # significant digits of a number
STEADY = 0.05  # relative standard deviation below which a time is constant
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
RATES = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))

Model = TypeVar("Model", bound=BaseModel)


class _Costs(Section):
    """The tables of a profile that calibration reads."""

    overhead: Many[Overhead] = ()


@dataclass(frozen=True)
class Profile:
    """The tables and files of a profile; docs/reference/scenario.md has their keys.

    `tables`: as in TOML, quantities with units; `head`: comment lines at the top; `files`: contents
    of files that tables refer to (`file = ...`), by name; `path`: the file that it was read from.
    """

    tables: Mapping[str, Any]
    head: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    path: Path = field(default=Path("profile"), compare=False)

    @property
    def overheads(self) -> tuple[Overhead, ...]:
        """Parse the [[overhead]] tables, one per number of workers. Raises InputError."""
        table = {"overhead": self.tables.get("overhead", ())}
        return checked(_Costs, table, self.path).overhead

    def text(self) -> str:
        """Return the text of the file."""
        body = write_toml(_plain(self.tables))
        head = "".join(f"# {line}".rstrip() + "\n" for line in self.head)
        return f"{head}\n{body}" if head else body

    def write(self, path: Path | str, *, given: bool = True, overwrite: bool = True) -> Path:
        """Write the file, and the files that it refers to beside it; return its path.

        Without `overwrite` no existing file is replaced: the file takes the next free name, or is
        refused if its name was `given`. Raises InputError.
        """
        data = self.text().encode()
        path = free_file(Path(path), data, given=given, overwrite=overwrite)
        try:
            for name, content in self.files.items():
                free_file(path.parent / name, content, given=True, overwrite=overwrite)
            store.write(path, data)
            for name, content in self.files.items():
                store.write(path.parent / name, content)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written ({error.strerror}); choose another file"
            ) from None
        return path


def require_writable(path: Path) -> None:
    """Raise InputError for a file that cannot be written."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{path}: cannot be written; choose another file with --out")


def read(path: Path | str) -> Profile:
    """Read a profile. Raises InputError."""
    path = Path(path)
    tables = read_toml(path)
    if not tables.keys() & {"overhead", "calibration", "probe"}:
        raise InputError(
            f"{path}: not a profile: it has neither [[overhead]] nor [calibration]; "
            "make one by `paceline probe` or `paceline calibrate`"
        )
    if wrong := refusals(tables, str(path), path.parent, "put a copy beside it"):
        raise InputError("\n".join(wrong.values()))
    profile = Profile(tables, path=path)
    _ = profile.overheads
    return profile


def checked(model: type[Model], table: dict[str, Any], path: Path) -> Model:
    """Return the model of a table in the file at `path`. Raises InputError."""
    try:
        return model.model_validate(table, context={"folder": path.parent})
    except ValidationError as error:
        wrong = explain(error, table, model.model_json_schema())
        lines = [line(str(path), where, problem, table, {}) for where, problem in wrong.items()]
        raise InputError("\n".join(lines[:SHOWN])) from None


def seconds(value: float) -> str:
    """Format a time (seconds): "0.412 ms"."""
    return _quantity(value, TIMES, 0.1)


def ends(values: Collection[float]) -> list[float]:
    """Return the least and the largest of some numbers."""
    return [min(values), max(values)]


def between(values: Collection[float]) -> list[str]:
    """Format the least and the largest of some times (seconds)."""
    return [*map(seconds, ends(values))]


def today() -> str:
    """Return the date for [calibration]."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def size(value: float) -> str:
    """Format a size (bytes): "64 kB"."""
    return _quantity(value, SIZES)


def rate(value: float) -> str:
    """Format a bandwidth (bytes per second): "3.1 Gbit/s"."""
    return _quantity(8 * value, RATES)


def law(mean: float, spread: float) -> dict[str, Any]:
    """Return a scenario's law with this mean and standard deviation (seconds)."""
    if mean <= 0 or spread < STEADY * mean:
        return {"dist": "constant", "value": seconds(max(mean, 0.0))}
    return {"dist": "gamma", "mean": seconds(mean), "shape": rounded((mean / spread) ** 2)}


def rounded(value: float) -> float:
    """Round a number to the digits of a profile."""
    return float(f"{value:.{DIGITS}g}")


def _quantity(value: float, units: tuple[tuple[float, str], ...], least: float = 1.0) -> str:
    unit, name = next((pair for pair in units if abs(value) >= least * pair[0]), units[-1])
    if value == 0:
        unit, name = next(pair for pair in units if pair[0] == 1)
    return f"{float(f'{value / unit:.{DIGITS}g}'):.12g} {name}"


def _plain(value: Any) -> Any:
    """Return a value of a profile as dicts and lists, with its numbers rounded."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return rounded(value) if isinstance(value, float) else value


def network_kind(network: str) -> str:
    """Map a kind of network to "emulated" (its delays) or "real" (its links).

    Links of the kernel and those of one machine are both real: their times are not prescribed.
    """
    return network if network == "emulated" else "real"


def model_error(network: str) -> Mapping[str, Any]:
    """Return [calibration.model_error], the error for programs without fitted runs."""
    error: Mapping[str, Any] = prediction_interval.model_errors()[network_kind(network)]
    return error
