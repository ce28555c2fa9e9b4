"""When a dispatcher asks its store: at once if something may be ready, when something is due, and after a failure with
growing pauses. There are no other timers: whatever ended while the last flush was being committed is in the next."""

from everbeat.decide.room import Room
from everbeat.store.messages import Flushed

STORE_RETRY_US = (50_000, 100_000, 200_000, 500_000, 1_000_000)


class Pacing:
    def __init__(self) -> None:
        self.is_hungry = True
        """Something may be ready."""
        self.has_found_all = False
        """The last look found nothing more to claim."""
        self.due_at: int | None = None
        """When the next delayed task becomes ready."""
        self.retry_at = 0
        self.retries = 0

    def wake(self) -> None:
        self.is_hungry = True

    def may_ask(self, now: int) -> bool:
        if self.due_at is not None and now >= self.due_at:
            self.due_at, self.is_hungry = None, True
        return now >= self.retry_at

    def rest(self) -> None:
        """There is nothing to ask for."""
        self.retries = 0

    def failed(self, now: int) -> None:
        self.retry_at = now + STORE_RETRY_US[min(self.retries, len(STORE_RETRY_US) - 1)]
        self.retries += 1

    def answered(self) -> None:
        self.retries = self.retry_at = 0

    def offered(self) -> None:
        """The store is asked to fill some room. Whoever wakes us from now on may mean what it does not see."""
        self.is_hungry = False

    def looked(self, room: Room, flushed: Flushed, now: int, *, was_offered: bool, was_alone: bool) -> None:
        """`room` is what is left of it. Of two who look at once neither finds what the other has its hand on, nor has
        room that the other does not use: what is left is found by looking again."""
        if not was_alone:
            self.wake()
        elif was_offered:
            self.is_hungry |= room.is_empty and bool(flushed.claims)
            self.has_found_all = not room.is_empty
        if flushed.next_due_in_us is not None:
            self.due_at = now + flushed.next_due_in_us
