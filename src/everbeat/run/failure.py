"""Turn what ended a run into the `TaskError` that is stored.

Error text comes from user code: it may be huge, undecodable, or raise while being asked for. It always fits afterwards.
"""

import traceback
from collections.abc import Callable, Collection

from everbeat.current import CurrentTask
from everbeat.decide.finish import TASK_TIMEOUT
from everbeat.decide.stop import TASK_CANCELLED
from everbeat.errors import ResultTooLarge, TaskCancelRequested, TaskInterrupted, TaskTimeout
from everbeat.ids import full_name
from everbeat.model.task import TaskError
from everbeat.report import log
from everbeat.run.wire import InterruptKind
from everbeat.secrecy import without, without_passwords

UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
ARGUMENTS_INVALID = "ARGUMENTS_INVALID"
RESULT_INVALID = "RESULT_INVALID"
RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
UNKNOWN_TASK = "UNKNOWN_TASK"
WORKER_STOPPED = "WORKER_STOPPED"

TEXT_LIMIT = 64 * 1024
_INTERRUPTIONS: dict[int, tuple[type[TaskInterrupted], str]] = {
    InterruptKind.INTERRUPT: (TaskInterrupted, "the worker stops and can not wait any longer for this task"),
    InterruptKind.TIMEOUT: (TaskTimeout, "the task has run for longer than its timeout"),
    InterruptKind.CANCEL: (TaskCancelRequested, "the task was cancelled while it ran"),
}


def interruption(kind: int) -> TaskInterrupted:
    """The exception that stops a task for this reason."""
    exception, message = _INTERRUPTIONS[kind]
    return exception(message)


def error_of(
    exception: BaseException, stage: str, *own_files: str, secrets: Callable[[], Collection[str]] = frozenset
) -> TaskError:
    """Describe an exception. `stage` is the code of the step that raised; frames of `own_files` are not shown, and
    neither are `secrets` or passwords."""
    hidden = secrets()
    return TaskError(
        code=_code(exception, stage),
        message=cut(without(hidden, _text(exception))),
        exception_type=cut(full_name(type(exception))),
        lineage=tuple(cut(full_name(cls)) for cls in type(exception).__mro__ if cls is not object),
        traceback=cut(without(hidden, _traceback(exception, own_files))),
    )


def say(error: TaskError, current: CurrentTask, *, is_sensitive: bool) -> None:
    """In the log of the worker. What a sensitive task said is not for everybody who reads that."""
    if error.code in (TASK_CANCELLED, WORKER_STOPPED):
        return  # nothing that the task did
    facts = {"task": current.id, "name": current.name, "attempt": current.attempt, "code": error.code}
    if is_sensitive:
        log.task_raised(facts, error.exception_type, None)
        return
    was_its_code = error.code in (UNHANDLED_EXCEPTION, TASK_TIMEOUT)  # else the traceback would be ours
    said = ": ".join(filter(None, (error.exception_type, error.message)))
    log.task_raised(facts, said, error.traceback if was_its_code else None)


def unknown_task(name: str) -> TaskError:
    return TaskError(code=UNKNOWN_TASK, message=cut(f"this worker's application has no task named {name!r}"))


def cut(text: str) -> str:
    """What is stored of a text: 64 kB, encodable, no passwords, and no NUL, which PostgreSQL refuses."""
    encoded = without_passwords(text).replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(encoded) <= TEXT_LIMIT:
        return encoded.decode()
    half = TEXT_LIMIT // 2 - 16  # a traceback says most at its ends
    return f"{encoded[:half].decode(errors='ignore')}\n... (cut)\n{encoded[-half:].decode(errors='ignore')}"


def _code(exception: BaseException, stage: str) -> str:
    match exception:
        case TaskTimeout():
            return TASK_TIMEOUT
        case TaskCancelRequested():
            return TASK_CANCELLED
        case TaskInterrupted():
            return WORKER_STOPPED
        case ResultTooLarge() if stage == RESULT_INVALID:
            return RESULT_TOO_LARGE
    return stage


def _text(exception: BaseException) -> str:
    try:
        return str(exception)
    except BaseException as error:  # noqa: BLE001 - user code: an exception's own __str__
        return f"<no message: {type(error).__name__} in its __str__>"


def _traceback(exception: BaseException, own_files: Collection[str]) -> str:
    try:
        told = traceback.TracebackException.from_exception(exception)
        one: traceback.TracebackException | None = told
        while one is not None:
            _leave_out(one.stack, own_files)
            one = one.__cause__ or one.__context__
        return "".join(told.format())
    except BaseException as error:  # noqa: BLE001 - user code: __str__ and __repr__ of what is shown
        return f"<no traceback: {type(error).__name__} while formatting it>"


def _leave_out(stack: traceback.StackSummary, own_files: Collection[str]) -> None:
    """Ours are the frames that lead to the task, and those of the signal handler that interrupted it."""
    while stack and stack[-1].filename in own_files:
        del stack[-1]
    ours = [number for number, frame in enumerate(stack) if frame.filename in own_files]
    del stack[: max(ours, default=-1) + 1]
