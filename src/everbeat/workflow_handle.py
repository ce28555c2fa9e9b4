"""The handle of a workflow that was started: how far it is, what it resulted in, and what a person may ask of it.

As with tasks, waiting goes on through outages of the store, and giving up never affects the workflow.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from everbeat.aside import in_thread, pause
from everbeat.config.checks import Seconds
from everbeat.decide.flow import counts_as_failed
from everbeat.decide.splice import HOLE, elements
from everbeat.errors import (
    ResultTimeout,
    StoreUnavailable,
    WorkflowCancelled,
    WorkflowConflict,
    WorkflowFailed,
    WorkflowNotFound,
)
from everbeat.handle import SENDER, Patience
from everbeat.model.flow import (
    BY_ERROR,
    RESULT_NOT_AVAILABLE,
    NewWorkflow,
    NodeFailure,
    NodeInfo,
    NodeKind,
    NodeResult,
    NodeStatus,
    WorkflowChange,
    WorkflowInfo,
    WorkflowStatus,
)

if TYPE_CHECKING:
    from everbeat.app import Everbeat


def started(app: "Everbeat", flows: list[NewWorkflow]) -> "WorkflowHandle":
    """Store it and begin."""
    root = flows[0].id
    try:
        stored = app.store.start_workflow(flows)
    except StoreUnavailable as outage:
        fate = "may have been stored" if outage.maybe_stored else "was not stored"
        said = f"{str(outage).removesuffix('.')}. Workflow {root} {fate}; starting it again with id={root!r} is safe."
        raise type(outage)(said, task_ids=[root], maybe_stored=outage.maybe_stored) from outage
    if stored.conflict:
        raise WorkflowConflict(root)
    return WorkflowHandle(app, root, created=stored.created)


class WorkflowHandle:
    """What the starter keeps of a workflow: its id, and ways to look at it, pause, resume, cancel or retry it, or wait
    for its result."""

    __slots__ = ("_app", "created", "id")

    def __init__(self, app: "Everbeat", workflow_id: str, *, created: bool) -> None:
        self._app = app
        self.id = workflow_id
        self.created = created
        """This call stored the workflow. False: it was there before, or the handle was made from an id."""

    def __repr__(self) -> str:
        return f"<handle of workflow {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowHandle) and (self.id, self._app) == (other.id, other._app)

    def __hash__(self) -> int:
        return hash(self.id)

    # -- looking ------------------------------------------------------------------------------------------------------

    def status(self) -> WorkflowStatus:
        """Where it stands now. WorkflowNotFound if nobody knows the id."""
        return self.info().status

    def info(self) -> WorkflowInfo:
        """Everything about the workflow itself: status, times, what it waits for, which node went wrong."""
        store = self._app.store
        info = store.workflow(self.id)
        if info is None:
            raise WorkflowNotFound(self.id, where=store.location)
        return info

    def nodes(self) -> list[NodeInfo]:
        """Its nodes in the order in which they were added: status, times, attempts, errors."""
        self.info()
        return self._app.store.workflow_nodes(self.id)

    def results(self) -> dict[str, Any]:
        """What the nodes that have completed resulted in, by their names."""
        self.info()
        found = self._app.store.workflow_results(self.id, outputs_only=False)
        return {one.name: _read(self._app, one) for one in found if one.status is NodeStatus.COMPLETED}

    def result(self, timeout: Seconds | None = None) -> Any:
        """What the workflow resulted in: the result of its output, or of the node that nobody waits for; a dict by
        names where there are several. None waits without limit, 0 does not wait. A paused workflow is waited for.

        Raises WorkflowFailed (a TaskFailed) with the node that caused it, WorkflowCancelled, ResultTimeout or
        WorkflowNotFound.
        """
        patience = Patience(self.id, timeout)
        while True:
            try:
                ended = self._app.store.wait_workflow(self.id, patience.left())
                if ended is None:
                    raise self._too_late(patience)
                return self._outcome(ended)
            except StoreUnavailable as outage:
                time.sleep(patience.pause(outage))

    async def aresult(self, timeout: Seconds | None = None) -> Any:
        """`result`, without holding a thread while it waits."""
        patience = Patience(self.id, timeout)
        while True:
            try:
                store = await in_thread(self._app.open)
                ended = await store.await_workflow(self.id, patience.left())
                if ended is None:
                    raise await in_thread(self._too_late, patience)
                return await in_thread(self._outcome, ended)
            except StoreUnavailable as outage:
                await pause(patience.pause(outage))

    # -- asking for something -----------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Start nothing more, here and in what is nested, until `resume()`. What runs goes on. False: it does not
        run."""
        return self._change(WorkflowChange.PAUSE)

    def resume(self) -> bool:
        """Go on. Nodes that failed stay failed. False: it is not paused."""
        return self._change(WorkflowChange.RESUME)

    def cancel(self) -> bool:
        """End it, and what is nested in it: what has not begun never will, what runs is asked to stop. False: it had
        ended before."""
        return self._change(WorkflowChange.CANCEL)

    def retry_failed(self) -> bool:
        """Run the failed nodes again, and go on. False: none failed, or it was cancelled."""
        return self._change(WorkflowChange.RETRY)

    async def astatus(self) -> WorkflowStatus:
        """`status`, awaited."""
        return await in_thread(self.status)

    async def ainfo(self) -> WorkflowInfo:
        """`info`, awaited."""
        return await in_thread(self.info)

    async def anodes(self) -> list[NodeInfo]:
        """`nodes`, awaited."""
        return await in_thread(self.nodes)

    async def aresults(self) -> dict[str, Any]:
        """`results`, awaited."""
        return await in_thread(self.results)

    async def apause(self) -> bool:
        """`pause`, awaited."""
        return await in_thread(self.pause)

    async def aresume(self) -> bool:
        """`resume`, awaited."""
        return await in_thread(self.resume)

    async def acancel(self) -> bool:
        """`cancel`, awaited."""
        return await in_thread(self.cancel)

    async def aretry_failed(self) -> bool:
        """`retry_failed`, awaited."""
        return await in_thread(self.retry_failed)

    def _change(self, change: WorkflowChange) -> bool:
        changed = self._app.store.change_workflow(change, self.id, actor=SENDER)
        if not changed:
            self.info()  # an id that nobody knows is an error, not a workflow that the order does not fit
        return changed

    def _too_late(self, patience: Patience) -> ResultTimeout:
        info, late = self.info(), patience.timeout()
        said = f"no result of workflow {self.id} after {late.waited_for:g}s: it is {info.status}"
        if info.status is WorkflowStatus.PAUSED:
            is_by_error = info.paused_by == BY_ERROR and info.error_node
            why = f" because node {info.error_node} failed with {info.error_code}" if is_by_error else ""
            said += f"{why}, and goes on after resume() or retry_failed()"
        elif info.waiting_for is not None:
            said += f" and waits for {info.waiting_for}, and goes on after resume() or retry_failed()"
        late.args = (f"{said}. Only the waiting stopped, the workflow is not affected.",)
        return late

    def _outcome(self, ended: WorkflowInfo) -> Any:
        if ended.status is WorkflowStatus.CANCELLED:
            raise WorkflowCancelled(self.id)
        if ended.status is WorkflowStatus.FAILED:
            raise self._failure(ended)
        outputs = self._app.store.workflow_results(self.id, outputs_only=True)
        if len(outputs) != 1:
            return {one.name: _read(self._app, one) for one in outputs}
        (only,) = outputs
        if _is_failure(only):
            raise _failed_at(self.id, self._with_culprit(self._cause_of(only)) if _is_given_up(only) else only)
        return _read(self._app, only)

    def _failure(self, ended: WorkflowInfo) -> WorkflowFailed:
        nodes = self._app.store.workflow_ends(self.id)
        causes = [one for one in nodes if one.name == ended.error_node]
        if causes and causes[0].status is NodeStatus.SKIPPED:  # it has not failed; that it was skipped is the failure
            return _failed_at(self.id, replace(causes[0], error_message=ended.error_message))
        if causes:
            return _failed_at(self.id, self._with_culprit(causes[0]))
        missing = [f"{one.name} is {one.status}" for one in nodes if one.status is not NodeStatus.COMPLETED]
        said = f"nodes that must complete did not: {', '.join(missing[:10])}"
        return WorkflowFailed(
            workflow_id=self.id, node=ended.error_node, task_id=None, message=ended.error_message or said,
            error_code=ended.error_code or "SUCCESS_NOT_MET",
        )  # fmt: skip

    def _cause_of(self, given_up: NodeResult) -> NodeResult:
        """What failed, of one that was skipped because of a failure."""
        store = self._app.store
        known = {one.name: one for one in store.workflow_ends(self.id)}
        after = {node.name: node.after for node in store.workflow_nodes(self.id)}
        seen, wave = set[str](), [given_up.name]
        while wave:
            before = dict.fromkeys(one for name in wave for one in after[name] if one not in seen)
            wave = [one for one in before if counts_as_failed(known[one].status, known[one].error_code)]
            for one in wave:
                if not _is_given_up(known[one]):
                    return known[one]
            seen |= before.keys()
        return given_up

    def _with_culprit(self, cause: NodeResult) -> NodeResult:
        """What is known of the task inside a workflow or a map, by which that has failed."""
        inner, passed = cause, set[str]()
        while inner.workflow_id is not None and inner.workflow_id not in passed:
            passed.add(inner.workflow_id)
            around = self._app.store.workflow(inner.workflow_id)
            nodes = self._app.store.workflow_ends(inner.workflow_id)
            inner = next((one for one in nodes if around is not None and one.name == around.error_node), cause)
        if inner.task_id is None:
            return cause
        return replace(
            cause, task_id=inner.task_id, exception_type=inner.exception_type, traceback=inner.traceback,
            attempt=inner.attempt,
        )  # fmt: skip


