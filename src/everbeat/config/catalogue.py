"""Every setting by the names under which the surroundings may say it.

The keys of a file are dotted here, `recovery.action`; its variable is `EVERBEAT_RECOVERY_ACTION`. Made from the classes
themselves. The store has several spellings, and so has what the YAML of the recovery specification calls otherwise.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from everbeat.config.rules import File, Nested, Number, Rule, Url
from everbeat.config.setting import SECTIONS, settings_of

PREFIX = "EVERBEAT_"
STORE = "store"
"""The key of the store itself, however it is spelled: a URL, or the path of a file."""
RECOVERY_ENABLED = "EVERBEAT_RECOVERY_ENABLED"
CONFIG = "EVERBEAT_CONFIG"
OTHER_VARIABLES = (CONFIG, RECOVERY_ENABLED, "EVERBEAT_APP")
"""Variables that are no setting of an application."""

FILE_ONLY = frozenset({"queues"})
HEARTBEAT = "queue.heartbeat."


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    key: str
    """The setting that is meant: the same for every spelling."""
    rule: Rule


@cache
def catalogue() -> Mapping[str, Entry]:
    entries = {key: Entry(key=key, rule=rule) for key, rule in _declared()}
    for key, spelling in _OTHER_SPELLINGS.items():
        entries[key] = entries[spelling]
    return entries | _STORE | _HEARTBEAT


def variables() -> Mapping[str, str]:
    """The variable of each key that may have one."""
    return {PREFIX + key.upper().replace(".", "_"): key for key in catalogue() if _may_be_variable(key)}


def suggestion(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """The fix for a word nobody knows: the one that was meant, or all there are. `prefix` is not compared."""
    choices = sorted(known)
    near = difflib.get_close_matches(word.removeprefix(prefix), choices, n=1, cutoff=0.7)
    return f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(choices)}"


def _declared() -> Iterator[tuple[str, Rule]]:
    for section, classes in SECTIONS.items():
        for cls in classes:
            for field, left in settings_of(cls):
                if not isinstance(left.rule, Nested):
                    yield f"{section}.{field.name}".lstrip("."), left.rule


def _may_be_variable(key: str) -> bool:
    return key not in FILE_ONLY and key != "broker" and not key.startswith("queue.")


_STORE = {
    "database_url": Entry(key=STORE, rule=Url()),
    "broker": Entry(key=STORE, rule=Url()),
    "broker.database_url": Entry(key=STORE, rule=Url()),
    "broker.path": Entry(key=STORE, rule=File()),
}
_OTHER_SPELLINGS = {
    "queue.recovery.action": "recovery.action",
    "queue.recovery.maxRecoveryAttempts": "recovery.max_recovery_attempts",
    "queue.recovery.integrityCheckOnStartup": "recovery.integrity_check_on_startup",
}
_HEARTBEAT = {
    HEARTBEAT + name: Entry(key=HEARTBEAT + name, rule=rule)
    for name, rule in {
        "intervalSeconds": Number(low=1, high=120, unit="s"),
        "staleThresholdMultiplier": Number(low=2, high=7200),
        "detectionIntervalSeconds": Number(low=1, high=600, unit="s"),
    }.items()
}
"""In seconds, and the threshold as a multiple: translated by `dialect.py`."""
