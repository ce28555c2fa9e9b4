"""`everbeat drill`: kill and freeze real workers for a while, then say what became of every task."""

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from everbeat.cli import out, which
from everbeat.cli.ends import FAILED, USAGE, Refused, like_ctrl_c
from everbeat.cli.grammar import Option
from everbeat.config import SQLiteConfig, broker_from_url
from everbeat.report.text import Column, clean, counted, plain

if TYPE_CHECKING:
    from everbeat.drill.drill import Snapshot
    from everbeat.drill.verdict import Times, Verdict

LINE_SECONDS = 5.0
SHOWN = 20
"""Broken promises, at most."""


def drill(
    db: Annotated[
        str | None,
        Option("--db", metavar="URL", help="Hold it in this store. Default: a temporary SQLite file."),
    ] = None,
    workers: Annotated[int, Option(min=1, max=100, help="Workers at once; those killed are replaced.")] = 3,
    tasks: Annotated[int, Option(min=1, max=1_000_000, help="Tasks to send.")] = 300,
    seconds: Annotated[float, Option(min=1, max=604_800, help="How long the violence lasts.")] = 20.0,
    seed: Annotated[
        int | None, Option(min=0, help="The same tasks and the same deeds at the same moments as another time.")
    ] = None,
    kill_database: Annotated[
        str | None,
        Option(
            metavar="COMMAND",
            help="Also kill the database server: this shell command must do it, and start the server again.",
        ),
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Hold it in a store that holds other tasks or serves other workers.")
    ] = False,
    keep: Annotated[bool, Option("--keep", help="Keep store, ledger and logs, and say where.")] = False,
    as_json: which.AsJson = False,
) -> None:
    """Kill and freeze workers, then account for every task.

    Real workers run real tasks meanwhile, and every run is held against the store. Exit 1 if a promise was broken: a
    task lost, stuck, ended without a reason, or run although a run of it had counted. Leaves nothing but, in a store
    that was there before, the rows of its workers and its events, until the retention of the store removes them.
    """
    _refuse_to_kill_a_file(db, kill_database)
    from everbeat.drill.drill import Drill, DrillFailed  # lazily: other commands need nothing of it
    from everbeat.drill.ground import RealWork, ground
    from everbeat.drill.plan import plan_for

    plan = plan_for(
        seed=random.randrange(2**31) if seed is None else seed,
        mark=f"drill-{secrets.token_hex(4)}",
        seconds=seconds,
        workers=workers,
        tasks=tasks,
        may_kill_database=kill_database is not None,
    )
    try:
        with like_ctrl_c(), ground(db, among_real_work=force, keep=keep) as here, _told() as tell:
            verdict = Drill(plan, here, tell=tell, kill_database=kill_database).hold()
            here.keep = keep or not verdict.ok
    except RealWork as error:
        raise Refused(
            f"{error}. A drill kills workers and fills a queue of its own; give it a store without real work, no --db "
            f"for a temporary one, or --force.",
            code=USAGE,
        ) from error
    except DrillFailed as error:
        raise Refused(f"the drill could not be held: {error}") from error
    about = {"seed": plan.seed, "seconds": seconds, "workers": workers, "tasks": tasks,
             "kept": str(here.directory) if here.keep else None}  # fmt: skip
    if as_json:
        out.data(about | plain(verdict))
    else:
        _show(verdict, about)
    if not verdict.ok:
        raise SystemExit(FAILED)


def _refuse_to_kill_a_file(db: str | None, command: str | None) -> None:
    if command is not None and (db is None or isinstance(broker_from_url(db, where="--db"), SQLiteConfig)):
        raise Refused("--kill-database: SQLite has no server to kill; give the --db of a PostgreSQL server", code=USAGE)


# -- while it goes on -------------------------------------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[Callable[["Snapshot"], None]]:
    """On stderr: a line that changes where a person watches, else a new line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        with console.status("starting") as status:
            yield lambda snapshot: status.update(_said(snapshot))
        return
    last: tuple[str, int] | None = None

    def say(snapshot: "Snapshot") -> None:
        nonlocal last
        now = snapshot.stage, int(snapshot.seconds / LINE_SECONDS)
        if now != last:
            last = now
            out.complain(_said(snapshot))

    yield say


def _said(snapshot: "Snapshot") -> str:
    deeds = counted(sum(snapshot.deeds.values()), "deed")
    sent, ended = counted(snapshot.accepted, "task"), counted(snapshot.ended, "run")
    return f"{snapshot.seconds:5.0f}s  {snapshot.stage}: {sent} sent, {ended} ended, {deeds} done"


# -- the verdict ------------------------------------------------------------------------------------------------------


def _show(verdict: "Verdict", about: dict[str, Any]) -> None:
    out.say(
        f"A drill of {about['seconds']:g}s with {counted(about['workers'], 'worker')} and "
        f"{counted(about['tasks'], 'task')}, --seed {about['seed']}\n"
    )
    out.rows([Column("DONE TO THEM"), Column("", right=True)], list(verdict.deeds.items()), empty="Nothing was done.")
    out.say("")
    out.rows([Column("WHAT BECAME OF THE TASKS"), Column("", right=True), Column("")], _account(verdict), empty="")
    out.say("")
    out.rows(
        [Column("TIME"), *(Column(title, right=True) for title in ("COUNT", "P50", "P95", "P99"))],
        [
            ["until the death of a task process was known", *_cells(verdict.time_to_detect_process)],
            ["until the death of a worker was known", *_cells(verdict.time_to_detect_worker)],
            ["until a task that was cut short ran again", *_cells(verdict.time_to_restart)],
        ],
        empty="",
    )
    if verdict.not_timed:
        said = ", ".join(f"{count} {who}" for who, count in verdict.not_timed.items())
        out.say(f"In no time above: {said}.")
    out.say("")
    if verdict.ok:
        out.say("Every promise was kept.")
    else:
        out.say(f"{counted(len(verdict.broken), 'promise')} broken:")
        for problem in verdict.broken[:SHOWN]:
            out.say(f"  {clean(problem)}")
        if len(verdict.broken) > SHOWN:
            out.say(f"  and {len(verdict.broken) - SHOWN} more; --json shows all")
    if about["kept"]:
        out.say(f"Kept for you to look at: {about['kept']}")


def _account(verdict: "Verdict") -> list[list[object]]:
    return [
        ["accepted", verdict.accepted, "enqueue() returned"],
        ["completed once", verdict.completed_once, "one run counted, and none after it"],
        ["failed", verdict.failed, "may run once only, and its runner died"],
        ["quarantined", verdict.quarantined, "its own process died too often under it"],
        ["retried", verdict.retried, "began more than once"],
        ["late writes refused", verdict.refused_late_writes, "by a runner that had been replaced"],
        [
            "runs",
            verdict.runs,
            f"{verdict.runs_cut_short} cut short, {verdict.finished_again} came to their end in vain",
        ],
        ["lost", verdict.lost, "must be 0"],
        ["stuck", verdict.stuck, "must be 0"],
        ["accepted duplicates", verdict.accepted_duplicates, "must be 0"],
    ]


def _cells(times: "Times") -> list[object]:
    return [
        times.count,
        *("-" if t is None else f"{t.total_seconds() * 1000:.0f} ms" for t in (times.p50, times.p95, times.p99)),
    ]
