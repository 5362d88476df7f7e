"""The command line: `paceline COMMAND`, its options, what it prints and its exit status."""

import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from paceline.simulator.errors import InputError, RunError
from paceline.simulator.inputs.escaping import visible

if TYPE_CHECKING:
    from paceline.simulator.studies.simulate import Progress

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
PROFILE = "Profile: "
PAGE = "Page: "

# typer carries click along under a private name; this is click's UsageError.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

Scenario = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML), or a shipped one's name.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Override a key; may be repeated. One of several tables goes by its number, name or "
        "label: algorithm[0].tau=5, algorithm.local-sgd.tau=5.",
    ),
]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write the results.")]
AllowPaths = Annotated[
    bool,
    typer.Option("--allow-paths", help="Let the scenario name files outside its folder."),
]
Force = Annotated[bool, typer.Option("--force", help="Even what seems too long, or too large.")]
Figure = Annotated[
    str,
    typer.Option("--figure", metavar="png,svg,pdf", help="Formats of the figures."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, only that.")]


@app.callback(invoke_without_command=True)
def _paceline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
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
    seeds: Annotated[int | None, typer.Option(help="How many seeds; default: run.seeds.")] = None,
    seed: Seed = 0,
    engine: Annotated[
        str, typer.Option(metavar="auto|batched|virtual", help="What runs it.")
    ] = "auto",
    jobs: Annotated[int, typer.Option(help="How many processes share the work.")] = 1,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask cluster.")] = None,
    force: Force = False,
    out: Out = None,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Run every algorithm of a scenario: error against time.

    Also says which algorithm to pick, and how sure that is. Results go to --out (default:
    runs/NAME of the scenario). An interrupted command resumes when it is repeated.
    """
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.simulate import simulate

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    out = out or Path("runs") / Path(loaded.file).stem
    with _resumable(out), _figures(figure), _progress() as progress:
        result = simulate(
            loaded,
            seeds=seeds,
            seed=seed,
            engine=engine,
            jobs=jobs,
            dask=dask,
            out=out,
            force=force,
            progress=progress,
        )
    if result.resumed:
        _note(f"{result.resumed} of {len(result.runs)} runs were kept from before")
    for note in result.notes:
        _note(note)
    if as_json:
        _print_json(result.json())
    else:
        said = [row["bottleneck"] for row in result.algorithms]
        _show(
            terminal.summary(result),
            *said,
            *result.failures,
            *result.jobs,
            result.pick["sentence"],
            FILES + str(out),
        )


@app.command("sweep")
def _sweep(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="TABLE.KEY=V1,V2,...",
            help="Values of a key, as --set takes it; repeat it for a grid.",
        ),
    ] = None,
    pair: Annotated[bool, typer.Option("--zip", help="Pair the values; no grid.")] = False,
    points: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A CSV file of points instead: a line of keys first."),
    ] = None,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; default: run.seeds.")] = None,
    seed: Seed = 0,
    engine: Annotated[
        str, typer.Option(metavar="auto|batched|virtual", help="What runs it.")
    ] = "auto",
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one for each core.")] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask cluster.")] = None,
    force: Force = False,
    out: Out = None,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Run a scenario at many values of its keys: one table.

    The last --vary varies fastest. Results go to --out (default: runs/NAME-sweep), which keeps all
    that was computed: repeat an interrupted command, or give more values, and only the rest runs.
    """
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.studies.executors import cores
    from paceline.simulator.studies.sweep.points import chosen
    from paceline.simulator.studies.sweep.sweep import sweep

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    out = out or Path("runs") / f"{Path(loaded.file).stem}-sweep"
    with _resumable(out), _figures(figure), _progress() as progress:
        result = sweep(
            loaded,
            points=chosen(vary or (), pair, points),
            seeds=seeds,
            seed=seed,
            engine=engine,
            jobs=cores() if jobs is None else jobs,
            dask=dask,
            out=out,
            force=force,
            progress=progress,
        )
    if result.resumed:
        _note(f"{result.resumed} runs were kept from before")
    for note in result.notes:
        _note(note)
    if as_json:
        _print_json(result.json())
    else:
        rest = len(result.rows) - terminal.SWEEP_ROWS
        more = [f"{rest} more rows are in {out}/sweep.csv"] if rest > 0 else []
        _show(terminal.sweep(result), *more, f"{FILES}{out}")


@app.command("theory")
def _theory(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seed: Annotated[int, typer.Option(help="Without effect: nothing here is random.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write theory.json here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time per step, best periods and crossings, in theory."""
    from paceline.simulator import theory
    from paceline.simulator.load.load import load
    from paceline.simulator.reports import terminal
    from paceline.simulator.results import statistics, store

    loaded = load(scenario, overrides or (), allow_paths=allow_paths)
    document = statistics.jsonable(theory.tabulate(loaded))
    if out:
        try:
            store.write(out / "theory.json", store.dump(document))
        except OSError as error:
            raise InputError(
                f"{out}: cannot write here ({error.strerror}); choose another --out"
            ) from None
    for note in document["notes"]:
        _note(note)
    if as_json:
        _print_json(document)
    else:
        _show(*terminal.theory(document))


@app.command("tune")
def _tune(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="time-to-loss|loss-at-deadline|cost-to-loss",
            help="What to minimise; default: the time where there is a target, else the loss.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Try at most so many configurations.")] = 256,
    preset: Annotated[
        str | None, typer.Option(metavar="adacomm-tau0", help="A search that a paper proposes.")
    ] = None,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; default: run.seeds.")] = None,
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one for each core.")] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask cluster.")] = None,
    force: Force = False,
    out: Out = None,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Pick algorithm and parameters: search what [tune] allows.

    Says what the data cannot separate from the best, and what it costs to be wrong. Results go to
    --out (default: runs/NAME-tune), which keeps all that ran: repeat an interrupted command.
    """
    out = out or Path("runs") / f"{Path(scenario).stem}-tune"
    with _resumable(out), _figures(figure):
        from paceline.simulator.load.load import load
        from paceline.simulator.reports import terminal
        from paceline.simulator.studies.executors import cores
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
                out=out,
                force=force,
                progress=progress,
            )
    if result.resumed:
        _note(f"{result.resumed} of {result.runs} runs were kept from before")
    for note in result.notes:
        _note(note)
    for warning in result.warnings:
        _note(f"warning: {warning}")
    if as_json:
        _print_json(result.json())
    else:
        said = f"{len(result.ranked)} configurations in {result.wall_seconds:.0f} s."
        _show(*terminal.tune(result), result.sentence, said, f"{FILES}{out}")


@app.command("validate")
def _validate(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            show_default=False,
            help="A scenario file (TOML), or a shipped one's name; none with --matrix.",
        ),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix", help="Many programs under many conditions, from a profile of two others."
        ),
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="These conditions of the matrix.")
    ] = None,
    report: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the matrix's page is written.")
    ] = Path("docs/validation"),
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="What the workers compute on.")
    ] = "auto",
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds; default: validation.seeds.")
    ] = None,
    seed: Seed = 0,
    out: Out = None,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Train for real, with a process for each worker, and set the prediction against it.

    Results go to --out (default: runs/NAME-validate): the run directories predicted and measured,
    and their comparison. An interrupted command resumes when it is repeated.

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
    out = out or Path("runs") / f"{Path(loaded.file).stem}-validate"
    validation = _torch("paceline.validate.validation")
    with _resumable(out), _figures(figure), _progress("training", "real runs, left") as progress:
        result = validation.validate(
            loaded, out=out, device=device, seed=seed, seeds=seeds, progress=progress
        )
    if result.resumed:
        _note(f"{result.resumed} of {len(result.measured.runs)} real runs were kept from before")
    for note in result.notes:
        _note(note)
    if as_json:
        _print_json(result.json())
    else:
        _show(terminal.summary(result.measured), *_compared(result.comparison), FILES + str(out))


def _matrix(  # noqa: PLR0913, PLR0917 - as the command
    scenario: str | None, only: str | None, report: Path, device: str, out: Path, as_json: bool
) -> None:
    """Run the validation matrix, and say how its aims were met."""
    if scenario is not None:
        raise InputError(f"validate --matrix has its own scenarios; leave {scenario} out")
    names = None if only is None else [each.strip() for each in only.split(",")]
    module = _torch("paceline.validate.matrix.matrix")
    with _resumable(out), _progress("training", "real runs, left") as progress:
        found = module.matrix(
            out=out, report=report, only=names, device=device, progress=progress, say=_note
        )
    if as_json:
        _print_json(found.json())
    else:
        from paceline.validate.matrix.terminal import aims

        page = _torch("paceline.validate.matrix.page").called(found.machine)
        _show(aims(found), f"{FILES}{report / page}.md")


def _torch(module: str) -> Any:
    """Import a module of ours that needs torch."""
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
            metavar="PAPER", show_default=False, help="adacomm, dts, hpsgd or hybrid; else all."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All seeds of the scenarios, not the first few.")
    ] = False,
    timing: Annotated[
        bool, typer.Option("--timing", help="Claims about time alone: seconds, not minutes.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="How many processes share the work; default: every core.")
    ] = None,
    report: Annotated[Path, typer.Option(metavar="DIR", help="Where the page is written.")] = Path(
        "docs"
    ),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where finished runs are kept.")] = Path(
        "runs/reproduce"
    ),
    as_json: AsJson = False,
) -> None:
    """Check what four papers claim: their numbers beside ours, with verdicts and reasons.

    The page, reproduction.md, and figures go to --report. An interrupted command resumes when it
    is repeated.
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
    if as_json:
        _print_json(found)
    else:
        _show(terminal.claims(found["claims"]), f"{FILES}{report / 'reproduction.md'}")


@app.command("explore")
def _explore(  # noqa: PLR0913, PLR0917 - the contract's options
    scenario: Scenario,
    overrides: Overrides = None,
    allow_paths: AllowPaths = False,
    host: Annotated[str, typer.Option(help="Where to listen: this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="On which port; 0: a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
) -> None:
    """Move a scenario's settings by sliders, on a page that redraws meanwhile.

    Its address holds the state. Ctrl-C ends it.
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
    model: Annotated[str, typer.Option(help="What is trained.")] = "mlp",
    data: Annotated[str, typer.Option(help="On what.")] = "digits",
    batch: Annotated[int, typer.Option(min=1, help="Samples of a gradient.")] = 16,
    workers: Annotated[
        str, typer.Option(metavar="N1,N2,...", help="Numbers of workers, each measured.")
    ] = "2,4,8",
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="What the workers compute on.")
    ] = "auto",
    network: Annotated[
        str,
        typer.Option(
            metavar="emulated|real", help="Costs beyond an emulated delay, or all that there is."
        ),
    ] = "emulated",
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="PROFILE.toml", help="Where to write it.")
    ] = Path("profile.toml"),
    as_json: AsJson = False,
) -> None:
    """Measure this machine in a minute: computing, collectives, messages, and what they cost.

    The profile is what a scenario extends (extends = "profile.toml"), and `calibrate` may build on.
    """
    parts = [each.strip() for each in workers.split(",")]
    if not all(each.isdecimal() for each in parts):
        raise InputError(f"--workers {workers}: not whole numbers; write some such as 2,4,8")
    counts = [int(each) for each in parts]
    module = _torch("paceline.validate.probe.probe")
    _torch("paceline.validate.calibration.profile").demand(out)
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
    profile.write(out)
    for note in profile.tables["calibration"]["notes"]:
        _note(note)
    if as_json:
        _print_json(profile.tables)
    else:
        from paceline.validate.probe.terminal import summary

        _show(*summary(profile), f"{PROFILE}{out}")


@app.command("calibrate")
def _calibrate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Measured runs, a job's telemetry, or a profiler's traces."
        ),
    ],
    allow_paths: AllowPaths = False,
    profile: Annotated[
        Path, typer.Option("-o", "--out", metavar="PROFILE.toml", help="Where to write it.")
    ] = Path("profile.toml"),
    base: Annotated[
        Path | None,
        typer.Option(metavar="PROFILE.toml", help="What the runs do not show is taken from here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a profile to measured runs: compute times, overheads, network, error model.

    A scenario takes it in by extends = "PROFILE.toml"; its predictions then say how far they may
    be off. One short run of ssgd and one of local-sgd are enough.
    """
    _torch("paceline.validate.calibration.profile").demand(profile)
    module = _torch("paceline.validate.calibration.calibrate")
    with _progress("calibrating", "stages, left") as progress:
        result = module.calibrate(runs, base=base, allow_paths=allow_paths, progress=progress)
    result.profile.write(profile)
    for note in result.notes:
        _note(note)
    if as_json:
        _print_json(result.json())
    else:
        from paceline.validate.calibration.terminal import calibration

        _show(*calibration(result), result.sentence, f"{PROFILE}{profile}")


@app.command("compare")
def _compare(
    predicted: Annotated[Path, typer.Argument(metavar="PREDICTED_DIR", help="A simulated run.")],
    measured: Annotated[Path, typer.Argument(metavar="MEASURED_DIR", help="A real run.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write comparison.json and figures here.")
    ] = None,
    figure: Figure = FIGURES,
    as_json: AsJson = False,
) -> None:
    """Set a predicted run directory against a measured one.

    Errors by algorithm, what the real system adds, and what is to blame. Errors in brackets are
    within the noise of seeds.
    """
    from paceline.validate.comparison.compare import compare

    result = compare(predicted, measured)
    if out:
        with _figures(figure):
            result.save(out)
    for note in result.notes:
        _note(note)
    if as_json:
        _print_json(result.json())
    else:
        _show(*_compared(result), *([f"{FILES}{out}"] if out else []))


def _compared(result: Any) -> list[Any]:
    """What a comparison comes to: its tables, who is to blame, and how well the two agree."""
    from paceline.validate.comparison.terminal import comparison

    said = [f"{label}: {row['sentence']}" for label, row in result.attribution.items()]
    return [*comparison(result), *said, result.sentence]


@app.command("report")
def _report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="What simulate, tune, sweep, validate or compare has written."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="Default: report.html in the first directory."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """One page of what runs have found: the pick, how sure it is, and every figure.

    A single HTML file that opens without a network. Several runs are set side by side.
    """
    from paceline.simulator.reports.page.page import report

    path = report(runs, out)
    if as_json:
        _print_json({"report": str(path)})
    else:
        _show(f"{PAGE}{path}")


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
    """List what a scenario may name, or shipped scenarios."""
    from paceline.simulator.load.listing import LISTS
    from paceline.simulator.reports import terminal

    if name not in LISTS:
        raise InputError(f"list {name}: unknown; choose one of: {', '.join(LISTS)}")
    rows = LISTS[name]()
    if as_json:
        _print_json(rows)
    else:
        _show(terminal.listing(rows))


def _show(*parts: Any) -> None:
    """Write tables and sentences to stdout."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """Nothing that a file says moves the cursor, or names the window."""

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

    console = Plain(highlight=False, markup=False)
    for part in parts:
        if isinstance(part, str):
            console.print(
                part, soft_wrap=part.startswith((FILES, PROFILE, PAGE))
            )  # a path is not broken
        else:
            console.print(part, "")


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, allow_nan=False, indent=1))


def _note(text: str) -> None:
    typer.echo(f"paceline: {visible(text)}", err=True)


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Say, when interrupted, that `out` keeps what is done."""
    try:
        yield
    except KeyboardInterrupt:
        _note(f"interrupted; {out} keeps the finished runs: repeat the command to resume")
        raise typer.Exit(130) from None


@contextmanager
def _figures(kinds: str) -> Iterator[None]:
    """Write figures in the formats that --figure names."""
    from paceline.simulator.results.figures.style import formats

    with formats([kind.strip() for kind in kinds.split(",")]):
        yield


@contextmanager
def _progress(doing: str = "simulating", what: str = "runs, left") -> "Iterator[Progress | None]":
    """A bar with the time left on stderr, where that is a terminal."""
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


def run(arguments: list[str]) -> int:
    """Run a command line; return 0, or 2 for wrong input, 130 when interrupted, 1 otherwise."""
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
    except BrokenPipeError:  # the reader has seen enough
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
    """What to say of an error that is not the user's, nor, of a system, ours."""
    if isinstance(error, OSError) and error.strerror:  # a full disk, a directory that is gone
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; repeat the command once that is put right"
    return f"{type(error).__name__}: {error} (PACELINE_DEBUG=1 shows where)"


def _spare_stdout() -> None:
    """Let nobody write what stdout did not take, which Python does at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere() -> TextIO:
    """Return what stands in for a stream that was closed from the start (`>&-`)."""
    return open(os.devnull, "w", encoding="utf-8")


def _fail(message: str, status: int) -> int:
    typer.echo(f"paceline: error: {visible(message)}", err=True)
    return status
