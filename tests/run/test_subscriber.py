"""The process of an application's subscribers, on channels of its own, in this process."""

import msgspec

from everbeat.model.event import EventInfo
from everbeat.run.subscriber import SubscriberChild
from everbeat.run.wire import Inbox, Job, Run, ToChild, channel, encode, send


def test_it_ends_quietly_when_its_supervisor_is_gone() -> None:
    (orders, theirs), (outcomes, ours) = channel(), channel()
    told: list[EventInfo] = []

    def subscriber(event: EventInfo) -> None:
        told.append(event)
        ours.close()  # the supervisor dies while this runs

    args = b'[1, 0, "task.failed", null, null, {}]'
    send(orders, encode(Run([Job(0, 1, 1, "1", "task.failed", 1, 0, args)])), wait=True)

    SubscriberChild({"*": [subscriber]}, Inbox(theirs, msgspec.msgpack.Decoder(ToChild)), outcomes).serve()

    assert [event.name for event in told] == ["task.failed"]


def test_it_ends_quietly_when_its_supervisor_is_gone_before_it_is_ready() -> None:
    (orders, theirs), (outcomes, ours) = channel(), channel()
    ours.close()
    orders.close()

    SubscriberChild({}, Inbox(theirs, msgspec.msgpack.Decoder(ToChild)), outcomes).serve()
