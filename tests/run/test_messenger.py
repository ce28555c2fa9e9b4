"""Events on their way to subscribers: nothing is lost by whatever happens to the process that tells them."""

from collections.abc import Iterator

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import an_error, register

from everbeat.errors import StoreUnavailable
from everbeat.model.event import EVENT_UNDELIVERABLE, WORKER_STARTED
from everbeat.run.messenger import LIMIT_US, Messenger

SLOT = 5


class Post:
    """A messenger over simulated processes, turned by hand."""

    def __init__(self, stage: Stage, worker: SimulatedWorker) -> None:
        self.stage, self.crew = stage, worker.crew
        self.store, self.line = stage.open_line()
        self.messenger = Messenger(
            application="shop:app", names=[WORKER_STARTED], worker_id="w1", store=self.store, crew=worker.crew,  # type: ignore[arg-type]
            slot=SLOT, clock=stage.clock,
        )  # fmt: skip
        self.messenger.tick()  # subscribes

    def turn(self) -> None:
        self.messenger.tick()
        self.messenger.turn()
        self.hear()

    def hear(self) -> None:
        for news in self.crew.collect():
            self.messenger.hear(news)

    def get_ready(self) -> None:
        """The process is up, and what waits was sent to it."""
        self.turn()
        self.crew.get_ready(SLOT)
        self.hear()

    def tell(self, **how: object) -> None:
        """The process takes the next event and tells it."""
        self.crew.take(SLOT)
        self.crew.end(SLOT, **how)  # type: ignore[arg-type]
        self.hear()
        self.messenger.tick()

    def failures(self) -> list[tuple[int, str | None]]:
        with self.store.database.read() as tx:
            return tx.all("SELECT failures, failure FROM everbeat_deliveries ORDER BY event_id")  # type: ignore[return-value]


@pytest.fixture
def post(stage: Stage) -> Iterator[Post]:
    post = Post(stage, stage.worker("w1", processes=2))
    yield post
    post.messenger.close()


def test_no_process_is_started_before_there_is_something_to_tell(stage: Stage, post: Post) -> None:
    post.turn()
    assert post.crew.spawned == 0

    register(stage.store, "w2")
    post.turn()

    assert list(post.crew.children) == [SLOT]


def test_what_was_told_is_marked_as_delivered(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    post.get_ready()

    post.tell()

    assert stage.store.undelivered() == 0
    assert post.failures() == [(0, None)]


def test_what_raised_is_told_again_later(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    post.get_ready()
    post.tell(error=an_error())

    assert post.failures() == [(1, "builtins.ValueError: it broke")]
    stage.clock.advance(1.1)
    post.turn()
    post.tell()

    assert stage.store.undelivered() == 0


def test_a_process_that_dies_costs_the_event_it_had_one_try_and_the_others_nothing(stage: Stage, post: Post) -> None:
    for worker in ("w2", "w3", "w4"):
        register(stage.store, worker)
    post.get_ready()
    post.crew.take(SLOT)

    post.crew.die(SLOT, -11)
    post.hear()
    post.messenger.tick()

    (first, _, _) = post.failures()
    assert [count for count, _ in post.failures()] == [1, 0, 0]
    assert "SIGSEGV" in str(first[1])
    stage.clock.advance(1.1)
    post.get_ready()
    post.tell()
    post.tell()
    assert stage.store.undelivered() == 1


def test_one_that_hangs_is_killed_and_has_failed(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    post.get_ready()
    post.crew.take(SLOT)

    stage.clock.advance(LIMIT_US / 1e6 + 1)
    post.turn()
    post.messenger.tick()

    assert post.failures() == [(1, "took longer than 30 s")]


def test_an_outcome_that_can_not_be_stored_now_is_stored_later(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    post.get_ready()
    post.line.is_down = True
    with pytest.raises(StoreUnavailable):
        post.tell()

    post.line.is_down = False
    post.messenger.tick()

    assert stage.store.undelivered() == 0


def test_what_takes_long_stays_with_who_has_it(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    post.get_ready()
    for _ in range(12):
        stage.clock.advance(10)
        post.messenger.tick()

    assert stage.store.take_events("shop:app", ["*"], worker_id="w9", limit=1, lease_us=1) == []


def test_an_event_whose_process_never_comes_up_is_given_up_in_the_end(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    for _ in range(100):
        post.turn()
        if SLOT in post.crew.children:
            post.crew.die(SLOT, 70)
            post.hear()
        stage.clock.advance(30)

    assert post.failures()[0][0] == 10
    assert EVENT_UNDELIVERABLE in stage.events()


def test_at_the_end_what_is_due_is_told_and_the_rest_given_back(stage: Stage, post: Post) -> None:
    register(stage.store, "w2")
    register(stage.store, "w3")
    post.get_ready()
    post.tell()

    post.messenger.finish(0.0, lambda: None)

    assert SLOT not in post.crew.children
    (event,) = stage.store.take_events("shop:app", ["*"], worker_id="w9", limit=5, lease_us=1)
    assert event.worker_id == "w3"
