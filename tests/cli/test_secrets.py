"""Attacks on what is shown: secrets in arguments, errors, variables; texts that would paint the terminal; sizes."""

import json
import re
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, Ended

from everbeat import Everbeat, PayloadError, TaskFailed, TaskHandle
from everbeat.cli import out
from everbeat.report.log import Reporter
from everbeat.secrecy import without_passwords
from everbeat.store.messages import TaskFilter

VAULT = r"""
from everbeat import AppConfig, Everbeat, SQLiteConfig

app = Everbeat(AppConfig(broker=SQLiteConfig("vault.db"), redact=["Password"]))

@app.task(name="vault.login")
def login(user: str, account: dict[str, str]) -> None:
    raise ValueError(f"{user} can not log in: {account}")

@app.task(name="vault.alogin")
async def alogin(user: str, password: str) -> None:
    raise ValueError(f"{user} can not log in with {password!r}")

@app.task(name="vault.connect")
def connect(password: str) -> None:
    raise ConnectionError(
        f"no answer from postgresql://bob:dsn-s3cret@db/jobs\nhost=db user=bob password=dsn-s3cret or {password}"
    )

@app.task(name="vault.pay", sensitive=True)
def pay(card: str) -> None:
    raise ValueError(f"card {card} was refused")

@app.task(name="vault.paint")
def paint(text: str) -> None:
    raise ValueError(text)

@app.task(name="vault.shout")
def shout(size: int) -> None:
    raise ValueError("<" + "y" * size + ">")

@app.task(name="vault.echo")
def echo(text: str, times: int = 1) -> str:
    return text * times
"""
SECRET = "s3cret"


@pytest.fixture
def vault(tmp_path: Path) -> Everbeat:
    """The application in the working directory, vault:app, and a twin to send with."""
    (tmp_path / "vault.py").write_text(VAULT)
    names: dict[str, Everbeat] = {}
    exec(VAULT, names)
    return names["app"]


def send(app: Everbeat, name: str, **arguments: object) -> TaskHandle[object]:
    return app.tasks[name].enqueue(**arguments)


def everything_shown(process: Command, ids: list[str]) -> str:
    looks = [
        ("task", "list"),
        ("events",),
        ("queue", "status"),
        ("worker", "list"),
        ("quarantine", "list"),
        *(("task", "show", task_id) for task_id in ids),
        *(("task", "history", task_id) for task_id in ids),
    ]
    shown: list[Ended] = []
    for words in looks:
        for form in ((), ("--json",)):
            shown.append(process(*words, *form, "--db", "sqlite:///vault.db"))
            assert shown[-1].code == 0, shown[-1].err
    return "".join(ended.out + ended.err for ended in shown)


