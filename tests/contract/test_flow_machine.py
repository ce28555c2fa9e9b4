"""Random workflows under random outcomes, orders, pauses, cancels, retries and losses: they end as another reading of
their graph says (tests/flow_model.py), each node that has to runs once, and recovery never finds anything to mend. A
task is claimed only when its node may start, and nothing is that is inside of a paused workflow.

A node is a task, a map over what another results in, or a workflow of its own. A task is told when it is drawn how each
of its runs ends: after a retry of what failed, the next one.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.conftest import PLACE
from tests.flow_model import Whole
from tests.flow_words import CANCEL, FAIL, begin, end, graph, state, states, take
from tests.postgres import EmptyDatabase, servers_url
from tests.words import VirtualClock, carry_out, register, requeue

from everbeat.model.flow import NewNode, NewWorkflow, NodeKind, NodeStatus, OnError, WorkflowChange, WorkflowStatus
from everbeat.model.order import Order
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SQLiteStore

N, W = NodeStatus, WorkflowStatus
LARGEST = 6
ELEMENTS = 2
RESULT = b"[1,2]"
"""Of every task: a map over it has two elements."""
RAN = {RESULT: (N.COMPLETED, RESULT), FAIL: (N.FAILED, None), CANCEL: (N.CANCELLED, None)}
Outcomes = dict[str, list[bytes | str]]
"""How the runs of a task end, one after the other; the last of them always does."""
ON_RESULT = '{"when":[{"node":%d,"in":[[1,2]]}]}'
ON_OTHER = '{"%s":[{"node":%d,"in":[7]}]}'


# -- what is drawn ----------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn, id: str, letter: str, *, is_inner: bool) -> NewWorkflow:
    """`all` with failures allowed or not, `any` and `quorum`; conditions; maps. A map takes the result of a task."""
    after: dict[str, str] = {}
    facts: dict[str, dict[str, Any]] = {}
    tasks: set[int] = set()
    for number in range(draw(st.integers(*((1, 3) if is_inner else (2, LARGEST))))):
        name = f"{letter}{number}"
        inputs = sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else []
        kind = draw(st.sampled_from(["task", "task", "task", "map"] if is_inner else ["task", "task", "map", "nested"]))
        mine: dict[str, Any] = {}
        if kind == "map" and tasks.intersection(inputs):
            over = min(tasks.intersection(inputs))
            mine = {"kind": NodeKind.MAP, "task_id": None, "child_id": f"{id}:{name}", "over": over}
        elif kind == "nested":
            mine = {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": f"{id}:{name}"}
        else:
            tasks.add(number)
        if inputs and mine.get("kind") is not NodeKind.MAP:
            mine["needed"] = draw(st.sampled_from([len(inputs), len(inputs), 1, max(1, len(inputs) - 1)]))
            mine["is_partial"] = mine["needed"] < len(inputs) or draw(st.integers(0, 3)) == 0
            mine["allow_failed"] = draw(st.booleans()) and mine["needed"] == len(inputs)
        asked = [one for one in inputs if one in tasks]
        if asked and not mine.get("allow_failed") and draw(st.integers(0, 3)) == 0:
            words = [ON_RESULT % asked[0], ON_OTHER % ("when", asked[0]), ON_OTHER % ("unless", asked[0])]
            mine["condition"] = draw(st.sampled_from(words))
        after[name], facts[name] = " ".join(f"{letter}{one}" for one in inputs), mine
    success = tuple(sorted(draw(st.sets(st.integers(0, len(after) - 1), max_size=2)))) or None
    return graph(id, on_error=draw(st.sampled_from(list(OnError))), success=success, nodes=facts, **after)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[NewWorkflow], Outcomes]:
    outer = draw(graphs("flow", "n", is_inner=False))
    flows = [outer]
    for number, node in enumerate(outer.nodes):
        if node.kind is NodeKind.WORKFLOW:
            inner = draw(graphs(node.child_id or "", f"i{number}_", is_inner=True))
            flows.append(replace(inner, parent_id="flow", parent_node=number))
    ends = [RESULT, FAIL, CANCEL, *[draw(st.sampled_from([RESULT, FAIL]))] * 3]
    runs = st.lists(st.sampled_from(ends), min_size=1, max_size=2)
    return flows, {name: draw(runs) for flow in flows for name in _tasks(flow)}


def _tasks(flow: NewWorkflow) -> Iterator[str]:
    for node in flow.nodes:
        if node.kind is NodeKind.MAP:
            yield from element_names(node)
        elif node.kind is NodeKind.TASK:
            yield node.name


def element_names(node: NewNode) -> list[str]:
    return [f"{node.name}.{number}" for number in range(ELEMENTS)]


# -- the machine ------------------------------------------------------------------------------------------------------


class Flows(RuleBasedStateMachine):
    def open(self) -> Store:
        self.place = tempfile.TemporaryDirectory()
        return SQLiteStore(Path(self.place.name) / "flows.db", durability="normal", clock=VirtualClock())

    @initialize(made=trees())
    def start(self, made: tuple[list[NewWorkflow], Outcomes]) -> None:
        flows, self.runs = made
        self.flows = {flow.id: flow for flow in flows}
        self.store = self.open()
        register(self.store, "w1")
        begin(self.store, *flows)
        self.held: dict[str, Claim] = {}
        self.ended: Counter[str] = Counter()
        self.is_cancelled = False
        self.enqueued: set[str] = set()

    def outcome_of(self, name: str, run: int) -> bytes | str:
        given = self.runs[name]
        return given[min(run, len(given) - 1)]

    @rule(places=st.integers(1, 3))
    def claim(self, places: int) -> None:
        self._take(places)

    def _take(self, places: int) -> None:
        """What is claimed is a node that may start, of a workflow that runs, inside of others that do."""
        taken = take(self.store, places=places)
        assert not (taken and self.is_cancelled)
        assert self.enqueued.issuperset(taken)
        assert all(self._runs(claim.workflow_id) for claim in taken.values())
        self.held |= taken

    def _see_who_is_claimed(self) -> None:
        """At once, before another order hides what this one has done."""
        self.what_may_start_has_its_inputs()
        self._take(3)

    def _runs(self, workflow_id: str | None) -> bool:
        info = None if workflow_id is None else self.store.workflow(workflow_id)
        assert info is not None
        return info.status is W.RUNNING and (info.parent_id is None or self._runs(info.parent_id))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """One or several of the same outcome, in one flush."""
        first = data.draw(st.sampled_from(sorted(self.held)))
        wanted = self.outcome_of(first, self.ended[first])
        alike = sorted(name for name in self.held if self.outcome_of(name, self.ended[name]) == wanted)
        self._end(dict.fromkeys([first, *data.draw(st.lists(st.sampled_from(alike), max_size=2))]), wanted)

    @rule(count=st.integers(2, 8), places=st.integers(1, 3))
    def work(self, count: int, places: int) -> None:
        """One after the other, so that much has ended when the next order comes."""
        for _ in range(count):
            self._take(places)
            for name in list(self.held)[-1:]:
                self._end({name: None}, self.outcome_of(name, self.ended[name]))
            self.what_may_start_has_its_inputs()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Its worker dies, and it is recovered."""
        name = data.draw(st.sampled_from(sorted(self.held)))
        requeue(self.store, self.held.pop(name))

    @rule(what=st.sampled_from([WorkflowChange.PAUSE, WorkflowChange.RESUME, WorkflowChange.RESUME]))
    def order(self, what: WorkflowChange) -> None:
        self.store.change_workflow(what, "flow", actor="me")

    @precondition(lambda self: self.ended)
    @rule()
    def retry(self) -> None:
        """A retry sees all that has ended so far; what it revives is decided anew by what the next runs end in."""
        self.store.change_workflow(WorkflowChange.RETRY, "flow", actor="me")
        self._see_who_is_claimed()

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def retry_task(self, data: st.DataObject) -> None:
        """One that failed, or several at once."""
        failed = sorted(task.id for task in self.store.tasks(TaskFilter(statuses=Order.RETRY.statuses)))
        if failed:
            carry_out(self.store, Order.RETRY, *data.draw(st.lists(st.sampled_from(failed), min_size=1, max_size=3)))
            self._see_who_is_claimed()

    @precondition(lambda self: len(self.flows) > 1)
    @rule(data=st.data(), what=st.sampled_from([WorkflowChange.PAUSE, WorkflowChange.RESUME, WorkflowChange.RETRY]))
    def order_inside(self, data: st.DataObject, what: WorkflowChange) -> None:
        inner = data.draw(st.sampled_from(list(self.flows)[1:]))
        self.store.change_workflow(what, inner, actor="me")
        self._see_who_is_claimed()

    @precondition(lambda self: not self.is_cancelled)
    @rule(chance=st.integers(0, 9))
    def cancel(self, chance: int) -> None:
        if chance == 0 and self.store.change_workflow(WorkflowChange.CANCEL, "flow", actor="me"):
            self.is_cancelled = True

    @invariant()
    def nothing_is_torn(self) -> None:
        assert self.store.mend_workflows(all_of_them=True)[:2] == ({}, {})

    @invariant()
    def what_may_start_has_its_inputs(self) -> None:
        """Looked at when it is let go: an input that failed may be retried later, and it starts all the same."""
        before, self.enqueued = self.enqueued, set[str]()
        for flow in self.flows.values():
            found = states(self.store, flow.id)
            for node in flow.nodes:
                if node.kind is NodeKind.MAP and self.store.workflow(node.child_id or "") is not None:
                    elements_now = list(states(self.store, node.child_id or "").values())
                    mine = zip(element_names(node), elements_now, strict=True)
                    self.enqueued.update(name for name, status in mine if status in (N.ENQUEUED, N.RUNNING))
                elif node.kind is NodeKind.TASK and found[node.name] in (N.ENQUEUED, N.RUNNING):
                    self.enqueued.add(node.name)
                    inputs = [found[flow.nodes[number].name] for number in node.inputs]
                    assert node.name in before or _may_start(node, inputs), (node.name, inputs)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self._finish_all()
            self._compare()
        finally:
            self.store.close()

    def _end(self, names: Mapping[str, None], outcome: bytes | str) -> None:
        end(self.store, *[self.held.pop(name) for name in names], outcome=outcome)
        self.ended.update(list(names))

    def _finish_all(self) -> None:
        """A workflow that is resumed may be paused by the next error at once: one that was waiting inside it."""
        while self._resume_and_take() or self.held:
            name = next(iter(self.held), None)
            if name is not None:
                self._end({name: None}, self.outcome_of(name, self.ended[name]))

    def _resume_and_take(self) -> bool:
        """Whether there was something to resume."""
        was_resumed = self.store.change_workflow(WorkflowChange.RESUME, "flow", actor="me")
        self.what_may_start_has_its_inputs()
        self._take(50)
        return was_resumed

    def _compare(self) -> None:
        found = {name: status for one in self._begun() for name, status in states(self.store, one).items()}
        assert all(status.is_terminal for status in found.values()), found
        if self.is_cancelled:
            assert state(self.store) is W.CANCELLED
            assert take(self.store) == {}
            return
        last = {name: self.outcome_of(name, max(0, self.ended[name] - 1)) for name in self.runs}
        model = Whole(self.flows, "flow", {name: RAN[outcome] for name, outcome in last.items()})
        assert found == {_name_in_store(name): status for name, status in model.states.items()}
        assert state(self.store) is model.status
        ran = {name for name, status in model.states.items() if status is N.COMPLETED and name in self.runs}
        assert all(self.ended[name] >= 1 for name in ran)
        assert all(self._completed(name) <= 1 for name in self.runs)

    def _completed(self, name: str) -> int:
        """How often it ran to a result: what has one is never run again."""
        return sum(self.outcome_of(name, run) == RESULT for run in range(self.ended[name]))

    def _begun(self) -> Iterator[str]:
        """All workflows of the tree; a map is one as soon as it has begun."""
        for flow in self.flows.values():
            yield flow.id
            for node in flow.nodes:
                if node.kind is NodeKind.MAP and self.store.workflow(node.child_id or "") is not None:
                    yield node.child_id or ""


def _may_start(node: NewNode, inputs: list[NodeStatus]) -> bool:
    is_met = inputs.count(N.COMPLETED) >= node.needed
    return is_met or (node.allow_failed and all(status.is_terminal for status in inputs))


def _name_in_store(name: str) -> str:
    """The elements of a map are called otherwise than their tasks."""
    node, dot, number = name.partition(".")
    return f"{node}[{number}]" if dot else name


class FlowsOnPostgreSQL(Flows):
    database: EmptyDatabase | None = None

    def open(self) -> Store:
        database = FlowsOnPostgreSQL.database = self.database or EmptyDatabase(servers_url(Path(os.environ[PLACE])))
        return PostgresStore(database.with_tables(), clock=VirtualClock())


SHARED = settings(stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
Flows.TestCase.settings = settings(SHARED, max_examples=200)
FlowsOnPostgreSQL.TestCase.settings = settings(SHARED, max_examples=25, stateful_step_count=8)
TestFlows = Flows.TestCase
TestFlowsOnPostgreSQL = FlowsOnPostgreSQL.TestCase
