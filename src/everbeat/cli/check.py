"""`everbeat check MODULE:APP`: the effective rules of every task, and everything that can not work."""

from typing import Annotated, Any

from everbeat.cli import application, out
from everbeat.cli.ends import FAILED
from everbeat.cli.grammar import Argument
from everbeat.cli.which import AsJson
from everbeat.report.text import Column, clean, counted

COLUMNS = (
    Column("TASK"), Column("KIND"), Column("QUEUE"), Column("PRIORITY", right=True), Column("ATTEMPTS", right=True),
    Column("AFTER A CRASH", wraps=True), Column("TIMEOUT", right=True), Column("MORE", wraps=True),
)  # fmt: skip


def check(
    target: Annotated[
        str, Argument(metavar="MODULE:APP", envvar="EVERBEAT_APP", help="The application, as for worker start.")
    ],
    json: AsJson = False,
) -> None:
    """Check an application without running it. Exit 1 if something in it can not work.

    Imports it in a process of its own and prints each task with the rules that are in effect for it, the settings that
    are not defaults, and whether workers can fork processes from it.
    """
    said = application.check(target)
    if json:
        out.data({"app": target, "ok": not said["problems"], **said})
    else:
        _print(target, said)
    if said["problems"]:
        raise SystemExit(FAILED)


def _print(target: str, said: dict[str, Any]) -> None:
    if said["store"] is not None:
        out.say(f"{target}: {counted(len(said['tasks']), 'task')}, store {clean(said['store'])}\n")
        out.rows(COLUMNS, [_row(task) for task in said["tasks"]], empty="no tasks")
        for flow in said["workflows"]:
            out.say(f"workflow {clean(flow['name'])}: {counted(flow['nodes'], 'node')}")
        out.say("\nkeys, good_until and delays are given with each sending")
        _print_settings(said["configuration"])
        server = said["fork_server"]
        why_not = f"a new interpreter for each: {clean(server['why_not'])}"
        out.say(f"processes: {'forked from one that has imported the application' if server['usable'] else why_not}")
    _print_found("warning", said["warnings"])
    _print_found("PROBLEM", said["problems"])
    problems, warnings = len(said["problems"]), len(said["warnings"])
    words = [counted(problems, "problem"), counted(warnings, "warning")]
    out.say(f"\n{', '.join(words) if problems or warnings else 'nothing to complain about'}")


def _print_settings(configuration: list[dict[str, str]]) -> None:
    chosen = [one for one in configuration if one["origin"] != "default"]
    for one in chosen:
        out.say(clean(f"setting {one['key']} = {one['value']}   from {one['origin']}"))
    if not chosen:
        out.say("settings: all defaults")


def _print_found(word: str, found: list[dict[str, str | None]]) -> None:
    for one in found:
        about = f"task {clean(one['task'])}: " if one["task"] else ""
        first, *rest = (one["problem"] or "").splitlines()
        out.say("\n".join([f"\n{word}  {about}{clean(first)}", *(f"    {clean(line)}" for line in rest)]))


def _row(task: dict[str, Any]) -> tuple[object, ...]:
    return (
        task["name"], task["kind"], task["queue"], task["priority"], task["max_attempts"], _after_crash(task),
        None if task["timeout"] is None else f"{task['timeout']:g}s", ", ".join(_more(task)),
    )  # fmt: skip


def _after_crash(task: dict[str, Any]) -> str:
    if not task["runs_again_after_crash"]:
        return "FAILED"
    unbilled = ", uses no attempt" if task["crash_action"] == "pending" else ""
    return f"runs again{unbilled}; quarantine at {task['max_recovery_attempts']}"


def _more(task: dict[str, Any]) -> list[str]:
    flags = [name for name in ("isolated", "sensitive") if task[name]]
    if task["backoff"]:
        flags.append(f"{task['backoff']} backoff from {task['base_seconds']:g}s")
    if task["retry_on"] is not None:
        flags.append(f"only on {', '.join(cause.removeprefix('builtins.') for cause in task['retry_on']) or 'nothing'}")
    return flags
