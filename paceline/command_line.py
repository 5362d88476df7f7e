"""The command line: `paceline COMMAND`, its options, output and exit status."""

import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.inputs.escaping import visible
from paceline.simulator.inputs.paths import demand_possible

if TYPE_CHECKING:
    from paceline.simulator.results.ownership import Destination
    from paceline.simulator.studies.execution import Progress

# Plain help, without rich: it costs `paceline --help` 50 ms of its 150.
app = typer.Typer(
    name="paceline",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

FIGURES = "png,svg"
FILES = "Figures and data: "
PROFILE, PROFILE_FILE = "Profile: ", "profile.toml"
OBJECTIVE = "Objective: "
PAGE = "Page: "

# typer carries click along under a private name; this is click's UsageError.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

Scenario = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO", help="A scenario file (TOML), or the name of a shipped one."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Override a key; may be repeated. Name one of several tables by its index, name or "
        "label: algorithm[0].tau=5, algorithm.local-sgd.tau=5.",
    ),
]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds; default: run.seeds.")]
Engine = Annotated[str, typer.Option(metavar="auto|batched|virtual", help="The engine.")]
Jobs = Annotated[int | None, typer.Option(help="Number of processes; default: one for each core.")]
Dask = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device of the workers.")]


def _possible(out: Path | None) -> Path | None:
    """Refuse an --out that no file can have, before anything is computed."""
    if out is not None:
        demand_possible(out)
    return out


Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory for the results.", callback=_possible),
]
ProfileOut = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="PROFILE.toml",
        help="The profile to write; default: profile.toml, or the next free name.",
        callback=_possible,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")]
AllowPaths = Annotated[
    bool,
    typer.Option("--allow-paths", help="Allow the scenario to name files outside its folder."),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Run even if the estimated time or memory exceeds the safety limit."
    ),
]
Figure = Annotated[
    str,
    typer.Option("--figure", metavar="png,svg,pdf", help="Formats of the figures."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
]


@app.callback(invoke_without_command=True)
def _paceline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Predict how long distributed training takes to reach an error."""
    if version:
        from paceline.simulator.results.store import versions

        typer.echo(f"paceline {versions()['paceline']}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@app.command("simulate")
def _simulate(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Seeds = None,
    seed: Seed = 0,
    engine: Engine = "auto",
    jobs: Annotated[int, typer.Option(help="Number of processes.")] = 1,
    dask: Dask = None,
    force: Force = False,
    out: Out = None,
    overwrite: Overwrite = False,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Simulate every algorithm of a scenario: error against time.

    Also says which algorithm to pick, and how certain that is. Results go to --out (default:
    runs/NAME of the scenario, or the next free name). An interrupted command resumes when it is
    repeated.
    """
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.simulate import simulate

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    where = _destination(out, Path("runs") / Path(loaded.file).stem, overwrite)
    with _resumable(where), _figures(figure), _progress() as progress:
        result = simulate(
            loaded,
            seeds=seeds,
            seed=seed,
            engine=engine,
            jobs=jobs,
            dask=dask,
            out=where,
            force=force,
            progress=progress,
        )
    if result.resumed:
        _note(f"{result.resumed} of {len(result.runs)} runs were kept from before")

    def parts() -> list[Any]:
        said = [row["bottleneck"] for row in result.algorithms]
        said += [*result.failures, *result.jobs, result.pick["sentence"]]
        used = terminal.in_units(result.algorithms, loaded.run.target_loss)
        return [terminal.summary(result), *used, *said, f"{FILES}{where}"]

    _answer(as_json, result.json, parts, result.notes)


@app.command("sweep")
def _sweep(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="TABLE.KEY=V1,V2,...",
            help="Vary a key, named as for --set, over these values; repeat for a grid.",
        ),
    ] = None,
    pair: Annotated[
        bool, typer.Option("--zip", help="Pair the values instead of making a grid.")
    ] = False,
    points: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read the points from a CSV file, headed by a line of keys."
        ),
    ] = None,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Seeds = None,
    seed: Seed = 0,
    engine: Engine = "auto",
    jobs: Jobs = None,
    dask: Dask = None,
    force: Force = False,
    out: Out = None,
    overwrite: Overwrite = False,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario at many values of its keys, into one table.

    The last --vary varies fastest. Results go to --out (default: runs/NAME-sweep), which keeps
    finished runs: repeat an interrupted command, or add values, and only the rest runs.
    """
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.processes import cores
    from paceline.simulator.studies.sweep.points import chosen
    from paceline.simulator.studies.sweep.sweep import sweep

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    where = _destination(out, Path("runs") / f"{Path(loaded.file).stem}-sweep", overwrite)
    with _resumable(where), _figures(figure), _progress() as progress:
        result = sweep(
            loaded,
            points=chosen(vary or (), pair, points),
            seeds=seeds,
            seed=seed,
            engine=engine,
            jobs=cores() if jobs is None else jobs,
            dask=dask,
            out=where,
            force=force,
            progress=progress,
        )
    if result.resumed:
        _note(f"{result.resumed} runs were kept from before")
    rest = len(result.rows) - terminal.SWEEP_ROWS
    said = [f"{rest} more rows are in {where}/sweep.csv"] if rest > 0 else []
    said.append(f"{FILES}{where}")
    _answer(as_json, result.json, lambda: [terminal.sweep(result), *said], result.notes)


@app.command("theory")
def _theory(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seed: Annotated[
        int, typer.Option(help="Ignored (accepted for consistency with other commands).")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write theory.json here.", callback=_possible)
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Compute time per step, best periods and crossings by theory."""
    from paceline.simulator import theory
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.results import statistics, store
    from paceline.simulator.studies.learning import penalties

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    found = theory.theory(loaded) | {"penalties": penalties(loaded)}
    document = statistics.jsonable(found)
    if out:
        file, data = out / "theory.json", store.dump(document)
        with store.writing(out, "choose another --out"):
            store.write_free(file, data, given=True, overwrite=overwrite)
    _answer(as_json, lambda: document, lambda: terminal.theory(document), document["notes"])


