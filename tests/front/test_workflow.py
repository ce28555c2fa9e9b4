"""Workflows as users build, start and follow them."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everbeat import (
    AppConfig,
    ConfigError,
    Everbeat,
    NodeFailure,
    NodeStatus,
    OnError,
    ResultTimeout,
    RetryPolicy,
    SQLiteConfig,
    TaskCancelled,
    TaskFailed,
    Workflow,
    WorkflowConflict,
    WorkflowFailed,
    WorkflowInvalid,
    WorkflowNotFound,
    WorkflowStatus,
)
from everbeat.inprocess import Testing
from everbeat.report.graph import Drawn, as_mermaid


@pytest.fixture
def app(tmp_path: Path) -> Everbeat:
    app = Everbeat(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))

    @app.task(name="shop.fetch")
    def fetch(url: str) -> dict[str, int]:
        return {"length": len(url)}

    @app.task(name="shop.number")
    def number(value: int) -> int:
        return value

    @app.task(name="shop.add")
    def add(*values: int) -> int:
        return sum(values)

    @app.task(name="shop.total")
    async def total(rows: list[int | NodeFailure], extra: dict[str, int] | None = None) -> list[int | str]:
        return [row if isinstance(row, int) else row.error_code for row in rows]

    @app.task(name="shop.boom")
    def boom(fails: bool = True) -> int:
        if fails:
            raise ValueError("no luck")
        return 1

    @app.task(name="shop.secret", sensitive=True)
    def secret() -> int:
        raise ValueError("hunter2")

    @app.task(name="shop.anything")
    def anything(value: Any) -> Any:
        return value

    @app.task(name="shop.numbers")
    def numbers(count: int) -> list[int]:
        return list(range(count))

    return app


@pytest.fixture
def t(app: Everbeat) -> Iterator[Testing]:
    with app.testing() as t:
        yield t


def task(app: Everbeat, name: str) -> Any:
    return app.tasks[f"shop.{name}"]


def test_nodes_in_lists_and_dicts_are_their_results(app: Everbeat, t: Testing) -> None:
    flow = Workflow("deep")
    one, two = flow.add(task(app, "number"), 1), flow.add(task(app, "number"), value=2)
    flow.add(task(app, "total"), [one, 7, two], extra={"x": two})

    assert flow.start(app).result() == [1, 7, 2]


def test_the_result_is_that_of_the_last_node_a_dict_of_several_or_what_was_chosen(app: Everbeat, t: Testing) -> None:
    flow = Workflow("ends")
    first = flow.add(task(app, "number"), 1)
    flow.add(task(app, "add"), first, 1).named("left")
    flow.add(task(app, "add"), first, 2).named("right")
    assert flow.start(app).result() == {"left": 2, "right": 3}

    flow.output = first
    run = flow.start(app)
    assert run.result() == 1
    assert run.results() == {"number": 1, "left": 2, "right": 3}


def test_a_failure_names_the_node_that_caused_it(app: Everbeat, t: Testing) -> None:
    flow = Workflow("bad")
    flow.add(task(app, "add"), flow.add(task(app, "boom")).named("culprit"))
    run = flow.start(app)

    with pytest.raises(WorkflowFailed, match="failed at node culprit with UNHANDLED_EXCEPTION") as caught:
        run.result()
    assert isinstance(caught.value, TaskFailed)
    assert (caught.value.node, caught.value.exception_type) == ("culprit", "builtins.ValueError")
    assert "no luck" in (caught.value.traceback or "")
    assert [(node.name, node.status) for node in run.nodes()] == [("culprit", "FAILED"), ("add", "SKIPPED")]


@pytest.mark.parametrize("fails", [False, True])
def test_who_asks_for_the_result_is_not_sent_those_of_the_nodes_before(app: Everbeat, t: Testing, fails: bool) -> None:
    flow = Workflow("large")
    large = [flow.add(task(app, "anything"), "x" * 1_000_000) for _ in range(8)]
    flow.add(task(app, "boom"), fails, after=large)
    run = flow.start(app)
    t.run_pending()

    tracemalloc.start()
    with pytest.raises(WorkflowFailed) if fails else nullcontext():
        assert run.result() == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000


def test_a_success_that_was_skipped_says_so_and_names_no_failure_of_others(app: Everbeat, t: Testing) -> None:
    flow = Workflow("picky")
    flow.add(task(app, "boom"))
    first = flow.add(task(app, "number"), 1)
    flow.success = [flow.add(task(app, "number"), 3, when=first.result_is(99)).named("wanted")]
    run = flow.start(app)

    with pytest.raises(WorkflowFailed, match="was skipped: its condition does not hold") as caught:
        run.result()
    assert (caught.value.node, caught.value.error_code) == ("wanted", "CONDITION_NOT_MET")


@pytest.mark.parametrize("way", ["continue", "success"])
def test_an_output_that_was_given_up_because_of_a_failure_is_a_failure_and_not_null(
    app: Everbeat, t: Testing, way: str
) -> None:
    flow = Workflow("given_up", on_error=OnError.CONTINUE if way == "continue" else OnError.FAIL)
    between = flow.add(task(app, "number"), flow.add(task(app, "boom")))
    flow.output = flow.add(task(app, "number"), between).named("last")
    if way == "success":
        flow.success = flow.add(task(app, "number"), 1).named("enough")
    run = flow.start(app)

    with pytest.raises(WorkflowFailed, match=r"at node boom with UNHANDLED_EXCEPTION.*no luck") as caught:
        run.result()
    assert caught.value.exception_type == "builtins.ValueError"
    assert run.status() is WorkflowStatus.COMPLETED


def test_one_of_several_outputs_that_was_given_up_is_a_failure_as_a_value(app: Everbeat, t: Testing) -> None:
    flow = Workflow("several", on_error=OnError.CONTINUE)
    first = flow.add(task(app, "number"), 1)
    boom = flow.add(task(app, "boom"))
    flow.add(task(app, "number"), boom).named("given_up")
    flow.add(task(app, "number"), 3, when=first.result_is(9)).named("unwanted")
    result = flow.start(app).result()

    assert (result["given_up"].status, result["given_up"].error_code) == (NodeStatus.SKIPPED, "UPSTREAM_FAILED")
    assert result["unwanted"] is None


def test_an_output_that_was_not_wanted_is_null(app: Everbeat, t: Testing) -> None:
    flow = Workflow("unwanted")
    first = flow.add(task(app, "number"), 1)
    flow.add(task(app, "number"), flow.add(task(app, "number"), 2, when=first.result_is(9)))

    assert flow.start(app).result() is None


def test_a_nested_workflow_without_a_result_is_a_failure_for_who_asks_for_it(app: Everbeat, t: Testing) -> None:
    inner = Workflow("inner", on_error=OnError.CONTINUE)
    inner.add(task(app, "boom"))
    outer = Workflow("outer")
    outer.add(inner).named("inside")
    run = outer.start(app)

    with pytest.raises(WorkflowFailed, match=r"at node inside with RESULT_NOT_AVAILABLE.*boom: no luck"):
        run.result()
    assert (run.status(), run.results()["inside"].error_code) == ("COMPLETED", "RESULT_NOT_AVAILABLE")


def test_a_failure_inside_a_nested_workflow_is_told_with_what_its_task_raised(app: Everbeat, t: Testing) -> None:
    inmost, inner, outer = Workflow("inmost"), Workflow("inner"), Workflow("outer")
    inmost.add(task(app, "boom"))
    inner.add(inmost).named("deep")
    outer.add(inner).named("inside")
    run = outer.start(app)

    with pytest.raises(WorkflowFailed, match="boom: no luck") as caught:
        run.result()

    failure = caught.value
    assert failure.node == "inside"
    assert failure.exception_type is not None
    assert "no luck" in (failure.traceback or "")
    assert app.handle(failure.task_id).info().name.endswith("boom")


def test_a_failure_of_a_sensitive_task_is_told_to_its_sender_only(app: Everbeat, t: Testing) -> None:
    flow = Workflow("quiet")
    flow.add(task(app, "secret"))
    run = flow.start(app)

    with pytest.raises(WorkflowFailed, match="hunter2"):
        run.result()
    assert "hunter2" not in str((run.info(), run.nodes(), app.store.events()))


def test_why_a_sensitive_task_never_ran_is_no_secret(app: Everbeat, t: Testing) -> None:
    flow = Workflow("quiet")
    flow.add(task(app, "secret"), after=[flow.add(task(app, "boom"))])
    waiting = Workflow("waiting")
    waiting.add(task(app, "secret"), after=[waiting.add(task(app, "number"), 1)])
    run, cancelled = flow.start(app), waiting.start(app)
    cancelled.cancel()
    t.run_pending()

    assert run.nodes()[-1].error_message == "what it waits for failed"
    assert cancelled.nodes()[-1].error_message == "the workflow waiting was cancelled by sender"


def test_failures_arrive_as_values_where_they_are_allowed(app: Everbeat, t: Testing) -> None:
    flow = Workflow("tolerant", on_error=OnError.CONTINUE)
    flow.add(task(app, "total"), [flow.add(task(app, "number"), 5), flow.add(task(app, "boom"))], allow_failed=True)

    assert flow.start(app).result() == [5, "UNHANDLED_EXCEPTION"]


def test_a_map_runs_once_for_each_element(app: Everbeat, t: Testing) -> None:
    flow = Workflow("mapped")
    flow.map(task(app, "add"), flow.add(task(app, "number"), 10), over=flow.add(task(app, "numbers"), 3))

    run = flow.start(app)

    assert run.result() == [10, 11, 12]
    assert [node.kind for node in run.nodes()] == ["task", "task", "map"]


def test_nested_workflows_use_what_the_ones_around_them_have(app: Everbeat, t: Testing) -> None:
    outer, middle, inner = Workflow("outer"), Workflow("middle"), Workflow("inner")
    start = outer.add(task(app, "number"), 5)
    step = middle.add(task(app, "add"), start, 1)
    inner.add(task(app, "add"), start, step)
    middle.add(inner)
    outer.add(task(app, "add"), outer.add(middle), 100)

    assert outer.start(app).result() == 111


def test_conditions_choose_by_results(app: Everbeat, t: Testing) -> None:
    flow = Workflow("branches")
    asked = flow.add(task(app, "number"), 2)
    small = flow.add(task(app, "add"), 1, when=asked.result_in([1, 2])).named("small")
    large = flow.add(task(app, "add"), 100, unless=asked.result_in([1, 2])).named("large")
    flow.add(task(app, "add"), 0, after=[small, large], join="any").named("joined")
    run = flow.start(app)

    assert run.result() == 0
    assert {node.name: node.status for node in run.nodes()} == {
        "number": "COMPLETED", "small": "COMPLETED", "large": "SKIPPED", "joined": "COMPLETED",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("failing", "join"),
    [(1, {"join": "any"}), (1, {"join": "quorum", "min_success": 1}), (2, {"join": "quorum", "min_success": 2})],
)
def test_a_partial_join_that_needs_all_of_its_inputs_has_failed_without_one(
    app: Everbeat, t: Testing, failing: int, join: dict[str, Any]
) -> None:
    flow = Workflow("few")
    inputs = [flow.add(task(app, "boom"), number == 0) for number in range(failing)]
    flow.add(task(app, "number"), 1, after=inputs, **join).named("joined")
    run = flow.start(app)
    t.run_pending()

    joined = run.nodes()[-1]
    assert (joined.status, joined.error_code) == (NodeStatus.FAILED, "JOIN_NOT_MET")
    with pytest.raises(WorkflowFailed) as caught:
        run.result(timeout=0)
    assert (caught.value.node, caught.value.error_code) == ("joined", "JOIN_NOT_MET")


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_quorum_adds_up_the_results_that_are_there(app: Everbeat, t: Testing, slow: int) -> None:
    flow = Workflow("quorum")
    number = task(app, "number")
    parts = [flow.add(number.options(delay=60) if at == slow else number, 10**at) for at in range(3)]
    flow.add(task(app, "add"), *parts, join="quorum", min_success=2)
    flow.add(task(app, "total"), parts, join="any")
    run = flow.start(app)
    t.run_pending()

    assert run.results()["add"] == 111 - 10**slow


def test_a_result_that_might_be_missing_is_taken_in_a_list_or_not_at_all(app: Everbeat) -> None:
    flow = Workflow("any")
    one, two = flow.add(task(app, "number"), 1), flow.add(task(app, "number"), 2).named("two")
    flow.add(task(app, "number"), two, after=one, join="any").named("alone")
    flow.add(task(app, "total"), [one], {"two": two}, join="any").named("member")
    flow.add(task(app, "number"), two, after=one, join="any", allow_failed=True)
    inner = Workflow("inner")
    inner.add(task(app, "number"), two)
    flow.add(inner, after=one, join="any")

    said = "with join='any' it may start without the result of two"
    found = [problem.partition(":")[0] for problem in flow.problems(app) if said in problem]
    assert (found, len(flow.problems(app))) == (["node alone", "node member", "node inner"], 3)


def test_an_id_makes_the_start_idempotent(app: Everbeat, t: Testing) -> None:
    def build(value: int) -> Workflow:
        flow = Workflow("once")
        flow.add(task(app, "add"), flow.add(task(app, "number"), value))
        return flow

    first, second = build(1).start(app, id="run-1"), build(1).start(app, id="run-1")

    assert (first.created, second.created, first == second) == (True, False, True)
    with pytest.raises(WorkflowConflict):
        build(2).start(app, id="run-1")
    assert t.run_pending() == 2
    assert app.workflow_handle("run-1").result(timeout=0) == 1


def test_a_workflow_is_the_same_by_its_graph_and_arguments_however_its_tasks_are_sent(tmp_path: Path) -> None:
    """As after a deploy that changed a policy, or a queue."""

    def start(policy: RetryPolicy, **options: Any) -> bool:
        app = Everbeat(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))

        @app.task(name="shop.number", retry=policy)
        def number(value: int) -> int:
            return value

        flow = Workflow("once")
        flow.add(number.options(**options) if options else number, flow.add(number, 1))
        return flow.start(app, id="run-1").created

    assert start(RetryPolicy())
    assert not start(RetryPolicy(max_attempts=7), queue="night", priority=3, delay=60)


def test_orders_act_and_say_whether_they_fit(app: Everbeat, t: Testing) -> None:
    flow = Workflow("orders")
    flow.add(task(app, "add"), flow.add(task(app, "number"), 1))
    run = flow.start(app)

    assert (run.pause(), run.pause(), t.run_pending()) == (True, False, 0)
    with pytest.raises(ResultTimeout, match="it is PAUSED, and goes on after resume"):
        run.result(timeout=0)
    assert (run.resume(), run.resume(), t.run_pending()) == (True, False, 2)
    inner, around = Workflow("inner", on_error=OnError.PAUSE), Workflow("around")
    inner.add(task(app, "boom"))
    around.add(inner)
    waits = around.start(app)
    t.run_pending()
    with pytest.raises(ResultTimeout, match=r"it is RUNNING and waits for workflow \S+, which is paused"):
        waits.result(timeout=0)
    assert (run.retry_failed(), run.cancel()) == (False, False)
    other = flow.start(app)
    assert other.cancel()
    with pytest.raises(TaskCancelled):
        other.result()
    with pytest.raises(WorkflowNotFound):
        app.workflow_handle("nobody").cancel()


@pytest.mark.parametrize(
    ("on_error", "said"), [("FAIL", "it is PAUSED, and goes"), ("PAUSE", "PAUSED because node boom failed")]
)
def test_a_failure_is_the_reason_of_a_pause_only_if_nobody_else_is(
    app: Everbeat, t: Testing, on_error: str, said: str
) -> None:
    flow = Workflow("paused", on_error=on_error)
    flow.add(task(app, "boom"))
    flow.add(task(app, "number").options(delay=60), 1)
    run = flow.start(app)
    t.run_pending()
    run.pause()

    with pytest.raises(ResultTimeout, match=said):
        run.result(timeout=0)


def test_failed_nodes_run_again_when_asked(app: Everbeat, t: Testing) -> None:
    flow = Workflow("again")
    flow.add(task(app, "add"), flow.add(task(app, "boom")))
    run = flow.start(app)
    t.run_pending()
    assert run.retry_failed()
    assert (t.run_pending(), run.status()) == (1, WorkflowStatus.FAILED)
    assert run.nodes()[0].attempt == 2


def test_every_method_has_an_async_twin(app: Everbeat, t: Testing) -> None:
    async def story() -> Any:
        flow = Workflow("async")
        flow.add(task(app, "number"), 4)
        run = await flow.astart(app)
        assert await run.apause()
        assert await run.astatus() is WorkflowStatus.PAUSED
        assert await run.aresume()
        result = await run.aresult(timeout=5)
        assert (await run.aresults(), [node.status for node in await run.anodes()]) == (
            {"number": 4}, [NodeStatus.COMPLETED],
        )  # fmt: skip
        assert not await run.acancel()
        assert not await run.aretry_failed()
        return result

    assert asyncio.run(story()) == 4


def test_eager_workflows_run_where_they_are_started(app: Everbeat) -> None:
    with app.testing(eager=True):
        flow = Workflow("eager")
        flow.add(task(app, "add"), flow.add(task(app, "number"), 1), 1)

        assert flow.start(app).status() is WorkflowStatus.COMPLETED


def test_eager_workflows_do_not_wait_for_the_delays_of_their_nodes(app: Everbeat) -> None:
    with app.testing(eager=True):
        flow = Workflow("eager")
        late = flow.add(task(app, "numbers").options(delay=60), 2)
        flow.map(task(app, "number").options(delay=60), over=late)

        assert flow.start(app).result(timeout=0) == [0, 1]


def test_an_eager_workflow_goes_on_at_once_when_it_is_told_to(app: Everbeat) -> None:
    tries: list[int] = []

    @app.task(name="shop.flaky", retry=RetryPolicy(max_attempts=1))
    def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError("too slow")
        return 1

    with app.testing(eager=True):
        flow = Workflow("eager", on_error=OnError.PAUSE)
        flow.add(task(app, "number"), flow.add(flaky))
        run = flow.start(app)
        assert run.status() is WorkflowStatus.PAUSED

        assert run.retry_failed()
        assert run.status() is WorkflowStatus.COMPLETED


# -- before anything is stored -----------------------------------------------------------------------------------------


def test_all_problems_are_told_at_once_and_nothing_is_stored(app: Everbeat, t: Testing) -> None:
    stranger = Everbeat("sqlite:///other.db").task(name="shop.stranger")(lambda: None)
    elsewhere = Workflow("elsewhere").add(task(app, "number"), 1)
    flow = Workflow("wrong")
    first = flow.add(task(app, "fetch"), address="x")
    second = flow.add(task(app, "number"), object())
    first.after(second)
    second.after(first)
    flow.add(stranger)
    flow.add(task(app, "add"), elsewhere)
    flow.add(task(app, "add"), first, join="quorum").named("quorum")
    flow.add(task(app, "add"), join="any").named("any")
    flow.add(task(app, "add"), first, join="most").named("most")  # type: ignore[arg-type]
    flow.add(task(app, "add"), first, min_success=1).named("least")
    flow.add(task(app, "add"), when=first.result_is(object())).named("asks")
    flow.add(task(app, "add").options(id="x", unique_key="y")).named("options")
    flow.add(task(app, "number"), "text").named("typed")
    flow.add(flow)
    flow.add(lambda: None).named("function")  # type: ignore[arg-type]
    flow.add(task(app, "number"), 1).named("any")

    with pytest.raises(WorkflowInvalid) as caught:
        flow.start(app)

    told = "\n".join(caught.value.problems)
    for expected in (
        "node fetch: fetch() missing a required argument: 'url'",
        "node number: number(): argument 'value' of type object can not be encoded",
        "it waits for itself: fetch -> number -> fetch",
        "node stranger: the task shop.stranger is not registered in this application",
        "which belongs to the workflow elsewhere",
        "node quorum: a quorum needs min_success from 1 to the number of its inputs, 1, not None",
        "node any: join='any' needs inputs",
        "node most: join must be one of all, any, quorum, not 'most'",
        "node least: min_success has a meaning for join='quorum' only",
        "node asks: its condition has a value that is not JSON",
        "node options: unique_key, id can not be given to a node",
        "node typed: number(): argument 'value': Expected `int`, got `str`",
        "node wrong: it contains itself: wrong -> wrong",
        "is neither a task nor a workflow",
        "two nodes are named any",
    ):
        assert expected in told
    assert isinstance(caught.value, ConfigError)
    assert flow.problems(app) == list(caught.value.problems)
    assert (app.store.workflows(), t.tasks()) == ([], [])


def test_what_is_no_node_where_one_belongs_is_one_of_the_problems(app: Everbeat) -> None:
    number, add = task(app, "number"), task(app, "add")
    flow = Workflow("wrong", output=7)  # type: ignore[arg-type]
    flow.map(number, over=[1, 2]).named("list")  # type: ignore[arg-type]
    flow.add(add, after=3).named("three")  # type: ignore[arg-type]
    flow.add(add, after=[["x"]]).named("nested")  # type: ignore[list-item]
    flow.add(add, after=["x"], join="any").named("text")  # type: ignore[list-item]
    flow.add(add, allow_failed="yes").named("yes")  # type: ignore[arg-type]
    flow.add(add, 1, 2, when="10:00").named("clock")  # type: ignore[arg-type]
    flow.success = [{}]  # type: ignore[list-item]

    assert flow.problems(app) == [
        "success names what is no node of it", "output names what is no node of it",
        "node list: over= takes a node of this workflow, not a list",
        "node three: after= takes nodes of this workflow", "node nested: after= takes nodes of this workflow",
        "node text: after= takes nodes of this workflow", "node text: join='any' needs inputs",
        "node yes: allow_failed must be True or False, not 'yes'",
        "node clock: a condition is node.result_is(...) or node.result_in(...), not '10:00'",
    ]  # fmt: skip
    assert len(flow.text().splitlines()) == len(flow.mermaid().splitlines()) == 7


def test_what_a_workflow_says_of_itself_may_be_said_later_and_of_one_node(app: Everbeat) -> None:
    flow = Workflow("later")
    flow.add(task(app, "boom"), after=None)
    flow.success = flow.add(task(app, "number"), 1)
    flow.on_error = "pause"
    assert (flow.on_error, flow.problems(app)) == (OnError.PAUSE, [])
    flow.on_error = OnError.CONTINUE
    with pytest.raises(ValueError, match="on_error must be one of"):
        flow.on_error = "stop"

    with app.testing() as t:
        run = flow.start(app)
        t.run_pending()
        assert run.status() == WorkflowStatus.COMPLETED


def test_a_map_runs_over_a_node_of_its_own_workflow(app: Everbeat) -> None:
    outer, inner = Workflow("outer"), Workflow("inner")
    inner.map(task(app, "number"), over=outer.add(task(app, "number"), 1))
    outer.add(inner)

    said = "it runs over number of the workflow outer; over= takes a node of its own workflow"
    assert outer.problems(app) == [f"node inner: in outer -> inner: node number: {said}"]


def test_a_single_node_may_stand_for_a_list_of_one(app: Everbeat) -> None:
    flow = Workflow("ordered")
    first = flow.add(task(app, "number"), 1)
    flow.add(task(app, "number"), 2, after=first)

    with app.testing() as t:
        run = flow.start(app)
        t.run_pending()
        assert [node.after for node in run.nodes()] == [[], ["number"]]


def test_an_empty_workflow_and_one_without_a_name_are_refused(app: Everbeat) -> None:
    with pytest.raises(WorkflowInvalid, match="it has no nodes"):
        Workflow("empty").start(app)
    with pytest.raises(ValueError, match="workflow name"):
        Workflow("no spaces please")
    with pytest.raises(ValueError, match="on_error must be one of 'FAIL', 'PAUSE', 'CONTINUE', not 'STOP'"):
        Workflow("etl", on_error="stop")


def test_arguments_beside_nodes_are_checked_as_in_every_call(app: Everbeat) -> None:
    flow = Workflow("mixed")
    flow.add(task(app, "total"), [flow.add(task(app, "number"), 1)], extra={"x": "text"})

    with pytest.raises(WorkflowInvalid, match="argument 'extra'"):
        flow.start(app)


@pytest.mark.parametrize(
    ("task_name", "beside", "said"),
    [
        ("total", "text", "argument 'rows[1]': Expected `int | object`, got `str`"),
        ("anything", float("nan"), "argument 'value[1]' is nan, which JSON can not express"),
        ("anything", [1, {"x": float("inf")}], "is inf, which JSON can not express"),
        (
            "anything",
            datetime(2026, 3, 1, tzinfo=UTC),
            "argument 'value[1]' is a datetime.datetime and would come back",
        ),
        ("add", "text", "argument 'values[1]': Expected `int`, got `str`"),
    ],
)
def test_what_stands_beside_a_node_in_a_list_arrives_as_it_is_or_is_refused(
    app: Everbeat, task_name: str, beside: Any, said: str
) -> None:
    flow = Workflow("beside")
    one = flow.add(task(app, "number"), 1)
    flow.add(task(app, task_name), *([one, beside] if task_name == "add" else [[one, beside]])).named("taker")

    (problem,) = flow.problems(app)
    assert said in problem


@pytest.mark.parametrize("key", [None, "x"])
def test_what_fits_the_annotation_may_stand_beside_a_node(app: Everbeat, t: Testing, key: str | None) -> None:
    @app.task(name="shop.days")
    def days(given: list[date | int] | dict[str, date | int] | None = None, more: dict[str, date] | None = None) -> str:
        return str(given)

    flow = Workflow("beside")
    one = flow.add(task(app, "number"), 1)
    day = date(2026, 3, 1)
    flow.add(days, [one, day] if key is None else {key: one, "y": day})

    assert "datetime.date(2026, 3, 1)" in flow.start(app).result()


def test_what_contains_itself_or_is_nested_too_deeply_is_one_of_the_problems(app: Everbeat) -> None:
    itself: list[Any] = []
    itself.append(itself)
    deep: list[Any] = []
    for _ in range(100_000):  # C code has a limit of its own, from Python 3.12 on
        deep = [deep]
    flow = Workflow("round")
    one = flow.add(task(app, "number"), 1)
    with_a_node: list[Any] = [one]
    with_a_node.append(with_a_node)
    for name, value in {"itself": itself, "deep": deep, "with": with_a_node}.items():
        flow.add(task(app, "anything"), value).named(name)
    flow.add(task(app, "number"), 1, when=one.result_is(itself)).named("asks")

    problems = flow.problems(app)

    assert [problem.partition(": ")[0] for problem in problems] == [
        "node itself", "node deep", "node with", "node asks",
    ]  # fmt: skip
    assert all("contains itself, or is nested too deeply" in problem for problem in problems)
    assert len(flow.text().splitlines()) == 6


def test_a_workflow_can_not_be_mapped_and_it_is_told(app: Everbeat) -> None:
    flow, inner = Workflow("outer"), Workflow("inner")
    inner.add(task(app, "number"), 1)
    flow.map(inner, over=flow.add(task(app, "numbers"), 3))  # type: ignore[arg-type]

    assert flow.problems(app) == ["node inner: map runs a task for each element, not a workflow"]


@pytest.mark.parametrize("values", ["heavy", 5])
def test_a_condition_among_what_is_no_list_is_refused(app: Everbeat, values: Any) -> None:
    flow = Workflow("among")
    flow.add(task(app, "number"), 1, when=flow.add(task(app, "number"), 1).result_in(values))

    assert flow.problems(app) == [f"node number-2: result_in takes a list of values, not {values!r}"]


def test_the_graph_is_drawn_as_text_and_as_mermaid(app: Everbeat) -> None:
    outer, inner = Workflow("outer"), Workflow("inner")
    first = outer.add(task(app, "number"), 1).named('a "quoted" <b>')
    inner.add(task(app, "add"), first)
    outer.map(task(app, "add"), over=outer.add(inner))

    assert outer.text().splitlines() == [
        "outer",
        '  a "quoted" <b>',
        '  inner (workflow)  <- a "quoted" <b>',
        '    add  <- a "quoted" <b>',
        "  add (map)  <- inner",
    ]
    drawn = outer.mermaid()
    assert drawn.startswith('flowchart TD\n  n0["a &quot;quoted&quot; &lt;b&gt;"]\n')
    assert "  n1 --> n2" in drawn
    assert 'n2[["add"]]' in drawn


def test_a_name_can_not_be_taken_for_a_mark_of_a_graph(app: Everbeat) -> None:
    flow = Workflow("names")
    flow.add(task(app, "number"), 1).named("load  %% FAILED")

    assert flow.mermaid() == 'flowchart TD\n  n0["load  %% FAILED"]'
    drawn = [Drawn(name="load  %% v2", kind="task", status="RUNNING", after=[])]
    assert as_mermaid(drawn).splitlines()[1:] == [
        '  n0["load  %% v2<br/>RUNNING"]', "  classDef RUNNING fill:#d0e4f9,stroke:#2050a0", "  class n0 RUNNING",
    ]  # fmt: skip


def test_a_workflow_that_contains_itself_can_be_drawn(app: Everbeat) -> None:
    flow = Workflow("round")
    flow.add(flow)

    assert flow.text().splitlines() == ["round", "  round (workflow)  contains itself"]
    assert flow.mermaid() == 'flowchart TD\n  n0(["round"])'
    assert flow.problems(app) == ["node round: it contains itself: round -> round"]


def test_every_wrong_argument_of_a_call_is_told(app: Everbeat) -> None:
    flow = Workflow("wrong")
    first = flow.add(task(app, "number"), 1)
    flow.add(task(app, "total"), ["a"], {"x": "y"}).named("plain")
    flow.add(task(app, "total"), [first, object()], {"x": "y"}).named("beside")

    found = flow.problems(app)
    for name in ("plain", "beside"):
        mine = [problem for problem in found if problem.startswith(f"node {name}: ")]
        assert [argument for argument in ("rows", "extra") for problem in mine if f"'{argument}" in problem] == [
            "rows", "extra",
        ]  # fmt: skip
    assert len(found) == 4


@pytest.mark.parametrize("value", [float("nan"), [1, {"x": float("inf")}]])
def test_a_condition_on_a_number_that_json_does_not_have_is_refused(app: Everbeat, value: Any) -> None:
    flow = Workflow("nan")
    flow.add(task(app, "number"), 1, when=flow.add(task(app, "number"), 1).result_is(value))

    (problem,) = flow.problems(app)
    assert "its condition has a value that is not JSON" in problem


def test_nodes_say_how_often_they_were_tried_and_how_long_they_took(app: Everbeat, t: Testing) -> None:
    tries: list[int] = []

    @app.task(name="shop.flaky", retry=RetryPolicy(max_attempts=2, base_seconds=0))
    def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError("too slow")
        return 1

    flow = Workflow("timed")
    first = flow.add(flaky)
    flow.add(task(app, "number"), first)
    flow.add(task(app, "number"), 1, when=first.result_is(2)).named("unwanted")
    run = flow.start(app)
    t.run_pending()

    nodes = {node.name: node for node in run.nodes()}
    assert [(node.attempt, node.status) for node in nodes.values()] == [
        (2, NodeStatus.COMPLETED), (1, NodeStatus.COMPLETED), (0, NodeStatus.SKIPPED),
    ]  # fmt: skip
    for name in ("flaky", "number"):
        node = nodes[name]
        assert node.started_at is not None
        assert node.finished_at is not None
        assert node.duration == node.finished_at - node.started_at >= timedelta(0)
    assert (nodes["unwanted"].started_at, nodes["unwanted"].duration) == (None, None)


def test_every_cycle_is_named_by_its_path(app: Everbeat) -> None:
    flow = Workflow("wrong")
    a, b, c, d, e, f, alone = (flow.add(task(app, "number"), 1).named(name) for name in (*"abcdef", "alone"))
    b.after(a)
    a.after(b)
    c.after(alone, e)
    d.after(c)
    e.after(d)
    f.after(f, e)

    assert flow.problems(app) == [
        "it waits for itself: a -> b -> a", "it waits for itself: c -> d -> e -> c", "it waits for itself: f -> f",
    ]  # fmt: skip


def test_two_cycles_through_one_node_are_both_named(app: Everbeat) -> None:
    flow = Workflow("eight")
    left, middle, right = (flow.add(task(app, "number"), 1).named(name) for name in ("left", "middle", "right"))
    middle.after(left, right)
    left.after(middle)
    right.after(middle)

    assert flow.problems(app) == [
        "it waits for itself: left -> middle -> left", "it waits for itself: middle -> right -> middle",
    ]  # fmt: skip


def test_a_call_of_the_wrong_form_is_told_with_what_is_wrong_with_its_values(app: Everbeat) -> None:
    flow = Workflow("wrong")
    first = flow.add(task(app, "number"), 1)
    flow.add(task(app, "total"), ["text"], extras=object()).named("names")
    flow.add(task(app, "total"), [first, object()], {}, 7).named("many")
    flow.add(task(app, "number"), object(), value="text").named("twice")
    flow.add(task(app, "total"), first, after=[first], join="any", more=1).named("alone")

    told = [problem for problem in flow.problems(app) if not problem.startswith("node number: ")]
    expected = [
        "node names: total() got an unexpected keyword argument 'extras'",
        "node names: total(): argument 'rows': Expected `int | object`, got `str`",
        "node names: total(): argument 'extras' of type object can not be encoded",
        "node many: total() too many positional arguments",
        "node many: total(): argument 'rows[1]' of type object can not be encoded",
        "node twice: number() multiple values for argument 'value'",
        "node twice: number(): argument 'value' of type object can not be encoded",
        "node twice: number(): argument 'value': Expected `int`, got `str`",
        "node alone: total() got an unexpected keyword argument 'more'",
        "node alone: with join='any' it may start without the result of number",
    ]
    assert [said[: len(wanted)] for said, wanted in zip(told, expected, strict=True)] == expected


def test_a_task_whose_annotations_mean_nothing_is_one_of_the_problems(app: Everbeat) -> None:
    @app.task
    def odd(a: "Nowhere", b: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    flow = Workflow("wrong")
    flow.add(odd, 1, 2)
    flow.add(task(app, "number"), "text")

    assert [problem.partition(" can not be resolved")[0] for problem in flow.problems(app)] == [
        "node odd: the annotations of odd()",
        "node number: number(): argument 'value': Expected `int`, got `str`.",
    ]
