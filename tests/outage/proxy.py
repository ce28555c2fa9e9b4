"""A line to PostgreSQL that can be cut at a chosen moment: around a COMMIT, or altogether.

It reads enough of the protocol to know which statements a transaction has run, prepared ones as well, and when COMMIT
is sent; a statement outside of a transaction commits itself. Cut `before` it, the server never hears of it and rolls
back; cut `after` it, the server has committed and the client never learns.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Where = Literal["before", "after"]
SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
HOST = "127.0.0.1"
ENDS = (b"COMMIT", b"ROLLBACK")


@dataclass
class Cut:
    where: Where
    statement: bytes
    """Part of a statement of the transaction whose COMMIT is meant."""
    is_done: bool = False


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (HOST, parts.port or 5432)
        self._listener = socket.create_server((HOST, 0))
        self._lines: set[Line] = set()
        self._lock = threading.Lock()
        self._cut: Cut | None = None
        self.is_down = False
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}@{HOST}:{port}"))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_commit(self, where: Where, statement: bytes) -> Cut:
        """Of the next transaction with this statement."""
        self._cut = Cut(where, statement)
        return self._cut

    def take_cut(self, statements: list[bytes]) -> Where | None:
        with self._lock:
            cut = self._cut
            if cut is None or not any(cut.statement in statement for statement in statements):
                return None
            self._cut = None
            cut.is_done = True
            return cut.where

    def lead_to(self, port: int) -> None:
        """From now on to another server."""
        self._target = (HOST, port)
        self._hang_up()

    def close(self) -> None:
        self.is_down = True
        self._listener.close()
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            lines = tuple(self._lines)
            self._lines.clear()
        for line in lines:
            line.close()

    def _accept(self) -> None:
        while not self.is_down:
            with suppress(OSError):
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        line = Line(self, client, server)
        with self._lock:
            self._lines.add(line)
        for pump in (line.upwards, line.downwards):
            threading.Thread(target=line.run, args=(pump,), daemon=True).start()


class Line:
    """One connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._prepared: dict[bytes, bytes] = {}
        self._statements: list[bytes] = []
        """Of the transaction that is open, or the one that stands alone."""
        self._is_open = False
        self._is_cut_after = False

    def run(self, pump: Callable[[], None]) -> None:
        with suppress(OSError, EOFError):
            pump()
        self.close()

    def close(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def upwards(self) -> None:
        while self._greet():
            continue
        while True:
            head = _exactly(self._client, 5)
            body = _exactly(self._client, struct.unpack("!I", head[1:])[0] - 4)
            statement = self._runs(head[:1], body)
            if statement == b"COMMIT" or (statement is not None and not self._is_open):
                where = self._proxy.take_cut(self._statements)
                if where == "before":
                    return
                self._is_cut_after |= where == "after"
            self._server.sendall(head + body)

    def downwards(self) -> None:
        while received := self._server.recv(65536):
            if self._is_cut_after:
                return  # the answer to COMMIT
            self._client.sendall(received)

    def _greet(self) -> bool:
        """Messages before the first ordinary one have no type. Whether another one follows."""
        head = _exactly(self._client, 8)
        length, code = struct.unpack("!II", head)
        self._server.sendall(head + _exactly(self._client, length - 8))
        return code in (SSL_REQUEST, GSS_REQUEST)

    def _runs(self, kind: bytes, body: bytes) -> bytes | None:
        """The statement that this message runs, which is noted."""
        statement: bytes | None = None
        if kind == b"Q":
            statement = body.rstrip(b"\0")
        elif kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            self._prepared[name] = query
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            statement = self._prepared.get(name, b"")
        if statement is None:
            return None
        if statement.startswith(b"BEGIN") or not self._is_open:
            self._statements.clear()
        self._is_open = (self._is_open or statement.startswith(b"BEGIN")) and statement not in ENDS
        self._statements.append(statement)
        return statement


def _exactly(source: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = source.recv(size - len(received))
        if not more:
            raise EOFError
        received += more
    return received
