"""0 ok, 1 failed, 2 usage or configuration, 3 no store. Asked of the real command, as a script would."""

from pathlib import Path

import pytest
from tests.cli.by_hand import Command

from everbeat import __version__
from everbeat.store.interface import Store

READS = [
    ["task", "list"],
    ["task", "show", "some-id"],
    ["worker", "list"],
    ["queue", "status"],
    ["quarantine", "list"],
    ["events"],
    ["task", "history", "some-id"],
    ["task", "retry", "some-id"],
    ["task", "cancel", "--queue", "mail", "--yes"],
    ["task", "purge", "some-id"],
    ["task", "requeue", "some-id"],
    ["task", "fail", "some-id"],
    ["task", "accept", "some-id"],
    ["task", "erase", "some-id"],
    ["quarantine", "release", "some-id"],
    ["quarantine", "discard", "some-id"],
    ["queue", "pause", "mail"],
    ["queue", "resume", "mail"],
    ["queue", "recovery-status"],
    ["queue", "recovery-report"],
    ["worker", "health"],
    ["queue", "recover"],
    ["queue", "recover", "--dry-run"],
    ["db", "check"],
    ["db", "checkpoint"],
    ["db", "backup", "copy.db"],
    ["db", "migrate", "--check"],
    ["db", "migrate", "--sql"],
    ["task", "enqueue", "shop.add"],
]


def test_the_version_is_printed(process: Command) -> None:
    ended = process("--version")

    assert (ended.code, ended.out) == (0, f"everbeat {__version__}\n")


@pytest.mark.parametrize("path", [[], ["task"], ["task", "show"]])
def test_h_is_short_for_help(everbeat: Command, path: list[str]) -> None:
    short, long = everbeat(*path, "-h"), everbeat(*path, "--help")

    assert (short.code, short.out) == (0, long.out)
    assert short.out.startswith("Usage: everbeat")


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_missing_store_is_exit_3_and_is_not_created(everbeat: Command, tmp_path: Path, words: list[str]) -> None:
    ended = everbeat(*words, "--db", "sqlite:///typo.db")

    assert ended.code == 3
    assert ended.out == ""
    assert ended.err == f"everbeat: there is no store at {tmp_path}/typo.db\n"
    assert list(tmp_path.iterdir()) == []


def test_the_exit_code_reaches_the_shell(process: Command, tmp_path: Path) -> None:
    ended = process("task", "list", "--db", "sqlite:///typo.db")

    assert ended.code == 3
    assert ended.err.startswith("everbeat: there is no store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"this is not a database, whatever its name says" * 100])
def test_a_file_that_is_no_store_is_exit_3_and_is_left_alone(everbeat: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)

    ended = everbeat("task", "list", "--db", "sqlite:///notes.txt")

    assert ended.code == 3
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) == 1
    assert (tmp_path / "notes.txt").read_bytes() == content


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task", "list", "--db", "mysql://x"], "is not a store"),
        (["task", "list", "--db", "postgresql://me:secret@host:port/db"], "can not be read"),
        (["task", "list", "--status", "BROKEN"], "BROKEN"),
        (["task", "list", "--since", "yesterday-ish"], "is not a time"),
        (["task", "list", "--since", "999999999d"], "is not a time"),
        (["task", "purge", "--older-than", "999999999.5d"], "is not a time"),
        (["task", "list", "--limit", "0"], "--limit"),
        (["task", "enqueue", "shop.add", "--args", "{"], "--args is not JSON"),
        (["task", "enqueue", "shop.add", "--args", '{"a": NaN}'], "NaN is not a JSON value"),
        (["task", "enqueue", "shop.add", "--args", '{"a": 1e999}'], "1e999 is too large a number"),
        (["task", "enqueue", "shop.add", "--args", '{"a": "\\ud800"}'], "surrogates not allowed"),
        pytest.param(["task", "enqueue", "shop.add", "--args", "[" * 100_000], "nested too deeply", id="deep --args"),
        (["task", "enqueue", "shop.add", "--args", "7"], "must be a JSON list or object"),
        (["task", "enqueue", "[red]x[/red]"], "task name"),
        (["task", "enqueue", "shop.add", "--priority", "0"], "--priority"),
        (["task", "enqueue", "shop.add", "--queue", "a b"], "queue"),
        (["task", "retry"], "either ids or filters"),
        (["task", "retry", "some-id", "--status", "FAILED"], "either ids or filters"),
        (["task", "retry", "--status", "COMPLETED"], "can not be retried"),
        (["worker", "start", "shop:app", "--queues", "a,,b"], "queue"),
        (["worker", "start", "shop:app", "--name", "a b"], "worker name"),
        (["worker", "start", "shop:app", "--processes", "0"], "--processes"),
        (["worker", "start", "shop:app", "--db", "shop.db"], "is not a store"),
        (["worker", "start"], "MODULE:APP"),
        (["queue", "pause", "a b"], "queue"),
        (["queue", "recovery-report", "--last", "0"], "--last"),
        (["queue", "recover", "--action", "forget"], "forget"),
        (["no-such-command"], "no-such-command"),
        (["workflow", "show", "\udcff"], "ID must be text in UTF-8, not '\\udcff'"),
        (["workflow", "pause", "one", "\udcff"], "ID must be text in UTF-8"),
        (["workflow", "list", "--name", "\udcff"], "--name must be text in UTF-8"),
        (["task", "list", "--queue", "\udcff"], "--queue must be text in UTF-8"),
        (["worker", "start", "\udcff:app"], "MODULE:APP must be text in UTF-8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_words_are_exit_2_with_the_reason(everbeat: Command, store: Store, words: list[str], said: str) -> None:
    ended = everbeat(*words)

    assert ended.code == 2
    assert said in " ".join(ended.err.split())
    assert "secret" not in ended.err
    assert ended.out == ""


def test_an_unknown_id_is_exit_1(everbeat: Command, store: Store, url: str) -> None:
    ended = everbeat("task", "show", "nobody", "--db", url)

    assert ended.code == 1
    assert ended.err.startswith(f"everbeat: no task nobody in {url}")


def test_the_store_comes_from_the_environment_when_nothing_else_is_said(
    everbeat: Command, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", url)

    assert everbeat("queue", "status", "--json").json["store"] == url


def test_a_worker_of_an_application_that_is_not_there_is_exit_2(process: Command) -> None:
    ended = process("worker", "start", "nowhere:app")

    assert ended.code == 2
    assert "there is no module nowhere" in ended.err
    assert "Traceback" not in ended.err


def test_a_worker_of_an_application_that_raises_is_exit_1_with_its_traceback(process: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\n")

    ended = process("worker", "start", "broken:app")

    assert ended.code == 1
    assert "RuntimeError: no licence" in ended.err
    assert "everbeat/cli" not in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["task", "list"],
        ["task", "list", "--db", "sqlite:///jobs.db"],
        ["worker", "start", "shop:app", "--db", "sqlite:////tmp/jobs.db"],
        ["check", "shop:app"],
    ],
    ids=" ".join,
)
def test_a_working_directory_that_was_removed_is_exit_2(
    process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    ended = process(*words)

    assert ended.code == 2, ended.err
    assert "the working directory was removed" in ended.err
    assert "Traceback" not in ended.err


def test_where_nobody_says_which_store_the_ways_to_say_it_are_named(everbeat: Command) -> None:
    ended = everbeat("task", "list")

    assert ended.code == 3
    assert "everbeat.db. Say which one you mean: --db URL, --app MODULE:APP, or EVERBEAT_DATABASE_URL" in ended.err
