"""Decide who is suspected to be gone, because its session at the database is (PROTOCOL 12).

Pure. A watch is what one judge has seen within one unbroken session of its own: a judge that lost its session begins
with a new one, and suspects nobody whom it has not seen holding a lock since. A lost session is no death: the server
may have crashed, an operator may have ended it. So somebody is a suspect only if

* its lock was seen held and is missing, and no session under its name is left;
* it has been so for the grace, and it has not beaten in that time (a worker that lives and can not get its session back
  beats every second);
* it is not one of many: where three or more, being half or more of all, were lost within ten seconds, it was the server
  or the network, and these are left to their heartbeats until each has held its lock again.

Everybody looks, and so whoever dies is missed by others soon; but the more there are, the more seldom each does, or a
hundred workers would keep the server busy with looking at each other.

Never decided here: what becomes of a suspect's tasks. Whoever takes them tests all this again in the same transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from everbeat.model.session import Look, Peer, Suspect

SECOND_US = 1_000_000
WINDOW_US = 10 * SECOND_US
MANY = 3
LOOK_US, CLOSER_US = SECOND_US // 2, SECOND_US // 4
LOOKS_PER_SECOND, CLOSER_LOOKS_PER_SECOND = 10, 100
"""Of all workers together, at most; closer while somebody is missing and its grace is not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    since_us: int
    """When it was first seen so, or was last seen to live."""
    beat_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    at_us: int = 0
    holders: frozenset[str] = frozenset()
    missing: Mapping[str, Missing] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)
    """When sessions were lost of late, also of those that have returned."""
    excused: frozenset[str] = frozenset()
    """Those that were lost together with many others."""

    def after(self, look: Look) -> Self:
        """What is known after another look."""
        at = look.at_us
        holders = frozenset(peer.worker_id for peer in look.peers if peer.holds)
        missing = {peer.worker_id: now for peer in look.peers if (now := self._missing(peer, at)) is not None}
        losses = {worker: lost for worker, lost in self.losses.items() if at - lost <= 2 * WINDOW_US}
        losses |= {worker: at for worker in missing if worker in self.holders}
        total = len(losses.keys() | {peer.worker_id for peer in look.peers})
        together = {worker for worker in missing if worker in losses and _is_one_of_many(losses, worker, total)}
        return type(self)(
            at_us=at,
            holders=holders,
            missing=missing,
            losses=losses,
            excused=frozenset(together | (self.excused & missing.keys())),
        )

    def suspects(self, grace_us: int) -> list[Suspect]:
        return [
            Suspect(worker_id=worker, beat_seq=one.beat_seq, missing_us=self.at_us - one.since_us)
            for worker, one in self.missing.items()
            if worker not in self.excused and self.at_us - one.since_us >= grace_us
        ]

    def next_look_us(self, grace_us: int) -> int:
        """How long after this one. All workers that are known count as lookers."""
        is_close = any(
            self.at_us - one.since_us < grace_us for worker, one in self.missing.items() if worker not in self.excused
        )
        lookers = len(self.holders | self.missing.keys())
        if is_close:
            return max(CLOSER_US, lookers * SECOND_US // CLOSER_LOOKS_PER_SECOND)
        return max(LOOK_US, lookers * SECOND_US // LOOKS_PER_SECOND)

    def _missing(self, peer: Peer, at: int) -> Missing | None:
        before = self.missing.get(peer.worker_id)
        if peer.holds or (before is None and peer.worker_id not in self.holders):
            return None
        is_silent = before is not None and before.beat_seq == peer.beat_seq and not peer.is_connected
        return before if is_silent else Missing(since_us=at, beat_seq=peer.beat_seq)


def _is_one_of_many(losses: Mapping[str, int], worker: str, total: int) -> bool:
    count = sum(abs(lost - losses[worker]) <= WINDOW_US for lost in losses.values())
    return count >= MANY and 2 * count >= total
