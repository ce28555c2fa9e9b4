"""Words, tables and plain values for people and for `--json`.

What users wrote (names, errors, reasons) is shown as it is: rich markup stays off and control characters become visible
escapes, so no stored text can colour, move or forge a line of the terminal (PROTOCOL 41). Nothing is cut when the
output is a pipe; on a terminal too narrow for the table each row becomes a block of `name: value` lines.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from everbeat.model.event import EventInfo
from everbeat.model.report import RecoveryReport
from everbeat.report.log import facts_of, line
from everbeat.store.verbs.turns import PAUSED

NOTHING = "-"
LEAST_WIDTH = 8
"""Of a column that may wrap. Narrower is not readable."""
GAP = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    title: str
    wraps: bool = False
    """May be folded when the terminal is narrow. Ids and states never are."""
    right: bool = False


# -- values -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as JSON can hold it: times as ISO 8601 in UTC, durations in seconds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return _iso(value, "microseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value


def clean(value: object) -> str:
    """As text on one line, every control character as a visible escape; "-" for nothing."""
    text = NOTHING if value is None or value == "" else str(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def stamp(moment: datetime | None) -> str:
    return NOTHING if moment is None else _iso(moment, "milliseconds")


def span(duration: timedelta) -> str:
    """The way people say it: 0.4s, 12s, 5m, 3h, 2d."""
    seconds = max(0.0, duration.total_seconds())
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return NOTHING
    return f"{span(now - moment)} ago" if moment <= now else f"in {span(moment - now)}"


def _iso(moment: datetime, timespec: str) -> str:
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


# -- lines ------------------------------------------------------------------------------------------------------------


def banner(
    *,
    version: str,
    worker_id: str,
    pid: int,
    target: str,
    task_count: int,
    store: str,
    engine: str,
    processes: int,
    async_slots: int,
    queues: Sequence[str] | None,
    recovery: str,
) -> str:
    """The first lines of a worker. `ready` comes after them, when it is."""
    return fields(
        {
            "everbeat": version,
            "worker": f"{worker_id} (pid {pid})",
            "app": f"{target}, {counted(task_count, 'task')}",
            "store": store,
            "engine": engine,
            "slots": f"{counted(processes, 'process', 'processes')}, {async_slots} async",
            "queues": ", ".join(queues) if queues is not None else "all",
            "recovery": recovery,
        }
    )


def recovery_line(report: RecoveryReport | None) -> str:
    """A recovery in one line, for the banner."""
    if report is None:
        return "nothing to recover"
    said = [_recovered(report)]
    if report.integrity_check_passed is not None or report.integrity_note is not None:
        said.append(f"integrity {report.integrity.lower()}")
    if report.undecided:
        said.append(counted(len(report.undecided), "worker") + " undecided")
    if report.left_alone:
        said.append(counted(report.left_alone, "orphaned task") + " left alone by configuration")
    torn = len(report.torn_workflows) + report.more_torn
    if torn:
        said.append(counted(torn, "torn workflow"))
    if report.is_degraded:
        said.append("DEGRADED")
    if report.warnings:
        said.append(counted(len(report.warnings), "warning"))
    return "; ".join(said)


def _recovered(report: RecoveryReport) -> str:
    if not (report.dead_workers or report.orphaned_tasks_found):
        return "nothing to recover"
    actions = [task.action if task.success else "not recovered" for task in report.recovered_tasks]
    kinds = [f"{actions.count(action)} {action}" for action in dict.fromkeys(actions)]
    if len(actions) < report.orphaned_tasks_found:
        kinds.append("...")
    workers = counted(len(report.dead_workers), "dead worker")
    tasks = counted(report.orphaned_tasks_found, "orphaned task")
    return f"{workers}, {tasks}" + (f" ({', '.join(kinds)})" if kinds else "")


def waiting_for(stored: str | None) -> str | None:
    """What a task waits for, as `waiting_for` has it, in words."""
    if stored is None or not stored.startswith(PAUSED):
        return stored
    return f"its workflow is paused ({stored.removeprefix(PAUSED)})"


def event_line(event: EventInfo) -> str:
    facts = facts_of(event.task_id, event.worker_id, event.facts)
    return clean(f"{stamp(event.at)} {line(event.name, facts)}")


def counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def fields(values: Mapping[str, object]) -> str:
    """One `name: value` line for each."""
    width = max(map(len, values), default=0) + 1
    return "\n".join(f"{name + ':':<{width}} {clean(value)}" for name, value in values.items())


# -- tables -----------------------------------------------------------------------------------------------------------


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], *, width: int | None) -> str:
    """A table for a terminal of that width; None for a pipe, where every row is one line whatever its length."""
    cells = [[clean(value) for value in row] for row in rows]
    if width is None:
        return _plain_table(columns, cells)
    if width < _least_width(columns, cells):
        return "\n\n".join(fields(dict(zip((c.title for c in columns), row, strict=True))) for row in cells)
    return _rich_table(columns, cells, width)


def _least_width(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    def least(index: int, column: Column) -> int:
        widest = max(len(column.title), *(len(row[index]) for row in cells)) if cells else len(column.title)
        return min(widest, max(LEAST_WIDTH, len(column.title))) if column.wraps else widest

    return sum(least(index, column) + GAP for index, column in enumerate(columns))


def _plain_table(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> str:
    """Without rich, which takes longer to load than most commands to answer, and seconds for a long list."""
    lines = [[column.title for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        (" " * GAP)
        .join(
            text.rjust(width) if column.right else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        )
        .rstrip()
        for line in lines
    )


def _rich_table(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> str:
    from rich.console import Console  # lazily: only a person at a terminal sees it
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        shown.add_column(
            Text(column.title),
            no_wrap=not column.wraps,
            overflow="fold",
            justify="right" if column.right else "left",
        )
    for row in cells:
        shown.add_row(*map(Text, row))
    console = Console(
        width=width, height=len(cells), color_system="standard", force_terminal=True, markup=False, emoji=False,
        highlight=False,
    )  # fmt: skip  # with a width alone, a terminal that calls itself dumb would be 80 wide
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(text.rstrip() for text in captured.get().splitlines())
