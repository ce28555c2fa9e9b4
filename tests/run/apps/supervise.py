"""A supervisor to be killed: three children, each busy in its own way. Writes the fork server's pid to stdout."""

import selectors
import sys
from pathlib import Path

from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.run.crew import Crew
from everbeat.run.journal import Journal
from everbeat.run.lockfile import WorkerLock, this_host
from everbeat.run.news import ChildReady
from everbeat.run.wire import ChildKind


def main(directory: Path, fifos: list[str]) -> None:
    host = this_host()
    lock = WorkerLock.create(directory, "victim")
    journal = Journal.create(directory, "victim", boot_id=host.boot_id, slots=3, entries=8)
    crew = Crew(target="basic:app", imports=())
    crew.equip(lock, journal, beat_seconds=1.0)
    crew.start()
    work = [("hold_gil", ChildKind.SYNC), ("say_and_sleep", ChildKind.SYNC), ("await_ever", ChildKind.ASYNC)]
    for slot, (_, kind) in enumerate(work):
        crew.spawn(slot, kind)
    with selectors.DefaultSelector() as selector:
        selector.register(crew, selectors.EVENT_READ)
        while True:
            selector.select(1.0)
            for news in crew.collect():
                if isinstance(news, ChildReady):
                    claim = Claim(
                        seq=news.slot, id=f"t{news.slot}", name=work[news.slot][0], queue="default", fence=1,
                        worker_id="victim",
                        status=TaskStatus.RUNNING, attempt=1, free_attempts=0, crash_count=0, lost_count=0,
                        dispatch_count=0, solo=False, policy=None, args=f'["{fifos[news.slot]}"]'.encode(),
                    )  # fmt: skip
                    crew.send(news.slot, [(journal.allocate(), claim)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
