"""Wrong inputs as data (cases.toml), and the folders that they are put into."""

import gzip
import json
import shlex
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CRASHES = HERE / "crashes"
SCENARIO, PROFILE = ((HERE / name).read_text("utf-8") for name in ("my.toml", "profile.toml"))


@dataclass(frozen=True)
class Case:
    """One wrong input of cases.toml; `long` replaces LONG in its command."""

    name: str
    kind: str
    command: str
    says: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    files: dict[str, Any] = field(default_factory=dict)
    long: Any = ""

    @property
    def arguments(self) -> list[str]:
        """The command line, word by word."""
        text = content(self.long, Path(), Path()).decode()
        return [word.replace("LONG", text) for word in shlex.split(self.command)]


def cases() -> list[Case]:
    """Read cases.toml."""
    tables = tomllib.loads((HERE / "cases.toml").read_text("utf-8"))["case"]
    return [Case(**{k: tuple(v) if k in ("says", "needs") else v for k, v in table.items()})
            for table in tables]  # fmt: skip


def world(folder: Path) -> Path:
    """Fill a folder with valid files that cases need; return it."""
    from paceline.simulator.load.load import load
    from paceline.simulator.results.figures import style
    from paceline.simulator.studies.simulate import simulate
    from paceline.validate.training import events
    from paceline.validate.training.events import EVENT
    from tests.helpers.measured import given_as_real
    from tests.validate.test_calibration import worker

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "my.toml").write_text(SCENARIO)
    (folder / "profile.toml").write_text(PROFILE)
    scenario = load(folder / "my.toml")
    with style.formats([]):
        simulate(scenario, out=folder / "predicted")
    real = load(folder / "my.toml", ["cluster.workers=2", "algorithm=[{ name = 'ssgd' }]"])
    with style.formats([]):
        simulate(real, seeds=1, out=folder / "measured")
    given_as_real(folder / "measured")
    did = np.array(worker(0, 40) + worker(1, 40), EVENT)
    (folder / "measured/events.csv").write_bytes(events.write({("ssgd", 0): did}))
    for place in (folder / "predicted", folder / "measured"):
        for figure in (*place.glob("*.png"), *place.glob("*.svg")):
            figure.unlink()
    return folder


def prepare(case: Case, there: Path, folder: Path) -> None:
    """Prepare `folder` for a case, from the valid files in `there`."""
    folder.mkdir(exist_ok=True)
    for name in ("my.toml", *case.needs):
        copy = shutil.copytree if (there / name).is_dir() else shutil.copy
        copy(there / name, folder / name)
    for name, table in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(table, dict) and table.get("remove"):
            path.unlink()
        elif isinstance(table, dict) and table.get("folder"):
            path.unlink(missing_ok=True)
            path.mkdir()
        else:
            path.write_bytes(content(table, path, folder))


def content(table: Any, path: Path, folder: Path) -> bytes:
    """Return the bytes of a file of a case."""
    if isinstance(table, str):
        return table.encode()
    if isinstance(table, list):
        return b"".join(content(part, path, folder) for part in table)
    actual = b""
    if "of" in table:
        actual = (folder / table["of"]).read_bytes()
    for key in ("text", "gzip"):
        actual += table.get(key, "").encode(table.get("encoding", "utf-8"))
    actual += table.get("repeat", "").encode() * table.get("times", 1)
    actual = table.get("before", "").encode() + actual + table.get("after", "").encode()
    actual += bytes.fromhex(table.get("hex", ""))
    if "old" in table:
        old = table["old"].encode()
        assert actual.count(old) == 1, (table["of"], table["old"])
        actual = actual.replace(old, table["new"].encode())
    if "set" in table or "drop" in table:
        document = json.loads(actual)
        put(document, table.get("set") or table["drop"], table.get("to", DROP))
        actual = json.dumps(document).encode()
    if "gzip" in table:
        actual = gzip.compress(actual, mtime=0)
    return actual[: -table["cut"]] if "cut" in table else actual


DROP = object()


def put(document: Any, path: str, value: Any) -> None:
    """Set a value of a JSON document at a dotted path, or drop what is there."""
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in way:
        document = document[part]
    if value is DROP:
        del document[last]
    else:
        document[last] = value


def change(file: Path, path: str, value: Any) -> None:
    """Set a value of a JSON file at a dotted path."""
    document = json.loads(file.read_text())
    put(document, path, value)
    file.write_text(json.dumps(document))


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file in a folder, by path."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
