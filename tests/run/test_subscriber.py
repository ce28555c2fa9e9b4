"""The process of an application's subscribers, on channels of its own, in this process."""

import os

import msgspec

from everbeat.model.event import EventInfo
from everbeat.run.speech import Mouth, speech
from everbeat.run.subscriber import SubscriberChild
from everbeat.run.tickets import Intake, Tickets
from everbeat.run.wire import Inbox, Job, Run, ToChild, channel, encode, send


def test_it_ends_quietly_when_its_supervisor_is_gone() -> None:
    (orders, theirs), (ear, mouth), tickets = channel(), speech(), Tickets()
    told: list[EventInfo] = []

    def subscriber(event: EventInfo) -> None:
        told.append(event)
        os.close(ear)  # the supervisor dies while this runs

    job = Job(0, 1, 1, "1", "task.failed", 1, 0, b'[1, 0, "task.failed", null, null, {}]')
    send(orders, encode(Run(tickets.next, [job])), wait=True)
    tickets.issue([job])

    intake = Intake(Inbox(theirs, msgspec.msgpack.Decoder(ToChild)), tickets.fd)
    SubscriberChild({"*": [subscriber]}, intake, Mouth(mouth, theirs)).serve()

    assert [event.name for event in told] == ["task.failed"]


def test_it_ends_quietly_when_its_supervisor_is_gone_before_it_is_ready() -> None:
    (orders, theirs), (ear, mouth), tickets = channel(), speech(), Tickets()
    os.close(ear)
    orders.close()

    intake = Intake(Inbox(theirs, msgspec.msgpack.Decoder(ToChild)), tickets.fd)
    SubscriberChild({}, intake, Mouth(mouth, theirs)).serve()
