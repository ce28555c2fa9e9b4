"""A task is a function that can also be sent."""

import asyncio
import copy
import inspect
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTasks

from everbeat import ConfigError, Everbeat, PayloadError, RetryPolicy, StoreUnavailable, TaskConflict, TaskStatus
from everbeat.model.task import TaskPolicy
from everbeat.store.messages import TaskFilter

LATER = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def add(app: Everbeat) -> Any:
    @app.task
    def add(a: int, b: int = 10) -> int:
        """Adds."""
        return a + b

    return add


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as users have them."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def _shout(word: str) -> str:
    return word.upper()


# -- being a function -------------------------------------------------------------------------------------------------


def test_a_plain_call_is_a_plain_call(add: Any) -> None:
    assert add(1, 2) == 3
    assert add(1) == 11
    assert add("a", "b") == "ab"


def test_an_async_task_called_plainly_is_a_coroutine(app: Everbeat) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(4)) == 8
    assert double.is_async


def test_what_asks_for_coroutine_functions_awaits_an_async_task(app: Everbeat, add: Any) -> None:
    heard: list[str] = []

    @app.task
    async def mail(to: str) -> None:
        heard.append(to)

    background = BackgroundTasks()
    background.add_task(mail, "ada")
    asyncio.run(background())

    assert heard == ["ada"]
    assert asyncio.iscoroutinefunction(mail)
    assert not asyncio.iscoroutinefunction(add)


def test_a_task_travels_to_another_process_as_its_function_would(app: Everbeat) -> None:
    shout = app.task(_shout)

    with pytest.MonkeyPatch.context() as module:
        module.setitem(globals(), "_shout", shout)

        assert pickle.loads(pickle.dumps([shout])) == [shout]
        assert copy.deepcopy([shout]) == [shout]


def test_what_holds_an_application_says_that_it_can_not_be_pickled(app: Everbeat, add: Any) -> None:
    with pytest.raises(TypeError, match=r"another process imports it, .* by its id: app.handle\(id\)"):
        pickle.dumps(add.enqueue(1))


def test_a_task_looks_like_its_function(add: Any) -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds.", __name__)
    assert str(inspect.signature(add)) == "(a: int, b: int = 10) -> int"
    assert repr(add) == f"<task {__name__}.add>"
    assert not add.is_async


# -- registering ------------------------------------------------------------------------------------------------------


def test_a_task_is_named_after_module_and_function(app: Everbeat, add: Any) -> None:
    assert add.name == f"{__name__}.add"
    assert dict(app.tasks) == {f"{__name__}.add": add}


def test_what_the_decorator_says_is_kept(app: Everbeat) -> None:
    @app.task(
        name="mail.send",
        queue="mail",
        priority=10,
        retry=RetryPolicy(max_attempts=5),
        timeout=timedelta(seconds=30),
        on_crash="retry",
        max_recovery_attempts=4,
        isolated=True,
        sensitive=True,
    )
    async def send_mail(to: str) -> None: ...

    assert (send_mail.name, send_mail.queue, send_mail.priority) == ("mail.send", "mail", 10)
    assert (send_mail.timeout, send_mail.isolated, send_mail.sensitive) == (30.0, True, True)
    assert send_mail.policy == TaskPolicy(
        max_attempts=5, has_retry=True, on_crash="retry", max_recovery_attempts=4, timeout=30.0, isolated=True,
        sensitive=True,
    )  # fmt: skip
    assert TaskPolicy.load(send_mail.policy.dump()) == send_mail.policy


def test_a_name_can_be_taken_only_once(app: Everbeat, add: Any) -> None:
    with pytest.raises(ConfigError, match=r"the name is taken by the function at .*test_task.py:\d+"):
        app.task(name=add.name)(lambda: None)


TWICE = """
from everbeat import Everbeat, Workflow

app = Everbeat("sqlite:///never.db")


@app.task
def add(a: int) -> int:
    return a


@app.task{options}
def add{suffix}(a: int) -> int:
    return a + 1


with app.testing():
    flow = Workflow("sum")
    flow.add(add{suffix}, 1)
    print(list(app.tasks), add{suffix}.enqueue(1).result(), flow.start(app).result())
"""


