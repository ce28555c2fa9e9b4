"""The command `everbeat`: its groups, its version, and how every command ends."""

from collections.abc import Sequence
from typing import Annotated

import typer

from everbeat import __version__
from everbeat.cli import (
    bench,
    check,
    db,
    demo,
    drill,
    events,
    health,
    metrics,
    out,
    quarantine,
    queue,
    recovery,
    task,
    worker,
    workflow,
)
from everbeat.cli.ends import FAILED, OK, Refused, code_for
from everbeat.errors import EverbeatError

app = typer.Typer(
    name="everbeat",
    help="A task queue that survives kill -9.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("drill")(drill.drill)
app.command("bench")(bench.bench)
worker.app.command("health")(health.health)
app.add_typer(worker.app, name="worker")
queue.app.command("recover")(recovery.recover)
queue.app.command("recovery-status")(recovery.recovery_status)
queue.app.command("recovery-report")(recovery.recovery_report)
app.add_typer(queue.app, name="queue")
app.add_typer(task.app, name="task")
app.add_typer(workflow.app, name="workflow")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(db.app, name="db")
app.command("events")(events.events)
app.command("metrics")(metrics.metrics)
app.command("check")(check.check)


def _version(wanted: bool) -> None:
    if wanted:
        out.say(f"everbeat {__version__}")
        raise typer.Exit


@app.callback()
def _everbeat(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        app(args=argv, prog_name="everbeat")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK if end.code is None else FAILED
    except (Refused, EverbeatError) as error:
        out.complain(f"everbeat: {error}")
        return code_for(error)
    return OK
