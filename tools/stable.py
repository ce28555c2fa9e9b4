"""Run the crash tests many times and say how often they failed: `make stable N=20`.

A test that kills processes is worth something only if it passes every time. Each run is a pytest of its own; the output
of a failed run is shown at the end. Exit 1 if any run failed.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CRASH_TESTS = "tests/crash"
SHOWN_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    number: int
    exit_code: int
    seconds: float
    output: str

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    @property
    def failed_tests(self) -> list[str]:
        """As pytest's own summary names them."""
        return [line for line in self.output.splitlines() if line.startswith(("FAILED ", "ERROR "))]

    @property
    def summary(self) -> str:
        """The closing line of pytest, without its decoration."""
        return (self.output.strip().splitlines() or ["no output"])[-1].strip("= ")


def run_once(number: int, pytest_args: list[str]) -> Run:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *pytest_args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Run(number=number, exit_code=done.returncode, seconds=time.monotonic() - began, output=done.stdout)


def main(arguments: list[str]) -> int:
    if not arguments or not arguments[0].isdecimal() or int(arguments[0]) < 1:
        print("usage: python tools/stable.py N [pytest arguments]", file=sys.stderr)
        return 2
    count, pytest_args = int(arguments[0]), [CRASH_TESTS, *arguments[1:]]
    if not Path(CRASH_TESTS).is_dir():
        print(f"there are no crash tests: {CRASH_TESTS} does not exist", file=sys.stderr)
        return 2
    print(f"{'run':>5}  {'result':<6}  {'seconds':>7}  pytest")
    runs = []
    for number in range(1, count + 1):
        run = run_once(number, pytest_args)
        runs.append(run)
        print(f"{run.number:>5}  {'FAILED' if run.failed else 'ok':<6}  {run.seconds:>7.1f}  {run.summary}", flush=True)
        for name in run.failed_tests:
            print(f"{'':>5}  {name}", flush=True)
    failures = [run for run in runs if run.failed]
    for run in failures:
        print(f"\n--- run {run.number}, exit {run.exit_code}")
        print("\n".join(run.output.rstrip().splitlines()[-SHOWN_LINES:]))
    print(f"\n{count} runs, {len(failures)} failures, {sum(run.seconds for run in runs):.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
