"""`everbeat workflow show --watch` as a person sees it: on a terminal, until the workflow has ended or Ctrl-C."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest
from tests.flow_words import begin, end, graph, take
from tests.words import register

from everbeat.store.interface import Store

CLEARED = "\x1b[H\x1b[2J"
CTRL_C = b"\x03"
LONGEST = 60


class Screen:
    """A command on a terminal of its own, and what it has painted so far."""

    def __init__(self, *words: str) -> None:
        self._master, terminal = pty.openpty()
        self.command = subprocess.Popen(
            [sys.executable, "-P", "-m", "everbeat", *words],
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal for it
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )  # fmt: skip
        os.close(terminal)
        self.painted = ""

    def wait_for(self, said: str) -> str:
        """The last picture, once it says so."""
        give_up = time.monotonic() + LONGEST
        while not re.search(said, self.last):
            assert time.monotonic() < give_up, self.painted
            assert self._read(), self.painted
        return self.last

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self) -> int:
        """Its exit code, with all that it painted."""
        while self._read():
            pass
        return self.command.wait(timeout=LONGEST)

    def close(self) -> None:
        if self.command.poll() is None:
            self.command.kill()
        self.command.wait()
        os.close(self._master)

    @property
    def last(self) -> str:
        return self.painted.rpartition(CLEARED)[2]

    def _read(self) -> bool:
        """False: nobody has the terminal any more."""
        if not select.select([self._master], [], [], LONGEST)[0]:
            return False
        try:
            self.painted += os.read(self._master, 65_536).decode(errors="replace")
        except OSError:  # EIO
            return False
        return True


@pytest.fixture
def on_screen() -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def start(*words: str) -> Screen:
        opened.append(Screen(*words))
        return opened[-1]

    yield start
    for screen in opened:
        screen.close()


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def test_the_view_follows_a_workflow_and_ends_with_it(on_screen: Callable[..., Screen], store: Store, url: str) -> None:
    begin(store, graph(a="", b="a"))
    screen = on_screen("workflow", "show", "flow", "--watch", "--db", url)
    first = screen.wait_for(r"b +PENDING .*after a")
    assert re.search(r"status: +RUNNING", first)
    assert re.search(r"a +ENQUEUED", first)

    end(store, take(store)["a"])
    assert re.search(r"a +COMPLETED", screen.wait_for(r"b +ENQUEUED"))
    assert screen.command.poll() is None
    end(store, take(store)["b"])

    assert screen.ended() == 0
    assert re.search(r"status: +COMPLETED", screen.last)
    assert re.search(r"nodes: +2 COMPLETED", screen.last)
    assert screen.painted.count(CLEARED) >= 3


def test_the_graph_can_be_watched_too(on_screen: Callable[..., Screen], store: Store, url: str) -> None:
    begin(store, graph(a=""))
    screen = on_screen("workflow", "show", "flow", "--graph", "--watch", "--db", url)
    screen.wait_for(r'n0\["a<br/>ENQUEUED"\]')

    end(store, take(store)["a"])

    assert (screen.ended(), "a<br/>COMPLETED" in screen.last) == (0, True)


def test_ctrl_c_ends_the_view_and_nothing_else(on_screen: Callable[..., Screen], store: Store, url: str) -> None:
    begin(store, graph(a=""))
    screen = on_screen("workflow", "show", "flow", "--watch", "--db", url)
    screen.wait_for(r"a +ENQUEUED")

    screen.type(CTRL_C)

    assert screen.ended() == 0
    assert "Traceback" not in screen.painted
    assert list(take(store)) == ["a"]


def test_a_workflow_that_is_over_is_painted_once(on_screen: Callable[..., Screen], store: Store, url: str) -> None:
    begin(store, graph(a=""))
    end(store, take(store)["a"])

    screen = on_screen("workflow", "show", "flow", "--watch", "--db", url)

    assert (screen.ended(), screen.painted.count(CLEARED)) == (0, 1)
