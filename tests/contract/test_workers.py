"""The life of a worker, who judges it, and when a judge is fit to judge."""

import pytest
from tests.conftest import OpenStore
from tests.words import BOOT_ID, SECOND, VirtualClock, a_worker, claim_one, enqueue, register, requeue

from everbeat.decide.liveness import is_overdue
from everbeat.model.worker import WorkerInfo, WorkerStatus
from everbeat.store.interface import Store
from everbeat.store.messages import Held


def the(store: Store, worker_id: str) -> WorkerInfo:
    return next(worker for worker in store.workers() if worker.id == worker_id)


# -- alive ------------------------------------------------------------------------------------------------------------


def test_a_registered_worker_is_alive_and_known_with_all_it_said(store: Store) -> None:
    store.register(a_worker("w1", queues=("mail", "sms"), processes=3, async_slots=50, beat_interval_ms=10_000))

    worker = the(store, "w1")

    assert (worker.status, worker.queues, worker.processes, worker.async_slots) == ("alive", ("mail", "sms"), 3, 50)
    assert (worker.beat_interval_ms, worker.host.boot_id, worker.same_clock) == (10_000, BOOT_ID, True)
    assert (worker.silent_for_us, worker.held) == (0, 0)


@pytest.mark.proves("FR-034")
def test_a_beat_ends_the_silence(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    clock.advance(31)
    assert the(store, "w1").silent_for_us == 31 * SECOND

    assert store.beat("w1", []).alive

    assert the(store, "w1").silent_for_us == 0


def test_silence_does_not_depend_on_the_wall_clock(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    clock.wall += 3_600 * SECOND

    assert the(store, "w1").silent_for_us == 0


def test_a_worker_of_another_boot_is_silent_without_end(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    clock.id = "another boot"

    worker = the(store, "w1")

    assert worker.silent_for_us > 10**15
    assert worker.same_clock is False


def test_a_beat_never_revives_a_worker_declared_dead(store: Store) -> None:
    register(store, "w1")
    store.declare_dead("w1", reason="lost its lock", cause="proof")

    assert store.beat("w1", []).alive is False
    assert (the(store, "w1").status, the(store, "w1").end_reason) == (WorkerStatus.DEAD, "lost its lock")


def test_a_beat_of_a_worker_that_never_registered_is_refused(store: Store) -> None:
    assert store.beat("nobody", []).alive is False
    assert store.workers() == []


def test_the_task_of_the_last_beat_is_known(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a")
    register(store, "w1")
    register(store, "w2")
    held = [Held(task_id="a", fence=0, role="claimer", pid=5)]

    store.beat("w1", held)
    assert store.beaten_for("w1") == "a"
    assert store.beaten_for("w2") is None

    clock.advance(1)
    store.beat("w1", [])
    assert store.beaten_for("w1") is None


def test_a_beat_names_the_tasks_that_the_worker_does_not_hold(store: Store) -> None:
    enqueue(store, id="a")
    enqueue(store, id="b")
    a = claim_one(store)
    claim_one(store)

    beat = store.beat("w1", [Held(task_id="a", fence=a.fence, role="runner", pid=5)])

    assert [stranger.id for stranger in beat.strangers] == ["b"]


def test_a_task_held_under_an_old_fence_is_not_held(store: Store) -> None:
    enqueue(store, id="a")
    old = claim_one(store)
    requeue(store, old)
    new = claim_one(store)

    beat = store.beat("w1", [Held(task_id="a", fence=old.fence, role="runner", pid=5)])

    assert [(stranger.id, stranger.fence) for stranger in beat.strangers] == [("a", new.fence)]


# -- gone -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-045", "FR-047", "AC-008")
def test_death_by_proof_is_declared_once(store: Store) -> None:
    register(store, "w1")

    assert store.declare_dead("w1", reason="lost its lock", cause="proof") is True
    assert store.declare_dead("w1", reason="lost its lock", cause="proof") is False
    assert [event.name for event in store.events()] == ["worker.started", "worker.dead"]


def test_death_by_silence_tests_the_silence_again_in_the_write(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    clock.advance(301)
    store.beat("w1", [])  # between the look and the verdict

    assert store.declare_dead("w1", reason="silent", cause="silence", silent_for_us=300 * SECOND) is False
    clock.advance(301)
    assert store.declare_dead("w1", reason="silent", cause="silence", silent_for_us=300 * SECOND) is True


def test_a_worker_of_another_boot_needs_no_threshold(store: Store, clock: VirtualClock) -> None:
    register(store, "w1")
    clock.id = "another boot"

    assert store.declare_dead("w1", reason="restarted", cause="silence", silent_for_us=300 * SECOND) is True


def test_a_worker_that_retires_is_stopped_and_can_not_be_declared_dead(store: Store) -> None:
    register(store, "w1")
    store.retire("w1")

    assert store.declare_dead("w1", reason="silent", cause="proof") is False
    assert the(store, "w1").status is WorkerStatus.STOPPED
    assert store.workers(alive_only=True) == []


def test_a_worker_declared_dead_does_not_become_stopped(store: Store) -> None:
    register(store, "w1")
    store.declare_dead("w1", reason="silent", cause="proof")

    store.retire("w1")

    assert the(store, "w1").status is WorkerStatus.DEAD


def test_the_tasks_a_worker_holds_are_counted_for_people(store: Store) -> None:
    enqueue(store)
    claim_one(store)

    assert the(store, "w1").held == 1


# -- roles ------------------------------------------------------------------------------------------------------------


def test_a_role_has_one_holder_until_its_lease_runs_out(open_store: OpenStore, clock: VirtualClock) -> None:
    here, there = open_store(), open_store()

    assert here.take_role("reaper", "w1", lease_us=5 * SECOND) is True
    assert there.take_role("reaper", "w2", lease_us=5 * SECOND) is False
    clock.advance(4)
    assert here.take_role("reaper", "w1", lease_us=5 * SECOND) is True
    clock.advance(4)
    assert there.take_role("reaper", "w2", lease_us=5 * SECOND) is False
    clock.advance(2)
    assert there.take_role("reaper", "w2", lease_us=5 * SECOND) is True
    assert here.take_role("reaper", "w1", lease_us=5 * SECOND) is False


@pytest.mark.proves("FR-049")
@pytest.mark.parametrize("end", ["retire", "die"])
def test_a_role_is_free_as_soon_as_its_holder_is_gone(store: Store, end: str) -> None:
    register(store, "w1")
    store.take_role("reaper", "w1", lease_us=60 * SECOND)

    if end == "retire":
        store.retire("w1")
    else:
        store.declare_dead("w1", reason="lost its lock", cause="proof")

    assert store.take_role("reaper", "w2", lease_us=60 * SECOND) is True


def test_roles_are_held_apart(store: Store) -> None:
    assert store.take_role("reaper", "w1", lease_us=SECOND) is True
    assert store.take_role("janitor", "w2", lease_us=SECOND) is True


# -- fit to judge -----------------------------------------------------------------------------------------------------


def beat_on(store: Store, clock: VirtualClock, seconds: int, *workers: str, every: int = 30) -> None:
    for _ in range(seconds // every):
        clock.advance(every)
        for worker in workers:
            store.beat(worker, [])


def is_judged(store: Store, worker_id: str) -> bool:
    return is_overdue(the(store, worker_id), 300_000, store_healthy_for_us=store.healthy_for_us())


def test_health_begins_with_the_first_worker_and_grows_while_somebody_beats(store: Store, clock: VirtualClock) -> None:
    assert store.healthy_for_us() == 0
    register(store, "w1")
    beat_on(store, clock, 120, "w1")

    assert store.healthy_for_us() == 120 * SECOND


def test_a_silent_worker_is_judged_after_the_threshold(store: Store, clock: VirtualClock) -> None:
    register(store, "judge")
    register(store, "frozen")
    beat_on(store, clock, 300, "judge")
    assert not is_judged(store, "frozen")

    beat_on(store, clock, 30, "judge")

    assert is_judged(store, "frozen")


def test_an_outage_gives_everybody_a_full_window(store: Store, clock: VirtualClock) -> None:
    register(store, "judge")
    register(store, "late")
    beat_on(store, clock, 3_600, "judge", "late")

    clock.advance(1_000)  # nobody could write
    assert store.healthy_for_us() == 0  # known before anybody beats again
    store.beat("judge", [])
    assert not is_judged(store, "late")
    beat_on(store, clock, 300, "judge")
    assert not is_judged(store, "late")
    beat_on(store, clock, 30, "judge")

    assert is_judged(store, "late")


def test_a_worker_that_beats_late_again_and_again_does_not_postpone_the_judgement_of_another(
    store: Store, clock: VirtualClock
) -> None:
    for worker in ("judge", "sick", "frozen"):
        register(store, worker)
    for _ in range(4):
        beat_on(store, clock, 90, "judge")
        store.beat("sick", [])

    assert is_judged(store, "frozen")


def test_burst_workers_do_not_postpone_judgement_for_ever(store: Store, clock: VirtualClock) -> None:
    """Each lives for five seconds, every ten minutes, and never beats."""
    register(store, "frozen")
    judged = []
    for number in range(3):
        clock.advance(600)
        burst = register(store, f"burst-{number}")
        judged.append(is_judged(store, "frozen"))
        clock.advance(5)
        store.retire(burst)

    assert judged == [False, True, True]


def test_the_death_of_a_judge_does_not_begin_a_new_window(store: Store, clock: VirtualClock) -> None:
    register(store, "frozen")
    for number in range(12):
        judge = register(store, f"judge-{number}")
        clock.advance(30)
        store.beat(judge, [])
        store.declare_dead(judge, reason="killed", cause="proof")

    assert is_judged(store, "frozen")


def test_a_restart_of_the_host_begins_a_new_window(store: Store, clock: VirtualClock) -> None:
    clock.id = "an earlier boot"
    register(store, "before")
    clock.id = BOOT_ID

    assert store.healthy_for_us() == 0
    register(store, "w1")
    beat_on(store, clock, 60, "w1")
    assert store.healthy_for_us() == 60 * SECOND


def test_a_rare_beat_does_not_hide_the_outage_that_a_frequent_one_missed(store: Store, clock: VirtualClock) -> None:
    register(store, "frequent", beat_interval_ms=1_000)
    register(store, "rare", beat_interval_ms=30_000)
    beat_on(store, clock, 29, "frequent", every=1)
    clock.advance(20)

    store.beat("rare", [])

    assert store.healthy_for_us() == 0
