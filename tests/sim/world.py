"""The world of a simulation: virtual time, who moves when, and what really happened.

Everything that moves is an entry of one heap, in virtual time. A call of a worker that is held up runs the rest of the
world inside itself until it goes on, so every transaction can fall between any two of another's.
"""

import heapq
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.sim.deleted import Deletions
from tests.sim.flows import FlowSpec, TaskSpec, inputs_of
from tests.sim.graphs import takers
from tests.sim.line import Fault, Killed, Line
from tests.sim.plan import Plan, Step
from tests.sim.processes import Run
from tests.sim.stores import Ground
from tests.sim.worker import Worker
from tests.words import SECOND, VirtualClock, a_task

from everbeat.errors import StoreUnavailable
from everbeat.model.flow import WorkflowChange
from everbeat.model.order import Order
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.transaction import Row, Transaction

NODES = """
SELECT workflow_id, node, status FROM everbeat_workflow_tasks
 WHERE workflow_id IN (SELECT id FROM everbeat_workflows WHERE root_id = ?) ORDER BY workflow_id, node"""
QUIET_SECONDS = 90.0
DEEPEST = 5
AGAIN_US = 20_000
RESTART_SECONDS = 0.3
UNFINISHED = (
    "SELECT 1 FROM everbeat_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') LIMIT 1",
    "SELECT 1 FROM everbeat_workflows WHERE parent_id IS NULL AND status IN ('PENDING', 'RUNNING', 'PAUSED') LIMIT 1",
)
PAUSED = """
SELECT root_id FROM everbeat_workflows
 WHERE status = 'PAUSED' GROUP BY root_id HAVING min(paused_by) = 'error' AND max(paused_by) = 'error'"""
LIVE_TASKS = """
SELECT t.id, w.root_id, CASE WHEN t.status = 'PENDING' AND t.held = 1
                              AND (t.due_at IS NOT NULL OR t.waiting_for LIKE 'workflow:%') THEN 1 ELSE 0 END
  FROM everbeat_tasks t LEFT JOIN everbeat_workflows w ON w.id = t.workflow_id
 WHERE t.status IN ('PENDING', 'CLAIMED', 'RUNNING')"""
LIVE_ROOTS = "SELECT id FROM everbeat_workflows WHERE parent_id IS NULL AND status IN ('PENDING', 'RUNNING', 'PAUSED')"
UNSERVED = """
SELECT DISTINCT exclusive_key FROM everbeat_tasks t
 WHERE status = 'PENDING' AND exclusive_key IS NOT NULL AND waiting_for IS NOT NULL AND due_at IS NULL AND held = 0
   AND NOT EXISTS (SELECT 1 FROM everbeat_tasks h WHERE h.exclusive_key = t.exclusive_key AND h.waiting_for IS NULL
                      AND h.due_at IS NULL AND h.status IN ('PENDING', 'CLAIMED', 'RUNNING'))"""


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(order=True, slots=True)
class Entry:
    at: int
    number: int
    do: Callable[[], None] = field(compare=False)
    worker: Worker | None = field(compare=False, default=None)
    loop: str = field(compare=False, default="")
    turn: int = field(compare=False, default=0)


class Person:
    """Whoever sends tasks and gives orders. It has a line to the store like a worker's."""

    id = "people"
    is_gone = False

    def __init__(self) -> None:
        self.busy: dict[str, int] = {}


