"""The rules about the machine: clocks, locks, files, processes, sessions, the schema, and who may see what; each taken
away. What only other processes show is rewritten for all of them."""

import os
from types import SimpleNamespace
from typing import Any

import yaml
from tests.mutation.weakening import everywhere, mutation, put, retell, reword, rewrite

from everbeat import filesystem, private, secrecy
from everbeat.cli import given
from everbeat.decide import recover, stop
from everbeat.decide.room import Room
from everbeat.model.recovery import Cause
from everbeat.report import text
from everbeat.run import lockfile, service, unblock
from everbeat.run.startup import Startup
from everbeat.store import schema
from everbeat.store.postgres import connection as sessions
from everbeat.store.postgres import migrate as postgres_migrate
from everbeat.store.postgres import past
from everbeat.store.postgres.bells import NotifyBells
from everbeat.store.postgres.past import Past
from everbeat.store.postgres.transaction import PostgresTransaction
from everbeat.store.sql.working import Working
from everbeat.store.sqlite import borrowed, connection, integrity, place, side
from everbeat.store.sqlite.transaction import SQLiteTransaction
from everbeat.store.sqlite.turnstile import Turnstile
from everbeat.store.verbs import expiring, kinds, living, looking, recovering

IN_LOCKFILE = "tests/run/test_lockfile.py::"
IN_LAYERS = "tests/test_layers.py::"
IN_WORKERS = "tests/contract/test_workers.py::"
IN_EXPIRING = "tests/contract/test_expiring.py::"
IN_TURNSTILE = "tests/store/test_turnstile.py::"
IN_PROCESSES = "tests/store/test_processes.py::"
IN_UNBLOCK = "tests/run/test_unblock.py::"
IN_PLACE = "tests/store/test_place.py::"
IN_START = "tests/crash/test_start.py::"
IN_HEARTBEAT = "tests/run/test_heartbeat.py::"
IN_CREW = "tests/run/test_crew.py::"
IN_TICKETS = "tests/run/test_tickets.py::"
IN_TURNS = "tests/run/test_dispatcher.py::"
IN_STOPS = "tests/run/test_stops.py::"
IN_OWN_PROCESS = "tests/run/test_processes.py::"
IN_RECOVERING = "tests/contract/test_recovering.py::"
IN_LIMITS = "tests/outage/test_limits.py::"
IN_CONNECTION = "tests/front/test_connection.py::"
IN_OWN_TRANSACTION = "tests/front/test_own_transaction.py::"
IN_FILES = "tests/store/test_files.py::"
IN_UPGRADE = "tests/crash/test_upgrade.py::"
IN_MIGRATE = "tests/store_pg/test_migrate.py::"
IN_INTEGRITY = "tests/store/test_integrity.py::"
IN_STARTUP = "tests/run/test_startup.py::"
IN_PRIVATE = "tests/store/test_private.py::"
IN_SENDING = "tests/contract/test_sending.py::"
IN_PEOPLE = "tests/contract/test_people.py::"
IN_SECRETS = "tests/cli/test_secrets.py::"
IN_TEXT = "tests/cli/test_text.py::"
IN_SURROUNDINGS = "tests/front/test_surroundings.py::"
IN_PG_STORE = "tests/store/test_pg_store.py::"
IN_PAST = "tests/store_pg/test_past.py::"
IN_METRICS = "tests/cli/test_metrics.py::"


# -- alive or not -----------------------------------------------------------------------------------------------------


class _Nothing(set[Any]):
    """A set that never has anything in it."""

    def __contains__(self, one: object) -> bool:
        return False


@mutation("11", test=IN_LOCKFILE + "test_a_process_never_opens_its_own_lock_file")
def a_process_probes_its_own_lock_file() -> None:
    """A worker opens and closes its own lock file, like any other, and so drops its lock."""
    put(lockfile, "_mine", _Nothing())


