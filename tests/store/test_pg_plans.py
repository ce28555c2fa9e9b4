"""How PostgreSQL finds the rows of the hot statements: by an index, also with the plan that it keeps for every value
and with statistics that know nothing: a scan of the table costs twenty times and more."""

import re
from collections.abc import Iterator

import psycopg
import pytest
from tests.postgres import EmptyDatabase

from everbeat.store.postgres import taking
from everbeat.store.postgres.connection import LIMITS
from everbeat.store.postgres.dialect import bind, in_one, translate
from everbeat.store.postgres.hot import FRESH, FRESH_KINDS, FRESH_OF, KINDS, KINDS_OF, LOOK, SHARED, TYPES
from everbeat.store.postgres.statements import AFTER, AHEAD, page_from, page_since, recorded
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.verbs import (
    claiming,
    classes,
    expiring,
    flow_advance,
    flow_ends,
    flow_look,
    flow_ready,
    flow_rows,
    looking,
    recovering,
    sending,
    settling,
    turns,
)

FILL = """
INSERT INTO everbeat_tasks (id, name, queue, priority, status, created_at, run_at, finished_at, fence, worker_id, args)
SELECT 'task-' || n, 'add', 'default', 100,
       CASE WHEN n % 20 = 0 THEN 'PENDING' WHEN n % 20 = 1 THEN 'RUNNING' ELSE 'COMPLETED' END,
       1, 1, CASE WHEN n % 20 > 1 THEN 1 END, 1, CASE WHEN n % 20 = 1 THEN 'w' || n % 7 END, ''
  FROM generate_series(1, 20000) AS n"""

MARK = re.compile(r"%(?:\((\w+)\))?s")
READY = translate(claiming.READY)
STATEMENTS = {
    "ready": (AHEAD.format(sql=READY, after=""), "everbeat_tasks_ready"),
    "ready, further": (AHEAD.format(sql=READY, after=AFTER), "everbeat_tasks_ready"),
    "what a flush asks first": (LOOK, "everbeat_tasks_due"),
    "kinds": (KINDS, "everbeat_tasks_ready"),
    "kinds of some queues": (KINDS_OF, "everbeat_tasks_ready"),
    **{
        f"turn in one round trip, {look} look{queues}": (turn, "everbeat_tasks_pkey")
        for queues, turns_of in (("", taking.TURN_ANY), (", of some queues", taking.TURN_OF))
        for look, turn in (("whole", turns_of[0]), ("onward", turns_of[2]))
    },
    "ready, from a place on": (page_from(claiming.READY), "everbeat_tasks_ready"),
    "ready, from a place on, further": (page_from(claiming.READY, AFTER), "everbeat_tasks_ready"),
    "complete many": (in_one(settling.COMPLETE, TYPES[settling.COMPLETE]), "everbeat_tasks_pkey"),
    "launch many": (in_one(claiming.LAUNCH, TYPES[claiming.LAUNCH]), "everbeat_tasks_pkey"),
    "claim many": (in_one(claiming.CLAIM, TYPES[claiming.CLAIM]), "everbeat_tasks_pkey"),
    **{
        f"{name} many of one worker": (in_one(sql, TYPES[sql], SHARED[sql]), "everbeat_tasks_pkey")
        for name, sql in (("complete", settling.COMPLETE), ("launch", claiming.LAUNCH), ("claim", claiming.CLAIM))
    },
    **{f"{change} many": (in_one(sql, TYPES[sql]), "everbeat_tasks_pkey") for change, sql in settling.ENDINGS.items()},
    **{
        f"{change} a class": (
            recorded(end, (classes.ADD_HISTORY, classes.ADD_ATTEMPTS, classes.ADD_EVENTS)),
            "everbeat_tasks_pkey",
        )
        for change, end in classes.END.items()
    },
    "a class": (translate(classes.CLASSES), "everbeat_tasks_owned"),
    "as they are now": (translate(settling.EACH_NOW), "everbeat_tasks_pkey"),
    "recoveries of tasks": (translate(claiming.RECOVERED), "everbeat_history_task"),
    "start": (translate(claiming.START), "everbeat_tasks_pkey"),
    "next due": (translate(claiming.NEXT_DUE), "everbeat_tasks_due"),
    "owned": (translate(recovering.OWNED_BY), "everbeat_tasks_owned"),
    "owned by nobody": (bind(recovering.OWNED_BY, (None, 0, 10))[0], "everbeat_tasks_owned"),
    "owned, counted": (translate(recovering.COUNT_OWNED), "everbeat_tasks_owned"),
    "next owner": (translate(recovering.NEXT_OWNER), "everbeat_tasks_owned"),
    "holders of unique keys": (translate(sending.HOLDERS.format(marks="?, ?")), "everbeat_tasks_unique"),
    "first in line": (translate(turns.FIRST), "everbeat_tasks_line"),
    "over": (translate(expiring.OVER), "everbeat_tasks_good"),
    "end": (translate(looking.FINISHED), "everbeat_tasks_id_key"),
    "workflows, locked": (translate(flow_ends.LOCK), "everbeat_workflows_pkey"),
    "complete nodes": (translate(flow_advance.COMPLETE), "everbeat_workflow_tasks_pkey"),
    "count down nodes": (translate(flow_advance.COUNT_DOWN), "everbeat_workflow_tasks_pkey"),
    "nodes that follow": (translate(flow_advance.FOLLOWING), "everbeat_workflow_edges_pkey"),
    "nodes that follow one": (translate(flow_advance.FOLLOWING_ONE), "everbeat_workflow_edges_pkey"),
    "enqueue nodes": (translate(flow_ready.ENQUEUE), "everbeat_workflow_calls_pkey"),
    "results of nodes": (translate(flow_rows.VALUES), "everbeat_tasks_id_key"),
    "what is paused inside": (translate(flow_look.PAUSED_INSIDE), "everbeat_workflows_halted"),
}


