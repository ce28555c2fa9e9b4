"""Everything Everbeat raises.

`EverbeatError` is the root of what a caller may catch. Each class also is the built-in exception a Python programmer
would expect (ValueError, LookupError, TimeoutError ...), keeps its facts as attributes, and survives pickling.

`TaskInterrupted` and its children are raised *inside* a task to stop it. They are BaseExceptions, so that an
`except Exception` in the task's code can not swallow them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self


class EverbeatError(Exception):
    """The root of all errors that Everbeat raises to its callers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(vars(self)))


class ConfigError(EverbeatError, ValueError):
    """Configuration that can not work. Lists every problem that was found, not only the first."""

    def __init__(self, problems: str | Sequence[str], *, subject: str | None = None) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        self.subject = subject
        super().__init__(_listed(self.problems, subject))


class WorkflowInvalid(ConfigError):
    """A workflow that can not work. Lists every problem that was found; nothing was stored."""


class PayloadError(EverbeatError, TypeError):
    """Arguments or a result that can not be stored as typed JSON and come back unchanged."""


class ResultTooLarge(PayloadError):
    """A result over the limit. The task's code has run; only what it returned was refused."""


class StoreUnavailable(EverbeatError, ConnectionError):
    """The store can not be reached or written at present."""

    def __init__(
        self,
        message: str,
        *,
        task_ids: Iterable[str] = (),
        stored_ids: Iterable[str] = (),
        maybe_stored: bool = False,
        may_pass: bool = False,
    ) -> None:
        super().__init__(message)
        self.task_ids = tuple(task_ids)
        """The tasks that were on their way."""
        self.stored_ids = tuple(stored_ids)
        """Tasks of earlier batches of the same call, which are stored."""
        self.maybe_stored = maybe_stored
        """The answer to the commit was lost: the tasks are stored all or none, and it is not known which."""
        self.may_pass = may_pass
        """It is an outage that may end by itself, not something that a person has to put right."""

    @property
    def task_id(self) -> str | None:
        """The task that was on its way, if it was a single one."""
        return self.task_ids[0] if len(self.task_ids) == 1 else None

    def while_sending(self, task_ids: Sequence[str], stored_ids: Sequence[str] = ()) -> Self:
        """The same outage, as the sender of these tasks needs to know it."""
        alone = len(task_ids) == 1
        what = f"Task {task_ids[0]}" if alone else f"{len(task_ids)} tasks"
        if not self.maybe_stored:
            fate = f"{what} {'was' if alone else 'were'} not stored and may be sent again"
        elif alone:
            fate = f"{what} may have been stored; sending it again with .options(id={task_ids[0]!r}) is safe"
        else:
            fate = f"{what} may have been stored, all or none; look at app.handle(error.task_ids[0]) first"
        before = f" {len(stored_ids)} tasks of earlier batches are stored." if stored_ids else ""
        return type(self)(
            f"{str(self).removesuffix('.')}. {fate}.{before}",
            task_ids=task_ids,
            stored_ids=stored_ids,
            maybe_stored=self.maybe_stored,
            may_pass=self.may_pass,
        )


class StoreDamaged(StoreUnavailable):
    """The store is there, but what is in it can not be read as it was written."""


class RecoveryFailed(EverbeatError):
    """The store is damaged and could not be repaired, so nothing was started. It was left as it is."""

    def __init__(
        self, message: str, *, errors: Sequence[str] = (), recovery_point: str = "", backup_command: str = ""
    ) -> None:
        super().__init__(message)
        self.errors = tuple(errors)
        self.recovery_point = recovery_point
        """The last moment that is known to be good, in words."""
        self.backup_command = backup_command


class SchemaMismatch(EverbeatError):
    """The store was made by another version of Everbeat. Nothing in it was touched."""


class TaskNotFound(EverbeatError, LookupError):
    """No task has this id: it was never stored here, or retention has removed it."""

    def __init__(self, task_id: str, *, where: str | None = None) -> None:
        self.task_id = task_id
        place = f" in {where}" if where else ""
        super().__init__(f"no task {task_id}{place}: it was never stored there, or it ended long ago and was pruned")


class TaskConflict(EverbeatError):
    """The given id already belongs to a task with another name or other arguments. That task is unchanged."""

    stored_ids: tuple[str, ...] = ()
    """Tasks of earlier batches of the same call, which are stored."""

    def __init__(self, task_id: str, *, stored_ids: Iterable[str] = ()) -> None:
        self.task_id = task_id
        self.stored_ids = tuple(stored_ids)
        before = f" {len(self.stored_ids)} tasks of earlier batches are stored." if self.stored_ids else ""
        super().__init__(
            f"task {task_id} already exists with another name or other arguments. It was left as it is and nothing "
            f"{'of this batch ' if before else ''}was stored.{before} Use another id, or send exactly the same call to "
            f"get its handle."
        )