@mutation(
    "11",
    test=IN_LAYERS + "test_only_the_connection_opens_the_database_and_only_the_lock_module_opens_lock_files",
)
def the_log_is_opened_beside_sqlite() -> None:
    """A file of SQLite is opened and closed by us, in a process that may hold locks on it."""
    rewrite("store/sqlite/blocker.py", "os.stat(file)", "os.fstat(open(file).fileno())")


@mutation("15", test=IN_WORKERS + "test_silence_does_not_depend_on_the_wall_clock")
def silence_by_the_wall_clock() -> None:
    """How long a worker has been silent is told by a clock that can be set."""
    begin = SQLiteTransaction.__init__

    def by_the_wall(self: SQLiteTransaction, *given: Any) -> None:
        begin(self, *given)
        self.mono = self.now

    put(SQLiteTransaction, "__init__", by_the_wall)


@mutation("15", test=IN_WORKERS + "test_a_worker_of_another_boot_needs_no_threshold")
def beats_of_another_boot_count() -> None:
    """A beat from before the machine was started again is compared with the clock of today."""
    reword(living, "IF_SILENT", "clock_id <> :clock_id OR", "'' = :clock_id OR")


@mutation("15", test=IN_EXPIRING + "test_after_a_step_of_the_clock_nothing_expires_for_a_while")
def expired_by_a_clock_that_was_set() -> None:
    """Tasks expire as soon as the wall clock says so, though it has just been set."""
    put(expiring, "STEP_US", 1 << 62)


@mutation("16", test=IN_PROCESSES + "test_a_process_frozen_at_the_turnstile_stops_nobody")
def the_turnstile_is_never_bypassed() -> None:
    """Who waits behind a frozen process at the turnstile waits for as long as it is frozen."""
    put(connection, "PATIENCE", 4.0)


@mutation("16", test=IN_TURNSTILE + "test_schema_work_waits_and_never_goes_on_without_its_turn")
def schema_work_bypasses_the_turnstile() -> None:
    """Checkpoints and migrations go on without their turn, as a write may."""
    put(Turnstile, "insist", Turnstile.enter)


@mutation("16", test=IN_UNBLOCK + "test_a_worker_that_is_stopped_in_a_write_is_ended_after_the_threshold")
def a_frozen_writer_is_left() -> None:
    """A worker that is stopped while it holds the write lock keeps it."""
    put(unblock, "is_worker", lambda directory, pid: False)


@mutation("16", test=IN_UNBLOCK + "test_a_stranger_that_is_stopped_in_a_write_is_named_and_never_ended")
def a_frozen_stranger_is_ended() -> None:
    """Whoever is stopped while it holds the write lock is killed, also if it is no worker of ours."""
    put(unblock, "is_worker", lambda directory, pid: True)


@mutation("16", test=IN_PROCESSES + "test_a_process_frozen_in_a_write_is_named_and_its_write_goes_on_when_it_thaws")
def a_blocker_is_not_named() -> None:
    """Who can not write is not told who is in the way."""
    put(connection, "find_blocker", lambda database: None)
    put(connection, "find_holder", lambda turnstile: None)


@mutation("17", test=IN_PLACE + "test_a_network_file_system_is_refused_with_the_reason")
def a_network_file_system_is_taken() -> None:
    """A store may be on a file system that other machines use."""
    put(place, "filesystem", SimpleNamespace(NETWORK={}, type_of=filesystem.type_of))


@mutation("17", test=IN_PLACE + "test_a_file_that_is_mounted_alone_is_refused")
def a_file_mounted_alone_is_taken() -> None:
    """A store may be a file that is mounted without its directory."""
    put(place, "is_mounted_alone", lambda path, mounts: False)


@mutation(
    "17",
    test=IN_START + "test_a_store_that_another_machine_is_using_is_refused_and_nothing_is_changed",
    in_vain=True,
)
def another_machine_is_not_noticed() -> None:
    """A worker starts beside one that beats under another kernel."""
    rewrite("run/elsewhere.py", "if worker.last_beat_at != before.last_beat_at:", "if False:")


