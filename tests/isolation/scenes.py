"""What is done at the same time. Each scene prepares a store and says what each session does then: verbs of the store,
as workers, reapers, senders and people use them."""

from collections.abc import Callable

from tests.flow_words import begin, diamond, graph
from tests.isolation.ground import Ground
from tests.isolation.stepping import Deed
from tests.words import (
    SECOND,
    a_policy,
    a_task,
    abandoned,
    carry_out,
    completed,
    failed,
    handed_back,
    recover,
    register,
    retried,
    settle,
    succeeded,
)

from everbeat.model.flow import WorkflowChange
from everbeat.model.order import Order
from everbeat.model.recovery import Cause, Orphan, Verdict
from everbeat.model.retention import Cut, Kept
from everbeat.model.state import Change
from everbeat.model.task import Claim
from everbeat.model.worker import QueueSetting
from everbeat.store.messages import Ending, Flush

Scene = Callable[[Ground], dict[str, Deed]]
SCENES: dict[str, Scene] = {}
AGAIN = Verdict(change=Change.RECOVER, reason="its worker died")


def scene(make: Scene) -> Scene:
    SCENES[make.__name__.replace("_", " ")] = make
    return make


def send(ground: Ground, *names: str, **facts: object) -> None:
    ground.main.enqueue([a_task(id=name, **facts) for name in names])


def workers(ground: Ground, *names: str, limit: int | None = None, queue: str = "few") -> None:
    settings = () if limit is None else (QueueSetting(name=queue, max_concurrency=limit, paused=False),)
    for name in names:
        register(ground.main, name, settings=settings)


def by_id(claims: list[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


def bury(ground: Ground, worker: str, verdict: Verdict = AGAIN) -> Deed:
    """As a reaper does: declare it dead, find what it has left, recover that."""

    def deed() -> None:
        ground.two.declare_dead(worker, reason="gone", cause="host")
        found = ground.two.orphans(limit=100)
        orphans = [Orphan(claim=claim, cause=Cause.LOST, evidence="gone", is_certain=True) for claim in found]
        ground.two.recover([(orphan, verdict) for orphan in orphans])

    return deed


# -- claims -----------------------------------------------------------------------------------------------------------


@scene
def two_claim(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2")
    send(ground, "a", "b", "c")
    return {
        "w1": lambda: ground.flush(ground.one, "w1", places=2),
        "w2": lambda: ground.flush(ground.two, "w2", places=2),
    }


@scene
def two_claim_what_has_a_time_limit(ground: Ground) -> dict[str, Deed]:
    """Which takes a whole flush on PostgreSQL."""
    workers(ground, "w1", "w2")
    send(ground, "a", "b", "c", policy=a_policy(timeout=5))
    return {
        "w1": lambda: ground.flush(ground.one, "w1", places=2),
        "w2": lambda: ground.flush(ground.two, "w2", places=2),
    }


@scene
def three_claim(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", "w3")
    send(ground, "a", "b")
    return {
        "w1": lambda: ground.flush(ground.one, "w1", places=1),
        "w2": lambda: ground.flush(ground.two, "w2", places=1),
        "w3": lambda: ground.flush(ground.three, "w3", places=1),
    }


@scene
def a_claim_and_a_cancel(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b")
    return {
        "claim": lambda: ground.flush(ground.one, "w1", places=2),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "a", "b"),
    }


@scene
def a_start_and_a_cancel(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", name="later", policy=a_policy(isolated=True))
    claims = ground.claim("w1", 0, own=1)
    return {
        "start": lambda: ground.flush(ground.one, "w1", starts=claims),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "a"),
    }


@scene
def a_claim_and_the_death_of_the_claimer(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b")
    return {
        "claim": lambda: ground.flush(ground.one, "w1", places=2),
        "reaper": bury(ground, "w1"),
    }


@scene
def a_start_and_the_death_of_the_owner(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", name="later", policy=a_policy(isolated=True))
    claims = ground.claim("w1", 0, own=1)
    return {
        "start": lambda: ground.flush(ground.one, "w1", starts=claims),
        "reaper": bury(ground, "w1"),
    }


@scene
def claims_of_what_is_due(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2")
    send(ground, "a", "b", delay_us=SECOND)
    send(ground, "c", delay_us=SECOND, exclusive_key="k")
    send(ground, "d", exclusive_key="k")
    ground.clock.advance(2)
    return {
        "w1": lambda: ground.flush(ground.one, "w1", places=1),
        "w2": lambda: ground.flush(ground.two, "w2", places=2),
    }


# -- ends -------------------------------------------------------------------------------------------------------------


@scene
def a_result_and_the_death_of_its_owner(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b")
    claims = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(claim, completed()) for claim in reversed(claims)]),
        "reaper": bury(ground, "w1"),
    }


@scene
def a_result_and_the_death_of_its_owner_for_good(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b")
    claims = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(claim, completed()) for claim in claims]),
        "reaper": bury(ground, "w1", abandoned()),
    }


@scene
def a_late_result_and_another_claim(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2")
    send(ground, "a")
    (claim,) = ground.claim("w1")
    recover(ground.main, claim, AGAIN)

    def late() -> None:
        ending = Ending(claim=claim, verdict=completed(b"9"), outcome=succeeded(b"9"))
        (settlement,) = ground.one.flush(Flush(worker_id="w1", endings=[ending])).settlements
        ground.settled.append((ending, settlement))

    return {"late": late, "claim": lambda: ground.flush(ground.two, "w2", places=1)}


@scene
def results_and_a_cancel(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b")
    a, b = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(b, completed()), (a, completed())]),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "a", "b"),
    }


@scene
def failures_and_a_cancel(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b")
    a, b = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(b, retried()), (a, failed())], places=2),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "a", "b"),
    }


