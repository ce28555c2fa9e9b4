"""Take hold of tasks: start what was claimed, make ready what is due, claim what fits, in the order of claims."""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat

from everbeat.decide.room import OWN_PROCESS, Answer, Room
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, TaskPolicy
from everbeat.store.transaction import Columns, Row, Transaction
from everbeat.store.verbs import unsound
from everbeat.store.verbs.living import renew
from everbeat.store.verbs.queueing import Places
from everbeat.store.verbs.settling import NOW
from everbeat.store.verbs.turns import IN_LINE

START = """
UPDATE everbeat_tasks SET status = 'RUNNING', attempt = attempt + 1, started_at = :now
 WHERE seq = :seq AND fence = :fence AND worker_id = :worker_id AND status || '' = 'CLAIMED'
   AND (good_until IS NULL OR good_until > :now)"""

LAUNCH = """
UPDATE everbeat_tasks
   SET status = 'RUNNING', fence = fence + 1, worker_id = ?, counted = ?, attempt = attempt + 1, started_at = ?
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""

CLAIM = """
UPDATE everbeat_tasks SET status = 'CLAIMED', fence = fence + 1, worker_id = ?, counted = ?
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""

# everbeat_tasks_due. A bounded bite, so that a million tasks due at once do not hold the write lock.
RIPE = """
SELECT seq, exclusive_key FROM everbeat_tasks WHERE status = 'PENDING' AND due_at IS NOT NULL AND due_at <= ?
 ORDER BY due_at LIMIT 1000 /*pg: FOR UPDATE SKIP LOCKED */"""

# Primary key. (Not one statement with RIPE in it: PostgreSQL may plan it so that RIPE is run again and again.)
RIPEN = f"UPDATE everbeat_tasks SET due_at = NULL, waiting_for = {IN_LINE} WHERE seq IN ({{marks}})"

NEXT_DUE = "SELECT min(due_at) FROM everbeat_tasks WHERE status = 'PENDING' AND due_at IS NOT NULL"

# everbeat_tasks_ready, in claim order, without sorting.
READY = f"""
SELECT {", ".join(unsound.COLUMNS)}
  FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name = ?"""

# The same, but only the columns that a plain row is claimed with, and whether the row is plain.
SHORT_READY = READY.replace(
    ", ".join(unsound.COLUMNS), f"{', '.join(unsound.COLUMNS[: unsound.SHORT])}, {unsound.IS_PLAIN}"
)

# everbeat_history_task
RECOVERED = """
SELECT task_id, fence, at FROM everbeat_history WHERE change = 'recover' AND task_id IN ({marks})"""

PASSES = 100
"""So many tasks of a kind are passed over in one flush, at most: a long row of tasks that must wait for a process of
their own is not walked to its end every time."""


def ripen(tx: Transaction, room: Room | None) -> tuple[int | None, set[str | None]]:
    """What is due becomes ready, if there is room for something; how long until the next is, and whose keys are to be
    handed over."""
    due_at, keys = _next_due(tx), set[str | None]()
    if due_at is not None and due_at <= tx.now and room is not None and not room.is_empty:
        ripe = tx.all(RIPE, (tx.now,))
        tx.change_among(RIPEN, (), [seq for seq, _ in ripe])
        keys = {key for _, key in ripe}
        due_at = _next_due(tx)
    return None if due_at is None else max(0, due_at - tx.now), keys


def _next_due(tx: Transaction) -> int | None:
    row = tx.one(NEXT_DUE)
    return row[0] if row and isinstance(row[0], int) else None  # who writes by hand can write anything


def start(tx: Transaction, worker_id: str, claim: Claim) -> bool:
    if tx.run(START, {"now": tx.now, "seq": claim.seq, "fence": claim.fence, "worker_id": worker_id}):
        return True
    now = tx.one(NOW, (claim.seq,))  # or by this flush, when it was sent before
    return now is not None and (now[0], now[1], now[4]) == (TaskStatus.RUNNING, claim.fence, worker_id)


def foresee(tx: Transaction, room: Room | None) -> None:
    if room is not None and not room.is_empty:
        tx.foresee(READY, room.queues, _names(room), room.wants)


def claim_into(tx: Transaction, worker_id: str, room: Room, places: Places) -> list[Claim]:
    foresee(tx, room)
    claims = [] if room.is_empty else find(tx, worker_id, room, places)
    take(tx, claims)
    return claims