@app.command("tune")
def _tune(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="time-to-loss|loss-at-deadline|cost-to-loss|loss-at-budget|seconds-per-step",
            help="Quantity to minimise; default: the time; without run.target_loss the loss; "
            "without a loss seconds per step.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Largest number of configurations to try.")] = 256,
    preset: Annotated[
        str | None, typer.Option(metavar="adacomm-tau0", help="Search as a paper proposes.")
    ] = None,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Seeds = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    dask: Dask = None,
    force: Force = False,
    out: Out = None,
    overwrite: Overwrite = False,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Choose algorithm and parameters by a search.

    Tries what [tune] lists; prints ties with the best, and the cost of each choice if an input is
    wrong. Results go to --out (default: runs/NAME-tune), which keeps finished runs: repeat an
    interrupted command.
    """
    where = _destination(out, Path("runs") / f"{Path(scenario).stem}-tune", overwrite)
    with _resumable(where), _figures(figure):
        from paceline.simulator.load.load import load
        from paceline.simulator.reports import terminal
        from paceline.simulator.studies.processes import cores
        from paceline.simulator.studies.tune.tune import tune

        loaded = load(scenario, overrides or (), allow_paths=allow_paths)
        with _progress("tuning", "configurations, left") as progress:
            result = tune(
                loaded,
                objective=objective,
                trials=trials,
                preset=preset,
                seeds=seeds,
                seed=seed,
                jobs=cores() if jobs is None else jobs,
                dask=dask,
                out=where,
                force=force,
                progress=progress,
            )
    if result.resumed:
        _note(f"{result.resumed} of {result.runs} runs were kept from before")
    count = f"{len(result.ranked)} configurations in {result.wall_seconds:.0f} s."
    said = [result.sentence, count, f"{FILES}{where}"]
    notes = [*result.notes, *(f"warning: {each}" for each in result.warnings)]
    _answer(as_json, result.json, lambda: [*terminal.tune(result), *said], notes)


@app.command("validate")
def _validate(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            show_default=False,
            help="A scenario file (TOML), or the name of a shipped one; none with --matrix.",
        ),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Check predictions of many algorithms under many conditions.",
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Run only these conditions of the matrix."),
    ] = None,
    report: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory for the matrix's page.", callback=_possible),
    ] = Path("docs/validation"),
    device: Device = "auto",
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; default: validation.seeds.")
    ] = None,
    seed: Seed = 0,
    out: Out = None,
    overwrite: Overwrite = False,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Train for real, and compare with the prediction.

    Each worker is a process. Results go to --out (default: runs/NAME-validate): the run directories
    predicted and measured, and their comparison. An interrupted command resumes when it is
    repeated.

    With --matrix, runs go to --out (default: runs/matrix) and the page to --report.
    """
    if matrix:
        _matrix(scenario, only, report, device, out or Path("runs/matrix"), as_json)
        return
    if scenario is None:
        raise InputError("validate: which SCENARIO? or write --matrix")
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    where = _destination(out, Path("runs") / f"{Path(loaded.file).stem}-validate", overwrite)
    validation = _torch("paceline.validate.validation")
    with _resumable(where), _figures(figure), _progress("training", "real runs, left") as progress:
        result = validation.validate(
            loaded, out=where, device=device, seed=seed, seeds=seeds, progress=progress
        )
    if result.resumed:
        _note(f"{result.resumed} of {len(result.measured.runs)} real runs were kept from before")

    def parts() -> list[Any]:
        table = terminal.summary(result.measured)
        return [table, *_compared(result.comparison), f"{FILES}{where}"]

    _answer(as_json, result.json, parts, result.notes)