@scene
def failures_and_the_death_of_their_owner(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", "c")
    a, b, c = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(c, failed()), (b, retried()), (a, completed())]),
        "reaper": bury(ground, "w1"),
    }


@scene
def a_result_and_a_requeue_by_hand(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a")
    (a,) = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())]),
        "requeue": lambda: carry_out(ground.two, Order.REQUEUE, "a"),
    }


@scene
def two_reapers(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", "c")
    claims = ground.claim("w1")
    ground.main.declare_dead("w1", reason="gone", cause="host")
    found = [Orphan(claim=claim, cause=Cause.LOST, evidence="gone", is_certain=True) for claim in claims]
    return {
        "first": lambda: ground.one.recover([(orphan, AGAIN) for orphan in found]),
        "second": lambda: ground.two.recover([(orphan, AGAIN) for orphan in reversed(found)]),
    }


@scene
def reapers_by_class_and_by_task(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", "c")
    claims = ground.claim("w1")
    ground.main.declare_dead("w1", reason="gone", cause="host")
    classes = ground.main.orphan_classes("w1", after=0, limit=100)
    orphan = Orphan(claim=claims[1], cause=Cause.LOST, evidence="gone", is_certain=True)
    return {
        "classes": lambda: ground.one.recover_classes([(one, AGAIN) for one in classes]),
        "task": lambda: ground.two.recover([(orphan, abandoned())]),
    }


# -- limits -----------------------------------------------------------------------------------------------------------


@scene
def two_claim_from_a_queue_with_a_limit(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", limit=2)
    send(ground, "a", "b", "c", queue="few")
    return {
        "w1": lambda: ground.flush(ground.one, "w1", places=2),
        "w2": lambda: ground.flush(ground.two, "w2", places=2),
    }


@scene
def two_claim_from_two_queues_with_limits(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", limit=1)
    workers(ground, "w3", limit=1, queue="rare")
    send(ground, "a", "b", queue="few")
    send(ground, "c", "d", queue="rare", priority=1, name="sub")
    return {
        "w1": lambda: ground.flush(ground.one, "w1", places=3),
        "w2": lambda: ground.flush(ground.two, "w2", places=3),
    }


@scene
def a_place_is_free_while_another_looks(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", limit=1)
    send(ground, "a", "b", queue="few")
    (a,) = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())]),
        "claim": lambda: ground.flush(ground.two, "w2", places=1),
    }


@scene
def a_place_is_free_and_taken_again(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", limit=2)
    send(ground, "a", "b", "c", "d", queue="few")
    (a,) = ground.claim("w1", 1)
    (b,) = ground.claim("w2", 1)
    return {
        "w1": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())], places=1),
        "w2": lambda: ground.flush(ground.two, "w2", ends=[(b, retried())], places=2),
    }


@scene
def two_free_the_last_places(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", limit=2)
    send(ground, "a", "b", "c", queue="few")
    (a,) = ground.claim("w1", 1)
    (b,) = ground.claim("w2", 1)
    return {
        "w1": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())]),
        "w2": lambda: ground.flush(ground.two, "w2", ends=[(b, completed())]),
    }


