"""A socket of one's own, and an app on it until Ctrl-C."""

from __future__ import annotations

import errno
import importlib.util
import socket
import threading
import webbrowser
from typing import Any

from pixalign.serving.guard import App

_MORE_PORTS = 20  # tried after a usual port that is taken


def check_serving(extra: str = "explore") -> None:
    """Refuse to serve where the packages for it are not there."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f'serving needs {" and ".join(missing)}; install: pip install "pixalign[{extra}]"'
        )


def bound(host: str, port: int | None, usual: int) -> socket.socket:
    """A listening socket: on the port that was asked for, or the first free one from the usual."""
    ports = range(usual, usual + _MORE_PORTS) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in ports:
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen()  # who asks before the server answers waits
            return listening
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise OSError(f"host {host!r}, port {number}: {error.strerror}") from error
    taken = f"port {port} is taken" if port is not None else f"ports from {usual} on are taken"
    raise OSError(f"{taken} on {host!r}; name another with --port")


def address(listening: socket.socket, host: str, token: str | None = None) -> str:
    """What to open in a browser."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    asked = f"?token={token}" if token else ""
    return f"http://{shown}:{listening.getsockname()[1]}/{asked}"


def serve(app: App, listening: socket.socket, open_in_browser: str | None = None) -> None:
    """Serve until Ctrl-C; a browser opens an address once the server answers."""
    import uvicorn

    options: dict[str, Any] = {"log_level": "warning", "access_log": False, "ws": "none"}
    options |= {"limit_concurrency": 128, "timeout_keep_alive": 30, "server_header": False}
    options |= {"timeout_graceful_shutdown": 2}
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", **options))
    if open_in_browser:
        threading.Timer(0.5, webbrowser.open, [open_in_browser]).start()
    server.run(sockets=[listening])
