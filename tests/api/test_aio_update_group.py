"""`FileStore.async_update(group=True)`: tasks that wait for one another share a commit."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_update_group import commits
from tests.api.test_update_group import write as put
from tests.support.boundary import nth_call, tree
from txfiles import AsyncFileTransaction, FileStore
from txfiles._disk import system
from txfiles.errors import (
    CommitError,
    ConflictError,
    LockTimeoutError,
    NestedTransactionError,
    TransactionClosedError,
)

Change = Callable[[AsyncFileTransaction], Awaitable[Any]]


@pytest.fixture
def store(root: Path) -> FileStore:
    store = FileStore(root, durability="process", timeout=60)
    with store.transaction():
        pass  # so that there is a private directory
    return store


def write(name: str, text: str = "1") -> Change:
    async def change(tx: AsyncFileTransaction) -> None:
        await tx.write(name, text)

    return change


def update(store: FileStore, change: Change, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(store.async_update(change, group=True, **options))


def together(store: FileStore, **changes: Change) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        tasks = [update(store, change) for change in changes.values()]
        return dict(zip(changes, await asyncio.gather(*tasks, return_exceptions=True), strict=True))

    return asyncio.run(main())


def test_those_who_wait_share_a_commit_in_their_order(root: Path, store: FileStore) -> None:
    def append(letter: str) -> Change:
        async def change(tx: AsyncFileTransaction) -> str:
            text = (await tx.read_text("log") if await tx.exists("log") else "") + letter
            await tx.write("log", text)
            return text

        return change

    results = together(store, **{letter: append(letter) for letter in "abcdefg"})
    assert results == {"abcdefg"[n]: "abcdefg"[: n + 1] for n in range(7)}
    assert commits(store) == 1


def test_a_group_is_at_most_64(store: FileStore) -> None:
    results = together(store, **{f"{n}": write(f"{n}") for n in range(70)})
    assert set(results.values()) == {None}
    assert commits(store) == 2


def test_an_exception_undoes_its_own_part_and_reaches_its_own_caller(root: Path, store: FileStore) -> None:
    async def fail(tx: AsyncFileTransaction) -> None:
        await tx.write("a", "lost")
        raise KeyError

    async def leave_open(tx: AsyncFileTransaction) -> None:
        file = await tx.open("b", "w")
        await file.write("lost")

    async def end(tx: AsyncFileTransaction) -> None:
        await tx.rollback()

    results = together(store, one=write("a"), fails=fail, leaves=leave_open, ends=end, two=write("c"))
    assert isinstance(results.pop("fails"), KeyError)
    assert isinstance(results.pop("leaves"), CommitError)
    assert isinstance(results.pop("ends"), TransactionClosedError)
    assert results == {"one": None, "two": None}
    assert tree(root) == {"a": b"1", "c": b"1"}
    assert commits(store) == 1


def test_a_failed_commit_reaches_all_each_with_an_error_of_its_own(root: Path, store: FileStore) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fs: Any = nth_call("rename", 1, full)
    with system.use(fs):
        results = together(store, one=write("a"), two=write("b"), three=write("c"))
    errors = list(results.values())
    assert [type(error) for error in errors] == [CommitError] * 3
    assert len(set(map(id, errors))) == 3
    assert tree(root) == {}


def test_who_conflicts_tries_again_alone(root: Path, store: FileStore) -> None:
    attempts: list[int] = []

    async def conflicts(tx: AsyncFileTransaction) -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConflictError("again")
        await tx.write("b", "2")
        return "at last"

    assert together(store, one=write("a"), two=conflicts) == {"one": None, "two": "at last"}
    assert tree(root) == {"a": b"1", "b": b"2"}


def test_a_function_runs_in_the_context_and_task_of_its_caller(store: FileStore) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")

    async def change(tx: AsyncFileTransaction) -> tuple[str, str]:
        task = asyncio.current_task()
        assert task is not None
        return who.get(), task.get_name()

    async def one(name: str) -> Any:
        who.set(name)
        return await store.async_update(change, group=True)

    async def main() -> list[Any]:
        return await asyncio.gather(*(asyncio.create_task(one(name), name=name) for name in "abc"))

    assert asyncio.run(main()) == [(name, name) for name in "abc"]


def test_callbacks_are_their_callers_own(store: FileStore) -> None:
    called: list[str] = []

    def named(name: str) -> Change:
        async def change(tx: AsyncFileTransaction) -> None:
            await tx.write(name, "1")
            await tx.on_commit(lambda: called.append(name))
            await tx.on_rollback(lambda: called.append("no " + name))
            if name == "b":
                raise KeyError
            if name == "c":
                await tx.on_commit(lambda: 1 / 0)

        return change

    results = together(store, **{name: named(name) for name in "abcd"})
    assert [type(results[name]) for name in "abcd"] == [type(None), KeyError, ZeroDivisionError, type(None)]
    assert sorted(called) == ["a", "c", "d", "no b"]


@pytest.mark.parametrize("when", ["waiting", "in its function"])
def test_who_is_cancelled_leaves_alone(root: Path, store: FileStore, when: str) -> None:
    async def main() -> None:
        started, never = asyncio.Event(), asyncio.Event()

        async def slow(tx: AsyncFileTransaction) -> None:
            await tx.write("slow", "1")
            started.set()
            await never.wait()

        async def first(tx: AsyncFileTransaction) -> None:
            await tx.write("first", "1")
            if when == "waiting":
                victim.cancel()

        before = update(store, first)
        victim = update(store, slow)
        after = update(store, write("after"))
        if when == "in its function":
            await started.wait()
            victim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim
        await before
        await after

    asyncio.run(main())
    assert tree(root) == {"first": b"1", "after": b"1"}
    assert commits(store) == 1


def test_a_commit_that_has_begun_is_finished(root: Path, store: FileStore) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = update(store, write("a"))
        other = update(store, write("b"))
        fs: Any = nth_call("rename", 1, lambda: loop.call_soon_threadsafe(task.cancel))
        with system.use(fs):
            with pytest.raises(asyncio.CancelledError):
                await task
            assert tree(root) == {"a": b"1", "b": b"1"}
            await other

    asyncio.run(main())


def test_who_is_cancelled_while_its_part_ends_has_committed(root: Path, store: FileStore) -> None:
    called: list[str] = []

    async def main() -> None:
        async def change(tx: AsyncFileTransaction) -> None:
            await tx.on_commit(lambda: called.append("committed"))
            await tx.on_rollback(lambda: called.append("rolled back"))
            await tx.write("a", "1")
            asyncio.get_running_loop().call_soon(task.cancel)

        task = update(store, change)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert called == ["committed"]
    assert tree(root) == {"a": b"1"}


def test_whose_part_cannot_begin_keeps_nobody_waiting(
    root: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = AsyncFileTransaction._part
    failed: list[AsyncFileTransaction] = []

    def part(tx: AsyncFileTransaction) -> Any:
        if not failed:
            failed.append(tx)
            raise TransactionClosedError("never")
        return begin(tx)

    monkeypatch.setattr(AsyncFileTransaction, "_part", part)
    results = together(store, fails=write("a"), other=write("b"))
    assert isinstance(results["fails"], TransactionClosedError)
    assert results["other"] is None
    assert tree(root) == {"b": b"1"}


def test_a_callback_that_raises_what_no_future_takes(root: Path, store: FileStore) -> None:
    async def change(tx: AsyncFileTransaction) -> None:
        await tx.on_commit(lambda: next(iter(())))
        await tx.write("a", "1")

    results = together(store, stops=change, other=write("b"))
    assert isinstance(results["stops"], RuntimeError)
    assert results["other"] is None
    assert tree(root) == {"a": b"1", "b": b"1"}


def test_a_task_that_has_a_transaction_is_refused(root: Path, store: FileStore) -> None:
    async def nested(tx: AsyncFileTransaction) -> None:
        await tx.write("a", "1")
        for begin in (store.async_transaction().begin, lambda: store.async_update(write("b"), group=True)):
            with pytest.raises(NestedTransactionError):
                await begin()
        with pytest.raises(NestedTransactionError):
            store.update(put("b"))

    async def main() -> None:
        await store.async_update(nested, group=True)
        async with store.async_transaction():
            with pytest.raises(NestedTransactionError):
                await store.async_update(write("b"), group=True)

    asyncio.run(main())
    assert tree(root) == {"a": b"1"}


def test_savepoints_and_files_of_a_function(root: Path, store: FileStore) -> None:
    async def change(tx: AsyncFileTransaction) -> None:
        await tx.write("a", "1")
        with pytest.raises(KeyError):
            async with tx.savepoint():
                await tx.write("a", "2")
                raise KeyError
        async with tx.open("b", "w") as file:
            await file.write("1")

    together(store, one=change)
    assert tree(root) == {"a": b"1", "b": b"1"}


def test_who_waits_too_long_for_the_lock(root: Path, store: FileStore) -> None:
    impatient = FileStore(root, durability="process", timeout=0.1)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool, store.transaction():
        results = pool.submit(together, impatient, one=write("a"), two=write("b")).result()
        assert time.monotonic() - began < 30
    assert [type(error) for error in results.values()] == [LockTimeoutError] * 2


def test_who_waits_too_long_for_another(root: Path) -> None:
    store = FileStore(root, durability="process", timeout=0.2)

    async def main() -> None:
        go_on = asyncio.Event()

        async def slow(tx: AsyncFileTransaction) -> None:
            await tx.write("a", "1")
            await go_on.wait()

        first = update(store, slow)
        with pytest.raises(LockTimeoutError, match=r"waited 0\.2 s"):
            await update(store, write("b"))
        go_on.set()
        await first

    asyncio.run(main())
    assert tree(root) == {"a": b"1"}


def test_an_abandoned_loop_leaves_nothing(root: Path, store: FileStore) -> None:
    """`asyncio.run` cancels what is left, the task that drives among it."""

    async def main() -> None:
        started = asyncio.Event()

        async def slow(tx: AsyncFileTransaction) -> None:
            await tx.write("a", "1")
            started.set()
            await asyncio.Event().wait()

        update(store, slow)
        update(store, write("b"))
        await started.wait()

    asyncio.run(main())
    assert tree(root) == {}
    together(store, one=write("c"))
    assert tree(root) == {"c": b"1"}
