"""Serve the page, by default only to this machine."""

import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import InputError
from ...load.load import load
from .explorer import Explorer

LOCAL = ("localhost", "127.0.0.1", "::1")
INSTALL = 'pip install "paceline[explore]"'


def explore(  # noqa: PLR0913 - the options of the command
    scenario: str,
    *,
    overrides: Sequence[str] = (),
    allow_paths: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    say: Callable[[str], None],
    opened: Callable[[str], None],
) -> None:
    """Serve the page of a scenario until KeyboardInterrupt, which SIGTERM also raises.

    `port` 0: a free one. `say` is called with warnings for the user, `opened` with the page's
    address once it answers. Raises InputError.
    """
    if not host.strip():
        raise InputError("--host: empty; write an address, such as 127.0.0.1")
    try:
        import dash  # noqa: F401, PLC0415 - an extra
        import tomlkit  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise InputError(f"explore: {error.name} is not installed; {INSTALL}") from None
    from .page import page  # noqa: PLC0415

    loaded = load(scenario, overrides, allow_paths=allow_paths)
    if not loaded.algorithm:
        raise InputError(f"{loaded.file}: nothing to explore; add an [[algorithm]] table")
    if not is_local(host):
        say(f"warning: {host} is reachable from other machines, and anyone there can use the page")
    with _listen(host, port) as listener, _interrupted_by_sigterm():
        from werkzeug.serving import make_server  # noqa: PLC0415

        app = page(Explorer(loaded), list(overrides)).server
        app.register_error_handler(Exception, _malformed)
        if is_local(host):
            app.before_request(lambda: _refuse_others(host))
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        address, number = listener.getsockname()[:2]
        server = make_server(address, number, app, threaded=True, fd=listener.fileno())
        opened(f"http://{f'[{host}]' if ':' in host else host}:{number}/")
        server.serve_forever()  # it returns when interrupted, without raising
        raise KeyboardInterrupt


def is_local(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Open a socket that accepts connections. Raises InputError."""
    if not 0 <= port <= 65_535:
        raise InputError(f"--port {port}: not a port; write 0 (a free one) to 65535")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # the rest names the address again
        raise InputError(
            f"--host {host} --port {port}: cannot listen here ({why}); "
            "choose another --port, or 0 for a free one"
        ) from None


def _malformed(error: Exception) -> Any:
    """Answer a malformed request, which the page itself never sends."""
    from werkzeug.exceptions import HTTPException  # noqa: PLC0415

    if isinstance(error, HTTPException):
        return error
    return f"Malformed request: {type(error).__name__}.", 400


def _refuse_others(host: str) -> Any:
    """Refuse other host names, which a foreign page may resolve to this machine."""
    from flask import request  # noqa: PLC0415

    name = request.host.rsplit(":", 1)[0] if "]" not in request.host else request.host
    if name.split("]")[0].strip("[") in {*LOCAL, host}:
        return None
    return "This page answers only under the name of this machine.", 403


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGINT raise KeyboardInterrupt, even if a shell ignores them."""
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
