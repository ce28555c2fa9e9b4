"""Messages between supervisor, fork server and children.

A channel is a SOCK_SEQPACKET pair: a message arrives whole or not at all, also when its sender is killed while sending.
Which of the tasks that came over it a child has is decided beside it (tickets.py), and what it says of them it says
beside it, too (speech.py).

A message too big for a socket buffer travels as a memfd beside a one-byte stub, so size never breaks that promise.
Arguments and results are opaque bytes here; the supervisor never looks into them.
"""

import errno
import mmap
import os
import time
from array import array
from collections.abc import Iterable
from enum import IntEnum, StrEnum

# Bound now, before user code is imported: an application may patch the socket module.
from socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SCM_RIGHTS,
    SO_SNDBUF,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    socket,
    socketpair,
)
from typing import Generic, TypeVar

import msgspec

from everbeat.model.task import Outcome

INLINE_LIMIT = 64 * 1024
_QUEUE_BYTES = 1 << 20
_SPILLED = b"\xc1"  # the one byte that begins no msgpack message
_ANCILLARY = CMSG_SPACE(5 * array("i").itemsize)
_BUSY = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})

Channel = socket
"""One end of a channel."""
GONE = (BrokenPipeError, ConnectionResetError)
"""What sending raises when nobody has the other end any more."""
T = TypeVar("T")


class ChildKind(StrEnum):
    SYNC = "sync"
    ASYNC = "async"
    OWN = "own"  # one task, sync or async, then it exits
    EVENTS = "events"  # no tasks: the application's subscribers


class InterruptKind(IntEnum):
    INTERRUPT = 1  # the worker stops
    TIMEOUT = 2
    CANCEL = 3