@pytest.fixture(scope="module")
def filled(a_database: EmptyDatabase) -> Iterator[psycopg.Connection]:
    url = a_database.url()
    PostgresStore(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in LIMITS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(FILL)
        yield connection


@pytest.fixture(params=["statistics of an empty table", "fresh statistics"])
def connection(request: pytest.FixtureRequest, filled: psycopg.Connection) -> psycopg.Connection:
    if request.param == "fresh statistics":
        filled.execute("ANALYZE everbeat_tasks")
    return filled


def plan_of(connection: psycopg.Connection, sql: str) -> str:
    """As it would be run for any values: prepared, and not looked at them."""
    numbers: dict[str, int] = {}

    def number(mark: re.Match[str]) -> str:
        return f"${numbers.setdefault(mark[1] or str(len(numbers)), len(numbers) + 1)}"

    numbered = MARK.sub(number, sql).replace("%%", "%")
    connection.execute(f"PREPARE hot AS {numbered}".encode())
    try:
        values = ", ".join(["NULL"] * len(numbers))
        rows = connection.execute(f"EXPLAIN EXECUTE hot{f'({values})' if values else ''}".encode()).fetchall()
    finally:
        connection.execute("DEALLOCATE hot")
    return "\n".join(line for (line,) in rows)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_hot_statement_finds_its_rows_by_its_index(connection: psycopg.Connection, name: str) -> None:
    sql, index = STATEMENTS[name]

    plan = plan_of(connection, sql)

    assert re.search(rf"Index (Only )?Scan.* using {index} ", plan), plan
    assert not re.search(r"Seq Scan on everbeat_tasks\b", plan), plan
    assert not re.search(r"Bitmap|Hash|Sort Key: everbeat_tasks", plan), plan


@pytest.mark.parametrize(
    "sql",
    [
        FRESH_KINDS.format(fresh=FRESH), FRESH_KINDS.format(fresh=FRESH_OF), page_since(claiming.READY),
        page_since(claiming.READY, AFTER), taking.TURN_ANY[1], taking.TURN_OF[1],
    ],
)  # fmt: skip
def test_a_short_look_reads_nothing_of_the_index_of_what_is_ready(connection: psycopg.Connection, sql: str) -> None:
    plan = plan_of(connection, sql)

    assert "everbeat_tasks_ready" not in plan, plan
    assert re.search(r"Index (Only )?Scan using everbeat_tasks_pkey.*\n +Index Cond: \(seq >= ", plan), plan
    assert not re.search(r"Bitmap|Hash Join|Seq Scan on everbeat_tasks\b", plan), plan


@pytest.mark.parametrize("turn", [taking.TURN_ANY[2], taking.TURN_OF[2]])
def test_a_look_onward_begins_where_tasks_were_left(connection: psycopg.Connection, turn: str) -> None:
    plan = plan_of(connection, turn)

    looks = re.findall(r"everbeat_tasks_ready.*\n +Index Cond: (.*)", plan)
    assert len(looks) == 2, plan
    assert all("ROW(t" in look or "ROW(priority" in look for look in looks), plan
