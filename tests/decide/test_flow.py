"""What becomes of a node, and how a workflow ends: pure."""

from dataclasses import replace

import pytest

from everbeat.decide import splice
from everbeat.decide.flow import Flow, Waiting, end_in_ended, end_of_task, is_same, state_of, turn_of
from everbeat.model.flow import (
    ITEM,
    WORKFLOW_SOURCES,
    NodeStatus,
    OnError,
    WorkflowChange,
    WorkflowStatus,
)
from everbeat.model.state import TaskStatus

N, W = NodeStatus, WorkflowStatus


@pytest.mark.parametrize(
    ("needed", "left", "ok", "failed", "allow_failed", "turn"),
    [
        (3, 3, 0, 0, False, N.PENDING),
        (3, 1, 2, 0, False, N.PENDING),
        (3, 0, 3, 0, False, N.READY),
        (3, 2, 0, 1, False, N.SKIPPED),
        (3, 2, 0, 0, False, N.PENDING),
        (3, 0, 2, 0, False, N.SKIPPED),
        (3, 1, 1, 1, True, N.PENDING),
        (3, 0, 1, 2, True, N.READY),
        (1, 2, 1, 0, False, N.READY),
        (1, 1, 0, 2, False, N.PENDING),
        (1, 0, 0, 3, False, N.FAILED),
        (1, 0, 0, 0, False, N.SKIPPED),
        (2, 1, 0, 2, False, N.FAILED),
        (2, 1, 1, 1, False, N.PENDING),
        (2, 1, 0, 0, False, N.PENDING),
        (2, 1, 0, 1, False, N.FAILED),
        (2, 0, 1, 0, False, N.SKIPPED),
    ],
)
def test_a_join_of_three(needed: int, left: int, ok: int, failed: int, allow_failed: bool, turn: NodeStatus) -> None:
    node = Waiting(
        deps=3, needed=needed, left=left, ok=ok, failed=failed, allow_failed=allow_failed, is_partial=needed < 3
    )

    assert turn_of(node).status is turn


def test_a_quorum_of_all_inputs_fails_where_a_join_of_all_is_skipped() -> None:
    one_failed = Waiting(deps=1, needed=1, left=0, ok=0, failed=1, is_partial=True)
    one_was_not_wanted = replace(one_failed, failed=0)

    assert turn_of(one_failed).status is N.FAILED
    assert turn_of(replace(one_failed, is_partial=False)).status is N.SKIPPED
    assert turn_of(one_was_not_wanted).status is N.SKIPPED


@pytest.mark.parametrize("is_partial", [True, False])
def test_of_an_input_that_failed_and_one_that_was_not_wanted_it_does_not_matter_which_came_first(
    is_partial: bool,
) -> None:
    """Neither is enough alone: two of three are needed, and one is still under way."""
    begun = Waiting(deps=3, needed=2, left=3, ok=0, failed=0, is_partial=is_partial)
    failed, unwanted = replace(begun, left=2, failed=1), replace(begun, left=2)
    both = replace(begun, left=1, failed=1)
    neither = replace(begun, left=1)

    assert turn_of(failed).status is turn_of(unwanted).status is turn_of(neither).status is N.PENDING
    late, early = turn_of(replace(neither, left=0, failed=1)), turn_of(both)
    assert (late.status, late.code) == (early.status, early.code)


def test_a_condition_waits_for_the_node_it_asks() -> None:
    node = Waiting(deps=2, needed=1, left=1, ok=1, failed=0)
    condition = '{"when":[{"node":4,"in":[true]}]}'

    assert turn_of(node, condition, {}).status is N.PENDING
    assert turn_of(node, condition, {4: b"true"}).status is N.READY
    assert turn_of(node, condition, {4: b"1"}).status is N.SKIPPED
    assert turn_of(node, condition, {4: None}).status is N.SKIPPED


def test_a_condition_that_is_none_is_an_error_that_says_so() -> None:
    node = Waiting(deps=0, needed=0, left=0, ok=0, failed=0)

    for damaged in ("no json", "[]", '{"when":[1]}', '{"unless":[{"node":"x","in":[]}]}'):
        with pytest.raises(ValueError):
            turn_of(node, damaged, {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (True, 1, False), (None, None, True), ([1, {"a": True}], [1, {"a": 1}], False), ("1", 1, False),
     ({"a": [1.0]}, {"a": [1]}, True)],
)  # fmt: skip
def test_values_are_compared_as_json_has_them(one: object, other: object, same: bool) -> None:
    assert is_same(one, other) is same


@pytest.mark.parametrize("status", [status for status in TaskStatus if status.is_terminal])
def test_every_end_of_a_task_is_the_end_of_a_node(status: TaskStatus) -> None:
    turn = end_of_task(status, has_result=False, code=None, message=None)

    assert turn.status.is_terminal
    assert turn.code
    assert turn.message


@pytest.mark.parametrize("status", [status for status in WorkflowStatus if status.is_terminal])
def test_what_had_not_ended_in_a_workflow_that_has_is_cancelled_with_a_reason(status: WorkflowStatus) -> None:
    turn = end_in_ended(status, None)

    assert turn.status is N.CANCELLED
    assert turn.code
    assert turn.message


