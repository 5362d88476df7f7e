"""Readers under test: each takes bytes and a folder, and raises InputError or nothing."""

import json
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load, parse
from paceline.simulator.reports.page.page import html
from paceline.simulator.reports.page.reading import read as read_runs
from paceline.simulator.results import documents, store
from paceline.simulator.studies import size
from paceline.simulator.studies.fit import read_targets
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.sweep import sweep
from paceline.simulator.studies.tune.tune import tune
from paceline.validate.calibration.profile import read as read_profile
from paceline.validate.comparison.compare import compare
from paceline.validate.training import events
from tests import corpus
from tests.helpers.cases import beside

Reader = Callable[[bytes, Path], None]
SMALL = ("run.steps=3", "run.seeds=1", "run.timeline_spans=50", "run.evaluate_every=1")
MOST = 2e8  # bytes: what is larger is not run here
SCENARIOS = Path(corpus.__file__).parent.parent.parent / "scenarios"


def scenario(data: bytes, folder: Path) -> None:
    """A scenario, and a few steps of it where they are cheap."""
    file = folder / "my.toml"
    file.write_bytes(data)
    load(file)
    few(file)


def few(file: Path) -> None:
    """Run a few steps of what a file says, unless it is large."""
    small = load(file, SMALL)
    if small.algorithm and small.cluster.workers <= 32 and small.objective.kind != "torch":
        expected = size.count(small, 1)
        if expected.seconds < 0.05 and expected.memory < MOST:
            simulate(small)


def profile(data: bytes, folder: Path) -> None:
    """A profile that a scenario extends, and as the base of a calibration."""
    file = folder / "profile.toml"
    file.write_bytes(data)
    (folder / "my.toml").write_text('extends = "profile.toml"\n' + corpus.SCENARIO)
    try:
        load(folder / "my.toml")
    except InputError:
        read_profile(file)
    few(folder / "my.toml")


def samples(data: bytes, folder: Path) -> None:
    """A text file as samples, a trace, a load, and regions."""
    file = folder / "t.csv"
    file.write_bytes(data)
    (folder / "my.toml").write_text(corpus.SCENARIO)
    plain = ["cluster.allow_zero=true"]
    for override in (
        'cluster.compute={ dist = "empirical", file = "t.csv" }',
        'cluster.compute={ dist = "trace", file = "t.csv" }',
        'cluster.profile={ file = "t.csv" }',
        'network={ model = "flows", regions = "t.csv" }',
    ):
        with suppress(InputError):
            load(folder / "my.toml", [*plain, override])


def platform(data: bytes, folder: Path) -> None:
    """A platform of SimGrid."""
    (folder / "p.xml").write_bytes(data)
    (folder / "my.toml").write_text(corpus.SCENARIO)
    load(folder / "my.toml", ['network={ model = "flows", platform = "p.xml" }'])


def run(data: bytes, folder: Path) -> None:
    """A run directory's document, told as a page and compared with itself."""
    there = folder / "run"
    there.mkdir(exist_ok=True)
    (there / "run.json").write_bytes(data)
    if not (there / "curves.csv").exists():
        (there / "curves.csv").write_text(CURVES)
    html(read_runs([there]))
    compare(there, there, as_measured=True).json()


def curves(data: bytes, folder: Path) -> None:
    """A run directory's curves."""
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run/curves.csv").write_bytes(data)
    run(json.dumps(DOCUMENT).encode(), folder)


def event(data: bytes, folder: Path) -> None:
    """The events of a measured run."""
    (folder / "events.csv").write_bytes(data)
    events.read(folder / "events.csv")


def page(files: dict[str, bytes], folder: Path) -> None:
    """The page of a folder with these files, alone and beside another."""
    both = [folder / "one", folder / "two"]
    for item in both:
        item.mkdir(exist_ok=True)
        for name, data in files.items():
            (item / name).write_bytes(data)
    html(read_runs(both[:1]))
    html(read_runs(both))


def kept(data: bytes, folder: Path) -> None:
    """A finished run of an unfinished command."""
    with suppress(ValueError):
        store.decode(data)


def targets(data: bytes, folder: Path) -> None:
    """Targets of a fit, and the scenarios at the ends of its ranges."""
    file = folder / "targets.toml"
    file.write_bytes(data)
    keys, actual = read_targets(file, parse(tomllib.loads(corpus.SCENARIO)))
    for target in actual:
        for place in (0.0, 0.5, 1.0):
            target.labels(target.moved(keys, [limits.at(place) for limits in keys.values()]))


READERS: dict[str, Reader] = {
    reader.__name__: reader
    for reader in (scenario, profile, samples, platform, run, curves, event, kept, targets)
} | {
    "search": lambda data, folder: page({"tune.json": data}, folder),
    "swept": lambda data, folder: page({"sweep.json": data}, folder),
    "comparison": lambda data, folder: page({"comparison.json": data}, folder),
}  # fmt: skip


DOCUMENT = json.loads(beside(__file__, "run.json"))
CURVES = "label,seed,time,step,loss,accuracy,tau,bytes,cost\n" + "".join(
    f"{label},0,{0.5 * step},{step},{1.0 - 0.25 * step},,1,{step * 9},0\n"
    for label in ("ssgd", "other")
    for step in range(3)
)
documents.demand_shape(documents.SHAPES["run.json"], DOCUMENT)


@cache  # not at import, which would slow the collection of tests
def written() -> dict[str, bytes]:
    """Return files that commands write, by name; a kept run has no name."""
    world = tomllib.loads(corpus.SCENARIO)
    world["run"] = {"steps": 4, "seeds": 2, "evaluate_every": 1, "target_loss": 0.9}
    world["tune"] = {"ssgd": {"lr": [0.1, 0.2]}, "local-sgd": {"lr": [0.1], "tau": [1, 2]}}
    small = parse(world)
    names = ("tune.json", "sweep.json", "comparison.json")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tune(small, out=folder)
        sweep(small, {"cluster.workers": [1, 2]}, out=folder)
        result = simulate(small, seeds=1, out=folder)
        compare(folder, folder, as_measured=True).save(folder / "compared")
        (folder / "compared" / "comparison.json").rename(folder / "comparison.json")
        actual = {name: (folder / name).read_bytes() for name in names}
    return actual | {"": store.encode(result.runs[0])}


@cache
def seeds() -> dict[str, list[bytes]]:
    """Return valid inputs of every reader, from which the fuzzer starts."""
    shipped = {kind: sorted(SCENARIOS.rglob(f"*.{kind}")) for kind in ("toml", "csv", "xml")}
    text = {kind: [path.read_bytes() for path in paths] for kind, paths in shipped.items()}
    did = "label,seed,node,kind,step,start,end,joined,due,bytes\nssgd,0,0,step,1,0,1,,,\n"
    small = b"0.1\n0.2\n", b"0,1\n9,2\n", b"run.seeds,run.steps\n1,2\n", b"300 ms,1 s\n"
    return {
        "scenario": [corpus.SCENARIO.encode(), *text["toml"]],
        "profile": [corpus.PROFILE.encode()],
        "samples": [*text["csv"], *small],
        "platform": text["xml"],
        "run": [json.dumps(DOCUMENT).encode()],
        "curves": [CURVES.encode()],
        "event": [did.encode()],
        "search": [written()["tune.json"]],
        "swept": [written()["sweep.json"]],
        "comparison": [written()["comparison.json"]],
        "kept": [written()[""]],
        "targets": [beside(__file__, "targets.toml").encode()],
    }
