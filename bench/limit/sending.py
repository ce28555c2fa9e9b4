"""Rows that are sent: one by one, by threads that wait for their commit, by processes, all at once."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count as numbers
from typing import Any

from bench.limit.writes import Opening, Writer, ids

WARM_UP = 20
SENDERS = 4
PROCESS_SECONDS = 120


def single(writer: Writer, count: int) -> float:
    given = ids(count)
    return per_second(count, lambda: [writer.insert([one]) for one in given])


def at_once(writer: Writer, count: int) -> float:
    given = ids(count)
    return per_second(count, lambda: writer.insert(given))


def unique(writer: Writer, count: int, keys: "numbers[int]") -> float:
    given = ids(count)
    own = [f"{next(keys)}/{number}" for number in range(count)]
    return per_second(count, lambda: writer.insert(given, own))


def apart(writers: Sequence[Writer], count: int) -> float:
    """So many rows in all, by a thread for each connection."""
    shares = [ids(count // len(writers)) for _ in writers]

    def send(writer: Writer, mine: Sequence[str]) -> None:
        for one in mine:
            writer.insert([one])

    work = [lambda pair=pair: send(*pair) for pair in zip(writers, shares, strict=True)]
    return per_second(sum(map(len, shares)), lambda: together(work))


def grouped(writer: Writer, threads: int, count: int) -> tuple[float, float]:
    """So many rows in all, by threads that hand them to one that commits. And how many were in a commit."""
    shares = [ids(count // threads) for _ in range(threads)]
    come = threading.Condition()
    waiting: list[tuple[str, threading.Lock]] = []
    commits = 0

    def commit() -> None:
        nonlocal commits
        left = threads * (count // threads)
        while left:
            with come:
                while not waiting:
                    come.wait()
                group = waiting[:]
                waiting.clear()
            writer.insert([one for one, _ in group])
            commits += 1
            left -= len(group)
            for _, done in group:
                done.release()

    def send(mine: Sequence[str]) -> None:
        done = threading.Lock()
        done.acquire()
        for one in mine:
            with come:
                waiting.append((one, done))
                come.notify()
            done.acquire()

    work = [commit, *(lambda mine=mine: send(mine) for mine in shares)]
    sent = sum(map(len, shares))
    rate = per_second(sent, lambda: together(work))
    return rate, sent / commits


def by_processes(opening: Opening, count: int, samples: int) -> list[float]:
    """So many rows by each of some processes; from the first begin to the last end."""
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(SENDERS), context.Queue()
    senders = [context.Process(target=_process, args=(opening, count, samples, barrier, told)) for _ in range(SENDERS)]
    for sender in senders:
        sender.start()
    try:
        times: dict[int, list[tuple[int, int]]] = {}
        for _ in range(SENDERS * samples):
            sample, began, ended = told.get(timeout=PROCESS_SECONDS)
            times.setdefault(sample, []).append((began, ended))
    finally:
        for sender in senders:
            sender.kill()
            sender.join()
    return [SENDERS * count * 1e9 / (max(e for _, e in one) - min(b for b, _ in one)) for one in times.values()]


def _process(opening: Opening, count: int, samples: int, barrier: Any, told: Any) -> None:
    writer = opening()
    single(writer, WARM_UP)
    for sample in range(samples):
        given = ids(count)
        barrier.wait()
        began = time.monotonic_ns()
        for one in given:
            writer.insert([one])
        told.put((sample, began, time.monotonic_ns()))


def together(work: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def per_second(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)
