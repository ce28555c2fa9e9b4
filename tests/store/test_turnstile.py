"""The queue in front of the write lock: fair, never a trap, and nothing left behind."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everbeat.store.sqlite import turnstile as module
from everbeat.store.sqlite.turnstile import Turnstile

MakeTurnstile = Callable[[], Turnstile]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeTurnstile]:
    database = tmp_path / "x.db"
    database.touch(0o600)
    made: list[Turnstile] = []

    def make() -> Turnstile:
        made.append(Turnstile(tmp_path / "x.db.d" / "turnstile", like=database))
        return made[-1]

    yield make
    for turnstile in made:
        turnstile.close()


def waiters() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "everbeat-turnstile"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(condition: Callable[[], bool]) -> None:
    """For what the kernel does in its own time, after which nobody is told."""
    for _ in range(5_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not happen")


def test_one_is_inside_at_a_time(make: MakeTurnstile) -> None:
    first, second = make(), make()

    assert first.enter() is True
    assert second.enter(0.01) is False
    first.leave()
    until(second.enter)


def test_whoever_waits_is_served_when_the_holder_leaves(make: MakeTurnstile) -> None:
    first, second = make(), make()
    first.enter()
    served: list[bool] = []
    waiting = threading.Thread(target=lambda: served.append(second.enter(30)))
    waiting.start()
    until(lambda: bool(waiters()))

    first.leave()

    waiting.join(10)
    assert served == [True]
    assert second.is_held


def test_a_frozen_holder_costs_one_wait_and_not_one_for_every_write(
    make: MakeTurnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, writer = make(), make()
    frozen.enter()
    assert writer.enter(0.01) is False
    before = (open_files(), len(waiters()))

    for _ in range(100):
        assert writer.enter(3600) is False  # at once

    assert (open_files(), len(waiters())) == before


def test_a_turn_that_comes_when_nobody_wants_it_any_more_is_passed_on(make: MakeTurnstile) -> None:
    holder, impatient, third = make(), make(), make()
    holder.enter()
    assert impatient.enter(0.01) is False

    holder.leave()

    until(lambda: third.enter(0.01))
    assert not impatient.is_held


def test_schema_work_waits_and_never_goes_on_without_its_turn(make: MakeTurnstile) -> None:
    holder, migration = make(), make()
    holder.enter()
    assert migration.enter(0.01) is False
    assert migration.insist(0.01) is False
    threading.Timer(0.05, holder.leave).start()

    assert migration.insist(30) is True


def test_closing_in_the_middle_of_a_wait_leaves_neither_thread_nor_file(make: MakeTurnstile) -> None:
    holder = make()
    holder.enter()
    before = open_files()
    impatient = make()
    assert impatient.enter(0.01) is False

    impatient.close()
    holder.leave()

    until(lambda: not waiters())
    assert open_files() == before
    assert holder.enter() is True


def test_closing_twice_closes_nobody_else_s_file(make: MakeTurnstile, tmp_path: Path) -> None:
    turnstile = make()
    turnstile.enter()
    turnstile.close()
    with (tmp_path / "innocent").open("w") as innocent:
        turnstile.close()
        innocent.write("still open")


def test_it_opens_again_after_it_was_closed(make: MakeTurnstile) -> None:
    turnstile = make()
    turnstile.enter()
    turnstile.close()

    assert turnstile.enter() is True


def test_the_waiting_thread_ends_when_there_is_nothing_to_wait_for(
    make: MakeTurnstile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    first, second = make(), make()
    first.enter()
    assert second.enter(0.01) is False
    first.leave()

    until(lambda: not waiters())
    first.enter()
    assert second.enter(0.01) is False  # with a new thread


def test_many_threads_in_turn_are_never_inside_together(make: MakeTurnstile) -> None:
    inside: list[int] = []
    most: list[int] = []

    def go() -> None:
        turnstile = make()
        for _ in range(50):
            assert turnstile.insist(60)
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            turnstile.leave()

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert (len(most), max(most)) == (400, 1)
