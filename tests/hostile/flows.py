"""Workflows of every shape and in every state, and whole copies of them with something wrong in one of their rows.

A row that is spoiled alone belongs to nothing: here its workflow, what is nested in it, nodes, edges, calls and tasks
are all there, so whoever goes on with it, mends it or shows it comes upon what is wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from typing import Any, NamedTuple

from tests.hostile.rows import AS_TEXT, VALUES, Column, Hand, Pen, Statement
from tests.words import completed, failed, handed_back

from everbeat import Everbeat, Task, Workflow
from everbeat.decide.room import Room
from everbeat.model.flow import WorkflowChange
from everbeat.model.recovery import Verdict
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush

TABLES = ("everbeat_workflows", "everbeat_workflow_tasks", "everbeat_workflow_calls", "everbeat_workflow_edges")
TASKS = "everbeat_tasks"
KEYS = {
    "everbeat_workflows": ("id",),
    "everbeat_workflow_tasks": ("workflow_id", "node"),
    "everbeat_workflow_calls": ("workflow_id", "node"),
    "everbeat_workflow_edges": ("workflow_id", "node", "next"),
}
"""The first is the workflow that a row belongs to."""
NAMES = {
    "everbeat_workflows": {"id", "root_id", "parent_id"},
    "everbeat_workflow_tasks": {"workflow_id", "task_id", "child_id"},
    "everbeat_workflow_calls": {"workflow_id"},
    "everbeat_workflow_edges": {"workflow_id"},
    TASKS: {"id", "workflow_id"},
}
"""What is another one's in a copy."""
QUEUE = "flows"
ITSELF = "itself"
"""A value: the workflow that a row belongs to, or its node."""


class Tasks(NamedTuple):
    add: Task[..., int]
    numbers: Task[..., list[int]]
    total: Task[..., int]


def tasks_of(app: Everbeat) -> Tasks:
    @app.task(name="add", queue=QUEUE)
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="numbers", queue=QUEUE)
    def numbers(count: int) -> list[int]:
        return list(range(count))

    @app.task(name="total", queue=QUEUE)
    def total(parts: list[int]) -> int:
        return sum(parts)

    return Tasks(add, numbers, total)


# -- shapes -----------------------------------------------------------------------------------------------------------


def plain(tasks: Tasks) -> Workflow:
    flow = Workflow("plain")
    flow.add(tasks.add, flow.add(tasks.add, 1, 2), 3)
    return flow


def nested(tasks: Tasks) -> Workflow:
    flow, inside = Workflow("nested"), Workflow("inside")
    first = flow.add(tasks.add, 1, 2)
    inside.add(tasks.add, inside.add(tasks.add, first, 1).named("inner"), 1)
    flow.add(tasks.add, flow.add(inside), 1).named("last")
    return flow


def mapped(tasks: Tasks) -> Workflow:
    flow = Workflow("mapped")
    flow.add(tasks.total, flow.map(tasks.add, 1, over=flow.add(tasks.numbers, 2)))
    return flow


def chosen(tasks: Tasks) -> Workflow:
    flow = Workflow("chosen", on_error="CONTINUE")
    asked = flow.add(tasks.add, 1, 2)
    taken = flow.add(tasks.add, 1, 1, when=asked.result_is(3)).named("taken")
    other = flow.add(tasks.add, 1, 1, when=asked.result_in([1, 2])).named("other")
    late = flow.add(tasks.add, 1, 1, unless=taken.result_is(9)).named("late")
    flow.add(tasks.total, [taken, other, late], join="any")
    return flow


def quorum(tasks: Tasks) -> Workflow:
    flow = Workflow("quorum", on_error="PAUSE")
    inputs = [flow.add(tasks.add, number, 1) for number in range(3)]
    flow.success = [flow.add(tasks.total, inputs, join="quorum", min_success=2)]
    slow = flow.add(tasks.add, 5, 5).named("slow")
    flow.add(tasks.total, [*inputs[:2], slow], allow_failed=True)
    return flow


SHAPES = (plain, nested, mapped, chosen, quorum)
IDS = (
    "completed-nested", "completed-mapped", "failed-nested", "halted-quorum", "cancelled-mapped",
    *(f"{wave}-{shape.__name__}" for wave in ("first", "second") for shape in SHAPES), "paused-nested", "paused-mapped",
)  # fmt: skip
"""In the first ones one wave of tasks has ended, in the second ones two."""


def furnish(app: Everbeat, store: Store, worker: str) -> None:
    """Start them, and play them as far as they are to come."""
    tasks = tasks_of(app)
    nested(tasks).start(app, id="completed-nested")
    mapped(tasks).start(app, id="completed-mapped")
    while _wave(store, worker):
        pass
    nested(tasks).start(app, id="failed-nested")
    _wave(store, worker)
    while _wave(store, worker, failed()):
        pass
    quorum(tasks).start(app, id="halted-quorum")
    while _wave(store, worker, failed()):
        pass
    mapped(tasks).start(app, id="cancelled-mapped")
    _wave(store, worker)
    assert store.change_workflow(WorkflowChange.CANCEL, "cancelled-mapped", actor="me")
    for shape in SHAPES:
        shape(tasks).start(app, id=f"second-{shape.__name__}")
    _wave(store, worker)
    for shape in SHAPES:
        shape(tasks).start(app, id=f"first-{shape.__name__}")
    _wave(store, worker)
    plain(tasks).start(app, id="flow")
    for shape in (nested, mapped):
        shape(tasks).start(app, id=f"paused-{shape.__name__}")
        assert store.change_workflow(WorkflowChange.PAUSE, f"paused-{shape.__name__}", actor="me")


