"""`everbeat workflow`: looking at workflows and commanding them."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.by_hand import Command
from tests.contract.test_flow_mending import by_hand
from tests.contract.test_flows import nested
from tests.flow_words import FAIL, begin, end, graph, play, take
from tests.words import completed, register, requeue, settle, start, succeeded

from everbeat.model.flow import OnError, WorkflowChange
from everbeat.store.interface import Store


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def test_workflows_are_listed_newest_first_with_how_far_they_are(everbeat: Command, store: Store, url: str) -> None:
    assert everbeat("workflow", "list", "--json", "--db", url).json == []
    begin(store, graph("first", a="", b="a"))
    play(store, {"a": FAIL})
    begin(store, *nested())

    listed = everbeat("workflow", "list", "--json", "--db", url).json
    table = everbeat("workflow", "list", "--db", url).out

    assert [(one["id"], one["status"], one["nodes_left"]) for one in listed] == [
        ("flow", "RUNNING", 3), ("first", "FAILED", 0),
    ]  # fmt: skip
    assert "a: UNHANDLED_EXCEPTION: it broke" in table
    assert [one["id"] for one in everbeat("workflow", "list", "--status", "failed", "--json", "--db", url).json] == [
        "first"
    ]


def test_a_workflow_is_shown_with_its_nodes(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph(a="", b="a", c="b"))
    play(store, {"b": FAIL})

    shown = everbeat("workflow", "show", "flow", "--json", "--db", url).json
    text = everbeat("workflow", "show", "flow", "--db", url).out

    assert (shown["status"], shown["error_node"]) == ("FAILED", "b")
    assert [(node["name"], node["status"], node["after"]) for node in shown["nodes"]] == [
        ("a", "COMPLETED", []), ("b", "FAILED", ["a"]), ("c", "SKIPPED", ["b"]),
    ]  # fmt: skip
    assert "1 COMPLETED, 1 FAILED, 1 SKIPPED" in text


def test_nodes_are_shown_with_their_attempts_and_how_long_they_took(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph(a="", b="a", nodes={"a": {"max_attempts": 2}}))
    requeue(store, take(store)["a"])
    again = take(store)["a"]
    start(store, again)
    end(store, again)
    by_hand(store, "UPDATE everbeat_tasks SET started_at = 1000000 WHERE id = 'flow:a'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET finished_at = 3500000 WHERE name = 'a'")

    text = everbeat("workflow", "show", "flow", "--db", url).out
    first, second = everbeat("workflow", "show", "flow", "--json", "--db", url).json["nodes"]

    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["NODE", "STATUS", "TASK", "ATTEMPT", "TOOK", "WHY"],
        ["a", "COMPLETED", "add", "2", "2.5s", "-"],
        ["b", "ENQUEUED", "add", "-", "-", "a", "free", "slot"],
    ]  # fmt: skip
    assert (first["attempt"], first["duration"]) == (2, 2.5)
    assert (second["attempt"], second["duration"]) == (0, None)


def test_nodes_of_nested_workflows_are_shown_under_the_names_of_theirs(
    everbeat: Command, store: Store, url: str
) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    everbeat("workflow", "pause", "flow", "--db", url)

    text = everbeat("workflow", "show", "flow", "--db", url).out
    shown = everbeat("workflow", "show", "flow", "--json", "--db", url).json

    assert [(node["name"], "nodes" in node) for node in shown["nodes"]] == [("a", False), ("inner", True), ("d", False)]
    assert [(node["name"], node["status"]) for node in shown["nodes"][1]["nodes"]] == [
        ("b", "ENQUEUED"), ("c", "PENDING"),
    ]  # fmt: skip
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("inner")] == [
        ["inner", "RUNNING", "inner", "-"], ["inner", "/", "b", "ENQUEUED"], ["inner", "/", "c", "PENDING"],
    ]  # fmt: skip
    assert "paused by" in text


def test_what_a_paused_workflow_holds_says_so_in_words_and_to_programs_by_its_id(
    everbeat: Command, store: Store, url: str
) -> None:
    begin(store, graph(a="", b="a"))
    everbeat("workflow", "pause", "flow", "--db", url)

    listed = everbeat("task", "list", "--json", "--db", url).json
    words = [
        everbeat("workflow", "show", "flow", "--db", url).out,
        everbeat("task", "list", "--db", url).out,
        everbeat("task", "show", listed[0]["id"], "--db", url).out,
    ]

    assert [one["waiting_for"] for one in listed] == ["workflow:flow"]
    assert all("its workflow is paused (flow)" in said and "workflow:flow" not in said for said in words)


def test_a_person_who_paused_a_workflow_in_which_something_failed_is_named_beside_the_failure(
    everbeat: Command, store: Store, url: str
) -> None:
    begin(store, graph(a="", b="", c="b"))
    end(store, take(store)["a"], outcome=FAIL)
    store.change_workflow(WorkflowChange.PAUSE, "flow", actor="ann")

    listed = everbeat("workflow", "list", "--db", url).out
    shown = everbeat("workflow", "show", "flow", "--db", url).out

    assert "paused by ann; a: UNHANDLED_EXCEPTION: it broke" in listed
    assert "paused by ann; a: UNHANDLED_EXCEPTION: it broke" in shown


def test_a_node_whose_task_waits_says_what_for_as_the_task_does(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph(a="", b="", c="", nodes={"b": {"task_name": "mail.send"}, "c": {"queue": "night"}}))
    everbeat("queue", "pause", "night", "--db", url)

    shown = {node["name"]: node for node in everbeat("workflow", "show", "flow", "--json", "--db", url).json["nodes"]}
    tasks = {task["id"]: task["waiting_for"] for task in everbeat("task", "list", "--json", "--db", url).json}

    assert {name: node["waiting_for"] for name, node in shown.items()} == {
        "a": "a free slot", "b": "a worker that knows mail.send; of 1 running none does",
        "c": "its queue night, which is paused",
    }  # fmt: skip
    assert all(tasks[node["task_id"]] == node["waiting_for"] for node in shown.values())


def test_a_workflow_that_waits_for_a_paused_one_inside_says_so_in_the_list(
    everbeat: Command, store: Store, url: str
) -> None:
    begin(store, *nested(on_error=OnError.PAUSE))
    play(store, {"b": FAIL})

    (listed,) = everbeat("workflow", "list", "--json", "--db", url).json

    assert (listed["status"], listed["waiting_for"]) == ("RUNNING", "workflow inner, which is paused")
    assert "waits for workflow inner, which is paused" in everbeat("workflow", "list", "--db", url).out
    assert "waits for workflow inner, which is paused" in everbeat("workflow", "show", "flow", "--db", url).out


def test_a_node_that_may_start_says_what_holds_it(everbeat: Command, store: Store, url: str) -> None:
    begin(store, *nested())

    shown = everbeat("workflow", "show", "flow", "--json", "--db", url).json["nodes"][1]["nodes"][0]
    assert (shown["name"], shown["status"], shown["waiting_for"]) == ("b", "READY", "its workflow, which has not begun")
    held = take(store)["a"]
    everbeat("workflow", "pause", "flow", "--db", url)
    end(store, held)
    begin(store, graph("other", a="", b="a"))
    held = take(store)["a"]
    everbeat("workflow", "pause", "other", "--db", url)
    end(store, held)

    shown = everbeat("workflow", "show", "other", "--json", "--db", url).json["nodes"][1]
    assert (shown["name"], shown["status"], shown["waiting_for"]) == ("b", "READY", "workflow:other")
    assert "its workflow is paused (other)" in everbeat("workflow", "show", "other", "--db", url).out


def test_the_graph_is_mermaid_with_what_is_nested(everbeat: Command, store: Store, url: str) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])

    lines = everbeat("workflow", "show", "flow", "--graph", "--db", url).out.splitlines()

    assert lines[0] == "flowchart TD"
    assert '  n1(["inner<br/>RUNNING"])' in lines
    assert '    n1_0["b<br/>ENQUEUED"]' in lines
    assert "  n0 --> n1" in lines
    assert "  class n0 COMPLETED" in lines


def test_the_graph_is_in_the_json_also_while_it_is_watched(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph(a=""))
    play(store)

    for watch in [], ["--watch"]:
        shown = everbeat("workflow", "show", "flow", "--graph", "--json", *watch, "--db", url)
        assert "a<br/>COMPLETED" in shown.json["mermaid"]


def test_watching_ends_with_the_workflow(started: Callable[..., subprocess.Popen[str]], store: Store, url: str) -> None:
    begin(store, graph(a="", b="a"))
    watching = started("workflow", "show", "flow", "--watch", "--json", "--db", url)
    assert watching.stdout is not None
    assert '"status": "RUNNING"' in watching.stdout.readline()

    play(store)

    assert watching.wait(timeout=60) == 0
    assert '"status": "COMPLETED"' in watching.stdout.read().splitlines()[-1]


def test_orders_are_carried_out_or_say_why_not(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph(a="", b="a"))

    assert everbeat("workflow", "pause", "flow", "--json", "--db", url).json == {
        "count": 1, "paused": ["flow"], "refused": [],
    }  # fmt: skip
    refused = everbeat("workflow", "pause", "flow", "nobody", "--db", url)
    assert (refused.code, "workflow flow is PAUSED; only RUNNING can be paused" in refused.err) == (1, True)
    assert "no workflow nobody" in refused.err
    assert everbeat("workflow", "resume", "flow", "--db", url).out == "1 workflow resumed\n"
    play(store, {"a": FAIL})
    assert everbeat("workflow", "retry", "flow", "--db", url).code == 0
    assert everbeat("workflow", "cancel", "flow", "--db", url).code == 0
    again = everbeat("workflow", "retry", "flow", "--db", url)
    assert (again.code, "is CANCELLED" in again.err) == (1, True)
    shown = everbeat("workflow", "show", "flow", "--db", url).out
    assert re.search(r"why: +WORKFLOW_CANCELLED: the workflow flow was cancelled by cli/", shown)
    told = everbeat("events", "--db", url).out
    assert "workflow.cancelled workflow=flow name=flow actor=cli/" in told


def test_a_task_whose_workflow_is_over_is_not_retried_and_it_is_said_why(
    everbeat: Command, store: Store, url: str
) -> None:
    check_that_what_is_over_stays_so(everbeat, store, url)


def check_that_what_is_over_stays_so(everbeat: Command, store: Store, url: str) -> None:
    """On any store: `inner` has completed without `b`, and `flow` with that."""
    begin(store, *nested(on_error=OnError.CONTINUE))
    end(store, take(store)["a"])
    slow = take(store)["b"]
    everbeat("task", "fail", "inner:b", "--db", url)
    settle(store, slow, completed(), outcome=succeeded())
    play(store)
    why = "workflow inner, of which it is a part, is COMPLETED without it, and flow has gone on with its result"

    retried = everbeat("task", "retry", "inner:b", "--json", "--db", url)
    assert (retried.code, retried.json["refused"]) == (1, [f"task inner:b can not run again: {why}"])
    accepted = everbeat("task", "accept", "inner:b", "--db", url)
    assert (accepted.code, why in accepted.err) == (1, True)
    again = everbeat("workflow", "retry", "inner", "flow", "--db", url)
    assert (again.code, "no node of it has failed that could run again" in again.err) == (1, True)
    assert everbeat("task", "retry", "--status", "FAILED", "--yes", "--json", "--db", url).json["count"] == 0
    assert take(store) == {}
    shown = {flow: everbeat("workflow", "show", flow, "--json", "--db", url).json for flow in ("flow", "inner")}
    assert {one["status"] for one in shown.values()} == {"COMPLETED"}
    assert [node["status"] for node in shown["inner"]["nodes"]] == ["FAILED", "SKIPPED"]

    begin(store, graph("other", a="", b="a"))
    play(store, {"a": FAIL})
    assert everbeat("task", "retry", "other:a", "--db", url).code == 0
    everbeat("workflow", "cancel", "other", "--db", url)
    cancelled = everbeat("task", "retry", "other:a", "--db", url)
    assert (cancelled.code, "workflow other, of which it is a part, is CANCELLED" in cancelled.err) == (1, True)


def test_a_workflow_that_is_not_there(everbeat: Command, store: Store, url: str) -> None:
    ended = everbeat("workflow", "show", "nobody", "--db", url)

    assert (ended.code, ended.out) == (1, "")
    assert "no workflow nobody" in ended.err
    assert everbeat("workflow", "list", "--db", "sqlite:///typo.db").code == 3


def test_what_users_wrote_can_not_move_the_terminal(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph(a="", nodes={"a": {"name": "\x1b[31mred"}}))

    assert "\x1b" not in everbeat("workflow", "show", "flow", "--db", url).out
    assert "\x1b" not in everbeat("workflow", "show", "flow", "--graph", "--db", url).out


def test_check_finds_what_is_wrong_with_workflows(everbeat: Command, tmp_path: Path) -> None:
    (tmp_path / "flowshop.py").write_text(
        """