class World:
    def __init__(self, plan: Plan, ground: Ground, directory: Path, *, is_told: bool = False) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self.ask = ground.ask
        self._ground = ground
        self._directory = directory
        self._commits = 0
        ground.clear()
        self.trace: list[str] = []
        self.is_told = is_told
        self.specs: dict[str, TaskSpec] = {}
        """Tasks that are in the store, as far as their senders know."""
        self.flows: set[str] = set()
        """Workflows that are in the store, as far as their senders know."""
        self._tasks = plan.tasks
        self._roots = {task.id: flow.id for flow in plan.flows.values() for task in flow.tasks}
        self._takers = {task_id: taking for flow in plan.flows.values() if flow.is_rich
                        for task_id, taking in takers(flow).items()}  # fmt: skip
        self._tended: dict[str, int] = {}
        """Workflows that somebody looks after, and how often they still do something when one is paused."""
        self._inputs = {task_id: inputs for flow in plan.flows.values() for task_id, inputs in inputs_of(flow)}
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.orders: dict[str, list[str]] = defaultdict(list)
        """What people have asked for, by task."""
        self.workers: list[Worker] = []
        self.broken: list[str] = []
        self._began = self.clock.mono_us()
        self._entries: list[Entry] = []
        self._numbers = itertools.count()
        self._turns: dict[tuple[str, str], int] = defaultdict(int)
        self._who: list[tuple[Worker | Person, str]] = []
        self._down_until = 0
        self._blocked_until = 0
        """Until then it can be read, but not written."""
        self._locked: dict[str, tuple[int, list[Row]]] = {}
        """Workflows that somebody has locked: until when, and their nodes, which nobody changes meanwhile."""
        self._is_calm = False
        self._logged = 0
        self._has_keys = any(task.exclusive_key for task in self._tasks.values())
        self._checked = 0
        self._at: dict[int, Worker | None] = dict.fromkeys(range(plan.places))
        self._for_the_next: dict[int, list[Fault]] = defaultdict(list)
        """Faults that strike whoever starts next in a place."""
        self._person = Person()
        self._deletions = Deletions(self.ask, keeps=plan.keeps, keeps_workers=plan.keeps_workers)
        self.store, self._line = self.open_store(self._person)

    # -- all of it --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for place in self._at:
            self.after(0.02 * place, partial(self._start, place))
        for step in self.plan.steps:
            self.after(step.at, partial(self._take, step))
        last = max((step.at for step in self.plan.steps), default=0.0)
        self._run_until(self._began + round(last * SECOND) + 1)
        while self.clock.mono_us() < self._began + round(self.plan.lasts * SECOND) and not self._is_over():
            self._run_until(self.clock.mono_us() + SECOND)
        self._calm_down()
        in_a_row = sum(task.seconds for task in self._tasks.values())  # they may share a key
        give_up_at = self.clock.mono_us() + round((QUIET_SECONDS + in_a_row) * SECOND)
        while self.clock.mono_us() < give_up_at and not self._is_over():
            self._run_until(self.clock.mono_us() + SECOND)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.store.close()

    def say(self, who: str, what: str) -> None:
        if self.is_told:
            self.trace.append(f"{(self.clock.mono_us() - self._began) / 1e6:9.4f}  {who:7} {what}")

    def _calm_down(self) -> None:
        """No more faults. Whoever stands still goes on in a moment, and every place has a worker."""
        self._is_calm = True
        self._down_until = self._blocked_until = 0
        self._locked.clear()
        self.say("", "--- no more faults ---")
        for worker in self.workers:
            worker.line.faults.clear()
            worker.stopped_until = 0
        self._line.faults.clear()
        for place, worker in self._at.items():
            if worker is None or worker.is_gone:
                self._start(place)

    def _is_over(self) -> bool:
        return self._is_all_ended() and not self._has_unaware()

    def _is_all_ended(self) -> bool:
        if not any(self.ask(question) for question in UNFINISHED):
            return True
        paused = self.left_paused()
        if not paused:
            return False
        held = self.held()
        return all(task_id in held for task_id, _, _ in self.ask(LIVE_TASKS)) and all(
            root in paused for (root,) in self.ask(LIVE_ROOTS)
        )

    def left_paused(self) -> set[str]:
        """Workflows in which something waits because of an error, and nobody does anything about it any more."""
        return {root for (root,) in self.ask(PAUSED) if not self._tended.get(root)}

    def held(self) -> set[str]:
        """Tasks that wait in them, and say so."""
        paused = self.left_paused()
        return {task_id for task_id, root, is_held in self.ask(LIVE_TASKS) if is_held and root in paused}

    def orders_of(self, task_id: str) -> list[str]:
        """What people have asked for, of a task or of what has failed in all of its workflow."""
        of_all = [order for order in self.orders[self._roots.get(task_id, "")] if order == "retry"]
        return [*self.orders[task_id], *of_all]

    def _has_unaware(self) -> bool:
        """Somebody was declared dead and goes on, stands still, has something to tell or has left it behind, or runs
        what is not to run."""
        if any(worker.is_busy(self.clock.mono_us()) or worker.has_left_outcomes for worker in self.workers):
            return True
        dead = {row[0] for row in self.ask("SELECT id FROM sim_workers WHERE status = 'dead'")}
        runs = any(run.ended is None for runs in self.runs.values() for run in runs)
        return runs or any(worker.id in dead and not worker.is_gone for worker in self.workers)

    # -- time -------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self._push(Entry(self.clock.mono_us() + round(seconds * SECOND), next(self._numbers), do))

    def soon(self, worker: Worker, loop: str, seconds: float) -> None:
        """An earlier plan for this loop is forgotten."""
        turn = self._turns[worker.id, loop] = self._turns[worker.id, loop] + 1
        at = self.clock.mono_us() + round((seconds + worker.random.choice((0.0, 0.0, 0.0002, 0.003))) * SECOND) + 1
        self._push(Entry(at, next(self._numbers), partial(self._turn, worker, loop), worker, loop, turn))

    def _push(self, entry: Entry) -> None:
        heapq.heappush(self._entries, entry)

    def _run_until(self, until: int) -> None:
        while self._entries and self._entries[0].at <= until:
            entry = heapq.heappop(self._entries)
            worker = entry.worker
            if worker is not None and (worker.is_gone or entry.turn != self._turns[worker.id, entry.loop]):
                continue
            self._advance(entry.at)
            if worker is not None and worker.is_held(entry.loop, entry.at):
                entry.at = max(worker.stopped_until, entry.at + AGAIN_US)
                self._push(entry)
                continue
            entry.do()
        self._advance(until)

    def _advance(self, at: int) -> None:
        if at > self.clock.mono:
            self.clock.advance((at - self.clock.mono) / SECOND)

    def pass_time(self, worker: Worker | Person, loop: str, seconds: float) -> bool:
        """False: no more can happen inside of what happens already."""
        if len(self._who) > DEEPEST:
            return False
        began = self.clock.mono_us()
        until = began + round(seconds * SECOND)
        was_busy = worker.busy.get(loop)
        worker.busy[loop] = until
        try:
            self._run_until(until)
        finally:
            if was_busy is None:
                del worker.busy[loop]
            else:
                worker.busy[loop] = was_busy
        if isinstance(worker, Worker) and self.clock.mono_us() - began > SECOND // 2:
            worker.is_hindered = True  # whatever happened inside took its time
        return True

    def _stop(self, worker: Worker, seconds: float) -> None:
        worker.is_hindered = True
        worker.stopped_until = max(worker.stopped_until, self.clock.mono_us() + round(seconds * SECOND))

    # -- workers ----------------------------------------------------------------------------------------------------

    def open_store(self, who: Worker | Person) -> tuple[Store, Line]:
        store, database = self._ground.open(self._directory, self.clock, lambda: self._commits - line.commits)
        line = Line(
            database, loop=lambda: self._who[-1][1].partition("/")[0] if self._who else "",
            is_down=self._is_down, strike=partial(self._strike, who), commit=self._count_commit,
            meets_lock=self._meets_lock,
        )  # fmt: skip
        return store, line

    def _is_down(self, writes: bool) -> bool:
        return self.clock.mono_us() < max(self._down_until, self._blocked_until if writes else 0)

    def _meets_lock(self, tx: Transaction) -> bool:
        now = self.clock.mono_us()
        return any(now < until and tx.all(NODES, (root,)) != nodes for root, (until, nodes) in self._locked.items())

    def _lock_flow(self, root: str, seconds: float) -> None:
        """A workflow that is not there can not be locked."""
        nodes = [tuple(row) for row in self.ask(NODES, (root,))]
        if nodes:
            self._locked[root] = self.clock.mono_us() + round(seconds * SECOND), nodes

    def _count_commit(self) -> None:
        self._commits += 1
        if self.plan.keeps and self._who and self._who[-1][1] == "janitor":
            self.broken += self._deletions.wrong(self.clock.wall_us())

    def _start(self, place: int, *, is_first: bool = True) -> None:
        held = self._at[place]
        if held is not None and not held.is_gone:
            return
        skew = self.plan.skews[place % len(self.plan.skews)] if self._ground.has_own_clock else 0.0
        worker = Worker(self, place, len(self.workers) + 1, self.plan.seed, processes=self.plan.processes,
                        async_slots=self.plan.async_slots, is_first=is_first, has_proof=self.plan.has_proof,
                        skew=skew, keeps=self.plan.keeps, keeps_workers=self.plan.keeps_workers)  # fmt: skip
        self.workers.append(worker)
        self._at[place] = worker
        worker.line.faults += self._for_the_next.pop(place, []) if not self._is_calm else []
        self.say(worker.id, f"starts in place {place}")
        self.soon(worker, "startup", 0.0)

    def _turn(self, worker: Worker, loop: str) -> None:
        self._who.append((worker, loop))
        wait: float | None = 0.25
        try:
            wait = worker.turn(loop)
        except StoreUnavailable as error:
            self.say(worker.id, f"{loop}: {error}")
        except Killed:
            self._kill(worker)
        finally:
            self._who.pop()
            self._note_changes(worker, loop)
        self._check_turns(loop)
        if worker.is_gone:
            self._follow(worker)
        elif wait is not None:
            self.soon(worker, loop, wait)

    def _follow(self, worker: Worker) -> None:
        """Whoever ends is followed by another."""
        if self._at[worker.place] is worker:
            self._at[worker.place] = None
            self.say(worker.id, f"is gone ({worker.end})")
            is_first = worker.end != "fenced"
            self.after(RESTART_SECONDS if is_first else 0.0, partial(self._start, worker.place, is_first=is_first))

    def _kill(self, worker: Worker, restart: float = RESTART_SECONDS) -> None:
        if worker.is_gone:
            return
        worker.die()
        self._at[worker.place] = None
        self.say(worker.id, "killed, with all its processes")
        self.after(restart, partial(self._start, worker.place))

    def _strike(self, who: Worker | Person, fault: Fault) -> None:
        loop = self._who[-1][1] if self._who else ""
        self.say(who.id, f"FAULT in a call of its {loop} ({fault.where}): {fault.kind} {fault.seconds or ''}")
        match fault.kind:
            case "before":
                raise StoreUnavailable("broken before the call")
            case "after":
                raise StoreUnavailable("broken after the commit", maybe_stored=True)
            case "crash" | "crash_after" if isinstance(who, Worker):
                self._kill(who)
                raise Killed
            case "stop" | "stop_after" if isinstance(who, Worker):
                self._stop(who, fault.seconds)
            case _ if isinstance(who, Worker):
                who.is_hindered |= fault.seconds > 0.5
                self.pass_time(who, loop, fault.seconds)
        while isinstance(who, Worker) and not who.is_gone and self.clock.mono_us() < who.stopped_until:
            left = (who.stopped_until - self.clock.mono_us()) / SECOND
            if not self.pass_time(who, loop, left):
                break
        if who.is_gone:
            raise Killed
        if fault.then is not None and isinstance(who, Worker) and not self._is_calm:
            who.line.faults.append(fault.then)
        self.say(who.id, f"its {loop} goes on")

    # -- what happens -----------------------------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        if self._is_calm:
            return
        self.say("", f"STEP {str(step)[8:]}")
        match step.kind, step.facts:
            case "send", (spec,):
                self._send(spec)
            case "start", (flow,):
                self._start_flow(flow)
            case "pause", (flow_id, seconds):
                self._change_flow(WorkflowChange.PAUSE, flow_id)
                self.after(seconds, partial(self._change_flow, WorkflowChange.RESUME, flow_id))
            case "tend", (flow_id, changes, seconds):
                self._tend(flow_id, changes, seconds)
            case "retry_flow", (flow_id, _):
                self._change_flow(WorkflowChange.RETRY, flow_id)
            case "cancel_flow", (flow_id, _):
                self._change_flow(WorkflowChange.CANCEL, flow_id)
            case "lock_flow", (flow_id, seconds):
                self._lock_flow(flow_id, seconds)
            case "fault", (place, *facts):
                self._arm(place % self.plan.places, Fault(*facts))
            case "kill_child", (place, number):
                self._kill_child(self._at[place % self.plan.places], number)
            case "kill_worker", (place, seconds):
                worker = self._at[place % self.plan.places]
                if worker is not None:
                    self._kill(worker, RESTART_SECONDS + seconds)
            case "stop_worker", (place, seconds):
                worker = self._at[place % self.plan.places]
                if worker is not None:
                    self._stop(worker, seconds)
            case "stutter", (place, first, second):
                again = Fault("", "stop", second)
                self._arm(place % self.plan.places, Fault("beat", "stop_after", first, then=again))
            case "late_verdict", (place, stopped, stalled):
                for judge in self._at:
                    self._arm(judge, Fault("declare_dead", "stall", stalled))
                self._take(Step(step.at, "stop_worker", (place, stopped)))
            case "cut_off", (place, seconds):
                self._down_until = self.clock.mono_us() + round(seconds * SECOND)
                self.after(seconds - 0.1, partial(self._take, Step(step.at, "kill_worker", (place, 0.0))))
            case "cancel_and_kill", (place, task_id):
                self._order("cancel", task_id)
                self._take(Step(step.at, "kill_worker", (place, 0.0)))
            case "blocked", (seconds,):
                self._blocked_until = self.clock.mono_us() + round(seconds * SECOND)
            case "outage", (seconds,):
                self._down_until = self.clock.mono_us() + round(seconds * SECOND)
            case "set_clock", (seconds,):
                self.clock.wall += round(seconds * SECOND)
            case "drain", (place, seconds):
                worker = self._at[place % self.plan.places]
                if worker is not None and not worker.is_stopping and worker.dispatcher.turns:
                    worker.dispatcher.drain(round(seconds * SECOND))
                    self.soon(worker, "dispatcher", 0.0)
            case order, (task_id,):
                self._order(order, task_id)

    def _arm(self, place: int, fault: Fault) -> None:
        worker = self._at[place]
        if fault.where == "sender":
            self._line.faults.append(fault)
        elif fault.where == "startup":
            self._for_the_next[place].append(fault)
        elif worker is not None:
            worker.line.faults.append(fault)

    def _kill_child(self, worker: Worker | None, number: int) -> None:
        slots = sorted(worker.crew.children) if worker is not None else []
        if worker is not None and slots:
            worker.crew.die(slots[number % len(slots)], -9)

    def _send(self, spec: TaskSpec, tries: int = 10) -> None:
        task = a_task(
            id=spec.id, name=spec.name, max_attempts=spec.policy.max_attempts, policy=spec.policy.dump(),
            exclusive_key=spec.exclusive_key, unique_key=spec.unique_key,
        )  # fmt: skip
        self._who.append((self._person, "sender"))
        try:
            (stored,) = self.store.enqueue([task])
        except StoreUnavailable as error:
            self.say("people", f"send {spec.id}: {error}")
            if error.maybe_stored and (tries or spec.unique_key is None):  # or another of its key may be there instead
                self.specs[spec.id] = spec
            if tries:
                self.after(0.5, partial(self._send, spec, self._fewer(tries, error)))
            return
        finally:
            self._who.pop()
        if stored.conflict:
            self.broken.append(
                f"{spec.id} was sent again as it was, and the store takes it for another task of that id"
            )
        elif stored.id == spec.id:
            self.specs[spec.id] = spec
        else:
            self.specs.pop(spec.id, None)
        self._ring()

    def _fewer(self, tries: int, error: StoreUnavailable) -> int:
        """Who sends again what is ended and deleted by then sends another one."""
        return min(tries - 1, 1) if self.plan.keeps and error.maybe_stored else tries - 1

    def _start_flow(self, flow: FlowSpec, tries: int = 10) -> None:
        self._who.append((self._person, "sender"))
        try:
            self.store.start_workflow(flow.flows)
        except StoreUnavailable as error:
            self.say("people", f"start {flow.id}: {error}")
            if error.maybe_stored:
                self.flows.add(flow.id)
            if tries:
                self.after(0.5, partial(self._start_flow, flow, self._fewer(tries, error)))
            return
        finally:
            self._who.pop()
        self.flows.add(flow.id)
        self._ring()

    def _change_flow(self, change: WorkflowChange, flow_id: str, tries: int = 40) -> None:
        """Who has paused one resumes it, too, however often it takes."""
        self._who.append((self._person, "orders"))
        self.orders[flow_id].append(change.value)
        try:
            self.store.change_workflow(change, flow_id, actor="somebody")
        except StoreUnavailable as error:
            self.say("people", f"{change} {flow_id}: {error}")
            if change is WorkflowChange.RESUME and tries:
                self.after(0.5, partial(self._change_flow, change, flow_id, tries - 1))
        finally:
            self._who.pop()
            self._note_changes(self._person, "orders")
        self._ring()

    def _tend(self, flow_id: str, changes: tuple[str, ...], seconds: float) -> None:
        """Whenever it is paused by an error, the next of these is done; after the last of them nothing is."""
        self._tended[flow_id] = len(changes)
        if not changes:
            return
        if (flow_id,) in self.ask(PAUSED):
            self._change_flow(WorkflowChange(changes[0]), flow_id)
            changes = changes[1:]
        self.after(seconds, partial(self._tend, flow_id, changes, seconds))

    def _ring(self) -> None:
        for worker in self._at.values():
            if worker is not None and worker.random.random() < 0.7 and not worker.is_gone:
                worker.dispatcher.wake()
                worker.dispatcher.heed()
                if worker.dispatcher.turns:
                    self.soon(worker, "dispatcher", 0.0)

    def _order(self, order: str, task_id: str) -> None:
        self._who.append((self._person, "orders"))
        self.orders[task_id].append(order)
        try:
            if order == "accept":
                self.store.accept(task_id, actor="somebody")
            else:
                for _ in self.store.carry_out(Order(order), TaskFilter(ids=[task_id]), actor="somebody"):
                    pass
        except StoreUnavailable as error:
            self.say("people", f"{order} {task_id}: {error}")
        finally:
            self._who.pop()
            self._note_changes(self._person, "orders")
        self._ring()

    # -- what really happened ---------------------------------------------------------------------------------------

    def begin(self, run: Run) -> TaskSpec:
        """The code of a task begins."""
        ((status, fence, owner),) = self.ask(
            "SELECT status, fence, worker_id FROM sim_tasks WHERE id = ?", (run.task_id,)
        )
        if fence < run.fence or (fence == run.fence and (status, owner) not in (("RUNNING", run.worker_id),)):
            self.broken.append(
                f"{run.task_id} began in {run.worker_id} under fence {run.fence}, and the store shows it "
                f"{status} under fence {fence} of {owner}"
            )
        if run.task_id in self._inputs:
            self._check_inputs(run)
        if run.task_id in self._takers:
            wrong = self._takers[run.task_id].is_wrong(run.args, self._result)
            self.broken += [f"{run.task_id} was given other results than there are: {wrong}"] if wrong else []
        if run.key is not None:
            for other in self._running(run.key):
                self.broken.append(
                    f"{run.task_id} began in {run.worker_id} while {other.task_id} of the same key "
                    f"{run.key} runs in {other.worker_id}"
                )
        self.runs[run.task_id].append(run)
        return self._tasks[run.task_id]

    def _result(self, task_id: str) -> Any:
        found = self.ask("SELECT result FROM sim_tasks WHERE id = ? AND status = 'COMPLETED'", (task_id,))
        return json.loads(bytes(found[0][0])) if found else None

    def _check_inputs(self, run: Run) -> None:
        inputs, needed = self._inputs[run.task_id]
        marks = ", ".join("?" * len(inputs))
        ((completed,),) = self.ask(
            f"SELECT count(*) FROM sim_tasks WHERE id IN ({marks}) AND status = 'COMPLETED'", inputs
        )
        if completed < needed:
            self.broken.append(f"{run.task_id} began with {completed} of its inputs, and needs {needed}")

    def _running(self, key: str) -> list[Run]:
        return [run for runs in self.runs.values() for run in runs if run.key == key and run.ended is None]

    def _check_turns(self, loop: str) -> None:
        """Where somebody stands in line, somebody has the turn."""
        if not self._has_keys or self._checked == self._commits:
            return
        self._checked = self._commits
        for (key,) in self.ask(UNSERVED):
            self.broken.append(f"after a turn of {loop} tasks wait for the key {key}, and nobody has it")

    def _note_changes(self, who: Worker | Person, loop: str) -> None:
        if not self.is_told:
            return
        for row in self.ask(
            "SELECT n, id, old, new, old_fence, new_fence, new_worker FROM sim_log WHERE n > ? ORDER BY n",
            (self._logged,),
        ):
            self._logged = row[0]
            self.say(who.id, f"{loop}: {row[1]} {row[2]}/{row[4]} -> {row[3]}/{row[5]} of {row[6]}")
