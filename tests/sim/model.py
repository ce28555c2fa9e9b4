"""What must be true after a run, whatever happened in it: the promises, checked against what really happened.

The rows are not asked about themselves alone. A trigger wrote down each change of a task, the world each begin and end
of its code, and both are held against the table of transitions, the history, the events and the reports.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.sim.ends import check_graph
from tests.sim.flows import TORN, TaskSpec, check_flow, result_of
from tests.sim.processes import Run
from tests.sim.worker import CONFIG
from tests.sim.world import World

from everbeat.model.state import TERMINAL, TRANSITIONS, Change

LEGAL = {(old.value, new.value) for (old, _), new in TRANSITIONS.items()}
BY_A_PERSON = {(old.value, new.value) for (old, change), new in TRANSITIONS.items()
               if change in (Change.REVIVE, Change.ACCEPT)}  # fmt: skip
ENDED = {status.value for status in TERMINAL}
OWNED = {"CLAIMED", "RUNNING"}
PLAIN = {("PENDING", "CLAIMED"), ("PENDING", "RUNNING"), ("CLAIMED", "RUNNING"), ("RUNNING", "COMPLETED")}
"""Changes that no history tells of."""
RECOVERED = ("task.recovered", "task.quarantined")
ANYBODYS = b"[]"
"""A result that does not tell whose it is."""


class Move(NamedTuple):
    id: str
    old: str
    new: str
    old_fence: int
    new_fence: int
    old_worker: str | None
    new_worker: str | None
    result: bytes | None
    old_attempt: int
    new_attempt: int
    owner: str | None
    """The state of its new owner."""
    is_cancelled: int


def check(world: World) -> list[str]:
    """What is wrong; nothing if all is as promised."""
    moves = [Move(*row[1:]) for row in world.ask("SELECT * FROM sim_log ORDER BY n")]
    if world.plan.keeps:  # what was deleted was looked at then
        moves = [move for move in moves if move.new != "DELETED"]
    found = list(world.broken)
    found += _lost_or_stuck(world)
    found += _workflows(world)
    for move in moves:
        found += _illegal(move)
    nodes = {row[0] for row in world.ask("SELECT id FROM sim_tasks WHERE workflow_id IS NOT NULL")}
    for task_id, spec in (world.specs | {one: spec for one, spec in world.plan.tasks.items() if one in nodes}).items():
        mine = [move for move in moves if move.id == task_id]
        found += _accepted(spec, mine, world.orders_of(task_id))
        found += _budget(world, spec, world.runs[task_id], mine)
        found += _outcomes(world, task_id, mine)
        found += _attempts(world, spec, mine)
        found += _history(world, task_id, mine)
    found += _story(world)
    return found


def _lost_or_stuck(world: World) -> Iterator[str]:
    rows = {row[0]: row[:5] for row in world.ask(
        "SELECT id, status, worker_id, due_at, waiting_for FROM sim_tasks")}  # fmt: skip
    held = world.held()
    for task_id in world.specs:
        if task_id not in rows:
            yield f"{task_id} was sent and is not in the store: lost"
    for task_id, status, worker, due_at, waiting_for in rows.values():
        if status not in ENDED and task_id not in held:
            yield f"{task_id} is stuck: {status} of {worker}, due {due_at}, waiting for {waiting_for}"
    for key, run in ((task_id, run) for task_id, runs in world.runs.items() for run in runs):
        if run.ended is None:
            yield f"{key} has ended and still runs in {run.worker_id} under fence {run.fence}"


def _workflows(world: World) -> Iterator[str]:
    flows = world.plan.flows
    for flow_id in sorted(world.flows):
        spec = flows[flow_id]
        orders = {order for one in (flow_id, *(task.id for task in spec.tasks)) for order in world.orders[one]}
        if spec.is_rich:
            yield from check_graph(
                world.ask, spec, is_cancelled="cancel" in world.orders[flow_id],
                is_retried=bool(orders & {"retry", "accept"}), is_left_paused=flow_id in world.left_paused(),
            )  # fmt: skip
            continue
        yield from check_flow(world.ask, spec, was_cancelled=bool(orders & {"cancel", "retry", "accept", "fail"}))
    for name, facts in world.ask("SELECT name, facts FROM sim_events"):
        if name in TORN:
            yield f"nobody but us wrote, and it came to {name}: {facts}"


def _illegal(move: Move) -> Iterator[str]:
    """A change of one task: by the table, and with a fence that tells its owners apart (PROTOCOL 1)."""
    said = f"{move.id} {move.old}/{move.old_fence} of {move.old_worker} -> {move.new}/{move.new_fence}"
    if move.old != move.new and (move.old, move.new) not in LEGAL:
        yield f"{said}: no such transition"
        return
    grew = move.new_fence - move.old_fence
    if move.old == move.new:
        yield f"{said}: a fence or an owner was changed without a change of state"
    elif move.new in OWNED and move.old == "PENDING" and grew != 1:
        yield f"{said}: claimed, and the fence did not grow by one"
    elif move.new == "PENDING" and grew != 1:
        yield f"{said}: revoked, and the fence did not grow by one"
    elif (move.old, move.new) == ("CLAIMED", "RUNNING") and grew != 0:
        yield f"{said}: started under another fence"
    elif move.new in OWNED and move.owner != "alive":
        yield f"{said} of {move.new_worker}, who is {move.owner}"
    elif move.new == "PENDING" and move.is_cancelled:
        yield f"{said}: to run again, though its end was asked for"
    elif move.new == "CANCELLED" and grew != 1:
        yield f"{said}: cancelled, and the fence did not grow by one"


def _accepted(spec: TaskSpec, moves: list[Move], orders: list[str]) -> Iterator[str]:
    """One end, by nobody but its owner, unless people asked for another one."""
    task_id = spec.id
    ends = [move for move in moves if move.new in ENDED and move.old not in ENDED]
    after = [move for move in moves if move.old in ENDED]
    if len(ends) > 1 + sum(order in ("retry", "release") for order in orders):
        yield f"{task_id} has ended {len(ends)} times: {[(move.new, move.new_fence) for move in ends]}"
    for move in after:
        if (move.old, move.new) not in BY_A_PERSON or not {"retry", "accept"}.intersection(orders):
            yield f"{task_id} left {move.old} for {move.new}, and nobody had asked for it"
    for move in ends:
        if move.new == "COMPLETED" and "accept" not in orders:
            of = move.old_fence - (move.old == "PENDING")
            who = move.old_worker if move.old == "RUNNING" else move.new_worker
            if move.result != result_of(spec, of, who or ""):
                yield f"{task_id} completed under fence {move.old_fence} of {who} with the result {move.result!r}"


def _budget(world: World, spec: TaskSpec, runs: list[Run], moves: list[Move]) -> Iterator[str]:
    """Attempts and crashes, against the runs that there really were (PROTOCOL 4, 5)."""
    row = world.ask(
        """SELECT attempt, free_attempts, crash_count, lost_count, dispatch_count, quarantined, status, error_code
             FROM sim_tasks WHERE id = ?""",
        (spec.id,),
    )
    if not row:
        return
    attempt, free, crashes, losses, dispatches, is_quarantined, status, code = row[0]
    policy, orders = spec.policy, set(world.orders_of(spec.id))
    limit = CONFIG.max_recovery_attempts
    ends = Counter(run.how for run in runs)
    crashed = ends["crashed"]
    if crashes > crashed:
        yield f"{spec.id} is billed {crashes} crashes, and its process died by itself {crashed} times"
    gone = _gone(world)  # what was RUNNING under one of them is taken at its word, whether it began or not
    stopped = sum(run.how in ("guarded", "killed") for run in runs)
    if spec.exclusive_key is not None:  # also taken from the living, when they let their lease run out
        stopped += sum(move.old == "RUNNING" and move.new in ("PENDING", "FAILED", "CANCELLED") for move in moves)
    if losses > stopped + sum(move.new == "RUNNING" and move.new_worker in gone for move in moves):
        yield f"{spec.id} is billed {losses} losses, and was not lost so often ({dict(ends)})"
    taken = 0  # by a person, before anybody knew that its worker is gone or had not begun it: billed as no loss
    if orders & {"fail", "requeue"}:
        begun = {run.fence for run in runs}
        taken = sum(
            move.old == "RUNNING" and (move.old_worker in gone or move.old_fence not in begun) for move in moves
        )
    if attempt - free > len(runs) + losses + taken:
        yield f"{spec.id} ran {len(runs)} times, was lost {losses} times and has used {attempt - free} attempts"
    if not orders & {"retry", "release"}:  # which begin anew
        unbilled = sum(_may_be_free(spec, move, runs) for move in moves if move.new == "RUNNING")
        if free > unbilled + sum(order == "requeue" for order in world.orders_of(spec.id)):
            yield f"{spec.id} has {free} attempts for nothing, and {unbilled} of its starts were not to be billed"
    if orders & {"retry", "requeue", "release", "accept"}:
        return
    missed = [run for run in runs if _is_loss(world, run, moves)]
    if losses < len(missed) and not orders & {"fail", "cancel"}:
        yield f"{spec.id} died with its worker {len(missed)} times, and {losses} losses are counted"
    judged = {move.new_worker for move in moves if move.new == "RUNNING"} & _silent(world)
    if code == "WORKER_CRASHED" and not (runs or dispatches or judged) and world.plan.has_proof:
        yield f"{spec.id} is {status} because its worker crashed, and never began"
    if crashes > limit or (crashes == limit and not (is_quarantined and status == "FAILED") and "cancel" not in orders):
        yield f"{spec.id} crashed {crashes} times of {limit} and is {status}"
    if policy.max_attempts == 1 and policy.on_crash in (None, "fail") and len(runs) > 1:
        yield f"{spec.id} has one attempt and ran {len(runs)} times: {[(run.worker_id, run.how) for run in runs]}"
    if policy.on_crash in (None, "fail") and attempt - free > policy.max_attempts:
        yield f"{spec.id} has {policy.max_attempts} attempts and used {attempt - free}"
    if crashed > limit + losses:  # one that its worker could not tell of is a loss
        yield f"{spec.id} was let crash {crashed} times"
    if attempt < len(runs):
        yield f"{spec.id} ran {len(runs)} times, and {attempt} attempts are counted"


def _may_be_free(spec: TaskSpec, start: Move, runs: list[Run]) -> bool:
    """Whether the attempt that began so may be unbilled: its code never began, its worker stopped it, it lost its
    lease, or the task has it so. What died of itself, or with its worker, is paid for (PROTOCOL 4)."""
    if spec.policy.on_crash == "pending" or spec.exclusive_key is not None:
        return True
    run = next((run for run in runs if (run.fence, run.worker_id) == (start.new_fence, start.new_worker)), None)
    return run is None or run.was_told or run.how in ("killed", "guarded", "neighbour")


def _is_loss(world: World, run: Run, moves: list[Move]) -> bool:
    """Its worker was killed under it, and it was recovered from it (PROTOCOL 5)."""
    if run.how != "lost" or run.worker_id not in {worker.id for worker in world.workers if worker.end == "dead"}:
        return False
    return any(
        move.old == "RUNNING" and move.old_fence == run.fence and move.new in ("PENDING", "FAILED") for move in moves
    )


def _attempts(world: World, spec: TaskSpec, moves: list[Move]) -> Iterator[str]:
    """Runs that ended without a result, and the rows that tell of them: neither without the other."""
    rows = Counter(row[0] for row in world.ask("SELECT fence FROM sim_attempts WHERE task_id = ?", (spec.id,)))
    started = {move.new_fence for move in moves if move.new == "RUNNING"}
    if more := sorted(fence for fence, count in rows.items() if count > 1 or fence not in started):
        yield f"{spec.id} has attempts under the fences {sorted(rows.elements())}, and did not start so under {more}"
    begun = {run.fence for run in world.runs[spec.id]}
    for move in moves:
        is_over = move.old == "RUNNING" and move.new in ("PENDING", "FAILED")
        if is_over and move.old_fence in begun - rows.keys() and not {"requeue", "fail"} & set(world.orders[spec.id]):
            yield f"{spec.id} ran under fence {move.old_fence}, is {move.new}, and no attempt tells of it"


def _history(world: World, task_id: str, moves: list[Move]) -> Iterator[str]:
    """Every change of a task that is not the plain way of one that completes, and its history: the same."""
    told = Counter((old, new) for old, new in world.ask(
        "SELECT old_status, new_status FROM everbeat_history WHERE task_id = ? AND old_status <> new_status",
        (task_id,)))  # fmt: skip
    begun = {(run.fence, run.worker_id) for run in world.runs[task_id]}
    seen, plain = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for move in moves:
        change = move.old, move.new
        if change in PLAIN:
            continue
        is_handed_back = move.new == "PENDING" and (move.old_fence, move.old_worker) not in begun
        (plain if is_handed_back else seen)[change] += 1
    if missing := seen - told:
        yield f"{task_id} was changed {dict(missing)}, and its history does not tell of it ({dict(told)})"
    if invented := told - seen - plain:
        yield f"the history of {task_id} tells of {dict(invented)}, which was not done"


def _gone(world: World) -> set[str]:
    return {worker.id for worker in world.workers if worker.end != "runs"}


def _silent(world: World) -> set[str]:
    """Who was declared dead because nothing was heard of it: what it had not begun can not be known."""
    told = world.ask("SELECT worker_id, facts FROM sim_events WHERE name = 'worker.dead'")
    return {worker_id for worker_id, facts in told if json.loads(facts)["cause"] == "silence"}


def _is_deleted(world: World, task_id: str) -> bool:
    """Who says again what had counted before can not be told so any more."""
    return bool(world.ask("SELECT 1 FROM sim_log WHERE id = ? AND new = 'DELETED'", (task_id,)))


def _outcomes(world: World, task_id: str, moves: list[Move]) -> Iterator[str]:
    """A result that a worker was told is the task's, or kept beside it: unless the worker was killed with it."""
    stored = {move.result for move in moves if move.new == "COMPLETED"}
    kept = world.ask("SELECT fence, worker_id, result FROM sim_late_outcomes WHERE task_id = ?", (task_id,))
    late = {fence for fence, _, _ in kept}
    if len(kept) > len({(fence, worker) for fence, worker, _ in kept}) and not _is_deleted(world, task_id):
        yield f"{task_id}: one outcome is kept twice ({kept})"
    twice = stored.intersection(result for _, _, result in kept if result is not None) - {ANYBODYS}
    if twice and "accept" not in world.orders[task_id] and not _is_deleted(world, task_id):
        yield f"{task_id}: {twice} was stored, and refused"
    killed = {worker.id: worker for worker in world.workers if worker.end == "dead"}
    for run in world.runs[task_id]:
        is_kept = run.result in stored or run.fence in late
        if run.worker_id in killed and killed[run.worker_id].had_time_for(run.ended or 0) is False:
            continue
        if run.how == "told" and not is_kept and not run.was_told:
            yield f"{task_id} was done by {run.worker_id} under fence {run.fence}, and the result is nowhere"


