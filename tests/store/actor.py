"""A process of its own on a store, for tests: does one thing, says so on stdout, and goes on when stdin says so."""

import os
import sys
import threading
from collections.abc import Callable

from everbeat.model.task import NewTask, TaskKind
from everbeat.store.sqlite.store import SQLiteStore


def say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def heard() -> str:
    return sys.stdin.readline().strip()


def send(store: SQLiteStore, name: str, threads: int, count: int) -> None:
    """`threads` senders, `count` tasks each; then how many commits that took."""
    commits: list[str] = []
    with store.database.alone() as writer:
        writer.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)

    def work(thread: int) -> None:
        for number in range(count):
            store.enqueue([NewTask(f"{name}-{thread}-{number}", b"[]", TaskKind("add"))])

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    say("ready")
    heard()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    say("commits", len(commits))


def send_for_ever(store: SQLiteStore, name: str) -> None:
    """Says each id after its enqueue has returned."""
    number = 0
    while True:
        number += 1
        stored = store.enqueue([NewTask(f"{name}-{number}-{part}", b"x" * 2_000, TaskKind("add")) for part in range(5)])
        say(*(one.id for one in stored))


def hold_write_lock(store: SQLiteStore) -> None:
    with store.database.write() as tx:
        tx.run("DELETE FROM everbeat_tasks")
        say("holding")
        heard()


def hold_turnstile(store: SQLiteStore) -> None:
    store.database.turnstile.enter()
    say("holding")
    heard()
    store.database.turnstile.leave()
    say("left")
    heard()


def leave_open(store: SQLiteStore) -> None:
    """Uses everything and closes nothing, with a thread that waits for its turn."""
    store.enqueue([NewTask("left-open", b"[]", TaskKind("add"))])
    store.listen("left-open")
    store.counts()
    say("done")


DEEDS: dict[str, Callable[..., None]] = {
    "send": lambda store, name, threads, count: send(store, name, int(threads), int(count)),
    "send-for-ever": send_for_ever,
    "hold-write-lock": hold_write_lock,
    "hold-turnstile": hold_turnstile,
    "leave-open": leave_open,
}

if __name__ == "__main__":
    path, deed, *arguments = sys.argv[1:]
    DEEDS[deed](SQLiteStore(path, durability="normal" if deed == "send" else "full"), *arguments)
