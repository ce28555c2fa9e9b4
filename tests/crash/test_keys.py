"""Times, keys and limits through real workers."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, PATIENCE

from everbeat import TaskExpired, TaskStatus


def test_what_was_not_started_in_its_time_expires_while_every_worker_is_busy_and_never_runs(
    make_yard: MakeYard,
) -> None:
    yard = make_yard(**FAST)
    yard.worker(processes=1)
    busy = yard.send("gated", "gate")
    yard.until_started(busy)
    late = yard.send("quick", good_until=datetime.now(UTC) + timedelta(seconds=0.3))
    patient = yard.send("quick", good_until=datetime.now(UTC) + timedelta(hours=1))

    with pytest.raises(TaskExpired):
        yard.app.handle(late).result(timeout=PATIENCE)
    yard.open("gate")
    yard.until_ended([busy, patient])

    assert [yard.status(one) for one in (busy, late, patient)] == ["COMPLETED", "EXPIRED", "COMPLETED"]
    assert not yard.starts(late)
    assert yard.status(late) is TaskStatus.EXPIRED