@mutation("18", test=IN_HEARTBEAT + "test_a_beat_that_failed_is_tried_again_within_a_quarter_of_the_smallest_threshold")
def a_failed_beat_waits() -> None:
    """A beat that could not be written is tried again when the next would be due."""
    put(service, "RETRY_SECONDS", 30.0)


# -- running ----------------------------------------------------------------------------------------------------------


@mutation("19", test=IN_CREW + "test_what_a_busy_child_has_not_taken_is_read_back")
def a_frame_is_taken_whole() -> None:
    """A process takes all tasks that are there, and runs them one after the other."""
    rewrite("run/tickets.py", "ticket = read(self.fd, size)", "ticket = read(self.fd, 64 * size)")
    rewrite(
        "run/tickets.py", "yield self._job(read_ticket(ticket)[0])",
        "yield from [self._job(one[0]) for one in _TICKET.iter_unpack(ticket)]",
    )  # fmt: skip


@mutation("19", test=IN_TICKETS + "test_a_task_that_comes_back_has_its_new_entry")
def bytes_are_taken_in_their_order() -> None:
    """A process begins the next task that it was sent, whatever was taken back before it."""
    rewrite("run/tickets.py", "if place < len(runs[0].jobs):", "if runs[0].jobs:")
    rewrite("run/tickets.py", "return runs[0].jobs[place]", "return runs[0].jobs.pop(0)")


@mutation(
    "22", test=IN_CREW + "test_what_a_task_left_behind_does_not_hide_the_death_and_dies_with_the_child", in_vain=True
)
def groups_outlive_their_leaders() -> None:
    """What a task has started lives on when its process is gone."""
    rewrite("run/forkserver.py", "os.killpg(pid, signal.SIGKILL)", "os.kill(pid, signal.SIGKILL)")


@mutation("22", test=IN_CREW + "test_children_need_nobody_to_die_with_the_fork_server", in_vain=True)
def children_outlive_the_fork_server() -> None:
    """A process is not told by the kernel that the fork server has died."""
    rewrite("run/child.py", "_libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0", "False")


@mutation(
    "22", test=IN_CREW + "test_children_die_with_the_supervisor_although_the_fork_server_is_stopped", in_vain=True
)
def children_are_not_on_a_leash() -> None:
    """Only a fork server that runs can end the processes of a supervisor that has died."""
    rewrite("run/leash.py", "fcntl.F_SETSIG, signal.SIGKILL", "fcntl.F_SETSIG, signal.SIGURG")


@mutation("22", test=IN_CREW + "test_a_process_that_a_task_forks_does_not_answer_for_it")
def a_forked_process_answers_for_its_task() -> None:
    """A process that a task has forked goes on like the one that the task was given to."""
    rewrite("run/child.py", "if os.getpid() != self._pid:", "if False:")


@mutation("22", test=IN_CREW + "test_a_process_forked_in_an_event_loop_leaves_it_at_once")
def a_forked_process_stays_in_the_loop() -> None:
    """A process that an async task has forked runs the other tasks of its process once more."""
    rewrite("run/async_child.py", "if loop.is_running():", "if False:")


@mutation("22", test=IN_CREW + "test_an_application_that_can_not_be_forked_gets_new_interpreters")
def whatever_was_imported_is_forked() -> None:
    """Processes are forked though the import of the application left threads or connections behind."""
    rewrite("run/forkserver.py", "_loaded(app, why_not_fork(sockets_before))", "_loaded(app, None)")


@mutation("23", test=IN_TURNS + "test_neighbours_in_an_async_process_run_alone_next_time_and_do_not_pay")
def neighbours_are_billed() -> None:
    """A task pays for a crash of its process though another one in it may have been the reason."""
    put(recover, "UNBILLED", recover.UNBILLED - {Cause.NEIGHBOUR})


@mutation("23", test=IN_STOPS + "test_neighbours_have_five_seconds_to_end_before_the_process_is_killed")
def neighbours_get_no_time() -> None:
    """A process is killed for one task at once, whatever else runs in it."""
    put(stop, "DRAIN_US", 0)


