"""What is done to the processes of a drill, and to no others: SIGKILL, SIGSTOP and SIGCONT, as planned."""

import heapq
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import TypeVar

from everbeat.drill.harm import Done
from everbeat.drill.ledger import Reader
from everbeat.drill.plan import Act, Deed
from everbeat.drill.workers import Worker, Workers
from everbeat.run.pidfds import send_signal

T = TypeVar("T")


class Violence:
    def __init__(self, workers: Workers, ledger: Reader, *, kill_database: str | None = None) -> None:
        self._workers = workers
        self._ledger = ledger
        self._kill_database = kill_database
        self._frozen: list[tuple[float, int]] = []
        """When to wake, and whom by its pidfd."""
        self._commands: list[subprocess.Popen[bytes]] = []
        self.done: list[Done] = []

    def do(self, act: Act) -> None:
        """What was planned, if there is anybody to do it to."""
        match act.deed:
            case Deed.KILL_PROCESS | Deed.FREEZE_PROCESS:
                self._meet_process(act)
            case Deed.KILL_WORKER | Deed.FREEZE_WORKER | Deed.FREEZE_LONG:
                worker = pick(self._who_can_be_met(act.deed), act.pick)
                if worker is not None:
                    self._meet_worker(act, worker)
            case Deed.KILL_EVERY_WORKER:
                self._kill_everybody()
            case Deed.KILL_DATABASE:
                self._kill_the_database()

    def thaw(self, *, everybody: bool = False) -> None:
        """Wake those whose time has come."""
        while self._frozen and (everybody or self._frozen[0][0] <= time.monotonic()):
            _, pidfd = heapq.heappop(self._frozen)
            send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)

    def end(self) -> None:
        """Everybody goes on, and every command that kills the database has done its work."""
        self.thaw(everybody=True)
        for command in self._commands:
            code = command.wait()
            if code != 0:
                self._workers.complaints.append(f"the command that kills the database ended with exit code {code}")
        self._commands = []

    def _who_can_be_met(self, deed: Deed) -> list[Worker]:
        """Kills come at any moment; to freeze one that does no work yet would show nothing."""
        living = self._workers.living
        return living if deed is Deed.KILL_WORKER else [worker for worker in living if worker.is_ready]

    def _meet_process(self, act: Act) -> None:
        """A process that runs a task, if one does."""
        owners = {pid: worker for worker in self._workers.living for pid in worker.task_processes()}
        busy = self._ledger.open_runs() & owners.keys()
        pid = pick(sorted(busy or owners), act.pick)
        if pid is None:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if pid in owners[pid].task_processes():  # so the descriptor is that of this process, and of no later one
                now = _now()
                if act.deed is Deed.FREEZE_PROCESS:
                    self._freeze(pidfd, act.seconds)
                elif not send_signal(pidfd, signal.SIGKILL):
                    return
                self.done.append(
                    Done(deed=act.deed, wall_us=now, worker_pid=owners[pid].pid, pids=frozenset({pid}))
                )  # fmt: skip
        finally:
            os.close(pidfd)

    def _meet_worker(self, act: Act, worker: Worker) -> None:
        below, now = frozenset(worker.task_processes()), _now()
        if act.deed is Deed.KILL_WORKER:
            self._kill_worker(worker)
        else:
            worker.was_frozen = True
            self._freeze(worker.pidfd, act.seconds)
            below = frozenset()
        self.done.append(Done(deed=act.deed, wall_us=now, worker_pid=worker.pid, pids=below))

    def _kill_everybody(self) -> None:
        everybody, now = list(self._workers.living), _now()
        for worker in everybody:
            self._kill_worker(worker)
        met = frozenset(worker.pid for worker in everybody)
        self.done.append(Done(deed=Deed.KILL_EVERY_WORKER, wall_us=now, others=met))

    def _kill_worker(self, worker: Worker) -> None:
        worker.was_killed = True
        send_signal(worker.pidfd, signal.SIGKILL)

    def _freeze(self, pidfd: int, seconds: float) -> None:
        send_signal(pidfd, signal.SIGSTOP)
        heapq.heappush(self._frozen, (time.monotonic() + seconds, os.dup(pidfd)))

    def _kill_the_database(self) -> None:
        if self._kill_database is not None and all(command.poll() is not None for command in self._commands):
            self.done.append(Done(deed=Deed.KILL_DATABASE, wall_us=_now()))
            self._commands.append(subprocess.Popen(self._kill_database, shell=True, stdin=subprocess.DEVNULL))


def pick(victims: Sequence[T], fraction: float) -> T | None:
    return victims[int(fraction * len(victims))] if victims else None


def _now() -> int:
    return time.time_ns() // 1000
