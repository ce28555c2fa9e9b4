"""Who is suspected to be gone because its session is: what one judge saw, look by look."""

import pytest
from tests.words import SECOND

from everbeat.decide.suspect import Watch
from everbeat.model.session import Look, Peer, Suspect

GRACE = 3 * SECOND
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def a_look(at: float, *, holds: str = "", missing: str = "", connected: str = "", beats: int = 1) -> Look:
    """Workers are letters."""
    peers = [Peer(worker_id=one, beat_seq=beats, holds=True, is_connected=True) for one in holds]
    peers += [Peer(worker_id=one, beat_seq=beats, holds=False, is_connected=one in connected) for one in missing]
    return Look(at_us=round(at * SECOND), peers=tuple(peers))


def after(*looks: Look) -> Watch:
    watch = Watch()
    for look in looks:
        watch = watch.after(look)
    return watch


def suspected(watch: Watch, grace: int = GRACE) -> str:
    return "".join(suspect.worker_id for suspect in watch.suspects(grace))


def test_who_lost_its_session_is_suspected_after_the_grace_with_its_last_beat() -> None:
    seen = after(a_look(0, holds="ab"), a_look(1, holds="a", missing="b"), a_look(3.9, holds="a", missing="b"))

    assert suspected(seen) == ""
    later = seen.after(a_look(4, holds="a", missing="b"))
    assert later.suspects(GRACE) == [Suspect(worker_id="b", beat_seq=1, missing_us=GRACE)]


def test_who_was_never_seen_with_a_session_is_not_suspected() -> None:
    assert suspected(after(a_look(0, holds="a", missing="b"), a_look(100, holds="a", missing="b"))) == ""


def test_who_returns_in_time_is_no_suspect_and_has_the_whole_grace_again() -> None:
    seen = after(a_look(0, holds="ab"), a_look(1, holds="a", missing="b"), a_look(2, holds="ab"))

    lost_again = seen.after(a_look(30, holds="a", missing="b"))

    assert suspected(lost_again) == ""
    assert suspected(lost_again.after(a_look(33, holds="a", missing="b"))) == "b"


def test_a_beat_without_a_session_shows_that_it_lives() -> None:
    lost = after(a_look(0, holds="ab"), a_look(1, holds="a", missing="b"))

    beaten = lost.after(a_look(3, holds="a", missing="b", beats=2)).after(a_look(5, holds="a", missing="b", beats=2))

    assert suspected(beaten) == ""
    assert suspected(beaten.after(a_look(6, holds="a", missing="b", beats=2))) == "b"


def test_a_session_without_its_lock_shows_that_it_is_returning() -> None:
    lost = after(a_look(0, holds="ab"), a_look(1, holds="a", missing="b"))

    assert suspected(lost.after(a_look(5, holds="a", missing="b", connected="b"))) == ""


def test_who_has_said_goodbye_or_was_declared_dead_is_forgotten() -> None:
    lost = after(a_look(0, holds="ab"), a_look(1, holds="a", missing="b"))

    assert suspected(lost.after(a_look(9, holds="a"))) == ""


def test_three_of_six_that_are_lost_together_are_left_to_their_heartbeats() -> None:
    watch = after(
        a_look(0, holds="abcdef"), a_look(1, holds="abcde", missing="f"), a_look(2, holds="abc", missing="def")
    )

    assert suspected(watch.after(a_look(60, holds="abc", missing="def"))) == ""


@pytest.mark.parametrize(("holds", "missing"), [("a", "bc"), ("abcd", "efg")], ids=["two", "less than half"])
def test_fewer_than_three_or_than_half_are_suspected(holds: str, missing: str) -> None:
    watch = after(a_look(0, holds=holds + missing), a_look(1, holds=holds, missing=missing))

    assert suspected(watch.after(a_look(4, holds=holds, missing=missing))) == missing


def test_those_who_have_returned_count_among_the_many() -> None:
    watch = after(a_look(0, holds="abcd"), a_look(1, holds="a", missing="bcd"), a_look(2, holds="abc", missing="d"))

    assert suspected(watch.after(a_look(30, holds="abc", missing="d"))) == ""


def test_losses_that_lie_apart_are_not_taken_together() -> None:
    watch = after(a_look(0, holds="abcd"), a_look(1, holds="abc", missing="d"), a_look(20, holds="ab", missing="cd"))

    apart = watch.after(a_look(40, holds="a", missing="bcd")).after(a_look(43, holds="a", missing="bcd"))

    assert sorted(suspected(apart)) == ["b", "c", "d"]


def test_one_that_was_excused_and_returned_is_suspected_when_it_is_lost_alone() -> None:
    watch = after(
        a_look(0, holds="abc"), a_look(1, missing="abc"), a_look(2, holds="abc"), a_look(60, holds="ab", missing="c")
    )

    assert suspected(watch.after(a_look(63, holds="ab", missing="c"))) == "c"


def test_a_new_session_of_the_judge_knows_nothing_of_the_one_before() -> None:
    assert suspected(after(a_look(0, missing="bc", holds="a"), a_look(60, missing="bc", holds="a"))) == ""


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.5), (10, 1.0), (26, 2.6)])
def test_the_more_workers_there_are_the_more_seldom_each_of_them_looks(workers: int, seconds: float) -> None:
    assert after(a_look(0, holds=LETTERS[:workers])).next_look_us(GRACE) == seconds * SECOND


def test_while_somebody_is_missing_and_may_return_the_others_look_closer() -> None:
    seen = after(a_look(0, holds="ab"), a_look(1, holds="a", missing="b"))

    assert seen.next_look_us(GRACE) == SECOND // 4
    assert seen.after(a_look(4, holds="a", missing="b")).next_look_us(GRACE) == SECOND // 2
