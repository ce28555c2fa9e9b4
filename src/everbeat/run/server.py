"""The fork server as its supervisor sees it: a process with a control channel, started, told and ended here."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Self

import msgspec

from everbeat.run.pidfds import kill_group, send_signal
from everbeat.run.wire import FromServer, Guard, Inbox, ServerPlan, Spawn, channel, encode, send

_decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


@dataclass(slots=True, eq=False)
class Server:
    process: "subprocess.Popen[bytes]"
    pidfd: int
    inbox: Inbox[FromServer]
    started_at: float
    loaded: bool = False
    complained: bool = False

    @classmethod
    def start(
        cls,
        *,
        target: str,
        imports: tuple[str, ...],
        database_url: str | None,
        leash_fd: int,
        deadline_fd: int,
        buffer: memoryview,
    ) -> Self:
        """Raises OSError if there is no process to be had."""
        ours, theirs = channel()
        plan = ServerPlan(
            target=target,
            imports=imports,
            database_url=database_url,
            control_fd=theirs.fileno(),
            leash_fd=leash_fd,
            deadline_fd=deadline_fd,
            supervisor_pid=os.getpid(),
        )
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "everbeat.run.forkserver", msgspec.json.encode(plan).decode()],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), leash_fd, deadline_fd),
                start_new_session=True,  # keys pressed in a terminal reach the supervisor only
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, os.pidfd_open(process.pid), Inbox(ours, _decoder, buffer), time.monotonic())

    def tell(self, order: Spawn | Guard, *fds: int) -> bool:
        """False: it could not be told now."""
        try:
            return send(self.inbox.end, encode(order), fds, wait=False)
        except OSError:
            return False  # its death is on its way here, or was heard already

    def end(self) -> int:
        """Its exit code, or minus the signal."""
        self.inbox.end.close()
        send_signal(self.pidfd, signal.SIGKILL)
        kill_group(self.process.pid)
        status = self.process.wait()
        os.close(self.pidfd)
        return status