def _wave(store: Store, worker: str, verdict: Verdict | None = None) -> list[Claim]:
    """Run what is ready, but for what is slow; what that was."""
    claims = claim_all(store, worker)
    titles = {node.task_id: node.name for claim in claims for node in store.workflow_nodes(claim.workflow_id or "")}
    slow = [claim for claim in claims if titles[claim.id] == "slow"]
    ready = [claim for claim in claims if claim not in slow]
    endings = [Ending(claim=claim, verdict=verdict or _result(claim)) for claim in ready]
    endings += [Ending(claim=claim, verdict=handed_back()) for claim in slow]
    store.flush(Flush(worker_id=worker, endings=endings))
    return ready


def claim_all(store: Store, worker: str) -> list[Claim]:
    names = frozenset(Tasks._fields)
    room = Room(sync_names=names, async_names=frozenset(), queues=frozenset({QUEUE}), slots=dict.fromkeys(range(50), 0))
    return store.flush(Flush(worker_id=worker, room=room)).claims


def _result(claim: Claim) -> Verdict:
    return completed(b"[1,2]" if claim.name == "numbers" else b"3")


# -- copies -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A workflow with all that is nested in it."""

    root: str
    where: dict[str, str]
    """Its rows, of each table."""


class Spoilt(NamedTuple):
    """A row that is given another value in one of its columns."""

    table: str
    keys: dict[str, Any]
    column: str
    title: str
    value: object


def spread(hand: Hand, table: str, *, each: int = 3) -> list[str]:
    """For each value and column of a table: copies of so many of the workflows with that value in that column of one of
    their rows, each time of another. The ids of those that the database took."""
    columns, taken = hand.tables(), list[str]()
    with hand.writing() as pen:
        rows = [(tree, cycle(found)) for tree in _trees(pen, IDS) if (found := _rows(pen, table, tree))]
        turns = cycle(rows)
        for column, (title, value) in product(columns[table], [*VALUES.items(), (ITSELF, None)]):
            suffix = f"/{table.removeprefix('everbeat_')}.{column.name}.{title}".replace(" ", "-")
            for tree, mine in islice(turns, each):
                spoilt = Spoilt(table, next(mine), column.name, title, value)
                if pen.all_or_none([*_copied(columns, tree, suffix), _spoiling(spoilt, suffix)]):
                    taken.append(f"{tree.root}{suffix}")
    return taken


def _trees(pen: Pen, roots: Sequence[str]) -> Iterator[Tree]:
    for root in roots:
        ids = _among(pen.rows(f"SELECT id FROM everbeat_workflows WHERE root_id = '{root}'"))
        seqs = _among(pen.rows(f"SELECT seq FROM everbeat_tasks WHERE workflow_id IN ({ids})"))
        within = {table: f"{KEYS[table][0]} IN ({ids})" for table in TABLES}
        yield Tree(root, within | {TASKS: f"seq IN ({seqs or 0})"})


def _among(rows: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(repr(value) for (value,) in rows)


def _rows(pen: Pen, table: str, tree: Tree) -> list[dict[str, Any]]:
    keys = KEYS[table]
    found = pen.rows(f"SELECT {', '.join(keys)} FROM {table} WHERE {tree.where[table]}")
    return [dict(zip(keys, row, strict=True)) for row in found]


def _copied(columns: dict[str, list[Column]], tree: Tree, suffix: str) -> Iterator[Statement]:
    for table, where in tree.where.items():
        free = [column.name for column in columns[table] if not column.is_given]
        values = [f"{name} || '{suffix}'" if name in NAMES[table] else name for name in free]
        yield Statement(
            f"INSERT INTO {table} ({', '.join(free)}) SELECT {', '.join(values)} FROM {table} WHERE {where}"
        )


def _spoiling(spoilt: Spoilt, suffix: str) -> Statement:
    names = NAMES[spoilt.table]
    keys = {key: f"{value}{suffix}" if key in names else value for key, value in spoilt.keys.items()}
    flow, *numbers = keys.values()
    mark, value = "?", spoilt.value
    if spoilt.title == ITSELF:
        value = flow if spoilt.column in names else next(iter(numbers), 1)
    elif spoilt.title == AS_TEXT:
        mark = "CAST(? AS TEXT)"
    where = " AND ".join(f"{key} = ?" for key in keys)
    return Statement(f"UPDATE {spoilt.table} SET {spoilt.column} = {mark} WHERE {where}", [value, *keys.values()])