def _story(world: World) -> Iterator[str]:
    """History, events, reports and rows tell the same."""
    ask = world.ask
    history = Counter(row[0] for row in ask(
        "SELECT task_id FROM everbeat_history WHERE actor = 'system/recovery'"))  # fmt: skip
    events = Counter(row[0] for row in ask(
        "SELECT task_id FROM sim_events WHERE name IN (?, ?)", RECOVERED))  # fmt: skip
    if history != events:
        yield f"recoveries by the history {dict(history)}, by the events {dict(events)}"
    reported: Counter[str] = Counter()
    for (text,) in ask("SELECT report FROM everbeat_recovery_reports"):
        reported.update(task["task_id"] for task in json.loads(text)["recovered_tasks"] if task["success"])
    if more := reported - history:
        yield f"reports tell of recoveries that the history does not know: {dict(more)}"
    recovered = Counter(task_id for worker in world.workers for task_id in worker.recovered)
    if fewer := recovered - reported:
        yield f"reports do not tell of recoveries that were done: {dict(fewer)}"
    hindered = {worker.id for worker in world.workers
                if worker.is_hindered or worker.end in ("dead", "stopped", "refused")}  # fmt: skip
    dead = {row[0] for row in ask("SELECT id FROM sim_workers WHERE status = 'dead'")}
    told = [row[0] for row in ask("SELECT worker_id FROM sim_events WHERE name = 'worker.dead'")]
    if sorted(dead) != sorted(told):
        yield f"dead workers by the rows {sorted(dead)}, by the events {sorted(told)}"
    for worker_id, text in ask("SELECT worker_id, facts FROM sim_events WHERE name = 'worker.dead'"):
        facts = json.loads(text)
        if facts["cause"] == "silence" and facts["silent_for"] * 1000 < CONFIG.running_stale_threshold_ms:
            yield f"{worker_id} was declared dead after {facts['silent_for']} s of silence"
        if facts["cause"] == "silence" and worker_id not in hindered:
            yield f"{worker_id} was declared dead because of its silence, and nothing had kept it from beating"
    for worker in world.workers:
        if worker.end == "runs" and worker.id in dead:
            yield f"{worker.id} is alive and well, declared dead, and has not noticed"
    failed = Counter(row[0] for row in ask("SELECT task_id FROM everbeat_history WHERE change = 'fail'"))
    said = Counter(row[0] for row in ask("SELECT task_id FROM sim_events WHERE name = 'task.failed'"))
    if failed - said:
        yield f"failures by the history {dict(failed)}, by the events {dict(said)}"
