"""The page, in Dash: sliders, figures, sentences, and what passes between them and `frames`."""

from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from paceline.simulator.reports.explore import address, export, picture, words
from paceline.simulator.reports.explore.controls import Control
from paceline.simulator.reports.explore.views import Explorer, View


def page(explorer: Explorer, overrides: list[str]) -> Dash:
    """Return the page of a scenario; `overrides` are those it was loaded with."""
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
    app.layout = _layout(explorer, title)
    _wire(app, explorer, overrides)
    return app


def _layout(explorer: Explorer, title: str) -> html.Div:
    rows = picture.rows(len(explorer.scenario.algorithm))
    spec = [
        {"name": knob.name, "texts": knob.texts, "own": knob.own, "at": knob.nearest(knob.own)}
        for knob in explorer.knobs
    ]
    return html.Div(
        [
            html.Header(
                [
                    html.H1(title),
                    html.P(id="pick", className="pick", **_told({"aria-live": "polite"})),
                    html.P(id="shown", className="shown"),
                    html.P(id="problems", className="problems", role="alert"),
                ]
            ),
            html.Main(
                [
                    html.Section(
                        [
                            *map(_control, explorer.knobs),
                            html.Div(
                                [
                                    html.Button("Reset all", id="reset", n_clicks=0),
                                    html.Button("Export scenario", id="export", n_clicks=0),
                                ],
                                className="buttons",
                            ),
                            *([] if explorer.knobs else [html.P("Nothing here has a slider.")]),
                        ],
                        className="controls",
                        **_told({"aria-label": "Settings"}),
                    ),
                    html.Section(
                        [
                            html.Div(id="error", **_told({"aria-label": "Error against time"})),
                            html.P(
                                "Bands run from the smallest to the largest seed. Thin lines: the "
                                "scenario as it was. Dotted: Theorem 2 in expected times, where it "
                                "holds.",
                                className="caption",
                            ),
                            html.Div(
                                id="spent",
                                style={"height": f"{rows}px"},
                                **_told({"aria-label": "Time per step"}),
                            ),
                            html.H2("In theory"),
                            html.Dl(id="theory"),
                        ],
                        className="figures",
                        **_told({"aria-label": "Prediction"}),
                    ),
                ]
            ),
            html.Div(dcc.Graph(), hidden=True),  # brings plotly; ours are drawn without its detours
            dcc.Store(id="knobs", data=spec),
            dcc.Store(id="ask"),
            dcc.Store(id="answer"),
            dcc.Store(id="poll"),
            dcc.Store(id="news"),
            dcc.Store(id="told"),
            dcc.Store(id="moved"),
            dcc.Store(id="heard"),
            dcc.Download(id="download"),
        ],
        className="page",
    )


def _told(attributes: dict[str, str]) -> dict[str, Any]:
    """Attributes for those who do not see the page, which Dash's types do not know."""
    return dict(attributes)


def _control(knob: Control) -> html.Div:
    own = knob.nearest(knob.own)
    marks = {own: {"label": f"▴ {knob.own}", "style": {"whiteSpace": "nowrap"}}}
    return html.Div(
        [
            html.Label(knob.label, htmlFor=f"box-{knob.name}"),
            dcc.Input(id=f"box-{knob.name}", type="text", value=knob.own, debounce=True),
            html.Button(
                "↺", id=f"reset-{knob.name}", n_clicks=0, title=f"back to {knob.own}",
                **_told({"aria-label": f"{knob.label}: back to {knob.own}"}),
            ),
            html.P(knob.about, className="about"),
            html.Div(
                dcc.Slider(
                    id=f"slider-{knob.name}", min=0, max=len(knob.texts) - 1, step=1, value=own,
                    marks=marks, included=False, updatemode="drag", allow_direct_input=False,
                ),
                className="slider", id=f"track-{knob.name}",
            ),
        ],
        className="control",
        **_told({"data-name": knob.name, "data-label": f"{knob.label}, {knob.about}"}),
    )  # fmt: skip


def _wire(app: Dash, explorer: Explorer, overrides: list[str]) -> None:
    names = [knob.name for knob in explorer.knobs]
    clientside: Any = app.clientside_callback
    clientside(
        ClientsideFunction("paceline", "moved"),
        Output("moved", "data"),
        *(Input(f"{kind}-{name}", key) for kind, key in _MOVES for name in names),
        Input("reset", "n_clicks"),
        State("knobs", "data"),
    )
    clientside(
        ClientsideFunction("paceline", "answered"), Output("heard", "data"), Input("answer", "data")
    )

    clientside(
        ClientsideFunction("paceline", "news"), Output("told", "data"), Input("news", "data")
    )

    @app.callback(
        Output("theory", "children"),
        Output("pick", "children"),
        Output("shown", "children"),
        Output("problems", "children"),
        Output("answer", "data"),
        Input("ask", "data"),
        prevent_initial_call=True,
    )
    def _answer(ask: dict[str, Any]) -> tuple[Any, ...]:
        frame = explorer.frame(str(ask.get("search", "")), rest=ask.get("phase") != "drag")
        look = {"dark": bool(ask.get("dark")), "narrow": bool(ask.get("narrow"))}
        heard = {
            "id": ask.get("id"),
            "phase": ask.get("phase"),
            "state": frame.state,
            "at": {
                knob.name: knob.nearest(frame.state.get(knob.name, knob.own))
                for knob in explorer.knobs
            },
            "search": address.write(frame.state),
            "more": not frame.final,
            "shown": frame.shown,
        }
        start = explorer.start()
        heard["figures"] = {
            "error": picture.error(frame, start, **look),
            "spent": picture.spent(frame, start, **look),
        }
        return (
            _theory(frame),
            frame.pick,
            frame.shown,
            no_update if ask.get("phase") == "more" else " ".join(frame.problems),
            heard,
        )

    @app.callback(Output("news", "data"), Input("poll", "data"), prevent_initial_call=True)
    def _news(asked: dict[str, Any]) -> dict[str, Any]:
        """Whether there is more to show: a question that touches no figure."""
        frame = explorer.frame(str(asked.get("search", "")), rest=True)
        return {"id": asked.get("id"), "new": frame.shown != asked.get("seen")}

    @app.callback(
        Output("download", "data"),
        Input("export", "n_clicks"),
        State("answer", "data"),
        prevent_initial_call=True,
    )
    def _export(_: int, heard: dict[str, Any] | None) -> dict[str, str]:
        frame_state, _ignored = address.read((heard or {}).get("search", ""), explorer.knobs)
        content = export.text(explorer.scenario, frame_state, explorer.knobs, overrides)
        stem = Path(explorer.scenario.file).stem
        return {"content": content, "filename": f"{stem}-explored.toml"}


_MOVES = (("slider", "value"), ("box", "value"), ("reset", "n_clicks"))


def _theory(frame: View) -> list[Any]:
    until = frame.scenario.run.duration or min(
        (part.runs[0].duration for part in frame.parts if part.runs and part.share == 1),
        default=0.0,
    )
    rows = words.said(frame.scenario, until)
    return [each for term, value in rows for each in (html.Dt(term), html.Dd(value))]