def _matrix(  # noqa: PLR0913, PLR0917 - as the command
    scenario: str | None, only: str | None, report: Path, device: str, out: Path, as_json: bool
) -> None:
    """Run the validation matrix, and print which of its aims were met."""
    if scenario is not None:
        raise InputError(f"validate --matrix has its own scenarios; leave {scenario} out")
    names = None if only is None else [each.strip() for each in only.split(",")]
    module = _torch("paceline.validate.matrix.matrix")
    with _resumable(out), _progress("training", "real runs, left") as progress:
        found = module.matrix(
            out=out, report=report, only=names, device=device, progress=progress, say=_note
        )
    page = _torch("paceline.validate.matrix.page").file_stem(found.machine)
    aims = _torch("paceline.validate.matrix.terminal").aims
    _answer(as_json, found.json, lambda: [aims(found), f"{FILES}{report / page}.md"])


def _torch(module: str) -> Any:
    """Import and return a module of Paceline that needs torch; InputError if torch is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise InputError('torch is not installed; pip install "paceline[train]"') from None


@app.command("reproduce")
def _reproduce(  # noqa: PLR0913, PLR0917 - the contract's options
    paper: Annotated[
        str | None,
        typer.Argument(
            metavar="PAPER", show_default=False, help="adacomm, dts, hpsgd or hybrid; default: all."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Run all seeds of the scenarios, not only the first few.")
    ] = False,
    timing: Annotated[
        bool, typer.Option("--timing", help="Check only claims about time: seconds, not minutes.")
    ] = False,
    jobs: Jobs = None,
    report: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the page.")] = Path(
        "docs"
    ),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for finished runs.")] = Path(
        "runs/reproduce"
    ),
    as_json: AsJson = False,
) -> None:
    """Check the claims of four papers.

    Prints their numbers beside ours, with verdicts and reasons. The page, reproduction.md, and
    figures go to --report. An interrupted command resumes when it is repeated.
    """
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies import papers
    from paceline.simulator.studies.papers.reproduce import reproduce

    names = papers.NAMES if paper is None else (paper,)
    with _resumable(out), _progress("reproducing", "claims, left") as progress:
        found = reproduce(
            names,
            full=full,
            timing=timing,
            jobs=jobs,
            out=out,
            report=report,
            progress=progress,
            say=None if progress else _note,
        )
    said = f"{FILES}{report / 'reproduction.md'}"
    _answer(as_json, lambda: found, lambda: [terminal.claims(found["claims"]), said])


@app.command("explore")
def _explore(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    host: Annotated[
        str, typer.Option(help="Address to bind; the default is reachable from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Change a scenario by sliders, on a page that redraws.

    The page's address contains the state. Ctrl-C ends the command.
    """
    from paceline.simulator.reports.explore.serve import explore

    def opened(url: str) -> None:
        typer.echo(f"Exploring {scenario} at {url} (Ctrl-C ends it)")
        sys.stdout.flush()
        if not no_open:
            import webbrowser

            webbrowser.open(url)

    explore(
        scenario,
        overrides=overrides or (),
        allow_paths=allow_paths,
        host=host,
        port=port,
        say=_note,
        opened=opened,
    )


