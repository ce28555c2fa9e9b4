"""What the code leaves out comes from a variable, then from one file, then from the default; each field for itself."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everbeat import (
    AppConfig,
    ConfigError,
    Everbeat,
    PostgresConfig,
    QueueConfig,
    RecoveryConfig,
    SQLiteConfig,
)
from everbeat.config import broker_from_url, effective

Write = Callable[[str, str], Path]

SEED = """\
queue:
  recovery:
    action: retry  # retry, fail, pending
    maxRecoveryAttempts: 3
    integrityCheckOnStartup: true

  heartbeat:
    intervalSeconds: 30
    staleThresholdMultiplier: 3
    detectionIntervalSeconds: 60
"""


@pytest.fixture(autouse=True)
def _bare_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("EVERBEAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def problems(make: Callable[[], Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        make()
    return caught.value.problems


# -- precedence -------------------------------------------------------------------------------------------------------


def test_each_field_is_taken_from_the_strongest_source_that_says_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("everbeat.toml", "[recovery]\naction = 'fail'\nmax_recovery_attempts = 4\ncheck_interval_ms = 4000\n")
    monkeypatch.setenv("EVERBEAT_RECOVERY_MAX_RECOVERY_ATTEMPTS", "5")
    monkeypatch.setenv("EVERBEAT_RECOVERY_CHECK_INTERVAL_MS", "5_000")

    recovery = Everbeat(AppConfig(recovery=RecoveryConfig(check_interval_ms=6000))).config.recovery

    assert (recovery.check_interval_ms, recovery.max_recovery_attempts, recovery.action) == (6000, 5, "fail")
    assert recovery.session_grace_ms == 3000


def test_a_value_given_in_code_counts_as_code_also_when_it_is_the_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_RECOVERY_ACTION", "fail")
    write("everbeat.toml", "max_args_bytes = 2048\n")

    config = AppConfig(recovery=RecoveryConfig(action="retry"), max_args_bytes=16 * 1024 * 1024)

    assert (config.recovery.action, config.max_args_bytes) == ("retry", 16 * 1024 * 1024)
    assert RecoveryConfig().action == "fail"


def test_the_preset_for_high_availability_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_RECOVERY_RUNNING_STALE_THRESHOLD_MS", "90000")
    monkeypatch.setenv("EVERBEAT_RECOVERY_EXCLUSIVE_LEASE_MS", "10000")

    recovery = RecoveryConfig.high_availability()

    assert (recovery.running_stale_threshold_ms, recovery.exclusive_lease_ms) == (60_000, 10_000)


def test_the_store_is_named_by_code_then_variable_then_file_then_default(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Everbeat().config.broker == SQLiteConfig(tmp_path / "everbeat.db")
    write("everbeat.toml", "database_url = 'sqlite:///file.db'")
    assert Everbeat().config.broker == SQLiteConfig(tmp_path / "file.db")
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", "sqlite:///variable.db")
    assert Everbeat().config.broker == SQLiteConfig(tmp_path / "variable.db")
    assert Everbeat("sqlite:///code.db").config.broker == SQLiteConfig(tmp_path / "code.db")


def test_settings_of_a_store_are_fields_of_their_own(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("everbeat.toml", "[broker]\npath = 'file.db'\ndurability = 'normal'\nfile_mode = 0o640\n")
    monkeypatch.setenv("EVERBEAT_BROKER_FILE_MODE", "0660")

    broker = Everbeat("sqlite:///code.db").config.broker

    assert broker == SQLiteConfig("code.db", durability="normal", file_mode=0o660)


@pytest.mark.parametrize("name", ["EVERBEAT_DATABASE_URL", "EVERBEAT_RECOVERY_ACTION", "EVERBEAT_CONFIG"])
def test_an_empty_variable_counts_as_not_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")

    assert AppConfig() == AppConfig(broker=SQLiteConfig("everbeat.db"), recovery=RecoveryConfig())


def test_imports_of_the_code_take_the_place_of_those_of_a_file(write: Write) -> None:
    write("everbeat.toml", "imports = ['file.tasks']\n")

    assert Everbeat().imports == ("file.tasks",)
    assert Everbeat(imports=["code.tasks"]).imports == ("code.tasks",)
    assert Everbeat(AppConfig(imports=["a"]), imports=["b"]).imports == ("a", "b")


# -- variables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1", True), ("true", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False), ("no", False)],
)
def test_a_switch_in_a_variable(text: str, meant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_RECOVERY_INTEGRITY_CHECK_ON_STARTUP", text)
    monkeypatch.setenv("EVERBEAT_AUTO_MIGRATE", text)

    assert AppConfig().recovery.integrity_check_on_startup is AppConfig().auto_migrate is meant


def test_none_and_lists_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_RECOVERY_HEARTBEAT_RETENTION_HOURS", "none")
    monkeypatch.setenv("EVERBEAT_RECOVERY_SESSION_GRACE_MS", "None")
    monkeypatch.setenv("EVERBEAT_IMPORTS", "shop.tasks, shop.mail")

    config = AppConfig()

    assert (config.recovery.heartbeat_retention_hours, config.recovery.session_grace_ms) == (None, None)
    assert config.imports == ("shop.tasks", "shop.mail")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("EVERBEAT_RECOVERY_ACTION", "explode"),
        ("EVERBEAT_RECOVERY_CHECK_INTERVAL_MS", "999"),
        ("EVERBEAT_RECOVERY_CHECK_INTERVAL_MS", "600001"),
        ("EVERBEAT_RECOVERY_CHECK_INTERVAL_MS", "5 minutes"),
        ("EVERBEAT_RECOVERY_CHECK_INTERVAL_MS", "none"),
        ("EVERBEAT_RECOVERY_AUTO_FAIL_STALE_RUNNING", "maybe"),
        ("EVERBEAT_RECOVERY_ENABLED", "maybe"),
        ("EVERBEAT_BROKER_DURABILITY", "off"),
        ("EVERBEAT_BROKER_FILE_MODE", "0400"),
        ("EVERBEAT_BROKER_FILE_MODE", "rw-------"),
        ("EVERBEAT_DATABASE_URL", "oops"),
        ("EVERBEAT_IMPORTS", "shop tasks"),
        ("EVERBEAT_AUTO_MIGRATE", "2"),
        ("EVERBEAT_MAX_ARGS_BYTES", "1"),
    ],
)
def test_a_bad_variable_is_named_with_its_value(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)

    (problem,) = problems(AppConfig)

    assert problem.startswith(name)
    assert text in problem or oct(int(text, 8)) in problem


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("EVERBEAT_RECOVERY_ACTON", "did you mean EVERBEAT_RECOVERY_ACTION?"),
        ("EVERBEAT_RECOVERY_NONSENSE", "known here: ACTION, "),
        ("EVERBEAT_BROKER_DURABLE", "did you mean EVERBEAT_BROKER_DURABILITY?"),
        ("EVERBEAT_DATABSE_URL", "did you mean EVERBEAT_DATABASE_URL?"),
        ("EVERBEAT_QUEUES", "in a file"),
    ],
)
def test_a_variable_that_looks_like_ours_and_is_none_is_refused(
    name: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")

    (problem,) = problems(AppConfig)

    assert problem.startswith(name)
    assert fix in problem


@pytest.mark.parametrize(
    "name",
    ["EVERBEAT_SERVICE_HOST", "EVERBEAT_PORT_5432_TCP", "EVERBEAT_RECOVERY_SERVICE_PORT", "EVERBEAT_TEST_DATABASE_URL"],
)
def test_variables_of_others_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:5432")

    AppConfig()


def test_two_spellings_of_the_store_in_variables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", "sqlite:///a.db")
    monkeypatch.setenv("EVERBEAT_BROKER_PATH", "b.db")

    (problem,) = problems(AppConfig)

    assert "EVERBEAT_BROKER_PATH and EVERBEAT_DATABASE_URL" in problem


# -- recovery switched off --------------------------------------------------------------------------------------------


def test_recovery_switched_off_by_its_variable_beats_all(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("everbeat.toml", "[recovery]\nauto_fail_stale_running = true\n")
    monkeypatch.setenv("EVERBEAT_RECOVERY_AUTO_FAIL_STALE_RUNNING", "1")
    monkeypatch.setenv("EVERBEAT_RECOVERY_ENABLED", "0")

    given = RecoveryConfig(auto_fail_stale_running=True, auto_requeue_stale_claimed=True)

    for recovery in (given, RecoveryConfig(), AppConfig().recovery, RecoveryConfig.high_availability()):
        assert (recovery.auto_fail_stale_running, recovery.auto_requeue_stale_claimed) == (False, False)
        assert not recovery.integrity_check_on_startup
        assert recovery.origin("auto_fail_stale_running") == "EVERBEAT_RECOVERY_ENABLED"


def test_recovery_switched_on_by_its_variable_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_RECOVERY_ENABLED", "1")

    assert RecoveryConfig(auto_fail_stale_running=False).auto_fail_stale_running is False


# -- files ------------------------------------------------------------------------------------------------------------

TOML = """\
database_url = "sqlite:////srv/jobs.db"
imports = ["shop.tasks"]
max_result_bytes = 4096

