"""Configuration is complete and checked from the moment it exists."""

import dataclasses
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from everbeat import (
    AppConfig,
    ConfigError,
    Everbeat,
    PostgresConfig,
    QueueConfig,
    RecoveryConfig,
    RetryPolicy,
    SQLiteConfig,
)
from everbeat.config import broker_from_url, to_policy
from everbeat.model.recovery import RecoveryPolicy
from everbeat.model.task import TaskPolicy
from everbeat.secrecy import masked

# -- recovery ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-015", "FR-033", "FR-038", "FR-041")
def test_the_defaults_of_recovery_are_those_of_the_specification() -> None:
    assert dataclasses.asdict(RecoveryConfig()) == {
        "auto_requeue_stale_claimed": True,
        "claimed_stale_threshold_ms": 120_000,
        "auto_fail_stale_running": True,
        "running_stale_threshold_ms": 300_000,
        "check_interval_ms": 30_000,
        "runner_heartbeat_interval_ms": 30_000,
        "claimer_heartbeat_interval_ms": 30_000,
        "heartbeat_retention_hours": 24,
        "worker_state_retention_hours": 168,
        "terminal_record_retention_hours": 720,
        "action": "retry",
        "max_recovery_attempts": 3,
        "integrity_check_on_startup": True,
        "session_grace_ms": 3_000,
        "exclusive_lease_ms": 30_000,
    }


def test_high_availability_beats_every_ten_seconds_and_fails_what_was_running() -> None:
    config = RecoveryConfig.high_availability()

    assert config.runner_heartbeat_interval_ms == config.claimer_heartbeat_interval_ms == 10_000
    assert config.running_stale_threshold_ms == config.claimed_stale_threshold_ms == 60_000
    assert (config.check_interval_ms, config.heartbeat_retention_hours, config.action) == (30_000, 1, "fail")


def test_high_availability_can_be_adjusted() -> None:
    assert RecoveryConfig.high_availability(action="retry").action == "retry"


TIGHT = {"runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}
WIDE = {"running_stale_threshold_ms": 7_200_000, "claimed_stale_threshold_ms": 3_600_000}


@pytest.mark.proves("FR-032", "FR-037", "FR-040")
@pytest.mark.parametrize(
    ("field", "low", "high", "others"),
    [
        ("claimed_stale_threshold_ms", 2_000, 3_600_000, TIGHT),
        ("running_stale_threshold_ms", 2_000, 7_200_000, TIGHT),
        ("check_interval_ms", 1_000, 600_000, {}),
        ("runner_heartbeat_interval_ms", 1_000, 120_000, WIDE),
        ("claimer_heartbeat_interval_ms", 1_000, 120_000, WIDE),
        ("heartbeat_retention_hours", 1, 87_600, {}),
        ("worker_state_retention_hours", 1, 87_600, {}),
        ("terminal_record_retention_hours", 1, 87_600, {}),
        ("max_recovery_attempts", 1, 1_000, {}),
        ("session_grace_ms", 0, 3_600_000, {}),
        ("exclusive_lease_ms", 5_000, 3_600_000, {}),
    ],
)
def test_a_setting_is_good_at_its_bounds_and_bad_beyond(
    field: str, low: int, high: int, others: dict[str, int]
) -> None:
    for good in (low, high):
        assert getattr(RecoveryConfig(**(others | {field: good})), field) == good
    for bad in (low - 1, high + 1, -1, "5", 5_000.5, True):
        with pytest.raises(ConfigError, match=field):
            RecoveryConfig(**(others | {field: bad}))


@pytest.mark.parametrize(
    "field",
    [
        "heartbeat_retention_hours",
        "worker_state_retention_hours",
        "terminal_record_retention_hours",
        "session_grace_ms",
    ],
)
def test_none_switches_a_setting_off(field: str) -> None:
    settings: dict[str, Any] = {field: None}

    assert getattr(RecoveryConfig(**settings), field) is None


def test_a_threshold_below_twice_the_heartbeat_interval_is_a_value_error() -> None:
    with pytest.raises(
        ValueError, match=r"running_stale_threshold_ms \(30000\) must be at least twice .* 60000 or more"
    ):
        RecoveryConfig(runner_heartbeat_interval_ms=30_000, running_stale_threshold_ms=30_000)
    with pytest.raises(ValueError, match="claimed_stale_threshold_ms"):
        RecoveryConfig(claimer_heartbeat_interval_ms=30_000, claimed_stale_threshold_ms=59_999)


def test_a_threshold_of_exactly_twice_the_interval_is_good() -> None:
    RecoveryConfig(runner_heartbeat_interval_ms=30_000, running_stale_threshold_ms=60_000)


def test_all_problems_come_in_one_error() -> None:
    wrong: dict[str, Any] = {
        "check_interval_ms": 5,
        "action": "explode",
        "auto_fail_stale_running": "yes",
        "running_stale_threshold_ms": 30_000,
    }

    with pytest.raises(ConfigError) as caught:
        RecoveryConfig(**wrong)

    assert len(caught.value.problems) == 4
    assert "RecoveryConfig: 4 problems" in str(caught.value)


def test_recovery_gives_the_part_that_decides_about_tasks() -> None:
    config = RecoveryConfig(action="pending", max_recovery_attempts=7)

    assert config.to_policy() == RecoveryPolicy(action="pending", max_recovery_attempts=7)


# -- retries ----------------------------------------------------------------------------------------------------------


class PaymentRefused(Exception):
    pass


def test_the_defaults_of_a_retry_policy() -> None:
    assert RetryPolicy() == RetryPolicy(
        max_attempts=3, backoff="exponential", base_seconds=1, max_seconds=3600, jitter=True, retry_on=None
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"max_attempts": 2.5},
        {"base_seconds": -1},
        {"base_seconds": 86_401},
        {"base_seconds": float("nan")},
        {"max_seconds": -1},
        {"backoff": "linear"},
        {"jitter": 1},
        {"retry_on": "WORKER_CRASHED"},
        {"retry_on": ValueError},
        {"retry_on": [5]},
        {"retry_on": 5},
        {"retry_on": ["two words"]},
        {"retry_on": [int]},
    ],
)
def test_a_wrong_retry_policy_names_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


