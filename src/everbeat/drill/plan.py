"""What a drill will send and what it will do to the processes, from one seed.

Pure: the same seed, size and permission give the same plan, under names that are each drill's own. What the plan meets
is the machine's affair, so a second drill with the same seed does the same deeds at the same moments to workers that
may be somewhere else in their work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

KEYS = 3
"""Different exclusive keys."""
MEAN_GAP_SECONDS = 0.7
"""Between two deeds, per worker a bit more often than that a task takes."""
QUIET_SECONDS = 0.5
"""At the start: something should be running first."""
CALM_SECONDS = 2.0
"""After a worker was frozen for long nothing else is done until it has been replaced and has come back: only then are
its late writes seen to be refused."""
LONG_ENOUGH_SECONDS = 30.0
"""A drill shorter than this has no time for that."""
SENDING_SHARE = 0.8
"""The tasks are sent during this part of the time, so that the last of them are met by violence, too."""
LAST_SECONDS = 10.0
"""But of a long drill only so much is left after the last one."""


class Kind(StrEnum):
    """What a task of the drill is like. The value is the end of its name."""

    ONCE = "once"  # may not be repeated
    AGAIN = "again"
    ASYNC = "async"
    FLAKY = "flaky"  # raises at its first attempt
    EXCLUSIVE = "exclusive"
    POISON = "poison"  # kills its own process, whenever it runs

    @property
    def may_repeat(self) -> bool:
        return self is not Kind.ONCE


WEIGHTS = {Kind.ONCE: 20, Kind.AGAIN: 30, Kind.ASYNC: 20, Kind.FLAKY: 15, Kind.EXCLUSIVE: 14, Kind.POISON: 1}


class Deed(StrEnum):
    KILL_PROCESS = "task processes killed"
    KILL_WORKER = "workers killed"
    KILL_EVERY_WORKER = "times every worker was killed"
    FREEZE_PROCESS = "task processes frozen"
    FREEZE_WORKER = "workers frozen"
    FREEZE_LONG = "workers frozen for longer than they may be silent"
    KILL_DATABASE = "times the database was killed"


ODDS = {
    Deed.KILL_PROCESS: 40,
    Deed.KILL_WORKER: 20,
    Deed.KILL_EVERY_WORKER: 3,
    Deed.FREEZE_PROCESS: 15,
    Deed.FREEZE_WORKER: 12,
    Deed.FREEZE_LONG: 1,
    Deed.KILL_DATABASE: 5,
}
FROZEN_SECONDS = {Deed.FREEZE_PROCESS: (0.2, 2.0), Deed.FREEZE_WORKER: (0.2, 1.5), Deed.FREEZE_LONG: (8.0, 12.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One task to be sent."""

    id: str
    kind: Kind
    work_ms: int
    key: str | None
    at: float
    """Seconds since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One deed to be done."""

    at: float
    deed: Deed
    pick: float
    """Of those that can be met then, which: 0 is the first, just below 1 the last."""
    seconds: float = 0.0
    """How long it stays frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    mark: str
    """Begins the names of its tasks, keys and workers: another drill in the same store has others."""
    seconds: float
    workers: int
    sendings: tuple[Sending, ...]
    acts: tuple[Act, ...]


def plan_for(
    *, seed: int, mark: str, seconds: float, workers: int, tasks: int, may_kill_database: bool = False
) -> Plan:
    chance = Random(seed)
    sending_for = max(seconds * SENDING_SHARE, seconds - LAST_SECONDS)
    sendings = tuple(_sending(chance, mark, number, at=sending_for * number / tasks) for number in range(tasks))
    deeds = list(Deed)
    if not may_kill_database:
        deeds.remove(Deed.KILL_DATABASE)
    if seconds < LONG_ENOUGH_SECONDS:
        deeds.remove(Deed.FREEZE_LONG)
    acts = tuple(_acts(chance, deeds, seconds, workers))
    return Plan(seed=seed, mark=mark, seconds=seconds, workers=workers, sendings=sendings, acts=acts)


def _sending(chance: Random, mark: str, number: int, *, at: float) -> Sending:
    kind = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    work_ms = round(chance.triangular(0, 600, 60))
    key = f"{mark}-key-{chance.randrange(KEYS)}" if kind is Kind.EXCLUSIVE else None
    return Sending(id=f"{mark}-{number}", kind=kind, work_ms=work_ms, key=key, at=at)


def _acts(chance: Random, deeds: list[Deed], seconds: float, workers: int) -> Iterator[Act]:
    """Each deed once in a shuffled order, as far as the time allows, then by their odds."""
    first = chance.sample(deeds, len(deeds))
    at = QUIET_SECONDS
    while at < seconds:
        deed = first.pop() if first else chance.choices(deeds, [ODDS[deed] for deed in deeds])[0]
        low, high = FROZEN_SECONDS.get(deed, (0.0, 0.0))
        frozen = chance.uniform(low, high)
        yield Act(at=at, deed=deed, pick=chance.random(), seconds=frozen)
        at += chance.expovariate(workers / 3 / MEAN_GAP_SECONDS)
        at += frozen + CALM_SECONDS if deed is Deed.FREEZE_LONG else 0.0
