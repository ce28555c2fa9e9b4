"""Whether a store is still the one that a worker entered."""

from dataclasses import replace

from everbeat.decide.standing import doubt
from everbeat.model.worker import Standing

FOUND = Standing(store_id="a", beat_seq=7)


def test_a_store_that_knows_all_that_was_acknowledged_is_the_same() -> None:
    assert doubt(FOUND, store_id="a", seen_beat=7) is None
    assert doubt(FOUND, store_id="a", seen_beat=6) is None


def test_a_store_that_knows_less_or_is_another_is_doubted_and_the_reason_is_said() -> None:
    reasons = [
        doubt(FOUND, store_id="a", seen_beat=8),
        doubt(replace(FOUND, beat_seq=None), store_id="a", seen_beat=0),
        doubt(FOUND, store_id="b", seen_beat=0),
        doubt(replace(FOUND, is_same_file=False), store_id="a", seen_beat=7),
    ]

    assert reasons == [
        "it is older than it was (beat 7 of this worker is its last, 8 was acknowledged)",
        "it does not know this worker",
        "it is another store (its id is a, and was b)",
        "the file was moved away, or another file or server is in its place",
    ]
