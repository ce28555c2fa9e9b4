"""Ask the application, without importing it here: `--app MODULE:APP` is imported by a short process of its own.

So no command that looks at a store runs user code in its own process (PROTOCOL 42), and an application that prints,
hangs or exits while it is imported can not spoil the answer.
"""

import json
import subprocess
import sys
from typing import Any

from everbeat.cli.ends import FAILED, Refused

IMPORT_SECONDS = 60


def facts(target: str) -> dict[str, Any]:
    """What the application says of itself. Holds the store's password, so: never printed."""
    return _ask(target)


def check(target: str) -> dict[str, Any]:
    """What `checking.checked` says of it."""
    return _ask(target, check=True)


def enqueue(target: str, *, db: str | None, name: str, args: Any, options: dict[str, Any]) -> dict[str, Any]:
    return _ask(target, call={"db": db, "name": name, "args": args, "options": options})


def _ask(target: str, **question: Any) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "everbeat.cli.inside"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps({"target": target} | question),
            stdout=subprocess.PIPE,
            text=True,
            timeout=IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Refused(f"importing {target} took longer than {IMPORT_SECONDS}s and was ended") from late
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise Refused(f"the process that imported {target} ended with exit code {done.returncode}") from error
    if "error" in answer:
        raise Refused(f"{target}: {answer['error']}", code=answer.get("code", FAILED))
    said: dict[str, Any] = answer["said"]
    return said
