"""`everbeat db`: the store as a whole. Its schema, its health, its copies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

from everbeat.cli import out, which
from everbeat.cli.ends import FAILED, Refused
from everbeat.cli.grammar import Argument, Group, Option
from everbeat.cli.orders import DryRun, Yes
from everbeat.cli.person import actor
from everbeat.config import AppConfig
from everbeat.errors import SchemaMismatch, StoreDamaged, StoreUnavailable
from everbeat.model.integrity import IntegrityResult
from everbeat.report.text import clean, counted, fields, plain, span
from everbeat.run.mending import torn_workflows
from everbeat.store.interface import Store
from everbeat.store.open import maintenance_of
from everbeat.store.upkeep import Maintenance

app = Group("The store as a whole: schema, health, copies.")

MIB = 1024 * 1024
CHECK_SECONDS = 86_400.0
"""A person who asks for a check wants all of it."""
LISTED = 10


# -- schema -----------------------------------------------------------------------------------------------------------


@app.command()
def migrate(
    check: Annotated[
        bool, Option("--check", help="Only say whether there is something to do: exit 0 if not, 1 if so.")
    ] = False,
    sql: Annotated[bool, Option("--sql", help="Print the SQL that would be run, and do nothing.")] = False,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Bring the tables to the version that is needed.

    All or nothing; creates a store that is not there. Make a backup first (`db backup`).
    """
    maintenance = _maintenance(db, app)
    if check or sql:
        _look(maintenance, sql=sql, as_json=as_json)
        return
    schema = maintenance.migrate()
    changed = not schema.is_current
    if as_json:
        out.data({"store": maintenance.location, "before": schema.found, "schema": schema.newest, "changed": changed})
    elif not changed:
        out.say(f"{clean(maintenance.location)} has schema {schema.found} already; nothing to do")
    else:
        before = "none" if schema.found is None else schema.found
        out.say(f"{clean(maintenance.location)} has schema {schema.newest} now (before: {before})")


def _look(maintenance: Maintenance, *, sql: bool, as_json: bool) -> None:
    schema = maintenance.schema()
    if as_json:
        facts = {"found": schema.found, "newest": schema.newest, "current": schema.is_current}
        said = {"store": maintenance.location} | facts
        out.data(said | ({"sql": maintenance.migration()} if sql else {}))
    elif sql:
        out.say(maintenance.migration() or "-- nothing to do")
    else:
        found = "no tables of Everbeat" if schema.found is None else f"schema {schema.found}"
        todo = "current" if schema.is_current else f"{schema.newest} is needed; run: everbeat db migrate"
        out.say(f"{clean(maintenance.location)} has {found}: {todo}")
    if not (schema.is_current or sql):
        raise SystemExit(FAILED)


# -- health -----------------------------------------------------------------------------------------------------------


