"""What a workflow of `graphs` must have come to. Each node is worked out from what became of its inputs and of its own
tasks, by a few lines that know nothing of counters, waves or transactions; and the workflow from its nodes (P11)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.sim.flows import Ask, FlowSpec

from everbeat.model.flow import ITEM, NewNode, NewWorkflow, NodeKind, OnError

OVER = ("COMPLETED", "FAILED", "CANCELLED", "SKIPPED")
LOST = object()
"""In place of a result: there is none, because something failed."""


@dataclass(slots=True)
class Known:
    """One workflow, as it is in the store."""

    status: str
    left: int
    paused_by: str | None
    error_node: str | None
    nodes: dict[int, str]
    results: dict[int, Any] = field(default_factory=dict)
    """What each node that has ended should have for a result."""
    lacking: set[int] = field(default_factory=set)
    """Nodes that those who wait for them lack because something went wrong."""


def check_graph(
    ask: Ask, spec: FlowSpec, *, is_cancelled: bool, is_retried: bool, is_left_paused: bool
) -> Iterator[str]:
    """`is_retried`: by a person, some of it or all. What ran before that stays as it is, whatever its inputs become.
    `is_left_paused`: it was paused by an error, and nobody resumes it any more."""
    tasks = {row[0]: row[1:] for row in ask("SELECT id, status, result FROM sim_tasks WHERE workflow_id IS NOT NULL")}
    tree = _Tree(tasks, is_retried=is_retried)
    for flow in reversed(spec.flows):
        state = ask("SELECT status, nodes_left, paused_by, error_node FROM sim_workflows WHERE id = ?", (flow.id,))
        if not state:
            yield f"workflow {flow.id} was started and is not in the store: lost"
            return
        rows = ask("SELECT node, status FROM sim_workflow_tasks WHERE workflow_id = ?", (flow.id,))
        nodes = dict(rows)
        mine = Known(*state[0], nodes)
        tree.known[flow.id] = flow, mine
        yield from _check(tree, flow, mine, is_cancelled=is_cancelled)
        if flow.parent_id is None and not (mine.status in OVER and not mine.left) and not is_left_paused:
            yield f"workflow {flow.id} is stuck: {mine.status}, {mine.left} nodes left, {nodes}"


def _check(tree: "_Tree", flow: NewWorkflow, mine: Known, *, is_cancelled: bool) -> Iterator[str]:
    has_begun = any(status not in ("SKIPPED", "PENDING", "READY") for status in mine.nodes.values())
    for number, node in enumerate(flow.nodes):
        status, found = tree.tasks.get(node.task_id or "", (None, None))[0], mine.nodes[number]
        if status in OVER and found != status and not tree.is_retried:
            yield f"task {node.task_id} is {status}, its node {found}"
        wanted = tree.end_of(flow, mine, number)
        is_kept = tree.is_retried and found == status
        if found in OVER and found != wanted and has_begun and not is_cancelled and not is_kept:
            yield f"node {node.name} of workflow {flow.id} is {found}; its inputs and tasks make it {wanted}"
    if is_cancelled or not has_begun:
        return
    if mine.status == "PAUSED" and (mine.paused_by != "error" or (flow.parent_id is None and mine.error_node is None)):
        yield f"workflow {flow.id} is paused by an error, and there is none"
    if mine.status in OVER and mine.status != (wanted := _end(flow, mine.nodes)):
        yield f"workflow {flow.id} is {mine.status} with {mine.nodes}; they make it {wanted}"


def _end(flow: NewWorkflow, nodes: dict[int, str]) -> str:
    if flow.success is not None:
        return "COMPLETED" if all(nodes[number] == "COMPLETED" for number in flow.success) else "FAILED"
    failed = any(nodes[number] in ("FAILED", "CANCELLED") for number, node in enumerate(flow.nodes)
                 if not node.is_tolerated)  # fmt: skip
    return "FAILED" if failed and flow.on_error is not OnError.CONTINUE else "COMPLETED"


class _Tree:
    def __init__(self, tasks: dict[str, tuple[Any, ...]], *, is_retried: bool) -> None:
        self.known: dict[str, tuple[NewWorkflow, Known]] = {}
        self.tasks = tasks
        self.is_retried = is_retried

    def end_of(self, flow: NewWorkflow, mine: Known, number: int) -> str:
        """Notes its result, and whether it is lacking, for those that come after it."""
        node = flow.nodes[number]
        completed = sum(mine.nodes[one] == "COMPLETED" for one in node.inputs)
        is_lacking = bool(mine.lacking.intersection(node.inputs))
        if completed < node.needed and not node.allow_failed:
            wanted = "FAILED" if node.is_partial and is_lacking else "SKIPPED"
        elif not self._is_wanted(node, mine):
            wanted, is_lacking = "SKIPPED", False
        else:
            wanted, mine.results[number] = self._as_it_ran(node, mine)
        found = mine.nodes[number]
        if found in ("FAILED", "CANCELLED") or (found == "SKIPPED" and is_lacking):
            mine.lacking.add(number)
        return wanted

    def _is_wanted(self, node: NewNode, mine: Known) -> bool:
        asked = json.loads(node.condition) if node.condition else {}

        def holds(test: dict[str, Any]) -> bool:
            return mine.nodes[test["node"]] == "COMPLETED" and mine.results.get(test["node"]) in test["in"]

        return all(map(holds, asked.get("when", ()))) and not any(map(holds, asked.get("unless", ())))

    def _as_it_ran(self, node: NewNode, mine: Known) -> tuple[str, Any]:
        taken = [named for _, named, *_ in node.references if named != ITEM]
        taken += [] if node.over is None else [node.over]
        is_strict = not (node.allow_failed or node.is_partial)
        if is_strict and any(mine.results.get(one) is LOST for one in taken):
            return "FAILED", LOST
        match node.kind:
            case NodeKind.TASK:
                return self._task(node.task_id or "")
            case NodeKind.MAP:
                return self._map(node, mine.results.get(node.over if node.over is not None else -1))
            case NodeKind.WORKFLOW:
                return self._nested(*self.known[node.child_id or ""])

    def _task(self, task_id: str) -> tuple[str, Any]:
        status, result = self.tasks.get(task_id, ("MISSING", None))
        return status, json.loads(bytes(result)) if status == "COMPLETED" else LOST

    def _map(self, node: NewNode, over: Any) -> tuple[str, Any]:
        if not isinstance(over, list):
            return "FAILED", LOST
        ends = [self._task(f"{node.child_id}.{number}") for number in range(len(over))]
        if f"{node.child_id}.{len(over)}" in self.tasks:
            return "with one element too many", LOST
        is_done = all(status == "COMPLETED" for status, _ in ends)
        return ("COMPLETED", [result for _, result in ends]) if is_done else ("FAILED", LOST)

    def _nested(self, flow: NewWorkflow, mine: Known) -> tuple[str, Any]:
        if mine.status != "COMPLETED":
            return mine.status, LOST
        results = {flow.nodes[one].name: self._output(mine, one) for one in flow.outputs}
        if len(results) == 1:
            return "COMPLETED", next(iter(results.values()))
        return "COMPLETED", {name: None if result is LOST else result for name, result in results.items()}

    def _output(self, mine: Known, number: int) -> Any:
        if mine.nodes[number] == "COMPLETED":
            return mine.results.get(number)
        return LOST if number in mine.lacking else None