def _failed_at(workflow_id: str, node: NodeResult) -> WorkflowFailed:
    return WorkflowFailed(
        workflow_id=workflow_id, node=node.name, task_id=node.task_id, error_code=node.error_code or "UNKNOWN",
        message=node.error_message or "the store has no details", exception_type=node.exception_type,
        traceback=node.traceback, attempt=node.attempt,
    )  # fmt: skip


def _is_given_up(node: NodeResult) -> bool:
    return node.status is NodeStatus.SKIPPED and counts_as_failed(node.status, node.error_code)


def _is_failure(node: NodeResult) -> bool:
    """Also one that was skipped because of a failure, and a nested workflow that has completed without its output."""
    return counts_as_failed(node.status, node.error_code) or (
        node.status is NodeStatus.COMPLETED and node.result is None and node.error_code == RESULT_NOT_AVAILABLE
    )


def _read(app: "Everbeat", node: NodeResult) -> Any:
    """Its result; a failure as a value; None for what was not needed."""
    if _is_failure(node):
        status = NodeStatus.FAILED if node.status is NodeStatus.COMPLETED else node.status
        return NodeFailure(
            node=node.name, status=status, error_code=node.error_code or "UNKNOWN",
            message=node.error_message or "", task_id=node.task_id,
        )  # fmt: skip
    if node.status is NodeStatus.COMPLETED:
        plain = {"map" if node.kind is NodeKind.MAP else "task": node.task_name}
        return _value(app, json.loads(node.shape) if node.shape else plain, node.result)
    return None


def _value(app: "Everbeat", shape: Mapping[str, Any], raw: bytes | None) -> Any:
    if raw is None:
        return None
    if "workflow" in shape:
        inside = shape["workflow"]
        if len(inside) == 1:
            return None if raw == HOLE else _value(app, next(iter(inside.values())), raw)
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return {
            name: None if bytes(members[name]) == HOLE else _value(app, one, bytes(members[name]))
            for name, one in inside.items()
        }
    decode = app.decoder_for(shape.get("task") or shape["map"])
    return [decode(one) for one in elements(raw)] if "map" in shape else decode(raw)
