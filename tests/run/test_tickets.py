"""Tickets: each is drawn once, by the child or by the supervisor, and finds the bytes of its task and of no other."""

import os

import msgspec
import pytest

from everbeat.run.tickets import AT_ONCE, Intake, Tickets
from everbeat.run.wire import Inbox, Interrupt, InterruptKind, Job, Run, ToChild, channel, encode, send


def job(seq: int, *, entry: int = 0) -> Job:
    return Job(entry, seq, 1, f"id-{seq}", "noop", 1, 0, b"{}")


class Ends:
    def __init__(self) -> None:
        self.tasks, theirs = channel()
        self.tickets = Tickets()
        self.heeded: list[Interrupt] = []
        self.intake = Intake(Inbox(theirs, msgspec.msgpack.Decoder(ToChild)), self.tickets.fd, self.heeded.append)

    def send(self, *jobs: Job) -> None:
        assert send(self.tasks, encode(Run(self.tickets.next, list(jobs))), wait=False)
        assert self.tickets.issue(jobs)

    def drawn(self, most: int) -> list[int]:
        return [one.seq for one in self.intake.draw(most)]


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_what_the_child_has_not_drawn_is_the_supervisors(ends: Ends) -> None:
    ends.send(job(1), job(2), job(3))

    assert ends.drawn(1) == [1]
    assert ends.tickets.draw_all() == [(2, 1), (3, 1)]
    assert ends.drawn(1) == []
    assert ends.tickets.draw_all() == []


def test_bytes_of_what_was_taken_back_are_passed_over(ends: Ends) -> None:
    ends.send(job(1), job(2))
    assert ends.drawn(1) == [1]
    ends.tickets.draw_all()
    ends.send(job(3), job(4))
    ends.tickets.draw_all()
    ends.send(job(5))

    assert ends.drawn(9) == [5]


def test_a_task_that_comes_back_has_its_new_entry(ends: Ends) -> None:
    ends.send(job(1), job(2, entry=7))
    assert ends.drawn(1) == [1]
    ends.tickets.draw_all()
    ends.send(job(2, entry=8))

    assert [one.entry for one in ends.intake.draw(9)] == [8]


def test_bytes_without_a_ticket_are_nobodys(ends: Ends) -> None:
    """The queue of tickets is full: the tasks were sent for nothing."""
    many = [job(seq) for seq in range(AT_ONCE)]
    while ends.tickets.issue(many):
        continue
    assert not ends.tickets.issue([job(-1 % 2**63)])

    waiting = ends.tickets.draw_all()

    assert len(waiting) % AT_ONCE == 0
    assert {seq for seq, _ in waiting} == set(range(AT_ONCE))
    ends.send(job(5))
    assert ends.drawn(9) == [5]


def test_an_interrupt_is_heeded_after_the_task_that_came_before_it(ends: Ends) -> None:
    ends.send(job(1))
    send(ends.tasks, encode(Interrupt(1, 1, InterruptKind.CANCEL)), wait=False)
    ends.send(job(2))
    heeded_before = {one.seq: len(ends.heeded) for one in ends.intake.draw(9)}

    assert heeded_before == {1: 0, 2: 1}


def test_what_was_issued_is_drawn_before_the_end(ends: Ends) -> None:
    ends.send(job(1))
    ends.tickets.end()

    assert [one.seq for one in ends.intake.jobs()] == [1]
    with pytest.raises(EOFError):
        ends.drawn(1)
    assert ends.tickets.draw_all() == []


def test_two_processes_never_draw_the_same_ticket(ends: Ends) -> None:
    rounds, size = 300, 64
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid == 0:
        ends.tickets.end()
        for one in ends.intake.jobs():
            os.write(mouth, one.seq.to_bytes(4, "little"))
        os._exit(0)
    os.close(mouth)
    back: set[int] = set()
    for number in range(rounds):
        ends.send(*(job(number * size + place) for place in range(size)))
        back |= {seq for seq, _ in ends.tickets.draw_all()}
    ends.tickets.end()
    with open(ear, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    ran = [int.from_bytes(said[at : at + 4], "little") for at in range(0, len(said), 4)]

    assert len(ran) == len(set(ran))
    assert back.isdisjoint(ran)
    assert back | set(ran) == set(range(rounds * size))


def test_the_channel_of_a_supervisor_that_is_gone_ends(ends: Ends) -> None:
    ends.tickets.end()

    assert list(ends.intake.jobs()) == []
