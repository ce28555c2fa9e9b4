"""`everbeat demo`: two workers, one killed with kill -9, and what becomes of its tasks.

After the banner every line is read back from the store or from a process; no figure is written here. The demo fails
(exit 1) if what the store says is not what is promised.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from everbeat.cli import out
from everbeat.cli.demo_stage import Stage, is_running, stage
from everbeat.cli.ends import Refused
from everbeat.cli.grammar import Option
from everbeat.config import broker_from_url
from everbeat.model import event
from everbeat.model.event import EventInfo
from everbeat.model.report import RecoveryReport
from everbeat.model.state import TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.model.worker import WorkerInfo, WorkerStatus
from everbeat.report.text import counted
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

BANNER = """\
Everbeat: no task is lost, stuck or silently run twice when something dies.
Two workers share one SQLite file; one of them will be killed with kill -9.
Every line below is read back from the store or from a process."""

APP = "everbeat.cli.demo_tasks:app"
WORKERS = ("alpha", "bravo")
PROCESSES = 3
IMAGES = 12
SLOW_SECONDS = 6.0


def demo(
    keep: Annotated[bool, Option("--keep", help="Keep the store and the workers' logs, and say where.")] = False,
) -> None:
    """Show the recovery of a killed worker, in a minute.

    Two workers on one SQLite file, one killed with kill -9, what becomes of its tasks, the report.
    """
    out.say(BANNER)
    with stage(keep=keep) as here:
        for name in WORKERS:
            here.start_worker(name, APP, processes=PROCESSES)
        here.wait_for("both workers to be ready", lambda: all(map(here.is_ready, WORKERS)))

        from everbeat.cli.demo_tasks import app  # opens the store at its first use, when the workers have made it

        app.config = replace(app.config, broker=broker_from_url(here.url))
        with app:
            wrong = Play(here, app.store).play()
        if keep:
            _say_how_to_look(here)
    if wrong:
        raise Refused("this is not what Everbeat promises: " + "; ".join(wrong))


class Play:
    """The acts, in order. Each does something to processes, then tells what the store says about it."""

    def __init__(self, here: Stage, store: Store) -> None:
        self._stage = here
        self._store = store

    def play(self) -> list[str]:
        """Everything that was not as promised."""
        self._show_workers()
        self._run_quick_tasks()
        victim, held = self._start_slow_tasks()
        killed_at = self._kill(victim, held)
        self._show_recovery(victim, held, killed_at)
        self._show_report(victim)
        return self._show_account(victim, held)

    # -- acts -------------------------------------------------------------------------------------------------------

    def _show_workers(self) -> None:
        _scene(f"workers of {self._store.location}")
        for worker in self._store.workers(alive_only=True):
            out.say(f"  {worker.id}  pid {worker.host.pid}  {counted(worker.processes, 'process', 'processes')}")

    def _run_quick_tasks(self) -> None:
        from everbeat.cli.demo_tasks import resize_image

        resize_image.enqueue_many([(number,) for number in range(1, IMAGES + 1)])
        _scene("quick tasks")
        self._stage.wait_for("the quick tasks", self._has_ended)
        for (status, name, worker_id), count in sorted(
            Counter((task.status, task.name, str(task.worker_id)) for task in self._tasks()).items()
        ):
            out.say(f"  {status} {counted(count, name, name)} on {worker_id}")

    def _start_slow_tasks(self) -> tuple[WorkerInfo, list[TaskInfo]]:
        """The worker to be killed, the one with the most to lose, and what it runs."""
        from everbeat.cli.demo_tasks import charge_card, render_video

        at_once = datetime.now(UTC) + timedelta(seconds=1.5)  # ready together, so that one worker gets both kinds
        for number in (1, 2):
            render_video.options(id=f"video-{number}", run_at=at_once).enqueue(number, SLOW_SECONDS)
            charge_card.options(id=f"payment-{number}", run_at=at_once).enqueue(number, SLOW_SECONDS)
        _scene("slow tasks")
        running = self._stage.wait_for("the slow tasks to run", self._all_running)
        for name, limit in {task.name: task.max_attempts for task in running}.items():
            out.say(f"  {name} may be run {counted(limit, 'time')} at most")
        workers = {worker.id: worker for worker in self._store.workers(alive_only=True)}
        for task in running:
            pid = workers[str(task.worker_id)].host.pid
            out.say(f"  {task.status} {_titled(task)} on {task.worker_id} (pid {pid})")
        held = {worker: [task for task in running if task.worker_id == worker] for worker in workers}
        victim = max(workers, key=lambda worker: (len({task.name for task in held[worker]}), len(held[worker])))
        return workers[victim], held[victim]

    def _kill(self, victim: WorkerInfo, held: Sequence[TaskInfo]) -> datetime:
        _scene(f"kill -9 {victim.host.pid}: {victim.id} will die while it runs {_listed(task.id for task in held)}")
        below = self._stage.descendants_of(victim.name)
        killed_at = datetime.now(UTC)
        died_of = self._stage.kill(victim.name)
        out.say(f"  pid {victim.host.pid} died of {died_of}")
        self._stage.wait_for("its processes to end", lambda: not any(map(is_running, below)))
        out.say(f"  its {counted(len(below), 'process', 'processes')} ended with it: {_listed(below)}")
        return killed_at

    def _show_recovery(self, victim: WorkerInfo, held: Sequence[TaskInfo], killed_at: datetime) -> None:
        _scene("recovery, in time since the kill")
        recovered = self._stage.wait_for("the recovery", lambda: self._recovered(victim, held))
        dead = next(e for e in self._store.events() if e.name == event.WORKER_DEAD and e.worker_id == victim.id)
        _say_after(killed_at, dead.at, f"{dead.name}  {dead.facts['reason']}")
        for found in recovered:
            _say_after(killed_at, found.at, f"{found.name}  {found.task_id}: {found.facts['action']}")
        for task in self._stage.wait_for("the restart", lambda: self._back_again(held)):
            if task.status is TaskStatus.FAILED:
                _say_after(killed_at, task.finished_at, f"{task.status} with {task.error_code}  {_titled(task)}")
            else:
                _say_after(killed_at, task.started_at, f"{task.status} again  {_titled(task)} on {task.worker_id}")

    def _show_report(self, victim: WorkerInfo) -> None:
        _scene("the stored report")
        report = self._stage.wait_for("the report", lambda: self._report_on(victim))
        out.say("\n".join(f"  {text}".rstrip() for text in report.to_report().splitlines()))

    def _show_account(self, victim: WorkerInfo, held: Sequence[TaskInfo]) -> list[str]:
        self._stage.wait_for("every task to end", self._has_ended)
        _scene("the end")
        tasks = self._tasks()
        for task in tasks:
            if task.id in {one.id for one in held}:
                said = f"{task.error_code}: {task.error_message}" if task.error_code else f"on {task.worker_id}"
                out.say(f"  {task.status} {_titled(task)} {said}")
        counts = Counter(task.status for task in tasks)
        account = " + ".join(f"{counts[status]} {status}" for status in TaskStatus if counts[status])
        out.say(f"  every task accounted for: {len(tasks)} enqueued = {account}")
        return list(self._faults(victim, held))

    # -- what the store says ----------------------------------------------------------------------------------------

    def _tasks(self) -> list[TaskInfo]:
        """In the order in which they were sent."""
        return self._store.tasks(TaskFilter(limit=1000))[::-1]

    def _has_ended(self) -> bool:
        return all(task.status.is_terminal for task in self._tasks())

    def _all_running(self) -> list[TaskInfo]:
        left = [task for task in self._tasks() if not task.status.is_terminal]
        return left if all(task.status is TaskStatus.RUNNING for task in left) else []

    def _recovered(self, victim: WorkerInfo, held: Sequence[TaskInfo]) -> list[EventInfo]:
        """One event for each task, once all are there."""
        found = [e for e in self._store.events() if e.name == event.TASK_RECOVERED and e.worker_id == victim.id]
        return found if {e.task_id for e in found} == {task.id for task in held} else []

    def _back_again(self, held: Sequence[TaskInfo]) -> list[TaskInfo]:
        """The tasks that were held, the failed first, once each is failed or runs elsewhere."""
        before = {task.id: task for task in held}
        now = sorted((task for task in self._tasks() if task.id in before), key=lambda task: task.status)
        settled = [t.status is TaskStatus.FAILED or t.worker_id not in (None, before[t.id].worker_id) for t in now]
        return now if all(settled) else []

    def _report_on(self, victim: WorkerInfo) -> RecoveryReport | None:
        reports = self._store.reports(limit=10)
        return next((r for r in reports if any(dead.worker_id == victim.id for dead in r.dead_workers)), None)

    def _faults(self, victim: WorkerInfo, held: Sequence[TaskInfo]) -> Iterator[str]:
        if not any(w.id == victim.id and w.status is WorkerStatus.DEAD for w in self._store.workers()):
            yield f"{victim.id} is not known as dead"
        tasks = {task.id: task for task in self._tasks()}
        if len(tasks) != IMAGES + 4:
            yield f"{len(tasks)} tasks are there, {IMAGES + 4} were sent"
        lost = {task.id for task in held if task.max_attempts == 1}
        for task in tasks.values():
            wanted = TaskStatus.FAILED if task.id in lost else TaskStatus.COMPLETED
            if task.status is not wanted:
                yield f"{task.id} is {task.status}, not {wanted}"
            if task.attempt > task.max_attempts:
                yield f"{task.id} ran {task.attempt} times, {task.max_attempts} were allowed"
        if not any(tasks[task.id].attempt > task.attempt for task in held):
            yield "no task was run again"


def _scene(title: str) -> None:
    out.say(f"\n{title}")


def _titled(task: TaskInfo) -> str:
    return f"{task.id} ({task.name}, attempt {task.attempt}/{task.max_attempts})"


def _listed(things: Iterable[object]) -> str:
    return ", ".join(map(str, things))


def _say_after(start: datetime, moment: datetime | None, what: str) -> None:
    later = ((moment or start) - start) / timedelta(milliseconds=1)
    out.say(f"  {later:5.0f} ms  {what}")


def _say_how_to_look(here: Stage) -> None:
    out.say(f"\nkept: {here.directory}")
    for command in ("task list", "task show video-1", "worker list", "events", "queue status"):
        out.say(f"  everbeat {command} --db {here.url}")
