"""Over a real connection to a server that misbehaves by plan: every answer is true, and nothing is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.objects.faulty import contents, made, writing
from tests.support.scripted import scripted, store_on
from txfiles.errors import CommitError, CommitOutcomeUnknownError
from txfiles.objects.requests import StoreRequests
from txfiles.objects.root import Root
from txfiles.objects.state import HEAD
from txfiles.objects.wait import Clock

BIG = b"x" * 5000
FAULTS = [
    "500 before", "500 after", "409 before", "412 before", "412 after", "429 before", "503 before", "503 after",
    "drop before", "drop after", "twice",
]  # fmt: skip
RETRIES = pytest.mark.parametrize("retries", [0, None], ids=["no retries", "obstore's retries"])


def root_on(store: Any) -> Root:
    return Root(StoreRequests(store, "p/"), "s3://test/p", clock=Clock(), remote=True)


def new_root_on(store: Any) -> Root:
    made(StoreRequests(store, "p/"))
    return root_on(store)


@RETRIES
def test_a_root_is_made(retries: int | None) -> None:
    with scripted() as server:
        root_on(store_on(server, retries=retries)).create()
        assert root_on(store_on(server, retries=retries)).newest().seq == 0


@RETRIES
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_fault_at_the_head(retries: int | None, fault: str, times: int) -> None:
    left: Iterator[str] = iter(())

    def plan(_: int, method: str, key: str) -> str | None:
        return next(left, None) if method == "PUT" and key == f"p/{HEAD}" else None

    with scripted(plan) as server:
        root = new_root_on(store_on(server, retries=retries))
        left = itertools.repeat(fault, times)
        root.commit(writing({b"a": b"new", b"big": BIG}), timeout=30.0)
        assert contents(root_on(store_on(server, retries=retries))) == {b"a": b"new", b"big": BIG}
        assert root.newest().seq == 1, "committed once"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_each_request_in_turn(fault: str) -> None:
    """All requests of a commit, of gc and of a read; they are as many as without a fault, and those that repeat."""
    only_on_conditions = fault.startswith("4") and not fault.startswith("429")
    for nth in range(8):
        first: list[int] = []

        def plan(number: int, method: str, key: str, nth: int = nth, first: list[int] = first) -> str | None:
            meant = key == f"p/{HEAD}" and method == "PUT" if only_on_conditions else bool(key)
            return fault if first and number - first[0] == nth and meant else None

        with scripted(plan) as server:
            root = new_root_on(store_on(server, retries=0))
            first.append(server.number)
            root.commit(writing({b"a": b"new", b"big": BIG}), timeout=30.0)
            fresh = root_on(store_on(server, retries=0))
            assert contents(fresh) == {b"a": b"new", b"big": BIG}
            assert fresh.newest().seq == 1


@RETRIES
def test_a_head_that_hangs_is_unknown_and_can_be_settled(retries: int | None) -> None:
    """The request took effect, nobody was told, and every further one hangs, too."""
    hangs = False

    def plan(_: int, method: str, key: str) -> str | None:
        return "hang" if hangs else None

    with scripted(plan) as server:
        root = new_root_on(store_on(server, retries=retries, timeout="1s"))
        root.newest()
        change = writing({b"a": b"new"})
        hangs = True
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            root.commit(change, timeout=1.0)
        assert caught.value.transaction_id == change.tid
        hangs = False
        server.released.set()
        assert root_on(store_on(server, retries=retries)).is_committed(change.tid)


def test_wrong_credentials_are_an_error_before_anything() -> None:
    denied = False

    def plan(_: int, method: str, key: str) -> str | None:
        return "403 before" if denied and method == "PUT" else None

    with scripted(plan) as server:
        root = new_root_on(store_on(server, retries=0))
        denied = True
        with pytest.raises(CommitError) as caught:
            root.commit(writing({b"a": b"new"}), timeout=5.0)
        assert caught.value.outcome == "before"
        assert "testtest" not in str(caught.value)
        denied = False
        assert not root.is_committed("0" * 32)


def test_a_store_that_is_down_is_an_error_before_anything() -> None:
    down = False

    def plan(*_: object) -> str | None:
        return "503 before" if down else None

    with scripted(plan) as server:
        root = new_root_on(store_on(server, retries=0))
        down = True
        with pytest.raises((CommitError, CommitOutcomeUnknownError)) as caught:
            root.commit(writing({b"big": BIG}), timeout=0.5)
        down = False
        outcome = "after" if root.is_committed("0" * 32) else "before"
        assert caught.value.outcome in ("unknown", outcome)
        assert contents(root) == {}
