"""What keeps sessions that write at the same time out of each other's way, each taken away. Only their statements in
another order show it: the scenes of tests/isolation on PostgreSQL."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from tests.mutation.weakening import everywhere, mutation, put, retell, reword

from everbeat.store.postgres import statements
from everbeat.store.verbs import flow_ends, queueing, turns

ORDERS = "200"
"""Of the statements of a scene, beside those by chance."""


def scene(rule: str, name: str) -> Callable[[Callable[[], None]], Any]:
    test = "tests/isolation/test_isolation.py::test_statements_of_several_sessions_may_come_in_any_order"

    def keep(weaken: Callable[[], None]) -> Any:
        @wraps(weaken)
        def in_many_orders() -> None:
            os.environ["EVERBEAT_ORDERS"] = ORDERS
            weaken()

        return mutation(rule, test=f"{test}[{name}]")(in_many_orders)

    return keep


@scene("25", "two claim from a queue with a limit")
def a_limit_counted_without_its_lock() -> None:
    """Who claims from a queue with a limit counts while others do."""

    def counted(self: Any, queue: str) -> int:
        return int(self._limits[queue]) - queueing._owned(self._tx, queue)

    put(queueing.Places, "_counted", counted)


@scene("25", "a limit comes while another claims")
def a_limit_does_not_wait_for_claims() -> None:
    """A limit is set while somebody claims who has read that there is none."""
    reword(queueing, "NO_CLAIMS", " /*pg: FOR UPDATE */", "")


@scene("25", "two send one exclusive key")
def a_turn_given_without_its_lock() -> None:
    """Two look who has the turn of a key, and both give it to somebody."""
    hand_over = turns.hand_over
    retell(turns, 'tx.lock(f"{LINE}{key}")', 'assert f"{LINE}{key}"')
    everywhere(hand_over, turns.hand_over)


@scene("26", "two claim what has a time limit")
def claims_of_rows_that_others_claim() -> None:
    """Who claims does not lock what it has found."""
    reword(statements, "AHEAD", " FOR UPDATE SKIP LOCKED", "")


@scene("35", "two inputs of a join end")
def a_workflow_advanced_without_its_lock() -> None:
    """Two inputs of a join end at once, and neither sees that of the other."""
    reword(flow_ends, "LOCK", " /*pg: FOR UPDATE OF r */", "")
