"""A result in one file, from which it is restored exactly.

The file is a ZIP archive without compression, so that its size bounds what is read: the fields of
the result as JSON, and its runs as `store` keeps them. Types come from the annotations of the
result's class, never from the file.
"""

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
from pydantic import BaseModel

from ...errors import InputError
from ...inputs import untrusted
from ...load.load import Programs, parse
from ...results import documents, store
from ...results.run import Run
from ...results.store import TakenError
from ...scenario.scenario import Scenario

DOCUMENT = "result.json"
CLOSURES = "programs"  # a field of code, which no file holds: whoever reads gives it again
T = TypeVar("T")


def write(path: Path, data: bytes, overwrite: bool) -> Path:
    """Write a result that is encoded; return its path. Raises InputError."""
    try:
        with store.writing(path, "choose another file"):
            return store.write_free(path, data, given=True, overwrite=overwrite)
    except TakenError as taken:
        raise InputError(f"{taken.why}; give overwrite=True, or choose another file") from None


def encoded(kind: str, state: Mapping[str, Any]) -> bytes:
    """Return the fields of a result of class `kind` as the bytes of a file."""
    runs: list[bytes] = []
    document = {"schema": store.SCHEMA, "kind": kind, "state": packed(state, runs)}
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:  # its parts are undated: equal results, equal bytes
        archive.writestr(ZipInfo(DOCUMENT), json.dumps(document))
        for number, run in enumerate(runs):
            archive.writestr(ZipInfo(f"{number}.npz"), run)
    return buffer.getvalue()


def packed(value: Any, runs: list[bytes]) -> Any:
    """Return a value in JSON's types; its runs are put into `runs`."""
    if isinstance(value, Run):
        runs.append(store.encode(value))
        return len(runs) - 1
    plain = _plain(value)
    if isinstance(plain, Mapping):
        return {key: packed(each, runs) for key, each in plain.items()}
    if isinstance(plain, list | tuple):
        return [packed(each, runs) for each in plain]
    return plain


def _plain(value: Any) -> Any:
    """Return the parts of a value in JSON's types."""
    match value:
        case Scenario():
            return {"file": value.file, "table": value.table}
        case BaseModel():
            return value.model_dump()
        case Path():
            return str(value)
        case np.generic() | np.ndarray():
            return value.tolist()
        case _ if is_dataclass(value):
            names = (each.name for each in fields(value))
            return {name: getattr(value, name) for name in names if name != CLOSURES}
    return value


@dataclass
class Restorer:
    """Restorer of the values that `packed` converted; raises InputError or ValueError.

    `programs`: a user's; `allow_paths`: as of `load`; `runs`: those of the file.
    """

    programs: Programs = None
    allow_paths: bool = False
    runs: list[Run] = field(default_factory=list)

    def __call__(self, hint: Any, value: Any) -> Any:
        """Return the value of this type."""
        origin, args = get_origin(hint), get_args(hint)
        if hint is Run:
            return self.runs[value]
        if hint is Scenario:
            return self._scenario(value)
        if isinstance(hint, type) and is_dataclass(hint):
            return hint(**self.state(hint, value))
        if origin is list:
            return [self(args[0], each) for each in value]
        if origin is not None and issubclass(origin, Mapping):
            adapt = documents.adapter(args[0]).validate_python
            return {adapt(key): self(args[1], each) for key, each in value.items()}
        return documents.adapter(hint).validate_python(value)

    def state(self, kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a dataclass by name."""
        hints = get_type_hints(kind)
        given = [each.name for each in fields(kind) if each.init]
        return {
            name: self.programs if name == CLOSURES else self(hints[name], values[name])
            for name in given
        }

    def _scenario(self, value: Mapping[str, Any]) -> Scenario:
        file = str(value["file"])
        return parse(
            dict(value["table"]),
            file=file,
            folder=Path(file).parent,
            programs=self.programs,
            allow_paths=self.allow_paths,
        )


def read(path: Path, kind: type[T], restore: Restorer, name: str = "") -> T:
    """Read a result of class `kind`, or of that `name`, from a file. Raises InputError."""
    name = name or kind.__name__
    remedy = f"give a file that {name}.save has written"
    with untrusted.refused(path, remedy, "not a saved result"):
        try:
            data = io.BytesIO(untrusted.data(path, untrusted.LARGEST_WRITTEN))
            with ZipFile(store.stored(data)) as archive:
                sizes = {each.filename: each.file_size for each in archive.infolist()}
                if sum(sizes.values()) > len(data.getbuffer()):  # one part shown as many
                    raise ValueError("larger inside than outside")
                if sizes[DOCUMENT] > store.LARGEST_DOCUMENT:
                    raise ValueError(f"{DOCUMENT} is too large")
                document = untrusted.document(archive.read(DOCUMENT))
                count = len(sizes) - 1
                restore.runs = [store.decode(archive.read(f"{n}.npz")) for n in range(count)]
        except (BadZipFile, RuntimeError, EOFError, struct.error) as error:  # all are of zipfile
            raise ValueError(str(error)) from None
        store.demand_schema(document["schema"], path)
        if document["kind"] != name:
            said = str(document["kind"])
            raise InputError(f"{path}: a saved {said}; read it by paceline.{said}.load")
        return kind(**restore.state(kind, document["state"]))
