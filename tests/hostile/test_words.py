"""Whatever is typed, configured or sent: an answer or a clear error, never a traceback."""

import os
import string
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import commands

from everbeat import AppConfig, ConfigError, Everbeat, EverbeatError, SQLiteConfig
from everbeat.cli.grammar import Misused, call_of, params_of
from everbeat.cli.main import main
from everbeat.store.open import open_store

BOUNDED = settings(
    max_examples=80,
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Elsewhere than in CI each run tries others; what fails prints how to see it again."""

REFUSALS = (EverbeatError, TypeError, ValueError)
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)  # with lone surrogates
TYPED = st.text(alphabet=st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), max_size=20)
ENDLESS = {"--follow", "--watch"}
STARTING = {("demo",), ("worker", "start"), ("drill",), ("bench",)}
"""They run for long or for ever: what is said to them is read, and they are not begun."""
COMMANDS = [*(list(path) for path in commands.LEAVES if path not in STARTING), ["nonsense"], []]
OPTIONS = [*(flag for flag in commands.OPTIONS if flag not in ENDLESS | {"--db", "--app"}), "--", "-", "--help"]
WORDS = st.one_of(
    st.sampled_from(OPTIONS),
    st.sampled_from(
        ["PENDING", "0", "-1", "1e999", str(2**70), "10m", "9999999999d", "[]", "{", "null", "a,b", "..", ""]
    ),
    TYPED,
)


@BOUNDED
@given(command=st.sampled_from(COMMANDS), words=st.lists(WORDS, max_size=5))
def test_any_words_after_a_command_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], words: list[str]
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(open_store(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db", durability="normal")))):
        code = main([*command, *words, *(["--db", url] if takes_store(command) else [])])

    assert code in (0, 1, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


def takes_store(command: list[str]) -> bool:
    leaf = commands.LEAVES.get(tuple(command))
    return leaf is None or "--db" in {param.flag for param in params_of(leaf)}


@BOUNDED
@given(path=st.sampled_from(sorted(STARTING)), words=st.lists(WORDS, max_size=5))
def test_any_words_after_a_command_that_starts_something_are_understood_or_refused(
    path: commands.Path, words: list[str]
) -> None:
    with suppress(Misused):
        assert call_of(commands.LEAVES[path], words)


def test_every_command_is_tried() -> None:
    assert {*map(tuple, COMMANDS), *STARTING} - {("nonsense",), ()} == commands.LEAVES.keys()


NOBODY = "postgresql://127.0.0.1:1/"
"""A server that refuses at once: names of hosts would be looked for in the network."""


@BOUNDED
@given(url=st.one_of(ANY_TEXT, ANY_TEXT.map(lambda text: f"sqlite:///{text}"), TYPED.map(lambda t: f"{NOBODY}{t}")))
def test_any_url_is_a_store_or_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    code = main(["task", "list", "--db", url])

    assert code in (2, 3), url
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


TOML = st.one_of(
    st.text(alphabet=string.printable, max_size=200).map(str.encode),
    st.binary(max_size=200),
    st.tuples(
        st.sampled_from(["", "[recovery]", "[broker]", "[tool.everbeat]", "[[queues]]", "[queue.recovery]"]),
        st.sampled_from(["action", "max_recovery_attempts", "running_stale_threshold_ms", "eager", "imports", "url",
                         "database_url", "name", "paused", "maxRecoveryAttempts", "x"]),
        st.sampled_from(["1", "-1", str(2**63 - 1), "1e400", "nan", "true", '"text"', '"\\u0000"', "[]", "{}",
                         "[1, 'a']", "1979-05-27", '""', "{a = {b = 1}}"]),
    ).map(lambda part: f"{part[0]}\n{part[1]} = {part[2]}\n".encode()),
)  # fmt: skip


@BOUNDED
@given(content=TOML, name=st.sampled_from(["everbeat.toml", "everbeat.yaml", "pyproject.toml"]))
def test_any_configuration_file_is_taken_or_refused_with_its_name(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    try:
        refusal = refusal_of(AppConfig)
    finally:
        (tmp_path / name).unlink()

    assert refusal is None or (isinstance(refusal, ConfigError) and name in str(refusal))


@BOUNDED
@given(
    name=st.sampled_from(["RECOVERY_ACTION", "RECOVERY_MAX_RECOVERY_ATTEMPTS", "RECOVERY_ENABLED", "EAGER", "CONFIG",
                          "DATABASE_URL", "RECOVERY_RUNNING_STALE_THRESHOLD_MS", "IMPORTS"]),
    value=TYPED,
)  # fmt: skip
def test_any_variable_is_taken_or_refused_with_its_name(name: str, value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"EVERBEAT_{name}", value)
        refusal = refusal_of(AppConfig)

    assert refusal is None or (isinstance(refusal, ConfigError) and f"EVERBEAT_{name}" in str(refusal))


def refusal_of(deed: Callable[[], object]) -> Exception | None:
    """The clear error that it ended in, if it did. Any other error fails the test."""
    try:
        deed()
    except REFUSALS as error:
        return error
    return None


class Odd:
    """Nothing that JSON could hold."""


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ARGUMENTS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.binary(max_size=20), st.datetimes(),
        st.just(object()), st.just(Odd()), st.just(len), st.complex_numbers(), st.integers(1, 5000).map(nested),
        st.integers(1, 6000).map(lambda digits: 10**digits), st.sampled_from(
            [float("nan"), float("inf"), -0.0, "\ud800"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(ANY_TEXT, st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
OPTION_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "delay": st.one_of(st.floats(), st.integers(), st.timedeltas(), ANY_TEXT),
    "run_at": st.one_of(st.datetimes(), st.datetimes(timezones=st.just(UTC)), ANY_TEXT),
    "good_until": st.one_of(st.datetimes(timezones=st.just(UTC)), st.just(datetime.max.replace(tzinfo=UTC))),
    "priority": st.one_of(st.integers(), st.floats(), st.booleans(), ANY_TEXT),
    "queue": ANY_TEXT,
    "unique_key": ANY_TEXT,
    "exclusive_key": ANY_TEXT,
    "id": ANY_TEXT,
}


@pytest.fixture
def app(tmp_path: Path) -> Everbeat:
    return Everbeat(SQLiteConfig(tmp_path / "jobs.db", durability="normal"))


@BOUNDED
@given(argument=ARGUMENTS)
def test_any_argument_is_stored_or_refused_and_the_store_goes_on(app: Everbeat, argument: Any) -> None:
    task = app.tasks.get("take") or app.task(name="take")(_take)

    refusal = refusal_of(lambda: task.enqueue(argument).info())

    assert refusal is None or str(refusal)


@BOUNDED
@given(option=st.sampled_from(sorted(OPTION_VALUES)), data=st.data())
def test_any_option_is_taken_or_refused_by_name(app: Everbeat, option: str, data: st.DataObject) -> None:
    task = app.tasks.get("take") or app.task(name="take")(_take)
    value = data.draw(OPTION_VALUES[option])

    refusal = refusal_of(lambda: task.options(**{option: value}).enqueue(1).cancel())

    assert refusal is None or str(refusal)


@BOUNDED
@given(name=ANY_TEXT)
def test_any_task_name_is_taken_or_refused(name: str) -> None:
    refusal = refusal_of(lambda: Everbeat("sqlite:///never-opened.db").task(name=name)(_take))

    assert refusal is None or "task name" in str(refusal)


def test_times_at_the_end_of_time_are_stored_or_refused(app: Everbeat) -> None:
    task = app.task(name="take")(_take)
    for moment in (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)):
        assert task.options(run_at=moment).enqueue(1).info().run_at.year in (1, 9999)
    with pytest.raises(ValueError):
        task.options(delay=timedelta.max)


def _take(argument: Any) -> None:
    return None
