"""From a workflow as it was built to rows for the store; or all that is wrong with it, in one error.

The store gets names, arguments and numbers: calls are encoded by the annotations of their functions, with `null` where
the result of another node belongs (decide/splice.py). The digest is of the graph and its arguments and of nothing that
was made here, so starting the same workflow twice under one id can be told from starting another.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from everbeat.changes import first_not_finite
from everbeat.errors import WorkflowInvalid
from everbeat.ids import name_problem
from everbeat.model.flow import ITEM, Named, NewNode, NewWorkflow, NodeKind, Reference
from everbeat.options import PLAIN, SendOptions
from everbeat.task import Sender, Task
from everbeat.workflow import (
    Condition,
    Node,
    Workflow,
    inputs_of,
    joined_by,
    listed,
    nodes_in,
    own_inputs,
    results_from_outside,
)

if TYPE_CHECKING:
    from everbeat.app import Everbeat

JOINS = ("all", "any", "quorum")
NOT_FOR_NODES = ("run_at", "unique_key", "id", "connection")
DEEPEST = 50
SAME = ("name", "kind", "task_name", "args", "references", "over", "inputs", "needed", "is_partial", "allow_failed",
        "condition")  # fmt: skip
"""What two nodes have in common that are the same."""


class Element(Node):
    """Stands for the element that a map runs over."""

    def __init__(self) -> None:
        self.name = "the element"


ELEMENT = Element()


def plan(flow: Workflow, app: "Everbeat", *, id: str | None = None) -> list[NewWorkflow]:
    """The workflow, and after it all that is nested in it."""
    problems = [] if id is None else list(filter(None, [name_problem(id, "id")]))
    planner = _Planner(app)
    problems += planner.problems(flow, [])
    if problems:
        raise WorkflowInvalid(problems, subject=f"workflow {flow.name}")
    return planner.planned([flow], id or app.make_ids(1)[0], parent=None)


def problems_of(flow: Workflow, app: "Everbeat") -> list[str]:
    return _Planner(app).problems(flow, [])


class _Planner:
    def __init__(self, app: "Everbeat") -> None:
        self._app = app
        self._calls: dict[Node, tuple[bytes, tuple[tuple[int, Node], ...]]] = {}

    # -- what is wrong ------------------------------------------------------------------------------------------------

    def problems(self, flow: Workflow, around: Sequence[Workflow]) -> list[str]:
        """Where it stands is said by the names of the workflows around it."""
        path = " -> ".join(one.name for one in (*around, flow))
        if flow in around:
            return [f"it contains itself: {path}"]
        if len(around) > DEEPEST:
            return [f"workflows are nested more than {DEEPEST} deep"]
        found = list(_of_the_whole(flow))
        for node in flow.nodes:
            found += [f"node {node.name}: {said}" for said in self._of_node(flow, node, (*around, flow))]
        found += [f"it waits for itself: {' -> '.join(node.name for node in cycle)}" for cycle in cycles_in(flow)]
        return found if not around else [f"in {path}: {said}" if not said.startswith("in ") else said for said in found]

    def _of_node(self, flow: Workflow, node: Node, around: Sequence[Workflow]) -> Iterator[str]:
        asked = [condition.node for condition in (*node.when, *node.unless) if isinstance(condition, Condition)]
        for one in inputs_of(node):
            if one.flow not in around:
                yield f"it waits for {one.name}, which belongs to the workflow {one.flow.name}, not around this one"
            elif one is node.over and one.flow is not flow:
                yield f"it runs over {one.name} of the workflow {one.flow.name}; over= takes a node of its own workflow"
            elif one in asked and one.flow is not flow:
                yield f"its condition asks {one.name}, which belongs to the workflow {one.flow.name}"
        if not all(isinstance(one, Node) for one in node.order):
            yield "after= takes nodes of this workflow"
        if node.over is not None and not isinstance(node.over, Node):
            yield f"over= takes a node of this workflow, not a {type(node.over).__name__}"
        if not isinstance(node.allow_failed, bool):
            yield f"allow_failed must be True or False, not {node.allow_failed!r}"
        yield from _of_join(node)
        yield from _of_conditions(node)
        if isinstance(node.what, Workflow):
            if node.over is not None:
                yield "map runs a task for each element, not a workflow"
            if node.args or node.kwargs:
                yield "a nested workflow takes no arguments"
            yield from _of_what_may_be_missing(node, results_from_outside(node.what))
            yield from self.problems(node.what, around)
        else:
            yield from self._of_call(node)

    def _of_call(self, node: Node) -> Iterator[str]:
        task, options = sent(node)
        if not isinstance(task, Task):
            yield f"{task!r} is neither a task nor a workflow"
            return
        if self._app.tasks.get(task.name) is not task:
            yield f"the task {task.name} is not registered in this application"
        given = [name for name in NOT_FOR_NODES if getattr(options, name) is not None]
        if given:
            yield f"{', '.join(given)} can not be given to a node"
        args = node.args if node.over is None else (ELEMENT, *node.args)
        try:
            raw, holes = task.payload.encode_with_holes(args, node.kwargs, Node)
        except TypeError as error:  # PayloadError is one
            for fault in task.payload.faults(args, node.kwargs, Node) or [str(error)]:
                yield fault.replace(" Nothing was sent.", "")
        else:
            self._calls[node] = raw, tuple(holes)
        if _is_partial(node):
            fitted = task.payload.fitted(args, node.kwargs)
            yield from _of_what_may_be_missing(
                node, [one for _, value in fitted for one in nodes_in(value, alone=True)]
            )

    # -- what is stored -----------------------------------------------------------------------------------------------

    def planned(self, around: Sequence[Workflow], id: str, parent: tuple[str, int] | None) -> list[NewWorkflow]:
        """The last of these, with what is nested in it."""
        flow = around[-1]
        numbers = {node: number for number, node in enumerate(flow.nodes)}
        ids = self._app.make_ids(len(flow.nodes))
        outputs = _outputs(flow)
        waiters: dict[Node, list[Node]] = {}
        for node in flow.nodes:
            for one in own_inputs(node):
                waiters.setdefault(one, []).append(node)
        nodes: list[NewNode] = []
        nested: list[NewWorkflow] = []
        for node, node_id in zip(flow.nodes, ids, strict=True):
            new = self._node(node, node_id, numbers, around)
            mine = waiters.get(node, [])
            nodes.append(replace(new, is_tolerated=bool(mine) and all(_is_partial(one) for one in mine)))
            if isinstance(node.what, Workflow):
                nested += self.planned([*around, node.what], node_id, (id, numbers[node]))
        whole = NewWorkflow(
            id=id, name=flow.name, on_error=flow.on_error, nodes=nodes, outputs=tuple(numbers[one] for one in outputs),
            success=None if flow.success is None else tuple(numbers[one] for one in listed(flow.success)),
            max_bytes=self._app.config.max_args_bytes, parent_id=parent[0] if parent else None,
            parent_node=parent[1] if parent else None,
        )  # fmt: skip
        return [replace(whole, digest=_digest([whole, *nested])), *nested]

    def _node(self, node: Node, node_id: str, numbers: dict[Node, int], around: Sequence[Workflow]) -> NewNode:
        inputs = tuple(sorted(numbers[one] for one in own_inputs(node)))
        new = NewNode(
            name=node.name, kind=NodeKind.TASK, inputs=inputs, needed=_needed(node),
            is_partial=_is_partial(node), allow_failed=node.allow_failed, condition=_condition(node, numbers),
            over=None if node.over is None else numbers[node.over],
        )  # fmt: skip
        if isinstance(node.what, Workflow):
            return replace(new, kind=NodeKind.WORKFLOW, child_id=node_id, shape=json.dumps(shape_of(node)))
        task, options = sent(node)
        raw, holes = self._calls[node]
        references: tuple[Reference, ...] = tuple((at, *_named(one, around)) for at, one in holes)
        new = replace(
            new, task_name=task.name, queue=options.queue or task.queue, priority=options.priority or task.priority,
            max_attempts=task.policy.max_attempts, policy=task.policy.dump(), exclusive_key=options.exclusive_key,
            good_until=options.good_until_us, delay_us=options.delay_us or 0, args=raw, references=references,
        )  # fmt: skip
        if node.over is not None:
            return replace(new, kind=NodeKind.MAP, child_id=node_id)
        return replace(new, task_id=node_id)


def _named(node: Node, around: Sequence[Workflow]) -> Named:
    """By its number, and how far out it is."""
    if node is ELEMENT:
        return ITEM, 0
    return node.number, len(around) - 1 - list(around).index(node.flow)


def sent(node: Node) -> tuple[Any, SendOptions]:
    """The task of a node, and the options it is sent with."""
    return (node.what.task, node.what.sent_with) if isinstance(node.what, Sender) else (node.what, PLAIN)


def cycles_in(flow: Workflow) -> Iterator[list[Node]]:
    """Ways from a node back to it: one for each input that closes one. Without those inputs there is no way back."""
    done: set[Node] = set()
    for first in flow.nodes:
        path: dict[Node, Iterator[Node]] = {} if first in done else {first: iter(own_inputs(first))}
        while path:
            node = next(reversed(path))
            before = next(path[node], None)
            if before is None:
                done.add(node)
                del path[node]
            elif before in path:
                way = list(path)
                yield [before, *reversed(way[way.index(before) :])]
            elif before not in done and before.flow is flow:
                path[before] = iter(own_inputs(before))


def shape_of(node: Node) -> dict[str, Any]:
    """How to read its result."""
    if isinstance(node.what, Workflow):
        return {"workflow": {one.name: shape_of(one) for one in _outputs(node.what)}}
    task, _ = sent(node)
    return {"map" if node.over is not None else "task": task.name}


def _outputs(flow: Workflow) -> list[Node]:
    if flow.output is not None:
        return listed(flow.output)
    waited_for = {one for node in flow.nodes for one in own_inputs(node)}
    return [node for node in flow.nodes if node not in waited_for]


def _needed(node: Node) -> int:
    if node.join == "any":
        return 1
    return int(node.min_success or 1) if node.join == "quorum" else len(own_inputs(node))


def _is_partial(node: Node) -> bool:
    return node.join in ("any", "quorum")


def _of_the_whole(flow: Workflow) -> Iterator[str]:
    if not flow.nodes:
        yield "it has no nodes"
    names: set[str] = set()
    for node in flow.nodes:
        if not isinstance(node.name, str) or not node.name or len(node.name) > 256 or not node.name.isprintable():
            yield f"node {node.name!r}: a name is a text of 1 to 256 printable characters"
        elif node.name in names:
            yield f"two nodes are named {node.name}"
        names.add(node.name)
    for what, given in (("success", flow.success), ("output", flow.output)):
        chosen = listed(given)
        if not all(isinstance(one, Node) and one.flow is flow for one in chosen):
            yield f"{what} names what is no node of it"
        elif given is not None and not chosen:
            yield f"{what} names no node"


def _of_join(node: Node) -> Iterator[str]:
    inputs = len(joined_by(node))
    if node.join not in JOINS:
        yield f"join must be one of {', '.join(JOINS)}, not {node.join!r}"
    elif node.join == "quorum":
        least = node.min_success
        if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= inputs:
            yield f"a quorum needs min_success from 1 to the number of its inputs, {inputs}, not {least!r}"
    elif node.min_success is not None:
        yield f"min_success has a meaning for join='quorum' only, not for {node.join!r}"
    if _is_partial(node):
        if not inputs:
            yield f"join={node.join!r} needs inputs"
        if len(joined_by(node)) < len(own_inputs(node)):
            yield f"with join={node.join!r}, conditions can only ask what is among its inputs"


def _of_what_may_be_missing(node: Node, taken: Sequence[Node]) -> Iterator[str]:
    """Results that it takes otherwise than as elements of a list, which holds those that are there."""
    if _is_partial(node) and not node.allow_failed and taken:
        names = ", ".join(dict.fromkeys(one.name for one in taken))
        yield (
            f"with join={node.join!r} it may start without the result of {names}: take it in a list, which holds the "
            f"results that are there, or as a NodeFailure, with allow_failed=True"
        )


def _of_conditions(node: Node) -> Iterator[str]:
    for condition in (*node.when, *node.unless):
        if not isinstance(condition, Condition):
            yield f"a condition is node.result_is(...) or node.result_in(...), not {condition!r}"
            continue
        if not isinstance(condition.among, tuple):
            yield f"result_in takes a list of values, not {condition.among!r}"
            continue
        try:
            msgspec.json.encode(list(condition.among))
        except RecursionError:
            yield "its condition has a value that contains itself, or is nested too deeply"
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            yield f"its condition has a value that is not JSON: {error}"
        else:
            faults = (first_not_finite(value, "value") for value in condition.among)
            yield from (f"its condition has a value that is not JSON: {fault}" for fault in faults if fault)


def _condition(node: Node, numbers: dict[Node, int]) -> str | None:
    tests = {
        word: [{"node": numbers[one.node], "in": list(one.among)} for one in given]
        for word, given in (("when", node.when), ("unless", node.unless))
        if given
    }
    return msgspec.json.encode(tests).decode() if tests else None


def _digest(flows: Sequence[NewWorkflow]) -> str:
    """Of the graph and the arguments: without the ids that were made for it, and without how its tasks are sent and
    retried, which a deploy may change."""
    said = [
        [flow.name, flow.on_error, flow.outputs, flow.success, flow.parent_node,
         [[getattr(node, name) for name in SAME] for node in flow.nodes]]
        for flow in flows
    ]  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()
