"""The processes of a simulated worker: they get ready, take, begin and end tasks by themselves, in virtual time.

Also the fork server, which outlives a stopped supervisor: it ends what runs under a lease that is over (PROTOCOL 24).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from tests.run.stage import Child, SimulatedCrew
from tests.sim.flows import TaskSpec, result_of
from tests.words import VirtualClock

from everbeat.model.task import Claim, Outcome, TaskError
from everbeat.run.deadline import Deadline
from everbeat.run.journal import Journal
from everbeat.run.news import ChildReady, Died
from everbeat.run.wire import ChildKind, InterruptKind

CODES = {
    InterruptKind.INTERRUPT: "WORKER_STOPPED",
    InterruptKind.TIMEOUT: "TASK_TIMEOUT",
    InterruptKind.CANCEL: "TASK_CANCELLED",
}


@dataclass(slots=True, eq=False)
class Run:
    """The code of a task, running: what really happened, whatever the store says."""

    task_id: str
    fence: int
    worker_id: str
    pid: int
    key: str | None
    began: int
    ended: int | None = None
    how: str = "runs"
    """told, raised, crashed: of its own; neighbour: its process died, and it was not alone there; killed: by its
    worker; guarded: by the fork server; lost: with its worker."""
    was_told: bool = False
    """To stop."""
    args: bytes = b""
    result: bytes = b""
    """If it comes to one."""


class Ground(Protocol):
    """What the processes need of the world."""

    clock: VirtualClock

    def after(self, seconds: float, do: Callable[[], None]) -> None: ...

    def begin(self, run: Run) -> TaskSpec: ...

    def say(self, who: str, what: str) -> None: ...


class Processes(SimulatedCrew):
    def __init__(
        self, ground: Ground, journal: Journal, deadline: Deadline, worker_id: str, random: Random,
        poke: Callable[[], None], *, async_slots: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(journal, ground.clock)
        self._ground = ground
        self._deadline = deadline
        self._worker_id = worker_id
        self._random = random
        self._poke = poke
        self._async_slots = async_slots
        self._runs: dict[tuple[int, int, int], tuple[Run, TaskSpec, int]] = {}
        """By slot, seq and fence; with its place in the journal."""
        self.is_gone = False
        self.told: list[Run] = []

    # -- what the worker asks for -----------------------------------------------------------------------------------

    def spawn(self, slot: int, kind: ChildKind) -> None:
        super().spawn(slot, kind)
        child = self.children[slot]
        self._ground.after(self._random.uniform(0.005, 0.1), lambda: self._get_ready(child))

    def send(self, slot: int, tasks: Sequence[tuple[int, Claim]]) -> bool:
        is_sent = super().send(slot, tasks)
        if is_sent:
            self._soon(self.children[slot])
        return is_sent

    def interrupt(self, slot: int, claim: Claim, kind: InterruptKind) -> bool:
        run, spec, _ = self._runs.get((slot, claim.seq, claim.fence), (None, None, 0))
        if run is not None and spec is not None:
            run.was_told = True
            if spec.listens:
                error = TaskError(code=CODES[kind], message="told to stop")
                self._ground.after(self._random.uniform(0.0, 0.3), lambda: self._tell(slot, claim, run, error))
        return True

    def kill(self, slot: int) -> None:
        if slot in self.children:
            self._die(slot, -9, "killed")

    def die(self, slot: int, status: int | None) -> None:
        self._die(slot, status, "crashed")

    def end_all(self) -> None:
        """The worker is gone, and its fork server ends the processes."""
        self.is_gone = True
        for slot in list(self.children):
            self._die(slot, -9, "lost")

    # -- what the processes do --------------------------------------------------------------------------------------

    def _is_here(self, child: Child) -> bool:
        return not self.is_gone and self.children.get(child.slot) is child

    def _get_ready(self, child: Child) -> None:
        if self._is_here(child) and not child.is_ready:
            child.is_ready = True
            self.tell(ChildReady(child.slot, child.pid))
            self._poke()

    def _soon(self, child: Child) -> None:
        self._ground.after(self._random.choice((0.0, 0.001, 0.03)), lambda: self._take(child))

    def _take(self, child: Child) -> None:
        """As many at once as it has places: a message may bring several to an async process, and one to any other."""
        places = self._async_slots if child.kind is ChildKind.ASYNC else 1
        while self._is_here(child) and child.sent and len(child.taken) < places:
            self.take(child.slot)
            entry, claim = child.taken[-1]
            self._ground.after(self._random.choice((0.0, 0.001, 0.01)), partial(self._begin, child, entry, claim))

    def _begin(self, child: Child, entry: int, claim: Claim) -> None:
        if not self._is_here(child):
            return
        self._journal.begin(entry, claim.seq, claim.fence)
        run = Run(
            claim.id, claim.fence, self._worker_id, child.pid, claim.exclusive_key, self._clock.mono_us(),
            args=claim.args,
        )  # fmt: skip
        spec = self._ground.begin(run)
        run.result = result_of(spec, run.fence, run.worker_id)
        self._runs[child.slot, claim.seq, claim.fence] = run, spec, entry
        self._ground.say(self._worker_id, f"process {child.pid} begins {claim.id} under fence {claim.fence}")
        if claim.exclusive_key is not None:
            self._guard(child, run)
        self._ground.after(spec.seconds, lambda: self._end(child, claim, run, spec))

    def _guard(self, child: Child, run: Run) -> None:
        if not self._is_here(child) or run.ended is not None:
            return
        left = (self._deadline.at_us - self._clock.mono_us()) / 1e6
        if left > 0:
            self._ground.after(left, lambda: self._guard(child, run))
        else:
            self._die(child.slot, -9, "guarded")

    def _end(self, child: Child, claim: Claim, run: Run, spec: TaskSpec) -> None:
        if not self._is_here(child) or run.ended is not None:
            return
        is_first = run.fence <= 1
        if spec.behaviour == "poison" or (spec.behaviour == "poison_once" and is_first):
            self._die(child.slot, -11, "crashed")
        elif spec.behaviour == "raise" or spec.behaviour == ("raise_once" if is_first else "raise_later"):
            self._tell(child.slot, claim, run, TaskError(code="UNHANDLED_EXCEPTION", message="it broke"))
        else:
            self._tell(child.slot, claim, run, None)

    def _tell(self, slot: int, claim: Claim, run: Run, error: TaskError | None) -> None:
        if self.is_gone or run.ended is not None:
            return
        child, (_, _, entry) = self.children[slot], self._runs.pop((slot, claim.seq, claim.fence))
        child.taken.remove((entry, claim))
        self._over(run, "raised" if error else "told")
        began = self._clock.wall_us() - (self._clock.mono_us() - run.began)
        outcome = Outcome(
            result=None if error else run.result, error=error, began_at=began, ended_at=self._clock.wall_us()
        )
        child.told.append((entry, claim.seq, claim.fence, outcome))
        self.told.append(run)
        self._soon(child)
        self._poke()

    def _die(self, slot: int, status: int | None, how: str) -> None:
        child = self.children.pop(slot)
        mine = [key for key in self._runs if key[0] == slot]
        for key in mine:
            self._over(self._runs.pop(key)[0], "neighbour" if how == "crashed" and len(mine) > 1 else how)
        self._ground.say(self._worker_id, f"process {child.pid} is gone ({how})")
        unread = [(claim.seq, claim.fence) for _, claim in child.sent]
        self.tell(
            Died(slot=slot, pid=child.pid, status=status, was_ready=child.is_ready, outcomes=child.told, unread=unread,
                 seconds_alive=0.0, overdue=how == "guarded")
        )  # fmt: skip
        self._poke()

    def _over(self, run: Run, how: str) -> None:
        run.ended, run.how = self._clock.mono_us(), how
        self._ground.say(self._worker_id, f"process {run.pid} ends {run.task_id} under fence {run.fence}: {how}")
