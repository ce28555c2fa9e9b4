"""The lease of tasks with an exclusive key: after which silence of a worker they are another's (PROTOCOL 24).

Pure. One number, L, and everything else in proportion to it. A worker that holds such a task beats every I = L/6 and
waits R = L/10 for an answer. D = 0.6 L after it *sent* the last beat that was answered, the task is stopped, by a
process that needs nobody's help for it. Others wait for L after the beat arrived, which was later. So:

* 2 I + R < D: one beat may be lost, and the next one answered late, without harm.
* D + G + X < L (1 - r): it is stopped, whatever the rates of two clocks, before another may begin. G is how late the
  stop may begin, X how long a killed process takes to be gone.

Beyond that, a pause of the whole machine for longer than L - D, only the fence can help, if the resource asks for it.
"""

from dataclasses import dataclass

GUARD_US = 250_000
"""G: the fork server looks ten times a second."""
KILL_US = 1_000_000
"""X: SIGKILL, and the end of what the process was doing in the kernel."""
DRIFT = 0.01
"""r: far more than two clocks of one machine differ."""


@dataclass(frozen=True, slots=True)
class Lease:
    """All in microseconds."""

    lease_us: int

    @property
    def beat_us(self) -> int:
        return self.lease_us // 6

    @property
    def answer_us(self) -> int:
        return self.lease_us // 10

    @property
    def stop_us(self) -> int:
        return self.lease_us * 6 // 10

    def problem(self) -> str | None:
        """Why no worker can keep it; None if one can."""
        if 2 * self.beat_us + self.answer_us >= self.stop_us:
            return "two beats and an answer do not fit before the moment when its tasks are stopped"
        needed = self.stop_us + GUARD_US + KILL_US
        if needed >= self.lease_us * (1 - DRIFT):
            least = round((GUARD_US + KILL_US) / (1 - DRIFT - 0.6) / 1000)
            return (
                f"its tasks could not be stopped in time before another worker takes them; at least {least} is needed"
            )
        return None
