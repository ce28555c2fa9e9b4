"""What a type checker must refuse: each line that ends in `# wrong`, and no other. Never run."""

from collections.abc import Iterator
from typing import Any

from everbeat import AppConfig, Everbeat, RecoveryConfig, RetryPolicy, TaskHandle

app = Everbeat("sqlite:////nowhere/jobs.db")


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task(name="mail.send", queue="mail")
async def send_mail(to: str) -> bool:
    return bool(to)


# Calls that the function would not take.
add("x")  # wrong
add.enqueue("x")  # wrong
add.enqueue(1, c=2)  # wrong
add.enqueue()  # wrong
add.enqueue(1, 2, 3)  # wrong
add.args("x")  # wrong
add.options(delay=60).enqueue("x")  # wrong
add.options(delay=60).args(a="x")  # wrong
add.enqueue_many([add.args("x")])  # wrong
add.enqueue_many([5])  # wrong
add.enqueue_many([send_mail.args("x")])  # wrong
send_mail.enqueue(5)  # wrong

# Options that do not exist, or are of another kind.
add.options(retries=5)  # wrong
add.options(delay="60")  # wrong
add.options(run_at=5)  # wrong
add.options(unique_key=5)  # wrong
add.options(good_until=5)  # wrong
add.options(connection="jobs.db")  # wrong
add.options(priority="high")  # wrong
app.task(retries=5)  # wrong
app.task(on_crash="explode")  # wrong
app.task(retry=5)  # wrong
app.task(timeout="30")  # wrong
RetryPolicy(max_attempts="3")  # wrong
RetryPolicy(backoff="random")  # wrong
RetryPolicy(retry_on=[5])  # wrong
RecoveryConfig(action="explode")  # wrong
AppConfig(recovery="fast")  # wrong

# Results of another type.
text: str = add.enqueue(1).result()  # wrong
words: str = send_mail.enqueue("bob").result()  # wrong
other: TaskHandle[str] = add.enqueue(1)  # wrong
add.enqueue(1).result(timeout="5")  # wrong


async def awaited() -> None:
    await add.aenqueue("x")  # wrong
    text: str = await add.enqueue(1).aresult()  # wrong
    await send_mail(5)  # wrong


@app.around_task  # wrong
def no_context_manager(task: Any) -> int:
    return 1


@app.around_task  # wrong
def takes_nothing() -> Iterator[None]:
    yield


@app.on_child_start  # wrong
def takes_something(pool: int) -> None: ...
