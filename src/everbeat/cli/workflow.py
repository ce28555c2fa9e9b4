"""`everbeat workflow`: how far workflows are, as a table or a graph; pause, resume, cancel, and retry what failed."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from everbeat.cli import out, which
from everbeat.cli.ends import FAILED
from everbeat.cli.grammar import Argument, Group, Option
from everbeat.cli.outage import outlast
from everbeat.cli.person import actor
from everbeat.errors import WorkflowNotFound
from everbeat.model.flow import (
    BY_ERROR,
    WORKFLOW_SOURCES,
    NodeInfo,
    NodeKind,
    NodeStatus,
    WorkflowChange,
    WorkflowInfo,
    WorkflowStatus,
)
from everbeat.report.graph import Drawn, as_mermaid
from everbeat.report.text import Column, ago, clean, counted, fields, plain, span, stamp, waiting_for
from everbeat.store.interface import Store

app = Group("Workflows: graphs of tasks.")

LOOK_SECONDS = 0.5
SHOWN = 200
"""So many nodes are listed for people, those that are not done first; --json has all."""

Ids = Annotated[list[str], Argument(metavar="ID", help="These workflows.")]

LIST = [Column("ID"), Column("NAME", wraps=True), Column("STATUS"), Column("NODES", right=True), Column("STARTED"),
        Column("WHY", wraps=True)]  # fmt: skip
NODES = [Column("NODE", wraps=True), Column("STATUS"), Column("TASK", wraps=True), Column("ATTEMPT", right=True),
         Column("TOOK", right=True), Column("WHY", wraps=True)]  # fmt: skip
WORDS = {
    WorkflowChange.PAUSE: "paused",
    WorkflowChange.RESUME: "resumed",
    WorkflowChange.CANCEL: "cancelled",
    WorkflowChange.RETRY: "retried",
}
FIRST = (NodeStatus.FAILED, NodeStatus.RUNNING, NodeStatus.ENQUEUED, NodeStatus.READY, NodeStatus.CANCELLED)


@app.command("list")
def list_(
    status: Annotated[list[WorkflowStatus] | None, Option("--status", help="Only these; may be repeated.")] = None,
    name: Annotated[str | None, Option("--name", help="Only workflows with this name.")] = None,
    limit: Annotated[int, Option(min=1, help="At most so many, newest first.")] = 50,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """List workflows, newest first.

    Those that are nested in others are shown with them.
    """
    with which.existing_store(db, app) as store:
        found = store.workflows(statuses=status or (), name=name, limit=limit)
        if as_json:
            out.data(found)
            return
        now = store.now()
    rows = [
        [
            one.id,
            one.name,
            one.status,
            f"{one.node_count - one.nodes_left}/{one.node_count}",
            ago(one.started_at, now),
            _why(one),
        ]
        for one in found
    ]
    out.rows(LIST, rows, empty="No workflows.")


@app.command()
def show(
    workflow_id: Annotated[str, Argument(metavar="ID", help="The workflow.")],
    graph: Annotated[bool, Option("--graph", help="Print the graph as a Mermaid flowchart.")] = False,
    watch: Annotated[bool, Option("--watch", help="Show it again when it changes, until it has ended.")] = False,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Show a workflow with its nodes.

    Their status, attempts, durations and errors. With --watch, --json prints one object per line.
    """
    with which.existing_store(db, app) as store:
        if not watch:
            _show(store, _found(store, workflow_id), graph=graph, as_json=as_json)
            return
        with suppress(KeyboardInterrupt):
            for info in _changes(store, workflow_id):
                if as_json:
                    out.data_line(outlast(partial(_facts, store, info, graph=graph)))
                else:
                    out.clear()
                    _show(store, info, graph=graph, as_json=False)