[recovery]
action = "pending"
heartbeat_retention_hours = "none"

[queues.mail]
max_concurrency = 5

[queues.slow]
paused = true
"""
YAML = """\
database_url: sqlite:////srv/jobs.db
imports: [shop.tasks]
max_result_bytes: 4096
recovery:
  action: pending
  heartbeat_retention_hours: null
queues:
  - name: mail
    max_concurrency: 5
  - name: slow
    paused: yes
"""
PYPROJECT = "[project]\nname = 'shop'\n[tool.everbeat]\n" + TOML.replace(
    "[recovery]", "[tool.everbeat.recovery]"
).replace("[queues.", "[tool.everbeat.queues.")


@pytest.mark.parametrize(
    ("name", "text"), [("everbeat.toml", TOML), ("everbeat.yaml", YAML), ("pyproject.toml", PYPROJECT)]
)
def test_each_kind_of_file_says_the_same(name: str, text: str, write: Write) -> None:
    write(name, text)

    assert AppConfig() == AppConfig(
        broker=SQLiteConfig("/srv/jobs.db"),
        recovery=RecoveryConfig(action="pending", heartbeat_retention_hours=None),
        queues=[QueueConfig("mail", max_concurrency=5), QueueConfig("slow", paused=True)],
        imports=["shop.tasks"],
        max_result_bytes=4096,
    )


def test_the_yaml_of_the_specification_is_accepted_as_written_there(write: Write) -> None:
    write("everbeat.yaml", SEED)

    assert RecoveryConfig() == RecoveryConfig(
        action="retry",
        max_recovery_attempts=3,
        integrity_check_on_startup=True,
        runner_heartbeat_interval_ms=30_000,
        claimer_heartbeat_interval_ms=30_000,
        running_stale_threshold_ms=90_000,
        claimed_stale_threshold_ms=90_000,
        check_interval_ms=60_000,
    )


@pytest.mark.parametrize(
    ("heartbeat", "interval", "threshold"),
    [
        ("intervalSeconds: 10", 10_000, 30_000),
        ("staleThresholdMultiplier: 4", 30_000, 120_000),
        ("{intervalSeconds: 2.5, staleThresholdMultiplier: 2}", 2_500, 5_000),
    ],
)
def test_a_heartbeat_that_is_half_said_takes_the_rest_from_the_specification(
    heartbeat: str, interval: int, threshold: int, write: Write
) -> None:
    write(
        "everbeat.yaml",
        f"queue:\n  heartbeat:\n    {heartbeat}\n" if "{" not in heartbeat else f"queue: {{heartbeat: {heartbeat}}}",
    )

    recovery = RecoveryConfig()

    assert recovery.runner_heartbeat_interval_ms == recovery.claimer_heartbeat_interval_ms == interval
    assert recovery.running_stale_threshold_ms == recovery.claimed_stale_threshold_ms == threshold
    assert recovery.check_interval_ms == 30_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "queue: {heartbeat: {intervalSeconds: 0.5}}",
            "queue.heartbeat.intervalSeconds must be a number from 1 to 120 s",
        ),
        ("queue: {heartbeat: {intervalSeconds: thirty}}", "not 'thirty'"),
        ("queue: {heartbeat: {staleThresholdMultiplier: 1}}", "from 2 to"),
        ("queue: {heartbeat: {staleThresholdMultiplier: 200}}", "claimed_stale_threshold_ms must be a whole number"),
        ("queue: {heartbeat: {detectionIntervalSeconds: 601}}", "from 1 to 600 s"),
        ("queue: {recovery: {action: explode}}", "must be one of 'retry', 'fail', 'pending'"),
        ("queue: {recovery: {max_recovery_attempts: 3}}", "did you mean maxRecoveryAttempts?"),
        ("queue: {archive: 3}", "known here: heartbeat, recovery"),
        ("queue: {recovery: {action: fail}}\nrecovery: {action: fail}", "two spellings"),
        ("queue: {heartbeat: {intervalSeconds: 30}}\nrecovery: {runner_heartbeat_interval_ms: 30000}", "two spellings"),
        ("database_url: sqlite:///a.db\nbroker: {path: a.db}", "two spellings"),
        ("recovery: {action: fail, action: retry}", "recovery.action stands twice, in lines 1 and 1"),
        ("recovery: fail", "recovery must be a table of settings"),
        ("- recovery", "instead of settings"),
        ("recovery: {action: [", "not YAML"),
        ("a: &a {b: *a}", "not YAML"),
        ("recovery: !!python/object/apply:os.system ['true']", "not YAML"),
        ("recovery: {check_interval_ms: null}", "must be a whole number"),
        ("recovery: {check_interval_ms: '5000'}", "not '5000'"),
        ("recovery: {enabled: false}", "EVERBEAT_RECOVERY_ENABLED=0"),
        ("recovery: {chek_interval_ms: 5000}", "did you mean check_interval_ms?"),
        ("recvery: {}", "did you mean recovery?"),
        ("1: 2", "1 is no setting"),
        ("queues: [{max_concurrency: 3}]", "a name is missing"),
        ("queues: [mail]", "must be a QueueConfig, not str"),
        ("queues: {mail: {max: 3}}", "max is no setting; known here: max_concurrency, name, paused"),
        ("queues: {mail: {max_concurrency: 0}}", "max_concurrency must be a whole number"),
        ("queues: [{name: mail}, {name: mail}]", "listed twice"),
        ("broker: {durability: off}", "not False"),
        ("broker: {schema: 'x; drop'}", "schema must be a plain PostgreSQL identifier"),
        ("database_url: 5", "must be a URL"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place_and_the_fix(text: str, said: str, write: Write) -> None:
    path = write("everbeat.yaml", text)

    found = problems(AppConfig)

    assert any(said in problem for problem in found), found
    assert all(str(path) in problem for problem in found)


def test_all_that_is_wrong_with_a_queue_is_told_at_once(write: Write) -> None:
    write("everbeat.toml", "[queues.mail]\nmax = 3\nmax_concurrency = 0\npaused = 1\n")

    found = problems(AppConfig)

    assert [problem.partition("queue 'mail': ")[2].split()[0] for problem in found] == [
        "max", "max_concurrency", "paused",
    ]  # fmt: skip


def test_every_problem_comes_in_one_error_with_file_line_and_variable(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("everbeat.toml", "[recovery]\naction = 'explode'\ncheck_interval = 5\n\n[queues.mail]\npaused = 1\n")
    monkeypatch.setenv("EVERBEAT_RECOVERY_MAX_RECOVERY_ATTEMPTS", "0")

    with pytest.raises(ConfigError) as caught:
        AppConfig(max_args_bytes=1)

    assert str(caught.value) == (
        "configuration: 5 problems\n"
        "  - EVERBEAT_RECOVERY_MAX_RECOVERY_ATTEMPTS must be a whole number from 1 to 1_000, not 0\n"
        f"  - {path}, line 2: recovery.action must be one of 'retry', 'fail', 'pending', not 'explode'\n"
        f"  - {path}, line 3: recovery.check_interval is no setting; did you mean check_interval_ms?\n"
        f"  - {path}: queues: queue 'mail': paused must be true or false, not 1\n"
        "  - max_args_bytes must be a whole number from 1_024 to 536_870_912 bytes, not 1"
    )


@pytest.mark.parametrize("make", [AppConfig, RecoveryConfig, lambda: SQLiteConfig("a.db"), Everbeat])
def test_a_wrong_file_is_refused_whichever_object_asks_first(make: Callable[[], Any], write: Write) -> None:
    write("everbeat.toml", "nonsense = 1\n[recovery]\naction = 'explode'\n[broker]\ndurability = 'off'\n")

    assert len(problems(make)) == 3


def test_a_threshold_and_an_interval_from_two_sources_are_held_against_each_other(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("everbeat.toml", "[recovery]\nclaimer_heartbeat_interval_ms = 90000\n")
    monkeypatch.setenv("EVERBEAT_RECOVERY_RUNNER_HEARTBEAT_INTERVAL_MS", "20000")

    assert problems(lambda: RecoveryConfig(running_stale_threshold_ms=30_000)) == (
        "running_stale_threshold_ms (30000) must be at least twice runner_heartbeat_interval_ms "
        "(20000, by EVERBEAT_RECOVERY_RUNNER_HEARTBEAT_INTERVAL_MS): 40000 or more",
        "claimed_stale_threshold_ms (120000, the default) must be at least twice claimer_heartbeat_interval_ms "
        f"(90000, by recovery.claimer_heartbeat_interval_ms in {path}, line 2): 180000 or more",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("everbeat.yaml", "database_url: postgresql://bob:s3cret@db/jobs: {"),
        ("everbeat.yaml", "database_url: 'postgresql://bob:s3cret@db/jobs"),
        ("everbeat.yaml", "recovery: {action: 'postgresql://bob:s3cret@db/jobs'}"),
        ("everbeat.toml", "database_url = 'postgresql://bob:s3cret@db/jobs"),
        ("everbeat.toml", "database_url = 'mysql://bob:s3cret@db/jobs'"),
        ("everbeat.toml", "[broker]\npath = 'postgresql://bob:s3cret@db/jobs'"),
        ("everbeat.toml", "imports = ['postgresql://bob:s3cret@db/jobs']"),
    ],
)
def test_a_wrong_file_does_not_give_its_password_away(name: str, text: str, write: Write) -> None:
    write(name, text)

    with pytest.raises(ConfigError) as caught:
        AppConfig()

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://bob:s3cret@db:99999/jobs", "the port of 'db' must be a number from 1 to 65535"),
        ("postgresql://bob:s3@cret@db/jobs", "there is more than one @, or a / before it"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_wherever_it_stands(
    url: str, said: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", url)
    write("everbeat.toml", f"database_url = '{url}'")

    found = problems(AppConfig)

    assert [said in problem and "'postgresql://bob***'" in problem for problem in found] == [True, True]
    assert "cret" not in str(found)


def test_yaml_may_merge_one_table_into_another(write: Write) -> None:
    write("everbeat.yaml", "queues:\n  mail: &few {max_concurrency: 5}\n  fax: {<<: *few, paused: true}\n")

    assert AppConfig().queues == (
        QueueConfig("mail", max_concurrency=5),
        QueueConfig("fax", max_concurrency=5, paused=True),
    )


@pytest.mark.parametrize(
    "names",
    [("everbeat.toml", "everbeat.yaml"), ("everbeat.toml", "pyproject.toml"), ("everbeat.yaml", "pyproject.toml")],
)
def test_two_files_are_refused(names: tuple[str, str], write: Write) -> None:
    for name in names:
        write(name, "[tool.everbeat]\n" if name == "pyproject.toml" else "")

    (problem,) = problems(AppConfig)

    assert f"{names[0]} and {names[1]} both hold settings" in problem
    assert "EVERBEAT_CONFIG" in problem


def test_a_pyproject_without_our_part_is_no_second_file(write: Write) -> None:
    write("pyproject.toml", "[project]\nname = 'shop'\ndependencies = ['everbeat']\n[tool.other]\n")
    write("everbeat.toml", "max_args_bytes = 2048\n")

    assert AppConfig().max_args_bytes == 2048


def test_a_pyproject_that_does_not_name_us_is_not_even_parsed(write: Write) -> None:
    write("pyproject.toml", "[[[ not toml")

    AppConfig()


def test_config_names_the_one_file_and_the_others_do_not_count(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("everbeat.toml", "nonsense = 1\n")
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (elsewhere / "jobs.yml").write_text("database_url: sqlite:///jobs.db\n")
    monkeypatch.setenv("EVERBEAT_CONFIG", str(elsewhere / "jobs.yml"))

    assert AppConfig().broker == SQLiteConfig(elsewhere / "jobs.db")


def test_a_store_in_a_file_is_beside_it_wherever_the_process_was_started(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_CONFIG", str(write("everbeat.toml", "[broker]\npath = 'jobs.db'\n")))
    monkeypatch.chdir("/")

    assert AppConfig().broker == SQLiteConfig(tmp_path / "jobs.db")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.toml", "No such file"),
        ("jobs.ini", "neither .toml nor .yaml"),
        ("pyproject.toml", "no [tool.everbeat]"),
        (".", "neither .toml nor .yaml"),
    ],
)
def test_a_named_file_that_can_not_be_used_is_refused(
    name: str, said: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("pyproject.toml", "[project]\n")
    write("jobs.ini", "")
    monkeypatch.setenv("EVERBEAT_CONFIG", name)

    (problem,) = problems(AppConfig)

    assert problem.startswith("EVERBEAT_CONFIG: ")
    assert said in problem


def test_a_file_that_can_not_be_read_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "everbeat.toml").mkdir()
    assert "Is a directory" in problems(AppConfig)[0]
    (tmp_path / "everbeat.toml").rmdir()
    (tmp_path / "everbeat.toml").symlink_to("nowhere.toml")
    assert "No such file" in problems(AppConfig)[0]
    (tmp_path / "everbeat.toml").unlink()
    (tmp_path / "everbeat.toml").write_bytes(b"imports = ['\xff']")
    assert "can not be read" in problems(AppConfig)[0]
    write("everbeat.toml", "# " + "x" * 1_100_000)
    assert "larger than" in problems(AppConfig)[0]
    write("everbeat.toml", "a = " + "[" * 100_000)
    assert "not TOML" in problems(AppConfig)[0]


def test_a_changed_file_is_read_again(write: Write) -> None:
    write("everbeat.toml", "max_args_bytes = 2048\n")
    assert AppConfig().max_args_bytes == 2048
    write("everbeat.toml", "max_args_bytes = 40960\n")
    assert AppConfig().max_args_bytes == 40960


def test_yaml_without_its_library_names_the_extra(write: Write) -> None:
    write("everbeat.yaml", SEED)
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from everbeat import ConfigError, Everbeat\n"
        "try: Everbeat()\n"
        "except ConfigError as error: print(error)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "pip install everbeat[yaml]" in done.stdout


# -- costs ------------------------------------------------------------------------------------------------------------


def test_nothing_is_read_when_the_code_says_everything(write: Write) -> None:
    complete = RecoveryConfig().to_facts()
    write("everbeat.toml", "nonsense = 1\n")

    SQLiteConfig("a.db", durability="full", file_mode=0o600)
    RecoveryConfig(**complete)


def test_without_a_file_no_parser_is_loaded() -> None:
    code = (
        "import sys\nfrom everbeat import Everbeat\nEverbeat()\nprint(sorted({'tomllib', 'yaml'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


# -- what is in effect ------------------------------------------------------------------------------------------------


def test_every_setting_is_shown_with_its_origin(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("everbeat.toml", "[recovery]\naction = 'fail'\n[queues.mail]\nmax_concurrency = 5\n")
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", "postgresql://bob:s3cret@db/jobs")
    monkeypatch.setenv("EVERBEAT_RECOVERY_SESSION_GRACE_MS", "none")

    shown = {one.key: (one.value, one.origin) for one in effective(AppConfig(max_args_bytes=2048))}

    assert shown["store"] == ("postgresql://bob:***@db/jobs", "EVERBEAT_DATABASE_URL")
    assert shown["broker.schema"] == ("none", "default")
    assert shown["recovery.action"] == ("fail", f"recovery.action in {path}, line 2")
    assert shown["recovery.session_grace_ms"] == ("none", "EVERBEAT_RECOVERY_SESSION_GRACE_MS")
    assert shown["recovery.check_interval_ms"] == ("30000", "default")
    assert shown["queues"] == ("mail (max_concurrency=5, paused=false)", f"queues in {path}")
    assert shown["max_args_bytes"] == ("2048", "code")
    assert "s3cret" not in str(shown)


def test_origins_go_with_the_facts_to_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_RECOVERY_ACTION", "fail")
    config = AppConfig(broker=SQLiteConfig("a.db", durability="normal"))

    there = AppConfig.from_facts(config.to_facts())

    assert effective(there) == effective(config)


def test_a_flag_moves_the_store_and_leaves_its_other_settings(tmp_path: Path) -> None:
    config = AppConfig(broker=SQLiteConfig("a.db", durability="normal")).at("sqlite:///b.db", where="--db")

    shown = {one.key: (one.value, one.origin) for one in effective(config)}

    assert shown["store"] == (f"sqlite:///{tmp_path}/b.db", "--db")
    assert shown["broker.durability"] == ("normal", "code")
    assert shown["broker.file_mode"] == ("0o600", "default")


def test_where_values_came_from_takes_no_part_in_comparing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = AppConfig(
        broker=PostgresConfig("postgresql://db/jobs", schema="queue"), recovery=RecoveryConfig(action="fail")
    )
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", "postgresql://db/jobs")
    monkeypatch.setenv("EVERBEAT_BROKER_SCHEMA", "queue")
    monkeypatch.setenv("EVERBEAT_RECOVERY_ACTION", "fail")

    assert AppConfig() == given
    assert hash(AppConfig().recovery) == hash(given.recovery)
    assert repr(AppConfig()) == repr(given)
    assert broker_from_url("postgresql://db/jobs") == given.broker


def test_a_named_file_in_the_home_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERBEAT_CONFIG", "~nobody-of-this-name/everbeat.toml")

    (problem,) = problems(AppConfig)

    assert problem.startswith("EVERBEAT_CONFIG: ~nobody-of-this-name/everbeat.toml can not be found")


@pytest.mark.parametrize(
    "said", ['broker.path = "~nobody-of-this-name/q.db"', 'database_url = "sqlite:///~nobody-of-this-name/q.db"']
)
def test_a_store_in_the_home_of_nobody_is_refused_by_a_file_as_by_a_variable(write: Write, said: str) -> None:
    write("everbeat.toml", said)

    (problem,) = problems(AppConfig)

    assert "~nobody-of-this-name/q.db" in problem
    assert "does not name a file" in problem