@pytest.mark.timeout(400)
def test_no_secret_is_shown_by_any_command_event_or_log(
    vault: Everbeat, process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [
        send(vault, "vault.login", user="ann", account={"password": "ab's3cret\\", "note": "visible"}),
        send(vault, "vault.alogin", user="bea", password="xy\ns3cret"),
        send(vault, "vault.connect", password="s3cret-token"),
        send(vault, "vault.pay", card="4444-s3cret"),
    ]
    monkeypatch.setenv("SHOP_TOKEN", "environment-s3cret")

    worker = process("worker", "start", "vault:app", "--burst", "--log-level", "debug")
    shown = everything_shown(process, [handle.id for handle in handles])

    assert worker.code == 0, worker.err
    assert SECRET not in worker.out + worker.err
    assert SECRET not in shown
    for sign in ("ann can not log in", "visible", "bea can not log in", "no answer from postgresql://bob:***@db/jobs"):
        assert sign in shown
    with pytest.raises(TaskFailed) as caught:
        handles[0].result(timeout=0)
    assert SECRET not in f"{caught.value} {caught.value.traceback}"
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("vault.db*") if path.is_file())
    assert b"environment-s3cret" not in written
    assert b"dsn-s3cret" not in written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://bob:s3cret@db/jobs", "postgresql://bob:***@db/jobs"),
        ("('postgres://bob:s3@cret@db/x', 5)", "('postgres://bob:***@db/x', 5)"),
        ("redis://:s3cret@cache:6379/0 down", "redis://:***@cache:6379/0 down"),
        ("host=db password=s3cret user=bob", "host=db password=*** user=bob"),
        ("password='two words s3cret' x", "password=*** x"),
        ("?sslpassword=s3cret&x=1", "?sslpassword=***&x=1"),
        ("postgresql://db/jobs?password=***: it is away", "postgresql://db/jobs?password=***: it is away"),
        ("password=***s3cret user=bob", "password=*** user=bob"),
        ("https://example.org/a:b and @decorator", "https://example.org/a:b and @decorator"),
        (
            "@app.task\ndef f(x): 'http://a:80/' # me@example.org",
            "@app.task\ndef f(x): 'http://a:80/' # me@example.org",
        ),
        ("the password is wrong", "the password is wrong"),
    ],
)
def test_passwords_in_free_text(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_complaints_and_log_lines_hide_passwords(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out.complain("no answer from postgresql://bob:s3cret@db/jobs")
    with caplog.at_level("INFO", logger="everbeat"):
        Reporter().say("store.unavailable", error="no answer from postgresql://bob:s3cret@db/jobs")

    assert capsys.readouterr().err == "no answer from postgresql://bob:***@db/jobs\n"
    (record,) = caplog.records
    assert SECRET not in f"{record.getMessage()} {vars(record)}"


def test_a_stored_text_can_not_paint_move_or_forge_lines_of_the_terminal(vault: Everbeat, process: Command) -> None:
    evil = "\x1b[31mred\x1b]0;title\x07 [bold]bold[/bold] :smile: \u202egnp.exe \r\nforged line"
    task_id = send(vault, "vault.paint", text=evil).id
    process("worker", "start", "vault:app", "--burst")

    shown = everything_shown(process, [task_id])

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)
    assert "[bold]bold[/bold] :smile:" in shown
    assert not any(line.startswith("forged") for line in shown.splitlines())


def test_an_error_text_is_cut_at_64_kb(vault: Everbeat, process: Command) -> None:
    handle = send(vault, "vault.shout", size=3_000_000)
    process("worker", "start", "vault:app", "--burst")

    with pytest.raises(TaskFailed) as caught:
        handle.result(timeout=0)

    assert len(caught.value.message.encode()) <= 65_536
    assert len((caught.value.traceback or "").encode()) <= 65_536
    assert caught.value.message.startswith("<yyy")
    assert caught.value.message.endswith("yyy>")
    assert "(cut)" in caught.value.message


def test_ten_megabytes_travel_and_twenty_are_refused_with_words(vault: Everbeat, process: Command) -> None:
    big = send(vault, "vault.echo", text="x" * 10_000_000)
    with pytest.raises(PayloadError, match=r"20,\d{3},\d{3} bytes.*limit is 16,777,216.*Nothing was sent") as refused:
        send(vault, "vault.echo", text="x" * 20_000_000)
    grown = send(vault, "vault.echo", text="x" * 10_000_000, times=2)

    worker = process("worker", "start", "vault:app", "--burst")

    assert worker.code == 0, worker.err
    assert big.result(timeout=0) == "x" * 10_000_000
    assert len(str(refused.value)) < 1000
    with pytest.raises(TaskFailed, match=r"returned 20,\d{3},\d{3} bytes, the limit is 16,777,216") as too_large:
        grown.result(timeout=0)
    assert too_large.value.error_code == "RESULT_TOO_LARGE"
    assert len(vault.store.tasks(TaskFilter())) == 2


SHADOWED = (
    "rich",
    "msgspec",
    "json",
    "sqlite3",
    "tomllib",
    "yaml",
    "secrets",
    "queue",
    "uuid",
    "asyncio",
)


def shadow_everything(directory: Path) -> Path:
    """Modules in the working directory that would be imported instead of the real ones, and tell."""
    for name in SHADOWED:
        (directory / f"{name}.py").write_text("open('imported', 'a').write(__name__ + ' ')\nraise SystemExit(77)\n")
    (directory / "everbeat.toml").write_text("[recovery]\naction = 'fail'\n")
    return directory / "imported"


@pytest.mark.parametrize("words", [("task", "list"), ("queue", "status"), ("events",), ("worker", "list")])
def test_a_look_imports_nothing_from_the_working_directory(
    words: tuple[str, ...], vault: Everbeat, tmp_path: Path, process: Command
) -> None:
    send(vault, "vault.echo", text="x")
    imported = shadow_everything(tmp_path)

    ended = process(*words, "--json", "--db", "sqlite:///vault.db")

    assert ended.code == 0, ended.err
    json.loads(ended.out)
    assert not imported.exists()


def test_our_own_imports_come_before_the_working_directory(vault: Everbeat, tmp_path: Path, process: Command) -> None:
    """The application's directory is importable for it, and its modules do not take the place of ours."""
    (tmp_path / "chain.py").write_text(
        VAULT + "\n@app.task(name='vault.chain')\ndef chain() -> str:\n    return echo.enqueue('later').id\n"
    )
    names: dict[str, Everbeat] = {}
    exec((tmp_path / "chain.py").read_text(), names)
    handle = send(names["app"], "vault.chain")
    imported = shadow_everything(tmp_path)

    ended = process("worker", "start", "chain:app", "--burst")

    assert ended.code == 0, ended.err
    assert not imported.exists(), imported.read_text()
    assert vault.handle(str(handle.result(timeout=0))).result(timeout=0) == "later"
