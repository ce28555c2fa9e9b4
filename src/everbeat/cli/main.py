"""The command `everbeat`: its groups, its version, and how every command ends."""

import signal
import sys
from collections.abc import Sequence

from everbeat import __version__
from everbeat.cli import (
    bench,
    check,
    db,
    demo,
    drill,
    events,
    health,
    manual,
    metrics,
    out,
    quarantine,
    queue,
    recovery,
    task,
    worker,
    workflow,
)
from everbeat.cli.ends import FAILED, OK, USAGE, Refused, code_for
from everbeat.cli.grammar import HELP, Function, Group, Misused, call_of
from everbeat.errors import EverbeatError

VERSION = "--version"
SHORT_HELP = "-h"

app = Group(
    "A task queue that survives kill -9.\n\n"
    "What a command takes: everbeat COMMAND --help. Which version this is: everbeat --version."
)
app.members |= {"demo": demo.demo, "worker": worker.app, "queue": queue.app, "task": task.app, "workflow": workflow.app}
app.members |= {"quarantine": quarantine.app, "db": db.app, "events": events.events, "metrics": metrics.metrics}
app.members |= {"check": check.check, "drill": drill.drill, "bench": bench.bench}
worker.app.members |= {"health": health.health}
queue.app.members |= {"recover": recovery.recover, "recovery-status": recovery.recovery_status}
queue.app.members |= {"recovery-report": recovery.recovery_report}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    out.open_streams()
    try:
        _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else OK if end.code is None else FAILED
    except (Refused, EverbeatError) as error:
        out.complain(f"everbeat: {error}")
        return code_for(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # who read what we print has gone
        out.give_up()
        return FAILED
    return OK


def _run(words: list[str]) -> None:
    if words[:1] == [VERSION]:
        out.say(f"everbeat {__version__}")
        return
    if words[-1:] == [SHORT_HELP]:
        words[-1] = HELP
    path = ["everbeat"]
    member: Function | Group = app
    try:
        member = app.find(path, words)
        if isinstance(member, Group) or HELP in words[: (*words, "--").index("--")]:
            out.say(manual.help_of(" ".join(path), member))
            raise SystemExit(OK if HELP in words else USAGE)
        call = call_of(member, words)
    except Misused as misused:
        group = " ".join(path)
        raise Misused(f"{misused}\n{manual.usage(group, member)}\nTry: {group} {HELP}") from misused
    member(**call)
