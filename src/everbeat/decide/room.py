"""Decide which ready tasks a worker takes, and into which of its slots.

Pure apart from its own bookkeeping: a `Room` is made for one flush, offered ready tasks in claim order by the store,
and answers each of them. The store never claims what was not admitted, so nothing is claimed that can not start now.

* A sync task needs a process slot. A slot takes one task at a time, unless the task's name is known to be quick: then
  several wait in the slot's queue (a frame). Order is kept: once a sync task found no slot, no later one is admitted,
  otherwise quick tasks would keep every slot filled and a slow one would wait for ever.
* An async task needs a place in the async process. Quick ones may also stand behind those that have one, some frames
  full of them: as much work as they would be if they ran one after the other. Order is kept here, too.
* A task that must not share a queue (PROTOCOL 5, 19) is never framed.
* A suspect (PROTOCOL 23) is not framed either; an async one gets a process of its own, as every isolated task does, and
  is CLAIMED until that process is ready.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heapreplace
from operator import itemgetter
from typing import NamedTuple

DEEP = 32
"""Frames of so many tasks are worth a transaction of their own."""
ASYNC_SLOT = 0
OWN_PROCESS = -1


class Answer(Enum):
    TAKE = "take"
    PASS = "pass"  # not this one; the next of the same name may fit
    FULL = "full"  # nothing more of this name


class Promise(NamedTuple):
    """Room that was offered, and is not to be offered to anybody else before it is known what was taken."""

    slots: frozenset[int]
    async_free: int
    async_frames: float
    own_free: int
    is_empty: bool


@dataclass(slots=True)
class Room:
    sync_names: frozenset[str]
    async_names: frozenset[str]
    queues: frozenset[str] | None
    """None means every queue."""
    slots: dict[int, int] = field(default_factory=dict)
    """Process slots that can take work, with how many tasks wait or run in each. A slot busy with a task that must not
    be framed is not listed."""
    depths: Mapping[str, int] = field(default_factory=dict)
    """How many tasks of a name may stand in one slot's queue; 1 when unknown."""
    limits: Mapping[int, int] = field(default_factory=dict)
    """How many tasks may stand in the queue of a slot whose process is about to be replaced; not listed: any number."""
    async_free: int = 0
    async_frames: float = 0.0
    """So many frames of quick async tasks may wait for a place."""
    own_free: int = 0
    """Processes that may still be started for one task each."""
    shunned: frozenset[str] = frozenset()
    """Workflows whose tasks are not wanted: what they come to could not be stored now."""

    @property
    def is_empty(self) -> bool:
        """Without async tasks, processes of their own count only as long as there is a slot: who has no room for any
        ordinary task does not search for an isolated one."""
        return not (self.slots or self.async_free or self.async_frames or (self.own_free and self.async_names))

    def promise(self) -> Promise:
        return Promise(frozenset(self.slots), self.async_free, self.async_frames, self.own_free, self.is_empty)

    def keep(self, promise: Promise) -> None:
        """What was promised is not free."""
        for slot in promise.slots:
            self.slots.pop(slot, None)
        self.async_free = max(0, self.async_free - promise.async_free)
        self.async_frames = max(0.0, self.async_frames - promise.async_frames)
        self.own_free = max(0, self.own_free - promise.own_free)

    def take_turns(self, slots: int) -> None:
        """Of so many slots, no more than half get frames at once, those with the least in them: while these are being
        filled the others run what they have, and when it has ended it is their turn."""
        most = (slots + 1) // 2
        if len(self.slots) > most and max(self.depths.values(), default=1) >= DEEP:
            emptiest = sorted(self.slots, key=self.slots.__getitem__)[:most]
            self.slots = {slot: tasks for slot, tasks in self.slots.items() if slot in emptiest}

    def serves(self, queue: str, name: str) -> bool:
        """Whether tasks of this queue and name are worth looking at."""
        return (self.queues is None or queue in self.queues) and self.looks_for(name)

    def looks_for(self, name: str) -> bool:
        """Whether it may take a task of this name, and be it one that needs a process of its own."""
        if name in self.sync_names:
            return bool(self.slots)
        return name in self.async_names and self.wants(name) > 0

    def wants(self, name: str) -> int:
        """How many tasks of this name it may take, if none of them is special."""
        if name in self.async_names:
            return self.async_free + self.own_free + self._may_wait(name)
        depth = self.depths.get(name, 1)
        return sum(max(depth - standing, 0) for standing in self.slots.values())

    def takes(self, name: str) -> int:
        """How many tasks of this name it does take, if nothing is special about any of them."""
        return self.wants(name) - (self.own_free if name in self.async_names else 0)

    def offer(self, name: str, *, solo: bool, alone: bool = False, isolated: bool = False) -> tuple[Answer, int]:
        """Admit a task or not; with the slot it goes to. `solo`: a suspect; `alone`: not to be framed."""
        is_async = name in self.async_names
        if isolated or (solo and is_async):
            return self._offer_own(Answer.PASS if self.async_free and not isolated else Answer.FULL)
        return self._offer_async(name, alone) if is_async else self._offer_sync(name, alone=alone or solo)

    def offer_alike(self, name: str, count: int) -> list[int]:
        """The same for so many plain tasks of one name, one after the other: the slots of those that are admitted,
        which are the first. Fewer than that: nothing more of this name."""
        if name in self.async_names:
            free = min(count, self.async_free)
            waiting = min(count - free, self._may_wait(name))
            self.async_free -= free
            self.async_frames = (
                0.0 if free + waiting < count else self.async_frames - waiting / self.depths.get(name, 1)
            )
            return [ASYNC_SLOT] * (free + waiting)
        return self._offer_frames(self.depths.get(name, 1), count)

    def _offer_frames(self, depth: int, count: int) -> list[int]:
        """As `_offer_sync`, again and again."""
        slots: list[int] = []
        standing = [(tasks, place, slot) for place, (slot, tasks) in enumerate(self.slots.items())]
        heapify(standing)
        while len(slots) < count and standing and standing[0][0] < depth:
            tasks, place, slot = standing[0]
            slots.append(slot)
            if depth == 1 or tasks + 1 == self.limits.get(slot):
                heappop(standing)
            else:
                heapreplace(standing, (tasks + 1, place, slot))
        is_full = len(slots) < count
        self.slots = {} if is_full else {slot: tasks for tasks, _, slot in sorted(standing, key=itemgetter(1))}
        return slots

    def _offer_own(self, otherwise: Answer) -> tuple[Answer, int]:
        if not self.own_free:
            return otherwise, OWN_PROCESS
        self.own_free -= 1
        return Answer.TAKE, OWN_PROCESS

    def _offer_async(self, name: str, alone: bool) -> tuple[Answer, int]:
        if self.async_free:
            self.async_free -= 1
        elif self._may_wait(name) and not alone:
            self.async_frames -= 1 / self.depths[name]
        else:
            self.async_frames = 0.0
            return Answer.FULL, ASYNC_SLOT
        return Answer.TAKE, ASYNC_SLOT

    def _may_wait(self, name: str) -> int:
        """So many of this name, if all are."""
        depth = self.depths.get(name, 1)
        return int(self.async_frames * depth) if depth > 1 else 0

    def _offer_sync(self, name: str, *, alone: bool) -> tuple[Answer, int]:
        depth = 1 if alone else self.depths.get(name, 1)
        slot = min(self.slots, key=self.slots.__getitem__, default=None)
        if slot is None or self.slots[slot] >= depth:
            self.slots.clear()
            return Answer.FULL, OWN_PROCESS
        standing = self.slots[slot] + 1
        if depth == 1 or standing == self.limits.get(slot):
            del self.slots[slot]
        else:
            self.slots[slot] = standing
        return Answer.TAKE, slot