@scene
def a_limit_comes_while_another_claims(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", queue="few")
    limit = QueueSetting(name="few", max_concurrency=1, paused=False)

    def start() -> None:
        register(ground.two, "w2", settings=(limit,))
        ground.flush(ground.two, "w2", places=1)

    return {"claim": lambda: ground.flush(ground.one, "w1", places=1), "limit": start}


@scene
def a_place_is_free_by_a_cancel(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2", limit=1)
    send(ground, "a", queue="few", name="later", policy=a_policy(isolated=True))
    send(ground, "b", queue="few")
    ground.claim("w1", 0, own=1)
    return {
        "cancel": lambda: carry_out(ground.one, Order.CANCEL, "a"),
        "claim": lambda: ground.flush(ground.two, "w2", places=1),
    }


# -- keys -------------------------------------------------------------------------------------------------------------


@scene
def two_send_one_exclusive_key(ground: Ground) -> dict[str, Deed]:
    return {
        "one": lambda: ground.one.enqueue([a_task(id="a", exclusive_key="k")]),
        "two": lambda: ground.two.enqueue([a_task(id="b", exclusive_key="k")]),
    }


@scene
def two_send_two_exclusive_keys(ground: Ground) -> dict[str, Deed]:
    return {
        "one": lambda: ground.one.enqueue([a_task(id=f"one {key}", exclusive_key=key) for key in "kl"]),
        "two": lambda: ground.two.enqueue([a_task(id=f"two {key}", exclusive_key=key) for key in "lk"]),
    }


@scene
def the_turn_is_handed_over_while_another_sends(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", exclusive_key="k")
    (a,) = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())]),
        "send": lambda: ground.two.enqueue([a_task(id="b", exclusive_key="k")]),
    }


@scene
def the_turn_is_handed_over_while_the_next_is_cancelled(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", "c", exclusive_key="k")
    (a,) = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())]),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "b"),
    }


@scene
def the_holder_of_a_turn_is_claimed_while_it_is_cancelled(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", exclusive_key="k")
    return {
        "claim": lambda: ground.flush(ground.one, "w1", places=2),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "a"),
    }


@scene
def the_holder_of_a_turn_is_claimed_while_its_queue_is_paused(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", queue="slow", exclusive_key="k")
    send(ground, "b", exclusive_key="k")
    return {
        "claim": lambda: ground.flush(ground.one, "w1", places=2),
        "pause": lambda: ground.two.set_paused("slow", is_paused=True, actor="me"),
    }


@scene
def the_holder_of_a_turn_in_a_paused_queue_is_cancelled_while_another_sends(ground: Ground) -> dict[str, Deed]:
    send(ground, "a", queue="slow", exclusive_key="k")
    ground.main.set_paused("slow", is_paused=True, actor="me")
    return {
        "cancel": lambda: carry_out(ground.one, Order.CANCEL, "a"),
        "send": lambda: ground.two.enqueue([a_task(id="b", exclusive_key="k")]),
    }


@scene
def ends_and_a_start_and_a_cancel(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", name="later", policy=a_policy(isolated=True))
    send(ground, "b")
    a, b = by_id(ground.claim("w1", 1, own=1)).values()
    return {
        "flush": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())], starts=[a]),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, "a", "b"),
    }


@scene
def keys_of_several_ends(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2")
    send(ground, "a", "a2", exclusive_key="k")
    send(ground, "b", "b2", exclusive_key="l")
    ends = by_id(ground.claim("w1"))
    return {
        "settle": lambda: ground.flush(
            ground.one, "w1", ends=[(ends["b"], completed()), (ends["a"], retried())], places=2
        ),
        "send": lambda: ground.two.enqueue(
            [a_task(id="c", exclusive_key="k"), a_task(id="d", exclusive_key="l")],
        ),
    }


@scene
def keys_of_what_ended_and_of_what_is_due(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", exclusive_key="l")
    (a,) = ground.claim("w1")
    send(ground, "b", exclusive_key="k", delay_us=SECOND)
    ground.clock.advance(2)
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())], places=1),
        "send": lambda: ground.two.enqueue([a_task(id=f"two {key}", exclusive_key=key) for key in "kl"]),
    }


@scene
def keys_of_what_ended_and_of_nodes_that_follow(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    begin(ground.main, graph(a="", b="a", nodes={"b": {"exclusive_key": "l"}}))
    send(ground, "c", exclusive_key="k")
    ends = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(claim, completed()) for claim in ends]),
        "send": lambda: ground.two.enqueue([a_task(id=f"two {key}", exclusive_key=key) for key in "kl"]),
    }


