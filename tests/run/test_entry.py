"""The way of a worker into its store: whom it waits for."""

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from everbeat.clock import SystemClock
from everbeat.config import AppConfig, PostgresConfig, SQLiteConfig
from everbeat.errors import StoreUnavailable
from everbeat.model.report import RecoveryReport
from everbeat.report.log import Reporter
from everbeat.run.crew import Crew
from everbeat.run.entry import Entry
from everbeat.run.life import Life
from everbeat.run.news import AppFacts
from everbeat.run.options import WorkerOptions
from everbeat.run.outfit import Surroundings
from everbeat.run.signals import Signals

NO_LIFE = cast(Life, None)


@dataclass(frozen=True, slots=True)
class Door(Entry):
    """Of a store that answers the first time with an error, and nobody is in the way by then."""

    error: StoreUnavailable = field(default_factory=lambda: StoreUnavailable("never"))
    tries: list[int] = field(default_factory=list)

    def _try(self, stack: ExitStack) -> tuple[Life, RecoveryReport | None]:
        self.tries.append(1)
        if len(self.tries) == 1:
            raise self.error
        return NO_LIFE, None


def a_door(broker: SQLiteConfig | PostgresConfig, error: StoreUnavailable, *, burst: bool) -> Door:
    config = AppConfig(broker=broker)
    facts = AppFacts(
        store_url=broker.url, config_json=json.dumps(config.to_facts()), sync_names=("add",), async_names=(),
        fork_reason=None,
    )  # fmt: skip
    options = WorkerOptions(target="nothing:app", processes=1, burst=burst)
    around = Surroundings(cast(Crew, None), SystemClock(), Reporter())
    return Door(options, facts, around, Signals(), lambda progress: None, None, error)


@pytest.mark.parametrize("burst", [False, True])
def test_who_was_in_the_way_and_is_so_no_more_keeps_nobody_out(tmp_path: Path, burst: bool) -> None:
    door = a_door(SQLiteConfig(tmp_path / "x.db"), StoreUnavailable("store blocked", may_pass=True), burst=burst)

    assert door.begin_life(ExitStack()) == (NO_LIFE, None)


@pytest.mark.parametrize("burst", [False, True])
def test_what_a_person_has_to_put_right_is_told_at_once(tmp_path: Path, burst: bool) -> None:
    door = a_door(SQLiteConfig(tmp_path / "x.db"), StoreUnavailable("it is a directory"), burst=burst)

    with pytest.raises(StoreUnavailable, match="it is a directory"):
        door.begin_life(ExitStack())


def test_a_burst_does_not_wait_for_a_server() -> None:
    away = StoreUnavailable("no answer", may_pass=True)
    server = PostgresConfig("postgresql://localhost/nothing")

    with pytest.raises(StoreUnavailable, match="no answer"):
        a_door(server, away, burst=True).begin_life(ExitStack())
    assert a_door(server, away, burst=False).begin_life(ExitStack()) == (NO_LIFE, None)