@pytest.mark.parametrize(
    ("on_error", "has_error", "required", "end"),
    [
        (OnError.FAIL, False, None, W.COMPLETED),
        (OnError.FAIL, True, None, W.FAILED),
        (OnError.CONTINUE, True, None, W.COMPLETED),
        (OnError.FAIL, True, [N.COMPLETED], W.COMPLETED),
        (OnError.CONTINUE, False, [N.COMPLETED, N.SKIPPED], W.FAILED),
    ],
)
def test_the_end_of_a_workflow(
    on_error: OnError, has_error: bool, required: list[NodeStatus] | None, end: WorkflowStatus
) -> None:
    flow = Flow(status=W.RUNNING, on_error=on_error, nodes_left=0, has_error=has_error, required=required)

    assert state_of(flow) is end


@pytest.mark.parametrize("status", [W.PENDING, W.CANCELLED, W.FAILED, W.COMPLETED])
def test_what_has_ended_or_not_begun_is_left_alone(status: WorkflowStatus) -> None:
    assert state_of(Flow(status=status, on_error=OnError.FAIL, nodes_left=0, has_error=True)) is status


def test_a_workflow_that_has_ended_can_only_be_retried_and_a_cancelled_one_not_even_that() -> None:
    fitting = {status: {change for change in WorkflowChange if status in WORKFLOW_SOURCES[change]} for status in W}

    assert {status: changes for status, changes in fitting.items() if status.is_terminal} == {
        W.COMPLETED: {WorkflowChange.RETRY},
        W.FAILED: {WorkflowChange.RETRY},
        W.CANCELLED: set(),
    }


def test_values_are_put_into_their_places_and_nowhere_else() -> None:
    args = b'{"a":[null,null],"b":"null"}'

    assert (
        splice.put_in(args, [(6, (3, 0)), (11, (7, 1))], {(3, 0): b'"null"', (7, 1): b"{}"})
        == b'{"a":["null",{}],"b":"null"}'
    )
    assert splice.put_in(args, [(11, (3, 0))], {(3, 0): b"[1]"}) == b'{"a":[null,[1]],"b":"null"}'
    for wrong in ([(5, (3, 0))], [(11, (3, 0)), (6, (3, 0))], [(6, (3, 1))], [(6 - len(args), (3, 0))], [(99, (3, 0))]):
        with pytest.raises(ValueError):
            splice.put_in(args, wrong, {(3, 0): b"1"})


def test_places_are_read_as_they_were_written() -> None:
    written = splice.dump([(6, 3, 0), (11, 7, 1), (20, 9)])

    assert splice.load(written) == [(6, (3, 0)), (11, (7, 1)), (20, (9, 0))]
    assert splice.load(splice.dump([])) == ()


@pytest.mark.parametrize(
    "stored", ["", "null", "7", "{}", "[1]", "[[1]]", "[[1,2,3,4]]", '[[1,"2"]]', "[[1,2.5]]", "[[1,true]]", "[[1,2],"]
)
@pytest.mark.parametrize("long", ["", " " * splice.SHORT])
def test_what_is_no_list_of_places_is_refused(stored: str, long: str) -> None:
    with pytest.raises(ValueError, match="references are not understood"):
        splice.load(stored + long)


def test_the_element_of_a_map_moves_the_places_behind_it() -> None:
    args, left = splice.put_some_in(
        b'{"k":null,"x":null,"y":null}', [(5, (1, 0)), (14, (ITEM, 0)), (23, (2, 0))], {(ITEM, 0): b'"long element"'}
    )

    assert splice.put_in(args, left, {(1, 0): b"1", (2, 0): b"2"}) == b'{"k":1,"x":"long element","y":2}'


@pytest.mark.parametrize(
    ("absent", "filled"),
    [("", "[1,[2,3],0]"), ("1", "[[2,3],0]"), ("2", "[1,[3],0]"), ("3", "[1,[2],0]"), ("23", "[1,[],0]"),
     ("123", "[[],0]")],
)  # fmt: skip
def test_elements_that_do_not_exist_are_left_out_of_their_lists(absent: str, filled: str) -> None:
    args, left = splice.leave_out(
        b"[null,[null,null],0]", [(1, (1, 0)), (7, (2, 0)), (12, (3, 0))], {(int(one), 0) for one in absent}
    )

    assert splice.put_in(args, left, {(one, 0): str(one).encode() for one in (1, 2, 3)}).decode() == filled


def test_what_does_not_exist_and_is_in_no_list_is_null() -> None:
    assert splice.leave_out(b'{"x":null,"y":["null"]}', [(5, (1, 0))], {(1, 0)}) == (b'{"x":null,"y":["null"]}', [])


def test_references_that_are_none_are_refused() -> None:
    assert splice.load("[[5,1],[9,2,3]]") == [(5, (1, 0)), (9, (2, 3))]
    for damaged in ("no json", "5", "[1]", '[["a",1]]', "{}x", "[[1,2,3,4]]", "[[1]]"):
        with pytest.raises(ValueError):
            splice.load(damaged)


@pytest.mark.parametrize("places", [[(5, (3, 0))], [(5, (3, 0)), (10, (4, 0))], [(-1, (3, 0))], [(5, (9, 0))]])
def test_results_are_put_into_each_of_several_calls_as_into_one(places: list[splice.Place]) -> None:
    calls = [b'{"a":null,null}', b'{"b":null,null,7}', b'{"c":1}', b""]
    values = {(3, 0): b"[1]", (4, 0): b'"x"'}

    def alone(args: bytes) -> bytes | None:
        try:
            return splice.put_in(args, places, values)
        except ValueError:
            return None

    assert splice.put_in_each(calls, places, values) == [alone(args) for args in calls]