@app.command("probe")
def _probe(  # noqa: PLR0913, PLR0917 - what may be measured
    model: Annotated[str, typer.Option(help="Model to train.")] = "mlp",
    data: Annotated[str, typer.Option(help="Data set to train on.")] = "digits",
    batch: Annotated[int, typer.Option(min=1, help="Samples per gradient.")] = 16,
    workers: Annotated[
        str, typer.Option(metavar="N1,N2,...", help="Numbers of workers to measure.")
    ] = "2,4,8",
    device: Device = "auto",
    network: Annotated[
        str,
        typer.Option(
            metavar="emulated|real",
            help="Measure costs beyond an emulated delay, or the whole time of this network.",
        ),
    ] = "emulated",
    out: ProfileOut = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure this machine in a minute, as a profile.

    Measures computing, collectives, messages, and their overheads. A scenario takes the profile in
    by extends = "profile.toml", `calibrate` by --base.
    """
    parts = [each.strip() for each in workers.split(",")]
    if not all(each.isdecimal() for each in parts):
        raise InputError(f"--workers {workers}: not whole numbers; write some such as 2,4,8")
    counts = [int(each) for each in parts]
    module = _torch("paceline.validate.probe.probe")
    where = out or Path(PROFILE_FILE)
    _torch("paceline.validate.calibration.profile").require_writable(where)
    from paceline.simulator.results.ownership import free_file

    # before a minute of measuring, which gives other numbers each time
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
    if out is None:
        _note_name(where, PROFILE_FILE)
    summary = _torch("paceline.validate.probe.terminal").summary
    said = f"{PROFILE}{where}"
    notes = profile.tables["calibration"]["notes"]
    _answer(as_json, lambda: profile.tables, lambda: [*summary(profile), said], notes)


@app.command("doctor")
def _doctor(
    device: Device = "auto",
    smoke: Annotated[
        bool, typer.Option("--smoke/--no-smoke", help="Train for some seconds, to see it work.")
    ] = True,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Report to write.", callback=_possible)
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Say what is here, and what `validate` would do with it.

    Then trains for some seconds: means, gathers, HPSGD's questions, process groups made anew. The
    report, to be attached to a question, names no user, host or path.
    """
    module = _torch("paceline.validate.probe.doctor")
    from paceline.simulator.results import store
    from paceline.simulator.results.ownership import free_file

    where = out and free_file(out, None, given=True, overwrite=overwrite)
    with _progress("smoke test", "parts, left") as progress:
        found = module.diagnose(device=device, smoke=smoke, progress=progress)
    if where:
        store.write(where, store.dump(found.json()))
    tables = _torch("paceline.validate.probe.terminal").diagnosis
    said = [f"{FILES}{where}"] if where else []
    _answer(as_json, found.json, lambda: [*tables(found), found.sentence, *said])


@app.command("calibrate")
def _calibrate(  # noqa: PLR0913, PLR0917 - the contract's options
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Measured runs, a job's telemetry, or a profiler's traces; or one file of jobs, "
            "which names logs and what is known of each.",
        ),
    ],
    allow_paths: AllowPaths = False,
    profile: ProfileOut = None,
    overwrite: Overwrite = False,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE.toml", help="A profile with the numbers that the runs do not show."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a profile to measured runs.

    Fits compute times, overheads, network and error model. A scenario takes the profile in by
    extends = "PROFILE.toml"; its predictions then have error intervals. One short run of ssgd and
    one of local-sgd are enough.
    """
    where = profile or Path(PROFILE_FILE)
    _torch("paceline.validate.calibration.profile").require_writable(where)
    module = _torch("paceline.validate.logs.calibrate")
    with _progress("calibrating", "stages, left") as progress:
        result = module.calibrate(runs, base=base, allow_paths=allow_paths, progress=progress)
    where = result.profile.write(where, given=profile is not None, overwrite=overwrite)
    if profile is None:
        _note_name(where, PROFILE_FILE)
    tables, said = _torch("paceline.validate.calibration.terminal").calibration, f"{PROFILE}{where}"
    _answer(as_json, result.json, lambda: [*tables(result), result.sentence, said], result.notes)


@app.command("fit-loss")
def _fit_loss(  # noqa: PLR0913, PLR0917 - what a log cannot say
    baseline: Annotated[
        Path,
        typer.Argument(
            metavar="BASELINE",
            help="A run without local steps: a run directory of validate, a job's telemetry, or a "
            "log of steps or tokens and losses (CSV, W&B, TensorBoard, JSON lines).",
        ),
    ],
    local: Annotated[
        list[Path], typer.Argument(metavar="LOCAL_RUN", help="Runs with local steps.")
    ] = [],  # noqa: B006
    tokens: Annotated[
        float | None, typer.Option(min=1, help="Tokens of one worker's step.")
    ] = None,
    workers: Annotated[
        list[int],
        typer.Option(min=1, help="Workers of a log's run; may be repeated, once for each run."),
    ] = [],  # noqa: B006
    tau: Annotated[
        list[int],
        typer.Option(min=1, help="Period of a local run's log; may be repeated. 1: none."),
    ] = [],  # noqa: B006
    algorithm: Annotated[
        list[str], typer.Option(help="Program of a local run's log; may be repeated.")
    ] = ["diloco"],  # noqa: B006
    parameters: Annotated[
        float | None, typer.Option(min=1, help="Parameters of the model.")
    ] = None,
    noise_scale: Annotated[
        list[float], typer.Option(min=1, help="Critical batch (tokens); twice: least and largest.")
    ] = [],  # noqa: B006
    column: Annotated[
        list[str],
        typer.Option(metavar="QUANTITY=NAME", help="Column of tokens, step, loss or run."),
    ] = [],  # noqa: B006
    kind: Annotated[
        str, typer.Option(metavar="learning-curve|quadratic", help="The objective.")
    ] = "learning-curve",
    base: Annotated[
        Path | None,
        typer.Option(metavar="PROFILE.toml", help="A profile to which the objective is added."),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="LOSS.toml", help="The file to write.")
    ] = Path("loss.toml"),
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Fit an [objective] to the losses of one or two short runs.

    A scenario takes the file in by extends = "LOSS.toml". The runs may be of any training loop:
    what a log cannot say, the options do.
    """
    demand_possible(out)
    _torch("paceline.validate.calibration.profile").require_writable(out)
    module = _torch("paceline.validate.logs.loss")
    columns = dict(each.partition("=")[::2] for each in column)
    given = module.Given(tokens, workers, tau, algorithm, parameters, noise_scale, columns)
    result = module.fit([baseline, *local], given, kind, base, out.stem)
    where = result.profile.write(out, overwrite=overwrite)
    document = {"profile": result.profile.tables, "sentences": result.sentences}
    notes = result.profile.tables["calibration"]["notes"]
    _answer(as_json, lambda: document, lambda: [*result.sentences, f"{OBJECTIVE}{where}"], notes)


