"""Words and tables for people."""

from datetime import UTC, datetime, timedelta

import pytest

from everbeat.model.report import DeadWorker, RecoveredTask, RecoveryReport
from everbeat.report.text import Column, ago, banner, clean, plain, recovery_line, span, table

NOON = datetime(2024, 1, 15, 12, 0, 0, tzinfo=UTC)
COLUMNS = [Column("ID"), Column("NOTE", wraps=True)]
ROW = ["0192f0c4-0000-7000-8000-000000000000", "a note that is longer than the rest of the line"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0s"),
        (0.4, "0.4s"),
        (12, "12s"),
        (119, "119s"),
        (120, "2m"),
        (7_200, "2h"),
        (200_000, "2d"),
        (-5, "0.0s"),
    ],
)
def test_durations_are_said_the_way_people_do(seconds: float, said: str) -> None:
    assert span(timedelta(seconds=seconds)) == said


def test_moments_are_relative_to_now() -> None:
    assert ago(NOON - timedelta(seconds=12), NOON) == "12s ago"
    assert ago(NOON + timedelta(minutes=5), NOON) == "in 5m"
    assert ago(None, NOON) == "-"


def test_plain_values_are_iso_times_in_utc_and_seconds() -> None:
    there = NOON.astimezone(tz=None)

    assert plain({"at": there, "for": timedelta(seconds=1.5), "of": (1, None)}) == {
        "at": "2024-01-15T12:00:00.000000Z",
        "for": 1.5,
        "of": [1, None],
    }


def test_control_characters_become_visible() -> None:
    assert clean("a\x1b[31m\n\u202eb") == "a\\x1b[31m\\n\\u202eb"
    assert clean("Zoë 漢字") == "Zoë 漢字"
    assert clean(None) == clean("") == "-"
    assert clean(0) == "0"


def test_a_pipe_is_never_wrapped() -> None:
    head, line = table(COLUMNS, [ROW], width=None).splitlines()

    assert head.split() == ["ID", "NOTE"]
    assert line == f"{ROW[0]}  {ROW[1]}"


def test_a_narrower_terminal_wraps_notes_but_never_ids() -> None:
    shown = table(COLUMNS, [ROW], width=60)

    assert ROW[0] in shown
    assert max(len(line) for line in shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()) <= 60
    assert len(shown.splitlines()) > 2


def test_a_terminal_that_calls_itself_dumb_is_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")

    _, line = table(COLUMNS, [ROW], width=100).splitlines()

    assert line == f"{ROW[0]}  {ROW[1]}"


def test_a_terminal_too_narrow_for_the_table_gets_blocks() -> None:
    assert table(COLUMNS, [ROW, ROW], width=40).splitlines() == [
        f"ID:   {ROW[0]}",
        f"NOTE: {ROW[1]}",
        "",
        f"ID:   {ROW[0]}",
        f"NOTE: {ROW[1]}",
    ]


def test_the_banner_has_one_line_for_each_fact() -> None:
    said = banner(
        version="1.2.3",
        worker_id="web-1f2e",
        pid=4711,
        target="shop:app",
        task_count=1,
        store="sqlite:////srv/jobs.db",
        engine="SQLite 3.45.1",
        processes=2,
        async_slots=100,
        queues=["mail", "default"],
        recovery="nothing to recover",
    )

    assert [line.split(":")[0] for line in said.splitlines()] == [
        "everbeat", "worker", "app", "store", "engine", "slots", "queues", "recovery",
    ]  # fmt: skip
    assert "web-1f2e (pid 4711)" in said
    assert "shop:app, 1 task\n" in said


def test_a_recovery_is_said_in_one_line() -> None:
    def recovered(task_id: str, action: str) -> RecoveredTask:
        return RecoveredTask(
            task_id=task_id, action=action, attempt_count=1, max_attempts=3, success=True, error=None,
            previous_worker_id="w", reason=None,
        )  # fmt: skip

    report = RecoveryReport(
        started_at=NOON,
        completed_at=NOON,
        recovered_tasks=[recovered("a", "retry"), recovered("b", "failed"), recovered("c", "retry")],
        dead_workers=[DeadWorker(worker_id="w", last_heartbeat=NOON, orphaned_tasks=["a", "b", "c"])],
    )

    assert recovery_line(report) == "1 dead worker, 3 orphaned tasks (2 retry, 1 failed)"
    assert recovery_line(None) == "nothing to recover"
