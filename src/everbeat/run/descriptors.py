"""Open files: a worker sees to it that it may have as many as its processes will ever need.

Service managers start programs with a low soft limit (systemd: 1,024), for the sake of those that use select(), and a
high hard one. A worker of a hundred processes would meet it in the middle of its work, when it replaces some of them or
has some run a task alone. It is raised no further than needed, because those who are started below inherit it.
"""

import resource

from everbeat.run.unusable import LimitUnusable

_FOR_EACH_CHILD = 6  # both ends of what it is sent and of its tickets, the end of what it says, its pidfd
_BESIDE = 64


def make_room(processes: int, children: int) -> None:
    """For so many children at once. Raises LimitUnusable if they can not be had."""
    needed = _BESIDE + _FOR_EACH_CHILD * children
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LimitUnusable(
            f"{processes} processes may need {needed:,} open files, and no more than {hard:,} can be had here: raise "
            f"the hard limit (ulimit -Hn, LimitNOFILE= of systemd), or start fewer (--processes)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
