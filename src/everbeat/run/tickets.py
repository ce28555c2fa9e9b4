"""Who has a task: the child that was sent it, or the supervisor that wants it back (PROTOCOL 19).

The bytes of many tasks go to a child in one message. With each of them goes a ticket, in a pipe from which both of them
draw: what is read from a pipe is read by one of them only. A child draws one ticket and has that task, and no other;
what the supervisor draws nobody will ever begin. So each task can be taken back by itself until it begins, however many
came with it, and all that is left in one step.

A ticket names its task, so that whoever draws it needs no books of what was sent. Its number is the place of the task
among all that the child was ever sent: bytes whose number was passed over belong to a task that was taken back. They
are sent before their tickets: whoever has a ticket finds them.

Things that do not work: reading back the message with the bytes (the child may have drawn a ticket for one of them and
not have read it yet); the task's own (seq, fence) in the place of the number (a task may come back to a child that
still has its bytes from the first time, with another entry of the journal); counting instead of naming, with an eventfd
(the child must then say that it has dropped the rest before it is sent anything new, or it takes a later task's turn
for an earlier one).
"""

import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence

# Bound now, before user code is imported: an application may patch these modules.
from os import O_CLOEXEC, O_NONBLOCK, close, pipe2, read, write
from select import PIPE_BUF, POLLIN, poll

from everbeat.run.wire import Inbox, Interrupt, Job, Run, ToChild

_TICKET = struct.Struct("=QQQ")  # number, seq, fence
_AT_ONCE = 1024
AT_ONCE = PIPE_BUF // _TICKET.size
"""So many are written in one step, or none of them is."""


class Tickets:
    """The supervisor's side: both ends, of which the child has the one to read from, too."""

    __slots__ = ("_issued", "_write_fd", "fd")

    def __init__(self) -> None:
        self.fd, self._write_fd = pipe2(O_CLOEXEC | O_NONBLOCK)
        """The end to draw from. Whoever has it does not block: it is one open file for all of them."""
        self._issued = 0

    @property
    def next(self) -> int:
        """The number of the next one."""
        return self._issued + 1

    def issue(self, jobs: Sequence[Job]) -> bool:
        """For tasks whose bytes were sent, at most AT_ONCE. False: there is no room, and they were sent for nothing."""
        numbers = range(self._issued + 1, self._issued + 1 + len(jobs))
        self._issued += len(jobs)
        words = [word for number, job in zip(numbers, jobs, strict=True) for word in (number, job.seq, job.fence)]
        try:
            write(self._write_fd, array("Q", words))
        except BlockingIOError:
            return False
        return True

    def draw_all(self) -> list[tuple[int, int]]:
        """(seq, fence) of what nobody has drawn."""
        drawn: list[tuple[int, int]] = []
        try:
            while tickets := read(self.fd, _AT_ONCE * _TICKET.size):
                drawn += [(seq, fence) for _, seq, fence in _TICKET.iter_unpack(tickets)]
        except BlockingIOError:
            return drawn
        return drawn

    def end(self) -> None:
        """There will be no more: the child may go."""
        if self._write_fd >= 0:
            close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        self.end()
        close(self.fd)


class Intake:
    """The child's side. `heed` is told what is no task."""

    __slots__ = ("_heed", "_inbox", "_runs", "fd")

    def __init__(
        self, inbox: Inbox[ToChild], fd: int, heed: Callable[[Interrupt], None] = lambda interrupt: None
    ) -> None:
        self.fd = fd
        self._inbox = inbox
        self._heed = heed
        self._runs: deque[Run] = deque()

    def draw(self, most: int) -> Iterator[Job]:
        """So many tasks, or as many as there are: they are ours. None if there is none yet. Raises EOFError at the end.
        What is said of a task that came before is heeded before the next one comes."""
        try:
            drawn = read(self.fd, most * _TICKET.size)
        except BlockingIOError:
            return
        if not drawn:
            raise EOFError("the channel was closed")
        for number, _, _ in _TICKET.iter_unpack(drawn):
            yield self._job(number)

    def jobs(self) -> Iterator[Job]:
        """One after the other, as they come, until the channel is closed. Each is drawn when it is asked for."""
        waiting, size, read_ticket = poll(), _TICKET.size, _TICKET.unpack
        waiting.register(self.fd, POLLIN)
        while True:
            try:
                ticket = read(self.fd, size)
            except BlockingIOError:
                waiting.poll()
                continue
            if not ticket:
                return
            yield self._job(read_ticket(ticket)[0])

    def hear(self) -> None:
        """One message, if there is one."""
        self._take(wait=False)

    def _job(self, number: int) -> Job:
        runs = self._runs
        while True:
            while runs:
                place = number - runs[0].first
                if place < len(runs[0].jobs):
                    return runs[0].jobs[place]
                runs.popleft()
            self._take(wait=True)

    def _take(self, *, wait: bool) -> None:
        message = self._inbox.take(wait=wait)
        if isinstance(message, Run):
            self._runs.append(message)
        elif message is not None:
            self._heed(message)
