"""A fork server of two children whose supervisor dies while it reaps one of them: because that had ended, or because
the closed channel told of the death before the signal does. Prints the pid of a program of its own group."""

import os
import signal
import subprocess
import sys
import time

from everbeat.run.deadline import Deadline
from everbeat.run.forkserver import ForkServer, _Child
from everbeat.run.wire import ServerPlan, channel


def fork(number: int, *, ends: bool) -> _Child:
    pid = os.fork()
    if pid == 0:
        if not ends:
            time.sleep(600)
        os._exit(0)
    if not ends:
        os.setpgid(pid, pid)

    def wait() -> int:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.getppid = lambda: 1
        os.kill(os.getpid(), signal.SIGTERM)
        return status

    return _Child(number=number, pid=pid, pidfd=os.pidfd_open(pid), wait=wait)


def main(first_news: str) -> None:
    os.setsid()
    of_its_group = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sys.stdout.write(f"{of_its_group.pid}\n")
    sys.stdout.flush()
    ours, theirs = channel()
    if first_news == "channel":
        theirs.close()
    plan = ServerPlan(
        target="", imports=(), control_fd=-1, leash_fd=-1, deadline_fd=Deadline.create().fd,
        supervisor_pid=os.getppid(),
    )  # fmt: skip
    server = ForkServer(plan, ours, None)
    for number in range(2):
        child = fork(number, ends=first_news == "child" and number == 0)
        server._children[number] = child
        server._selector.register(child.pidfd, 1, child)
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1])
