"""Looking at tasks, sending them, running them again."""

import dataclasses
import json
import os
import pwd
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, HandWorker, failed_task, send

from everbeat import Everbeat, TaskInfo
from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store


def test_an_empty_list_is_an_empty_array(everbeat: Command, store: Store, url: str) -> None:
    assert everbeat("task", "list", "--json", "--db", url).json == []
    assert everbeat("task", "list", "--db", url).out == "No tasks.\n"


def test_a_listed_task_has_every_field_with_its_attempts_and_history(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    hand.quarantine(hand.claim())

    (task,) = everbeat("task", "list", "--json", "--db", url).json

    assert set(task) == {field.name for field in dataclasses.fields(TaskInfo)}
    assert (task["id"], task["status"], task["quarantined"]) == (task_id, "FAILED", True)
    assert [attempt["error_code"] for attempt in task["attempts"]] == ["WORKER_CRASHED"]
    assert [entry["new_status"] for entry in task["history"]] == ["FAILED"]
    assert datetime.fromisoformat(task["created_at"]).tzinfo == UTC


def test_a_task_that_crashed_and_waits_says_what_for(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    hand.lose(hand.claim())

    (line,) = everbeat("task", "list", "--status", "PENDING", "--db", url).out.splitlines()[1:]

    assert line.startswith(task_id)
    assert line.endswith("a worker that knows shop.add; of 1 running none does; WORKER_CRASHED")


def test_the_list_is_filtered(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    failed = failed_task(store, hand, name="mail.send", queue="mail")
    waiting = send(store, name="shop.add")

    def listed(*words: str) -> list[str]:
        return [task["id"] for task in everbeat("task", "list", "--json", "--db", url, *words).json]

    assert listed() == [waiting, failed]
    assert listed("--status", "failed") == [failed]
    assert listed("--status", "PENDING", "--status", "FAILED") == [waiting, failed]
    assert listed("--name", "mail.send") == [failed]
    assert listed("--queue", "default") == [waiting]
    assert listed("--error-code", "UNHANDLED_EXCEPTION") == [failed]
    assert listed("--since", "1h") == [waiting, failed]
    assert listed("--since", "2999-01-01") == []
    assert listed("--limit", "1") == [waiting]


def test_a_pipe_gets_whole_lines_without_colour(everbeat: Command, store: Store, url: str) -> None:
    task_id = send(store, name="a.rather.long.name." + "x" * 100)

    head, line = everbeat("task", "list", "--db", url).out.splitlines()

    assert head.split()[:3] == ["ID", "STATUS", "NAME"]
    assert line.split()[0] == task_id
    assert "x" * 100 in line
    assert "\x1b" not in line


def test_markup_and_control_characters_are_shown_and_do_nothing(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    hand.fail(hand.claim(), "[red]x[/red] \x1b[31mred\x1b[0m\rfake\nline :boom: [link=http://x]y[/link]")

    shown = everbeat("task", "show", task_id, "--db", url).out

    assert "[red]x[/red] \\x1b[31mred\\x1b[0m\\rfake\\nline :boom: [link=http://x]y[/link]" in shown
    assert "\x1b" not in shown


def test_show_tells_the_story_of_a_task(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    task_id = send(store, max_attempts=3)
    claim = hand.claim()
    hand.quarantine(claim)
    hand.complete(claim)

    shown = everbeat("task", "show", task_id, "--db", url).out
    said = everbeat("task", "show", task_id, "--json", "--db", url).json

    assert "FAILED (quarantined)" in shown
    assert "process 4711 killed by SIGSEGV" in shown
    assert "system/recovery" in shown
    assert "outcomes that came too late" in shown
    assert said["crash_count"] == 3
    assert [(late["worker_id"], late["has_result"]) for late in said["late_outcomes"]] == [("hand", True)]


def test_an_attempt_beyond_max_attempts_is_no_fraction(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    hand.claim()
    everbeat("task", "requeue", task_id, "--db", url)
    hand.complete(hand.claim())

    listed = everbeat("task", "list", "--db", url).out
    shown = everbeat("task", "show", task_id, "--db", url).out

    assert listed.splitlines()[1].split()[4] == "2"
    assert "2 (beyond 1: unbilled runs, and crashes under on_crash, do not count)" in shown


def test_a_pending_task_says_what_it_waits_for(everbeat: Command, store: Store, url: str) -> None:
    task_id = send(store, delay_us=3_600_000_000)

    assert "waiting for: its time" in " ".join(everbeat("task", "show", task_id, "--db", url).out.split())


# -- sending ----------------------------------------------------------------------------------------------------------


def test_a_task_sent_by_name_can_be_read_by_its_function(
    everbeat: Command, store: Store, tmp_path: Path, url: str
) -> None:
    app = Everbeat(url)

    @app.task(name="shop.greet")
    def greet(name: str, times: int = 1) -> str:
        return name * times

    task_id = everbeat("task", "enqueue", "shop.greet", "--args", '{"name": "[b]Zoë[/b]"}', "--db", url).out.strip()

    claim = HandWorker(store).claim("shop.greet")
    assert claim.id == task_id
    assert greet.decode_args(claim.args) == (("[b]Zoë[/b]",), {})


def test_the_options_of_sending_are_stored(everbeat: Command, store: Store, url: str) -> None:
    ended = everbeat(
        "task", "enqueue", "shop.add", "--queue", "night", "--priority", "7", "--delay", "90", "--json", "--db", url
    )

    task = store.get(ended.json["id"])
    assert task is not None
    assert (task.name, task.queue, task.priority, task.max_attempts) == ("shop.add", "night", 7, 1)
    assert round((task.run_at - task.created_at).total_seconds()) == 90


def test_positional_arguments_need_the_application(everbeat: Command, store: Store, url: str) -> None:
    ended = everbeat("task", "enqueue", "shop.add", "--args", "[1, 2]", "--db", url)

    assert ended.code == 2
    assert "or --app" in ended.err
    assert everbeat("task", "enqueue", "shop.add", "--args", "[]", "--db", url).code == 0


def test_with_the_application_its_task_decides(everbeat: Command, shop: Path) -> None:
    sent = everbeat("task", "enqueue", "shop.add", "--args", "[1]", "--app", "shop:app", "--json")
    (task,) = everbeat("task", "list", "--json", "--app", "shop:app").json

    assert sent.json == {"id": task["id"], "name": "shop.add", "queue": "sums"}
    assert (task["queue"], task["max_attempts"]) == ("sums", 4)
    assert shop.exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ('{"a": 1, "c": 1}', "unexpected keyword argument"),
        ('{"a": "one"}', "Expected `int`"),
        ("[1, 2, 3]", "too many"),
    ],
)
def test_the_application_refuses_a_call_it_would_not_take(everbeat: Command, shop: Path, args: str, said: str) -> None:
    ended = everbeat("task", "enqueue", "shop.add", "--args", args, "--app", "shop:app")

    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def test_the_application_refuses_a_task_it_does_not_have(everbeat: Command, shop: Path) -> None:
    ended = everbeat("task", "enqueue", "shop.sub", "--app", "shop:app")

    assert ended.code == 2
    assert "it has: shop.add" in ended.err


def test_a_given_store_wins_over_that_of_the_application(everbeat: Command, store: Store, shop: Path, url: str) -> None:
    everbeat("task", "enqueue", "shop.add", "--args", "[1]", "--app", "shop:app", "--db", url)

    assert [task["max_attempts"] for task in everbeat("task", "list", "--json", "--db", url).json] == [4]
    assert not shop.exists()


def test_a_look_through_the_application_never_creates_its_store(everbeat: Command, shop: Path) -> None:
    ended = everbeat("task", "list", "--app", "shop:app")

    assert ended.code == 3
    assert not shop.exists()


def test_the_application_is_imported_by_another_process(
    everbeat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text("import os\nopen('who', 'w').write(str(os.getpid()))\nos._exit(7)\n")
    monkeypatch.setenv("EVERBEAT_APP", "leaving:app")

    ended = everbeat("task", "list")

    assert ended.code == 1
    assert "exit code 7" in ended.err
    assert (tmp_path / "who").exists()


def test_an_application_that_is_not_one_is_a_usage_error(everbeat: Command) -> None:
    assert everbeat("task", "list", "--app", "json:dumps").code == 2
    assert everbeat("task", "list", "--app", "nowhere:app").code == 2
    assert everbeat("task", "list", "--app", "json").code == 2


# -- another run ------------------------------------------------------------------------------------------------------


def test_a_failed_task_runs_again_by_id(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    task_id = failed_task(store, hand)

    ended = everbeat("task", "retry", task_id, "--db", url)

    assert (ended.code, ended.out) == (0, "1 task will run again\n")
    task = store.get(task_id)
    assert task is not None
    assert task.status is TaskStatus.PENDING
    assert task.history[-1].actor == f"cli/{pwd.getpwuid(os.getuid()).pw_name}"


def test_ids_that_can_not_run_again_are_named_and_the_others_do(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    failed, waiting = failed_task(store, hand), send(store)

    ended = everbeat("task", "retry", failed, waiting, "nobody", "--json", "--db", url)

    assert ended.code == 1
    assert ended.json["retried"] == [failed]
    assert f"task {waiting} is PENDING" in ended.err
    assert "no task nobody" in ended.err


def test_filters_need_a_yes_when_nobody_can_be_asked(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    failed = [failed_task(store, hand), failed_task(store, hand, queue="mail")]

    refused = everbeat("task", "retry", "--status", "FAILED", "--db", url)
    looked = everbeat("task", "retry", "--status", "FAILED", "--dry-run", "--json", "--db", url)
    untouched = everbeat("task", "list", "--status", "FAILED", "--json", "--db", url).json
    done = everbeat("task", "retry", "--queue", "mail", "--yes", "--json", "--db", url)

    assert (refused.code, refused.out) == (2, "")
    assert "2 tasks would run again" in refused.err
    assert sorted(looked.json["retried"]) == sorted(failed)
    assert len(untouched) == 2
    assert done.json["retried"] == [failed[1]]


@pytest.mark.parametrize(("answer", "code", "status"), [("n", 1, "FAILED"), ("y", 0, "PENDING")])
def test_on_a_terminal_a_person_is_asked(
    everbeat: Command, store: Store, hand: HandWorker, url: str, answer: str, code: int, status: str
) -> None:
    failed_task(store, hand)
    terminal, stdin = os.openpty()
    os.write(terminal, f"{answer}\n".encode())

    done = subprocess.run(
        [sys.executable, "-P", "-m", "everbeat", "task", "retry", "--status", "FAILED", "--db", url],
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    os.close(terminal)
    os.close(stdin)
    assert done.returncode == code
    assert "Run 1 task again?" in done.stderr
    assert everbeat("task", "list", "--json", "--db", url).json[0]["status"] == status


def test_a_filter_never_touches_what_has_completed(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    send(store)
    hand.complete(hand.claim())

    ended = everbeat("task", "retry", "--name", "shop.add", "--yes", "--db", url)

    assert (ended.code, ended.out) == (0, "0 tasks will run again\n")
    assert json.loads(everbeat("task", "list", "--json", "--db", url).out)[0]["status"] == "COMPLETED"
