"""What a store offers to asyncio: transactions with its settings, snapshots, updates, and waiting for changes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import tree
from txfiles import AsyncFileTransaction, FileStore
from txfiles._disk import system
from txfiles.errors import ConflictError, DocumentError, SnapshotExpiredError, TransactionClosedError
from txfiles.testing._faults import FaultyFS


@pytest.fixture
def store(root: Path) -> FileStore:
    store = FileStore(root, durability="process")
    put(store, a='{"a": 1}', **{"d/b": "1"})
    return store


def put(store: FileStore, **files: str) -> None:
    with store.transaction() as tx:
        for name, text in files.items():
            tx.write(name, text)


def test_a_transaction_has_the_settings_of_the_store(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    store = FileStore(watch(tmp_path / "new"), durability="process", create=True, timeout=0)
    fs: Any = FaultyFS(system.KernelFS())

    async def main() -> None:
        async with store.async_transaction() as tx:
            await tx.write("a", "1")
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.create_task(store.async_transaction().begin())
            assert time.monotonic() - began < 30

    with system.use(fs):
        asyncio.run(main())
    assert "sync_file" not in fs.trace
    assert tree(tmp_path / "new") == {"a": b"1"}


# -- update ---------------------------------------------------------------------------------------------------------


def test_update_commits_and_returns_the_value(store: FileStore, root: Path) -> None:
    async def change(tx: AsyncFileTransaction) -> str:
        await tx.write("a", "2")
        return "value"

    assert asyncio.run(store.async_update(change)) == "value"
    assert (root / "a").read_text(encoding="utf-8") == "2"


@pytest.mark.parametrize("retries", [0, 3])
def test_update_tries_again_after_a_conflict(store: FileStore, root: Path, retries: int) -> None:
    attempts = 0

    async def change(tx: AsyncFileTransaction) -> None:
        nonlocal attempts
        attempts += 1
        await tx.write("staged", "")
        raise ConflictError(f"attempt {attempts}")

    with pytest.raises(ConflictError, match=f"attempt {retries + 1}"):
        asyncio.run(store.async_update(change, retries=retries))
    assert not (root / "staged").exists()


def test_update_does_not_try_again_after_other_errors(store: FileStore) -> None:
    attempts = 0

    async def change(_: AsyncFileTransaction) -> None:
        nonlocal attempts
        attempts += 1
        raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(store.async_update(change))
    assert attempts == 1
    with pytest.raises(ValueError, match="retries"):
        asyncio.run(store.async_update(change, retries=-1))


# -- snapshots ------------------------------------------------------------------------------------------------------


def test_reads_of_one_state(store: FileStore, root: Path) -> None:
    async def main() -> None:
        async with store.async_snapshot("a") as snap:
            assert snap.root == str(root)
            assert repr(snap) == f"<AsyncSnapshot {str(root)!r} open>"
            assert snap.state_version == store.state_version()
            put(store, a='{"a": 2}')
            assert await snap.read("a") == b'{"a": 1}'
            assert await snap.read_text("a") == '{"a": 1}'
            assert await snap.read_json("a") == {"a": 1}
            with pytest.raises(SnapshotExpiredError):
                await snap.listdir()
        async with store.async_snapshot() as snap:
            assert await snap.listdir() == ["a", "d"]
            assert await snap.listdir("d") == ["b"]
            assert await snap.glob("**/*") == ["a", "d/b"]
            assert await snap.exists("d")
            assert await snap.version("no") is None
            with pytest.raises(DocumentError):
                async with AsyncFileTransaction(root) as tx:
                    await tx.write("a", "{")
                    await tx.read_json("a")
            await snap.close()
            with pytest.raises(TransactionClosedError):
                await snap.read("a")

    asyncio.run(main())


def test_optimistic(store: FileStore, root: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with store.async_snapshot() as snap:
            value = await snap.read("a")
        async with store.async_transaction(base=snap) as tx:
            await tx.write("copy", value)
        async with store.async_snapshot() as snap:
            await snap.read("a")
        put(store, a="2")
        with pytest.raises(ConflictError):
            async with store.async_transaction(base=snap) as tx:
                await tx.write("copy", "late")
        assert tx.outcome == "before"
        (tmp_path / "other").mkdir()
        async with FileStore(tmp_path / "other").async_snapshot() as other:
            with pytest.raises(ValueError, match="the snapshot is of"):
                store.async_transaction(base=other)

    asyncio.run(main())
    assert (root / "copy").read_text(encoding="utf-8") == '{"a": 1}'


def test_snapshots_make_no_file_call_in_the_loop(store: FileStore) -> None:
    threads = set()

    def plan(*_: object) -> None:
        threads.add(threading.get_ident())

    async def main() -> None:
        async with store.async_snapshot("a") as snap:
            await snap.read("d/b")
            await snap.glob("*")
        await store.async_wait_for_change(snap.state_version, timeout=0.01)

    fs: Any = FaultyFS(system.KernelFS(), plan)
    with system.use(fs):
        asyncio.run(main())
    assert threads
    assert threading.get_ident() not in threads


def test_a_snapshot_that_is_cancelled_while_it_is_entered(store: FileStore) -> None:
    """The task goes on at once; the thread closes what it has opened."""
    reached, gate = threading.Event(), threading.Event()

    def plan(*_: object) -> None:
        reached.set()
        assert gate.wait(20)

    async def enter() -> None:
        async with store.async_snapshot("a"):
            pytest.fail("it was entered")

    async def main() -> None:
        task = asyncio.create_task(enter())
        await asyncio.to_thread(reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    fs: Any = FaultyFS(system.KernelFS(), plan)
    with system.use(fs):
        asyncio.run(main())
    assert not descriptors(store.root)


def descriptors(root: str) -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if leads_to(name, root)]


def leads_to(name: str, root: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith(root)
    except FileNotFoundError:
        return False


def test_a_snapshot_whose_coroutine_is_closed(store: FileStore) -> None:
    async def reads() -> None:
        async with store.async_snapshot("a") as snap:
            await snap.read("a")
            await snap.read("d/b")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for at in range(4):
            coroutine = reads()
            for _ in range(at):
                future: Any = coroutine.send(None)
                future._asyncio_future_blocking = False
                await asyncio.wait([future])
            coroutine.close()
        await loop.shutdown_default_executor()

    asyncio.run(main())
    assert not descriptors(store.root)


# -- waiting --------------------------------------------------------------------------------------------------------


def test_waiting_for_a_change(store: FileStore) -> None:
    async def main() -> None:
        version = store.state_version()
        assert await store.async_wait_for_change(version, timeout=0.01) == version
        assert await store.async_wait_for_change(version, timeout=0) == version
        assert await store.async_wait_for_change("another") == version
        with pytest.raises(ValueError, match="timeout"):
            await store.async_wait_for_change(version, timeout=-1)
        waiting = [asyncio.create_task(store.async_wait_for_change(version)) for _ in range(100)]
        await asyncio.sleep(0.02)
        async with store.async_transaction() as tx:
            await tx.write("a", "2")
        versions = await asyncio.gather(*waiting)
        assert set(versions) == {store.state_version()} != {version}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await store.async_wait_for_change(versions[0])

    asyncio.run(main())
