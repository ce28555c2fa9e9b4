"""What is written in parts because of a lock: how often it is tried, and what becomes of each."""

from collections.abc import Sequence

import pytest

from everbeat.store.lots import MOST_LOCKED, in_lots
from everbeat.store.transaction import Locked

Item = tuple[str, str | None]


class Writer:
    """Items are (name, workflow); those of these workflows, or of these names, are locked."""

    def __init__(self, *locked: str) -> None:
        self._locked = set(locked)
        self.tries: list[tuple[list[str], bool]] = []

    def write(self, items: Sequence[Item], hurries: bool) -> list[str]:
        self.tries.append(([name for name, _ in items], hurries))
        if any(name in self._locked or flow in self._locked for name, flow in items):
            raise Locked("somebody has it")
        return [f"{name} written" for name, _ in items]

    def write_all(self, items: Sequence[Item]) -> list[str]:
        return in_lots(items, lambda item: item[1], self.write, lambda item: f"{item[0]} locked")


def test_what_meets_no_lock_is_written_once_and_with_patience() -> None:
    writer = Writer()

    assert writer.write_all([("a", None), ("b", "f")]) == ["a written", "b written"]
    assert writer.tries == [(["a", "b"], False)]


def test_plain_tasks_come_first_and_tasks_of_a_workflow_stay_together() -> None:
    writer = Writer("f")

    became = writer.write_all([("f1", "f"), ("a", None), ("g1", "g"), ("f2", "f")])

    assert became == ["f1 locked", "a written", "g1 written", "f2 locked"]
    assert writer.tries[1:] == [(["a"], True), (["f1", "f2", "g1"], True), (["f1", "f2"], True), (["g1"], True)]


def test_one_locked_task_among_a_thousand_is_found_in_few_tries() -> None:
    writer = Writer("n700")
    items: list[Item] = [(f"n{number}", None) for number in range(1000)]

    became = writer.write_all(items)

    assert [one for one in became if not one.endswith("written")] == ["n700 locked"]
    assert len(writer.tries) < 25


@pytest.mark.parametrize("count", [MOST_LOCKED, 1000])
def test_where_all_is_locked_not_all_is_tried(count: int) -> None:
    items: list[Item] = [(f"n{number}", f"f{number}") for number in range(count)]
    writer = Writer(*(name for name, _ in items))

    became = writer.write_all(items)

    assert became == [f"{name} locked" for name, _ in items]
    assert sum(len(names) == 1 for names, _ in writer.tries) == MOST_LOCKED
