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


def waiters(path: Path) -> int:
    """Who waits, as the kernel lists their locks."""
    inode = str((path / "x.db.d" / "turnstile").stat().st_ino)
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(line[1] == "OFDLCK" and line[5].rpartition(":")[2] == inode for line in locks)


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


def test_whoever_waits_is_served_when_the_holder_leaves(
    make: MakeTurnstile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600)  # by the bell alone
    first, second = make(), make()
    first.enter()
    served: list[bool] = []
    waiting = threading.Thread(target=lambda: served.append(second.enter(30)))
    waiting.start()
    until(lambda: waiters(tmp_path) == 1)

    first.leave()

    waiting.join(10)
    assert served == [True]
    assert second.is_held
    assert waiters(tmp_path) == 0


def test_whoever_has_waited_longest_is_next(
    make: MakeTurnstile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600)
    numbers = iter([7, 5, 9, 1, 3])
    monkeypatch.setattr(module.secrets, "randbelow", lambda bells: next(numbers))
    holder, *others = (make() for _ in range(5))
    holder.enter()
    order: list[int] = []

    def take_turn(number: int) -> None:
        assert others[number].insist(30)
        order.append(number)
        others[number].leave()

    threads = [threading.Thread(target=take_turn, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        until(lambda number=number: waiters(tmp_path) == number)  # type: ignore[misc]

    holder.leave()

    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3]


def test_a_bell_that_is_lost_costs_a_moment(make: MakeTurnstile, tmp_path: Path) -> None:
    holder, second = make(), make()
    holder.enter()
    served: list[bool] = []
    waiting = threading.Thread(target=lambda: served.append(second.enter(30)))
    waiting.start()
    until(lambda: waiters(tmp_path) == 1)

    holder.close()  # as the kernel does for the dead, who ring for nobody

    waiting.join(10)
    assert served == [True]


@pytest.mark.parametrize("planted", ["a file", "a link"])
def test_what_stands_where_a_bell_should_be_is_not_touched_and_stops_nobody(
    make: MakeTurnstile, tmp_path: Path, planted: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    holder, second = make(), make()
    holder.enter()
    for number in range(module.BELLS):
        bell = tmp_path / "x.db.d" / f"turnstile.{number}"
        bell.write_text("mine") if planted == "a file" else bell.symlink_to(precious)
    served: list[bool] = []
    waiting = threading.Thread(target=lambda: served.append(second.enter(30)))
    waiting.start()
    until(lambda: waiters(tmp_path) == 1)

    holder.leave()

    waiting.join(10)
    assert served == [True]
    assert precious.read_text() == "mine"
    assert {bell.read_text() for bell in (tmp_path / "x.db.d").glob("turnstile.*")} == {"mine"}


def test_a_group_that_shares_the_store_shares_the_bells(make: MakeTurnstile, tmp_path: Path) -> None:
    (tmp_path / "x.db").chmod(0o660)
    holder, second = make(), make()
    holder.enter()

    assert second.enter(0.01) is False

    (bell,) = (tmp_path / "x.db.d").glob("turnstile.*")
    assert bell.is_fifo()
    assert bell.stat().st_mode & 0o777 == 0o660


def test_a_turn_of_which_an_interrupt_kept_anybody_from_knowing_is_given_back(make: MakeTurnstile) -> None:
    interrupted, second = make(), make()
    interrupted.enter()
    interrupted.is_held = False  # it came between the two

    interrupted.leave()

    assert second.enter(0) is True


def test_a_frozen_holder_costs_one_wait_and_not_one_for_every_write(make: MakeTurnstile) -> None:
    frozen, writer = make(), make()
    frozen.enter()
    assert writer.enter(0.01) is False
    before = (open_files(), threading.active_count())

    for _ in range(100):
        assert writer.enter(3600) is False  # at once

    assert (open_files(), threading.active_count()) == before
    frozen.leave()
    assert writer.enter() is True
    writer.leave()
    frozen.enter()
    threading.Timer(0.05, frozen.leave).start()
    assert writer.enter(30) is True  # it is waited for again


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


def test_closing_after_a_wait_leaves_no_file(make: MakeTurnstile) -> None:
    holder = make()
    holder.enter()
    before = open_files()
    impatient = make()
    assert impatient.enter(0.01) is False

    impatient.close()

    assert open_files() == before


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
