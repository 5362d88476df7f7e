"""The page in Dash: its layout, and the callbacks between the browser and `views`."""

from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from ...results import consumption
from . import address, export, picture, words
from .controls import Control
from .views import Explorer, View

STORES = ("ask", "answer", "poll", "news", "told", "moved", "heard")
"""What explore.js and the callbacks tell each other."""
_aria: Any = dict  # makes attributes for screen readers, which Dash's type stubs lack


def page(explorer: Explorer, overrides: list[str]) -> Dash:
    """Return the page of a scenario that was loaded with `overrides` (--set)."""
    title = explorer.scenario.title or Path(explorer.scenario.file).stem
    app = Dash(
        "paceline",
        title=f"{title} · Paceline",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        include_assets_files=True,
        serve_locally=True,
        compress=False,
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = _layout(explorer, title)
    _wire(app, explorer, overrides)
    return app


def _layout(explorer: Explorer, title: str) -> html.Div:
    rows = picture.rows(len(explorer.scenario.algorithm))
    spec = [
        {"name": each.name, "texts": each.texts, "own": each.own, "at": each.nearest(each.own)}
        for each in explorer.controls
    ]
    head = [
        html.H1(title),
        html.P(id="pick", className="pick", **_aria({"aria-live": "polite"})),
        html.P(id="shown", className="shown"),
        html.P(id="problems", className="problems", role="alert"),
    ]
    buttons = [
        html.Button("Reset all", id="reset", n_clicks=0),
        html.Button("Export scenario", id="export", n_clicks=0),
    ]
    settings: list[Any] = [
        *map(_control, explorer.controls),
        html.Div(buttons, className="buttons"),
    ]
    if not explorer.controls:
        settings.append(html.P("This scenario has no setting that a slider can move."))
    caption = (
        "Bands span the smallest to the largest seed. Thin lines: the scenario as loaded. Dotted "
        "lines: the bound of Theorem 2 with expected times, where it applies."
    )
    spent = _aria({"aria-label": "Time per step"})
    figures = [
        html.Div(id="error", role="img", **_aria({"aria-label": "Error against time"})),
        html.P(caption, className="caption"),
        html.Div(id="spent", role="img", style={"minHeight": f"{rows}px"}, **spent),
        html.Div(id="units"),
        html.H2("In theory"),
        html.Dl(id="theory"),
    ]
    sections = [
        html.Section(settings, className="controls", **_aria({"aria-label": "Settings"})),
        html.Section(figures, className="figures", **_aria({"aria-label": "Prediction"})),
    ]
    unseen = [
        html.Div(dcc.Graph(), hidden=True),  # loads plotly.js, which explore.js calls directly
        dcc.Store(id="controls", data=spec),
        *(dcc.Store(id=name) for name in STORES),
        dcc.Download(id="download"),
    ]
    return html.Div([html.Header(head), html.Main(sections), *unseen], className="page")


def _control(control: Control) -> html.Div:
    own = control.nearest(control.own)
    marks = {own: {"label": f"▴ {control.own}", "style": {"whiteSpace": "nowrap"}}}
    return html.Div(
        [
            html.Label(control.label, htmlFor=f"box-{control.name}"),
            dcc.Input(id=f"box-{control.name}", type="text", value=control.own, debounce=True),
            html.Button(
                "↺", id=f"reset-{control.name}", n_clicks=0, title=f"Reset to {control.own}",
                **_aria({"aria-label": f"Reset {control.label} to {control.own}"}),
            ),
            html.P(control.about, className="about"),
            html.Div(
                dcc.Slider(
                    id=f"slider-{control.name}", value=own,
                    min=0, max=len(control.texts) - 1, step=1,
                    marks=marks, included=False, updatemode="drag", allow_direct_input=False,
                ),
                className="slider", id=f"track-{control.name}",
            ),
        ],
        className="control",
        **_aria({"data-name": control.name, "data-label": f"{control.label}, {control.about}"}),
    )  # fmt: skip


def _wire(app: Dash, explorer: Explorer, overrides: list[str]) -> None:
    names = [control.name for control in explorer.controls]
    clientside: Any = app.clientside_callback
    clientside(
        ClientsideFunction("paceline", "moved"),
        Output("moved", "data"),
        *(Input(f"{kind}-{name}", key) for kind, key in _MOVES for name in names),
        Input("reset", "n_clicks"),
        State("controls", "data"),
    )
    for function, to, of in (("answered", "heard", "answer"), ("news", "told", "news")):
        clientside(ClientsideFunction("paceline", function), Output(to, "data"), Input(of, "data"))

    @app.callback(
        *(Output(each, "children") for each in ("theory", "units", "pick", "shown", "problems")),
        Output("answer", "data"),
        Input("ask", "data"),
        prevent_initial_call=True,
    )
    def _answer(ask: dict[str, Any]) -> tuple[Any, ...]:
        view = explorer.view(str(ask.get("search", "")), rest=ask.get("phase") != "drag")
        start = explorer.start()
        heard = {
            "id": ask.get("id"),
            "phase": ask.get("phase"),
            "state": view.state,
            "at": {
                control.name: control.nearest(view.state.get(control.name, control.own))
                for control in explorer.controls
            },
            "search": address.write(view.state),
            "more": not view.final,
            "shown": view.shown,
            "figures": {"error": picture.error(view, start), "spent": picture.spent(view, start)},
        }
        return (
            _theory(view),
            _units(view),
            view.pick,
            view.shown,
            no_update if ask.get("phase") == "more" else " ".join(view.problems),
            heard,
        )

    @app.callback(Output("news", "data"), Input("poll", "data"), prevent_initial_call=True)
    def _news(asked: dict[str, Any]) -> dict[str, Any]:
        """Whether there are more runs to show; this changes no figure."""
        view = explorer.view(str(asked.get("search", "")), rest=True)
        return {"id": asked.get("id"), "new": view.shown != asked.get("seen")}

    @app.callback(
        Output("download", "data"),
        Input("export", "n_clicks"),
        State("answer", "data"),
        prevent_initial_call=True,
    )
    def _export(_: int, heard: dict[str, Any] | None) -> dict[str, str]:
        state, _ignored = address.read((heard or {}).get("search", ""), explorer.controls)
        content = export.text(explorer.scenario, state, explorer.controls, overrides)
        stem = Path(explorer.scenario.file).stem
        return {"content": content, "filename": f"{stem}-explored.toml"}


_MOVES = (("slider", "value"), ("box", "value"), ("reset", "n_clicks"))


def _theory(view: View) -> list[Any]:
    until = view.scenario.run.duration or min(
        (part.runs[0].duration for part in view.parts if part.runs and part.share == 1), default=0.0
    )
    rows = words.said(view.scenario, until)
    return [each for term, value in rows for each in (html.Dt(term), html.Dd(value))]


def _units(view: View) -> list[Any]:
    """Tabulate whole runs in units of the trade; nothing where none is set."""
    rows = view.used
    what, cells = consumption.cells([*rows.values()], view.scenario.run.target_loss)
    body = [
        html.Tr([html.Th(name, scope="row"), *(html.Td(cell(row)) for cell in cells.values())])
        for name, row in rows.items()
    ]
    head = html.Tr([html.Th(each, scope="col") for each in (what, *cells)])
    return [html.Table([html.Thead(head), html.Tbody(body)])] if cells else []