def test_a_timedelta_is_taken_wherever_seconds_are() -> None:
    policy = RetryPolicy(base_seconds=timedelta(minutes=1), max_seconds=timedelta(hours=2))

    assert (policy.base_seconds, policy.max_seconds) == (60.0, 7200.0)


def test_a_policy_is_stored_with_names_instead_of_classes() -> None:
    retry = RetryPolicy(
        max_attempts=5, backoff="fixed", base_seconds=2, jitter=False, retry_on=["WORKER_CRASHED", PaymentRefused]
    )

    stored = to_policy(retry, on_crash="retry", max_recovery_attempts=4)

    assert stored == TaskPolicy(
        max_attempts=5,
        backoff="fixed",
        base_seconds=2.0,
        max_seconds=3600.0,
        jitter=False,
        retry_on=("WORKER_CRASHED", f"{__name__}.PaymentRefused"),
        has_retry=True,
        on_crash="retry",
        max_recovery_attempts=4,
    )
    assert TaskPolicy.load(stored.dump()) == stored


def test_a_task_without_a_retry_policy_has_one_attempt() -> None:
    assert to_policy(None) == TaskPolicy()
    assert to_policy(None).dump() is None


def test_the_longest_wait_is_never_shorter_than_the_base() -> None:
    assert to_policy(RetryPolicy(base_seconds=7200)).max_seconds == 7200


# -- where tasks live -------------------------------------------------------------------------------------------------


def test_a_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broker = broker_from_url("sqlite:///sub/../jobs.db")
    monkeypatch.chdir("/")

    assert broker == SQLiteConfig(tmp_path / "jobs.db")
    assert broker.location == f"sqlite:///{tmp_path}/jobs.db"


def test_a_file_may_be_called_as_a_database_is() -> None:
    assert broker_from_url("sqlite:////var/lib/postgres.db").path == Path("/var/lib/postgres.db")
    assert broker_from_url("sqlite:///postgres.db").path.name == "postgres.db"


def test_four_slashes_are_an_absolute_path() -> None:
    assert broker_from_url("sqlite:////var/lib/jobs.db") == SQLiteConfig("/var/lib/jobs.db")


