"""What `everbeat check` says of an application: the effective rules of every task, and what can not work.

Runs in the process that has imported the application; the answer is plain JSON values, without passwords.
"""

import importlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from everbeat.config.effective import effective
from everbeat.decide.sense import after_a_crash, doubts_about, problems_of
from everbeat.errors import PayloadError
from everbeat.ids import code_of, full_name
from everbeat.model.recovery import RecoveryPolicy
from everbeat.model.state import Change
from everbeat.workflow import Workflow

if TYPE_CHECKING:
    from everbeat.app import Everbeat
    from everbeat.task import Task

Found = dict[str, str | None]
"""Which task it is about (None: the application), and what is wrong."""


def checked(app: "Everbeat", *, why_not_fork: str | None) -> dict[str, Any]:
    recovery = app.config.recovery.to_policy()
    tasks = [app.tasks[name] for name in sorted(app.tasks)]
    return {
        "store": app.config.broker.location,
        "tasks": [_rules(task, recovery) for task in tasks],
        "workflows": [{"name": flow.name, "nodes": len(flow.nodes)} for flow in _workflows(app)],
        "fork_server": {"usable": why_not_fork is None, "why_not": why_not_fork},
        "configuration": [
            {"key": one.key, "value": one.value, "origin": one.origin} for one in effective(app.config)
        ],
        "problems": [found for task in tasks for found in _of(task, _problems(task, recovery))] + _app_problems(app),
        "warnings": [found for task in tasks for found in _of(task, _doubts(task, recovery))] + _app_doubts(app),
    }  # fmt: skip


def unusable(message: str) -> dict[str, Any]:
    """An application that can not even be imported."""
    return {
        "store": None, "tasks": [], "workflows": [], "fork_server": None, "configuration": [],
        "problems": [{"task": None, "problem": message}], "warnings": [],
    }  # fmt: skip


def _rules(task: "Task[..., Any]", recovery: RecoveryPolicy) -> dict[str, Any]:
    policy, code = task.policy, code_of(task.function)
    runs_again = after_a_crash(policy, recovery).change is Change.RECOVER
    return {
        "name": task.name,
        "signature": f"{task.function.__name__}{inspect.signature(task.function)}",
        "defined_at": f"{code.co_filename}:{code.co_firstlineno}",
        "kind": "async" if task.is_async else "sync",
        "queue": task.queue,
        "priority": task.priority,
        "max_attempts": policy.max_attempts,
        "backoff": policy.backoff if policy.max_attempts > 1 else None,
        "base_seconds": policy.base_seconds if policy.max_attempts > 1 else None,
        "max_seconds": policy.max_seconds if policy.max_attempts > 1 else None,
        "retry_on": None if policy.retry_on is None else list(policy.retry_on),
        "crash_action": policy.on_crash or recovery.action,
        "runs_again_after_crash": runs_again,
        "max_recovery_attempts": policy.max_recovery_attempts or recovery.max_recovery_attempts,
        "timeout": task.timeout,
        "isolated": task.isolated,
        "sensitive": task.sensitive,
        "keys": "given with each sending",
    }


def _of(task: "Task[..., Any]", words: Iterator[str]) -> list[Found]:
    return [{"task": task.name, "problem": said} for said in words]


def _problems(task: "Task[..., Any]", recovery: RecoveryPolicy) -> Iterator[str]:
    try:
        task.payload.check()
    except PayloadError as error:
        yield str(error)
    yield from problems_of(task.policy, recovery)
    for cause in task.policy.retry_on or ():
        if "." in cause and "<locals>" not in cause and not _is_exception(cause):
            yield f"retry_on names {cause!r}, which is no exception class that can be imported"


def _doubts(task: "Task[..., Any]", recovery: RecoveryPolicy) -> Iterator[str]:
    yield from doubts_about(task.policy, recovery, timeout=task.timeout)
    if not task.is_async and inspect.iscoroutinefunction(inspect.unwrap(task.function)):
        yield "it is a plain function around an async one: RESULT_INVALID, unless it runs that to its end"
    if "<locals>" in task.function.__qualname__:
        yield "it is defined inside a function: a worker knows it only if importing the application calls that function"


def _app_problems(app: "Everbeat") -> list[Found]:
    said = (
        ["eager is set: a worker refuses to start, because tasks run where they are sent"] if app.config.eager else []
    )
    said += [f"workflow {flow.name}: {problem}" for flow in _workflows(app) for problem in flow.problems(app)]
    return [{"task": None, "problem": words} for words in said]


def _workflows(app: "Everbeat") -> list[Workflow]:
    """Those that the modules of its tasks have as a whole: one that a function builds is checked when it is started."""
    modules = {task.function.__module__ for task in app.tasks.values()}
    found = [vars(sys.modules[name]) for name in sorted(modules) if name in sys.modules]
    return list(dict.fromkeys(one for names in found for one in names.values() if isinstance(one, Workflow)))


def _app_doubts(app: "Everbeat") -> list[Found]:
    said = []
    if not app.tasks:
        said.append("it has no tasks; if they are in other modules, name these with imports=[...]")
    sync_names = [name for name, task in app.tasks.items() if not task.is_async]
    only_async = [one for one in app.hooks.around if inspect.isasyncgenfunction(inspect.unwrap(one))]
    if sync_names:
        said += [f"around_task {full_name(one)} is asynchronous: it is not run around sync tasks" for one in only_async]
    said += _imported_twice(app)
    return [{"task": None, "problem": words} for words in said]


def _imported_twice(app: "Everbeat") -> Iterator[str]:
    """A file that is a module under two names has registered its tasks twice, under names that differ."""
    places = defaultdict(list)
    for task in app.tasks.values():
        code = code_of(task.function)
        places[code.co_filename, code.co_firstlineno, code.co_name].append(task)
    for (file, _, _), tasks in places.items():
        modules = {task.function.__module__ for task in tasks}
        if len(modules) > 1:
            names, aliases = ", ".join(sorted(task.name for task in tasks)), " and ".join(sorted(modules))
            yield f"{file} was imported as {aliases}: the tasks {names} are one function"


def _is_exception(name: str) -> bool:
    """Whether the full name is that of an exception class. Imports its module, as raising it would."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found = attrgetter(".".join(parts[split:]))(importlib.import_module(".".join(parts[:split])))
        except (ImportError, AttributeError):
            continue
        return isinstance(found, type) and issubclass(found, BaseException)
    return False
