"""Senders and waiters while the server is away, and when it is back."""

import signal
import threading

import pytest
from tests.crash.yard import Yard
from tests.outage.proxy import Proxy, Where
from tests.postgres import Cluster

from everbeat import Everbeat, StoreUnavailable

INSERTS = b"INSERT INTO everbeat_tasks"


def test_a_sender_is_told_which_task_was_not_stored_and_may_send_it_again(yard: Yard, cluster: Cluster) -> None:
    cluster.stop()

    with pytest.raises(StoreUnavailable) as caught:
        yard.send("quick")

    lost = caught.value.task_id
    assert lost is not None
    assert lost in str(caught.value)
    assert not caught.value.maybe_stored
    cluster.start()
    assert yard.app.tasks["quick"].options(id=lost).enqueue().created
    assert [task.id for task in yard.tasks()] == [lost]


def test_a_batch_that_was_not_stored_names_every_task_of_it(yard: Yard, cluster: Cluster) -> None:
    cluster.stop()

    with pytest.raises(StoreUnavailable) as caught:
        yard.send_many("quick", [()] * 3)

    assert len(set(caught.value.task_ids)) == 3
    assert caught.value.task_id is None


def test_the_first_sending_after_a_restart_succeeds_from_every_thread(yard: Yard, cluster: Cluster) -> None:
    """Connections from before are dead, and nobody has noticed."""
    meet, sent = threading.Barrier(6), []

    def send() -> None:
        meet.wait()
        yard.store.counts()
        sent.append(yard.send("quick"))

    def send_from_all() -> None:
        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    send_from_all()
    cluster.stop(signal.SIGQUIT)
    cluster.start()
    send_from_all()

    assert len(sent) == 12
    assert {task.id for task in yard.tasks()} == set(sent)


def test_a_result_is_waited_for_through_an_outage(yard: Yard, cluster: Cluster) -> None:
    yard.worker()
    task = yard.app.tasks["gated"].enqueue("go")
    yard.until_started(task.id)
    results: list[object] = []
    waiter = threading.Thread(target=lambda: results.append(task.result(timeout=60)))
    waiter.start()
    yard.until(lambda: cluster.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"), "somebody listens")

    cluster.stop()
    yard.open("go")
    yard.until(lambda: yard.ends(task.id), "it has ended")
    assert not results
    cluster.start()
    waiter.join(60)

    assert results == [yard.starts(task.id)[0].fence]


@pytest.mark.parametrize(("where", "is_stored"), [("before", False), ("after", True)])
def test_a_sender_whose_commit_got_no_answer_is_told_so_and_sends_again_without_a_second_task(
    yard: Yard, proxy: Proxy, where: Where, is_stored: bool
) -> None:
    app = Everbeat(proxy.url)
    quick = app.task(name="quick")(lambda: None)
    first = quick.enqueue()
    cut = proxy.cut_commit(where, INSERTS)

    with pytest.raises(StoreUnavailable) as caught:
        quick.enqueue()

    doubtful = caught.value.task_id
    assert cut.is_done
    assert doubtful is not None
    assert caught.value.maybe_stored
    assert "Nothing was changed" not in str(caught.value)
    assert (yard.store.get(doubtful, full=False) is not None) is is_stored
    assert quick.options(id=doubtful).enqueue().created is not is_stored
    assert {task.id for task in yard.tasks()} == {first.id, doubtful}
    app.close()
