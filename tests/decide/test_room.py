"""Which ready tasks a worker takes, and into which slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.decide.pace import DEEPEST, Pace
from everbeat.decide.room import ASYNC_SLOT, DEEP, OWN_PROCESS, Answer, Room

SYNC = frozenset({"quick", "slow", "medium"})
ASYNC = frozenset({"later", "at once"})
DEPTHS = {"quick": 8, "medium": 3, "at once": 8}


def a_room(
    slots: dict[int, int] | None = None, *, async_free: int = 0, async_frames: float = 0.0, own_free: int = 0
) -> Room:
    return Room(
        SYNC, ASYNC, None, slots=dict(slots or {}), depths=DEPTHS, async_free=async_free, async_frames=async_frames,
        own_free=own_free,
    )  # fmt: skip


def test_a_slow_task_has_its_slot_to_itself() -> None:
    room = a_room({1: 0, 2: 0})

    assert [room.offer("slow", solo=False) for _ in range(3)] == [
        (Answer.TAKE, 1),
        (Answer.TAKE, 2),
        (Answer.FULL, OWN_PROCESS),
    ]


def test_quick_tasks_spread_over_the_slots_and_stand_in_line() -> None:
    room = a_room({1: 0, 2: 0})

    assert [room.offer("quick", solo=False)[1] for _ in range(4)] == [1, 2, 1, 2]


def test_a_slow_task_never_waits_behind_others_and_nothing_overtakes_it() -> None:
    room = a_room({1: 1})

    assert room.offer("slow", solo=False)[0] is Answer.FULL
    assert room.offer("quick", solo=False)[0] is Answer.FULL
    assert room.is_empty


def test_a_quick_task_that_must_run_alone_is_not_framed() -> None:
    room = a_room({1: 3, 2: 0})

    assert room.offer("quick", solo=True) == (Answer.TAKE, 2)
    assert room.slots == {1: 3}


def test_a_quick_task_with_a_timeout_is_not_framed() -> None:
    room = a_room({1: 3, 2: 0})

    assert room.offer("quick", solo=False, alone=True) == (Answer.TAKE, 2)
    assert room.offer("quick", solo=False, alone=True) == (Answer.FULL, OWN_PROCESS)


def test_an_async_task_with_a_timeout_goes_to_the_shared_process() -> None:
    room = a_room(async_free=1, own_free=1)

    assert room.offer("later", solo=False, alone=True) == (Answer.TAKE, ASYNC_SLOT)


def test_isolated_tasks_have_processes_of_their_own_and_wait_for_one_in_order() -> None:
    room = a_room({1: 0}, async_free=1, own_free=2)

    assert room.offer("slow", solo=False, isolated=True) == (Answer.TAKE, OWN_PROCESS)
    assert room.offer("later", solo=False, isolated=True) == (Answer.TAKE, OWN_PROCESS)
    assert room.offer("later", solo=False, isolated=True) == (Answer.FULL, OWN_PROCESS)
    assert room.offer("slow", solo=False) == (Answer.TAKE, 1)


def test_a_worker_without_a_free_slot_does_not_search_for_isolated_tasks() -> None:
    assert Room(SYNC, frozenset(), None, own_free=2).is_empty
    assert not Room(SYNC, ASYNC, None, own_free=2).is_empty


def test_async_tasks_share_a_process_and_a_suspect_gets_its_own() -> None:
    room = a_room(async_free=1, own_free=1)

    assert room.offer("later", solo=True) == (Answer.TAKE, OWN_PROCESS)
    assert room.offer("later", solo=True) == (Answer.PASS, OWN_PROCESS)
    assert room.offer("later", solo=False) == (Answer.TAKE, ASYNC_SLOT)
    assert room.offer("later", solo=False) == (Answer.FULL, ASYNC_SLOT)


def test_quick_async_tasks_may_wait_for_a_place() -> None:
    room = a_room(async_free=1, async_frames=0.25)

    assert (room.wants("at once"), room.wants("later")) == (3, 1)
    assert [room.offer("at once", solo=False)[0] for _ in range(4)] == [Answer.TAKE] * 3 + [Answer.FULL]
    assert room.is_empty


def test_nothing_overtakes_an_async_task_that_found_no_place() -> None:
    room = a_room(async_frames=5)

    assert not room.serves("default", "later")
    assert room.offer("later", solo=False)[0] is Answer.FULL
    assert room.offer("at once", solo=False)[0] is Answer.FULL


def test_a_quick_async_task_with_a_timeout_does_not_wait_for_a_place() -> None:
    room = a_room(async_free=1, async_frames=5)

    assert room.offer("at once", solo=False, alone=True) == (Answer.TAKE, ASYNC_SLOT)
    assert room.offer("at once", solo=False, alone=True) == (Answer.FULL, ASYNC_SLOT)


def test_what_was_promised_to_wait_for_a_place_is_not_offered_again() -> None:
    room = a_room(async_free=2, async_frames=5)

    room.keep(a_room(async_free=2, async_frames=3).promise())

    assert (room.async_free, room.async_frames) == (0, 2)


def test_a_room_serves_its_queues_and_the_names_it_has_places_for() -> None:
    room = Room(SYNC, ASYNC, frozenset({"mail"}), slots={1: 0})

    assert room.serves("mail", "quick")
    assert not room.serves("mail", "later")
    assert not room.serves("mail", "unknown")
    assert not room.serves("default", "quick")


names = st.sampled_from(["quick", "medium", "slow", "later", "at once"])
offers = st.lists(st.tuples(names, st.booleans()), max_size=80)
slots = st.dictionaries(st.integers(1, 6), st.integers(0, 9), max_size=6)


@given(slots, st.integers(0, 5), st.integers(0, 5), st.integers(0, 3), offers)
def test_a_room_never_admits_more_than_it_has(
    slots: dict[int, int], async_free: int, async_frames: int, own_free: int, offers: list[tuple[str, bool]]
) -> None:
    room = a_room(slots, async_free=async_free, async_frames=async_frames, own_free=own_free)
    standing = dict(slots)
    alone: set[int] = set()
    shared = own = 0
    for name, solo in offers:
        answer, slot = room.offer(name, solo=solo)
        if answer is not Answer.TAKE:
            continue
        if name in ASYNC:
            own += solo
            shared += not solo
            assert name == "at once" or solo or shared <= async_free
            assert slot == (OWN_PROCESS if solo else ASYNC_SLOT)
            continue
        depth = 1 if solo else DEPTHS.get(name, 1)
        assert slot in slots
        assert slot not in alone
        assert standing[slot] < depth
        standing[slot] += 1
        if depth == 1:
            alone.add(slot)
    assert shared <= async_free + async_frames * DEPTHS["at once"]
    assert own <= own_free


@given(slots, offers)
def test_no_later_sync_task_is_admitted_once_one_found_no_place(
    slots: dict[int, int], offers: list[tuple[str, bool]]
) -> None:
    room = a_room(slots)
    answers = [room.offer(name, solo=solo)[0] for name, solo in offers if name in SYNC]

    if Answer.FULL in answers:
        assert Answer.TAKE not in answers[answers.index(Answer.FULL) :]


@given(st.integers(1, 4), st.integers(1, 60))
def test_a_slow_task_at_the_head_starts_as_soon_as_a_slot_has_drained(places: int, quick: int) -> None:
    """Every turn each slot finishes one task. Quick ones keep coming behind the slow one."""
    standing = dict.fromkeys(range(places), 0)
    line = ["quick"] * quick + ["slow"] + ["quick"] * 500
    for _ in range(quick + DEPTHS["quick"] + 1):
        room = a_room(standing)
        while line:
            answer, slot = room.offer(line[0], solo=False)
            if answer is not Answer.TAKE:
                break
            standing[slot] += 1
            if line.pop(0) == "slow":
                return
        standing = {slot: max(0, count - 1) for slot, count in standing.items()}
    raise AssertionError("the slow task starved")


def test_a_frame_holds_five_milliseconds_of_work() -> None:
    pace = Pace()
    for name, took_us in [("tiny", 1), ("short", 1_000), ("long", 20_000), ("backwards", -500)]:
        pace.saw(name, took_us)

    assert pace.depths == {"tiny": DEEPEST, "short": 5, "long": 1, "backwards": DEEPEST}


def test_the_pace_follows_a_task_that_becomes_slow() -> None:
    pace = Pace()
    pace.saw("add", 100)
    depths = []
    for _ in range(4):
        pace.saw("add", 10_000)
        depths.append(pace.depths["add"])

    assert depths == [2, 1, 1, 1]


@given(st.lists(st.integers(-10, 10_000_000), min_size=1))
def test_a_depth_is_at_least_one_and_never_over_the_limit(times: list[int]) -> None:
    pace = Pace(deepest=16)
    for took_us in times:
        pace.saw("add", took_us)

        assert 1 <= pace.depths["add"] <= 16


@given(
    st.sampled_from(["quick", "slow", "medium", "later", "at once"]), st.integers(0, 30),
    st.dictionaries(st.integers(1, 3), st.integers(0, 9)), st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.25, 2.0]),
)  # fmt: skip
def test_tasks_that_are_alike_are_admitted_together_as_they_would_be_one_by_one(
    name: str, count: int, slots: dict[int, int], async_free: int, async_frames: float
) -> None:
    one_by_one = a_room(slots, async_free=async_free, async_frames=async_frames)
    together = a_room(slots, async_free=async_free, async_frames=async_frames)

    wanted = []
    for _ in range(count):
        answer, slot = one_by_one.offer(name, solo=False)
        if answer is not Answer.TAKE:
            break
        wanted.append(slot)

    assert together.offer_alike(name, count) == wanted
    assert together.promise()._replace(async_frames=0) == one_by_one.promise()._replace(async_frames=0)
    assert abs(together.async_frames - one_by_one.async_frames) < 1e-9


@given(
    st.sampled_from(["quick", "slow", "medium", "later", "at once"]),
    st.dictionaries(st.integers(1, 3), st.integers(0, 9)), st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.25, 2.0]),
    st.integers(0, 2),
)  # fmt: skip
def test_it_takes_as_many_as_it_says(
    name: str, slots: dict[int, int], async_free: int, async_frames: float, own_free: int
) -> None:
    room = a_room(slots, async_free=async_free, async_frames=async_frames, own_free=own_free)

    takes = room.takes(name)

    assert len(room.offer_alike(name, 1000)) == takes


@pytest.mark.parametrize(
    ("depth", "slots", "of", "left"),
    [
        (DEEP, {1: 5, 2: 3, 3: 4, 4: 9}, 4, {2: 3, 3: 4}),
        (DEEP, {1: 5, 2: 3, 3: 4}, 3, {2: 3, 3: 4}),
        (DEEP, {1: 5, 4: 0}, 4, {1: 5, 4: 0}),
        (DEEP, {1: 7}, 1, {1: 7}),
        (DEEP - 1, {1: 0, 2: 0}, 2, {1: 0, 2: 0}),
    ],
)
def test_half_of_the_slots_get_deep_frames_while_the_others_run_theirs(
    depth: int, slots: dict[int, int], of: int, left: dict[int, int]
) -> None:
    room = Room(frozenset({"add"}), frozenset(), None, slots=slots, depths={"add": depth, "slow": 1})

    room.take_turns(of)

    assert room.slots == left