@pytest.mark.parametrize(
    "url",
    [
        "jobs.db",
        "sqlite://jobs.db",
        "sqlite:///",
        "mysql://h/db",
        "",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "sqlite:///\ud800",
        "sqlite:///a\0b",
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        broker_from_url(url)


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("postgresql+psycopg://bob:s3cret@db/jobs", "begin it with postgresql://, not postgresql+psycopg://"),
        ("postgres+asyncpg://db/jobs", "begin it with postgres://, not postgres+asyncpg://"),
        ("sqlite+aiosqlite:///jobs.db", "begin it with sqlite://, not sqlite+aiosqlite://"),
    ],
)
def test_a_url_with_a_driver_says_how_it_is_written_here(url: str, instead: str) -> None:
    for make in (broker_from_url, PostgresConfig):
        with pytest.raises(ConfigError) as caught:
            make(url)

        assert instead in str(caught.value)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"durability": "off"},
        {"file_mode": 0o400},
        {"file_mode": 0o1777},
        {"file_mode": "600"},
        {"path": ""},
        {"path": 5},
        {"path": "postgresql://h/db"},
        {"path": "~nobody-of-this-name/jobs.db"},
    ],
)
def test_a_wrong_sqlite_setting_names_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SQLiteConfig(**({"path": "jobs.db"} | wrong))


SECRET_URLS = [
    "postgresql://bob:s3cret@db:5432/jobs",
    "postgresql://bob:s3#s3cret?s3cret@db/jobs",
    "postgresql://bob@db/jobs?password=s3cret&sslmode=require",
    "postgres://bob:s3cret@db/jobs?sslpassword=s3cret",
    "postgresql://bob:s3cret@db1:5432,db2:5433/jobs",
    "postgresql://bob@db1,db2/jobs?target_session_attrs=read-write&password=s3cret",
    "postgresql://bob@db/jobs?password=x#s3cret",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_password_is_never_shown(url: str) -> None:
    broker = PostgresConfig(url, schema="queue")

    for shown in (
        repr(broker),
        str(broker),
        broker.location,
        repr(AppConfig(broker=broker)),
        repr(Everbeat(broker)),
        masked(url),
    ):
        assert "s3cret" not in shown
        assert "***" in shown
    assert broker.url == url


def test_a_password_is_not_shown_by_errors_either() -> None:
    for attempt in (
        lambda: broker_from_url("mysql://bob:s3cret@db/jobs"),
        lambda: broker_from_url("postgresql//bob:s3cret@db/jobs"),
        lambda: broker_from_url("postgresql:/bob:s3:cret:s3cret@db/jobs"),
        lambda: broker_from_url("bob:s3cret@db/jobs"),
        lambda: broker_from_url("host=db user=bob password=s3cret"),
        lambda: PostgresConfig("postgresql://bob:s3cret@db:port/jobs"),
        lambda: PostgresConfig("bob:s3cret@db/jobs"),
        lambda: PostgresConfig("host=db password = 's3cret s3cret' user=bob"),
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "bob:s3cret/s3cret@db:5432/jobs",
        "bob:1234/s3cret@db/jobs",
        "bob:s3cret@s3cret@db:5432/jobs",
        "bob:s3cret@db/s3cret@db/jobs",
        "bob:s3cret?s3cret/s3cret@db/jobs",
        "bob:s3cret#s3cret/s3cret@db/jobs",
        "bob:s3cret/s3cret",
        "bob:s3cret",
        "bob:s3cret%s3cret@db/jobs",
        "bob:s3cret%00@db/jobs",
        "bob@db/jobs?password=s3cret&s3cret",
        "bob@db/jobs?password=x&s3cret&sslmode=require",
        "bob@db/jobs?password=s3cret=s3cret",
        "bob@db/jobs?password=%s3cret",
        "bob@db:port/jobs?password=x&s3cret=1",
    ],
)
def test_nothing_of_a_password_that_needs_escaping_is_shown_but_how_it_is_done(wrong: str) -> None:
    with pytest.raises(ConfigError, match="percent-encoded") as caught:
        broker_from_url(f"postgresql://{wrong}")

    assert "postgresql://bob" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "1234" not in str(caught.value)


def test_what_the_driver_reads_without_escapes_is_taken() -> None:
    url = "postgresql://bob:p#a?s=s:%2Fw%40rd@db/jobs?password="

    assert psycopg.conninfo.conninfo_to_dict(url)["host"] == "db"
    assert PostgresConfig(url).database_url == url


