"""The rules about tasks, workers that own them, and workflows, each taken away."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.mutation.weakening import everywhere, mutation, put, retell, reword, rewrite

from everbeat.decide import lease as lease_times
from everbeat.decide import recover as deciding
from everbeat.decide import suspect
from everbeat.decide.recover import LOSSES
from everbeat.decide.room import Room
from everbeat.decide.stop import instead_of_another_run
from everbeat.errors import StoreUnavailable
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Verdict
from everbeat.model.report import RecoveryReport
from everbeat.model.retention import Kept
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.run import cases, deadline, lockfile, reaper, recovery, replay
from everbeat.run.apart import Apart
from everbeat.run.books import Books
from everbeat.run.hearing import Hearing
from everbeat.run.heartbeat import Heartbeat
from everbeat.run.keeper import Keeper
from everbeat.run.mandate import Mandate
from everbeat.run.slot import Slots
from everbeat.store.messages import Ending
from everbeat.store.postgres import lease, taking
from everbeat.store.sqlite import together, transaction
from everbeat.store.sqlite.transaction import SQLiteTransaction
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import (
    claiming,
    classes,
    flow_advance,
    flow_ends,
    leasing,
    living,
    owning,
    queueing,
    recovering,
    retaining,
    sending,
    settling,
    turns,
)
from everbeat.store.verbs.records import Records

IN_APART = "tests/run/test_apart.py::"
IN_TURNS = "tests/run/test_dispatcher.py::"
IN_OWNING = "tests/contract/test_owning.py::"
IN_FLUSHING = "tests/run/test_flushing.py::"
IN_FLOW_FLUSH = "tests/contract/test_flow_flush.py::"
IN_LEASE = "tests/store_pg/test_lease.py::"
IN_RECOVERING = "tests/contract/test_recovering.py::"
IN_DEADLINE = "tests/run/test_deadline.py::"
IN_SPOOL = "tests/run/test_spool.py::"
IN_STOPS = "tests/run/test_stops.py::"
IN_SENDING = "tests/contract/test_sending.py::"
IN_HEARTBEAT = "tests/run/test_heartbeat.py::"
IN_REAPER = "tests/run/test_reaper.py::"
IN_RECOVER = "tests/decide/test_recover.py::"
IN_LOCKFILE = "tests/run/test_lockfile.py::"
IN_SUSPECT = "tests/decide/test_suspect.py::"
IN_LEASES = "tests/contract/test_leases.py::"
IN_QUEUES = "tests/contract/test_queues.py::"
IN_TAKING = "tests/store/test_pg_taking.py::"
IN_TOGETHER = "tests/store/test_together.py::"
IN_RETAINING = "tests/contract/test_retaining.py::"
IN_TELLING = "tests/contract/test_telling.py::"


# -- ownership --------------------------------------------------------------------------------------------------------


@mutation("1", seed=1)
def fence_not_raised_when_revoked() -> None:
    """The fence grows with a claim only, not when a task is taken from its owner."""
    put(settling, "REVOKES", frozenset())


@mutation("1", seed=23)
def settled_without_the_fence() -> None:
    """A result is stored whoever brings it."""
    reword(settling, "COMPLETE", "seq = ? AND fence = ? AND worker_id = ?", "seq = ? AND 0 < ? AND '' < ?")


@mutation("1", test=IN_TAKING + "test_of_several_results_one_was_superseded_and_each_is_told[fence]")
def settled_at_once_without_the_fence() -> None:
    """A result that is stored in one round trip on PostgreSQL is stored whichever claim it is of."""
    reword(taking, "TURN_ANY", "fence = u.c4", "true")


@mutation("1", seed=266)
def recovered_without_the_fence() -> None:
    """A verdict is written though its task has moved since it was read."""
    end_all = settling.end_all

    def careless(tx: Transaction, endings: Sequence[Ending], *rest: Any, **more: Any) -> Any:
        return end_all(tx, [ending._replace(claim=as_it_is(tx, ending.claim)) for ending in endings], *rest, **more)

    def as_it_is(tx: Transaction, claim: Claim) -> Claim:
        now = tx.one(settling.NOW, (claim.seq,))
        return replace(claim, fence=now[1], worker_id=now[4]) if now else claim

    everywhere(end_all, careless)


@mutation("2", seed=54)
def silence_not_tested_again() -> None:
    """Who was silent when the judge looked is declared dead, though it has beaten since."""
    put(living, "IF_SILENT", "")


@mutation("2", seed=3)
def a_beat_revives() -> None:
    """A beat of a worker that was declared dead makes it alive again."""
    reword(living, "BEATER", "SELECT status,", "SELECT 'alive',")
    reword(living, "BEAT", "SET beat_at", "SET status = 'alive', beat_at")
    reword(living, "BEAT", " AND status = 'alive'", "")


@mutation("2", seed=56)
def the_dead_claim() -> None:
    """A worker that was declared dead may claim and start tasks."""
    reword(owning, "STANDING", "SELECT status,", "SELECT 'alive',")


@mutation("2", seed=3)
def the_dead_never_notice() -> None:
    """A worker that was declared dead goes on under its id."""
    put(Mandate, "is_fenced", property(lambda self: False, lambda self, value: None))
    put(Heartbeat, "tick", _deaf(Heartbeat.tick))


def _deaf(tick: Callable[[Heartbeat], float]) -> Callable[[Heartbeat], float]:
    def deaf(self: Heartbeat) -> float:
        wait = tick(self)
        self.is_declared_dead = False
        return wait

    return deaf


@mutation("3", seed=51)
def a_role_is_kept_for_ever() -> None:
    """Nobody takes the role of the reaper from one that stands still or is gone."""
    reword(living, "TAKE_ROLE", "OR everbeat_roles.until_mono < :mono", "")
    put(living, "FREE_ROLES", "DELETE FROM everbeat_roles WHERE worker_id = '' || ? AND 1 = 0")


@mutation("4", seed=69)
def what_never_began_is_billed() -> None:
    """A run that did not begin uses an attempt."""
    _do_not_count("free")


@mutation("4", seed=50)
def what_no_process_has_seen_is_billed() -> None:
    """A start that was taken back from the queue of a process uses an attempt."""
    _do_not_count("unseen")


def _do_not_count(what: str) -> None:
    counted, not_counted = f"THEN :{what} ELSE 0 END", f"THEN 0 * :{what} ELSE 0 END"
    reword(settling, "ENDED", counted, not_counted)
    for statements in (settling.ENDINGS, settling.ENDING_WHERE):
        for change, statement in statements.items():
            statements[change] = statement.replace(counted, not_counted)


@mutation("5", seed=2)
def losses_billed_as_crashes() -> None:
    """A task pays for the death of its worker as if it had killed its process."""
    _rebill(Cause.LOST, crashes=1, losses=0)


@mutation("5", seed=1)
def crashes_billed_as_losses() -> None:
    """A task that kills its process pays as if its worker had died."""
    _rebill(Cause.CRASHED, crashes=0, losses=1)


@mutation("4", seed=5)
def what_died_with_its_worker_is_not_billed() -> None:
    """A run that was lost with its worker uses no attempt."""
    _rebill(Cause.LOST, billed=False)


@mutation("4", seed=1)
def what_killed_its_process_is_not_billed() -> None:
    """A run that killed its process uses no attempt."""
    _rebill(Cause.CRASHED, billed=False)


@mutation("5", seed=2)
def losses_not_counted() -> None:
    """Nobody counts how often a task was lost with its worker."""
    _rebill(Cause.LOST, losses=0)


@mutation("5", test=IN_RECOVER + "test_a_payload_that_kills_its_process_before_it_begins_is_stopped_by_its_own_count")
def dispatches_not_counted() -> None:
    """Nobody counts how often the process of a task died before its code began."""
    _rebill(Cause.DISPATCH_DIED, dispatches=0)


@mutation(
    "5", test=IN_RECOVER + "test_a_task_that_loses_its_lease_again_and_again_is_failed_in_the_end_and_never_billed"
)
def losses_without_a_limit() -> None:
    """A task is run again however many workers were lost with it."""
    limit = deciding._limit_reached
    put(deciding, "_limit_reached", lambda orphan, *more: None if orphan.cause in LOSSES else limit(orphan, *more))


@mutation("5", test=IN_RECOVER + "test_a_suspect_runs_alone_from_then_on")
def what_was_lost_twice_is_not_run_alone() -> None:
    """A task that two workers were lost with runs beside others."""
    _rebill(Cause.LOST, solo=False)


def _rebill(cause: Cause, **counts: int) -> None:
    decide = deciding.recovery_for

    def recovery_for(orphan: Orphan, recovery: RecoveryPolicy, *, jitter: float) -> Verdict:
        verdict = decide(orphan, recovery, jitter=jitter)
        return verdict._replace(**counts) if orphan.cause is cause else verdict

    everywhere(decide, recovery_for)


@mutation("5", seed=2)
def crashes_without_a_limit() -> None:
    """Nothing is ever set aside for having crashed too often."""
    put(deciding, "_limit_reached", lambda orphan, policy, recovery: None)


@mutation("7", seed=50)
def strangers_never_returned() -> None:
    """After a lost answer nobody asks what was claimed, nor does a beat return what its worker does not hold."""
    put(Books, "give_back_unknown", lambda self, owned: setattr(self, "are_in_doubt", False))
    put(Heartbeat, "_return_strangers", lambda self, strangers: None)


@mutation(
    "7",
    test=IN_TURNS + "test_a_flush_that_was_committed_without_an_answer_loses_nothing_and_runs_nothing_twice",
)
def claims_not_read_back() -> None:
    """After a lost answer nobody asks what was claimed."""
    put(Books, "give_back_unknown", lambda self, owned: setattr(self, "are_in_doubt", False))


@mutation("7", test=IN_FLUSHING + "test_nothing_is_sent_ahead_after_an_answer_that_changes_what_may_be_done[no answer]")
def claims_go_on_before_an_answer_is_looked_at() -> None:
    """The next claim is sent before it is seen that nobody knows what became of the last one."""
    rewrite("run/flushing.py", "isinstance(one, Flushed) and one.alive and not one.is_older", "True")


@mutation("7", test=IN_OWNING + "test_a_start_that_is_sent_twice_is_one_run")
def starts_not_read_back() -> None:
    """A start that is sent again after a lost answer counts as refused."""

    def start(tx: Transaction, worker_id: str, claim: Claim) -> bool:
        values = {"now": tx.now, "seq": claim.seq, "fence": claim.fence, "worker_id": worker_id}
        return bool(tx.run(claiming.START, values))

    put(claiming, "start", start)


@mutation("7", seed=44)
def outcomes_not_read_back() -> None:
    """An outcome that is sent again after a lost answer counts as too late."""
    put(settling, "WRITTEN", "SELECT 1 FROM everbeat_history WHERE 1 = 0 AND '' IN (?, ?, ?, ?)")
    reword(
        settling,
        "NOW",
        "SELECT status, fence,",
        "SELECT status || '', fence + CASE WHEN finished_at > 0 THEN 1 ELSE 0 END,",
    )


@mutation("7", test=IN_OWNING + "test_a_late_outcome_that_is_sent_again_is_kept_once")
def refusals_not_read_back() -> None:
    """A late outcome that is sent again after a lost answer is kept again."""
    reword(
        settling,
        "KEPT",
        "SELECT 1 FROM everbeat_late_outcomes WHERE",
        "SELECT 1 FROM everbeat_late_outcomes WHERE 1 = 0 AND",
    )


@mutation("7", test=IN_REAPER + "test_a_recovery_that_could_not_be_written_is_tried_again_at_the_next_look")
def a_recovery_in_doubt_is_not_made_again() -> None:
    """After a lost answer nobody looks again for what is to be recovered, until something else changes."""
    look = reaper.Reaper._look

    def once(self: reaper.Reaper) -> None:
        try:
            look(self)
        except StoreUnavailable:
            self._version = self._store.data_version()
            raise

    put(reaper.Reaper, "_look", once)


@mutation("7", seed=76)
def sending_again_is_a_conflict() -> None:
    """A task that is sent again after a lost answer is another one."""
    reword(sending, "STORED", "SELECT id, name, args", "SELECT id, name, 'other'")


# -- alive or not -----------------------------------------------------------------------------------------------------


@mutation("9", test=IN_HEARTBEAT + "test_a_hung_dispatcher_is_not_beaten_for")
def beating_for_a_hung_dispatcher() -> None:
    """Beats go on though the dispatcher does not turn."""
    put(Heartbeat, "dispatcher_turns", lambda self: True)


@mutation("12", test=IN_LEASE + "test_nothing_is_taken_from_a_worker_that_has_beaten_since")
def a_suspect_that_beats_is_suspected() -> None:
    """Tasks are taken from a worker that lost its session though it has beaten since."""
    reword(lease, "UNBEATEN", "AND beat_seq = ?", "AND 0 <= ?")


@mutation("13", test=IN_LEASE + "test_of_a_suspects_tasks_only_those_that_may_run_again_are_taken")
def failed_on_suspicion() -> None:
    """A task without attempts left is failed because its worker lost its session."""
    put(recovery, "Change", SimpleNamespace(RECOVER=Change.ABANDON))


@mutation("14", seed=244)
def health_of_the_store_ignored() -> None:
    """Silence counts though nobody could have beaten."""
    everywhere(living.healthy_for_us, None)
    put(living, "healthy_for_us", lambda tx: living.FOREVER_US)


@mutation("14", seed=244)
def health_kept_in_the_judge() -> None:
    """Each judge counts for itself, from its own first look, for how long others could have beaten."""
    judge = reaper.Reaper._judge

    def by_memory(self: reaper.Reaper) -> Any:
        store, began = self._store, vars(self).setdefault("_first_judged_at", self._clock.mono_us())
        self._store = _Remembering(store, self._clock.mono_us() - began)
        try:
            return judge(self)
        finally:
            self._store = store

    put(reaper.Reaper, "_judge", by_memory)


class _Remembering:
    """A store, but for how long it has been healthy."""

    def __init__(self, store: Any, healthy_for_us: int) -> None:
        self._store = store
        self.healthy_for_us = lambda: healthy_for_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@mutation("14", test=IN_REAPER + "test_a_judge_that_was_held_up_does_not_judge")
def a_judge_that_is_late_judges() -> None:
    """One that was held up between its looks judges others at once."""
    put(reaper, "LATE_US", 1 << 62)


@mutation("6", test=IN_RECOVER + "test_the_first_recovery_comes_at_once_and_backoff_starts_with_the_second")
def the_first_recovery_waits() -> None:
    """A task that was recovered for the first time waits like one whose code has raised."""
    backoff = deciding.backoff_us
    put(deciding, "backoff_us", lambda policy, earlier, jitter: backoff(policy, earlier + 1, jitter))


@mutation("8", test=IN_STOPS + "test_nothing_is_stopped_because_of_a_store_that_has_forgotten_the_worker")
def an_older_store_is_written_to() -> None:
    """A store that knows less of a worker than it acknowledged is taken for the same."""
    everywhere(owning.is_older, lambda standing, seen_beat: False)


@mutation("10", test=IN_LOCKFILE + "test_what_does_not_fit_proves_nothing")
def any_lock_file_proves_a_death() -> None:
    """A free lock counts though its file is not the one that the worker registered."""
    put(lockfile, "_doubt", lambda fd, lock, worker_id, host: None)


@mutation("12", test=IN_SUSPECT + "test_three_of_six_that_are_lost_together_are_left_to_their_heartbeats")
def many_lost_together_are_suspected() -> None:
    """Workers that lose their sessions together are suspected one by one."""
    put(suspect, "MANY", 1 << 30)


# -- running ----------------------------------------------------------------------------------------------------------


@mutation("19", seed=1)
def running_after_dispatch() -> None:
    """The bytes of a task reach its process while the store has it CLAIMED."""
    reword(claiming, "LAUNCH", "status = 'RUNNING'", "status = 'CLAIMED'")


@mutation("19", seed=31)
def a_frame_left_claimed() -> None:
    """Of tasks that go to a process together only the first is committed RUNNING."""
    take = claiming.take

    def take_first(tx: Transaction, claims: Sequence[Claim]) -> None:
        seen: set[int] = set()
        for claim in claims:
            if claim.slot in seen and claim.status is TaskStatus.RUNNING:
                tx.finally_many(claiming.CLAIM, [(claim.worker_id, int(claim.counted), claim.seq, claim.fence - 1)])
            else:
                take(tx, [claim])
            seen.add(claim.slot)

    put(claiming, "take", take_first)


@mutation("20", seed=2)
def begin_marks_not_written() -> None:
    """What had begun when everything died counts as never begun."""
    put(cases.Cases, "_never_began", lambda self, claim, owner: True)


@mutation("20", seed=69)
def begin_marks_not_read() -> None:
    """What had not begun when everything died is taken for begun."""
    put(cases.Cases, "_never_began", lambda self, claim, owner: claim.status is TaskStatus.CLAIMED)


@mutation("21", seed=112)
def death_wins_over_an_outcome() -> None:
    """What a process said before it died is not heard."""
    bury = Hearing._bury

    def deaf(self: Hearing, slot: Any, death: Any, now: int) -> None:
        bury(self, slot, replace(death, outcomes=[]), now)

    put(Hearing, "_bury", deaf)


@mutation("21", seed=272)
def a_cancel_ignored_by_recovery() -> None:
    """A task whose end was asked for is run again when its runner dies."""
    everywhere(instead_of_another_run, lambda verdict: verdict)


# -- exclusive keys, caps, claims -------------------------------------------------------------------------------------


@mutation("24", seed=640)
def the_lease_counted_too_long() -> None:
    """Tasks with a key are stopped after others may have them."""
    put(lease_times.Lease, "stop_us", property(lambda self: self.lease_us * 2))


@mutation("24", test=IN_DEADLINE + "test_it_counts_from_the_sending_of_what_was_answered_and_not_from_the_answer")
def the_lease_counted_from_the_answer() -> None:
    """The time until tasks with a key are stopped runs from the answer to a beat, not from its sending."""

    def answered(self: deadline.HeldLease, sent_at_us: int) -> None:
        self._deadline.move_to(self.now_us() + self.lease.stop_us)

    put(deadline.HeldLease, "answered", answered)


@mutation("24", test=IN_LEASES + "test_a_lease_is_kept_to_its_end")
def the_lease_not_waited_for() -> None:
    """What has a key is taken from an owner that is not proven gone before its lease is over."""
    put(leasing, "is_held", lambda tx, worker_id: False)


@mutation("24", test=IN_LEASES + "test_a_lease_begins_with_the_claim_however_long_ago_the_last_beat_was")
def a_lease_that_begins_late() -> None:
    """A claim of a task with a key does not count as a beat."""
    put(claiming, "begin_leases", lambda tx, worker_id, claims: None)


@mutation("25", seed=1)
def the_turn_not_handed_over() -> None:
    """Who stands in line for a key waits until somebody mends it."""
    everywhere(turns.hand_over, lambda tx, keys=(): None)


@mutation("25", test=IN_QUEUES + "test_no_more_tasks_of_a_queue_are_owned_than_its_limit_allows")
def limits_not_kept() -> None:
    """The limit of a queue is not compared with what runs."""
    put(queueing.Places, "are_left", lambda self, queue: True)
    put(queueing.Places, "take", lambda self, queue: None)


@mutation("25", test=IN_TAKING + "test_whatever_is_special_is_left_to_a_whole_flush[a_limit]")
def taken_beside_a_limit() -> None:
    """What is claimed in one round trip on PostgreSQL is not held against the limits of queues."""
    reword(taking, "TURN_ANY", "paused = 1 OR max_concurrency IS NOT NULL", "false")


@mutation("2", test=IN_TAKING + "test_whatever_is_special_is_left_to_a_whole_flush[a_worker_that_is_dead]")
def taken_by_the_dead() -> None:
    """Who was declared dead may still claim in one round trip on PostgreSQL."""
    reword(taking, "TURN_ANY", "w.status = 'alive'", "true")


@mutation("35", test=IN_TAKING + "test_who_waits_for_a_task_that_ends_holds_none_that_is_ready")
def taken_before_it_is_settled() -> None:
    """In one round trip on PostgreSQL tasks are locked to be taken before those that have ended are."""
    reword(taking, "TURN_ANY", "AND (SELECT count(*) FROM settled) = %(ended)s::bigint", "")
    reword(taking, "TURN_ANY", "(SELECT count(*) FROM settled) < %(ended)s::bigint", "false")


@mutation("9", test=IN_TAKING + "test_nothing_that_was_taken_is_lost_if_it_turns_out_slow_meanwhile")
def taken_and_lost() -> None:
    """The room that is claimed into changes with what is learned of its tasks meanwhile."""
    room = Slots.room
    put(Slots, "room", lambda self, depths, now: replace(room(self, depths, now), depths=depths))


@mutation("1", test=IN_TOGETHER + "test_rows_in_a_row_are_changed_by_their_ends_and_no_others[all but one-alike]")
def settled_with_its_neighbours() -> None:
    """On SQLite, what lies between tasks that end together ends with them."""
    put(together, "are_in_a_row", lambda keys: True)


@mutation("23", test=IN_TOGETHER + "test_a_row_that_is_not_plain_is_not_read_short[solo = 1]")
def suspects_read_short() -> None:
    """On SQLite, it is not read that a ready task is a suspect."""
    put(transaction, "SHORT", {claiming.READY: claiming.SHORT_READY.replace("solo = 0", "1")})


@mutation("26", test=IN_TAKING + "test_what_another_has_its_hand_on_is_neither_taken_nor_waited_for")
def taken_from_others() -> None:
    """Who claims in one round trip on PostgreSQL takes what another is about to claim."""
    reword(taking, "TURN_ANY", "FOR UPDATE SKIP LOCKED", "")


@mutation("26", test=IN_SENDING + "test_claims_go_by_priority_then_by_age_over_all_names_and_queues")
def claims_without_an_order() -> None:
    """What is claimed first is not what is most urgent and oldest."""
    put(SQLiteTransaction, "ahead", lambda self, sql, values, few: iter([self.all(f"{sql} ORDER BY seq DESC", values)]))


@mutation("26", test=IN_SENDING + "test_a_worker_claims_only_names_it_knows")
def claims_of_unknown_names() -> None:
    """A worker claims tasks whose names it does not know."""
    put(claiming, "_in_order", lambda sync_names, async_names: ["aaa", "add", "sub", "zzz"])
    put(Room, "serves", lambda self, queue, name: True)


@mutation(
    "28",
    test=IN_SENDING + "test_a_second_task_with_a_unique_key_finds_the_first",
    words="others send and end tasks with the unique key",
)
def holders_of_unique_keys_not_read() -> None:
    """Who meets a unique key that is held is not told who holds it."""
    reword(sending, "HOLDERS", "AND name = ?", "AND name <> ?")


# -- outcomes ---------------------------------------------------------------------------------------------------------


@mutation("29", seed=289)
def adopted_whoever_owned_it_since() -> None:
    """A late result becomes the task's though another one has run it meanwhile."""
    late = settling._late

    def careless(tx: Transaction, claim: Claim, outcome: Any, records: Any, status: str, fence: int) -> Any:
        known = replace(claim, fence=fence - 1) if status == TaskStatus.PENDING else claim
        return late(tx, known, outcome, records, status, fence)

    put(settling, "_late", careless)


