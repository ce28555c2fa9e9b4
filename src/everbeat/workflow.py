"""Workflows: graphs of tasks, built in plain Python and stored as data.

    flow = Workflow("etl")
    pages = flow.add(fetch, url="...")
    rows = [flow.add(clean, part=i, source=pages) for i in range(8)]
    flow.add(load, rows)
    run = flow.start(app)

A node as an argument is its result, and something to wait for. Nothing is checked while a workflow is built: `start`
finds all that is wrong with it (workflow_plan.py) before anything is stored. No code is stored, in conditions neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from everbeat.aside import in_thread
from everbeat.config.checks import one_of
from everbeat.ids import name_problem
from everbeat.model.flow import OnError

if TYPE_CHECKING:
    from everbeat.app import Everbeat
    from everbeat.task import Sender, Task
    from everbeat.workflow_handle import WorkflowHandle

Join = Literal["all", "any", "quorum"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of the result of a node: data, never code."""

    node: "Node"
    among: Any
    """A tuple; anything else is a mistake, which is told with the other problems."""


class Node:
    """A step of a workflow. Made by `Workflow.add` and `Workflow.map`."""

    def __init__(
        self, flow: "Workflow", what: "Task[..., Any] | Sender[..., Any] | Workflow", args: tuple[Any, ...],
        kwargs: dict[str, Any], *, over: "Node | None", after: "Node | Iterable[Node] | None", join: str,
        min_success: int | None, allow_failed: bool, when: Condition | Iterable[Condition] | None,
        unless: Condition | Iterable[Condition] | None,
    ) -> None:  # fmt: skip
        self.flow = flow
        self.number = len(flow.nodes)
        self.name = ""
        self.what = what
        self.args = args
        self.kwargs = kwargs
        self.over = over
        self.order: list[Node] = listed(after)
        self.join = join
        self.min_success = min_success
        self.allow_failed = allow_failed
        self.when: tuple[Condition, ...] = _conditions(when)
        self.unless: tuple[Condition, ...] = _conditions(unless)

    def __repr__(self) -> str:
        return f"<node {self.name} of {self.flow.name}>"

    def named(self, name: str) -> "Node":
        """Give it another name than that of its task. Names are unique in a workflow."""
        self.name = name
        return self

    def after(self, *nodes: "Node") -> "Node":
        """Wait for these, too, without their results."""
        self.order += nodes
        return self

    def result_is(self, value: Any) -> Condition:
        """For `when=` and `unless=`: it has completed, and its result is this JSON value."""
        return Condition(self, (value,))

    def result_in(self, values: Iterable[Any]) -> Condition:
        """For `when=` and `unless=`: it has completed, and its result is one of these JSON values."""
        is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes)
        return Condition(self, tuple(values) if is_list else values)


class Workflow:
    """`on_error`: what a failed node means. FAIL: what does not depend on it still runs, then the workflow is FAILED.
    PAUSE: nothing new starts until `resume()` or `retry_failed()`. CONTINUE: the workflow completes all the same.

    `success`: the nodes that must complete for COMPLETED, whatever becomes of the others. `output`: the node, or nodes,
    whose results are that of the workflow; those that nobody waits for if it is left out. All may be set later.
    """

    def __init__(
        self,
        name: str,
        *,
        on_error: OnError | str = OnError.FAIL,
        success: Node | Sequence[Node] | None = None,
        output: Node | Sequence[Node] | None = None,
    ) -> None:
        problem = name_problem(name, "workflow name")
        if problem is not None:
            raise ValueError(problem)
        self.name = name
        self.on_error = on_error
        self.success = success
        self.output = output
        self.nodes: list[Node] = []
        self._taken: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<workflow {self.name}, {len(self.nodes)} nodes>"

    @property
    def on_error(self) -> OnError:
        """What a failed node means: FAIL, PAUSE or CONTINUE."""
        return self._on_error

    @on_error.setter
    def on_error(self, given: OnError | str) -> None:
        problem = one_of("on_error", str(given).upper(), map(str, OnError))
        if problem is not None:
            raise ValueError(problem)
        self._on_error = OnError(str(given).upper())

    def add(
        self,
        task: "Task[..., Any] | Sender[..., Any] | Workflow",
        /,
        *args: Any,
        after: Node | Iterable[Node] | None = (),
        join: Join = "all",
        min_success: int | None = None,
        allow_failed: bool = False,
        when: Condition | Iterable[Condition] | None = None,
        unless: Condition | Iterable[Condition] | None = None,
        **kwargs: Any,
    ) -> Node:
        """Add a call of a task, `task.options(...)`, or a whole workflow. Nodes among the arguments, also in lists and
        dicts, are their results; nodes of a nested workflow may use those of the workflows around it.

        `join`: it starts when `all` its inputs have completed, `any` one of them, or a `quorum` of `min_success`; lists
        among its arguments hold the results that are there then. `allow_failed`: it starts also when all have ended,
        and receives a `NodeFailure` for each that has no result.
        """
        return self._add(
            Node(
                self, task, args, kwargs, over=None, after=after, join=join, min_success=min_success,
                allow_failed=allow_failed, when=when, unless=unless,
            )
        )  # fmt: skip

    def map(
        self,
        task: "Task[..., Any] | Sender[..., Any]",
        /,
        *args: Any,
        over: Node,
        after: Node | Iterable[Node] | None = (),
        when: Condition | Iterable[Condition] | None = None,
        unless: Condition | Iterable[Condition] | None = None,
        **kwargs: Any,
    ) -> Node:
        """Run the task once for each element of the list that `over` results in: the element comes first, then these
        arguments. The result is the list of results, in order."""
        return self._add(
            Node(
                self, task, args, kwargs, over=over, after=after, join="all", min_success=None, allow_failed=False,
                when=when, unless=unless,
            )
        )  # fmt: skip

    def start(self, app: "Everbeat", id: str | None = None) -> "WorkflowHandle":
        """Store it and begin. WorkflowInvalid with everything that is wrong with it; then nothing is stored.

        With an `id`, the same workflow again is the one that was started before; another one is a WorkflowConflict.
        """
        from everbeat.workflow_handle import started
        from everbeat.workflow_plan import plan

        return started(app, plan(self, app, id=id))

    async def astart(self, app: "Everbeat", id: str | None = None) -> "WorkflowHandle":
        """`start`, awaited."""
        return await in_thread(self.start, app, id)

    def problems(self, app: "Everbeat") -> list[str]:
        """All that `start` would refuse it for."""
        from everbeat.workflow_plan import problems_of

        return problems_of(self, app)

    def text(self) -> str:
        """The graph, one line for each node."""
        from everbeat.report.graph import as_text

        return as_text(self.name, _drawn(self))

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        from everbeat.report.graph import as_mermaid

        return as_mermaid(_drawn(self))

    def _add(self, node: Node) -> Node:
        short = getattr(getattr(node.what, "task", node.what), "name", "node").rpartition(".")[2]
        count = self._taken[short] = self._taken.get(short, 0) + 1
        node.name = short if count == 1 else f"{short}-{count}"
        self.nodes.append(node)
        return node