class Job(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A task on its way to a child, with the journal entry that will hold its begin mark."""

    entry: int
    seq: int
    fence: int
    id: str
    name: str
    attempt: int
    crash_count: int
    args: bytes


class Run(msgspec.Struct, array_like=True, frozen=True, tag="run"):
    first: int
    """The number of the ticket of the first; the others follow (tickets.py)."""
    jobs: list[Job]


class Interrupt(msgspec.Struct, array_like=True, frozen=True, tag="interrupt"):
    seq: int
    fence: int
    kind: InterruptKind


ToChild = Run | Interrupt
Told = tuple[int, int, int, Outcome]
"""Entry, seq, fence, and how the run ended. Most of a child's messages are lists of these; an empty one says: ready."""


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """Seq, fence and what the run says of itself, as JSON; None is a heartbeat."""

    reports: list[tuple[int, int, str | None]]


class NotStarted(msgspec.Struct, frozen=True, tag="not started"):
    """A child whose application does not let it begin."""

    message: str


FromChild = list[Told] | Progressed | NotStarted


class Kit(msgspec.Struct, array_like=True, frozen=True):
    """What the children of one worker id share."""

    beat_seconds: float
    worker_id: str = ""
    log_level: str = "info"
    log_format: str = "text"


class Spawn(msgspec.Struct, array_like=True, frozen=True, tag="spawn"):
    """To the fork server, with the child's ends of what it hears and says, and its worker's lock and journal. A number
    is never used twice."""

    number: int
    slot: int
    kind: ChildKind
    kit: Kit


class Guard(msgspec.Struct, array_like=True, frozen=True, tag="guard"):
    """To the fork server: from now on, end this child when the deadline is over; or do not any more."""

    number: int
    on: bool


ToServer = Spawn | Guard


class Loaded(msgspec.Struct, array_like=True, frozen=True, tag="loaded"):
    store_url: str
    config_json: str
    sync_names: tuple[str, ...]
    async_names: tuple[str, ...]
    fork_reason: str | None


class Unusable(msgspec.Struct, array_like=True, frozen=True, tag="unusable"):
    kind: str
    message: str


class Born(msgspec.Struct, array_like=True, frozen=True, tag="born"):
    """With the child's pidfd, opened by its parent: it can not be another process that got the same pid."""

    number: int
    pid: int


class Exited(msgspec.Struct, array_like=True, frozen=True, tag="exited"):
    number: int
    status: int
    overdue: bool = False
    """It was ended because the deadline was over."""


FromServer = Loaded | Unusable | Born | Exited


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork server is told on its command line."""

    target: str
    imports: tuple[str, ...]
    database_url: str | None = None
    """The store that a flag names instead of the application's own."""
    control_fd: int
    leash_fd: int
    deadline_fd: int
    supervisor_pid: int
    fresh: bool = False
    """The import left something that does not survive a fork: start children as new interpreters, import nothing."""


class ChildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a child needs to know; on the command line of a new interpreter, in memory after a fork."""

    slot: int
    kind: ChildKind
    task_fd: int
    ticket_fd: int
    outcome_fd: int
    lock_fd: int
    journal_fd: int
    leash_fd: int
    server_pid: int
    target: str
    imports: tuple[str, ...]
    database_url: str | None = None
    kit: Kit


encode = msgspec.msgpack.Encoder().encode
to_json = msgspec.json.Encoder().encode


def channel() -> tuple[Channel, Channel]:
    pair = socketpair(AF_UNIX, SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(SOL_SOCKET, SO_SNDBUF, _QUEUE_BYTES)
    return pair


def adopt(fd: int) -> Channel:
    """An inherited end, made blocking whatever default timeout the application has set, and closed on exec."""
    end = socket(fileno=fd)
    end.settimeout(None)
    end.set_inheritable(False)
    return end


def send(end: Channel, payload: bytes, fds: Iterable[int] = (), *, wait: bool) -> bool:
    """Send one message. Without `wait`, False means that the queue is full and nothing was sent."""
    if len(payload) <= INLINE_LIMIT:
        return _send(end, payload, array("i", fds), wait)
    memfd = os.memfd_create("everbeat", os.MFD_CLOEXEC)
    try:
        with open(memfd, "wb", closefd=False) as spilled:
            spilled.write(payload)
        return _send(end, _SPILLED, array("i", (memfd,)), wait)
    finally:
        os.close(memfd)


def _send(end: Channel, payload: bytes, fds: "array[int]", wait: bool) -> bool:
    flags = MSG_NOSIGNAL if wait else MSG_NOSIGNAL | MSG_DONTWAIT
    while True:
        try:
            if fds:
                end.sendmsg((payload,), ((SOL_SOCKET, SCM_RIGHTS, fds),), flags)
            else:
                end.send(payload, flags)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            if not wait:
                return False
            time.sleep(0.01)  # short of buffers or of fds in flight: the kernel offers nothing to wait on
        else:
            return True


class Inbox(Generic[T]):
    """The reading end of a channel. Inboxes of one thread may share a buffer."""

    __slots__ = ("_buffer", "_buffers", "_decode", "end", "fds")

    def __init__(self, end: Channel, decoder: "msgspec.msgpack.Decoder[T]", buffer: memoryview | None = None) -> None:
        self.end = end
        self.fds: list[int] = []
        """Came with the last message; the caller owns them."""
        self._decode = decoder.decode
        self._buffer = new_buffer() if buffer is None else buffer
        self._buffers = (self._buffer,)

    def take(self, *, wait: bool = False) -> T | None:
        """The next message; None if there is none yet. Raises EOFError at the end of the channel, and
        msgspec.DecodeError for a message that is not ours."""
        flags = MSG_CMSG_CLOEXEC if wait else MSG_CMSG_CLOEXEC | MSG_DONTWAIT
        try:
            size, ancillary, _, _ = self.end.recvmsg_into(self._buffers, _ANCILLARY, flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise EOFError("the channel was closed") from None
        if not size:
            raise EOFError("the channel was closed")
        if not ancillary:
            return self._decode(self._buffer[:size])
        self.fds = _fds_of(ancillary)
        if self._buffer[:size] != _SPILLED:
            return self._decode(self._buffer[:size])
        return self._take_spilled()

    def _take_spilled(self) -> T:
        (memfd,), self.fds = self.fds, []
        try:
            with mmap.mmap(memfd, 0, access=mmap.ACCESS_READ) as spilled:
                return self._decode(spilled)
        finally:
            os.close(memfd)


def new_buffer() -> memoryview:
    return memoryview(bytearray(INLINE_LIMIT))


def _fds_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array("i")
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return list(fds)
