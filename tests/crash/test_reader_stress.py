"""Readers and writers at full speed: every file carries the number of the commit that wrote it."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.procs import child
from txfiles import FileStore, Snapshot
from txfiles.errors import SnapshotExpiredError

SECONDS = 60 if DEEP else 1.5
CHANGE = """
def change(tx):
    number = int(tx.read_text(names[0])) + 1
    for name in names if number % 5 else names[:3]:
        tx.write(name, str(number))
    if number % 5:
        for extra in tx.glob("extra/*"):
            tx.delete(extra)
        tx.write(f"extra/{number}", str(number))
    return number
"""
SETUP = """
from txfiles import FileStore
from txfiles.errors import SnapshotExpiredError
root, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
names = [f"{n % 3}/{n}" for n in range(count)]
store = FileStore(root, durability=sys.argv[4], timeout=60)
until = time.monotonic() + seconds
"""
WRITER = (
    SETUP
    + CHANGE
    + """
done = 0
while time.monotonic() < until:
    with store.transaction() as tx:
        change(tx)
    done += 1
    if done == 1:
        print("begun")
print(done)
"""
)


def prepare(root: Path, count: int) -> list[str]:
    names = [f"{n % 3}/{n}" for n in range(count)]
    with FileStore(root, durability="process").transaction() as tx:
        for name in names:
            tx.write(name, "1")
        tx.write("extra/1", "1")
    return names


def check(snap: Snapshot, names: list[str]) -> int:
    """The number of the state, which all files agree on; every fifth commit writes the first three only."""
    numbers = [int(snap.read(name)) for name in names]
    last = numbers[0]
    rest = last if last % 5 else last - 1
    assert numbers == [last] * 3 + [rest] * (len(names) - 3)
    return last


def read_pinned(store: FileStore, names: list[str]) -> int:
    with store.snapshot(*names) as snap:
        return check(snap, names)


def read_all(store: FileStore, names: list[str]) -> int:
    """Without pins, names and contents; tried again when it expires."""
    while True:
        with store.snapshot() as snap:
            try:
                number = check(snap, names)
                rest = number if number % 5 else number - 1
                assert snap.listdir("extra") == [str(rest)]
                assert snap.glob("extra/*") == [f"extra/{rest}"]
                assert snap.exists(f"extra/{rest}")
                assert not snap.exists(f"extra/{number + 1}")
                return number
            except SnapshotExpiredError:
                continue


def read_for(read: Callable[[FileStore, list[str]], int], store: FileStore, names: list[str], seconds: float) -> int:
    """Read until the time is over, the numbers never going back; how many times."""
    until, last, times = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        number = read(store, names)
        assert number >= last, "a reader went back in time"
        last = number
        times += 1
    return times


@pytest.mark.parametrize("durability", ["full", "journal", "process"])
@pytest.mark.parametrize("count", [4, 100])
@pytest.mark.parametrize("read", [read_pinned, read_all])
def test_processes(root: Path, read: Callable[[FileStore, list[str]], int], count: int, durability: str) -> None:
    names = prepare(root, count)
    store = FileStore(root, timeout=60)
    with (
        child(WRITER, root, count, SECONDS, durability) as one,
        child(WRITER, root, count, SECONDS, durability) as other,
    ):
        times = read_for(read, store, names, SECONDS)
        written = [int(process.finish(90).check().stdout.split()[-1]) for process in (one, other)]
    assert times > 3, f"{times} reads beside {written} commits"
    assert min(written) > 0
    assert read_all(store, names) == 1 + sum(written)


@pytest.mark.parametrize("count", [4, 100])
def test_threads(root: Path, count: int) -> None:
    names = prepare(root, count)
    store = FileStore(root, durability="process", timeout=60)
    until = time.monotonic() + SECONDS
    failures: list[BaseException] = []
    times: list[int] = []

    def write() -> None:
        while time.monotonic() < until:
            with store.transaction() as tx:
                number = int(tx.read_text(names[0])) + 1
                for name in names if number % 5 else names[:3]:
                    tx.write(name, str(number))
                if number % 5:
                    for extra in tx.glob("extra/*"):
                        tx.delete(extra)
                    tx.write(f"extra/{number}", str(number))

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    works: list[Callable[[], object]] = [write, write]
    for read in (read_pinned, read_all):
        works.append(lambda read=read: times.append(read_for(read, store, names, SECONDS)))  # type: ignore[misc]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert min(times) > 1


def test_writers_are_killed_and_readers_do_not_notice(root: Path) -> None:
    names = prepare(root, 4)
    store = FileStore(root, timeout=60)
    until = time.monotonic() + SECONDS
    last = kills = 0
    while time.monotonic() < until or last < 2 or kills < 2:
        with child(WRITER, root, 4, 60, "process") as writer:
            writer.expect("begun")
            end = time.monotonic() + 0.01 * (kills % 10)
            while time.monotonic() < end:
                number = (read_pinned if kills % 2 else read_all)(store, names)
                assert number >= last
                last = number
            writer.kill()
            kills += 1
            for read in (read_pinned, read_all):
                number = read(store, names)
                assert number >= last
                last = number
        last, before = read_all(store, names), last  # the writer may have died after those reads only
        assert last >= before
    assert last > 1
    store.recover()
    assert read_all(store, names) == last


OF_ALL_LEVELS = (
    """
import random
from txfiles import FileStore, recover
root = sys.argv[1]
names = [f"{n % 3}/{n}" for n in range(4)]
stores = [FileStore(root, durability=level, timeout=60) for level in ("journal", "journal", "full", "process")]
"""
    + CHANGE
    + """
print(stores[0].update(change))
while True:
    store, dice = random.choice(stores), random.random()
    if dice < 0.04:
        store.checkpoint()
    elif dice < 0.08:
        store.remove_log()
    elif dice < 0.12:
        recover(root)
    else:
        print(store.update(change))
"""
)


def test_writers_of_all_levels_are_killed_and_nobody_notices(root: Path) -> None:
    """Nothing is mixed, lost, or raised: who meets a recovery has met no conflict."""
    names = prepare(root, 4)
    store = FileStore(root, timeout=60)
    told, dice = [], random.Random(1)
    with ExitStack() as stack:
        writers = [stack.enter_context(child(OF_ALL_LEVELS, root)) for _ in range(3)]
        for _ in range(200 if DEEP else 6):
            for read in (read_pinned, read_all):
                read_for(read, store, names, dice.uniform(0, 0.3))
            one = writers.pop(0)
            one.expect("")
            one.kill()
            told.append(one.finish())
            writers.append(stack.enter_context(child(OF_ALL_LEVELS, root)))
        for one in writers:
            one.expect("")
            one.kill()
            told.append(one.finish())
    numbers = [int(number) for one in told for number in one.stdout.split()]
    assert not [one for one in told if "Traceback" in one.stderr]
    assert len(numbers) == len(set(numbers))
    store.recover()
    assert read_all(store, names) >= max(numbers)


def test_writers_are_not_held_up_by_readers(root: Path) -> None:
    """A reader that stands still with an open snapshot holds nothing that a writer needs."""
    names = prepare(root, 4)
    store = FileStore(root, durability="process", timeout=0)
    with store.snapshot(*names) as snap, store.snapshot() as other:
        assert check(snap, names) == 1
        pid = os.fork()
        if pid == 0:
            try:
                for number in range(2, 20):
                    with store.transaction() as tx:
                        for name in names:
                            tx.write(name, str(number))
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert check(snap, names) == 1
        with pytest.raises(SnapshotExpiredError):
            other.read(names[0])
