"""How a workflow must end, told from its graph alone: a definition, not a procedure.

Written without `everbeat.decide`, which does the same step by step with counters, so that one can be held against the
other. Everything here asks what has become of the inputs once all have ended; nothing is counted down.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from everbeat.model.flow import NewNode, NewWorkflow, NodeKind, NodeStatus, OnError, WorkflowStatus

N, W = NodeStatus, WorkflowStatus
Ends = Mapping[str, tuple[NodeStatus, bytes | None]]
"""By the name of a task: what becomes of it if it runs, and its result."""


def elements(node: NewNode, ends: Ends) -> list[str]:
    """The tasks of a map, which are called after it."""
    return [name for name in ends if name.startswith(f"{node.name}.")]


class Whole:
    """A workflow with all that is nested in it."""

    def __init__(self, flows: Mapping[str, NewWorkflow], id: str, ends: Ends) -> None:
        self.flow = flows[id]
        self.nodes = [Step(self, node, ends) for node in self.flow.nodes]
        self.inner = {node.name: Whole(flows, node.child_id, ends) for node in self.flow.nodes
                      if node.kind is NodeKind.WORKFLOW and node.child_id is not None}  # fmt: skip

    @property
    def status(self) -> WorkflowStatus:
        if self.flow.success is not None:
            is_success = all(self.nodes[number].status is N.COMPLETED for number in self.flow.success)
        else:
            is_success = self.flow.on_error is OnError.CONTINUE or not any(step.is_error for step in self.nodes)
        return W.COMPLETED if is_success else W.FAILED

    @property
    def states(self) -> dict[str, NodeStatus]:
        """By the names of the nodes, those inside of others among them. A map that never begins has no elements."""
        found: dict[str, NodeStatus] = {}
        for step in self.nodes:
            found |= {step.node.name: step.status, **step.inside}
        return found


class Step:
    """A node, and what it must end as."""

    def __init__(self, whole: Whole, node: NewNode, ends: Ends) -> None:
        self.whole = whole
        self.node = node
        self.ends = ends

    @property
    def inputs(self) -> "Sequence[Step]":
        return [self.whole.nodes[number] for number in self.node.inputs]

    @property
    def waiters(self) -> "Sequence[Step]":
        return [step for step in self.whole.nodes if self in step.inputs]

    @property
    def has_enough(self) -> bool:
        return sum(one.status is N.COMPLETED for one in self.inputs) >= self.node.needed

    @property
    def is_wanted(self) -> bool:
        """By its condition: every `when` holds, and no `unless`."""
        said = json.loads(self.node.condition or "{}")
        return all(map(self._holds, said.get("when", ()))) and not any(map(self._holds, said.get("unless", ())))

    def _holds(self, test: Mapping[str, Any]) -> bool:
        asked = self.whole.nodes[test["node"]]
        result = self.ends[asked.node.name][1] if asked.status is N.COMPLETED else None
        return result is not None and json.loads(result) in test["in"]

    @property
    def runs(self) -> bool:
        return (self.has_enough or self.node.allow_failed) and self.is_wanted

    @cached_property
    def status(self) -> NodeStatus:
        if self.runs:
            return self._outcome
        lacks_by_failure = not self.has_enough and any(one.is_missed for one in self.inputs)
        return N.FAILED if lacks_by_failure and self.node.is_partial else N.SKIPPED

    @property
    def is_missed(self) -> bool:
        """It has no result, and not because nobody wanted it."""
        if self.status is not N.SKIPPED:
            return self.status is not N.COMPLETED
        return not self.has_enough and any(one.is_missed for one in self.inputs)

    @property
    def is_error(self) -> bool:
        """Of its workflow: it has failed, and not only partial joins wait for it, whose business that is."""
        is_judged_by_others = bool(self.waiters) and all(one.node.is_partial for one in self.waiters)
        return self.status in (N.FAILED, N.CANCELLED) and not is_judged_by_others

    @property
    def _outcome(self) -> NodeStatus:
        match self.node.kind:
            case NodeKind.TASK:
                return self.ends[self.node.name][0]
            case NodeKind.MAP:
                all_of_them = [self.ends[name][0] for name in elements(self.node, self.ends)]
                return N.COMPLETED if set(all_of_them) <= {N.COMPLETED} else N.FAILED
            case NodeKind.WORKFLOW:
                return N.COMPLETED if self.whole.inner[self.node.name].status is W.COMPLETED else N.FAILED

    @property
    def inside(self) -> dict[str, NodeStatus]:
        if self.node.kind is NodeKind.WORKFLOW:
            inner = self.whole.inner[self.node.name]
            return inner.states if self.runs else {node.name: N.SKIPPED for node in inner.flow.nodes}
        if self.node.kind is NodeKind.MAP and self.runs:
            return {name: self.ends[name][0] for name in elements(self.node, self.ends)}
        return {}
