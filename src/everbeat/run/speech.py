"""What a child says to its supervisor: outcomes, progress, that it is ready.

A pipe: what was said is there when its process is gone, whatever ended it, and however much was said is heard in one
step. A message is written in one step, too, whole or not at all, whoever else in the child is speaking. One that is too
long for that goes beside the pipe, over the channel that tasks come from, and the pipe says when it was sent: order is
kept.
"""

import struct
from collections.abc import Iterator

# Bound now, before user code is imported: an application may patch these modules.
from os import O_CLOEXEC, O_NONBLOCK, close, pipe2, read, set_blocking, write
from select import PIPE_BUF
from typing import Generic, TypeVar

import msgspec

from everbeat.run.wire import Channel, FromChild, Inbox, encode, send

T = TypeVar("T")

_SIZE = struct.Struct("=H")
_LONGEST = PIPE_BUF - _SIZE.size
_BESIDE = _SIZE.pack(0)
_AT_ONCE = 1 << 16


class Mouth:
    """The child's end. `beside` is its end of the channel that tasks come from."""

    __slots__ = ("_beside", "_fd")

    def __init__(self, fd: int, beside: Channel) -> None:
        self._fd = fd
        self._beside = beside

    def say(self, message: FromChild) -> None:
        """Raises one of GONE if nobody listens any more."""
        said = encode(message)
        if len(said) <= _LONGEST:
            write(self._fd, _SIZE.pack(len(said)) + said)
        else:
            send(self._beside, said, wait=True)
            write(self._fd, _BESIDE)


class Ear(Generic[T]):
    """The supervisor's end. `beside` is its end of the channel that tasks go to."""

    __slots__ = ("_beside", "_decode", "_rest", "fd")

    def __init__(self, fd: int, decoder: "msgspec.msgpack.Decoder[T]", beside: Inbox[T]) -> None:
        self.fd = fd
        self._decode = decoder.decode
        self._beside = beside
        self._rest = b""

    def hear(self) -> Iterator[T]:
        """What was said since the last call, or much of it; none: nothing. Raises EOFError when everybody who could say
        something is gone, and msgspec.DecodeError at what is not ours."""
        try:
            said = read(self.fd, _AT_ONCE)
        except BlockingIOError:
            return
        if not said:
            raise EOFError("nobody speaks any more")
        said = self._rest + said if self._rest else said
        view, start, size_of, decode = memoryview(said), _SIZE.size, _SIZE.unpack_from, self._decode
        while start <= len(said):
            (size,) = size_of(said, start - _SIZE.size)
            end = start + size
            if end > len(said):
                break
            yield decode(view[start:end]) if size else self._hear_beside()
            start = end + _SIZE.size
        self._rest = said[start - _SIZE.size :]

    def _hear_beside(self) -> T:
        message = self._beside.take()
        if message is None:
            raise msgspec.DecodeError("what should be there is not")
        return message

    def close(self) -> None:
        close(self.fd)


def speech() -> tuple[int, int]:
    """The ends of a pipe: to hear without blocking, and to speak."""
    ear, mouth = pipe2(O_CLOEXEC | O_NONBLOCK)
    set_blocking(mouth, True)
    return ear, mouth
