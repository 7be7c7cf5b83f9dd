"""Writers of one process share a `HEAD`."""

from __future__ import annotations

import threading

from tests.objects.faulty import Counted, FastClock, contents, fresh, made, memory, writing
from txfiles.objects.root import Root
from txfiles.objects.wait import Clock


def test_threads_of_one_process_commit_together() -> None:
    counted = Counted(made(memory()))
    root = Root(counted, "memory://group", clock=Clock())
    inner, gate = root.source.requests.put, threading.Event()

    def put(key, body, condition=None):
        gate.wait(10)
        return inner(key, body, condition)

    root.newest()
    root.source.requests.put = put  # type: ignore[method-assign]
    threads = [threading.Thread(target=lambda n=n: root.commit(writing({b"%d" % n: b"x"}))) for n in range(12)]
    for thread in threads:
        thread.start()
    while len(root.committer._queue) < 12:
        pass
    gate.set()
    for thread in threads:
        thread.join()
    assert len(contents(fresh(counted.inner))) == 12
    assert counted.counts["put"] <= 3


def test_who_was_in_the_last_head_is_waited_for_a_moment_and_no_longer() -> None:
    clock = FastClock()
    root = fresh(made(memory()), clock)
    root.commit(writing({b"a": b"1"}))
    assert clock.time == 0
    root.committer._together = 2
    root.commit(writing({b"a": b"2"}))
    assert 0 < clock.time < 0.01