def run_twice(words: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_task_that_is_typed_in_again_takes_the_place_of_the_former_one(tmp_path: Path) -> None:
    done = run_twice(["-c", TWICE.format(options="", suffix="")], tmp_path)

    assert (done.stdout, done.stderr) == ("['__main__.add'] 2 2\n", "")


def test_two_functions_that_are_typed_in_can_not_have_one_name(tmp_path: Path) -> None:
    done = run_twice(["-c", TWICE.format(options="(name='__main__.add')", suffix="_more")], tmp_path)

    assert "the name is taken by the function at <string>:7" in done.stderr


def test_two_functions_of_one_name_in_a_script_are_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(TWICE.format(options="", suffix=""))

    done = run_twice(["jobs.py"], tmp_path)

    assert "task jobs.add: the name is taken by the function at" in done.stderr


def test_a_name_that_a_wrapped_function_has_is_taken_by_the_function_and_not_by_its_wrapper(app: Everbeat) -> None:
    def first() -> None: ...

    app.task(name="mail.send")(quietly(first))

    with pytest.raises(ConfigError, match=rf"test_task.py:{first.__code__.co_firstlineno};"):
        app.task(name="mail.send")(quietly(lambda: None))


@pytest.mark.parametrize(
    "options",
    [
        {"name": "two words"},
        {"queue": ""},
        {"priority": 0},
        {"priority": 101},
        {"priority": True},
        {"retry": 5},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "30"},
        {"on_crash": "explode"},
        {"max_recovery_attempts": 0},
        {"isolated": "yes"},
        {"sensitive": 1},
    ],
)
def test_a_wrong_option_of_the_decorator_is_named(app: Everbeat, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        app.task(**options)(lambda: None)
    assert not app.tasks


def test_all_wrong_options_are_named_together(app: Everbeat) -> None:
    with pytest.raises(ConfigError) as caught:
        app.task(name="x", priority=0, timeout=-1, queue="a b")(lambda: None)
    assert len(caught.value.problems) == 3


def test_an_unknown_option_is_refused(app: Everbeat) -> None:
    with pytest.raises(TypeError, match="retries"):
        app.task(retries=5)(lambda: None)  # type: ignore[call-overload]


def test_only_plain_functions_can_be_tasks(app: Everbeat) -> None:
    def many() -> Any:
        yield 1

    for thing in (many, len, 5, object):
        with pytest.raises(TypeError):
            app.task(thing)  # type: ignore[call-overload]


def test_a_lambda_needs_a_name(app: Everbeat) -> None:
    with pytest.raises(ConfigError, match="task name"):
        app.task(lambda: None)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": 5, "run_at": datetime.now(UTC)}, "either delay or run_at"),
        ({"delay": -1}, "delay must be from 0"),
        ({"delay": timedelta(seconds=-1)}, "delay must be from 0"),
        ({"delay": float("nan")}, "number of seconds"),
        ({"delay": "5"}, "number of seconds"),
        ({"delay": True}, "number of seconds"),
        ({"delay": 1e12}, "delay must be from 0"),
        ({"run_at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"run_at": 5}, "must be a datetime"),
        ({"priority": 0}, "priority must be"),
        ({"priority": 101}, "priority must be"),
        ({"priority": 1.5}, "priority must be"),
        ({"queue": "two words"}, "queue 'two words' is not valid"),
        ({"queue": ""}, "queue '' is not valid"),
        ({"unique_key": ""}, "unique_key '' is not valid"),
        ({"unique_key": 17}, "unique_key 17 is not valid"),
        ({"unique_key": "two\nlines"}, "printable"),
        ({"unique_key": "x" * 513}, "1 to 512"),
        ({"id": ""}, "id '' is not valid"),
        ({"id": "x" * 129}, "is not valid"),
        ({"exclusive_key": "a\nb"}, "exclusive_key .* is not valid"),
        ({"good_until": datetime(2030, 1, 1)}, "good_until .* has no time zone"),  # noqa: DTZ001
        ({"good_until": 60}, "good_until must be a datetime"),
        ({"run_at": LATER, "good_until": LATER}, "could never run"),
    ],
)
def test_an_option_that_can_not_be_is_a_value_error(add: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        add.options(**options)


def test_an_unknown_option_of_a_sending_is_refused(add: Any) -> None:
    with pytest.raises(TypeError, match="retries"):
        add.options(retries=5)


# -- sending ----------------------------------------------------------------------------------------------------------


def test_a_sent_task_is_stored_with_what_the_task_says(app: Everbeat) -> None:
    @app.task(name="mail.send", queue="mail", priority=10, retry=RetryPolicy(max_attempts=5))
    def send_mail(to: str) -> None: ...

    handle = send_mail.enqueue("bob")

    info = handle.info()
    assert (info.name, info.queue, info.priority, info.max_attempts) == ("mail.send", "mail", 10, 5)
    assert (info.status, info.attempt, handle.created) == (TaskStatus.PENDING, 0, True)


def test_options_win_over_what_the_task_says(add: Any) -> None:
    info = add.options(queue="fast", priority=1, id="order-1").enqueue(1).info()

    assert (info.id, info.queue, info.priority) == ("order-1", "fast", 1)


def test_a_delay_counts_from_now(add: Any) -> None:
    for delay in (60, timedelta(minutes=1)):
        info = add.options(delay=delay).enqueue(1).info()
        assert info.run_at - info.created_at == timedelta(seconds=60)


def test_a_time_of_any_zone_is_the_same_moment(add: Any) -> None:
    at = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert add.options(run_at=at).enqueue(1).info().run_at == at


def test_the_same_id_and_arguments_again_give_the_existing_task(add: Any) -> None:
    first = add.options(id="order-1").enqueue(1, b=2)
    again = add.options(id="order-1").enqueue(a=1, b=2)

    assert (first.created, again.created) == (True, False)
    assert first == again


def test_a_unique_key_gives_the_handle_of_the_task_that_holds_it(add: Any) -> None:
    sender = add.options(unique_key="Rechnung für Müller")
    first, again = sender.enqueue(1), sender.enqueue(2)

    assert (first.created, again.created) == (True, False)
    assert first == again

    first.cancel()
    assert sender.enqueue(3).created


def test_of_many_senders_with_one_unique_key_one_creates_the_task(add: Any) -> None:
    with ThreadPoolExecutor(8) as threads:
        handles = list(threads.map(lambda n: add.options(unique_key="k").enqueue(n), range(40)))

    assert sum(handle.created for handle in handles) == 1
    assert len(set(handles)) == 1


def test_the_same_id_with_other_arguments_is_a_conflict(app: Everbeat, add: Any) -> None:
    add.options(id="order-1").enqueue(1)

    with pytest.raises(TaskConflict, match="order-1 already exists") as caught:
        add.options(id="order-1").enqueue(2)

    assert caught.value.task_id == "order-1"
    assert len(app.store.tasks(TaskFilter())) == 1


def test_the_same_id_for_another_task_is_a_conflict(app: Everbeat, add: Any) -> None:
    @app.task
    def subtract(a: int, b: int = 10) -> int: ...

    add.options(id="order-1").enqueue(1)

    with pytest.raises(TaskConflict):
        subtract.options(id="order-1").enqueue(1)


def test_an_argument_may_have_any_name(app: Everbeat, worker: Any) -> None:
    @app.task
    def named(**facts: int) -> dict[str, int]:
        return facts

    sent = [named.enqueue(self=1, args=2), asyncio.run(named.options(delay=0).aenqueue(self=1, args=2))]
    sent += named.enqueue_many([named.args(self=1, args=2), named.options(delay=0).args(self=1, args=2)])
    for _ in sent:
        worker.run_one()

    assert named(self=1, args=2) == {"self": 1, "args": 2}
    assert [handle.result(timeout=0) for handle in sent] == [{"self": 1, "args": 2}] * 4


def test_what_can_not_be_encoded_is_never_stored(app: Everbeat, add: Any) -> None:
    with pytest.raises(PayloadError, match="argument 'a'"):
        add.enqueue("x", 2)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        add.enqueue()

    assert app.store.tasks(TaskFilter()) == []


def test_awaited_sending_does_the_same(app: Everbeat, add: Any) -> None:
    async def send() -> list[Any]:
        return [
            await add.aenqueue(1, 2),
            await add.options(id="order-1").aenqueue(3),
            *await add.aenqueue_many([(4,), (5, 6)]),
        ]

    handles = asyncio.run(send())

    assert [handle.status() for handle in handles] == [TaskStatus.PENDING] * 4
    assert handles[1].id == "order-1"


# -- sending many -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 1, 2, 100])
def test_many_handles_come_in_the_order_of_the_calls(
    worker: Any, app: Everbeat, add: Any, batch_size: int | None
) -> None:
    handles = add.enqueue_many(((n,) if n % 2 else add.args(n, b=20) for n in range(5)), batch_size=batch_size)
    for _ in handles:
        worker.run_one()

    assert [handle.result(timeout=0) for handle in handles] == [20, 11, 22, 13, 24]


def test_options_apply_to_all_of_many(add: Any) -> None:
    handles = add.options(queue="bulk", delay=60).enqueue_many([(1,), (2,)])

    assert {handle.info().queue for handle in handles} == {"bulk"}


def test_a_call_among_many_can_have_options_of_its_own(add: Any) -> None:
    add.options(unique_key="b").enqueue(9)

    handles = add.options(queue="bulk").enqueue_many(
        [(1,), add.options(unique_key="a").args(2), add.options(unique_key="b").args(3), add.options(id="mine").args(4)]
    )

    assert [handle.created for handle in handles] == [True, True, False, True]
    assert [handle.info().queue for handle in handles] == ["bulk", "default", "default", "default"]
    assert handles[3].id == "mine"


def test_the_own_connection_is_for_all_calls(add: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as own, pytest.raises(ValueError, match="for all calls"):
        add.options(connection=own).args(1)


def test_many_of_nothing_is_nothing(add: Any) -> None:
    assert add.enqueue_many([]) == []


def test_one_bad_call_among_many_sends_nothing(app: Everbeat, add: Any) -> None:
    with pytest.raises(PayloadError, match=r"call 2: add\(\): argument 'a'"):
        add.enqueue_many([(1,), (2,), ("x",), (4,)], batch_size=1)
    with pytest.raises(TypeError, match=r"call 1: add\(\) missing a required argument"):
        add.enqueue_many([(1,), ()])

    assert app.store.tasks(TaskFilter()) == []


def test_a_conflict_in_a_later_batch_tells_what_is_stored(app: Everbeat, add: Any) -> None:
    add.options(id="order-1").enqueue(1)
    calls = [(1,), (2,), add.options(id="order-1").args(2), (3,)]

    with pytest.raises(TaskConflict, match="nothing was stored") as of_all:
        add.enqueue_many(calls)
    with pytest.raises(TaskConflict, match="nothing of this batch was stored") as caught:
        add.enqueue_many(calls, batch_size=2)

    assert "2 tasks of earlier batches are stored" in str(caught.value)
    assert (of_all.value.stored_ids, len(caught.value.stored_ids)) == ((), 2)
    assert {task.id for task in app.store.tasks(TaskFilter())} == {"order-1", *caught.value.stored_ids}


@pytest.mark.parametrize("call", [1, [1, 2], "ab", {"a": 1}, None])
def test_a_call_that_is_no_tuple_is_explained(add: Any, call: Any) -> None:
    with pytest.raises(TypeError, match=r"call 0 must be a tuple of arguments such as \(1, 2\)"):
        add.enqueue_many([call])


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "2"])
def test_a_batch_size_that_can_not_be_is_a_value_error(add: Any, batch_size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        add.enqueue_many([(1,)], batch_size=batch_size)


def test_one_id_can_not_be_given_to_many(add: Any) -> None:
    with pytest.raises(ValueError, match="can not be given to 2 tasks"):
        add.options(id="order-1").enqueue_many([(1,), (2,)])
    assert add.options(id="order-1").enqueue_many([(1,)])[0].id == "order-1"


# -- when the store is away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [lambda task: task.enqueue(1), lambda task: task.options(id="order-1").enqueue(1)])
def test_an_outage_tells_which_task_was_on_its_way(tmp_path: Any, send: Callable[[Any], Any]) -> None:
    app = Everbeat(f"sqlite:///{tmp_path}/no/such/directory/jobs.db")

    @app.task
    def add(a: int) -> int: ...

    with pytest.raises(StoreUnavailable, match="was not stored and may be sent again") as caught:
        send(add)

    assert caught.value.task_id
    assert not caught.value.maybe_stored


def test_a_method_is_refused_and_a_static_one_taken(app: Everbeat) -> None:
    with pytest.raises(TypeError, match="make it a function, or a staticmethod"):

        class Wrong:
            @app.task
            def send(self, number: int) -> int:
                return number

    with pytest.raises(TypeError, match="make it a function, or a staticmethod"):

        class WrappedWrong:
            @app.task
            @quietly
            def send(self, number: int) -> int:
                return number

    class Right:
        @staticmethod
        @app.task
        def send(number: int) -> int:
            return number

    assert Right().send(3) == 3
    assert Right.send.name.endswith(".send")


class Mailer:
    def send(self, number: int) -> int:
        return number


def test_a_function_around_a_bound_method_is_taken(app: Everbeat) -> None:
    bound = Mailer().send

    @app.task
    @wraps(bound)
    def send(*args: Any, **kwargs: Any) -> int:
        return bound(*args, **kwargs)

    assert send(3) == 3
    assert app.handle(send.enqueue(3).id).status() is TaskStatus.PENDING
