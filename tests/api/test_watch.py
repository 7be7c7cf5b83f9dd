"""`FileStore.state_version` and `FileStore.wait_for_change`."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from tests.support.boundary import killed
from tests.support.procs import child
from txfiles import FileStore, FileTransaction
from txfiles._disk import system
from txfiles.testing._faults import FaultyFS


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root, durability="process", timeout=5)


def put(store: FileStore, text: str = "x") -> None:
    with store.transaction() as tx:
        tx.write("a", text)


def test_every_commit_has_a_version(store: FileStore) -> None:
    versions = [store.state_version()]
    for _ in range(50):
        put(store)
        versions.append(store.state_version())
        assert store.state_version() == versions[-1]
    assert len(set(versions)) == 51
    assert json.loads(json.dumps(versions)) == versions


def test_nothing_else_changes_it(root: Path, store: FileStore) -> None:
    put(store)
    version = store.state_version()
    with store.transaction() as tx:
        tx.write("a", "staged")
        assert store.state_version() == version
        tx.rollback()
    with store.transaction() as tx:
        tx.read("a")
    (root / "a").write_text("by another program", encoding="utf-8")
    store.recover()
    assert FileStore(root).state_version() == version


def test_it_is_that_of_the_snapshot(store: FileStore) -> None:
    with store.snapshot() as empty:
        assert empty.state_version == store.state_version()
    put(store)
    with store.snapshot() as snap, store.snapshot("a") as pinned:
        version = store.state_version()
        put(store)
        assert snap.state_version == pinned.state_version == version != store.state_version()
        assert snap.exists("b") is False
        assert snap.state_version == version
    assert empty.state_version != snap.state_version


def test_a_state_that_is_read_through_the_journal_has_the_version_that_it_will_have(
    root: Path, store: FileStore
) -> None:
    put(store)
    before = store.state_version()
    killed(lambda: put(store), "rename", 2)

    def forbid(_: int, name: str) -> None:
        if name == "open_lock":
            raise PermissionError(13, "not allowed")

    with system.use(FaultyFS(system.KernelFS(), forbid)), FileStore(root, timeout=5).snapshot("a") as snap:  # type: ignore[arg-type]
        version = snap.state_version
    assert store.state_version() == before != version
    assert store.recover().rolled_forward
    assert store.state_version() == version


def test_it_makes_nothing_and_needs_a_root(root: Path, store: FileStore, tmp_path: Path) -> None:
    assert store.state_version() == FileStore(root).state_version()
    assert os.listdir(root) == []
    with pytest.raises(FileNotFoundError):
        FileStore(tmp_path / "missing").state_version()
    put(store)
    version = store.state_version()
    shutil.rmtree(root / ".txfiles")
    assert store.state_version() != version


def test_waiting(root: Path, store: FileStore) -> None:
    put(store)
    version = store.state_version()
    began = time.monotonic()
    assert store.wait_for_change(version, 0) == version
    assert store.wait_for_change(version, 0.1) == version
    assert 0.1 <= time.monotonic() - began < 20
    timer = threading.Timer(0.1, put, (store,))
    timer.start()
    new = store.wait_for_change(version, 10)
    assert new == store.state_version() != version
    timer.join()
    assert store.wait_for_change(version) == new
    assert store.wait_for_change("what I had in mind") == new
    for bad in (-1, float("nan"), "1"):
        with pytest.raises(ValueError, match="timeout"):
            store.wait_for_change(version, bad)  # type: ignore[arg-type]


def test_waiting_for_the_first_commit(root: Path, store: FileStore) -> None:
    version = store.state_version()
    timer = threading.Timer(0.05, put, (store,))
    timer.start()
    assert store.wait_for_change(version, 10) != version
    timer.join()


def test_waiting_takes_no_lock_and_hardly_any_time(root: Path) -> None:
    with FileTransaction(root, durability="process") as tx:
        tx.write("a", "x")
        store = FileStore(root, timeout=0)
        version = store.state_version()
        used = time.process_time()
        assert store.wait_for_change(version, 1) == version
        assert time.process_time() - used < 0.1


def test_a_watcher_misses_no_state_that_lasts(root: Path, store: FileStore) -> None:
    """It sees the last state whenever the writer pauses, and always a whole one."""
    code = """
    from txfiles import FileStore
    store = FileStore(sys.argv[1], durability="process")
    for n in range(1, 31):
        with store.transaction() as tx:
            tx.write("a", str(n))
            tx.write("b", str(n))
        if n % 10 == 0:
            input()
    """
    version, seen = store.state_version(), 0
    with child(code, root) as writer:
        while seen < 30:
            version = store.wait_for_change(version, 20)
            with store.snapshot("a", "b") as snap:
                a, b = int(snap.read("a")), int(snap.read("b"))
            assert a == b >= seen
            version, seen = snap.state_version, a
            if seen % 10 == 0:
                writer.send()
        writer.finish().check()
