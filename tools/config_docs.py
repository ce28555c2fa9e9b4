"""Write docs/configuration.md from the classes: `python tools/config_docs.py`. With --check: exit 1 if not current."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from everbeat.config import AppConfig, PostgresConfig, QueueConfig, RecoveryConfig, SQLiteConfig
from everbeat.config.catalogue import variables
from everbeat.config.dialect import DETECTION, INTERVAL, INTERVALS, MULTIPLIER, THRESHOLDS
from everbeat.config.rules import Mode, Nested, Rule
from everbeat.config.setting import Settings, section_of, settings_of

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """\
# Configuration

Made by `tools/config_docs.py` from the classes themselves; a test keeps it current and tries the examples.

Everything has a default; `Everbeat()` works without any configuration. Each field is taken from the first of these that
says it:

1. a flag: `--db`, `--import`
2. code: `Everbeat(...)`, `AppConfig(...)`, `RecoveryConfig(...)`
3. a variable: `EVERBEAT_<SECTION>_<FIELD>`, such as `EVERBEAT_RECOVERY_ACTION`; an empty one counts as not set
4. one file in the working directory: `everbeat.toml`, `everbeat.yaml`, or `[tool.everbeat]` in `pyproject.toml`; or the
   file that `EVERBEAT_CONFIG` names, wherever it is
5. the default

"In code" means that the code gave this very field: `RecoveryConfig(action="fail")` leaves all others to variables and
file. A value that equals the default, but was given in code, is code.

Whatever is wrong is refused: unknown keys, two files, one setting in two spellings, values out of bounds. One
`ConfigError` lists every problem, where it stands, and the fix. Commands print it and exit with 2.

```
everbeat: configuration: 2 problems
  - EVERBEAT_RECOVERY_MAX_RECOVERY_ATTEMPTS must be a whole number from 1 to 1_000, not 0
  - /srv/shop/everbeat.toml, line 2: recovery.actoin is no setting; did you mean action?
```

## The same in each source

In code:

```python
app = Everbeat(
    AppConfig(
        broker=SQLiteConfig("/srv/jobs.db", durability="normal"),
        recovery=RecoveryConfig(action="fail", heartbeat_retention_hours=None),
        queues=[QueueConfig("mail", max_concurrency=5)],
    )
)
```

`everbeat.toml`; in `pyproject.toml` each table begins with `tool.everbeat`:

```toml
[broker]
path = "/srv/jobs.db"
durability = "normal"

[recovery]
action = "fail"
heartbeat_retention_hours = "none"

[queues.mail]
max_concurrency = 5
```

`everbeat.yaml`, which needs `pip install everbeat[yaml]`:

```yaml
broker:
  path: /srv/jobs.db
  durability: normal
recovery:
  action: fail
  heartbeat_retention_hours: null
queues:
  mail:
    max_concurrency: 5
```

Variables; queues can not be given this way:

```sh
EVERBEAT_DATABASE_URL=sqlite:////srv/jobs.db
EVERBEAT_BROKER_DURABILITY=normal
EVERBEAT_RECOVERY_ACTION=fail
EVERBEAT_RECOVERY_HEARTBEAT_RETENTION_HOURS=none
```

Switches in variables are `1 true yes on` or `0 false no off`; `none` switches a retention time off; lists are separated
by commas. A relative path in a file counts from that file, anywhere else from the working directory.
"""
VARIABLES = """\
## Variables of their own

| variable | meaning |
|---|---|
| `EVERBEAT_DATABASE_URL` | the store |
| `EVERBEAT_APP` | MODULE:APP for commands |
| `EVERBEAT_CONFIG` | the file to read, instead of one in the working directory |
| `EVERBEAT_EAGER` | run tasks at enqueue, for tests |
| `EVERBEAT_RECOVERY_ENABLED` | `0` switches automatic recovery off and beats everything else |

With `EVERBEAT_RECOVERY_ENABLED=0` the settings `auto_requeue_stale_claimed`, `auto_fail_stale_running` and
`integrity_check_on_startup` are false, whatever flags, code and file say: what dead workers held is left, and listed,
until a person decides, and the file is not checked. `1` changes nothing.
"""
SEED_EXAMPLE = """\
## The YAML of the recovery specification

Accepted as written there:

