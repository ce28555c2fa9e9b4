"""A child as its supervisor sees it: its channels, its pidfd, and what was sent to it and not answered."""

from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate

from everbeat.run.server import Server
from everbeat.run.speech import Ear
from everbeat.run.tickets import AT_ONCE, Tickets
from everbeat.run.wire import Channel, ChildKind, FromChild, Guard, Job, Run, encode, send

MESSAGE_BYTES = 32 * 1024
"""So much of arguments goes in one message. What is longer goes alone."""


@dataclass(slots=True, eq=False)
class Channels:
    tasks: Channel
    theirs: Channel
    """The child's own end of `tasks`: while we have it, too, its death is no error of ours."""
    tickets: Tickets
    outcomes: Ear[FromChild]

    def close(self) -> None:
        for end in (self.tasks, self.theirs, self.tickets, self.outcomes):
            end.close()


@dataclass(slots=True, eq=False)
class Offspring:
    slot: int
    kind: ChildKind
    number: int = 0
    channels: Channels | None = None
    """None until the fork server was told to make it."""
    server: Server | None = None
    """Who makes it, reaps it, and says how it ended."""
    pid: int = 0
    pidfd: int = -1
    born_at: float = 0.0
    ended_at: float | None = None
    ready: bool = False
    doomed: bool = False
    is_guarded: bool = False
    """It may run a task with an exclusive key, and is ended when the deadline is over."""
    is_overdue: bool = False
    kill_at: float = 0.0
    """It was told to go by itself, and is killed if it has not by then."""
    expected: int = 0
    """Outcomes that may still come."""
    places: int | None = None
    """So many tasks may be in it at once; None: as many as its queue takes."""
    backlog: list[Job] = field(default_factory=list)
    """What found no place, or no room in the queue. Read back like what did."""

    def guard(self, *, on: bool) -> bool:
        """Have the fork server end it when the deadline is over, or not any more. False: it could not be told."""
        told = self.server is not None and self.server.tell(Guard(self.number, on))
        self.is_guarded = on if told else self.is_guarded
        return told

    def send_backlog(self) -> bool:
        """Send what there is a place for. False: there is no room in the queue even for the first of it."""
        sent = 0
        while batch := self._batch(sent):
            if self.channels is None or not self._send(self.channels, batch):
                break
            sent += len(batch)
        del self.backlog[:sent]
        return sent > 0 or not batch

    def _send(self, channels: Channels, batch: list[Job]) -> bool:
        message = encode(Run(channels.tickets.next, batch))
        return send(channels.tasks, message, wait=False) and channels.tickets.issue(batch)

    def _batch(self, sent: int) -> list[Job]:
        """What goes in one message, if so many of the backlog are sent."""
        batch = self.backlog[sent : sent + min(AT_ONCE, self._free(sent))]
        sizes = list(accumulate([len(job.args) for job in batch]))
        return batch if not batch or sizes[-1] <= MESSAGE_BYTES else batch[: bisect(sizes, MESSAGE_BYTES) or 1]

    def _free(self, sent: int) -> int:
        """Places, if so many of the backlog are sent."""
        inside = self.expected - len(self.backlog) + sent
        return len(self.backlog) if self.places is None else max(0, self.places - inside)

    def read_back(self) -> list[tuple[int, int]]:
        """(seq, fence) of what it has not taken, and never will."""
        if self.channels is None:
            return []
        unread = [*self.channels.tickets.draw_all(), *((job.seq, job.fence) for job in self.backlog)]
        self.backlog = []
        self.expected -= len(unread)
        return unread