@pytest.mark.parametrize(
    "hosts", ["", "db1,db2", "db1:5432,db2:5433", "db1:,db2", "[::1]:5432,[fe80::1%25eth0]", ",db2", "%2Frun%2Fpg"]
)
@pytest.mark.parametrize("rest", ["", "/jobs", "?connect_timeout=5", "/jobs?sslmode=require"])
def test_a_server_has_as_many_hosts_as_the_driver_takes(hosts: str, rest: str) -> None:
    for url in (f"postgresql://bob@{hosts}{rest}", f"postgres://{hosts}{rest}"):
        psycopg.conninfo.conninfo_to_dict(url)

        assert PostgresConfig(url).database_url == broker_from_url(url).url == url


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("db:port", "the port of 'db' must be a number from 1 to 65535"),
        ("db1:5432,db2:port", "the port of 'db2' must be a number from 1 to 65535"),
        ("db1:0,db2", "the port of 'db1' must be a number from 1 to 65535"),
        ("db1,db2:70000", "the port of 'db2' must be a number from 1 to 65535"),
        ("::1", "an IPv6 address is written in brackets, as [::1]"),
        ("db1,[::1", "an IPv6 address is written in brackets, as [::1]"),
        ("[::1]x:5432", "an IPv6 address is written in brackets, as [::1]"),
        ("[]", "an IPv6 address is written in brackets, as [::1]"),
    ],
)
def test_a_host_that_can_not_be_read_is_named_with_what_it_should_be(hosts: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PostgresConfig(f"postgresql://bob:s3cret@{hosts}/jobs")

    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_schema_is_a_plain_identifier() -> None:
    with pytest.raises(ConfigError, match="schema"):
        PostgresConfig("postgresql://db/jobs", schema='x"; drop table y')


@pytest.mark.parametrize("schema", ["pg_temp", "pg_catalog", "pg_jobs"])
def test_a_schema_is_none_of_the_servers_own(schema: str) -> None:
    with pytest.raises(ConfigError, match="must not begin with pg_"):
        PostgresConfig("postgresql://db/jobs", schema=schema)


# -- the whole --------------------------------------------------------------------------------------------------------


def test_without_anything_the_store_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERBEAT_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)

    assert Everbeat().config.broker == SQLiteConfig(tmp_path / "everbeat.db")
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_store_unless_the_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", f"sqlite:///{tmp_path}/env.db")

    assert Everbeat().config.broker == SQLiteConfig(tmp_path / "env.db")
    assert Everbeat(AppConfig(queues=[QueueConfig("mail")])).config.broker == SQLiteConfig(tmp_path / "env.db")
    assert Everbeat("sqlite:////srv/code.db").config.broker == SQLiteConfig("/srv/code.db")


def test_a_bad_url_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", "oops")

    with pytest.raises(ConfigError, match="EVERBEAT_DATABASE_URL"):
        Everbeat()


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker": 5},
        {"recovery": {}},
        {"queues": ["mail"]},
        {"queues": [QueueConfig("mail"), QueueConfig("mail")]},
        {"imports": "shop.tasks"},
        {"imports": ["shop tasks"]},
        {"auto_migrate": 1},
        {"max_args_bytes": 10},
        {"max_tasks_per_child": 0},
        {"max_memory_per_child_mb": 0.5},
    ],
)
def test_a_wrong_app_config_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AppConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"name": "two words"}, {"max_concurrency": 0}, {"paused": "no"}])
def test_a_wrong_queue_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QueueConfig(**({"name": "mail"} | wrong))


def test_configuration_can_not_be_changed() -> None:
    for config in (AppConfig(), RecoveryConfig(), RetryPolicy(), QueueConfig("mail"), SQLiteConfig("a.db")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, dataclasses.fields(config)[0].name, 1)


@pytest.mark.parametrize(
    "config",
    [
        AppConfig(
            broker=SQLiteConfig("jobs.db", durability="normal", file_mode=0o660), recovery=RecoveryConfig(action="fail")
        ),
        AppConfig(
            broker=PostgresConfig("postgresql://bob:s3cret@db/jobs", schema="queue"),
            recovery=RecoveryConfig(session_grace_ms=None, heartbeat_retention_hours=None),
            queues=[QueueConfig("mail", max_concurrency=5, paused=True), QueueConfig("slow")],
            imports=["shop.tasks"],
            auto_migrate=False,
            max_args_bytes=2048,
            max_tasks_per_child=100,
            max_memory_per_child_mb=500,
        ),
    ],
)
def test_facts_make_the_same_configuration_again(config: AppConfig) -> None:
    through_a_pipe = json.loads(json.dumps(config.to_facts()))

    assert AppConfig.from_facts(through_a_pipe) == config
