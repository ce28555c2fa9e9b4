"""Workflows with all that one may have, made from a seed: joins of some, inputs that may fail, conditions, maps over
results, arguments that are results, workflows in workflows, and each `on_error`."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.flow_words import graph
from tests.sim.flows import FlowSpec, TaskSpec, result_of

from everbeat.model.flow import ITEM, NewNode, NewWorkflow, NodeKind, OnError, Reference

ACaller = Callable[[str], TaskSpec]

MOST_ELEMENTS = 4
DEEPEST = 2
FENCES, WORKERS = (1, 3, 5), 60
"""A condition asks for the result of a run under one of these fences, whoever ran it: faults change the answer."""


@dataclass(frozen=True, slots=True)
class Part:
    """A workflow, with all that is nested in it, and their tasks."""

    flows: tuple[NewWorkflow, ...]
    tasks: tuple[TaskSpec, ...]


def a_graph(random: Random, number: int, a_task: ACaller) -> FlowSpec:
    part = _part(random, f"f{number}", a_task, depth=0)
    return FlowSpec(part.flows, part.tasks, is_rich=True)


def _part(random: Random, name: str, a_task: ACaller, *, depth: int) -> Part:
    after: dict[str, str] = {}
    nodes: dict[str, dict[str, Any]] = {}
    inside: list[NewWorkflow] = []
    tasks: dict[str, list[TaskSpec]] = {}
    for at, node in enumerate("abcdef"[: random.randint(1 + (not depth), 3 if depth else 6)]):
        inputs = sorted(random.sample("abcdef"[:at], min(at, random.choice((0, 1, 1, 2, 2, 3)))))
        kinds = [NodeKind.TASK] * 6 + [NodeKind.MAP] * 3 * bool(inputs) + [NodeKind.WORKFLOW] * 2 * (depth < DEEPEST)
        kind = random.choice(kinds) if at else NodeKind.TASK
        after[node] = " ".join(inputs)
        nodes[node] = {"kind": kind, **_waiting(random, inputs, kind, tasks)}
        match kind:
            case NodeKind.TASK:
                spec = a_task(f"{name}:{node}")
                tasks[node] = [replace(spec, elements=random.choice((None, None, 0, 1, 2, MOST_ELEMENTS)))]
            case NodeKind.MAP:
                over = random.choice([*inputs, *(one for one in inputs if _is_list(tasks.get(one)))])
                nodes[node] |= {"task_id": None, "child_id": f"{name}:{node}", "over": list(after).index(over)}
                tasks[node] = _elements(random, f"{name}:{node}", a_task)
            case NodeKind.WORKFLOW:
                part = _part(random, f"{name}.{node}", a_task, depth=depth + 1)
                nodes[node] |= {"task_id": None, "child_id": f"{name}.{node}"}
                inside += [replace(part.flows[0], parent_id=name, parent_node=at), *part.flows[1:]]
                tasks[node] = [*part.tasks]
        if kind is not NodeKind.WORKFLOW:
            nodes[node] |= _call(random, tasks[node][0], kind, [list(after).index(one) for one in inputs])
    names = list(after)
    flow = graph(
        name, on_error=random.choice(list(OnError)), nodes=nodes, **after,
        success=_some(random, len(names)) if random.random() < 0.15 else None,
        outputs=_some(random, len(names)) if random.random() < 0.3 else None,
    )  # fmt: skip
    return Part((flow, *inside), tuple(task for mine in tasks.values() for task in mine))


def _some(random: Random, count: int) -> tuple[int, ...]:
    return tuple(sorted(random.sample(range(count), random.randint(1, count))))


def _is_list(tasks: list[TaskSpec] | None) -> bool:
    return bool(tasks) and len(tasks or ()) == 1 and (tasks or ())[0].elements is not None


def _waiting(random: Random, inputs: list[str], kind: NodeKind, tasks: dict[str, list[TaskSpec]]) -> dict[str, Any]:
    """When it starts."""
    facts: dict[str, Any] = {}
    if kind is not NodeKind.MAP and len(inputs) > 1 and random.random() < 0.35:
        facts |= {"needed": random.randint(1, len(inputs)), "is_partial": True}
    if kind is not NodeKind.MAP and inputs and random.random() < 0.25:
        facts["allow_failed"] = True
    asked = [one for one in inputs if len(tasks[one]) == 1 and ":" in tasks[one][0].id]
    asked = [one for one in asked if tasks[one][0].id.endswith(f":{one}") and tasks[one][0].elements != 0]
    if asked and random.random() < 0.35:
        one = random.choice(asked)
        values = [json.loads(result_of(tasks[one][0], fence, f"w{worker}")) for fence in FENCES
                  for worker in range(1, WORKERS)]  # fmt: skip
        tests = [{"node": "abcdef".index(one), "in": values if random.random() < 0.8 else [None, 1]}]
        facts["condition"] = json.dumps({random.choice(("when", "unless")): tests})
    return facts


def _elements(random: Random, child_id: str, a_task: ACaller) -> list[TaskSpec]:
    """As many as there may be. They are alike, but for what their code does."""
    first = a_task(f"{child_id}.0")
    others = [a_task(f"{child_id}.{number}") for number in range(1, MOST_ELEMENTS + 2)]
    return [first, *(replace(first, id=one.id, seconds=one.seconds, behaviour=one.behaviour) for one in others)]


def _call(random: Random, spec: TaskSpec, kind: NodeKind, inputs: list[int]) -> dict[str, Any]:
    """It takes the results of all its inputs, or of none; of a map, each element as well."""
    facts = {"task_name": spec.name, "policy": spec.policy.dump(), "max_attempts": spec.policy.max_attempts,
             "exclusive_key": spec.exclusive_key}  # fmt: skip
    taken = inputs if random.random() < 0.8 else []
    args = b'{"x":null,"of":['
    references: list[Reference] = [(5, ITEM)] if kind is NodeKind.MAP else []
    for number in taken:
        references.append((len(args), number))
        args += b"null,"
    return facts | {"args": args.rstrip(b",") + b"]}", "references": tuple(references)}


# -- what a task was given --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taking:
    """A task that takes results."""

    flow: NewWorkflow
    node: NewNode
    element: int | None
    """Of a map."""

    def is_wrong(self, args: bytes, result: Callable[[str], Any]) -> str | None:
        """`result`: of a task that has completed; None if it has not."""
        given = json.loads(args)
        over = None if self.node.over is None else self._known(self.node.over, result)
        if self.element is not None and over is not None and given["x"] != over[self.element]:
            return f"element {self.element} of {over} is {given['x']}"
        inputs = [named for _, named, *_ in self.node.references if named != ITEM]
        wanted = [(self.flow.nodes[one].name, self._known(one, result)) for one in inputs]
        if self.node.is_partial and not self.node.allow_failed:
            tasks = all(self.flow.nodes[one].task_id for one in inputs)
            is_right = not tasks or all(value in [known for _, known in wanted] for value in given["of"])
        else:
            is_right = len(given["of"]) == len(wanted) and all(
                self._is_right(value, name, known) for value, (name, known) in zip(given["of"], wanted, strict=True)
            )
        return None if is_right else f"{given['of']} for {wanted}"

    def _known(self, node: int, result: Callable[[str], Any]) -> Any:
        task_id = self.flow.nodes[node].task_id
        return None if task_id is None else result(task_id)

    def _is_right(self, value: Any, name: str, known: Any) -> bool:
        if isinstance(value, dict) and self.node.allow_failed and "error_code" in value:
            return bool(value["node"] == name)
        return known is None or bool(value == known)


def takers(spec: FlowSpec) -> dict[str, Taking]:
    found: dict[str, Taking] = {}
    for flow in spec.flows:
        for node in flow.nodes:
            if node.task_id is not None and node.references:
                found[node.task_id] = Taking(flow, node, None)
            elif node.kind is NodeKind.MAP:
                found |= {f"{node.child_id}.{at}": Taking(flow, node, at) for at in range(MOST_ELEMENTS + 2)}
    return found