@mutation("23", test=IN_OWN_PROCESS + "test_an_isolated_sync_task_has_a_fresh_process_which_ends_with_it")
def isolated_tasks_share() -> None:
    """A task that is to have a process of its own is put to the others."""
    offer = Room.offer

    def together(self: Room, name: str, *, solo: bool, alone: bool = False, isolated: bool = False) -> Any:
        return offer(self, name, solo=solo, alone=alone)

    put(Room, "offer", together)


@mutation("27", seed=1)
def claims_go_on_where_the_last_one_ended() -> None:
    """What becomes ready behind the place where the last claim ended is not looked for there."""
    ahead, reached = SQLiteTransaction.ahead, dict[tuple[Any, ...], tuple[Any, ...]]()

    def onward(self: SQLiteTransaction, sql: str, values: Any, few: int) -> Any:
        kind = tuple(values)
        for some in ahead(self, sql, values, few):
            if later := [row for row in some if row[:2] > reached.get(kind, ())]:
                reached[kind] = later[-1][:2]
                yield later

    put(SQLiteTransaction, "ahead", onward)


@mutation("27", test=IN_PAST + "test_a_commit_that_comes_late_is_found_by_the_next_whole_look")
def short_looks_for_ever() -> None:
    """Once dead rows are in the way, what comes late is not looked for any more."""
    put(past, "WHOLE_SECONDS", 1e9)


@mutation("27", test=IN_PAST + "test_what_becomes_ready_again_is_found_at_once")
def what_is_ready_again_is_not_told() -> None:
    """Who looks short is not told that something is ready again that was there before."""
    put(Past, "forget", lambda self: None)


@mutation("27", test=IN_PAST + "test_what_has_got_its_number_just_before_a_look_may_come_after_it")
def no_time_between_number_and_commit() -> None:
    """What gets its number before a look is taken to be there when it looks."""
    put(past, "BEFORE_SECONDS", 0.0)


# -- outcomes ---------------------------------------------------------------------------------------------------------


@mutation("31", test=IN_WORKERS + "test_a_task_held_under_an_old_fence_is_not_held")
def held_whatever_the_fence() -> None:
    """A beat for an earlier ownership of a task is one for the present one."""
    beat = Working.beat

    def by_id(self: Any, worker_id: str, held: Any, *more: Any) -> Any:
        said, known = beat(self, worker_id, held, *more), {one.task_id for one in held}
        return SimpleNamespace(strangers=[claim for claim in said.strangers if claim.id not in known])

    put(Working, "beat", by_id)


@mutation("31", test=IN_RECOVERING + "test_the_heartbeats_of_an_earlier_owner_are_not_those_of_a_task")
def heartbeats_of_any_fence() -> None:
    """The last heartbeat of a task may be that of an owner before the present one."""
    reword(recovering, "STALE", " AND h.fence = t.fence", "")


# -- transactions and schema ------------------------------------------------------------------------------------------


@mutation("34", test=IN_LIMITS + "test_every_session_limits_itself")
def sessions_without_limits() -> None:
    """A session may hold locks and transactions for as long as it likes."""
    put(sessions, "LIMITS", {"synchronous_commit": "on"})


@mutation("36", test=IN_CONNECTION + "test_the_connection_is_left_as_it_was")
def a_users_connection_checkpoints() -> None:
    """SQLite may move its log into the file whenever the user commits."""
    retell(borrowed, "PRAGMA wal_autocheckpoint=0", "PRAGMA wal_autocheckpoint=1000")


@mutation("36", test=IN_CONNECTION + "test_another_database_is_refused")
def any_connection_is_taken() -> None:
    """A task may be sent into a copy of its store."""
    put(borrowed, "_require_same_store", lambda connection, database, store_id: None)


@mutation(
    "36",
    test=IN_CONNECTION + "test_waiting_for_a_result_inside_the_transaction_is_refused",
    words="it was never stored there",
)
def waiting_inside_the_transaction() -> None:
    """Who waits for a task that is not yet committed is let wait."""
    put(borrowed, "_is_open", lambda connection: False)