def _note_name(path: Path, usual: str) -> None:
    """Say where a file goes if its usual name is taken."""
    if path.name != usual:
        _note(f"{path.with_name(usual)} holds something else: this goes to {path}")


@app.command("compare")
def _compare(  # noqa: PLR0913, PLR0917 - the contract's options
    predicted: Annotated[Path, typer.Argument(metavar="PREDICTED_DIR", help="A simulated run.")],
    measured: Annotated[Path, typer.Argument(metavar="MEASURED_DIR", help="A real run.")],
    as_measured: Annotated[
        bool,
        typer.Option(
            "--as-measured", help="Let MEASURED_DIR be a simulation; every sentence says so."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write comparison.json and figures here.", callback=_possible
        ),
    ] = None,
    overwrite: Overwrite = False,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Compare a predicted run directory with a measured one.

    Prints the errors of each algorithm, what the real system adds, and what explains the
    difference. Errors in brackets are within the noise of seeds.
    """
    from paceline.validate.comparison.compare import compare

    result = compare(predicted, measured, as_measured=as_measured)
    if out:
        with _figures(figure):
            result.save(out, overwrite)
    said = [f"{FILES}{out}"] if out else []
    _answer(as_json, result.json, lambda: [*_compared(result), *said], result.notes)


def _compared(result: Any) -> list[Any]:
    """Return the parts to print: tables, what explains the differences, overall agreement."""
    from paceline.validate.comparison.terminal import comparison

    said = [f"{label}: {row['sentence']}" for label, row in result.attribution.items()]
    return [*comparison(result), *said, result.sentence]


@app.command("report")
def _report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Directories of simulate, tune, sweep, validate or compare."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="The file to write; default: report.html in the first directory, or the next "
            "free name.",
            callback=_possible,
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about runs.

    It has the pick, its certainty, and every figure, and opens without a network. Several runs are
    shown side by side.
    """
    from paceline.simulator.reports.page.page import report

    path = report(runs, out, overwrite)
    if out is None:
        _note_name(path, "report.html")
    _answer(as_json, lambda: {"report": str(path)}, lambda: [f"{PAGE}{path}"])


@app.command("schema")
def _schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from paceline.simulator.scenario.scenario import json_schema

    _print_json(json_schema())


@app.command("list")
def _list(
    name: Annotated[str, typer.Argument(metavar="programs|distributions|objectives|scenarios")],
    as_json: AsJson = False,
) -> None:
    """List algorithms, distributions, objectives or scenarios."""
    from paceline.simulator.load.listing import LISTS
    from paceline.simulator.reports import terminal

    if name not in LISTS:
        raise InputError(f"list {name}: unknown; choose one of: {', '.join(LISTS)}")
    rows = LISTS[name]()
    _answer(as_json, lambda: rows, lambda: [terminal.listing(rows)])


def _answer(
    as_json: bool,
    document: Callable[[], Any],
    parts: Callable[[], Iterable[Any]],
    notes: Iterable[str] = (),
) -> None:
    """Write notes to stderr, and to stdout the document as JSON, or else tables and sentences."""
    for note in notes:
        _note(note)
    if as_json:
        _print_json(document())
    else:
        _show(parts())


def _show(parts: Iterable[Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """A console that escapes control characters, so that no file moves the cursor."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

    console = Plain(highlight=False, markup=False)
    for part in parts:
        if isinstance(part, str):
            console.print(
                part, soft_wrap=part.startswith((FILES, PROFILE, OBJECTIVE, PAGE))
            )  # never break a path
        else:
            console.print(part, "")


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, allow_nan=False, indent=1))


def _note(text: str) -> None:
    typer.echo(f"paceline: {visible(text)}", err=True)


def _destination(out: Path | None, default: Path, overwrite: bool) -> "Destination":
    """Return where to write: `out`, or else the next free name from `default` on."""
    from paceline.simulator.results.ownership import Destination

    demand_possible(out or default)  # also where it is named after the scenario
    return Destination(out or default, given=out is not None, overwrite=overwrite, say=_note)


@contextmanager
def _resumable(out: "Path | Destination") -> Iterator[None]:
    """On Ctrl-C, say that `out` keeps the finished runs, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        _note(f"interrupted; {out} keeps the finished runs: repeat the command to resume")
        raise typer.Exit(130) from None


@contextmanager
def _figures(kinds: str) -> Iterator[None]:
    """Write figures in the formats of --figure (comma-separated) in this context."""
    from paceline.simulator.results.figures.style import formats

    with formats([kind.strip() for kind in kinds.split(",")]):
        yield


@contextmanager
def _progress(doing: str = "simulating", what: str = "runs, left") -> "Iterator[Progress | None]":
    """Show a bar on stderr, if that is a terminal; yield its callback, or None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = doing, BarColumn(), MofNCompleteColumn(), what, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def _tame_environment() -> None:
    """Remove settings of other tools with which these would fail or hang."""
    os.environ["MPLBACKEND"] = "agg"  # no window is opened, whatever the user's own choice
    odd: dict[str, Callable[[str], bool]] = {
        "COLUMNS": lambda width: not width.strip("0"),  # tables without any width would be empty
        "SOURCE_DATE_EPOCH": lambda seconds: not seconds.isdecimal(),
        "MATPLOTLIBRC": lambda path: not (os.path.isfile(path) or os.path.isdir(path)),
    }
    for name, is_odd in odd.items():
        if is_odd(os.environ.get(name, "1")):
            os.environ.pop(name, None)


def run(arguments: list[str]) -> int:
    """Run a command line; return 0, or 2 for wrong input, 130 when interrupted, 1 otherwise."""
    _tame_environment()
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot write a "±"
    try:
        status = app(arguments, prog_name="paceline", standalone_mode=False)
        sys.stdout.flush()
        return int(status or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader has closed the pipe
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
    """Describe an unexpected error: of the operating system, or a bug of Paceline."""
    if isinstance(error, OSError) and error.strerror:  # a full disk, a directory that is gone
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; repeat the command once this is fixed"
    return f"{type(error).__name__}: {error} (PACELINE_DEBUG=1 shows where)"


def _spare_stdout() -> None:
    """Discard output that stdout did not accept; Python would try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere() -> TextIO:
    """Return a stream that discards all output, for one that was closed from the start (`>&-`)."""
    return open(os.devnull, "w", encoding="utf-8")


def _fail(message: str, status: int) -> int:
    typer.echo(f"paceline: error: {visible(message)}", err=True)
    return status
