"""Random workflows under random outcomes, orders, pauses and losses: they end as a simple reading of their graph says,
each node that has to runs once, and recovery never finds anything to mend."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.flow_words import CANCEL, FAIL, OK, begin, end, graph, state, states, take
from tests.words import VirtualClock, register, requeue

from everbeat.decide.flow import Waiting, counts_as_failed, turn_of
from everbeat.model.flow import NewWorkflow, NodeStatus, OnError, WorkflowChange, WorkflowStatus
from everbeat.model.task import Claim
from everbeat.store.sqlite.store import SQLiteStore

LARGEST = 7


def expected(flow: NewWorkflow, outcomes: Mapping[str, str]) -> dict[str, NodeStatus]:
    """What must become of each node: inputs come before those that wait for them."""
    ended: list[tuple[NodeStatus, str | None]] = []
    for node in flow.nodes:
        inputs = [ended[number] for number in node.inputs]
        turn = turn_of(
            Waiting(
                deps=len(inputs),
                needed=node.needed,
                left=0,
                ok=sum(status is NodeStatus.COMPLETED for status, _ in inputs),
                failed=sum(counts_as_failed(*one) for one in inputs),
                allow_failed=node.allow_failed,
            )
        )
        if turn.status is NodeStatus.READY:
            ran = {OK: NodeStatus.COMPLETED, FAIL: NodeStatus.FAILED, CANCEL: NodeStatus.CANCELLED}
            ended.append((ran[outcomes[node.name]], None))
        else:
            ended.append((turn.status, turn.code))
    return {node.name: status for node, (status, _) in zip(flow.nodes, ended, strict=True)}


@st.composite
def flows(draw: st.DrawFn) -> tuple[NewWorkflow, dict[str, str]]:
    size = draw(st.integers(1, LARGEST))
    after: dict[str, str] = {}
    facts: dict[str, dict[str, Any]] = {}
    for number in range(size):
        inputs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        after[f"n{number}"] = " ".join(f"n{one}" for one in sorted(inputs))
        if inputs:
            needed = draw(st.sampled_from([len(inputs), len(inputs), 1, max(1, len(inputs) - 1)]))
            facts[f"n{number}"] = {"needed": needed, "allow_failed": draw(st.booleans()) and needed == len(inputs)}
    outcomes = {name: draw(st.sampled_from([OK, OK, OK, FAIL, CANCEL])) for name in after}
    flow = graph(on_error=draw(st.sampled_from(list(OnError))), nodes=facts, **after)
    return flow, outcomes


class Flows(RuleBasedStateMachine):
    @initialize(made=flows())
    def start(self, made: tuple[NewWorkflow, dict[str, str]]) -> None:
        self.flow, self.outcomes = made
        self.place = tempfile.TemporaryDirectory()
        self.store = SQLiteStore(Path(self.place.name) / "flows.db", durability="normal", clock=VirtualClock())
        register(self.store, "w1")
        begin(self.store, self.flow)
        self.held: dict[str, Claim] = {}
        self.ended: Counter[str] = Counter()

    @property
    def is_paused(self) -> bool:
        return state(self.store) is WorkflowStatus.PAUSED

    @rule(places=st.integers(1, 3))
    def claim(self, places: int) -> None:
        was_paused = self.is_paused
        taken = take(self.store, places=places)
        assert not (taken and was_paused)
        self.held |= taken

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """One or several of the same outcome, in one flush."""
        first = data.draw(st.sampled_from(sorted(self.held)))
        alike = [name for name in self.held if self.outcomes[name] == self.outcomes[first]]
        chosen = [first, *data.draw(st.lists(st.sampled_from(sorted(alike)), max_size=2))]
        names = list(dict.fromkeys(chosen))
        end(self.store, *[self.held.pop(name) for name in names], outcome=self.outcomes[first])
        self.ended.update(names)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Its worker dies, and it is recovered; then the dead one's outcome arrives too late."""
        name = data.draw(st.sampled_from(sorted(self.held)))
        claim = self.held.pop(name)
        requeue(self.store, claim)

    @rule()
    def pause(self) -> None:
        self.store.change_workflow(WorkflowChange.PAUSE, "flow", actor="me")

    @rule()
    def resume(self) -> None:
        self.store.change_workflow(WorkflowChange.RESUME, "flow", actor="me")

    @invariant()
    def nothing_is_torn(self) -> None:
        assert self.store.mend_workflows(all_of_them=True)[:2] == ([], [])

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            self._finish_all()
            wanted = expected(self.flow, self.outcomes)
            assert states(self.store) == wanted
            runs = {status: {self.ended[name] for name in wanted if wanted[name] is status} for status in NodeStatus}
            assert runs[NodeStatus.COMPLETED] <= {1}
            assert runs[NodeStatus.CANCELLED] <= {1}
            assert runs[NodeStatus.FAILED] <= {0, 1}  # a join that can not be met never ran
            assert runs[NodeStatus.SKIPPED] <= {0}
            assert state(self.store) is self._expected_end(wanted)
        finally:
            self.store.close()
            self.place.cleanup()

    def _finish_all(self) -> None:
        while True:
            self.store.change_workflow(WorkflowChange.RESUME, "flow", actor="me")
            self.held |= take(self.store)
            if not self.held:
                break
            name, claim = self.held.popitem()
            end(self.store, claim, outcome=self.outcomes[name])
            self.ended[name] += 1
        self.store.change_workflow(WorkflowChange.RESUME, "flow", actor="me")

    def _expected_end(self, wanted: Mapping[str, NodeStatus]) -> WorkflowStatus:
        tolerated = {node.name for node in self.flow.nodes if node.is_tolerated}
        bad = [name for name, status in wanted.items() if status in (NodeStatus.FAILED, NodeStatus.CANCELLED)]
        if self.flow.on_error is OnError.CONTINUE or not set(bad) - tolerated:
            return WorkflowStatus.COMPLETED
        return WorkflowStatus.FAILED


Flows.TestCase.settings = settings(
    max_examples=40, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFlows = Flows.TestCase