@scene
def the_holder_of_a_unique_key_goes_while_two_send_it_with_an_exclusive_one(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "held", unique_key="u")
    (held,) = ground.claim("w1")

    def settle_and_send() -> None:
        ground.flush(ground.two, "w1", ends=[(held, completed())])
        ground.two.enqueue([a_task(id="b", unique_key="u", exclusive_key="k")])

    return {
        "one": lambda: ground.one.enqueue([a_task(id="a", unique_key="u", exclusive_key="k")]),
        "two": settle_and_send,
    }


@scene
def the_holder_of_a_turn_is_revived_while_another_ends(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", "b", exclusive_key="k")
    settle(ground.main, ground.claim("w1")[0], failed())
    (b,) = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())]),
        "retry": lambda: carry_out(ground.two, Order.RETRY, "a"),
    }


@scene
def the_holder_of_a_turn_is_handed_back_while_another_claims(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2")
    send(ground, "a", "b", exclusive_key="k")
    (a,) = ground.claim("w1")
    return {
        "w1": lambda: ground.flush(ground.one, "w1", ends=[(a, handed_back())]),
        "w2": lambda: ground.flush(ground.two, "w2", places=2),
    }


@scene
def two_send_one_unique_key(ground: Ground) -> dict[str, Deed]:
    return {
        "one": lambda: ground.one.enqueue([a_task(id="a", unique_key="u")]),
        "two": lambda: ground.two.enqueue([a_task(id="b", unique_key="u"), a_task(id="c")]),
    }


@scene
def a_unique_key_is_sent_while_its_holder_ends(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", unique_key="u")
    (a,) = ground.claim("w1")
    return {
        "settle": lambda: ground.flush(ground.one, "w1", ends=[(a, completed())]),
        "send": lambda: ground.two.enqueue([a_task(id="b", unique_key="u")]),
    }


@scene
def a_unique_key_is_sent_while_an_earlier_task_is_revived(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    send(ground, "a", unique_key="u")
    settle(ground.main, ground.claim("w1")[0], failed())
    return {
        "retry": lambda: carry_out(ground.one, Order.RETRY, "a"),
        "send": lambda: ground.two.enqueue([a_task(id="b", unique_key="u")]),
    }


@scene
def two_revive_tasks_of_one_unique_key(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    for name in ("a", "b"):
        send(ground, name, unique_key="u")
        settle(ground.main, ground.claim("w1")[0], failed())
    return {
        "one": lambda: carry_out(ground.one, Order.RETRY, "a"),
        "two": lambda: carry_out(ground.two, Order.RETRY, "b"),
    }


@scene
def two_senders_of_the_same_ids(ground: Ground) -> dict[str, Deed]:
    tasks = [a_task(id="a"), a_task(id="b")]
    return {
        "one": lambda: ground.one.enqueue(tasks),
        "two": lambda: ground.two.enqueue(tasks[::-1]),
    }


# -- workflows --------------------------------------------------------------------------------------------------------


@scene
def two_inputs_of_a_join_end(ground: Ground) -> dict[str, Deed]:
    b, c = two_branches(ground)
    return {
        "b": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())], places=1),
        "c": lambda: ground.flush(ground.two, "w2", ends=[(c, completed())], places=1),
    }


@scene
def one_input_of_a_join_ends_and_one_is_recovered(ground: Ground) -> dict[str, Deed]:
    b, _ = two_branches(ground)
    return {
        "b": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())], places=1),
        "reaper": bury(ground, "w2", abandoned()),
    }


@scene
def a_node_ends_while_its_workflow_is_cancelled(ground: Ground) -> dict[str, Deed]:
    b, _ = two_branches(ground)
    return {
        "b": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())], places=1),
        "cancel": lambda: ground.two.change_workflow(WorkflowChange.CANCEL, "flow", actor="me"),
    }


@scene
def a_node_ends_while_its_workflow_is_paused(ground: Ground) -> dict[str, Deed]:
    b, c = two_branches(ground)
    return {
        "ends": lambda: ground.flush(ground.one, "w1", ends=[(b, completed()), (c, completed())], places=1),
        "pause": lambda: ground.two.change_workflow(WorkflowChange.PAUSE, "flow", actor="me"),
    }


