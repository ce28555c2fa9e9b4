"""The integrity check of a SQLite file, and its repair (PROTOCOL 37, 38).

The check is the full one: `quick_check` does not see a damaged index. It runs in a process of its own
(integrity_probe.py) and is cut when its time is up; what it found until then counts. The check itself may fail, which
is a finding. A row that breaks a rule of its table was written by hand: it is told and keeps nobody from working.

The repair is REINDEX and a second check in one transaction that holds the write lock, so a repair that fails leaves the
file as it was. The caller knows that no other worker is alive.
"""

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from everbeat.errors import StoreDamaged
from everbeat.model.integrity import IntegrityResult
from everbeat.store.sqlite.connection import SQLiteDatabase

PROBE = Path(__file__).with_name("integrity_probe.py")
EVERYTHING = 2**31 - 1
LISTED = 100
"""So many findings are kept; a damaged file may have millions."""

NO_FINDINGS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_NOMEM,
    }
)
"""Errors of the check that say nothing about the file."""

_RULE_OF_A_ROW = re.compile(r"(CHECK constraint failed|(NULL|NUMERIC|TEXT|non-\w+) value) in ")


@dataclass(slots=True)
class _Findings:
    errors: list[str] = field(default_factory=list)
    warnings: dict[str, int] = field(default_factory=dict)
    """Each once, with how often it was said."""
    count: int = 0

    def add(self, said: str) -> None:
        """A finding may have several lines, of which the first is a headline."""
        for line in said.splitlines():
            if line == "ok" or line.startswith("*** in database"):
                continue
            if _RULE_OF_A_ROW.match(line):
                self.warnings[line] = self.warnings.get(line, 0) + 1
            else:
                self.count += 1
                if len(self.errors) < LISTED:
                    self.errors.append(line)

    def all_errors(self) -> list[str]:
        more = self.count - len(self.errors)
        return [*self.errors, f"and {more} more"] if more else self.errors

    def all_warnings(self) -> list[str]:
        return [said if times == 1 else f"{said} ({times} rows)" for said, times in self.warnings.items()]


def check(path: Path, *, budget: float) -> IntegrityResult:
    """What the check finds within so many seconds."""
    began = time.monotonic()
    said = _probe(path, budget)
    warnings = said.findings.all_warnings()
    if said.problem is not None:
        warnings.append(f"the integrity check could not be run: {said.problem}")
    elif not said.is_complete:
        warnings.append(f"the integrity check is incomplete: it was cut after {budget:g}s")
    return IntegrityResult(
        passed=not said.findings.count,
        errors=said.findings.all_errors(),
        warnings=warnings,
        duration=timedelta(seconds=time.monotonic() - began),
        complete=said.is_complete,
    )


def repair(database: SQLiteDatabase, found: IntegrityResult) -> IntegrityResult:
    """Rebuild the indexes, and keep that only if nothing else is wrong."""
    began = time.monotonic()
    findings = _Findings()
    try:
        with database.alone() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("REINDEX")
            for (finding,) in connection.execute(f"PRAGMA integrity_check({EVERYTHING})"):
                findings.add(finding)
            connection.execute("ROLLBACK" if findings.count else "COMMIT")
    except (sqlite3.Error, StoreDamaged) as error:
        findings.add(f"REINDEX failed: {error}")
    return replace(
        found,
        passed=not findings.count,
        errors=[*found.errors, *(line for line in findings.all_errors() if line not in found.errors)],
        duration=found.duration + timedelta(seconds=time.monotonic() - began),
        repair_attempted=True,
        repair_succeeded=not findings.count,
    )


@dataclass(slots=True)
class _Said:
    """What the probe said before it ended or its time was up."""

    findings: _Findings = field(default_factory=_Findings)
    is_complete: bool = False
    problem: str | None = None
    """Why it could not be run."""


def _probe(path: Path, budget: float) -> _Said:
    command = [sys.executable or "python3", "-I", "-S", str(PROBE), str(path), str(budget)]
    try:
        probe = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        return _Said(problem=str(error))
    try:
        lines, _ = probe.communicate(timeout=budget)
    except subprocess.TimeoutExpired:
        probe.kill()
        lines, _ = probe.communicate()
        return _read(lines)
    said = _read(lines)
    if probe.returncode < 0 and not said.is_complete:
        said.findings.add(f"the check was ended by signal {-probe.returncode}")
        said.is_complete = True
    elif not lines:
        said.problem = f"{command[0]} ended with {probe.returncode}"
    return said


def _read(lines: bytes) -> _Said:
    said = _Said()
    for value in _values(lines.splitlines()):
        if "finding" in value:
            said.findings.add(str(value["finding"]))
        elif "end" in value:
            said.is_complete = said.problem is None
        elif int(value.get("code", 0)) & 0xFF in NO_FINDINGS:
            said.problem = str(value["error"])
        else:
            said.findings.add(f"the check failed: {value['error']}")
    return said


def _values(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:  # the last one, cut in the middle
            return
