"""A worker among hostile rows."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.rows import Hand

ROOT = Path(__file__).parents[2]


@dataclass(slots=True, eq=False)
class HardyWorker:
    process: "subprocess.Popen[bytes]"
    hand: Hand
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until_it_has_beaten(self, times: int) -> None:
        """So often since it was asked, which takes as many seconds: every loop of it has turned meanwhile."""
        wanted = self._beats() + times
        self.until(lambda: self._beats() >= wanted, "it has beaten")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < give_up, f"waited in vain until {what}: {self.said()}"
            time.sleep(0.1)

    def _beats(self) -> int:
        return int(self.hand.ask("SELECT max(beat_seq) FROM everbeat_workers WHERE name = 'hardy'")[0][0] or 0)


@contextmanager
def a_worker(hand: Hand, log: Path) -> Iterator[HardyWorker]:
    """Stopped by SIGTERM at the end."""
    words = ["worker", "start", "tests.hostile.apps:app", "--db", hand.url, "--name", "hardy",
             "--processes", "2", "--drain-timeout", "1"]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "everbeat", *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
            stderr=file,
        )  # fmt: skip
    worker = HardyWorker(process, hand, log)
    try:
        yield worker
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
