"""What a drill will do comes from its seed alone."""

from itertools import pairwise

from everbeat.drill.plan import CALM_SECONDS, FROZEN_SECONDS, Deed, Kind, plan_for


def test_one_seed_is_one_plan() -> None:
    first = plan_for(mark="drill-x", seed=7, seconds=60, workers=3, tasks=500)

    assert plan_for(mark="drill-x", seed=7, seconds=60, workers=3, tasks=500) == first
    assert plan_for(mark="drill-x", seed=8, seconds=60, workers=3, tasks=500) != first


def test_another_drill_with_the_same_seed_has_names_of_its_own() -> None:
    first = plan_for(mark="drill-x", seed=7, seconds=60, workers=3, tasks=500)
    second = plan_for(mark="drill-y", seed=7, seconds=60, workers=3, tasks=500)

    assert not {one.id for one in first.sendings} & {one.id for one in second.sendings}
    assert not {one.key for one in first.sendings if one.key} & {one.key for one in second.sendings if one.key}
    assert [one.kind for one in first.sendings] == [one.kind for one in second.sendings]
    assert first.acts == second.acts


def test_every_kind_of_task_is_sent_under_an_id_of_its_own_before_the_time_is_over() -> None:
    plan = plan_for(mark="drill-x", seed=7, seconds=60, workers=3, tasks=500)

    assert {sending.kind for sending in plan.sendings} == set(Kind)
    assert len({sending.id for sending in plan.sendings}) == 500
    assert all(0 <= sending.at < 60 for sending in plan.sendings)
    assert all((sending.key is not None) is (sending.kind is Kind.EXCLUSIVE) for sending in plan.sendings)


def test_tasks_are_sent_almost_to_the_end_of_a_long_drill() -> None:
    plan = plan_for(mark="drill-x", seed=7, seconds=3600, workers=3, tasks=36_000)

    assert 3589 < plan.sendings[-1].at < 3590


def test_every_deed_is_done_but_the_database_is_left_alone_without_permission() -> None:
    plan = plan_for(mark="drill-x", seed=7, seconds=60, workers=3, tasks=1)
    permitted = plan_for(mark="drill-x", seed=7, seconds=60, workers=3, tasks=1, may_kill_database=True)

    assert {act.deed for act in plan.acts} == set(Deed) - {Deed.KILL_DATABASE}
    assert {act.deed for act in permitted.acts} == set(Deed)
    assert [act.at for act in plan.acts] == sorted(act.at for act in plan.acts)
    assert all(act.at < 60 and 0 <= act.pick < 1 for act in plan.acts)
    assert all((act.seconds > 0) is (act.deed in FROZEN_SECONDS) for act in plan.acts)


def test_more_workers_are_met_more_often() -> None:
    few = plan_for(mark="drill-x", seed=7, seconds=600, workers=1, tasks=1)
    many = plan_for(mark="drill-x", seed=7, seconds=600, workers=30, tasks=1)

    assert len(many.acts) > 2 * len(few.acts) > 6


def test_after_a_long_freeze_it_is_calm_until_the_worker_has_come_back() -> None:
    acts = plan_for(mark="drill-x", seed=7, seconds=120, workers=3, tasks=1).acts

    pauses = [after.at - act.at - act.seconds for act, after in pairwise(acts) if act.deed is Deed.FREEZE_LONG]

    assert min(pauses) >= CALM_SECONDS
    assert Deed.FREEZE_LONG not in {
        act.deed for act in plan_for(mark="drill-x", seed=7, seconds=10, workers=9, tasks=1).acts
    }
