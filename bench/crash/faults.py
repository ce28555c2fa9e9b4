"""The faults, and what is watched after them."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.crash import kit
from bench.crash.account import ENDED
from bench.crash.stage import VICTIM, Stage, Unusable, send
from bench.crash.systems import System
from bench.servers import Servers

TASKS = 24
MOST_SECONDS = 70.0
"""After the fault: what has not happened by then is reported as not having happened."""
LEAST_SECONDS = 20.0
"""So long everything is watched: who runs a finished task again may be late."""
DOWN_SECONDS = 3.0
FROZEN_SECONDS = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    title: str
    explained: str
    applies: Callable[[System, str], bool]
    happens: Callable[[Stage, Servers], "Happened"]
    least_seconds: float = LEAST_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    at_ns: int
    frozen: tuple[int, ...] = ()
    believed: tuple[int, ...] = ()


def kill_worker(stage: Stage, servers: Servers) -> Happened:
    _under_way(stage, 3.0)
    now = time.monotonic_ns()
    stage.kill(VICTIM)
    return Happened(at_ns=now)


def kill_child(stage: Stage, servers: Servers) -> Happened:
    _under_way(stage, 3.0)
    pids = [line.pid for line in stage.open_runs(VICTIM) if line.pid != stage.main_pid(VICTIM)]
    if not pids:
        raise Unusable("no task runs in a process of its own")
    now = time.monotonic_ns()
    send(pids[:1], signal.SIGKILL)
    return Happened(at_ns=now)


def poison(stage: Stage, servers: Servers) -> Happened:
    stage.send(0, TASKS // 2, 4.0, kit.POISON)

    def begins() -> list[int]:
        return [line.at_ns for line in stage.ledger() if line.number == kit.CULPRIT]

    if not stage.until(begins, seconds=30):
        raise Unusable("the task that is to kill was not begun")
    return Happened(at_ns=min(begins()) + int(kit.CULPRIT_SECONDS * 1e9))


def freeze(stage: Stage, servers: Servers) -> Happened:
    """Stopped until others have begun its tasks again, at most for a while; then it goes on."""
    _under_way(stage, 12.0, TASKS // 3)
    members, now = stage.members(VICTIM), time.monotonic_ns()
    send(members, signal.SIGSTOP)
    held = {line.run: line.number for line in stage.open_runs(VICTIM)}
    stage.until(lambda: set(held.values()) <= _begun_since(stage, now), seconds=FROZEN_SECONDS)
    send(members, signal.SIGCONT)
    stage.until(lambda: held.keys() <= {line.run for line in stage.ledger() if line.word == "end"}, seconds=4)
    states = stage.states() or {}
    goes_on = {line.number for line in stage.open_runs() if line.at_ns > now}
    believed = sorted(number for number in goes_on & set(held.values()) if states.get(number) == "done")
    return Happened(at_ns=now, frozen=tuple(sorted(held.values())), believed=tuple(believed))


def restart_store(stage: Stage, servers: Servers) -> Happened:
    kind = stage.system.server(stage.variant)
    assert kind is not None
    _under_way(stage, 3.0)
    now = time.monotonic_ns()
    servers.crash(kind)
    stage.until(lambda: False, seconds=DOWN_SECONDS)
    servers.resume(kind)
    return Happened(at_ns=now)


def kill_sender(stage: Stage, servers: Servers) -> Happened:
    sender = stage.sender(0, 5_000, 0.0)
    stage.until(lambda: len(stage.accepted()) >= TASKS, seconds=60, every=0.01)
    sender.kill()
    now = time.monotonic_ns()
    sender.wait()
    return Happened(at_ns=now)


def always(system: System, variant: str) -> bool:
    return True


FAULTS = [
    Fault(
        name="kill-worker",
        title="kill -9 of a worker",
        explained="with all its processes, in the middle of tasks; started again after a second; another one lives",
        applies=always,
        happens=kill_worker,
    ),
    Fault(
        name="kill-child",
        title="kill -9 of a task's process",
        explained="of one; the worker lives",
        applies=lambda system, variant: system.runs_in_processes(variant),
        happens=kill_child,
    ),
    Fault(
        name="poison",
        title="a task that kills its process",
        explained="each time that it runs, after a second, beside 11 tasks of four seconds",
        applies=always,
        happens=poison,
    ),
    Fault(
        name="freeze",
        title="SIGSTOP, SIGCONT of a worker",
        explained=f"stopped until its tasks were begun elsewhere, at most {FROZEN_SECONDS:.0f} s",
        applies=always,
        happens=freeze,
    ),
    Fault(
        name="restart-store",
        title="crash of the server",
        explained="immediate shutdown of PostgreSQL, kill -9 of Redis; back after three seconds",
        applies=lambda system, variant: system.store != "sqlite",
        happens=restart_store,
    ),
    Fault(
        name="kill-sender",
        title="kill -9 of a sender",
        explained="while it sends one task after the other; those count whose sending had returned",
        applies=always,
        happens=kill_sender,
        least_seconds=5.0,
    ),
]


def watch(stage: Stage, fault: Fault, happened: Happened) -> dict[int, str]:
    """What the store says when everything accepted has ended and a while has passed, or when we wait no longer."""
    states: dict[int, str] = {}
    while True:
        states = stage.states() or states
        passed = (time.monotonic_ns() - happened.at_ns) / 1e9
        is_over = bool(states) and all(states.get(number, "gone") in ENDED for number in stage.accepted())
        if (is_over and passed >= fault.least_seconds) or passed >= MOST_SECONDS:
            return states
        stage.until(lambda: False, seconds=0.5)


def _under_way(stage: Stage, seconds: float, count: int = TASKS) -> None:
    """Tasks are sent, and the victim is in the middle of two or more."""
    stage.send(0, count, seconds)

    def in_the_middle() -> bool:
        now = time.monotonic_ns()
        ages = [(now - line.at_ns) / 1e9 for line in stage.open_runs(VICTIM)]
        return len([age for age in ages if 0.5 < age < seconds - 1.0]) >= 2

    if not stage.until(in_the_middle, seconds=30, every=0.02):
        raise Unusable("the worker that was to be hit has nothing to do")


def _begun_since(stage: Stage, at_ns: int) -> set[int]:
    return {line.number for line in stage.ledger() if line.word == "begin" and line.at_ns > at_ns}
