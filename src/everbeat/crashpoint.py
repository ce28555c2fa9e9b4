"""Named points at which a test may kill this process with SIGKILL.

Nothing is armed unless `everbeat.testing` arms it, so in production each point costs one look into an empty set.
"""

import os
import signal

POINTS = (
    "enqueue.before_commit",
    "enqueue.after_commit",
    "register.before_commit",
    "register.after_commit",
    "flush.before_commit",
    "flush.after_commit",
    "claim.after_commit",
    "start.after_commit",
    "start.sent",
    "finish.received",
    "finish.after_commit",
    "advance.written",
    "change_workflow.before_commit",
    "change_workflow.after_commit",
    "mend.before_commit",
    "mend.after_commit",
    "declare_dead.before_commit",
    "declare_dead.after_commit",
    "recover.before_commit",
    "recover.after_commit",
    "beat.before_commit",
    "beat.after_commit",
    "retire.before_commit",
    "retire.after_commit",
    "checkpoint.before",
    "checkpoint.moved",
    "checkpoint.after",
    "migrate.before_commit",
    "migrate.after_commit",
    "backup.copied",
    "backup.named",
    "restore.kept",
    "restore.after_commit",
)

armed: dict[str, int] = {}
"""Point -> how many more times it is passed before it kills."""
leads_to: dict[str, tuple[str, int]] = {}
"""Armed point -> what is armed in its place when its time has come: it does not kill."""


def crash_point(name: str) -> None:
    if armed and name in armed:
        armed[name] -= 1
        if armed[name] < 0:
            if name not in leads_to:
                os.kill(os.getpid(), signal.SIGKILL)
            del armed[name]
            point, passes = leads_to.pop(name)
            armed[point] = passes