@mutation("29", seed=13)
def late_outcomes_thrown_away() -> None:
    """What comes too late is not kept."""
    reword(
        settling,
        "KEEP_LATE",
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE 1 = 0",
    )


@mutation(
    "30",
    test=IN_SPOOL + "test_what_ends_after_a_failed_flush_is_written_before_the_next_is_sent",
    words="No such file or directory: '",
)
def nothing_is_spooled() -> None:
    """Outcomes that the store does not take are kept in memory only."""
    put(Keeper, "_keep", lambda self, claim, outcome, pid: None)


@mutation("30", test=IN_SPOOL + "test_what_a_dead_worker_had_finished_is_stored_and_not_run_again")
def spools_replayed_after_recovery() -> None:
    """What the dead had finished is not looked at before their tasks are decided about."""
    everywhere(replay.replay_spools, lambda store: [])


@mutation("29", test=IN_OWNING + "test_an_adoption_that_is_sent_again_is_no_refusal")
def adoptions_not_read_back() -> None:
    """A late result that was adopted counts as too late when it is sent again after a lost answer."""
    reword(
        settling, "ADOPTED", "SELECT 1 FROM everbeat_history WHERE", "SELECT 1 FROM everbeat_history WHERE 1 = 0 AND"
    )


@mutation(
    "32",
    test=IN_RETAINING + "test_ended_workers_are_deleted_but_not_those_that_a_task_names_as_its_owner",
)
def owners_deleted_by_retention() -> None:
    """The row of a worker that has ended is deleted though a task names it as its owner."""
    reword(retaining, "DELETE_WORKERS", "t.worker_id = w.id AND", "1 = 0 AND")


