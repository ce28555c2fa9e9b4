"""Real processes, real signals: whatever happens to a child, the crew says what became of each task it was given."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

import everbeat.errors
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Outcome
from everbeat.run.async_child import AT_ONCE
from everbeat.run.crew import Crew
from everbeat.run.deadline import boot_us
from everbeat.run.journal import Journal
from everbeat.run.leash import Leash
from everbeat.run.lockfile import Liveness, WorkerLock, lock_child_byte, probe, this_host
from everbeat.run.news import AppFailed, AppReady, ChildReady, Died, Finished, News
from everbeat.run.speech import speech
from everbeat.run.tickets import Tickets
from everbeat.run.wire import ChildKind, ChildPlan, InterruptKind, Kit, channel

APPS = Path(__file__).parent / "apps"
SOURCE = Path(everbeat.errors.__file__).parents[1]
PATIENCE = 20.0
SYNC, ASYNC, OWN = ChildKind.SYNC, ChildKind.ASYNC, ChildKind.OWN
N = TypeVar("N")


class Yard:
    """A crew with its lock and journal, and the news of it."""

    def __init__(self, directory: Path, target: str = "basic:app", worker_id: str = "w1") -> None:
        self.worker_id = worker_id
        self.lock = WorkerLock.create(directory, worker_id)
        self.journal = Journal.create(directory, worker_id, boot_id=this_host().boot_id, slots=8, entries=256)
        self.crew = Crew(target=target, imports=())
        self.crew.equip(self.lock, self.journal, beat_seconds=0.05)
        self.seq = 0
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.pending: list[News] = []
        self.crew.start()

    def claim(self, name: str, *args: Any, raw: bytes | None = None, fence: int = 1) -> Claim:
        self.seq += 1
        return Claim(
            seq=self.seq,
            id=f"task-{self.seq}",
            name=name,
            queue="default",
            fence=fence,
            worker_id=self.worker_id,
            status=TaskStatus.RUNNING,
            attempt=1,
            free_attempts=0,
            crash_count=0,
            lost_count=0,
            dispatch_count=0,
            solo=False,
            policy=None,
            args=json.dumps(args).encode() if raw is None else raw,
        )

    def wait(self, until: Callable[[], Any]) -> None:
        """Collect news until something is true."""
        deadline = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < deadline, f"nothing came but {self.pending}"
            select.select([self.crew], [], [], 0.2)
            for news in self.crew.collect():
                if isinstance(news, Finished | Died):
                    self.outcomes |= {(seq, fence): outcome for _, seq, fence, outcome in news.outcomes}
                self.pending.append(news)

    def next(self, kind: type[N]) -> N:
        """The next news of this kind; news of other kinds stay for later."""
        self.wait(lambda: any(isinstance(news, kind) for news in self.pending))
        found = next(news for news in self.pending if isinstance(news, kind))
        self.pending.remove(found)  # type: ignore[arg-type]
        return found

    def ready(self, slot: int, kind: ChildKind) -> int:
        """A child in this slot; its pid."""
        self.crew.spawn(slot, kind)
        news = self.next(ChildReady)
        assert news.slot == slot
        return news.pid

    def send(self, slot: int, *claims: Claim) -> list[int]:
        entries = [self.journal.allocate() for _ in claims]
        assert self.crew.send(slot, list(zip(entries, claims, strict=True)))
        return entries

    def outcome(self, claim: Claim) -> Outcome:
        key = claim.seq, claim.fence
        self.wait(lambda: key in self.outcomes)
        return self.outcomes[key]

    def run(self, slot: int, name: str, *args: Any, raw: bytes | None = None) -> Any:
        """The result of one task, or its error."""
        claim = self.claim(name, *args, raw=raw)
        self.send(slot, claim)
        outcome = self.outcome(claim)
        return outcome.error or json.loads(outcome.result or b"null")

    def close(self) -> None:
        self.crew.stop()
        self.journal.close(unlink=True)
        self.lock.close(unlink=True)


@pytest.fixture
def open_yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Yard]]:
    monkeypatch.chdir(APPS)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    opened: list[Yard] = []

    def open_one(target: str = "basic:app", worker_id: str = "w1") -> Yard:
        opened.append(Yard(tmp_path, target, worker_id))
        return opened[-1]

    yield open_one
    for yard in opened:
        yard.close()


@pytest.fixture
def yard(open_yard: Callable[..., Yard]) -> Yard:
    return open_yard()


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


def pids_from(fifo: str) -> list[int]:
    """What a task says about itself once it runs. Waits for it."""
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        said = b""
        while True:
            assert poll.poll(PATIENCE * 1000), "the task did not begin"
            part = os.read(fd, 100)
            if not part and said:
                return [int(pid) for pid in said.split()]
            said += part
    finally:
        os.close(fd)


def assert_gone(*pids_or_fds: int) -> None:
    """All of these pidfds belong to processes that end soon."""
    for pidfd in pids_or_fds:
        assert select.select([pidfd], [], [], PATIENCE)[0], f"process of pidfd {pidfd} lives on"
        os.close(pidfd)


# The application


def test_the_application_introduces_itself(yard: Yard) -> None:
    facts = yard.next(AppReady).facts

    assert facts.store_url == "sqlite:////tmp/x.db"
    assert json.loads(facts.config_json)["answer"] == 42
    assert "echo" in facts.sync_names
    assert "aecho" in facts.async_names
    assert facts.fork_reason is None


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        ("nowhere:app", "missing", "no module nowhere"),
        ("basic:nothing", "missing", "has no 'nothing'"),
        ("basic:os", "missing", "not an Everbeat app"),
        ("broken:app", "raised", "ValueError: no configuration here"),
        ("lacking:app", "raised", "a_module_that_is_not_installed"),
    ],
)
def test_an_import_that_fails_is_reported_with_its_reason(
    open_yard: Callable[..., Yard], target: str, kind: str, words: str
) -> None:
    failed = open_yard(target).next(AppFailed)

    assert failed.kind == kind
    assert words in failed.message
    assert "everbeat/run" not in failed.message
    assert "importlib" not in failed.message


def test_a_failing_import_is_tried_again(
    open_yard: Callable[..., Yard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "switch"
    switch.write_text("broken")
    monkeypatch.setenv("FLAKY", str(switch))
    yard = open_yard("flaky:app")
    yard.crew.spawn(0, SYNC)
    yard.next(AppFailed)

    switch.write_text("fine")

    yard.next(AppReady)
    yard.next(ChildReady)
    assert yard.run(0, "echo", 1) == 1


@pytest.mark.parametrize(("target", "reason"), [("threaded:app", "left-behind"), ("connected:app", "connections open")])
def test_an_application_that_can_not_be_forked_gets_new_interpreters(
    open_yard: Callable[..., Yard], target: str, reason: str
) -> None:
    yard = open_yard(target)

    assert reason in str(yard.next(AppReady).facts.fork_reason)
    pid = yard.ready(0, SYNC)
    seen = yard.run(0, "process")

    assert (seen["pid"], seen["group"]) == (pid, pid)
    assert seen["inherited_by_exec"] == []
    yard.crew.kill(0)
    assert yard.next(Died).status == -signal.SIGKILL


# Running


def test_a_sync_child_runs_a_task_and_tells_its_result(yard: Yard) -> None:
    before = time.time_ns() // 1000
    yard.ready(0, SYNC)
    claim = yard.claim("echo", "hello")

    (entry,) = yard.send(0, claim)
    outcome = yard.outcome(claim)

    assert outcome.result == b'"hello"'
    assert before <= outcome.began_at <= outcome.ended_at <= time.time_ns() // 1000
    assert yard.journal.begun_ns(entry, claim.seq, claim.fence) is not None


def test_an_async_child_runs_many_tasks_at_once(yard: Yard, fifo: str) -> None:
    yard.ready(0, ASYNC)
    waiting = yard.claim("await_ever", fifo)
    others = [yard.claim("aecho", number) for number in range(100)]

    yard.send(0, waiting, *others)
    pids_from(fifo)

    assert [yard.outcome(claim).result for claim in others] == [str(number).encode() for number in range(100)]
    assert (waiting.seq, 1) not in yard.outcomes


def test_an_async_child_tells_of_one_turn_before_it_begins_the_next(yard: Yard) -> None:
    yard.ready(0, ASYNC)
    first = [yard.claim("anoop") for _ in range(AT_ONCE)]

    yard.send(0, *first, yard.claim("asegfault"))

    yard.next(Died)
    assert yard.outcomes.keys() == {(claim.seq, claim.fence) for claim in first}


def test_an_async_child_has_no_more_tasks_than_places_and_the_next_as_soon_as_one_has_ended(yard: Yard) -> None:
    yard.crew.equip(yard.lock, yard.journal, beat_seconds=0.05, async_slots=3)
    yard.ready(0, ASYNC)
    claims = [yard.claim("acount") for _ in range(40)]

    yard.send(0, *claims[:20])
    yard.send(0, *claims[20:])

    at_once = [int(yard.outcome(claim).result or b"") for claim in claims]
    assert max(at_once) == 3


def test_what_has_no_place_in_an_async_child_is_read_back(yard: Yard, fifo: str) -> None:
    yard.crew.equip(yard.lock, yard.journal, beat_seconds=0.05, async_slots=1)
    yard.ready(0, ASYNC)
    busy, *rest = yard.claim("await_ever", fifo), yard.claim("aecho", 1), yard.claim("aecho", 2)
    yard.send(0, busy, *rest)
    pids_from(fifo)

    assert yard.crew.take_back(0) == [(claim.seq, 1) for claim in rest]
    assert yard.crew.take_back(0) == []


@pytest.mark.parametrize("name", ["echo", "aecho"])
def test_a_process_of_its_own_runs_one_task_and_ends(yard: Yard, name: str) -> None:
    yard.ready(0, OWN)

    assert yard.run(0, name, 7) == 7
    died = yard.next(Died)
    assert (died.status, died.unread, died.was_ready) == (0, [], True)


def test_a_task_knows_who_it_is(yard: Yard) -> None:
    yard.ready(0, SYNC)

    assert yard.run(0, "whoami") == {"id": "task-1", "name": "whoami", "attempt": 1, "fence": 1, "crashes": 0}


def test_a_child_leads_its_own_group_and_leaks_nothing(yard: Yard) -> None:
    yard.ready(0, SYNC)
    yard.ready(1, SYNC)
    pid = yard.ready(2, SYNC)

    seen = yard.run(2, "process")

    assert (seen["pid"], seen["group"]) == (pid, pid)
    assert seen["parent"] == yard.crew.nursery.server.process.pid  # type: ignore[union-attr]
    assert seen["stdin"] == "/dev/null"
    assert seen["sockets"] == 1 + _own_output("socket:")  # tasks in; nothing of its siblings
    assert seen["pipes"] == 3 + _own_output("pipe:")  # tickets, outcomes, the leash
    assert seen["inherited_by_exec"] == []


def _own_output(kind: str) -> int:
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith(kind) for fd in (1, 2))


@pytest.mark.parametrize("kind", [SYNC, ASYNC])
def test_sixteen_mebibytes_travel_both_ways(yard: Yard, kind: ChildKind) -> None:
    yard.ready(0, kind)
    text = "x" * (16 << 20)

    assert yard.run(0, "echo" if kind is SYNC else "aecho", text) == text


@pytest.mark.parametrize(
    ("name", "args", "code", "exception"),
    [
        ("fail", ("oh no",), "UNHANDLED_EXCEPTION", "builtins.ValueError"),
        ("sys_exit", (), "UNHANDLED_EXCEPTION", "builtins.SystemExit"),
        ("ctrl_c", (), "UNHANDLED_EXCEPTION", "builtins.KeyboardInterrupt"),
        ("unspeakable", (), "UNHANDLED_EXCEPTION", "basic.Unspeakable"),
        ("bad_result", (), "RESULT_INVALID", "everbeat.errors.PayloadError"),
        ("huge_result", (), "RESULT_TOO_LARGE", "everbeat.errors.ResultTooLarge"),
        ("noop", ("too many",), "UNHANDLED_EXCEPTION", "builtins.TypeError"),
        ("nobody", (), "UNKNOWN_TASK", None),
    ],
)
def test_a_task_that_fails_says_why_and_the_child_goes_on(
    yard: Yard, name: str, args: tuple[Any, ...], code: str, exception: str | None
) -> None:
    yard.ready(0, SYNC)

    error = yard.run(0, name, *args)

    assert (error.code, error.exception_type) == (code, exception)
    assert yard.run(0, "echo", 1) == 1


def test_an_error_carries_its_lineage_and_only_the_tasks_own_frames(yard: Yard) -> None:
    yard.ready(0, SYNC)

    error = yard.run(0, "fail_oddly")

    assert error.lineage == ("builtins.ValueError", "builtins.Exception", "builtins.BaseException")
    assert error.message.startswith("n\\x00o \\udcff")
    assert len(error.message.encode()) <= 64 * 1024
    assert "child.py" not in error.traceback
    assert "in fail_oddly" in error.traceback


def test_arguments_that_can_not_be_decoded_fail_the_task(yard: Yard) -> None:
    yard.ready(0, SYNC)

    assert yard.run(0, "echo", raw=b"{nonsense").code == "ARGUMENTS_INVALID"


def test_an_async_task_that_exits_harms_nobody(yard: Yard) -> None:
    yard.ready(0, ASYNC)

    assert yard.run(0, "asys_exit").exception_type == "builtins.SystemExit"
    assert yard.run(0, "aecho", 1) == 1


def test_stop_signals_do_nothing_to_a_child(yard: Yard) -> None:
    yard.ready(0, SYNC)

    assert yard.run(0, "stop_signals") == "alive"


def test_stop_signals_do_nothing_to_the_fork_server(yard: Yard) -> None:
    yard.ready(0, SYNC)  # so it has begun to serve
    server = yard.crew.nursery.server
    assert server is not None

    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    yard.ready(1, SYNC)

    assert yard.run(1, "process")["parent"] == server.process.pid
    assert yard.run(0, "echo", 1) == 1


@pytest.mark.parametrize("name", ["fork_and_return", "fork_and_raise"])
def test_a_process_that_a_task_forks_does_not_answer_for_it(yard: Yard, name: str) -> None:
    pid = yard.ready(0, SYNC)

    answered = yard.run(0, name)
    assert isinstance(answered, int)
    assert answered >= 0
    assert yard.run(0, "process")["pid"] == pid


def test_a_process_forked_in_an_event_loop_leaves_it_at_once(yard: Yard) -> None:
    yard.ready(0, ASYNC)
    neighbours = [yard.claim("aecho", number) for number in range(20)]
    forker = yard.claim("afork")

    yard.send(0, *neighbours[:10], forker, *neighbours[10:])

    assert yard.outcome(forker).result == b"0"
    assert [yard.outcome(claim).result for claim in neighbours] == [str(number).encode() for number in range(20)]


# Reading back


def test_what_a_busy_child_has_not_taken_is_read_back(yard: Yard, fifo: str) -> None:
    yard.ready(0, SYNC)
    busy = yard.claim("say_and_sleep", fifo)
    queued = [yard.claim("noop") for _ in range(64)]
    yard.send(0, busy, *queued)
    pids_from(fifo)

    assert yard.crew.take_back(0) == [(claim.seq, 1) for claim in queued]
    assert yard.crew.take_back(0) == []


def test_each_task_is_either_run_or_read_back(yard: Yard) -> None:
    yard.ready(0, SYNC)
    taken_back = 0
    for _ in range(1000):
        claims = [yard.claim("noop") for _ in range(8)]
        entries = yard.send(0, *claims)

        back = set(yard.crew.take_back(0))
        taken_back += len(back)
        expected = {(claim.seq, 1) for claim in claims} - back
        yard.wait(lambda expected=expected: expected <= yard.outcomes.keys())

        assert not back & yard.outcomes.keys()
        yard.outcomes.clear()
        for entry, claim in zip(entries, claims, strict=True):
            assert (yard.journal.begun_ns(entry, claim.seq, 1) is None) == ((claim.seq, 1) in back)
            yard.journal.release(entry)
    assert taken_back > 0


def test_big_tasks_are_read_back_too(yard: Yard, fifo: str) -> None:
    yard.ready(0, SYNC)
    yard.send(0, yard.claim("say_and_sleep", fifo))
    pids_from(fifo)
    big = [yard.claim("echo", "x" * 100_000) for _ in range(3)]
    yard.send(0, *big)

    assert yard.crew.take_back(0) == [(claim.seq, 1) for claim in big]


def test_more_than_the_queue_can_hold_is_kept_and_still_runs(yard: Yard) -> None:
    pid = yard.ready(0, SYNC)
    os.kill(pid, signal.SIGSTOP)
    claims = [yard.claim("echo", "x" * 50_000) for _ in range(200)]

    yard.send(0, *claims)
    refused = yard.crew.send(0, [(0, yard.claim("noop"))])
    os.kill(pid, signal.SIGCONT)

    assert not refused
    for claim in claims:
        assert yard.outcome(claim).error is None


def test_what_found_no_room_is_read_back_as_well(yard: Yard) -> None:
    pid = yard.ready(0, SYNC)
    os.kill(pid, signal.SIGSTOP)
    claims = [yard.claim("echo", "x" * 50_000) for _ in range(200)]
    yard.send(0, *claims)

    back = yard.crew.take_back(0)

    assert back == [(claim.seq, 1) for claim in claims]


# Deaths


@pytest.mark.parametrize(
    ("name", "args", "status"), [("segfault", (), -signal.SIGSEGV), ("leave", (3,), 3), ("leave", (0,), 0)]
)
def test_a_child_that_dies_under_its_task_is_reported_with_its_status(
    yard: Yard, name: str, args: tuple[Any, ...], status: int
) -> None:
    pid = yard.ready(0, SYNC)
    claim, behind = yard.claim(name, *args), yard.claim("noop")

    entry, behind_entry = yard.send(0, claim, behind)
    died = yard.next(Died)

    assert (died.slot, died.pid, died.status, died.was_ready) == (0, pid, status, True)
    assert died.outcomes == []
    assert died.unread == [(behind.seq, 1)]
    assert died.seconds_alive > 0
    assert yard.journal.begun_ns(entry, claim.seq, 1) is not None
    assert yard.journal.begun_ns(behind_entry, behind.seq, 1) is None


def test_an_outcome_that_was_sent_wins_over_the_death_that_follows(yard: Yard, fifo: str) -> None:
    pid = yard.ready(0, SYNC)
    finished, running = yard.claim("echo", "done"), yard.claim("say_and_sleep", fifo)
    yard.send(0, finished, running)
    pids_from(fifo)

    os.kill(pid, signal.SIGKILL)  # nothing has been collected since
    died = yard.next(Died)

    assert died.status == -signal.SIGKILL
    assert yard.outcomes[finished.seq, 1].result == b'"done"'
    assert (running.seq, 1) not in yard.outcomes


def test_an_outcome_is_heard_even_if_the_death_is_heard_first(yard: Yard, fifo: str) -> None:
    pid = yard.ready(0, SYNC)
    server = yard.crew.nursery.server
    assert server is not None
    finished = yard.claim("echo", "done")
    yard.send(0, finished, yard.claim("say_and_sleep", fifo))
    pids_from(fifo)

    os.kill(pid, signal.SIGKILL)
    assert select.select([server.inbox.end], [], [], PATIENCE)[0]
    yard.crew.nursery.hear(server)  # as when its message arrives while others are being read

    assert [(seq, outcome.result) for _, seq, _, outcome in yard.next(Died).outcomes] == [(finished.seq, b'"done"')]


def test_a_crash_of_the_async_process_is_reported(yard: Yard, fifo: str) -> None:
    yard.ready(0, ASYNC)
    waiting, culprit = yard.claim("await_ever", fifo), yard.claim("asegfault")
    (entry,) = yard.send(0, waiting)
    pids_from(fifo)

    (culprit_entry,) = yard.send(0, culprit)

    assert yard.next(Died).status == -signal.SIGSEGV
    assert yard.journal.begun_ns(entry, waiting.seq, 1) is not None
    assert yard.journal.begun_ns(culprit_entry, culprit.seq, 1) is not None


@pytest.mark.parametrize("name", ["start_sleeper", "fork_sleeper"])
def test_what_a_task_left_behind_does_not_hide_the_death_and_dies_with_the_child(yard: Yard, name: str) -> None:
    yard.ready(0, SYNC)
    sleeper = os.pidfd_open(yard.run(0, name))

    yard.crew.kill(0)

    assert yard.next(Died).status == -signal.SIGKILL
    assert_gone(sleeper)


def test_a_stopped_child_is_silent_but_not_dead(yard: Yard) -> None:
    pid = yard.ready(0, SYNC)
    assert yard.crew.responsive(0)

    os.kill(pid, signal.SIGSTOP)
    yard.wait(lambda: not yard.crew.responsive(0))
    os.kill(pid, signal.SIGCONT)
    yard.wait(lambda: yard.crew.responsive(0))

    assert not any(isinstance(news, Died) for news in yard.pending)
    os.kill(pid, signal.SIGSTOP)
    yard.crew.kill(0)
    assert yard.next(Died).status == -signal.SIGKILL


def test_a_child_that_holds_the_gil_is_silent_and_can_be_killed(yard: Yard, fifo: str) -> None:
    yard.ready(0, SYNC)
    yard.send(0, yard.claim("hold_gil", fifo))
    _, sleeper = pids_from(fifo)
    watched = os.pidfd_open(sleeper)

    yard.wait(lambda: not yard.crew.responsive(0))
    yard.crew.kill(0)

    assert yard.next(Died).status == -signal.SIGKILL
    assert_gone(watched)


def test_a_slot_can_be_used_again_at_once(yard: Yard) -> None:
    pids = set()
    for _ in range(20):
        pids.add(yard.ready(0, SYNC))
        yard.crew.kill(0)
        yard.next(Died)

    assert len(pids) == 20


def test_a_child_that_was_never_started_can_be_killed(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard("broken:app")
    yard.crew.spawn(0, SYNC)

    yard.crew.kill(0)

    died = yard.next(Died)
    assert (died.pid, died.status, died.was_ready) == (0, None, False)


def test_a_child_that_can_not_lock_its_byte_does_not_start(yard: Yard) -> None:
    ready, tell = os.pipe()
    rival = os.fork()
    if rival == 0:
        lock_child_byte(yard.lock.fd, 0)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    yard.crew.spawn(0, SYNC)

    died = yard.next(Died)

    assert (died.status, died.was_ready) == (70, False)
    os.kill(rival, signal.SIGKILL)
    os.waitpid(rival, 0)
    for fd in (ready, tell):
        os.close(fd)


def test_a_child_is_made_although_the_files_of_its_worker_have_lost_their_names(yard: Yard) -> None:
    for path in (yard.lock.path, yard.journal.path):
        path.unlink()

    yard.ready(0, SYNC)

    assert yard.run(0, "echo", 2) == 2


# The fork server


def test_kill_9_of_the_fork_server_takes_its_children_and_another_takes_over(yard: Yard, fifo: str) -> None:
    yard.ready(0, SYNC)
    yard.ready(1, SYNC)
    sleeper = os.pidfd_open(yard.run(1, "start_sleeper"))
    busy, behind = yard.claim("say_and_sleep", fifo), yard.claim("noop")
    yard.send(0, busy, behind)
    pids_from(fifo)
    server = yard.crew.nursery.server
    assert server is not None

    os.kill(server.process.pid, signal.SIGKILL)
    deaths = {died.slot: died for died in (yard.next(Died), yard.next(Died))}

    assert {slot: died.status for slot, died in deaths.items()} == {0: None, 1: None}
    assert deaths[0].unread == [(behind.seq, 1)]
    assert_gone(sleeper)
    assert yard.next(AppFailed).kind == "died"
    yard.next(AppReady)
    yard.next(AppReady)
    yard.ready(0, SYNC)
    assert yard.run(0, "echo", "again") == "again"


def test_children_asked_for_are_made_by_the_next_fork_server(yard: Yard) -> None:
    yard.next(AppReady)
    server = yard.crew.nursery.server
    assert server is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    yard.crew.spawn(0, SYNC)
    yard.crew.spawn(1, ASYNC)

    os.kill(server.process.pid, signal.SIGKILL)

    assert {yard.next(ChildReady).slot, yard.next(ChildReady).slot} == {0, 1}
    assert yard.run(1, "aecho", 1) == 1


def test_a_stopped_fork_server_does_not_hide_a_death(yard: Yard) -> None:
    pid = yard.ready(0, SYNC)
    server = yard.crew.nursery.server
    assert server is not None
    os.kill(server.process.pid, signal.SIGSTOP)

    os.kill(pid, signal.SIGKILL)
    died = yard.next(Died)
    yard.crew.spawn(0, SYNC)
    os.kill(server.process.pid, signal.SIGCONT)

    assert died.status is None
    assert yard.next(ChildReady).slot == 0


@pytest.fixture
def busy_supervisor(tmp_path: Path, open_yard: Callable[..., Yard]) -> Iterator[tuple[int, int, list[int], int]]:
    """Pids of a supervisor in its own process, its fork server, three busy children, and a program of one of them."""
    fifos = [str(tmp_path / f"fifo{slot}") for slot in range(3)]
    for fifo in fifos:
        os.mkfifo(fifo)
    supervisor = subprocess.Popen([sys.executable, str(APPS / "supervise.py"), str(tmp_path), *fifos])
    (holder, sleeper), *others = (pids_from(fifo) for fifo in fifos)
    children = [holder, *(pid for (pid,) in others)]
    yield supervisor.pid, _parent_of(holder), children, sleeper
    supervisor.kill()
    supervisor.wait()


def test_kill_9_of_the_supervisor_leaves_nobody(busy_supervisor: tuple[int, int, list[int], int]) -> None:
    supervisor, server, children, sleeper = busy_supervisor
    watched = [os.pidfd_open(pid) for pid in (server, *children, sleeper)]

    os.kill(supervisor, signal.SIGKILL)
    killed_at = time.monotonic()
    assert_gone(*watched)

    assert time.monotonic() - killed_at < 5.0


@pytest.mark.parametrize("first_news", ["channel", "child"])
def test_a_fork_server_that_is_told_of_the_death_while_it_reaps_ends_with_all_of_its_group(first_news: str) -> None:
    server = subprocess.Popen(
        [sys.executable, str(APPS / "told_twice.py"), first_news], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert server.stdout is not None
    of_its_group = os.pidfd_open(int(server.stdout.readline()))

    _, said = server.communicate(timeout=PATIENCE)

    assert (server.returncode, said) == (-signal.SIGKILL, b"")
    assert_gone(of_its_group)


def test_children_need_nobody_to_die_with_the_fork_server(busy_supervisor: tuple[int, int, list[int], int]) -> None:
    supervisor, server, children, _ = busy_supervisor
    watched = [os.pidfd_open(pid) for pid in children]
    os.kill(supervisor, signal.SIGSTOP)

    os.kill(server, signal.SIGKILL)

    assert_gone(*watched)
    os.kill(supervisor, signal.SIGCONT)


def test_children_die_with_the_supervisor_although_the_fork_server_is_stopped(
    busy_supervisor: tuple[int, int, list[int], int],
) -> None:
    """One of them holds the GIL, one is stopped itself."""
    supervisor, server, children, sleeper = busy_supervisor
    watched = [os.pidfd_open(pid) for pid in (*children, sleeper)]
    os.kill(server, signal.SIGSTOP)
    os.kill(children[1], signal.SIGSTOP)

    os.kill(supervisor, signal.SIGKILL)

    try:
        assert_gone(*watched)
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.mark.parametrize("kind", [SYNC, ASYNC])
def test_a_child_that_nobody_listens_to_any_more_ends_without_a_word(
    open_yard: Callable[..., Yard], tmp_path: Path, kind: ChildKind
) -> None:
    yard = open_yard()
    (tasks, theirs), (ear, mouth), tickets, leash = channel(), speech(), Tickets(), Leash()
    plan = ChildPlan(
        slot=0, kind=kind, task_fd=theirs.fileno(), ticket_fd=tickets.fd, outcome_fd=mouth, leash_fd=leash.fd,
        lock_fd=yard.lock.fd, journal_fd=yard.journal.fd, server_pid=os.getpid(), target="basic:app", imports=(),
        kit=Kit(1.0),
    )  # fmt: skip
    os.close(ear)

    child = subprocess.run(
        [sys.executable, "-m", "everbeat.run.child", msgspec.json.encode(plan).decode()],
        pass_fds=(theirs.fileno(), tickets.fd, mouth, leash.fd, yard.lock.fd, yard.journal.fd),
        capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip

    assert (child.returncode, child.stderr) == (0, b"")
    os.close(mouth)
    for end in (tasks, theirs, tickets, leash):
        end.close()


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Interrupts


@pytest.mark.parametrize(
    ("kind", "code", "exception"),
    [
        (InterruptKind.INTERRUPT, "WORKER_STOPPED", "TaskInterrupted"),
        (InterruptKind.TIMEOUT, "TASK_TIMEOUT", "TaskTimeout"),
        (InterruptKind.CANCEL, "TASK_CANCELLED", "TaskCancelRequested"),
    ],
)
@pytest.mark.parametrize(
    ("child", "name"), [(SYNC, "say_and_sleep"), (OWN, "say_and_sleep"), (OWN, "await_ever"), (ASYNC, "await_ever")]
)
def test_a_running_task_is_interrupted(
    yard: Yard, fifo: str, child: ChildKind, name: str, kind: InterruptKind, code: str, exception: str
) -> None:
    yard.ready(0, child)
    claim = yard.claim(name, fifo)
    yard.send(0, claim)
    pids_from(fifo)

    assert yard.crew.interrupt(0, claim, kind)
    error = yard.outcome(claim).error

    assert error is not None
    assert (error.code, error.exception_type) == (code, f"everbeat.errors.{exception}")
    assert "child.py" not in (error.traceback or "")


def test_a_task_may_clean_up_when_it_is_interrupted(yard: Yard, fifo: str) -> None:
    yard.ready(0, SYNC)
    claim = yard.claim("stubborn", fifo)
    yard.send(0, claim)
    pids_from(fifo)

    yard.crew.interrupt(0, claim, InterruptKind.CANCEL)

    assert yard.outcome(claim).result == b'"cleaned up after TaskCancelRequested"'


@pytest.mark.parametrize(("child", "name"), [(SYNC, "stubborn"), (ASYNC, "await_ever")])
def test_an_interrupt_for_another_fence_is_not_for_this_task(
    yard: Yard, fifo: str, child: ChildKind, name: str
) -> None:
    yard.ready(0, child)
    claim = yard.claim(name, fifo, fence=5)
    yard.send(0, claim)
    pids_from(fifo)
    earlier = yard.claim(name, fence=4)
    earlier.seq = claim.seq

    yard.crew.interrupt(0, earlier, InterruptKind.TIMEOUT)
    yard.crew.interrupt(0, claim, InterruptKind.CANCEL)

    outcome = yard.outcome(claim)
    if child is SYNC:
        assert outcome.result == b'"cleaned up after TaskCancelRequested"'
    else:
        assert outcome.error is not None
        assert outcome.error.code == "TASK_CANCELLED"


def test_an_interrupt_that_comes_before_its_task_begins_is_not_lost(yard: Yard, fifo: str) -> None:
    yard.ready(0, SYNC)
    claim = yard.claim("say_and_sleep", fifo)

    yard.crew.interrupt(0, claim, InterruptKind.TIMEOUT)
    yard.send(0, claim)

    error = yard.outcome(claim).error
    assert error is not None
    assert error.code == "TASK_TIMEOUT"


def test_an_interrupt_of_an_idle_child_does_nothing(yard: Yard) -> None:
    yard.ready(0, SYNC)
    claim = yard.claim("noop")
    yard.send(0, claim)
    yard.outcome(claim)

    yard.crew.interrupt(0, claim, InterruptKind.CANCEL)

    assert yard.run(0, "echo", 1) == 1  # a task with the same fence


# The lock, and the end


def test_a_worker_is_alive_for_others_until_the_last_child_is_gone(yard: Yard) -> None:
    yard.ready(0, SYNC)
    host = this_host()
    asked = (
        "import sys; from everbeat.run.lockfile import *; from everbeat.model.worker import *;"
        f"print(probe({yard.lock.identity!r}, 'w1', {host!r}, this_host())[0])"
    )

    def seen_from_outside() -> str:
        return subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()

    while_alive = seen_from_outside()
    yard.lock.close(unlink=False)
    with_a_child = seen_from_outside()
    yard.crew.stop()

    assert (while_alive, with_a_child) == ("held", "held")
    assert probe(yard.lock.identity, "w1", host, host)[0] is Liveness.UNKNOWN  # the lock is free, this process lives


def test_stopping_leaves_nobody_and_no_fd(open_yard: Callable[..., Yard]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    yard = open_yard()
    pids = [yard.ready(slot, kind) for slot, kind in enumerate((SYNC, SYNC, ASYNC))]
    sleeper = yard.run(0, "start_sleeper")
    watched = [os.pidfd_open(pid) for pid in (*pids, sleeper)]

    yard.close()
    yard.crew.stop()

    assert_gone(*watched)
    assert yard.crew.collect() == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_second_crew_can_follow_in_the_same_process(open_yard: Callable[..., Yard]) -> None:
    first = open_yard()
    first.ready(0, SYNC)
    first.crew.stop()
    second = open_yard(worker_id="w2")

    second.ready(0, SYNC)

    assert second.run(0, "echo", 2) == 2


def test_an_idle_crew_has_no_news(yard: Yard) -> None:
    yard.ready(0, SYNC)
    yard.run(0, "noop")

    assert select.select([yard.crew], [], [], 0)[0] == []
    assert yard.crew.collect() == []


# -- exclusive keys ---------------------------------------------------------------------------------------------------


def exclusive(claim: Claim) -> Claim:
    return replace(claim, exclusive_key="k")


def test_a_child_with_an_exclusive_task_is_ended_by_the_fork_server_when_the_deadline_is_over(yard: Yard) -> None:
    guarded, other = yard.ready(1, SYNC), yard.ready(2, SYNC)
    yard.crew.deadline.move_to(boot_us() + 300_000)
    yard.send(1, exclusive(yard.claim("nap", 600)))
    yard.send(2, yard.claim("nap", 600))

    death = yard.next(Died)

    assert (death.slot, death.pid, death.status, death.overdue) == (1, guarded, -signal.SIGKILL, True)
    assert os.path.exists(f"/proc/{other}")


def test_a_deadline_that_moves_on_ends_nobody(yard: Yard) -> None:
    yard.ready(1, SYNC)
    yard.crew.deadline.move_to(boot_us() + 300_000)
    claim = exclusive(yard.claim("nap", 1.5))
    yard.send(1, claim)

    def renewed_to_the_end() -> bool:
        yard.crew.deadline.move_to(boot_us() + 500_000)
        return (claim.seq, claim.fence) in yard.outcomes

    yard.wait(renewed_to_the_end)

    assert yard.outcome(claim).error is None


def test_a_child_whose_exclusive_task_has_ended_is_not_guarded_any_more(yard: Yard) -> None:
    child = yard.ready(1, SYNC)
    yard.crew.deadline.move_to(boot_us() + 5_000_000)
    claim = exclusive(yard.claim("noop"))
    yard.send(1, claim)
    yard.outcome(claim)
    yard.crew.deadline._cell[0] = boot_us()  # over, as if it had not been renewed

    assert yard.run(1, "nap", 0.5) is None
    assert os.path.exists(f"/proc/{child}")
