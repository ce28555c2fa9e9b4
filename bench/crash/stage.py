"""One system with one setting: its store, two workers that are started again when they end, and somebody who looks.

Workers end with the trial. All that is below one is found by a mark in its environment.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from bench.crash import kit
from bench.crash.systems import System
from bench.environments import ROOT
from everbeat.bench.machine import family

PLACES = ("a", "b")
VICTIM = "a"
RESTART_SECONDS = 1.0
"""As long as a service manager waits before it starts again what has ended."""
WARM_UP = 1_000_000
"""The first number of tasks that are not counted."""


class Unusable(Exception):
    """The trial could not be made; the message says why."""


class Line:
    """Of the ledger."""

    __slots__ = ("at_ns", "number", "pid", "place", "run", "word")

    def __init__(self, words: list[str]) -> None:
        at_ns, number, self.run, self.place, self.word = words
        self.at_ns, self.number, self.pid = int(at_ns), int(number), int(self.run.partition(".")[0])


class Stage:
    def __init__(self, system: System, variant: str, *, python: Path, url: str, directory: Path) -> None:
        self.system = system
        self.variant = variant
        self.directory = directory
        self.restarts = 0
        self.was_killed: set[str] = set()
        self._words = [str(python), "-m", "bench.crash.driver", system.adapter]
        self._surroundings = {
            **{name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")},
            "PYTHONPATH": str(ROOT),
            "CRASH_URL": url,
            "CRASH_VARIANT": variant,
            "CRASH_DIRECTORY": str(directory),
        }
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._ended_at: dict[str, float] = {}
        self._looker: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Make the tables, start the workers, and wait until each of them has run something."""
        self._run("prepare")
        for place in PLACES:
            self._start(place)
        give_up = time.monotonic() + 120
        sent = WARM_UP
        while time.monotonic() < give_up:
            self.send(sent, 8, 0.5)
            sent += 8
            if self.until(lambda: {line.place for line in self.ledger()} == set(PLACES), seconds=4):
                self.until(lambda: not self.open_runs(), seconds=10)
                return
        raise Unusable(f"not every worker has run a task: {self._last_words()}")

    def send(self, first: int, count: int, seconds: float, deed: str = "none") -> None:
        self._run("send", str(first), str(count), str(seconds), deed)

    def sender(self, first: int, count: int, seconds: float) -> "subprocess.Popen[bytes]":
        """Who goes on sending."""
        return self._begin("send", str(first), str(count), str(seconds), "none")

    def accepted(self) -> list[int]:
        return sorted(int(number) for number, _ in kit.lines(self.directory / "accepted") if int(number) < WARM_UP)

    def ledger(self) -> list[Line]:
        return [Line(words) for words in kit.lines(self.directory / "ledger")]

    def open_runs(self, place: str | None = None) -> list[Line]:
        """Begins without an end, of processes that live; in one place, or in any."""
        lines = self.ledger()
        over = {line.run for line in lines if line.word == "end"}
        alive = {where: self.members(where) for where in PLACES if place in (None, where)}
        return [line for line in lines if line.run not in over and line.pid in alive.get(line.place, ())]

    def states(self) -> dict[int, str] | None:
        """What the store says of every task that is counted; None if it can not be asked now."""
        if self._looker is None:
            self._looker = self._begin("watch", asks=True)
        assert self._looker.stdin is not None
        assert self._looker.stdout is not None
        try:
            self._looker.stdin.write("\n")
            self._looker.stdin.flush()
            said = self._looker.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            self._looker.kill()
            self._looker.communicate()
            self._looker = None
            return None
        found = {int(number): state for number, state in json.loads(said).items()}
        return {number: state for number, state in found.items() if number < WARM_UP}

    def members(self, place: str) -> set[int]:
        """The worker in this place and all below it."""
        worker = self._workers[place]
        marks = {f"CRASH_DIRECTORY={self.directory}".encode(), f"CRASH_WORKER={place}".encode()}
        marked = {pid for pid in _all_pids() if marks <= set(_environment_of(pid))}
        return marked | (set(family(worker.pid)) if worker.poll() is None else set())

    def main_pid(self, place: str) -> int:
        return self._workers[place].pid

    def kill(self, place: str) -> None:
        self.was_killed.add(place)
        worker = self._workers[place]
        below = self.members(place)
        worker.kill()
        worker.wait()
        while below:
            send(below, signal.SIGKILL)
            below = self.members(place)

    def tend(self) -> None:
        """Start again who has ended, after a while."""
        for place, worker in self._workers.items():
            if worker.poll() is None:
                continue
            since = self._ended_at.setdefault(place, time.monotonic())
            if time.monotonic() - since >= RESTART_SECONDS:
                self.restarts += place not in self.was_killed
                self.was_killed.discard(place)
                del self._ended_at[place]
                self._start(place)

    def until(self, look: Callable[[], object], *, seconds: float, every: float = 0.1) -> bool:
        give_up = time.monotonic() + seconds
        while not look():
            if time.monotonic() > give_up:
                return False
            self.tend()
            time.sleep(every)
        return True

    def close(self) -> None:
        for place in list(self._workers):
            send(self.members(place), signal.SIGCONT)
            self.kill(place)
        if self._looker is not None:
            self._looker.kill()
            self._looker.communicate()

    def _start(self, place: str) -> None:
        with (self.directory / f"worker-{place}.log").open("ab") as log:
            self._workers[place] = subprocess.Popen(
                [*self._words, "worker"], cwd=ROOT, env=self._surroundings | {"CRASH_WORKER": place},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _begin(self, *words: str, asks: bool = False) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE if asks else subprocess.DEVNULL
        with (self.directory / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*self._words, *words], cwd=ROOT, env=self._surroundings, stdin=pipe, stdout=pipe, stderr=log, text=True
            )  # fmt: skip

    def _run(self, *words: str) -> None:
        if self._begin(*words).wait(120):
            raise Unusable(f"{' '.join(words)}: {(self.directory / 'driver.log').read_text()[-600:]}")

    def _last_words(self) -> str:
        return " / ".join(path.read_text(errors="replace")[-300:] for path in self.directory.glob("worker-*.log"))


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _environment_of(pid: int) -> list[bytes]:
    """Empty once it has ended, also before anybody has waited for it."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
