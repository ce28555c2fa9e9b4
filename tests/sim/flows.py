"""Workflows of a simulation: graphs made from a seed, and what each must have come to in the end.

What became of the tasks of its nodes decides all the rest of a workflow. So the end is worked out again from the ends
of the tasks alone, by a few lines that know nothing of counters, waves or transactions, and must be the same, whatever
happened on the way (P11).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.flow_words import graph

from everbeat.model.flow import NewNode, NewWorkflow, NodeKind, OnError
from everbeat.model.task import PLAIN, TaskPolicy

SHAPES: tuple[dict[str, str], ...] = (
    {"a": "", "b": "a", "c": "a", "d": "b c"},
    {"a": "", "b": "", "c": "", "d": "a b c"},
    {"a": "", "b": "a", "c": "b"},
    {"a": "", "b": "a", "c": "a", "d": "a", "e": "b c d", "f": "e"},
    {"a": "", "b": "", "c": "a b", "d": "a b", "e": "c d"},
)
TORN = ("workflow.torn", "workflow.mended", "workflow.stuck")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task that is sent, or is a node, and what its code does each time it runs."""

    id: str
    name: str
    seconds: float
    behaviour: str = "ok"
    """ok; raise: always; raise_once; raise_later: all but the first time; poison: kills its process, always;
    poison_once."""
    policy: TaskPolicy = PLAIN
    listens: bool = True
    """Ends when it is told to."""
    exclusive_key: str | None = None
    unique_key: str | None = None
    elements: int | None = None
    """Its result is a list of so many; None: it is none."""


def result_of(spec: TaskSpec, fence: int, worker_id: str) -> bytes:
    """It tells whose it is."""
    said = f"{spec.id}/{fence}/{worker_id}"
    if spec.elements is None:
        return f'"{said}"'.encode()
    return json.dumps([f"{said}/{number}" for number in range(spec.elements)]).encode()


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """A tree of workflows that is started as one; the first is the root."""

    flows: tuple[NewWorkflow, ...]
    tasks: tuple[TaskSpec, ...]
    is_rich: bool = False
    """Made by `graphs`."""

    @property
    def id(self) -> str:
        return self.flows[0].id


def a_flow(random: Random, number: int, a_task: Callable[[str], TaskSpec]) -> FlowSpec:
    """Some joins need one input only; one node may be a workflow of its own."""
    name, shape, tasks = f"f{number}", random.choice(SHAPES), list[TaskSpec]()

    def a_node(task_id: str) -> dict[str, Any]:
        spec = a_task(task_id)
        tasks.append(spec)
        return {"task_name": spec.name, "policy": spec.policy.dump(), "max_attempts": spec.policy.max_attempts,
                "exclusive_key": spec.exclusive_key}  # fmt: skip

    on_error = random.choice((OnError.FAIL, OnError.FAIL, OnError.CONTINUE))
    nodes = {node: a_node(f"{name}:{node}") for node in shape}
    for node, after in shape.items():
        if len(after.split()) > 1 and random.random() < 0.4:
            nodes[node] |= {"needed": random.randint(1, len(after.split())), "is_partial": True}
    inside = random.choice([None, None, *list(shape)[1:]])
    if inside is None:
        return FlowSpec((graph(name, on_error=on_error, nodes=nodes, **shape),), tuple(tasks))
    nodes[inside] |= {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": f"{name}-in"}
    outer = graph(name, on_error=on_error, nodes=nodes, **shape)
    inner = graph(f"{name}-in", x="", y="x", nodes={node: a_node(f"{name}-in:{node}") for node in "xy"})
    return FlowSpec((outer, replace(inner, parent_id=name, parent_node=list(shape).index(inside))), tuple(tasks))


def inputs_of(spec: FlowSpec) -> Iterator[tuple[str, tuple[list[str], int]]]:
    """Of its tasks that wait for tasks alone: for which, and how many must complete."""
    for flow in spec.flows:
        for node in flow.nodes:
            if node.allow_failed:
                continue
            inputs = [flow.nodes[number].task_id for number in node.inputs]
            if node.task_id is not None and inputs and None not in inputs:
                yield node.task_id, ([task_id for task_id in inputs if task_id], node.needed)


# -- what it must have come to ----------------------------------------------------------------------------------------

Ask = Callable[..., list[tuple[Any, ...]]]


def check_flow(ask: Ask, spec: FlowSpec, *, was_cancelled: bool) -> Iterator[str]:
    statuses: dict[str, str] = {}
    for flow in reversed(spec.flows):
        found = dict(ask("SELECT node, status FROM sim_workflow_tasks WHERE workflow_id = ?", (flow.id,)))
        state = ask("SELECT status, nodes_left FROM sim_workflows WHERE id = ?", (flow.id,))
        if not state:
            yield f"workflow {flow.id} was started and is not in the store: lost"
            return
        ((statuses[flow.id], left),) = state
        tasks = dict(ask("SELECT id, status FROM sim_tasks WHERE workflow_id = ?", (flow.id,)))
        wanted, end = _expected(flow, tasks, statuses)
        is_unused = flow.parent_id is not None and not tasks
        if not is_unused and not was_cancelled and (found, statuses[flow.id]) != (wanted, end):
            yield f"workflow {flow.id} is {statuses[flow.id]} with {found}; its tasks make it {end} with {wanted}"
        is_over = statuses[flow.id] in ("COMPLETED", "FAILED", "CANCELLED") and not left
        if flow.parent_id is None and not is_over:
            yield f"workflow {flow.id} is stuck: {statuses[flow.id]}, {left} nodes left, {found}"
        for number, node in enumerate(flow.nodes):
            status = tasks.get(node.task_id or "")
            if status is not None and found[number] != status:
                yield f"task {node.task_id} is {status}, its node {found[number]}"


def _expected(flow: NewWorkflow, tasks: Mapping[str, str], children: Mapping[str, str]) -> tuple[dict[int, str], str]:
    """Inputs of a node stand before it."""
    ends: dict[int, str] = {}
    lacking: set[int] = set()
    """Nodes that those who wait for them lack because something went wrong."""
    for number, node in enumerate(flow.nodes):
        completed = sum(ends[one] == "COMPLETED" for one in node.inputs)
        if completed >= node.needed:
            ends[number] = children[node.child_id] if node.child_id else tasks.get(node.task_id or "", "MISSING")
        else:
            ends[number] = _in_vain(node, lacking)
        if ends[number] != "COMPLETED" and not (ends[number] == "SKIPPED" and not lacking.intersection(node.inputs)):
            lacking.add(number)
    failed = any(end in ("FAILED", "CANCELLED") and not flow.nodes[number].is_tolerated for number, end in ends.items())
    return ends, "FAILED" if failed and flow.on_error is OnError.FAIL else "COMPLETED"


def _in_vain(node: NewNode, lacking: set[int]) -> str:
    return "FAILED" if node.is_partial and lacking.intersection(node.inputs) else "SKIPPED"
