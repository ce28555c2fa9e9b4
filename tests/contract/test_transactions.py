"""What the verbs of the store write through promises the same on both stores."""

from typing import Any

import pytest
from tests.conftest import OpenStore

from everbeat.store.transaction import RowRefused

ADD = "INSERT INTO everbeat_queues (name) VALUES (?)"
PAUSE = "UPDATE everbeat_queues SET paused = ? WHERE name = ?"
PAUSED = "SELECT name FROM everbeat_queues WHERE paused = 1 AND name IN ({marks}) ORDER BY name"
NAMES = "SELECT name FROM everbeat_queues ORDER BY name"


@pytest.fixture
def database(open_store: OpenStore) -> Any:
    return open_store().database  # type: ignore[attr-defined]


def names(database: Any) -> list[str]:
    with database.read() as tx:
        return [name for (name,) in tx.all(NAMES)]


def test_what_is_changed_soon_is_seen_by_the_next_question_and_committed_at_the_end(database: Any) -> None:
    with database.write() as tx:
        tx.soon(ADD, [("a",), ("b",)])
        tx.soon(PAUSE, [(1, "b")], all_of_them=True)
        assert tx.among(PAUSED, (), ["a", "b", "c"]) == [("b",)]
        tx.soon(ADD, [("c",)])

    assert names(database) == ["a", "b", "c"]


def test_what_was_expected_is_answered_as_it_was_before_what_is_changed_soon(database: Any) -> None:
    with database.write() as tx:
        tx.expect((NAMES, ()))
        assert tx.all(NAMES) == []
        tx.soon(ADD, [("a",)])
        assert tx.all(NAMES) == [("a",)]


@pytest.mark.parametrize("rows", [[(1, "a"), (1, "nobody")], [(1, "nobody")]])
def test_a_change_of_rows_that_are_not_all_there_undoes_the_transaction(database: Any, rows: Any) -> None:
    def change() -> None:
        with database.write() as tx:
            tx.soon(ADD, [("a",)])
            tx.soon(PAUSE, rows, all_of_them=True)

    with pytest.raises(RowRefused):
        change()

    assert names(database) == []


def test_a_change_that_is_refused_undoes_its_part_alone(database: Any) -> None:
    def add_twice(tx: Any) -> None:
        with tx.part():
            tx.soon(ADD, [("b",)])
            tx.soon(ADD, [("b",)])

    with database.write() as tx:
        tx.soon(ADD, [("a",)])
        with pytest.raises(RowRefused):
            add_twice(tx)
        tx.soon(ADD, [("c",)])

    assert names(database) == ["a", "c"]


def test_any_number_of_keys_can_be_named(database: Any) -> None:
    many = [f"q{number:04}" for number in range(1_200)]
    with database.write() as tx:
        tx.soon(ADD, [(name,) for name in many])
        tx.change_among("UPDATE everbeat_queues SET paused = ? WHERE name IN ({marks})", (1,), many[:1_100])
        assert len(tx.among(PAUSED, (), many)) == 1_100
        assert tx.among(PAUSED, (), []) == []
        tx.change_among("UPDATE everbeat_queues SET paused = ? WHERE name IN ({marks})", (0,), [])
