"""The YAML of the recovery specification (seed 004), as written there:

    queue:
      recovery: {action, maxRecoveryAttempts, integrityCheckOnStartup}
      heartbeat: {intervalSeconds, staleThresholdMultiplier, detectionIntervalSeconds}

The first three are other spellings and stand in the catalogue. The heartbeat is in seconds, and its threshold a
multiple of the interval: both intervals, both thresholds and the check interval are made of it here. Where one of the
two factors is not written, the specification's own default is taken: 30 seconds, 3 times the interval (FR-033, FR-038).
"""

from collections.abc import Iterable, Iterator

from everbeat.config.catalogue import HEARTBEAT, catalogue
from everbeat.config.found import Found

INTERVAL, MULTIPLIER, DETECTION = (
    HEARTBEAT + name for name in ("intervalSeconds", "staleThresholdMultiplier", "detectionIntervalSeconds")
)
DEFAULT_SECONDS, DEFAULT_MULTIPLIER = 30, 3
INTERVALS = ("recovery.runner_heartbeat_interval_ms", "recovery.claimer_heartbeat_interval_ms")
THRESHOLDS = ("recovery.running_stale_threshold_ms", "recovery.claimed_stale_threshold_ms")


def translate(found: Iterable[Found]) -> tuple[list[Found], list[str]]:
    """The same in our own settings, and what is wrong with those that had to be computed."""
    given = list(found)
    said = {one.key: one for one in given if one.key.startswith(HEARTBEAT)}
    ours = [one for one in given if one.key not in said]
    problems: list[str] = []
    for one in _settings(said.get(INTERVAL), said.get(MULTIPLIER), said.get(DETECTION)):
        wrong = catalogue()[one.key].rule.problems(f"{one.origin}: {one.key}", one.value)
        problems += wrong
        ours += [] if wrong else [one]
    return ours, problems


def _settings(interval: Found | None, multiplier: Found | None, detection: Found | None) -> Iterator[Found]:
    if interval is not None:
        for key in INTERVALS:
            yield _of(interval, key, interval.value)
    named = multiplier or interval
    if named is not None:
        seconds = interval.value if interval else DEFAULT_SECONDS
        times = multiplier.value if multiplier else DEFAULT_MULTIPLIER
        for key in THRESHOLDS:
            yield _of(named, key, seconds * times)
    if detection is not None:
        yield _of(detection, "recovery.check_interval_ms", detection.value)


def _of(said: Found, key: str, seconds: float) -> Found:
    return Found(key=key, value=round(seconds * 1000), name=said.name, where=said.where)
