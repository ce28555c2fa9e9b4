"""`--http`: /livez, /readyz and /metrics, on threads of their own in the supervisor.

Answers come from memory, but for /metrics, which reads the store at most every few seconds. A client that is slow or
silent is let go after five seconds, and only a few are served at once: nobody can make the worker look dead.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from everbeat.run.health import Answer
from everbeat.run.unusable import AddressUnusable

LOGGER = logging.getLogger("everbeat")
PATIENCE_SECONDS = 5
AT_ONCE = 16
KEPT_SECONDS = 2.0
TEXT = "text/plain; charset=utf-8"

Asked = Callable[[], tuple[bool, str, bytes]]
"""Whether all is well, the content type, the body."""


class HttpServer:
    def __init__(self, host: str, port: int, pages: dict[str, Asked]) -> None:
        try:
            self._server = _Server((host, port), pages)
        except (OSError, OverflowError) as error:
            raise AddressUnusable(f"can not listen on {host}:{port}: {error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="everbeat-http", daemon=True)

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def said(answer: Callable[[], Answer]) -> Asked:
    """A page of one line."""

    def ask() -> tuple[bool, str, bytes]:
        found = answer()
        return found.is_good, TEXT, found.says.encode() + b"\n"

    return ask


def kept(ask: Asked) -> Asked:
    """An answer that many ask for is given again for a moment."""
    lock = threading.Lock()
    last: tuple[float, tuple[bool, str, bytes]] | None = None

    def ask_or_repeat() -> tuple[bool, str, bytes]:
        nonlocal last
        with lock:
            if last is None or time.monotonic() - last[0] > KEPT_SECONDS:
                last = time.monotonic(), ask()
            return last[1]

    return ask_or_repeat


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], pages: dict[str, Asked]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is its own affair."""
        LOGGER.debug("http.failed %s", sys.exception())


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def version_string(self) -> str:
        return "everbeat"

    def log_message(self, format: str, *args: Any) -> None:
        LOGGER.debug("http.asked %s", format % args)

    def _answer(self, *, with_body: bool) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            code, kind, body = 404, TEXT, b"there is /livez, /readyz and /metrics\n"
        else:
            is_good, kind, body = page()
            code = 200 if is_good else 503
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)
