"""What a running task says of itself, on its way to the supervisor: progress and heartbeats.

A task may speak in a tight loop. Only its last word is kept, and a thread sends it, at most a few times a second; what
is left when the task ends goes before its outcome. The thread is the one that beats: a child has no other.

Things that do not work: a threading.Event to wake the thread (an interrupt may be raised in the task while it holds the
event's lock); sending from the task itself (the last word of a burst would wait for the next one).
"""

import os
import select
import threading
import time
from typing import TypeVar

from everbeat.current import Ownership, Progress
from everbeat.run.speech import Mouth
from everbeat.run.wire import GONE, Progressed, to_json

T = TypeVar("T")

PAUSE_SECONDS = 0.25
BEAT_PAUSE_SECONDS = 5.0


class Teller:
    """The speaking half of a `Line`."""

    def __init__(self, mouth: Mouth) -> None:
        self._mouth = mouth
        self._words: dict[Ownership, Progress] = {}
        """Each access is one step, so no lock is needed between the task and the thread. So it is with the next."""
        self._beats: dict[Ownership, None] = {}
        self._beaten_at: dict[Ownership, float] = {}
        self._sending = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._has_rung = False

    def progress(self, run: Ownership, progress: Progress) -> None:
        self._words[run] = progress
        if not self._has_rung:
            self._ring()

    def heartbeat(self, run: Ownership) -> None:
        now = time.monotonic()
        if now - self._beaten_at.get(run, -BEAT_PAUSE_SECONDS) < BEAT_PAUSE_SECONDS:
            return
        self._beaten_at[run] = now
        self._beats[run] = None
        if not self._has_rung:
            self._ring()

    def finish(self, run: Ownership) -> None:
        """Before the outcome of this run is sent: its last word goes first."""
        if self._has_rung or run in self._words or run in self._beaten_at:
            with self._sending:  # if the thread has taken the word, it has also sent it
                self._has_rung = False  # at worst it is rung once more
                self._beaten_at.pop(run, None)
                words = {run: self._words.pop(run)} if run in self._words else {}
                beats = [run] if run in self._beats else []
                self._beats.pop(run, None)
                self._send(words, beats)

    def wait(self, seconds: float) -> None:
        """For the thread: return after that time; until then, send what is said."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                os.eventfd_read(self._bell)
                self._tell()
                time.sleep(min(PAUSE_SECONDS, max(0.0, until - time.monotonic())))

    def _ring(self) -> None:
        self._has_rung = True
        os.eventfd_write(self._bell, 1)

    def _tell(self) -> None:
        with self._sending:
            self._has_rung = False  # first: what is said from here on rings again
            self._send(_taken(self._words), list(_taken(self._beats)))

    def _send(self, words: dict[Ownership, Progress], beats: list[Ownership]) -> None:
        reports: list[tuple[int, int, str | None]] = [(*run, as_json(said)) for run, said in words.items()]
        reports += [(*run, None) for run in beats]
        if not reports:
            return
        try:
            self._mouth.say(Progressed(reports))
        except GONE:  # the supervisor is gone, and so will we be
            return


def _taken(said: dict[Ownership, T]) -> dict[Ownership, T]:
    """Everything in it, one by one: the task may be adding to it."""
    taken = {}
    while said:
        run, word = said.popitem()
        taken[run] = word
    return taken


def as_json(said: Progress) -> str:
    note = None if said.note is None else said.note.encode("utf-8", "backslashreplace").decode()
    return to_json({"done": said.done, "total": said.total, "note": note}).decode()
