"""Write docs/seed-004.md: which test proves which requirement of the recovery specification.

    python tools/seed_004.py            write the page
    python tools/seed_004.py --check    exit 1 if a requirement has no test and no reason, or the page is not current

A test names what it proves by `@pytest.mark.proves("FR-012", ...)`. The words of each requirement are ours; the numbers
are those of the specification.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "seed-004.md"
WIDE = "proves"

REQUIREMENTS = {
    "FR-001": "a starting worker recovers",
    "FR-002": "nothing is claimed before the recovery is complete",
    "FR-003": "it is logged",
    "FR-004": "its start is an event",
    "FR-005": "its completion is an event",
    "FR-006": "it checks the integrity of the database",
    "FR-007": "damage that is found is repaired if possible",
    "FR-008": "a repair that fails halts the start",
    "FR-009": "the write-ahead log is moved into the database",
    "FR-010": "transactions that were not committed are undone",
    "FR-011": "running tasks are looked at",
    "FR-012": "running tasks of dead workers are recovered",
    "FR-013": "the action is configurable",
    "FR-014": "the actions are retry, fail and pending",
    "FR-015": "the default action is retry",
    "FR-016": "a retry asks for the attempts that are left",
    "FR-017": "a task without attempts left fails",
    "FR-018": "the status of the task is updated",
    "FR-019": "the change is recorded",
    "FR-020": "each recovery is an event",
    "FR-021": "the actor is system/recovery",
    "FR-022": "the reason explains",
    "FR-023": "recoveries are counted",
    "FR-024": "the time of a recovery is kept",
    "FR-025": "a report is made",
    "FR-026": "the report shows the recovered tasks",
    "FR-027": "the report shows what could not be recovered",
    "FR-028": "the report shows how long it took",
    "FR-029": "recovering twice is recovering once",
    "FR-030": "recovering again is safe",
    "FR-031": "workers send heartbeats",
    "FR-032": "the interval of the heartbeats is configurable",
    "FR-033": "by default it is 30 seconds",
    "FR-034": "a heartbeat renews the time of the last one",
    "FR-035": "a heartbeat names the worker",
    "FR-036": "a heartbeat names the task",
    "FR-037": "the stale threshold is configurable",
    "FR-038": "by default it is a multiple of the interval",
    "FR-039": "silence is looked for again and again",
    "FR-040": "how often is configurable",
    "FR-041": "by default every minute or more often",
    "FR-042": "silent workers are found",
    "FR-043": "their tasks are recovered",
    "FR-044": "by the same rules as at start-up",
    "FR-045": "the worker is marked dead",
    "FR-046": "its death is logged",
    "FR-047": "its death is an event",
    "FR-048": "what a dead worker left is cleaned up",
    "FR-049": "what it held is released",
    "FR-050": "the cleaning up is recorded",
    "FR-051": "a heartbeat that fails does not end the worker",
    "FR-052": "it is tried again",
    "FR-053": "it does not wait for ever",
    "FR-054": "an outage of the store is tolerated",
    "FR-055": "the state of the heartbeats can be asked for",
    "FR-056": "the full integrity check of SQLite is run",
    "FR-057": "what it finds is logged",
    "FR-058": "what it finds is repaired if possible",
    "FR-059": "a copy by VACUUM is tried where it is needed",
    "FR-060": "indexes are rebuilt where it is needed",
    "FR-061": "a checkpoint is forced",
    "FR-062": "the length of the log is looked at",
    "FR-063": "a long log is moved",
    "FR-064": "a checkpoint that is held up is told",
    "FR-065": "the journal mode is verified",
    "FR-066": "a changed journal mode is changed back",
    "FR-067": "a backup is recommended where there is damage",
    "FR-068": "the recovery point is named",
    "FR-069": "commits that were lost are flagged",
    "FR-070": "rows that make no sense are told",
    "NFR-001": "a recovery takes less than 30 seconds (the figure: `python -m bench`)",
    "NFR-002": "the integrity check takes less than 10 seconds (the figure: `python -m bench`)",
    "NFR-003": "heartbeats use less than 1 % of a processor (the figure: `python -m bench`)",
    "NFR-004": "silence is found in less than a second (the figure: `python -m bench`)",
    "NFR-005": "a crash loses no data",
    "NFR-006": "recovering twice is recovering once",
    "NFR-007": "the log is clear",
    "NFR-008": "metrics are exported",
    "NFR-009": "there is a degraded mode",
    "NFR-010": "people can read the report",
    "AC-001": "recovery runs at the start",
    "AC-002": "orphaned tasks are found",
    "AC-003": "the action is taken",
    "AC-004": "a retry respects the limits",
    "AC-005": "a task over the limit fails",
    "AC-006": "heartbeats work",
    "AC-007": "silence is detected",
    "AC-008": "dead workers are dealt with",
    "AC-009": "the integrity check runs",
    "AC-010": "the log is moved into the database",
    "AC-011": "recovering twice is recovering once",
    "AC-012": "a report is made",
    "AC-013": "events are told",
    "AC-014": "the log is complete",
    "AC-015": "metrics are counted",
}

EXCUSED: dict[str, str] = {}
"""Requirements without a test, and why."""

HEAD = """\
# The recovery specification, requirement by requirement

Made by `tools/seed_004.py` from the marks of the tests; a test keeps it current. Each requirement names the tests that
prove it. A requirement without one fails the build, unless its reason stands here.

| | requirement | proved by |
|---|---|---|
"""


def proofs() -> dict[str, list[str]]:
    """Requirement -> tests, as file::name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, ids in _marked(path):
            for one in ids:
                found[one].append(f"{path.relative_to(ROOT)}::{name}")
    return found


def _marked(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ids = [one for mark in node.decorator_list for one in _ids(mark)]
            if ids:
                yield node.name, ids


def _ids(mark: ast.expr) -> list[str]:
    if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == WIDE:
        return [str(word.value) for word in mark.args if isinstance(word, ast.Constant)]
    return []


def problems() -> list[str]:
    proved = proofs()
    unknown = [f"{one} is no requirement ({tests[0]})" for one, tests in proved.items() if one not in REQUIREMENTS]
    missing = [
        f"{one} ({words}) has no test" for one, words in REQUIREMENTS.items() if not (one in proved or one in EXCUSED)
    ]
    idle = [f"{one} is excused, but {proved[one][0]} proves it" for one in EXCUSED if one in proved]
    return unknown + missing + idle


def page() -> str:
    proved = proofs()
    rows = []
    for one, words in REQUIREMENTS.items():
        tests = "<br>".join(f"`{test}`" for test in proved.get(one, ()))
        rows.append(f"| {one} | {words} | {tests or EXCUSED.get(one, 'nothing')} |\n")
    return HEAD + "".join(rows)


def main() -> int:
    found = problems()
    if "--check" in sys.argv:
        if PAGE.read_text() != page():
            found.append("docs/seed-004.md is not current: run python tools/seed_004.py")
    else:
        PAGE.write_text(page())
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
