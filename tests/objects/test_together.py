"""Writers of one process share a `HEAD`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.objects.faulty import Counted, FastClock, contents, fresh, made, memory, writing
from tests.objects.scenarios import flushed
from txfiles.errors import TxFilesError
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


def test_who_gives_up_while_the_head_is_being_made_is_not_in_it() -> None:
    """Its time ended during the upload of another: it was told that nothing has happened, and nothing has."""

    class Gated(Counted):
        queued, given_up = threading.Event(), threading.Event()

        def call(self, name: str, key: str, run: Callable[[], Any]) -> Any:
            if name == "get":
                self.queued.wait(10)
            if key.startswith("pack/"):
                self.given_up.wait(10)
            return super().call(name, key, run)

    gated = Gated(made(memory()))
    root = Root(gated, "memory://group", clock=Clock())
    leader = threading.Thread(target=root.commit, args=(flushed(writing({b"a": b"1"})), None))
    leader.start()
    failures: list[TxFilesError] = []

    def in_a_hurry() -> None:
        try:
            root.commit(writing({b"b": b"1"}), 0.2)
        except TxFilesError as error:
            failures.append(error)
        gated.given_up.set()

    other = threading.Thread(target=in_a_hurry)
    other.start()
    while len(root.committer._queue) < 2:
        pass
    gated.queued.set()
    for thread in (other, leader):
        thread.join()
    assert [error.outcome for error in failures] == ["before"]
    assert contents(fresh(gated.inner)) == {b"a": b"1"}
