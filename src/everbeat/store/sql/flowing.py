"""The part of a SQL store that knows workflows."""

from collections.abc import Collection, Sequence

from everbeat.errors import WorkflowNotFound
from everbeat.model.flow import NewWorkflow, NodeInfo, NodeResult, WorkflowChange, WorkflowInfo, WorkflowStatus
from everbeat.model.task import Enqueued
from everbeat.store.messages import Torn
from everbeat.store.sql.waiting import Waiting
from everbeat.store.transaction import Locked, RowRefused
from everbeat.store.verbs import flow_advance, flow_look, flow_mend, flow_orders, flow_over, flow_start, turns

MENDED_AT_ONCE = 100


class Flowing(Waiting):
    def start_workflow(self, flows: Sequence[NewWorkflow]) -> Enqueued:
        with self.database.write("enqueue") as tx:
            started = flow_start.start(tx, flows)
            if started.created:
                flow_advance.advance(tx, {flows[0].id: []})
                turns.hand_over(tx)
        self._tell(tx)
        return started

    def change_workflow(self, change: WorkflowChange, workflow_id: str, *, actor: str) -> bool:
        with self.database.write("change_workflow") as tx:
            changed, owners = flow_orders.carry_out(tx, change, workflow_id, actor=actor)
            turns.hand_over(tx)
        self._tell(tx)
        if owners:
            self.bells.ring_owners(owners)
        return changed

    def workflow(self, workflow_id: str) -> WorkflowInfo | None:
        with self.database.read() as tx:
            info = flow_look.get(tx, workflow_id)
            return None if info is None else flow_look.with_waits(tx, [info])[0]

    def workflows(self, *, statuses: Collection[WorkflowStatus] = (), name: str | None = None,
                  limit: int = 50) -> list[WorkflowInfo]:  # fmt: skip
        with self.database.read() as tx:
            return flow_look.workflows(tx, statuses=statuses, name=name, limit=limit)

    def workflow_nodes(self, workflow_id: str) -> list[NodeInfo]:
        with self.database.read(steady=True) as tx:
            return flow_look.nodes(tx, workflow_id)

    def workflow_results(self, workflow_id: str, *, outputs_only: bool) -> list[NodeResult]:
        with self.database.read(steady=True) as tx:
            return flow_look.results(tx, workflow_id, outputs_only=outputs_only)

    def workflow_ends(self, workflow_id: str) -> list[NodeResult]:
        with self.database.read(steady=True) as tx:
            return flow_look.ends(tx, workflow_id)

    def over_around(self, task_id: str) -> WorkflowInfo | None:
        with self.database.read() as tx:
            return flow_over.around(tx, task_id)

    def torn_workflows(self, *, after: str = "", all_of_them: bool = False) -> Torn:
        roots, last = self._unended(after, all_of_them=all_of_them)
        torn: dict[str, str] = {}
        unreadable: dict[str, str] = {}
        for root in roots:
            try:
                if said := self._wrong_with(root):
                    torn[root] = said
            except ValueError as error:
                unreadable[root] = str(error)
        return Torn(torn, unreadable, last)

    def mend_workflows(self, *, after: str = "", all_of_them: bool = False) -> Torn:
        roots, last = self._unended(after, all_of_them=all_of_them)
        mended: dict[str, str] = {}
        stuck: dict[str, str] = {}
        for root in roots:
            try:
                if said := self._mend(root, hurries=not all_of_them):
                    mended[root] = said
            except Locked as error:  # looked at again the next time
                stuck[root] = str(error)
            except (RowRefused, ValueError) as error:
                with self.database.write() as tx:
                    flow_mend.set_aside(tx, root, str(error))
                stuck[root] = str(error)
        return Torn(mended, stuck, last)

    def _unended(self, after: str, *, all_of_them: bool) -> tuple[list[str], str]:
        with self.database.read() as tx:
            roots = flow_mend.candidates(tx, after=after, limit=MENDED_AT_ONCE, all_of_them=all_of_them)
        return roots, roots[-1] if len(roots) == MENDED_AT_ONCE else ""

    def _wrong_with(self, root: str) -> str | None:
        with self.database.read(steady=True) as tx:
            return flow_mend.wrong_with(tx, root)

    def _mend(self, root: str, *, hurries: bool) -> str | None:
        """One workflow, and all that is nested in it. Who asks for all of them has time to wait for locks."""
        if not self._wrong_with(root):
            return None
        with self.database.write("mend", hurries=hurries) as tx, tx.part():
            mended = flow_mend.mend(tx, root)
            turns.hand_over(tx)
        self._tell(tx)
        return mended

    def wait_workflow(self, workflow_id: str, timeout: float | None) -> WorkflowInfo | None:
        return self._wait(workflow_id, self._ended_workflow, timeout)

    async def await_workflow(self, workflow_id: str, timeout: float | None) -> WorkflowInfo | None:
        return await self._await(workflow_id, self._ended_workflow, timeout)

    def _ended_workflow(self, workflow_id: str) -> WorkflowInfo | None:
        with self.database.read() as tx:
            info = flow_look.get(tx, workflow_id)
        if info is None:
            raise WorkflowNotFound(workflow_id)
        return info if info.status.is_terminal else None
