"""What to do about rows that the store will never take (PROTOCOL 7).

An outcome that can not be stored is a failure of its task. If not even that can be stored, the task stays ours, is
beaten for and never run again, until somebody sees to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Unsettled
from everbeat.run.verdicts import unstorable
from everbeat.store.messages import Ending, Flushed


@dataclass(slots=True)
class Sorted:
    """The endings of a flush from which rows were left out."""

    settled: list[Ending] = field(default_factory=list)
    again: list[Ending] = field(default_factory=list)
    """To be settled as failures."""
    stuck: list[Ending] = field(default_factory=list)
    """Can not be ended."""


class Refusals:
    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._told: set[tuple[str | None, str]] = set()

    def news(self, flushed: Flushed) -> list[Event]:
        """Each refusal is told once."""
        new = [refused for refused in flushed.refused if (refused.task_id, refused.error) not in self._told]
        self._told.update((refused.task_id, refused.error) for refused in new)
        return [
            Event(name=event.ROW_REFUSED, task_id=one.task_id, worker_id=self._worker_id, facts={"error": one.error})
            for one in new
        ]

    def sort(self, endings: Sequence[Ending], flushed: Flushed) -> Sorted:
        done = Sorted()
        for ending, settlement in zip(endings, flushed.settlements, strict=True):
            if not isinstance(settlement, Unsettled):
                done.settled.append(ending)
            elif ending.outcome is not None:
                done.again.append(ending._replace(verdict=unstorable(ending.claim, settlement.error), outcome=None))
            else:
                done.stuck.append(ending)
        return done
