"""What the slots could take, and when quick async tasks may wait for a place in the async process."""

from tests.words import a_claim

from everbeat.decide.pace import Pace
from everbeat.run.slot import ASYNC_FRAMES, FRESH_US, Flight, Slots, SlotState, Staffing

NOW = 1_000_000


def slots(*, max_tasks: int | None = None) -> Slots:
    staffing = Staffing(
        processes=1, async_slots=2, sync_names=frozenset(), async_names=frozenset({"later"}), queues=None,
        frame_depth=64, max_tasks=max_tasks,
    )  # fmt: skip
    made = Slots(staffing)
    made[0].state = SlotState.READY
    return made


def frames(of: Slots) -> float:
    return of.room({"later": 64}, NOW).async_frames


def test_an_empty_process_has_all_frames() -> None:
    assert frames(slots()) == ASYNC_FRAMES


def test_they_wait_only_while_something_ends_now_and_then() -> None:
    made = slots()
    made[0].add([Flight(a_claim(), 0, share=0.5)], NOW - FRESH_US + 1)
    assert frames(made) == ASYNC_FRAMES - 0.5

    made[0].head_since = NOW - FRESH_US

    assert frames(made) == 0


def test_none_wait_for_a_process_that_is_replaced_after_so_many_tasks() -> None:
    assert frames(slots(max_tasks=100)) == 0


def test_none_wait_while_the_process_before_still_has_tasks() -> None:
    made = slots()

    made.twin(made[0]).add([Flight(a_claim(), 0)], NOW)

    assert frames(made) == 0


def test_no_place_is_free_while_more_are_there_than_have_one() -> None:
    made = slots()
    for seq in range(5):
        made[0].add([Flight(a_claim(seq=seq), seq, share=1 / 64)], NOW)

    room = made.room({"later": 64}, NOW)

    assert room.async_free == 0
    assert room.wants("later") == room.own_free + int(room.async_frames * 64)


def test_what_is_learned_later_does_not_change_what_was_offered() -> None:
    """A scribe claims into the room, while the dispatcher learns from its processes that a task is slow."""
    pace, made = Pace(), slots()
    pace.saw("later", 10)
    room = made.room(pace.depths, NOW)
    wanted = room.wants("later")

    pace.saw("later", 1e6)

    assert room.wants("later") == wanted