@mutation("36", test=IN_OWN_TRANSACTION + "test_a_worker_that_waits_is_woken_by_the_commit", in_vain=True)
def a_users_commit_rings_no_bell() -> None:
    """A task that was sent in a transaction of the user's own is found by chance."""
    put(NotifyBells, "ring_at_commit", lambda self, connection, kinds: None)


@mutation("37", test=IN_FILES + "test_a_store_of_another_version_is_refused_untouched")
def an_older_schema_is_used() -> None:
    """A store whose tables are older or newer than this program is opened all the same."""
    put(schema, "check", lambda store, found: None)


@mutation(
    "37",
    test=IN_UPGRADE + "test_workers_too_old_for_what_comes_finish_what_they_run_and_claim_nothing_more",
)
def older_workers_do_not_notice() -> None:
    """Tables are changed under workers that can not work with what comes."""
    put(schema, "refuse_older", lambda store, workers, now: None)


@mutation(
    "37", test=IN_MIGRATE + "test_an_upgrade_gives_way_to_work_until_whoever_reads_the_table_has_ended", in_vain=True
)
def a_change_of_the_tables_waits_for_its_lock() -> None:
    """Everybody waits behind a change of the tables that waits for somebody."""
    reword(postgres_migrate, "LIMITS", "lock_timeout = '1s'", "lock_timeout = 0")


@mutation("37", test=IN_INTEGRITY + "test_a_repair_that_fails_is_undone")
def a_failed_repair_is_kept() -> None:
    """The indexes are rebuilt though the tables are damaged, too."""
    retell(integrity, '"ROLLBACK" if findings.count else "COMMIT"', '"COMMIT"')


@mutation("37", test=IN_STARTUP + "test_a_damaged_store_that_others_use_is_not_repaired")
def repaired_under_living_workers() -> None:
    """A damaged file is repaired while others use it."""
    put(Startup, "_others", lambda self: [])


@mutation("38", test=IN_INTEGRITY + "test_a_damaged_index_is_found_and_rebuilt")
def a_quick_check_will_do() -> None:
    """The check of a file leaves its indexes out."""
    rewrite("store/sqlite/integrity_probe.py", "PRAGMA integrity_check(", "PRAGMA quick_check(")


@mutation("38", test=IN_INTEGRITY + "test_a_check_that_is_cut_is_named_incomplete_and_what_it_found_counts")
def a_cut_check_is_a_whole_one() -> None:
    """A check that had no time to end counts as one that found nothing."""
    put(integrity._Said, "is_complete", property(lambda self: True, lambda self, value: None))


@mutation("38", test=IN_INTEGRITY + "test_a_check_that_fails_itself_counts_as_failed")
def a_check_that_fails_finds_nothing() -> None:
    """An error of the check itself says nothing about the file."""
    put(integrity, "NO_FINDINGS", frozenset(range(256)))


@mutation("38", test=IN_STARTUP + "test_the_integrity_check_is_run_if_it_is_wanted")
def no_check_at_the_start() -> None:
    """A worker starts on whatever it finds."""
    put(Startup, "_see_to_the_store", lambda self, findings: None)


# -- security ---------------------------------------------------------------------------------------------------------


@mutation("40", test=IN_PRIVATE + "test_a_planted_link_is_not_followed")
def links_are_followed() -> None:
    """A link in the place of a file of ours is followed."""
    put(private, "FLAGS", private.FLAGS & ~os.O_NOFOLLOW)


@mutation("40", test=IN_PRIVATE + "test_a_planted_pipe_is_refused_and_stops_nobody")
def kinds_of_files_are_not_asked_for() -> None:
    """A pipe in the place of a file of ours is taken for it."""
    put(private, "_open", lambda path, access, is_kind, owners: os.open(path, access | private.FLAGS))


@mutation("40", test=IN_PRIVATE + "test_a_file_of_another_user_is_refused")
def owners_are_not_asked_for() -> None:
    """A file that another user has put there is taken for ours."""
    put(private, "is_ours", lambda found, owners=(): True)