@app.command()
def check(db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Check that all that is stored can be read as it was written.

    Exit 1 if there is damage, or rows contradict themselves or each other; warnings are told and end with 0. Nothing is
    changed: damaged indexes are repaired, and what can be decided about such rows is, by the next worker that starts or
    by `queue recover`.
    """
    config = which.config_for(db, app)
    location = maintenance_of(config).location
    try:
        with which.existing(config) as store:
            result = store.check_integrity(budget=CHECK_SECONDS)
            odd = store.oddities(scan=True)
            wrong = [*store.contradictions(), *_torn(store)]
    except StoreDamaged as damage:
        result, odd, wrong = IntegrityResult(passed=False, errors=[str(damage.__cause__ or damage)]), [], []
    found = replace(
        result, passed=result.passed and not wrong, errors=[*result.errors, *wrong], warnings=[*result.warnings, *odd]
    )
    if as_json:
        out.data(plain(found) | {"store": location})
    else:
        _show_integrity(location, found, is_damaged=not result.passed)
    if not found.passed:
        raise SystemExit(FAILED)


def _torn(store: Store) -> Iterator[str]:
    found = torn_workflows(store, all_of_them=True)
    for workflow_id, why in islice(found.mended.items(), LISTED):
        yield f"workflow {workflow_id} is torn: {why}; recovery mends it"
    for workflow_id, why in islice(found.stuck.items(), LISTED):
        yield f"workflow {workflow_id} is torn and can not be mended: {why}"
    more = sum(max(0, len(some) - LISTED) for some in (found.mended, found.stuck))
    if more:
        yield f"{counted(more, 'more workflow is', 'more workflows are')} torn; queue recover --dry-run lists them"


def _show_integrity(location: str, result: IntegrityResult, *, is_damaged: bool) -> None:
    for error in result.errors:
        out.say(f"error: {clean(error)}")
    for warning in result.warnings:
        out.say(f"warning: {clean(warning)}")
    for note in result.notes:
        out.say(f"note: {clean(note)}")
    verdict = "ok" if result.passed else f"{counted(len(result.errors), 'error')}"
    cut = "" if result.complete else " (not complete: its time was up)"
    out.say(f"{clean(location)}: {verdict}{cut}, checked in {span(result.duration)}")
    if is_damaged:
        out.say(
            "Stop its workers and keep a copy (everbeat db backup PATH). Then run: everbeat queue recover. It repairs "
            "what can be repaired, and says what to do otherwise."
        )
    elif not result.passed:
        out.say(
            "Everbeat writes no such rows: find out who did (SQL by hand, a table that was restored alone). Recovery "
            "decides about what it can: everbeat queue recover --dry-run shows it."
        )


@app.command()
def checkpoint(db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Move the write-ahead log into the database.

    Workers do it by themselves. What somebody reads at the moment stays in the log, safely.
    """
    with which.existing_store(db, app) as store:
        done = store.checkpoint()
    if as_json:
        out.data({"frames": done.frames, "left": done.left, "complete": done.is_complete})
    else:
        left = "" if done.is_complete else f", {done.left} stay: somebody reads the database"
        out.say(f"{counted(done.frames, 'frame')} moved{left}")


# -- copies -----------------------------------------------------------------------------------------------------------


@app.command()
def backup(
    path: Annotated[Path, Argument(metavar="PATH", help="The new file. Nothing is overwritten.")],
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Copy the store while it is used.

    The copy is what one moment saw, is checked before it gets its name, and has the rights of the database. The copy of
    a damaged store is kept as PATH.damaged; the exit code is 1.
    """
    with _bar("copying") as progress:
        made = _maintenance(db, app).back_up(path, progress=progress)
    if as_json:
        out.data(made)
    else:
        out.say(f"{clean(made.path)}: {made.bytes / MIB:.1f} MiB, integrity ok, copied in {span(made.duration)}")


@app.command()
def restore(
    path: Annotated[Path, Argument(metavar="PATH", help="A backup made by `db backup`.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Put a backup in the place of the store.

    Refused while a live worker uses it; what is replaced is kept. The restored store gets a new id. Tasks that were
    CLAIMED or RUNNING in the backup are orphans: the next worker that starts decides about them as after a crash. What
    ran or was sent after the backup is not in it.
    """
    config = which.config_for(db, app)
    maintenance = maintenance_of(config, patience=which.PATIENCE)
    live = _live_workers(config, maintenance)
    if live:
        raise Refused(f"{maintenance.location} is used by {', '.join(live)}; stop them first. Nothing was changed.")
    maintenance.check_backup(path)
    _confirm(maintenance, path, dry_run=dry_run, yes=yes)
    if dry_run:
        found = {"store": maintenance.location, "path": str(path.absolute()), "dry_run": True}
        out.data(found) if as_json else out.say(f"{clean(maintenance.location)} would be replaced by {clean(path)}")
        return
    with _bar("restoring") as progress:
        restored = maintenance.restore(path, actor=actor(), progress=progress)
    if as_json:
        out.data(restored)
        return
    orphans = f"{restored.orphans}, owned in the backup: the next worker that starts recovers them"
    out.say(
        fields(
            {
                "restored": restored.store,
                "from": restored.path,
                "store id": restored.store_id,
                "replaced": restored.kept and f"kept as {restored.kept}",
                "orphans": orphans if restored.orphans else "none",
            }
        )
    )


def _confirm(maintenance: Maintenance, path: Path, *, dry_run: bool, yes: bool) -> None:
    if dry_run or yes:
        return
    would = f"{clean(maintenance.location)} would be replaced by {clean(path)}"
    out.agree(would, f"{would}. Do it?")


def _live_workers(config: AppConfig, maintenance: Maintenance) -> list[str]:
    """By their rows, and by the locks they hold where the rows can not be read."""
    from everbeat.run import lockfile  # lazily: looking at a store needs nothing of what runs one
    from everbeat.run.manual import ByHand

    try:
        with which.existing(config) as store:
            beats = ByHand(store, config.recovery).get_worker_status()
            alive = [beat.worker_id for beat in beats if beat.is_alive]
    except (StoreUnavailable, SchemaMismatch):
        alive = []
    return [f"worker {worker}" for worker in alive] or [
        f"a worker (pid {pid})" for pid, _ in lockfile.workers_in(maintenance.state_directory)
    ]


def _maintenance(db: str | None, app: str | None) -> Maintenance:
    return maintenance_of(which.config_for(db, app), patience=which.PATIENCE)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told how many pages are left. Its length is known only after the first of them."""
    with out.growing(what) as show:
        yield lambda left, total: show(total - left, total)
