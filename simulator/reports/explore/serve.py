"""Serve the page to this machine only."""

import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import InputError
from ...load.load import load
from .explorer import Explorer

HOST = "127.0.0.1"
INSTALL = 'pip install "paceline[explore]"'


def explore(
    scenario: str,
    *,
    overrides: Sequence[str] = (),
    allow_paths: bool = False,
    port: int = 0,
    opened: Callable[[str], None],
) -> None:
    """Serve the page of a scenario until KeyboardInterrupt, which SIGTERM also raises.

    `port` 0: a free one. `opened` is called with the page's address once it answers. Raises
    InputError.
    """
    try:
        import dash  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise InputError(f"explore: {error.name} is not installed; {INSTALL}") from None
    from .page import page  # noqa: PLC0415

    loaded = load(scenario, overrides, allow_paths=allow_paths)
    if not loaded.algorithm:
        raise InputError(f"{loaded.file}: nothing to explore; add an [[algorithm]] table")
    with _listen(port) as listener:
        from werkzeug.serving import make_server  # noqa: PLC0415

        app = page(Explorer(loaded)).server
        app.register_error_handler(Exception, _malformed)
        app.before_request(_refuse_others)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        port = listener.getsockname()[1]
        server = make_server(HOST, port, app, threaded=True, fd=listener.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):  # which a shell may ignore
            signal.signal(number, signal.default_int_handler)
        opened(f"http://{HOST}:{port}/")
        server.serve_forever()  # it returns when interrupted, without raising
        raise KeyboardInterrupt


def _listen(port: int) -> socket.socket:
    """Open a socket that accepts connections. Raises InputError."""
    if not 0 <= port <= 65_535:
        raise InputError(f"--port {port}: not a port; write 0 (a free one) to 65535")
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # the rest names the address again
        raise InputError(
            f"--port {port}: cannot listen here ({why}); choose another --port, or 0 for a free one"
        ) from None


def _malformed(error: Exception) -> Any:
    """Answer a malformed request, which the page itself never sends."""
    from werkzeug.exceptions import HTTPException  # noqa: PLC0415

    if isinstance(error, HTTPException):
        return error
    return f"Malformed request: {type(error).__name__}.", 400


def _refuse_others() -> Any:
    """Refuse other host names, which a foreign page may resolve to this machine."""
    from flask import request  # noqa: PLC0415

    if request.host.rsplit(":", 1)[0] in ("localhost", HOST):
        return None
    return "This page answers only under the name of this machine.", 403
