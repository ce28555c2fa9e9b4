"""How the end of a process is said."""

import signal


def how_it_died(pid: int, status: int | None) -> str:
    """`status` as os.waitstatus_to_exitcode gives it: negative for a signal, None if nobody could tell."""
    if status is None:
        return f"process {pid} went away with its fork server"
    if status < 0:
        return f"process {pid} killed by {_signal_name(-status)}"
    return f"process {pid} exited with code {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