class TaskFailed(EverbeatError):
    """The task ended in FAILED."""

    def __init__(
        self,
        *,
        task_id: str,
        error_code: str,
        message: str,
        exception_type: str | None = None,
        traceback: str | None = None,
        attempt: int = 1,
    ) -> None:
        self.task_id = task_id
        self.error_code = error_code
        self.message = message
        self.exception_type = exception_type
        """Full name of the exception's class, as text: the class itself may not exist in this process."""
        self.traceback = traceback
        self.attempt = attempt
        said = f"{exception_type}: {message}" if exception_type else message
        super().__init__(f"task {task_id} failed in attempt {attempt} with {error_code}: {said}")


class TaskCancelled(EverbeatError):
    """The task was cancelled, so there is no result."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} was cancelled, so it has no result")


class TaskExpired(EverbeatError):
    """The task was not started in time, so its code never ran."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} expired before a worker could start it, so it has no result")


class WorkflowNotFound(TaskNotFound):
    """No workflow has this id: it was never stored here, or retention has removed it."""

    def __init__(self, workflow_id: str, *, where: str | None = None) -> None:
        self.workflow_id = self.task_id = workflow_id
        place = f" in {where}" if where else ""
        EverbeatError.__init__(
            self, f"no workflow {workflow_id}{place}: it was never stored there, or it ended long ago and was pruned"
        )


class WorkflowConflict(TaskConflict):
    """The given id already belongs to a workflow with other nodes or arguments. That workflow is unchanged."""

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = self.task_id = workflow_id
        EverbeatError.__init__(
            self,
            f"workflow {workflow_id} already exists with other nodes or arguments. It was left as it is and nothing "
            f"was stored. Use another id, or start exactly the same workflow to get its handle.",
        )


class WorkflowFailed(TaskFailed):
    """The workflow ended in FAILED. Its other fields are those of the node that caused it."""

    def __init__(
        self,
        *,
        workflow_id: str,
        node: str | None,
        task_id: str | None,
        error_code: str,
        message: str,
        exception_type: str | None = None,
        traceback: str | None = None,
        attempt: int = 1,
    ) -> None:
        super().__init__(
            task_id=task_id or workflow_id, error_code=error_code, message=message, exception_type=exception_type,
            traceback=traceback, attempt=attempt,
        )  # fmt: skip
        self.workflow_id = workflow_id
        self.node = node
        """The name of the node that caused it."""
        said = f"{exception_type}: {message}" if exception_type else message
        self.args = (f"workflow {workflow_id} failed at node {node} with {error_code}: {said}",)


class WorkflowCancelled(TaskCancelled):
    """The workflow was cancelled, so there is no result."""

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = self.task_id = workflow_id
        EverbeatError.__init__(self, f"workflow {workflow_id} was cancelled, so it has no result")


class ResultTimeout(EverbeatError, TimeoutError):
    """The wait ended before the task did. The task itself goes on."""

    def __init__(self, task_id: str, waited_for: float, *, store_away: bool = False) -> None:
        self.task_id = task_id
        self.waited_for = waited_for
        self.store_away = store_away
        """The wait ended while the store could not be asked: the task may have ended."""
        known = "its state is unknown, the store can not be reached" if store_away else "it has not ended yet"
        super().__init__(
            f"no result of task {task_id} after {waited_for:g}s: {known}. Only the waiting stopped, the task is not "
            f"affected; call result() again to wait longer."
        )


class TaskInterrupted(BaseException):
    """Raised inside a task that must stop now: its worker stops, or one of the reasons below."""


class TaskTimeout(TaskInterrupted):
    """Raised inside a task that has run for longer than its `timeout`."""


class TaskCancelRequested(TaskInterrupted):
    """Raised inside a task that somebody has cancelled."""


def _restore(cls: type[EverbeatError], args: tuple[Any, ...], facts: dict[str, Any]) -> EverbeatError:
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(facts)
    return error


def _listed(problems: Sequence[str], subject: str | None) -> str:
    head = f"{subject}: " if subject else ""
    if len(problems) == 1:
        return head + problems[0]
    return f"{head}{len(problems)} problems" + "".join(f"\n  - {problem}" for problem in problems)
