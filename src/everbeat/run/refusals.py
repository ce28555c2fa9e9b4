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

Entered = tuple[Ending, int | None]
"""An ending, with the place of its run in the journal."""


@dataclass(slots=True)
class Sorted:
    """The endings of a flush from which rows were left out."""

    settled: list[Entered] = field(default_factory=list)
    again: list[Entered] = field(default_factory=list)
    """To be settled as failures."""
    stuck: list[Entered] = field(default_factory=list)
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

    def sort(self, endings: Sequence[Entered], flushed: Flushed) -> Sorted:
        done = Sorted()
        for (ending, entry), settlement in zip(endings, flushed.settlements, strict=True):
            if not isinstance(settlement, Unsettled):
                done.settled.append((ending, entry))
            elif ending.outcome is not None:
                verdict = unstorable(ending.claim, settlement.error)
                done.again.append((Ending(claim=ending.claim, verdict=verdict, pid=ending.pid), entry))
            else:
                done.stuck.append((ending, entry))
        return done
