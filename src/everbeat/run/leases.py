"""Renews the lease under which tasks with exclusive keys run, a beat every sixth of it, while one is held.

On a thread and connection of its own, with little patience: one beat that gets no answer must leave time for the next.
Each that is answered moves the deadline on, counted from when it was sent; the fork server ends the tasks when it is
over (PROTOCOL 24). As for every beat, a hung dispatcher must not keep its tasks (PROTOCOL 9).
"""

from everbeat.run.dispatcher import Dispatcher
from everbeat.run.heartbeat import Heartbeat
from everbeat.store.interface import Store


class LeaseKeeper:
    name = "lease"

    def __init__(self, *, worker_id: str, store: Store, dispatcher: Dispatcher, heartbeat: Heartbeat) -> None:
        self._worker_id = worker_id
        self._store = store
        self._dispatcher = dispatcher
        self._heartbeat = heartbeat

    def tick(self) -> float:
        lease = self._dispatcher.lease
        leased = self._dispatcher.leased()
        if leased and not self._dispatcher.mandate.is_displaced and self._heartbeat.dispatcher_turns():
            sent_at = lease.now_us()
            if self._store.renew(self._worker_id, leased, self._dispatcher.books.seen_beat):
                lease.answered(sent_at)
        return lease.lease.beat_us / 1e6
