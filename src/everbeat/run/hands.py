"""What a dispatcher needs of its processes, and nothing else: a crew has it, and so has whatever stands in for one.

No call here blocks, but `wait`, for a millisecond.
"""

from collections.abc import Sequence
from typing import Protocol

from everbeat.model.task import Claim
from everbeat.run.news import News
from everbeat.run.wire import ChildKind, InterruptKind


class Hands(Protocol):
    def spawn(self, slot: int, kind: ChildKind) -> None:
        """Have a child made for a free slot. ChildReady or Died follows."""

    def send(self, slot: int, tasks: Sequence[tuple[int, Claim]]) -> bool:
        """Send tasks, each with its journal entry, to a child: all, or none."""

    def take_back(self, slot: int) -> list[tuple[int, int]]:
        """Read back what a child has not taken: (seq, fence) of tasks that it will never see."""

    def interrupt(self, slot: int, claim: Claim, kind: InterruptKind) -> bool:
        """Raise the exception for this kind in the task, if it is running. False: could not be asked for now."""

    def kill(self, slot: int) -> None:
        """End a child and everything it started. Died follows."""

    def release(self, slot: int) -> None:
        """Let an idle child go. Died follows."""

    def responsive(self, slot: int) -> bool:
        """Whether a child's beats go on."""

    def wait(self) -> bool:
        """Whether something happens within a millisecond."""

    def collect(self) -> list[News]:
        """Everything that has happened since the last call."""