```yaml
queue:
  recovery:
    action: retry
    maxRecoveryAttempts: 3
    integrityCheckOnStartup: true
  heartbeat:
    intervalSeconds: 30
    staleThresholdMultiplier: 3
    detectionIntervalSeconds: 60
```
"""


def page() -> str:
    return "\n".join(
        [
            HEAD,
            "## The store: `[broker]`, SQLiteConfig, PostgresConfig\n",
            "The store itself: `database_url` at the top of a file or in `[broker]`, or `path` there; one of them.\n",
            *_table(SQLiteConfig),
            *_table(PostgresConfig),
            "## `[recovery]`, RecoveryConfig\n",
            *_table(RecoveryConfig),
            *_preset(),
            "## The top of a file, AppConfig\n",
            *_table(AppConfig),
            "## `[queues.NAME]`, QueueConfig\n",
            "Queues need no declaration to be used. A list in code replaces that of a file as a whole.\n",
            *_queue_table(),
            VARIABLES,
            SEED_EXAMPLE,
            *_seed_table(),
            "## What is in effect\n",
            "A worker logs each setting that came from a flag, a variable or a file, and from where, when it starts.",
            "`everbeat.config.effective(app.config)` lists every setting: value, passwords masked, and origin.\n",
        ]
    )


def _table(cls: type[Settings]) -> Iterator[str]:
    yield f"| {cls.__name__} | default | allowed | variable | meaning |\n|---|---|---|---|---|"
    section, words, named = section_of(cls), _meanings(cls), {key: name for name, key in variables().items()}
    for field, left in settings_of(cls):
        if not isinstance(left.rule, Nested):
            variable = named.get(f"{section}.{field.name}".lstrip("."))
            cells = [field.name, _shown(left.default, left.rule), left.rule.words, variable or "", words[field.name]]
            yield _row(cells)
    yield ""


def _queue_table() -> Iterator[str]:
    yield "| QueueConfig | default | meaning |\n|---|---|---|"
    words = _meanings(QueueConfig)
    for field in fields(QueueConfig):
        default = "" if field.default is MISSING else _shown(field.default, Rule())
        yield f"| `{field.name}` | {default} | {words.get(field.name, 'Letters, digits or any of `_ . : @ / -`')} |"
    yield ""


def _preset() -> Iterator[str]:
    plain, preset = RecoveryConfig(), RecoveryConfig.high_availability()
    changed = [f.name for f in fields(RecoveryConfig) if getattr(plain, f.name) != getattr(preset, f.name)]
    yield "`RecoveryConfig.high_availability()` is for several replicas that must notice a death soon:"
    yield (
        ", ".join(f"`{name}={getattr(preset, name)!r}`" for name in changed) + ". Other values can be given with it.\n"
    )


def _seed_table() -> Iterator[str]:
    def short(keys: tuple[str, ...]) -> str:
        return " and ".join(f"`{key}`" for key in keys)

    yield "| there | here |\n|---|---|"
    yield "| `queue.recovery.action` | `recovery.action` |"
    yield "| `queue.recovery.maxRecoveryAttempts` | `recovery.max_recovery_attempts` |"
    yield "| `queue.recovery.integrityCheckOnStartup` | `recovery.integrity_check_on_startup` |"
    yield f"| `{INTERVAL}` | {short(INTERVALS)} |"
    yield f"| the interval times `{MULTIPLIER}` (3 if not given) | {short(THRESHOLDS)} |"
    yield f"| `{DETECTION}` | `recovery.check_interval_ms` |\n"


def _row(cells: list[str]) -> str:
    name, default, allowed, variable, meaning = (cell.replace("|", "\\|") for cell in cells)
    return f"| `{name}` | {default} | {allowed} | `{variable}` | {meaning} |".replace(" `` ", " code or file only ")


def _shown(value: Any, rule: Rule) -> str:
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "none"
        case int():
            return f"`{value:#o}`" if isinstance(rule, Mode) else f"{value:,}"
        case ():
            return "none"
    return f"`{value}`"


def _meanings(cls: type) -> dict[str, str]:
    """The text below each field in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for declared, below in pairwise(body):
        if isinstance(declared, ast.AnnAssign) and isinstance(below, ast.Expr):
            found[declared.target.id] = " ".join(below.value.value.split())  # type: ignore[union-attr,attr-defined]
    return found


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