@mutation("32", seed=2_000_000)
def tasks_of_live_workflows_deleted() -> None:
    """Ended tasks of a workflow that goes on are deleted when they are old."""
    reword(retaining, "ENDED", "AND (workflow_id IS NULL", "AND (1 = 1")


@mutation("33", test=IN_TELLING + "test_an_event_that_waits_is_kept_however_old")
def undelivered_events_deleted() -> None:
    """Events that somebody waits for are deleted when they are old."""
    table, moment, _ = retaining.WALKED[Kept.EVENTS]
    retaining.WALKED[Kept.EVENTS] = (table, moment, "1 = 0")


# -- workflows --------------------------------------------------------------------------------------------------------


@mutation("35", seed=6)
def advance_split_from_the_outcome() -> None:
    """The end of a task is committed without what follows from it for its workflow."""
    everywhere(flow_ends.follow, lambda tx, roots, seqs: None)
    everywhere(flow_ends.follow_results, lambda tx, roots, claims: None)


@mutation("35", seed=37)
def inputs_counted_twice() -> None:
    """An input that ends counts as two."""
    reword(flow_advance, "FOLLOWING", "count(*)", "2 * count(*)")
    reword(flow_advance, "FOLLOWING_ONE", ", 1, json_group_array", ", 2, json_group_array")


