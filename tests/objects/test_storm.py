"""Writers, readers and gc at once on a store that fails a good part of all requests."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.objects.faulty import Random, contents, fresh, made, memory
from tests.objects.scenarios import BIG, Settling, collector, everything_referenced_is_readable
from txfiles.errors import SnapshotExpiredError, TxFilesError
from txfiles.objects.collect import collect
from txfiles.objects.root import Root
from txfiles.objects.wait import Clock


def storm(
    part: float, *, writers: int, rounds: int, grouped: bool, timeout: float, seed: int, store: Any = None
) -> None:
    """`part` of the requests fail. Afterwards the counter is the number of markers, every answer is true, and what
    nothing refers to is gone."""
    inner = made(memory("", MemoryStore())) if store is None else store
    faulty = Random(inner, part, seed)
    counting = Settling(timeout)
    shared = Root(faulty, "memory://storm", clock=Clock())
    failures: list[BaseException] = []
    ended = threading.Event()

    def guarded(act: Any, root: Root) -> None:
        try:
            act(root)
        except BaseException as error:
            failures.append(error)

    def writer(number: int) -> None:
        for n in range(rounds):
            root = shared if grouped else fresh(faulty, Clock())
            counting._size = BIG if n % 2 else 0
            guarded(lambda root, n=n: counting.settler(b"%d-%d" % (number, n))(root), root)

    def reader() -> None:
        while not ended.is_set():
            root = fresh(faulty, Clock())
            try:
                reading = root.reading(root.newest())
                found = {p: reading.content(p, e) for p, e in reading.scan(b"")}
            except (OSError, SnapshotExpiredError):
                continue
            except BaseException as error:
                failures.append(error)
                return
            markers = sum(path.startswith(b"marker/") for path in found)
            if int(found.get(b"counter", b"0")) != markers:
                failures.append(AssertionError("a snapshot of no committed state"))

    def gc() -> None:
        while not ended.is_set():
            try:
                collector(1)(fresh(faulty, Clock()))
            except TxFilesError as error:
                if error.outcome == "after":
                    failures.append(error)

    threads = [threading.Thread(target=writer, args=(number,)) for number in range(writers)]
    others = [threading.Thread(target=act) for act in (reader, gc)]
    for thread in (*threads, *others):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    for thread in others:
        thread.join()
    for error in failures:
        raise error
    while faulty.pending:
        faulty.part = 0
        faulty.call("land", "", lambda: None)
    counting.check(inner)
    everything_referenced_is_readable(inner)
    for _ in range(5):
        collect(fresh(inner), 0, 0)
    root = fresh(inner)
    state = root.newest()
    before = {one.key for one in inner.list("pack/")}
    needed = {f"pack/{entry.pack}" for _, entry in root.reading(state).scan(b"") if entry.pack}
    from txfiles.objects import tree

    needed |= {f"pack/{p}" for p in tree.packs_below(root.reading(state), [state.root] if state.root else [], 1 << 40)}
    assert before == needed, "garbage is left"
    assert contents(root)


@pytest.mark.parametrize("part", [0.15, 0.6])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_storm(part: float, grouped: bool) -> None:
    storm(part, writers=4, rounds=6, grouped=grouped, timeout=0.5, seed=1)


def test_a_storm_of_writers_in_a_hurry() -> None:
    storm(0.3, writers=6, rounds=8, grouped=True, timeout=0.03, seed=2)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("part", [0.0, 0.15, 0.3, 0.6])
def test_a_longer_storm(part: float, seed: int) -> None:
    storm(part, writers=8, rounds=25, grouped=seed % 2 == 0, timeout=(0.03, 0.2, 2.0)[seed % 3], seed=seed)