from everbeat import Everbeat, Workflow
app = Everbeat("sqlite:///jobs.db")
@app.task
def add(a: int, b: int) -> int: ...
good = Workflow("good")
good.add(add, 1, good.add(add, 1, 2))
bad = Workflow("bad")
bad.add(add, 1, c=2)
"""
    )

    ended = everbeat("check", "flowshop:app", "--json")

    assert ended.code == 1
    assert ended.json["workflows"] == [{"name": "good", "nodes": 2}, {"name": "bad", "nodes": 1}]
    assert [one["problem"] for one in ended.json["problems"]] == [
        "workflow bad: node add: add() missing a required argument: 'b'; got an unexpected keyword argument 'c'"
    ]


def test_what_is_inside_of_a_paused_workflow_is_not_resumed_alone(everbeat: Command, store: Store, url: str) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    everbeat("workflow", "pause", "flow", "--db", url)

    refused = everbeat("workflow", "resume", "inner", "--db", url)

    assert (refused.code, "inner is inside of a workflow that is PAUSED, flow; it is resumed" in refused.err) == (
        1,
        True,
    )


@pytest.mark.parametrize("more", [[], ["--json"], ["--graph"]])
def test_a_workflow_that_a_hand_has_nested_in_itself_is_shown_once(
    everbeat: Command, store: Store, url: str, more: list[str]
) -> None:
    begin(store, *nested())
    by_hand(store, "UPDATE everbeat_workflow_tasks SET child_id = 'flow' WHERE workflow_id = 'flow' AND node = 1")

    shown = everbeat("workflow", "show", "flow", *more, "--db", url)

    assert shown.code == 0
    assert "inner" in shown.out