@scene
def a_node_is_claimed_while_its_workflow_is_cancelled(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    begin(ground.main, diamond())
    return {
        "claim": lambda: ground.flush(ground.one, "w1", places=1),
        "cancel": lambda: ground.two.change_workflow(WorkflowChange.CANCEL, "flow", actor="me"),
    }


@scene
def a_node_is_claimed_while_its_workflow_is_paused(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    begin(ground.main, diamond())
    return {
        "claim": lambda: ground.flush(ground.one, "w1", places=1),
        "pause": lambda: ground.two.change_workflow(WorkflowChange.PAUSE, "flow", actor="me"),
    }


@scene
def a_node_ends_while_it_is_cancelled_by_hand(ground: Ground) -> dict[str, Deed]:
    b, c = two_branches(ground)
    return {
        "ends": lambda: ground.flush(ground.one, "w1", ends=[(c, completed()), (b, failed())]),
        "cancel": lambda: carry_out(ground.two, Order.CANCEL, b.id, c.id),
    }


@scene
def nodes_of_two_workflows_end_crosswise(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1", "w2")
    begin(ground.main, graph("x", a="", b="", c="a b"))
    begin(ground.main, graph("y", a="", b="", c="a b"))
    claims = by_id(ground.claim("w1"))
    return {
        "one": lambda: ground.flush(
            ground.one, "w1", ends=[(claims["x:a"], completed()), (claims["y:a"], completed())], places=1
        ),
        "two": lambda: ground.flush(
            ground.two, "w1", ends=[(claims["y:b"], completed()), (claims["x:b"], completed())], places=1
        ),
    }


@scene
def a_workflow_is_retried_while_a_node_ends(ground: Ground) -> dict[str, Deed]:
    b, c = two_branches(ground)
    ground.flush(ground.main, "w2", ends=[(c, failed())])
    return {
        "b": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())], places=1),
        "retry": lambda: ground.two.change_workflow(WorkflowChange.RETRY, "flow", actor="me"),
    }


@scene
def a_workflow_is_retried_while_old_ones_are_deleted(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    begin(ground.main, graph(a="", b="a"))
    ground.flush(ground.main, "w1", ends=[(claim, failed()) for claim in ground.claim("w1")])
    ground.clock.advance(3600)
    old = Cut(kept=Kept.WORKFLOWS, older_than_us=60 * SECOND)
    return {
        "retry": lambda: ground.one.change_workflow(WorkflowChange.RETRY, "flow", actor="me"),
        "retention": lambda: ground.two.retain(old, worker_id="w1", lease_us=60 * SECOND),
    }


@scene
def a_late_result_of_a_node_is_accepted_while_another_ends(ground: Ground) -> dict[str, Deed]:
    b, c = two_branches(ground)
    recover(ground.main, c, abandoned())
    settle(ground.main, c, completed(), outcome=succeeded())
    return {
        "b": lambda: ground.flush(ground.one, "w1", ends=[(b, completed())]),
        "accept": lambda: ground.two.accept(c.id, actor="me"),
    }


@scene
def a_late_result_of_a_node_is_accepted_while_it_is_retried(ground: Ground) -> dict[str, Deed]:
    _, c = two_branches(ground)
    recover(ground.main, c, abandoned())
    settle(ground.main, c, completed(), outcome=succeeded())
    return {
        "retry": lambda: carry_out(ground.one, Order.RETRY, c.id),
        "accept": lambda: ground.two.accept(c.id, actor="me"),
    }


@scene
def a_node_ends_while_workflows_are_mended(ground: Ground) -> dict[str, Deed]:
    b, c = two_branches(ground)
    return {
        "ends": lambda: ground.flush(ground.one, "w1", ends=[(b, completed()), (c, completed())], places=1),
        "mend": lambda: ground.two.mend_workflows(all_of_them=True),
    }


@scene
def one_workflow_is_started_twice(ground: Ground) -> dict[str, Deed]:
    workers(ground, "w1")
    return {
        "one": lambda: ground.one.start_workflow([diamond()]),
        "two": lambda: ground.two.start_workflow([diamond()]),
    }


def two_branches(ground: Ground) -> tuple[Claim, Claim]:
    """A diamond whose two branches run, one at each of two workers."""
    workers(ground, "w1", "w2")
    begin(ground.main, diamond())
    (a,) = ground.claim("w1")
    ground.flush(ground.main, "w1", ends=[(a, completed())])
    (b,) = ground.claim("w1", 1)
    (c,) = ground.claim("w2", 1)
    return b, c