@app.command()
def pause(ids: Ids, db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Start no more nodes until it is resumed.

    In what is nested neither. What runs goes on.
    """
    _change(WorkflowChange.PAUSE, ids, db, app, as_json=as_json)


@app.command()
def resume(ids: Ids, db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Let a paused workflow go on. Nodes that failed stay failed: `workflow retry` runs them again."""
    _change(WorkflowChange.RESUME, ids, db, app, as_json=as_json)


@app.command()
def cancel(ids: Ids, db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """End a workflow.

    What has not begun never will, what runs is told to stop.
    """
    _change(WorkflowChange.CANCEL, ids, db, app, as_json=as_json)


@app.command()
def retry(ids: Ids, db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Run the failed nodes of a workflow again.

    With what was given up because of them; then it goes on.
    """
    _change(WorkflowChange.RETRY, ids, db, app, as_json=as_json)


def _change(change: WorkflowChange, ids: Sequence[str], db: str | None, app: str | None, *, as_json: bool) -> None:
    done: list[str] = []
    problems: list[str] = []
    with which.existing_store(db, app) as store:
        for workflow_id in dict.fromkeys(ids):
            if store.change_workflow(change, workflow_id, actor=actor()):
                done.append(workflow_id)
            else:
                problems.append(_problem(store, change, workflow_id))
    for problem in problems:
        out.complain(problem)
    if as_json:
        out.data({"count": len(done), WORDS[change]: done, "refused": problems})
    elif done:
        out.say(f"{counted(len(done), 'workflow')} {WORDS[change]}")
    if problems:
        raise SystemExit(FAILED)


def _problem(store: Store, change: WorkflowChange, workflow_id: str) -> str:
    info = store.workflow(workflow_id)
    if info is None:
        return str(WorkflowNotFound(workflow_id, where=store.location))
    if change is WorkflowChange.RESUME and info.parent_id is not None and info.status in WORKFLOW_SOURCES[change]:
        return (
            f"workflow {workflow_id} is inside of a workflow that is PAUSED, {info.parent_id}; it is resumed with that"
        )
    if info.status in WORKFLOW_SOURCES[change]:
        return f"workflow {workflow_id} is {info.status} and no node of it has failed that could run again"
    fitting = ", ".join(dict.fromkeys(WORKFLOW_SOURCES[change]))
    return f"workflow {workflow_id} is {info.status}; only {fitting} can be {WORDS[change]}"


# -- looking ----------------------------------------------------------------------------------------------------------


def _found(store: Store, workflow_id: str) -> WorkflowInfo:
    info = store.workflow(workflow_id)
    if info is None:
        raise WorkflowNotFound(workflow_id, where=store.location)
    return info


def _changes(store: Store, workflow_id: str) -> Iterator[WorkflowInfo]:
    """The workflow whenever something in it has changed, until it has ended."""
    version = seen = None
    while True:
        if version != (version := outlast(store.data_version)):
            info, nodes = outlast(lambda: (_found(store, workflow_id), list(_with_nested(store, workflow_id))))
            if seen != (seen := (info, nodes)):
                yield info
            if info.status.is_terminal:
                return
        time.sleep(LOOK_SECONDS)


def _show(store: Store, info: WorkflowInfo, *, graph: bool, as_json: bool) -> None:
    if as_json:
        out.data(_facts(store, info, graph=graph))
    elif graph:
        out.say(as_mermaid(_drawn(store, info.id)))
    else:
        _describe(info, list(_with_nested(store, info.id)))


def _facts(store: Store, info: WorkflowInfo, *, graph: bool) -> dict[str, Any]:
    facts: dict[str, Any] = plain(info)
    drawn = {"mermaid": as_mermaid(_drawn(store, info.id))} if graph else {}
    return facts | {"nodes": _nodes(store, info.id)} | drawn


def _nodes(store: Store, workflow_id: str, around: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Those of a workflow or a map are in the node that it is."""
    within = (*around, workflow_id)
    return [
        plain(node) | ({"nodes": _nodes(store, inside, within)} if (inside := _inside(node, within)) else {})
        for node in store.workflow_nodes(workflow_id)
    ]


def _inside(node: NodeInfo, around: Sequence[str]) -> str | None:
    """The workflow or the map that a node is, once that has begun. Who writes by hand can nest a workflow in itself: it
    is shown once."""
    return node.workflow_id if node.kind != NodeKind.TASK and node.workflow_id not in around else None


def _with_nested(store: Store, workflow_id: str, around: Sequence[str] = ()) -> Iterator[NodeInfo]:
    """Its nodes, each followed by those of the workflow or the map that it is, which are named after it."""
    within = (*around, workflow_id)
    for node in store.workflow_nodes(workflow_id):
        yield node
        if inside := _inside(node, within):
            for inner in _with_nested(store, inside, within):
                path = inner.name if node.kind == NodeKind.MAP else f"{node.name} / {inner.name}"
                yield replace(inner, name=path)


def _describe(info: WorkflowInfo, nodes: Sequence[NodeInfo]) -> None:
    counts = Counter(node.status for node in nodes)
    said: dict[str, object] = {
        "workflow": info.id,
        "name": info.name,
        "status": info.status,
        "nodes": ", ".join(f"{counts[status]} {status}" for status in NodeStatus if counts[status]),
        "on error": info.on_error,
        "started": stamp(info.started_at),
        "ended": stamp(info.finished_at),
    }
    if info.parent_id:
        said["nested in"] = info.parent_id
    if _why(info):
        said["why"] = _why(info)
    out.say(fields(said) + "\n")
    ordered = sorted(nodes, key=lambda node: node.status not in FIRST) if len(nodes) > SHOWN else nodes
    out.rows(NODES, [_row(node) for node in ordered[:SHOWN]], empty="No nodes.")
    if len(nodes) > SHOWN:
        out.say(f"... and {len(nodes) - SHOWN} more; --json has all")


def _row(node: NodeInfo) -> list[object]:
    task = node.workflow_id if node.kind == NodeKind.WORKFLOW else node.task_name
    why = waiting_for(node.waiting_for) if node.error_code is None else f"{node.error_code}: {node.error_message or ''}"
    waits = f"after {', '.join(node.after[:5])}" if node.status is NodeStatus.PENDING else None
    took = span(node.duration) if node.duration is not None else None
    return [node.name, node.status, task, node.attempt or None, took, why or waits]


def _why(info: WorkflowInfo) -> str | None:
    if info.stuck:
        return f"could not be mended: {info.stuck}"
    said = []
    if info.status is WorkflowStatus.PAUSED and info.paused_by and (info.paused_by != BY_ERROR or not info.error_code):
        said.append(f"paused by {info.paused_by}")
    if info.error_code is not None:
        node = f"{info.error_node}: " if info.error_node else ""
        said.append(f"{node}{info.error_code}: {info.error_message or ''}")
    elif info.waiting_for is not None:
        said.append(f"waits for {info.waiting_for}")
    return clean("; ".join(said)) if said else None


def _drawn(store: Store, workflow_id: str, around: Sequence[str] = ()) -> list[Drawn]:
    within = (*around, workflow_id)
    return [
        Drawn(
            name=node.name, kind=node.kind, status=node.status, after=node.after,
            inside=_drawn(store, inside, within)
            if node.kind == NodeKind.WORKFLOW and (inside := _inside(node, within)) else [],
        )
        for node in store.workflow_nodes(workflow_id)
    ]  # fmt: skip
