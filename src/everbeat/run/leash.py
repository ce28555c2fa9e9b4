"""No child outlives its supervisor, whatever state the processes between them are in (P12, PROTOCOL 22).

The supervisor holds the only writing end of a pipe. Every child has the kernel send SIGKILL to its whole group when
that end closes, which is when the supervisor ends, however it ends. Nothing has to run for it: it works while the fork
server is stopped, while a task holds the GIL, and on a child that is stopped itself.

Things that do not work: PDEATHSIG alone (it tells of the fork server's death, not of the supervisor's), a thread that
waits for the hang-up (a C call that holds the GIL keeps it from acting).
"""

import fcntl
import os
import select
import signal

_KILLED = 128 + signal.SIGKILL


class Leash:
    """The supervisor's end."""

    def __init__(self) -> None:
        self.fd, self._held = os.pipe()  # neither is inherited, unless it is passed on
        """The reading end, for the children."""

    def close(self) -> None:
        """Let go: every process on this leash is killed."""
        for fd in (self._held, self.fd):
            os.close(fd)


def put_on(fd: int) -> None:
    """Tie this process and its group, which it leads, to the supervisor. The descriptor is used up."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(fd)
    # The owner belongs to the open file, so each child needs one of its own: that is why it was opened again.
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    gone = select.poll()
    gone.register(own, 0)
    if gone.poll(0):  # it went before the kernel was told
        os._exit(_KILLED)