def inputs_of(node: Node) -> list[Node]:
    """The nodes it waits for, each once: its arguments, what it runs over or is after, what its conditions ask."""
    found = [*nodes_in((node.args, node.kwargs)), *([node.over] if node.over is not None else []), *node.order]
    found += [condition.node for condition in (*node.when, *node.unless) if isinstance(condition, Condition)]
    if isinstance(node.what, Workflow):
        found += _inputs_from_outside(node.what, {node.what})
    return list(dict.fromkeys(one for one in found if isinstance(one, Node)))


def own_inputs(node: Node) -> list[Node]:
    """Those of its own workflow. It is started after the others anyway, as is all of its workflow."""
    return [one for one in inputs_of(node) if one.flow is node.flow]


def _inputs_from_outside(flow: Workflow, seen: set[Workflow], *, in_order: bool = True) -> list[Node]:
    """What the nodes of a nested workflow, and of those in it, want from the workflows around it; `in_order`: also
    those that they only come after."""
    found: list[Node] = []
    for node in flow.nodes:
        found += [*nodes_in((node.args, node.kwargs)), *(node.order if in_order else ()), *filter(None, [node.over])]
        if isinstance(node.what, Workflow) and node.what not in seen:
            found += _inputs_from_outside(node.what, seen | {node.what}, in_order=in_order)
    return [one for one in found if isinstance(one, Node) and one.flow is not flow]


def results_from_outside(flow: Workflow) -> list[Node]:
    """Those that the nodes of a nested workflow take from the workflows around it."""
    return _inputs_from_outside(flow, {flow}, in_order=False)


def joined_by(node: Node) -> list[Node]:
    """Without those that only its conditions ask."""
    asked = {condition.node for condition in (*node.when, *node.unless) if isinstance(condition, Condition)}
    plain = {*nodes_in((node.args, node.kwargs, node.order, node.over))}
    return [one for one in own_inputs(node) if one not in asked or one in plain]


def nodes_in(value: Any, *, alone: bool = False) -> list[Node]:
    """Those in an argument, in lists and dicts at any depth; `alone`: without elements of lists. What contains itself
    is looked at once."""
    found: list[Node] = []
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, Node):
            found.append(one)
        elif isinstance(one, list | tuple | dict) and id(one) not in seen:
            seen.add(id(one))
            parts = one.values() if isinstance(one, dict) else one
            is_list = alone and not isinstance(one, dict)
            waiting += reversed([part for part in parts if not (is_list and isinstance(part, Node))])
    return found


def listed(given: Any) -> list[Any]:
    """What may be given as several, as one or as nothing. Whether these are nodes is told with the other problems."""
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) else [given]


def _conditions(given: Any) -> tuple[Any, ...]:
    """A text is no list of letters, but a mistake: meant for a parameter of the task that is called `when`, perhaps."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)


def _drawn(flow: Workflow, around: Sequence[Workflow] = ()) -> Any:
    """What contains itself is a mistake, which `problems` tells: here it is shown once."""
    from everbeat.report.graph import Drawn

    def kind(node: Node) -> str:
        return "workflow" if isinstance(node.what, Workflow) else "map" if node.over is not None else "task"

    def inside(node: Node) -> Any:
        return _drawn(node.what, (*around, flow)) if isinstance(node.what, Workflow) else []

    return [
        Drawn(name=node.name, kind=kind(node), status=None, after=[one.name for one in inputs_of(node)],
              note="contains itself" if node.what in (*around, flow) else None,
              inside=[] if node.what in (*around, flow) else inside(node))
        for node in flow.nodes
    ]  # fmt: skip
