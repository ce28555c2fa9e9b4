"""Give the store what workers that are gone had finished and could not tell it (PROTOCOL 30).

Done before anybody decides about the tasks they held, at start-up and whenever a worker is found dead. Their lock is
seized first, so nobody's living spool is touched and nobody else replays it at the same time. The outcomes take the way
of every outcome: stored under their fence, adopted, or refused and kept (PROTOCOL 29).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from everbeat.decide.finish import finish_for
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Adopted, Settled, Settlement, Superseded
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import WorkerStatus
from everbeat.run.lockfile import seize
from everbeat.run.slot import Ownership
from everbeat.run.spool import SUFFIX, Kept, read
from everbeat.store.interface import Store
from everbeat.store.lots import in_lots
from everbeat.store.messages import Ending, Flush
from everbeat.store.transaction import RowRefused

BATCH = 1000
LOCKED = "somebody has locked what they belong to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of one spool."""

    path: Path
    settled: int = 0
    """Stored under their fence, or already there."""
    adopted: int = 0
    refused: int = 0
    """Came too late. Kept beside their tasks."""
    left: str | None = None
    """Why the file, or what could not be read of it, was left where it is."""
    waiting: frozenset[Ownership] = frozenset()
    """Outcomes that are still in it. What they are outcomes of is not to be run again."""


def replay_spools(store: Store) -> list[Replayed]:
    """Give the store what workers that are gone had finished. Call it before looking for orphans."""
    return [
        told
        for path in sorted(store.state_directory.glob(f"worker-*{SUFFIX}"))
        if (told := _replay(store, path)) is not None
    ]


def has_spool(lock_path: Path) -> bool:
    """Whether the worker of this lock file left outcomes that nobody has replayed."""
    return lock_path.with_suffix(SUFFIX).exists()


def _replay(store: Store, path: Path) -> Replayed | None:
    """None: its worker lives, or somebody else sees to it."""
    with _taken(store, path) as is_ours:
        if not is_ours:
            return None
        try:
            records, damage = read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Replayed(path=path, left=error.strerror)
        store_id = store.store_id
        mine = [kept for kept in records if kept.store == store_id]
        if len(mine) < len(records):
            return Replayed(path=path, left=f"it belongs to another store ({records[0].store})")
        told = _give(store, path, mine)
        if told.waiting:
            return told
        if damage is None:
            path.unlink(missing_ok=True)
            return told
        path.rename(path.with_name(f"{path.name}.damaged"))
        return replace(told, left=damage)


@contextmanager
def _taken(store: Store, path: Path) -> Iterator[bool]:
    """The worker's lock, which is ours while nobody of it is alive. Without one, its row must say that it is gone."""
    lock = path.with_suffix(".lock")
    if lock.exists():
        with seize(lock) as worker_id:
            yield worker_id is not None
    else:
        alive = {worker.id.replace("/", "_") for worker in store.workers() if worker.status is WorkerStatus.ALIVE}
        yield path.stem.removeprefix("worker-") not in alive


def _give(store: Store, path: Path, records: list[Kept]) -> Replayed:
    endings = [_ending(kept) for kept in records]
    became: list[Settlement | None] = []
    for first in range(0, len(endings), BATCH):
        batch = endings[first : first + BATCH]
        became += in_lots(batch, lambda ending: ending.claim.workflow_id, partial(_settle, store), _none, hurries=True)
    settlements = [settlement for settlement in became if settlement is not None]
    told = Replayed(
        path=path,
        settled=sum(isinstance(settlement, Settled) for settlement in settlements),
        adopted=sum(isinstance(settlement, Adopted) for settlement in settlements),
        refused=sum(isinstance(settlement, Superseded) for settlement in settlements),
        left=LOCKED if None in became else None,
        waiting=frozenset(
            (ending.claim.seq, ending.claim.fence)
            for ending, settlement in zip(endings, became, strict=True)
            if settlement is None
        ),
    )
    if settlements and not told.waiting:  # once, when all of it is told
        facts = {"settled": told.settled, "adopted": told.adopted, "refused": told.refused}
        store.announce([Event(name=event.SPOOL_REPLAYED, worker_id=records[0].worker, facts=facts)])
    return told


def _settle(store: Store, endings: Sequence[Ending], hurries: bool) -> Sequence[Settlement]:
    """In the name of their worker, who claims nothing any more."""
    flush = Flush(worker_id=endings[0].claim.worker_id or "", endings=list(endings), hurries=hurries)
    try:
        return store.flush(flush).settlements
    except RowRefused:
        return store.flush(replace(flush, row_by_row=True)).settlements


def _none(ending: Ending) -> None:
    """Nothing became of it, for now."""


def _ending(kept: Kept) -> Ending:
    """As its worker would have ended it."""
    claim = Claim(
        seq=kept.seq, id=kept.task, name=kept.name, queue=kept.queue, fence=kept.fence, status=TaskStatus.RUNNING,
        attempt=kept.attempt, free_attempts=kept.free_attempts, crash_count=0, lost_count=0, dispatch_count=0,
        solo=kept.solo, policy=kept.policy, args=b"", worker_id=kept.worker, exclusive_key=kept.exclusive_key,
        workflow_id=kept.workflow_id, node=kept.node,
    )  # fmt: skip
    return Ending(claim=claim, verdict=finish_for(claim, kept.outcome, jitter=0.5), outcome=kept.outcome, pid=kept.pid)