@mutation("40", test=IN_PRIVATE + "test_a_directory_that_others_may_use_is_closed_to_them")
def side_directories_are_open() -> None:
    """Others may write into the directory beside the store."""
    put(side, "OTHERS", 0)
    put(side, "GROUP", 0)


@mutation("41", test=IN_SENDING + "test_a_name_is_never_read_as_sql", words='near "clock": syntax error')
def names_are_put_into_statements() -> None:
    """The name of a queue is written into a statement."""
    leap = kinds.leap
    retell(
        kinds,
        "tx.one(NEXT_NAME, (queue, names[at]))",
        "tx.one(NEXT_NAME.replace('queue = ?', f\"queue = '{queue}'\"), (names[at],))",
    )
    everywhere(leap, kinds.leap)


@mutation("41", test=IN_PG_STORE + "test_stores_in_one_database_share_no_locks_and_no_bells")
def stores_share_their_locks() -> None:
    """Two stores in one database have the same names for their locks."""
    begin = PostgresTransaction.__init__

    def without_scope(self: PostgresTransaction, connection: Any, scope: str, **more: Any) -> None:
        begin(self, connection, "", **more)

    put(PostgresTransaction, "__init__", without_scope)


@mutation("41", test=IN_PG_STORE + "test_stores_in_one_database_share_no_locks_and_no_bells")
def stores_share_their_channel() -> None:
    """Who waits for something in one store is woken by all that happens in another one of the same database."""
    begin = NotifyBells.__init__

    def on_one(self: NotifyBells, database: Any, *, store_id: str, who_serves: Any) -> None:
        begin(self, database, store_id="", who_serves=who_serves)

    put(NotifyBells, "__init__", on_one)


@mutation("41", test=IN_TEXT + "test_control_characters_become_visible")
def texts_are_shown_as_they_are() -> None:
    """A stored text may paint the terminal and forge lines of it."""
    put(text, "clean", str)


@mutation("41", test=IN_SURROUNDINGS + "test_a_wrong_file_is_refused_with_its_place_and_the_fix")
def yaml_makes_objects() -> None:
    """A configuration file may call whatever it names."""
    put(yaml, "SafeLoader", yaml.UnsafeLoader)


@mutation("41", test=IN_SECRETS + "test_passwords_in_free_text")
def passwords_stay_in_texts() -> None:
    """The password in a URL is shown with the error that it stands in."""
    put(secrecy, "without_passwords", str)


@mutation("41", test=IN_SECRETS + "test_an_error_text_is_cut_at_64_kb")
def errors_of_any_length() -> None:
    """An error is stored however long it is."""
    rewrite("run/failure.py", "if len(encoded) <= TEXT_LIMIT:", "if True:")


@mutation("41", test=IN_PEOPLE + "test_what_a_sensitive_task_said_is_shown_to_its_sender_only")
def sensitive_tasks_are_shown() -> None:
    """What the code of a sensitive task said is shown to everybody."""
    put(looking, "shown_message", lambda code, message, policy: message)


@mutation("42", test=IN_SECRETS + "test_our_own_imports_come_before_the_working_directory")
def the_working_directory_comes_first() -> None:
    """What lies in the working directory may take the place of a module of ours that is loaded late."""
    rewrite("run/loading.py", "    _import_what_comes_late()\n", "")


@mutation("42", test=IN_SECRETS + "test_a_look_imports_nothing_from_the_working_directory")
def a_look_imports_what_lies_around() -> None:
    """A command that looks at a store can import from the working directory."""
    rewrite("cli/main.py", "import sys\n", "import sys\nsys.path.insert(0, '')\n")


@mutation("42", test=IN_METRICS + "test_a_port_alone_is_on_this_machine_only")
def a_port_alone_is_open_to_everybody() -> None:
    """HTTP is served to the network where no address is given."""
    retell(given, 'or "127.0.0.1"', 'or "0.0.0.0"')
