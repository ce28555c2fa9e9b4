"""Run the crash tests many times and say how often they failed: `make stable N=20`.

A test that kills processes is worth something only if it passes every time. Each run is a pytest of its own. What is
printed is Markdown: a line for each run as it ends, then each test that ever failed, and, outside of the table, the end
of the output of the runs that failed. Exit 1 if any did.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

CRASH_TESTS = "tests/crash"
SHOWN_LINES = 60
COUNT = re.compile(r"(\d+) (passed|failed|errors?)\b")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+(?: [^-]\S*)*)", re.MULTILINE)


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
        return sorted(set(FAILED.findall(self.output)))

    @property
    def passed(self) -> int:
        """By the closing line of pytest."""
        closing = (self.output.strip().splitlines() or [""])[-1]
        return sum(int(count) for count, word in COUNT.findall(closing) if word == "passed")

    @property
    def row(self) -> str:
        result = f"**exit {self.exit_code}**" if self.failed else "ok"
        return f"| {self.number} | {result} | {self.passed} | {len(self.failed_tests)} | {self.seconds:.0f} |"


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
    print(f"`pytest {' '.join(pytest_args)}`, {_surroundings()}\n")
    print("| run | result | passed | failed | seconds |\n|---:|---|---:|---:|---:|", flush=True)
    runs = []
    for number in range(1, count + 1):
        runs.append(run_once(number, pytest_args))
        print(runs[-1].row, flush=True)
    _tell(runs)
    return 1 if any(run.failed for run in runs) else 0


def _tell(runs: list[Run]) -> None:
    failures = [run for run in runs if run.failed]
    often = Counter(name for run in failures for name in run.failed_tests)
    if often:
        print("\n| test | failed in so many runs |\n|---|---:|")
        print("\n".join(f"| {name} | {times} |" for name, times in often.most_common()))
    passed, seconds = sum(run.passed for run in runs), sum(run.seconds for run in runs)
    print(f"\n{len(runs)} runs, {len(failures)} with failures; {passed:,} tests passed in {seconds / 60:.0f} minutes.")
    for run in failures:
        print(f"\n--- run {run.number}, exit {run.exit_code}")
        print("\n".join(run.output.rstrip().splitlines()[-SHOWN_LINES:]))


def _surroundings() -> str:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    known = commit.stdout.strip() or "unknown"
    return f"commit {known}, Python {platform.python_version()}, {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
