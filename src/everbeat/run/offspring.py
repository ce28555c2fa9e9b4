"""A child as its supervisor sees it: its channels, its pidfd, and what was sent to it and not answered."""

from contextlib import suppress
from dataclasses import dataclass, field

from everbeat.run.server import Server
from everbeat.run.wire import Channel, ChildKind, FromChild, Guard, Inbox, Interrupt, Job, Run, ToChild, encode, send

ASYNC_MESSAGE = 50
"""So many tasks go to the async process in one message: it runs some of them while others are being settled."""


@dataclass(slots=True, eq=False)
class Channels:
    tasks: Channel
    unread: Inbox[ToChild]
    """The child's own reading end of `tasks`."""
    outcomes: Inbox[FromChild]

    def close(self) -> None:
        for end in (self.tasks, self.unread.end, self.outcomes.end):
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
        size, sent = ASYNC_MESSAGE if self.kind is ChildKind.ASYNC else 1, 0
        while batch := self.backlog[sent : sent + min(size, self._free(sent))]:
            if self.channels is None or not send(self.channels.tasks, encode(Run(batch)), wait=False):
                break
            sent += len(batch)
        del self.backlog[:sent]
        return sent > 0 or not batch

    def _free(self, sent: int) -> int:
        """Places, if so many of the backlog are sent."""
        inside = self.expected - len(self.backlog) + sent
        return len(self.backlog) if self.places is None else max(0, self.places - inside)

    def read_back(self) -> list[tuple[int, int]]:
        """(seq, fence) of what it has not taken, and never will."""
        unread: list[tuple[int, int]] = []
        interrupts: list[Interrupt] = []
        if self.channels is None:
            return unread
        with suppress(EOFError):
            while (message := self.channels.unread.take()) is not None:
                if isinstance(message, Run):
                    unread += [(job.seq, job.fence) for job in message.jobs]
                else:
                    interrupts.append(message)
        unread += [(job.seq, job.fence) for job in self.backlog]
        self.backlog = []
        for interrupt in () if self.doomed else interrupts:  # not meant to be taken back
            send(self.channels.tasks, encode(interrupt), wait=False)
        self.expected -= len(unread)
        return unread
