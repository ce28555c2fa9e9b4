"""Channels: whole messages or none, of any size, read by whoever comes first."""

import os
import socket

import msgspec
import pytest

from everbeat.run import wire


@pytest.fixture
def ends() -> tuple[wire.Channel, wire.Inbox[bytes]]:
    sender, receiver = wire.channel()
    return sender, wire.Inbox(receiver, msgspec.msgpack.Decoder(bytes))


@pytest.mark.parametrize("size", [0, 1, wire.INLINE_LIMIT - 16, wire.INLINE_LIMIT, wire.INLINE_LIMIT + 1, 16 << 20])
def test_a_message_of_any_size_arrives_whole(ends: tuple[wire.Channel, wire.Inbox[bytes]], size: int) -> None:
    sender, inbox = ends

    assert wire.send(sender, wire.encode(b"x" * size), wait=False)

    assert inbox.take() == b"x" * size
    assert inbox.take() is None


def test_a_full_queue_refuses_without_sending_anything(ends: tuple[wire.Channel, wire.Inbox[bytes]]) -> None:
    sender, inbox = ends
    sent = 0
    while wire.send(sender, wire.encode(b"x" * 1000), wait=False):
        sent += 1

    received = [inbox.take() for _ in range(sent)]

    assert sent > 64
    assert received == [b"x" * 1000] * sent
    assert inbox.take() is None


def test_what_a_closed_end_has_sent_is_read_before_the_end_of_the_channel(
    ends: tuple[wire.Channel, wire.Inbox[bytes]],
) -> None:
    sender, inbox = ends
    wire.send(sender, wire.encode(b"last words"), wait=True)
    sender.close()

    assert inbox.take(wait=True) == b"last words"
    with pytest.raises(EOFError):
        inbox.take(wait=True)


def test_fds_arrive_with_their_message_and_are_closed_on_exec(ends: tuple[wire.Channel, wire.Inbox[bytes]]) -> None:
    sender, inbox = ends
    read_end, write_end = os.pipe()
    wire.send(sender, wire.encode(b"with a pipe"), (write_end,), wait=True)
    os.close(write_end)

    inbox.take()
    (received,) = inbox.fds
    os.write(received, b"through")

    assert os.read(read_end, 10) == b"through"
    assert not os.get_inheritable(received)
    os.close(received)
    os.close(read_end)


def test_big_messages_leave_no_fd_behind(ends: tuple[wire.Channel, wire.Inbox[bytes]]) -> None:
    sender, inbox = ends
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(10):
        wire.send(sender, wire.encode(b"x" * 100_000), wait=False)
        inbox.take()

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_default_timeout_of_the_application_does_not_reach_a_channel() -> None:
    ours, theirs = wire.channel()
    socket.setdefaulttimeout(0.001)
    try:
        adopted = wire.adopt(os.dup(theirs.fileno()))
    finally:
        socket.setdefaulttimeout(None)

    assert adopted.gettimeout() is None
    assert os.get_blocking(adopted.fileno())
    ours.close()


def test_a_job_passes_its_arguments_through_untouched() -> None:
    job = wire.Job(1, 2, 3, "id", "name", 4, 5, b"\x00\xffnot json")

    message = msgspec.msgpack.decode(wire.encode(wire.Run(1, [job])), type=wire.ToChild)

    assert message == wire.Run(1, [job])