def find(tx: Transaction, worker_id: str, room: Room, places: Places) -> list[Claim]:
    """What the room takes, not claimed yet."""
    flawed: list[Row] = []
    found: list[Claim] = []
    for kind, rows, slots, are_plain in admitted(tx, room, places, flawed):
        counted = places.is_limited(kind[0])
        if are_plain:
            found += claims_of(rows, slots, worker_id, kind, counted=counted)
        else:
            found += [claim_of(row, slot, worker_id, counted=counted) for row, slot in zip(rows, slots, strict=True)]
    if flawed:
        unsound.set_aside(tx, flawed)
    return found


def take(tx: Transaction, claims: Sequence[Claim]) -> None:
    waiting = [claim for claim in claims if claim.status is TaskStatus.CLAIMED]
    ready = [claim for claim in claims if claim.status is TaskStatus.RUNNING] if waiting else claims
    tx.finally_many(CLAIM, Columns(*_taken_by(waiting), *_as_found(waiting)))
    tx.finally_many(LAUNCH, Columns(*_taken_by(ready), [tx.now] * len(ready), *_as_found(ready)))


def _taken_by(claims: Sequence[Claim]) -> tuple[list[str | None], list[int]]:
    return [claim.worker_id for claim in claims], [int(claim.counted) for claim in claims]


def _as_found(claims: Sequence[Claim]) -> tuple[list[int], list[int]]:
    return [claim.seq for claim in claims], [claim.fence - 1 for claim in claims]


def begin_leases(tx: Transaction, worker_id: str, claims: Iterable[Claim]) -> None:
    """A lease begins with the claim or start: whoever waits for its end counts from now."""
    if any(claim.exclusive_key is not None for claim in claims):
        renew(tx, worker_id)


def restarted_after(tx: Transaction, claims: Iterable[Claim]) -> Iterator[float]:
    """For each of these that runs for the first time since it was recovered: how long ago that was. The recovery and
    the claim each raised the fence."""
    again = {(claim.id, claim.fence - 2) for claim in claims if claim.fence > 2}
    for task_id, fence, at in tx.among(RECOVERED, (), [task_id for task_id, _ in again]):
        if (task_id, fence) in again:
            yield (tx.now - at) / 1e6


def claim_of(row: Row, slot: int, worker_id: str, *, counted: bool) -> Claim:
    launched = slot != OWN_PROCESS
    solo, timeout, key = bool(row[16]), TaskPolicy.load(row[5]).timeout, row[18]
    return Claim(
        seq=row[1], id=row[2], name=row[10], queue=row[11], fence=row[3] + 1, attempt=row[4] + launched,
        free_attempts=row[12], crash_count=row[13], lost_count=row[14], dispatch_count=row[15], solo=solo,
        policy=row[5], args=row[6], worker_id=worker_id, slot=slot, timeout=timeout,
        alone=solo or timeout is not None or key is not None, counted=counted, exclusive_key=key,
        workflow_id=row[7], node=row[8], refs=row[9],
        status=TaskStatus.RUNNING if launched else TaskStatus.CLAIMED,
    )  # fmt: skip


def claims_of(
    rows: Sequence[Row], slots: Sequence[int], worker_id: str, kind: tuple[str, str], *, counted: bool,
    may_be_nodes: bool = True,
) -> Iterator[Claim]:  # fmt: skip
    """Of plain rows of one kind, whole or short, by columns: claims are made by the thousand."""
    _, seqs, ids, fences, attempts, policies, args, *rest = zip(*rows, strict=True)
    return map(
        Claim, seqs, ids, repeat(kind[1]), repeat(kind[0]), [fence + 1 for fence in fences], repeat(TaskStatus.RUNNING),
        [attempt + 1 for attempt in attempts], repeat(0), repeat(0), repeat(0), repeat(0), repeat(False), policies,
        args, repeat(worker_id), slots, repeat(None), repeat(False), repeat(False), repeat(counted), repeat(None),
        *(rest[:3] if may_be_nodes else ()),
    )  # fmt: skip


