"""What a child says: heard whole, in order, and also after its death."""

import os
import threading

import msgspec
import pytest

from everbeat.run.speech import Ear, Mouth, speech
from everbeat.run.wire import FromChild, Inbox, NotStarted, channel


class Ends:
    def __init__(self) -> None:
        tasks, theirs = channel()
        ear, self.mouth_fd = speech()
        decoder: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
        self.mouth = Mouth(self.mouth_fd, theirs)
        self.ear = Ear(ear, decoder, Inbox(tasks, decoder))

    def heard(self) -> list[FromChild]:
        return list(self.ear.hear())


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_all_that_was_said_is_heard_in_one_step(ends: Ends) -> None:
    said = [NotStarted(str(number)) for number in range(500)]
    for one in said:
        ends.mouth.say(one)

    assert ends.heard() == said
    assert ends.heard() == []


@pytest.mark.parametrize("size", [0, 4_000, 4_090, 4_100, 70_000, 4 << 20])
def test_order_is_kept_whatever_the_size(ends: Ends, size: int) -> None:
    said = [NotStarted("before"), NotStarted("x" * size), NotStarted("after")]
    for one in said:
        ends.mouth.say(one)

    assert ends.heard() == said


def test_what_was_said_outlives_who_said_it(ends: Ends) -> None:
    ends.mouth.say(NotStarted("last words"))
    os.close(ends.mouth_fd)

    assert ends.heard() == [NotStarted("last words")]
    with pytest.raises(EOFError):
        ends.heard()


def test_half_a_message_was_not_said(ends: Ends) -> None:
    ends.mouth.say(NotStarted("whole"))
    os.write(ends.mouth_fd, b"\xff\x00half")
    os.close(ends.mouth_fd)

    assert ends.heard() == [NotStarted("whole")]
    with pytest.raises(EOFError):
        ends.heard()


def test_a_message_that_comes_in_pieces_is_heard_when_it_is_whole(ends: Ends) -> None:
    said = msgspec.msgpack.encode(NotStarted("in pieces"))
    whole = len(said).to_bytes(2, "little") + said
    pieces: list[FromChild] = []
    for at in range(len(whole)):
        os.write(ends.mouth_fd, whole[at : at + 1])
        pieces += ends.heard()

    assert pieces == [NotStarted("in pieces")]


def test_what_came_before_nonsense_is_heard(ends: Ends) -> None:
    ends.mouth.say(NotStarted("sense"))
    os.write(ends.mouth_fd, b"\x01\x00\xc1")
    heard = ends.ear.hear()

    assert next(heard) == NotStarted("sense")
    with pytest.raises(msgspec.DecodeError):
        next(heard)


def test_nothing_beside_the_pipe_where_something_should_be_is_nonsense(ends: Ends) -> None:
    os.write(ends.mouth_fd, b"\x00\x00")

    with pytest.raises(msgspec.DecodeError):
        ends.heard()


def test_two_who_speak_at_once_do_not_interrupt_each_other(ends: Ends) -> None:
    def speak(word: str) -> None:
        for _ in range(500):
            ends.mouth.say(NotStarted(word * 50))

    speakers = [threading.Thread(target=speak, args=(word,)) for word in "ab"]
    for speaker in speakers:
        speaker.start()
    heard: list[FromChild] = []
    while len(heard) < 1000:
        heard += ends.heard()
    for speaker in speakers:
        speaker.join()

    assert sorted({one.message for one in heard if isinstance(one, NotStarted)}) == ["a" * 50, "b" * 50]
