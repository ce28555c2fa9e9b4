"""The small HTTP server of a worker, and clients that mean no good."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from everbeat.run.health import Answer
from everbeat.run.httpd import AT_ONCE, HttpServer, kept, said
from everbeat.run.unusable import AddressUnusable


@pytest.fixture
def server() -> Iterator[HttpServer]:
    pages = {"/good": said(lambda: Answer(True, "well")), "/bad": said(lambda: Answer(False, "ill"))}
    server = HttpServer("127.0.0.1", 0, pages)
    server.start()
    yield server
    server.stop()


def ask(server: HttpServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def connect(server: HttpServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_well_is_200_and_ill_is_503(server: HttpServer) -> None:
    assert ask(server, "/good") == (200, "well\n")
    assert ask(server, "/good?verbose=1") == (200, "well\n")
    assert ask(server, "/bad") == (503, "ill\n")


def test_anything_else_is_404_and_names_what_there_is(server: HttpServer) -> None:
    assert ask(server, "/../etc/passwd") == (404, "there is /livez, /readyz and /metrics\n")


def test_a_client_that_says_nothing_holds_up_nobody(server: HttpServer) -> None:
    with connect(server) as silent:
        silent.sendall(b"GET /good HT")

        assert ask(server, "/good") == (200, "well\n")


def test_more_clients_than_there_are_places_are_turned_away_and_no_threads_pile_up(server: HttpServer) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(connect(server)) for _ in range(AT_ONCE + 20)]

        turned_away = [client for client in many[AT_ONCE:] if client.recv(1) == b""]

    assert len(turned_away) == 20


def test_nonsense_is_answered_without_harm(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        assert b"400" in client.recv(1000)

    assert ask(server, "/good") == (200, "well\n")


def test_an_address_in_use_is_said(server: HttpServer) -> None:
    host, _, port = server.address.rpartition(":")

    with pytest.raises(AddressUnusable, match=f"can not listen on {host}:{port}"):
        HttpServer(host, int(port), {})


def test_what_is_expensive_is_not_asked_again_at_once() -> None:
    asked = []

    def ask() -> tuple[bool, str, bytes]:
        asked.append(1)
        return True, "text/plain", b"x"

    page = kept(ask)

    assert page() == page() == (True, "text/plain", b"x")
    assert len(asked) == 1