class Line:
    """The ready tasks of one kind, in order, read some at a time. Rows that make no sense are not among them, but in
    `flawed`."""

    __slots__ = ("_flawed", "_flaws", "_rows", "_source", "_tx", "are_plain", "at", "kind", "passes", "wanted")

    def __init__(self, tx: Transaction, kind: tuple[str, str], wanted: int, flawed: list[Row]) -> None:
        self._tx = tx
        self._source = tx.ahead(READY, kind, wanted)
        self._flawed = flawed
        self._flaws = 0
        self._rows: Sequence[Row] = ()
        self.kind = kind
        self.wanted = wanted
        self.passes = PASSES
        self.at = 0
        self.are_plain = False

    def head(self) -> Row | None:
        while self.at == len(self._rows):
            if not self._read():
                return None
        return self._rows[self.at]

    def run(self, before: Row | None) -> Sequence[Row]:
        """Of what was read, all that comes before this one of another kind."""
        end = len(self._rows) if before is None else bisect_left(self._rows, before, self.at)
        return self._rows[self.at : end]

    def _read(self) -> bool:
        rows = () if self._flaws >= unsound.BITE else next(self._source, ())
        self.are_plain = bool(rows) and unsound.are_plain(rows) and all(map(_is_plain, {row[5] for row in rows}))
        self.at, self._rows = 0, rows
        if rows and not self.are_plain:
            self._rows = rows = [unsound.whole(row, self.kind) for row in rows]
            before = len(self._flawed)
            self._rows = unsound.sound(rows, self._flawed)
            self._flaws += len(self._flawed) - before
            if self._flaws >= unsound.BITE:  # the rest when these are out of the way
                self._tx.wakes.add(self.kind)
        return bool(rows)


def admitted(
    tx: Transaction, room: Room, places: Places, flawed: list[Row]
) -> Iterator[tuple[tuple[str, str], Sequence[Row], list[int], bool]]:
    """Ready tasks in claim order over all kinds, as far as the room admits them and their queues have places: a kind,
    rows of it, their slots, and whether they are plain."""
    lines = [Line(tx, kind, room.wants(kind[1]), flawed) for kind in list(_kinds(tx, room, places))]
    heads = [(row, number) for number, line in enumerate(lines) if (row := line.head())]
    heapq.heapify(heads)
    while heads:
        row, number = heads[0]
        line = lines[number]
        queue, name = line.kind
        if line.are_plain and not places.is_limited(queue) and not room.shunned:
            run = line.run(min(heads[1:3])[0] if len(heads) > 1 else None)
            slots = room.offer_alike(name, len(run))
            answer = Answer.TAKE if len(slots) == len(run) else Answer.FULL
            if slots:
                yield line.kind, run[: len(slots)], slots, True
                line.at += len(slots)
                line.wanted -= len(slots)
        else:
            row = unsound.whole(row, line.kind)
            answer, slot = _offer(room, row, tx.now) if places.are_left(queue) else (Answer.FULL, OWN_PROCESS)
            if answer is Answer.TAKE:
                places.take(queue)
                yield line.kind, [row], [slot], False
                line.wanted -= 1
            elif answer is Answer.PASS:
                line.passes -= 1
            line.at += 1
        is_whole = line.passes == PASSES and not flawed
        if answer is Answer.TAKE and line.wanted > 0 and is_whole:
            goes_on = True
        else:  # no row more than there is room for is looked at: it would be locked
            if room.is_empty:
                return
            goes_on = answer is not Answer.FULL and line.passes > 0 and room.serves(queue, name)
        following = line.head() if goes_on else None
        if following is None:
            heapq.heappop(heads)
            if goes_on and line.passes == PASSES and not flawed:
                tx.wakes.discard(line.kind)  # all of it is taken
        else:
            heapq.heapreplace(heads, (following, number))


def _is_plain(policy: str | None) -> bool:
    said = TaskPolicy.load(policy)
    return said.timeout is None and not said.isolated


def _offer(room: Room, row: Row, now: int) -> tuple[Answer, int]:
    if row[17] is not None and row[17] <= now:  # past its time: not started, though nobody has ended it yet
        return Answer.PASS, OWN_PROCESS
    if row[7] in room.shunned:
        return Answer.PASS, OWN_PROCESS
    policy = TaskPolicy.load(row[5])
    must_be_solo = bool(row[16]) or row[18] is not None  # killed for its lease, it must take nobody with it
    return room.offer(row[10], solo=must_be_solo, alone=policy.timeout is not None, isolated=policy.isolated)


def _kinds(tx: Transaction, room: Room, places: Places) -> Iterator[tuple[str, str]]:
    """The (queue, name) pairs that have ready tasks and that the room serves, in one order for everybody: the limits of
    two queues are locked in it."""
    return (kind for kind in tx.kinds(room.queues, _names(room)) if room.serves(*kind) and places.are_left(kind[0]))


def _names(room: Room) -> list[str]:
    return _in_order(room.sync_names, room.async_names)


@lru_cache(maxsize=16)
def _in_order(sync_names: frozenset[str], async_names: frozenset[str]) -> list[str]:
    return sorted(sync_names | async_names)
