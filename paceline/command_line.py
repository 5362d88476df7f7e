"""Define the commands of `paceline`, their options, output and exit status."""

import importlib
import inspect
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import accumulate
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO

import typer

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.messages import visible

if TYPE_CHECKING:
    from paceline.simulator.results.store import Destination
    from paceline.simulator.scenario.scenario import Scenario
    from paceline.simulator.studies.execution import Progress

# Plain help, because rich would cost `paceline --help` 50 ms of its 150.
app = typer.Typer(
    name="paceline",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FIGURES = "png,svg"
FILES = "Figures and data: "
RENAMED = {"doctor": ("probe", "--check"), "schema": ("list", "schema")}  # old commands
PROFILE, PROFILE_FILE = "Profile: ", "profile.toml"
OBJECTIVE = "Objective: "
PAGE = "Page: "
OPTIONS = untrusted.packaged(__file__, "options.toml")
FIRST, SILENCE = 10.0, 30.0  # seconds before the first line of progress, and between lines
REASONS = 5  # most lines of reasons below a table
EXTRAPOLATED, RESTS = "extrapolated", "basis of losses"
ASIDES = ("run.sampling = ", "ideal links: ", RESTS, "every run ends after ")  # notes that inform
KNOWN = 0.01  # least share of the work from which the remaining time is estimated

# typer carries click along under a private name; this is click's UsageError.
UsageError: type[Any] = typer.BadParameter.__bases__[0]


Answer = tuple[Callable[[], Any], Callable[[], Iterable[Any]], Iterable[str]]
"""The document of --json, the parts to print without it, and notes."""
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_explain: ContextVar[bool] = ContextVar("explain", default=False)


def _shared(
    *,
    overrides: list[str] | None = None,
    allow_paths: bool = False,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int | None = None,
    dask: str | None = None,
    force: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    figure: str = FIGURES,
    as_json: bool = False,
    quiet: bool = False,
    explain: bool = False,
) -> None:
    """Declare the options that several commands have."""


SHARED = inspect.signature(_shared).parameters


def _with_option(command: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter of a command as the option that options.toml describes."""
    name = parameter.name
    row = OPTIONS["shared"].get(name, {}) | OPTIONS.get(command, {}).get(name, {})
    default = row.pop("default", parameter.default)
    names = row.pop("names", [f"--{name.replace('_', '-')}"] * (parameter.annotation is bool))
    make: Any = typer.Argument if row.pop("argument", False) else typer.Option
    option = make(... if default is parameter.empty else default, *names, **row)
    return parameter.replace(kind=parameter.KEYWORD_ONLY, default=option)


def _command(name: str, *but: str, study: bool = False) -> Callable[[Any], Any]:
    """Register a command, which also has the option --quiet.

    A `study` has the options of `_shared`, except `but`, as keywords. A command that returns an
    `Answer` also has --json.
    """

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(run)
        options = dict(signature.parameters)
        options.pop("given", None)
        own_json = "as_json" in options

        @wraps(run)
        def command(*, quiet: bool, explain: bool = False, **given: Any) -> None:
            _quiet.set(quiet or _quiet.get())
            _explain.set(explain)
            as_json = given["as_json"] if own_json else given.pop("as_json", False)
            if answer := run(**given):
                _answer(as_json, *answer)

        extra = {*SHARED} if study else {"quiet", "explain"} & {"quiet", *OPTIONS.get(name, {})}
        extra |= {"as_json"} if signature.return_annotation is not None else set()
        options |= {key: SHARED[key] for key in SHARED if key in extra - {*options, *but}}
        parameters = [_with_option(name, option) for option in options.values()]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name)(command)
        return run

    return register


@contextmanager
def _study(
    scenario: str, suffix: str = "", *bar: str, **given: Any
) -> "Iterator[tuple[Scenario, dict[str, Any]]]":
    """Load the scenario of a study; yield it and the study's keywords."""
    from paceline.simulator.load.load import load
    from paceline.simulator.results.store import Destination
    from paceline.simulator.studies import size
    from paceline.simulator.studies.execution import cores

    sets, allow_paths = given.pop("overrides") or (), given.pop("allow_paths")
    loaded = load(scenario, sets, allow_paths=allow_paths)
    out, overwrite = given.pop("out"), given.pop("overwrite")
    path = out or Path("runs") / f"{Path(loaded.file).stem}{suffix}"
    where = Destination(path, given=out is not None, overwrite=overwrite, say=_note)
    if "jobs" in given and given["jobs"] is None:
        brief = not suffix and size.brief(loaded, given["seeds"])
        given["jobs"] = 1 if brief else cores()
    with _resumable(where), _figures(given.pop("figure")), _progress(*bar) as progress:
        yield loaded, {"out": where, "progress": progress, **given}


@app.callback(invoke_without_command=True)
def _paceline(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    quiet: bool = typer.Option(False, "-q", "--quiet", hidden=True),
) -> None:
    """Predict how long distributed training takes to reach an error."""
    _quiet.set(quiet)
    if version:
        from paceline.simulator.results.store import versions

        typer.echo(f"paceline {versions()['paceline']}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@_command("simulate", study=True)
def _simulate(scenario: str, **given: Any) -> Answer:
    """Simulate every algorithm of a scenario: error against time.

    Also recommends an algorithm, and states how certain that is. Results go to --out (default:
    runs/NAME of the scenario, or the next free name). Repeat an interrupted command to resume it.
    """
    from paceline.simulator.reports import terminal
    from paceline.simulator.results import prediction_interval
    from paceline.simulator.studies.simulate import simulate

    with _study(scenario, **given) as (loaded, how):
        result = simulate(loaded, **how)
    if result.resumed:
        _note(f"{result.resumed} of {len(result.runs)} runs were finished before")

    def parts() -> list[Any]:
        verdict = result.verdict
        more = [row["bottleneck"] for row in result.algorithms]
        more += prediction_interval.sources(result.algorithms)
        used = terminal.in_units(result.algorithms, loaded.run.target_loss)
        spent = terminal.spent(result.algorithms)
        return [
            verdict.sentence,
            terminal.summary(result),
            *terminal.language(result),
            *spent,
            *used,
            *_reasons(verdict.why, more),
            f"{FILES}{how['out']}",
        ]

    return result.json, parts, result.notes


@_command("sweep", study=True)
def _sweep(scenario: str, vary: list[str] | None = None, **given: Any) -> Answer:
    """Simulate a scenario at many values of its keys, into one table.

    The last --vary varies fastest. Results go to --out (default: runs/NAME-sweep), which keeps
    finished runs: repeat an interrupted command, or add values, and only the rest runs.
    """
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.sweep import axes, sweep

    with _study(scenario, "-sweep", **given) as (loaded, how):
        result = sweep(loaded, axes(vary or ()), **how)
    if result.resumed:
        _note(f"{result.resumed} runs were finished before")
    rest = len(terminal.distinct(result)) - terminal.SWEEP_ROWS
    lines = [f"{rest} more rows are in {how['out']}/sweep.csv"] if rest > 0 else []
    lines.append(f"{FILES}{how['out']}")
    parts = [result.verdict.sentence, terminal.sweep(result), *lines]
    return result.json, lambda: parts, result.notes


@_command("solve", "figure", study=True)
def _solve(
    scenario: str, vary: str, condition: str, between: str | None = None, **given: Any
) -> Answer:
    """Find the value of a key from which a condition holds.

    Refuses to answer if the number both rises and falls with the key. Results go to --out (default:
    runs/NAME-solve). Repeat an interrupted command to resume it.
    """
    from paceline.simulator.studies.solve import solve

    bar = ("solving", "evaluations, at most")
    with _study(scenario, "-solve", *bar, figure=FIGURES, **given) as (loaded, how):
        result = solve(loaded, vary, condition, between=between, **how)
    lines = [f"{result.evaluations} simulations.", f"{FILES}{how['out']}"]
    return result.json, lambda: [*result.sentences, *lines], loaded.notes


@_command("fit", "figure", study=True)
def _fit(scenario: str, targets: Path, fitted: Path | None = None, **given: Any) -> Answer:
    """Fit keys of a scenario to known numbers.

    Prints the values with intervals, the keys that the targets do not determine, the residuals, and
    the predictions for held-out targets. Results go to --out (default: runs/NAME-fit). Repeat an
    interrupted command to resume it.
    """
    from paceline.simulator.reports import terminal
    from paceline.simulator.reports.explore import explorer
    from paceline.simulator.results import store
    from paceline.simulator.studies.fit import fit

    overwrite = given["overwrite"]
    if fitted:  # before anything is computed
        store.free_file(fitted, None, given=True, overwrite=overwrite)
    bar = ("fitting", "points, at most")
    with _study(scenario, "-fit", *bar, figure=FIGURES, **given) as (loaded, how):
        result = fit(loaded, targets, **how)
    lines = [f"{result.evaluations} simulations.", f"{FILES}{how['out']}"]
    if fitted:
        data = explorer.fitted(loaded, result.sets).encode()
        with store.writing(fitted, "choose another -o"):
            store.write_free(fitted, data, given=True, overwrite=overwrite)
        lines.append(f"Scenario: {fitted}")
    return result.json, lambda: [*terminal.fit(result), *result.sentences, *lines], ()


@_command("theory", "seeds", "engine", "jobs", "dask", "force", "figure", study=True)
def _theory(scenario: str, as_json: bool = False, **given: Any) -> None:
    """Compute time per step, best periods and crossovers in closed form."""
    from paceline.simulator import theory
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.results import consumption, statistics, store
    from paceline.simulator.studies import bound, learning

    loaded = load(scenario, given["overrides"] or (), allow_paths=given["allow_paths"])
    results = theory.theory(loaded)
    results["notes"] += filter(None, consumption.paces(loaded))
    if as_json or given["out"]:  # may need whole runs, but no table shows them
        results["penalties"] = rows = learning.penalties(loaded)
        lost = (row["label"] for row in rows if row["ratio"] == float("inf"))
        results["notes"] += [f"{label} {learning.LOST}" for label in lost]
    results["notes"] = [*loaded.notes, *results["notes"]]
    document = statistics.jsonable(results)
    if out := given["out"]:
        with store.writing(out, "choose another --out"):
            files = {"theory.json": store.dump(document), **bound.files(loaded, out)}
            for name, data in files.items():
                store.write_free(out / name, data, given=True, overwrite=given["overwrite"])
    _answer(as_json, lambda: document, lambda: terminal.theory(document))
    sys.stdout.flush()
    _notes(document["notes"])  # below the table


@_command("tune", "engine", study=True)
def _tune(scenario: str, objective: str | None = None, trials: int = 256, **given: Any) -> Answer:
    """Search for the best algorithm and parameters.

    Tries the choices in [tune]; prints ties with the best, and the cost of each choice if an input
    is wrong. Results go to --out (default: runs/NAME-tune). Repeat an interrupted command to resume
    it.
    """
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.tune.tune import tune

    with _study(scenario, "-tune", "tuning", "parts, left", **given) as (loaded, how):
        result = tune(loaded, objective=objective, trials=trials, **how)
    if result.resumed:
        _note(f"{result.resumed} of {result.runs} runs were finished before")
    count = f"{len(result.ranked)} configurations in {result.wall_seconds:.0f} s."
    lines = [*_reasons(result.verdict.why), count, f"{FILES}{how['out']}"]
    parts = [result.verdict.sentence, *terminal.tune(result), *lines]
    return result.json, lambda: parts, result.notes


@_command("validate", "engine", "jobs", "dask", "force", study=True)
def _validate(
    scenario: str | None = None,
    matrix: bool = False,
    only: str | None = None,
    report: Path = Path("docs/evidence/validation"),
    device: str = "auto",
    **given: Any,
) -> Answer:
    """Train for real, and compare with the prediction.

    Each worker is a process. Results go to --out (default: runs/NAME-validate): the run directories
    predicted and measured, and their comparison. Repeat an interrupted command to resume it.

    With --matrix, runs go to --out (default: runs/matrix) and the page to --report.
    """
    if matrix:
        return _matrix(scenario, only, report, device, given["out"] or Path("runs/matrix"))
    if scenario is None:
        raise InputError("validate: no scenario; write a SCENARIO, or --matrix")
    from paceline.simulator.reports import terminal

    with _study(scenario, "-validate", "training", "real runs, left", **given) as (loaded, how):
        validation = _torch("paceline.validate.validation")
        result = validation.validate(loaded, device=device, **how)
    if result.resumed:
        _note(f"{result.resumed} of {len(result.measured.runs)} real runs were finished before")

    def parts() -> list[Any]:
        table = terminal.summary(result.measured)
        spent = terminal.spent(result.measured.algorithms)
        return [table, *spent, *_compared(result.comparison), f"{FILES}{how['out']}"]

    return result.json, parts, result.notes


def _matrix(scenario: str | None, only: str | None, report: Path, device: str, out: Path) -> Answer:
    """Run the validation matrix, and print its errors."""
    if scenario is not None:
        raise InputError(f"validate --matrix uses fixed scenarios; omit {scenario}")
    names = None if only is None else [name.strip() for name in only.split(",")]
    module = _torch("paceline.validate.matrix.matrix")
    with _resumable(out), _progress("training", "real runs, left") as progress:
        result = module.matrix(
            out=out, report=report, only=names, device=device, progress=progress, say=_note
        )
    page = _torch("paceline.validate.matrix.page")
    file = report / f"{page.file_stem(result.machine)}.md"
    return result.json, lambda: [page.table(result), f"{FILES}{file}"], ()


def _torch(module: str) -> Any:
    """Import a module of Paceline that needs torch; refuse if torch is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise InputError('torch is not installed; pip install "paceline[train]"') from None


@_command("reproduce")
def _reproduce(
    paper: str | None = None,
    full: bool = False,
    timing: bool = False,
    overrides: list[str] | None = None,
    jobs: int | None = None,
    report: Path | None = None,
    out: Path = Path("runs/reproduce"),
) -> Answer:
    """Check the claims of four papers.

    Prints their numbers and ours, with verdicts and reasons, and writes the page reproduction.md
    with figures. Repeat an interrupted command to resume it.
    """
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.papers.reproduce import NAMES, REAL, reproduce

    names = NAMES if paper is None else (paper,)
    with _resumable(out), _progress("reproducing", "claims", known=inf) as progress:
        claims = reproduce(
            names,
            full=full,
            timing=timing,
            overrides=overrides or (),
            jobs=jobs,
            out=out,
            report=report or out,
            progress=progress,
        )
    parts = [terminal.claims(claims["claims"]), terminal.verdicts(claims["summary"])]
    page = "real-data.md" if paper == REAL else "reproduction.md"
    parts.append(f"{FILES}{(report or out) / page}")
    return lambda: claims, lambda: parts, ()


@_command("explore")
def _explore(
    scenario: str,
    overrides: list[str] | None = None,
    allow_paths: bool = False,
    port: int = 0,
    no_open: bool = False,
) -> None:
    """Explore a scenario with sliders, on a page that updates itself.

    Ctrl-C ends the command.
    """
    from paceline.simulator.reports.explore.serve import explore

    def opened(url: str) -> None:
        typer.echo(f"Exploring {scenario} at {url} (Ctrl-C ends it)")
        sys.stdout.flush()
        if not no_open:
            import webbrowser

            webbrowser.open(url)

    explore(scenario, overrides=overrides or (), allow_paths=allow_paths, port=port, opened=opened)


@_command("probe")
def _probe(
    model: str = "mlp",
    data: str = "digits",
    batch: int = 16,
    workers: str = "2,4,8",
    device: str = "auto",
    network: str = "emulated",
    check: bool = False,
    smoke: bool = True,
    out: Path | None = None,
    overwrite: bool = False,
) -> Answer:
    """Measure this machine for a minute, and write a profile.

    Measures computing, collectives, messages, and their overheads. Use the profile in a scenario
    with extends = "profile.toml", or give it to `calibrate` as --base.

    With --check, reports this machine's hardware and software, and how `validate` would use them;
    then trains for a few seconds, to test averages, gathers, HPSGD's requests and rebuilt process
    groups. You may attach the report, --out FILE.json, to an issue: it names no user, host or path.
    """
    if check:
        return _check(device, smoke, out, overwrite)
    parts = [part.strip() for part in workers.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--workers {workers}: not whole numbers; write a list such as 2,4,8")
    counts = [int(part) for part in parts]
    module = _torch("paceline.validate.probe.probe")
    where = out or Path(PROFILE_FILE)
    _torch("paceline.validate.calibration.profile").require_writable(where)
    from paceline.simulator.results.store import free_file

    # checked before a minute of measurement, whose numbers would be lost
    where = free_file(where, None, given=out is not None, overwrite=overwrite)
    with _progress("probing", "teams, left") as progress:
        profile = module.probe(
            model=model,
            data=data,
            batch=batch,
            workers=counts,
            device=device,
            network=network,
            progress=progress,
        )
    profile.write(where)
    _note_name(where, PROFILE_FILE, out)
    summary = _torch("paceline.validate.calibration.terminal").probe
    line = f"{PROFILE}{where}"
    notes = profile.tables["calibration"]["notes"]
    return lambda: profile.tables, lambda: [*summary(profile), line], notes


def _check(device: str, smoke: bool, out: Path | None, overwrite: bool) -> Answer:
    """Report what `validate` can use on this machine."""
    module = _torch("paceline.validate.probe.doctor")
    from paceline.simulator.results import store

    where = out and store.free_file(out, None, given=True, overwrite=overwrite)
    diagnosis = module.diagnose(device=device, smoke=smoke)
    if where:
        store.write(where, store.dump(diagnosis.json()))
    lines = [diagnosis.sentence, *([f"{FILES}{where}"] if where else [])]
    return diagnosis.json, lambda: [*module.tables(diagnosis), *lines], ()


@_command("calibrate")
def _calibrate(
    runs: list[Path],
    allow_paths: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    base: Path | None = None,
) -> Answer:
    """Fit a profile to measured runs.

    Fits compute times, overheads and network. Use the profile in a scenario with
    extends = "PROFILE.toml"; its predictions then have error intervals. One short run of ssgd and
    one of local-sgd are enough.
    """
    where = out or Path(PROFILE_FILE)
    module = _torch("paceline.validate.logs.calibrate")
    if _explain.get():
        lines = [line for path in runs for line in module.explain(path, allow_paths=allow_paths)]
        return lambda: {"lines": lines}, lambda: lines, ()
    _torch("paceline.validate.calibration.profile").require_writable(where)
    with _progress("calibrating", "steps, left") as progress:
        result = module.calibrate(runs, base=base, allow_paths=allow_paths, progress=progress)
    where = result.profile.write(where, given=out is not None, overwrite=overwrite)
    _note_name(where, PROFILE_FILE, out)
    tables, line = _torch("paceline.validate.calibration.terminal").calibration, f"{PROFILE}{where}"
    return result.json, lambda: [*tables(result), result.sentence, line], result.notes


@_command("fit-loss")
def _fit_loss(
    *,
    baseline: Path,
    local: list[Path],
    tokens: float | None = None,
    workers: list[int],
    tau: list[int],
    algorithm: list[str],
    parameters: float | None = None,
    noise_scale: list[float],
    warmup: float | None = None,
    column: list[str],
    out: Path = Path("loss.toml"),
    overwrite: bool = False,
) -> Answer:
    """Fit an [objective] to the losses of short runs, and draw it beside LOSS.toml.

    Use the file in a scenario with extends = "LOSS.toml". Any training loop will do: the options
    state what its log does not.
    """
    _torch("paceline.validate.calibration.profile").require_writable(out)
    module = _torch("paceline.validate.logs.loss")
    given = tokens, workers, tau, algorithm, parameters, noise_scale, warmup, column
    runs = [baseline, *local]
    profile, sentences, notes = module.fit(runs, module.Given(*given), out.stem)
    lines = [*sentences, f"{OBJECTIVE}{profile.write(out, overwrite=overwrite)}"]
    document = {"profile": profile.tables, "sentences": sentences}
    return lambda: document, lambda: lines, notes


def _note_name(path: Path, usual: str, given: Path | None) -> None:
    """Note the path of a file if its usual name is taken and the user gave no other."""
    if given is None and path.name != usual:
        _note(f"{path.with_name(usual)} has other contents: this goes to {path}")


@_command("compare")
def _compare(
    *,
    predicted: Path,
    measured: Path,
    as_measured: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    figure: str = FIGURES,
) -> Answer:
    """Compare a predicted run directory with a measured one.

    Prints the errors of each algorithm, their explanation, and the real system's overheads. Errors
    in brackets are within the noise of seeds; --json has all quantities. `paceline watch` compares
    a prediction with a log.
    """
    from paceline.validate.comparison.compare import compare

    result = compare(predicted, measured, as_measured=as_measured)
    if out:
        with _figures(figure):
            result.save(out, overwrite)
    lines = [f"{FILES}{out}"] if out else []
    return result.json, lambda: [*_compared(result), *lines], result.notes


def _compared(result: Any) -> list[Any]:
    """Return a table, explanations of differences, and the overall agreement."""
    from paceline.validate.comparison.compare import table

    sentences = [f"{label}: {row['sentence']}" for label, row in result.attribution.items()]
    return [table(result), *sentences, result.sentence]


@_command("watch")
def _watch(
    *,
    log: Path,
    plan: Path,
    label: str | None = None,
    follow: bool = False,
    seconds: float | None = None,
    column: list[str],
    as_json: bool = False,
) -> None:
    """Watch a job's log, and report when its pace or loss leave the prediction.

    Also prints what changed, what the rest will take, and the pace at the end. With --follow, waits
    for new lines until Ctrl-C, or for --for SECONDS.
    """
    from .deploy.watch import watch
    from .growing_log import follow as reports
    from .simulator.results.statistics import jsonable

    if seconds is not None and not follow:
        raise InputError("watch --for: without --follow nothing is waited for; write both")
    columns = dict(text.partition("=")[::2] for text in column)
    watcher, until = watch(plan, label=label, logs=False), inf if seconds is None else seconds
    for report in reports(watcher, log, columns, until if follow else 0.0, waiting=_note):
        typer.echo(json.dumps(jsonable(vars(report))) if as_json else visible(report.sentence))


@_command("emit")
def _emit(
    target: str,
    pick: Path,
    label: str | None = None,
    overrides: list[str] | None = None,
    allow_paths: bool = False,
    out: Path | None = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Write the code that runs a pick in another framework.

    Prints configuration and code, or writes them to --out. If the framework would train differently
    from the prediction, prints the differences, with references to its source.
    """
    from .deploy.emit.emit import emit, find

    emitted = emit(target, find(pick, label, overrides or (), allow_paths))
    if out:
        emitted.save(out, overwrite)
    code = [f"{FILES}{out}"] if out else list(emitted.files.values())
    _answer(as_json, emitted.json, lambda: [], emitted.notes)
    if not as_json:
        typer.echo("\n".join(code).rstrip())


@_command("report")
def _report(runs: list[Path], out: Path | None = None, overwrite: bool = False) -> Answer:
    """Write one HTML page about runs.

    The page shows the pick, its certainty, and all figures, and opens offline. Several runs are
    shown side by side.
    """
    from paceline.simulator.reports.page.page import report

    path = report(runs, out, overwrite)
    _note_name(path, "report.html", out)
    return lambda: {"report": str(path)}, lambda: [f"{PAGE}{path}"], ()


@_command("list")
def _list(name: str) -> Answer | None:
    """List algorithms, scenarios and hardware; or print a scenario's JSON Schema.

    Editors use the schema to complete and check keys.
    """
    from paceline.simulator.load.listing import LISTS
    from paceline.simulator.reports import terminal

    if name == "schema":
        from paceline.simulator.scenario.scenario import json_schema

        _print_json(json_schema())
        return None
    if name not in LISTS:
        raise InputError(f"list {name}: unknown; choose one of: {', '.join(LISTS)}, schema")
    rows = LISTS[name]()
    return lambda: rows, lambda: [terminal.listing(rows)], ()


def _answer(
    as_json: bool,
    document: Callable[[], Any],
    parts: Callable[[], Iterable[Any]],
    notes: Iterable[str] = (),
) -> None:
    """Write notes to stderr; write the document, or the parts, to stdout."""
    _notes(notes)
    if as_json:
        _print_json(document())
    else:
        _show(parts())


def _show(parts: Iterable[Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """A console that escapes control characters of texts from files."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

    console = Plain(highlight=False, markup=False)
    for part in parts:
        if isinstance(part, str):
            console.print(
                part, soft_wrap=part.startswith((FILES, PROFILE, OBJECTIVE, PAGE))
            )  # never break a path
        else:
            _set_widths(part, console.width)
            blank = part.width == console.width + 1  # the only line of the last column
            console.print(part, "", crop=blank)


def _set_widths(table: Any, width: int) -> None:
    """Set the widths of a table and its columns, so a narrow terminal cuts no word."""
    from rich.cells import cell_len

    texts = [[str(text) for text in (column.header, *column.cells)] for column in table.columns]
    ends = list[tuple[int, int]]()  # the longest word and the longest line of each column
    for column, cells in zip(table.columns, texts, strict=True):
        lines = "\n".join(cells).splitlines()
        most = max(map(cell_len, lines), default=0)
        words = (cell_len(word) for line in lines for word in line.split())
        ends.append((most if column.no_wrap else max(words, default=0), most))
    between = 2 * len(ends) - 1
    room = max(width + 1 - between - sum(least for least, _ in ends), 0)
    by_need = sorted(range(len(ends)), key=lambda place: ends[place][1] - ends[place][0])
    for count, place in enumerate(by_need):
        least, most = ends[place]
        widest = least + min(most - least, room // (len(ends) - count))
        parts = (part for text in texts[place] for part in text.splitlines())
        lines = [line for part in parts for line in wrap(part, widest or 1, break_on_hyphens=False)]
        table.columns[place].width = max([least, *map(cell_len, lines)])
        room -= table.columns[place].width - least
    table.width = between + sum(column.width for column in table.columns)


def _reasons(why: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return the reasons that fit `REASONS` lines; with --explain all, and `more`."""
    if _explain.get():
        return [*why, *more]
    lines = [len(wrap(reason, 79)) for reason in why]
    shown = sum(total <= REASONS for total in accumulate(lines))
    rest = len(why) - shown + len(more)
    return [*why[:shown], *(["--explain says more."] if rest else [])]


def _notes(notes: Iterable[str]) -> None:
    """Write warnings; with --explain also notes that only inform."""
    for note in notes:
        if _explain.get():
            _note(note)
        elif EXTRAPOLATED in note:  # even if the user wants no notes
            far = "; ".join(re.findall(rf"{EXTRAPOLATED} \(([^)]*)\)", note)).split("; ")
            reasons = "; ".join(dict.fromkeys(far))
            short = f"{EXTRAPOLATED} losses, as the tables mark them: {reasons}"
            _note(short if RESTS in note else note, even_if_quiet=True)
        elif not any(text in note for text in ASIDES):
            _note(note)


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, allow_nan=False, indent=1))


def _note(text: str, even_if_quiet: bool = False) -> None:
    if even_if_quiet or not _quiet.get():
        typer.echo(f"paceline: {visible(text)}", err=True)


@contextmanager
def _resumable(out: "Path | Destination") -> Iterator[None]:
    """On Ctrl-C, note that `out` has the finished runs, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        _note(f"interrupted; {out} has the finished runs: repeat the command to resume")
        raise typer.Exit(130) from None


@contextmanager
def _figures(kinds: str) -> Iterator[None]:
    """Write figures in the formats of --figure (comma-separated) in this context."""
    from paceline.simulator.results.figures.style import formats

    with formats([kind.strip() for kind in kinds.split(",")]):
        yield


@contextmanager
def _progress(
    doing: str = "simulating", what: str = "runs, left", *, known: float = KNOWN
) -> "Iterator[Progress | None]":
    """Show progress on stderr: a bar, or lines without a terminal; yield the callback."""
    rest = Remaining(known)
    if _quiet.get() or not sys.stderr.isatty():
        yield None if _quiet.get() else _lines(doing, what.removesuffix(", left"), rest)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = doing, BarColumn(), MofNCompleteColumn(), what, TextColumn("{task.fields[left]}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", left="")

        def show(done: float, total: int) -> None:
            left = rest.words(time.monotonic(), done, total)
            bar.update(task, completed=done, total=total, left=left)

        yield show


def _lines(doing: str, what: str, rest: "Remaining") -> "Progress":
    """Return a callback that prints progress after ten seconds, then twice a minute."""
    start = last = time.monotonic()

    def show(done: float, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        left = rest.words(now, done, total)
        if now - last >= (SILENCE if last > start else FIRST) and done != total:
            last = now
            _note(f"{doing}: {done:.3g} of {total} {what}{left and f', {left}'}")

    return show


class Remaining:
    """Estimator of the remaining time, by a part's mean rate once the share `known` is done."""

    def __init__(self, known: float) -> None:
        self._known, self._began, self._before, self._done = known, 0.0, 0.0, inf

    def words(self, now: float, done: float, total: float) -> str:
        """Return the remaining time in words, and the current work; "" if unknown."""
        from paceline.simulator.studies.executors import UNDER_WAY

        if done < self._done:  # at first, and when another part begins
            self._began, self._before = now, done
        self._done = done
        if done - self._before < self._known * total:
            return ""
        rest = (now - self._began) * (total - done) / (done - self._before)
        left = f"about {rest / 60:.0f} min left" if rest >= 30 else "less than 1 min left"
        return f"{left}, at {name}" if (name := UNDER_WAY.get()) else left


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line; return its status: 0, 2 (wrong input), 130 (Ctrl-C) or 1."""
    os.environ["MPLBACKEND"] = "agg"  # never open a window, regardless of the user's setting
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal may not support "±"
    first = next((word for word in arguments if not word.startswith("-")), "")
    if first in RENAMED:
        place = arguments.index(first)
        arguments = [*arguments[:place], *RENAMED[first], *arguments[place + 1 :]]
    try:
        status = app(arguments, prog_name="paceline", standalone_mode=False)
        sys.stdout.flush()
        return int(status or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader closed the pipe
        _spare_stdout()
        return 1
    except (InputError, RunError) as error:
        return _fail(str(error), 2 if isinstance(error, InputError) else 1)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "paceline"
        return _fail(f"{error.format_message()} (see {command} --help)", 2)
    except Exception as error:
        if os.environ.get("PACELINE_DEBUG"):
            raise
        _spare_stdout()
        return _fail(_unexpected(error), 1)


def _unexpected(error: Exception) -> str:
    """Describe an unexpected error: of the operating system, or a bug in Paceline."""
    if isinstance(error, OSError) and error.strerror:  # a full disk, a missing directory
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; repeat the command once this is fixed"
    return f"{type(error).__name__}: {error} (PACELINE_DEBUG=1 shows where)"


def _spare_stdout() -> None:
    """Discard output that stdout did not accept; Python would retry it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere() -> TextIO:
    """Return a stream that discards all output, to replace a closed one (`>&-`)."""
    return open(os.devnull, "w", encoding="utf-8")


def _fail(message: str, status: int) -> int:
    typer.echo(f"paceline: error: {visible(message)}", err=True)
    return status
