"""The other side of `application.py`: a short process of its own that imports the application and answers one question.

Runs as `python -P -m everbeat.cli.inside`: our own modules are loaded before the working directory becomes importable
(PROTOCOL 42). Question and answer are JSON on stdin and stdout; whatever user code prints goes to stderr.
"""

import json
import os
import sys
from typing import Any, cast

from everbeat.app import Everbeat
from everbeat.checking import checked, unusable
from everbeat.cli.ends import FAILED, USAGE, code_for
from everbeat.errors import EverbeatError
from everbeat.run.forkable import open_sockets, why_not_fork
from everbeat.run.loading import load_app
from everbeat.run.unusable import AppUnusable


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    with os.fdopen(answers, "w") as stream:
        json.dump(answer(question), stream)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    sockets_before = open_sockets()
    try:
        app = cast(Everbeat, load_app(question["target"], ()))
        if question.get("check"):
            return {"said": checked(app, why_not_fork=why_not_fork(sockets_before))}
        call = question.get("call")
        return {"said": app.worker_facts() if call is None else enqueue(app, **call)}
    except AppUnusable as error:
        if question.get("check") and error.kind != "missing":
            return {"said": unusable(error.message)}
        return {"error": str(error), "code": USAGE if error.kind in ("missing", "config") else FAILED}
    except EverbeatError as error:
        return {"error": str(error), "code": code_for(error)}
    except (TypeError, ValueError) as error:  # a call that the function would not take
        return {"error": str(error), "code": USAGE}


def enqueue(app: Everbeat, *, db: str | None, name: str, args: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Send by the task itself: its signature, its queue and its retry policy apply."""
    if db is not None:
        app.move_to(db, where="--db")
    task = app.tasks.get(name)
    if task is None:
        known = ", ".join(sorted(app.tasks)) or "none"
        raise ValueError(f"the application has no task {name!r}; it has: {known}")
    sender = task.options(**options)
    handle = sender.enqueue(**args) if isinstance(args, dict) else sender.enqueue(*args)
    info = handle.info()
    return {"id": handle.id, "name": info.name, "queue": info.queue}


if __name__ == "__main__":
    main()
