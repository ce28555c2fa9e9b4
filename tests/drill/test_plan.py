"""What a drill will do comes from its seed alone."""

from everbeat.drill.plan import FROZEN_SECONDS, Deed, Kind, plan_for


def test_one_seed_is_one_plan() -> None:
    first = plan_for(seed=7, seconds=60, workers=3, tasks=500)

    assert plan_for(seed=7, seconds=60, workers=3, tasks=500) == first
    assert plan_for(seed=8, seconds=60, workers=3, tasks=500) != first


def test_every_kind_of_task_is_sent_under_an_id_of_its_own_before_the_time_is_over() -> None:
    plan = plan_for(seed=7, seconds=60, workers=3, tasks=500)

    assert {sending.kind for sending in plan.sendings} == set(Kind)
    assert len({sending.id for sending in plan.sendings}) == 500
    assert all(0 <= sending.at < 60 for sending in plan.sendings)
    assert all((sending.key is not None) is (sending.kind is Kind.EXCLUSIVE) for sending in plan.sendings)


def test_every_deed_is_done_but_the_database_is_left_alone_without_permission() -> None:
    plan = plan_for(seed=7, seconds=60, workers=3, tasks=1)
    permitted = plan_for(seed=7, seconds=60, workers=3, tasks=1, may_kill_database=True)

    assert {act.deed for act in plan.acts} == set(Deed) - {Deed.KILL_DATABASE}
    assert {act.deed for act in permitted.acts} == set(Deed)
    assert [act.at for act in plan.acts] == sorted(act.at for act in plan.acts)
    assert all(act.at < 60 and 0 <= act.pick < 1 for act in plan.acts)
    assert all((act.seconds > 0) is (act.deed in FROZEN_SECONDS) for act in plan.acts)


def test_more_workers_are_met_more_often() -> None:
    few = plan_for(seed=7, seconds=60, workers=1, tasks=1)
    many = plan_for(seed=7, seconds=60, workers=30, tasks=1)

    assert len(many.acts) > 10 * len(few.acts) > 10
