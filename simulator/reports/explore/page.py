"""The page in Dash: its layout, and callbacks between the browser and the explorer."""

from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from ...errors import InputError
from ...results import consumption
from ...results.intervals import USUAL
from ...studies.result import Result
from .. import terminal
from ..page.parts import PageTable
from .explorer import Control, Explorer, exported, figures

ASSETS = Path(__file__).parent.parent / "assets"
CAPTION = f"Mean over seeds; bands: {USUAL}."
_aria: Any = dict  # passes attributes for screen readers, which Dash's type stubs lack


def page(explorer: Explorer) -> Dash:
    """Return the page of a scenario."""
    title = explorer.scenario.title or Path(explorer.scenario.file).stem
    app = Dash(
        "paceline",
        title=f"{title} · Paceline",
        update_title="",
        assets_folder=str(ASSETS),
        assets_ignore=r"^page\.",
        include_assets_files=True,
        serve_locally=True,
        compress=False,
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = _layout(explorer, title)
    _wire(app, explorer)
    return app


def _layout(explorer: Explorer, title: str) -> html.Div:
    head = [
        html.H1(title),
        html.P(id="pick", className="pick", **_aria({"aria-live": "polite"})),
        html.Details([html.Summary("Why"), html.Ul(id="why")]),
        html.P("Computing …", id="shown", className="shown"),
        html.P(id="invalid", className="problems", role="alert"),
    ]
    buttons = [
        html.Button("Reset all", id="reset", n_clicks=0),
        html.Button("Export scenario", id="export", n_clicks=0),
    ]
    settings: list[Any] = [*map(_control, explorer.controls.values())]
    settings.append(html.Div(buttons, className="buttons"))
    plot = {"id": "plot-error", "className": "plot", "role": "img"}
    plot["aria-label"] = "Error against time"
    figure = html.Figure([html.Div(className="choices"), html.Div(**_aria(plot))])
    drawn = [figure, html.P(CAPTION, className="caption"), html.Div(id="results")]
    sections = [
        html.Section(settings, className="controls", **_aria({"aria-label": "Settings"})),
        html.Section(drawn, className="figures", **_aria({"aria-label": "Prediction"})),
    ]
    unseen = [
        html.Div(dcc.Graph(), hidden=True),  # loads plotly.js, which figures.js calls directly
        *(dcc.Store(id=name) for name in ("state", "answer", "drawn")),
        dcc.Download(id="download"),
    ]
    return html.Div([html.Header(head), html.Main(sections), *unseen], className="page")


def _control(control: Control) -> html.Div:
    place = control.texts.index(control.own)
    slider = dcc.Slider(
        id=f"slider-{control.name}",
        value=place,
        min=0,
        max=len(control.texts) - 1,
        step=1,
        marks={place: {"label": f"▴ {control.own}", "style": {"whiteSpace": "nowrap"}}},
        included=False,
        updatemode="mouseup",
        allow_direct_input=False,
    )
    return html.Div(
        [
            html.B(control.label),
            html.Output(control.own, id=f"value-{control.name}"),
            html.P(control.about, className="about"),
            html.Div(slider, className="slider", id=f"track-{control.name}"),
        ],
        className="control",
        **_aria({"data-own": control.own, "data-label": f"{control.label}, {control.about}"}),
    )


def _wire(app: Dash, explorer: Explorer) -> None:
    names = [*explorer.controls]
    clientside: Any = app.clientside_callback
    drawn = Output("drawn", "data", allow_duplicate=True)
    for function, source in (("answered", "answer"), ("computing", "state")):
        named = ClientsideFunction("paceline", function)
        clientside(named, drawn, Input(source, "data"), prevent_initial_call="initial_duplicate")

    @app.callback(
        Output("state", "data"),
        {name: Output(f"value-{name}", "children") for name in names},
        {name: Output(f"slider-{name}", "value") for name in names},
        {name: Input(f"slider-{name}", "value") for name in names},
        Input("reset", "n_clicks"),
    )
    def _moved(places: dict[str, int], _: int) -> tuple[Any, ...]:
        if ctx.triggered_id == "reset":
            places = {name: one.texts.index(one.own) for name, one in explorer.controls.items()}
        texts = {name: one.texts[places[name]] for name, one in explorer.controls.items()}
        moved = {name: texts[name] for name in names if texts[name] != explorer.controls[name].own}
        return moved, texts, places

    @app.callback(
        *(Output(name, "children") for name in ("results", "pick", "why", "shown", "invalid")),
        Output("answer", "data"),
        Input("state", "data"),
        prevent_initial_call=True,
    )
    def _answer(state: dict[str, str] | None) -> tuple[Any, ...]:
        try:
            result = explorer.result(state or {})
        except (InputError, RuntimeError, ArithmeticError) as error:
            problem = f"{error} The page shows the values before that."
            return no_update, no_update, no_update, "", problem, no_update
        shown = f"Complete: {len(result.seeds)} seeds, the same numbers as paceline simulate."
        verdict = result.verdict
        why = [html.Li(text) for text in (verdict.sentence, *verdict.why)]
        return _results(result), verdict.headline, why, shown, "", figures(result)

    @app.callback(
        Output("download", "data"),
        Input("export", "n_clicks"),
        State("state", "data"),
        prevent_initial_call=True,
    )
    def _export(_: int, state: dict[str, str] | None) -> dict[str, str]:
        content = exported(explorer, state or {})
        stem = Path(explorer.scenario.file).stem
        return {"content": content, "filename": f"{stem}-explored.toml"}


def _results(result: Result) -> html.Div:
    """Tabulate the algorithms like `paceline simulate`, with any amounts that they use."""
    rows, columns = terminal.results(result)
    what, amounts = consumption.cells(rows, result.scenario.run.target_loss)
    title = f"Each algorithm; amounts {what}" if amounts else "Each algorithm"
    table = PageTable.of(title, columns | amounts, rows)
    head = html.Tr([html.Th(text, scope="col") for text in table.columns])
    body = [
        html.Tr([html.Th(name, scope="row"), *map(html.Td, cells)]) for name, *cells in table.rows
    ]
    about = _aria({"aria-label": title, "role": "region"})
    whole = html.Table([html.Thead(head), html.Tbody(body)])
    return html.Div(whole, className="wide", tabIndex=0, **about)