@mutation("35", test=IN_APART + "test_what_ends_in_a_locked_workflow_waits_and_all_else_is_settled_at_once")
def plain_tasks_wait_for_a_locked_workflow() -> None:
    """A flush that meets the lock of a workflow is not repeated without what ended in workflows."""
    put(Books, "set_apart", lambda self, now: False)


@mutation("35", test=IN_FLOW_FLUSH + "test_others_are_woken_for_what_a_flush_makes_ready_and_leaves")
def nodes_of_a_locked_workflow_claimed() -> None:
    """Tasks of a workflow that is locked are claimed, where nothing else is special about them."""
    retell(claiming, " and not room.shunned", "")


@mutation("35", seed=292)
def outcomes_set_apart_never_tried() -> None:
    """What ended in a workflow that was locked is not tried again."""
    put(Apart, "due", lambda self, now: None)


@mutation("39", seed=2)
def reports_tell_of_no_task() -> None:
    """The stored report of a recovery lists none of the tasks that were recovered."""
    save = recovering.save_report

    def forget(tx: Transaction, report: RecoveryReport, *, actor: str) -> RecoveryReport:
        return save(tx, replace(report, recovered_tasks=[]), actor=actor)

    put(recovering, "save_report", forget)


@mutation("4", seed=1)
def attempts_not_written() -> None:
    """What became of a run is not written down beside its task."""
    put(Records, "attempt", lambda self, **facts: None)


@mutation("39", test=IN_RECOVERING + "test_of_orphans_that_are_written_together_one_that_has_moved_is_left_alone")
def classes_written_unguarded() -> None:
    """Orphans that are written together are not compared with what was decided about."""
    for change, statement in classes.END.items():
        guard = "WHERE fence = :fence AND coalesce(worker_id, '') = coalesce(:worker_id, '')"
        assert guard in statement
        classes.END[change] = statement.replace(guard, "WHERE :fence > 0 AND :worker_id IS NOT NULL")
