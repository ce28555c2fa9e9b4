"""The application of a worker among hostile rows."""

from everbeat import AppConfig, Everbeat, RecoveryConfig, RetryPolicy

app = Everbeat(
    AppConfig(
        recovery=RecoveryConfig(
            runner_heartbeat_interval_ms=1_000,
            claimer_heartbeat_interval_ms=1_000,
            running_stale_threshold_ms=2_000,
            claimed_stale_threshold_ms=2_000,
            check_interval_ms=1_000,
        )
    )
)


@app.task(name="add", retry=RetryPolicy(max_attempts=2, base_seconds=0.01))
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="numbers")
def numbers(count: int) -> list[int]:
    return list(range(count))


@app.task(name="total")
def total(parts: list[int]) -> int:
    return sum(parts)


@app.on("task.failed")
def hear(event: object) -> None:
    """Somebody is to be told, so the messenger works, too."""
