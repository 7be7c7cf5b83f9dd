"""`FileStore`: a root and its settings, `update`, and waiting for changes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import killed, tree
from txfiles import FileStore, FileTransaction, RecoveryReport, StoreStatus
from txfiles.errors import ConflictError, LockTimeoutError, NestedTransactionError, SnapshotExpiredError
from txfiles.recovery import verify


def _put(store: FileStore, path: str, content: str) -> None:
    with store.transaction() as tx:
        tx.write(path, content)


def test_its_transactions_have_its_settings(root: Path, watch: Callable[[Path], Path]) -> None:
    new = watch(root / "new")
    store = FileStore(new, durability="process", timeout=0, create=True)
    assert not new.exists()
    with store.transaction() as tx:
        assert isinstance(tx, FileTransaction)
        tx.write("a", "x")
        tx.commit()
    assert tree(new) == {"a": b"x"}
    with pytest.raises(FileNotFoundError):
        FileStore(root / "other").transaction().begin()

    def elsewhere() -> None:
        began = time.monotonic()
        with pytest.raises(LockTimeoutError):
            store.transaction().begin()
        assert time.monotonic() - began < 30

    with store.transaction():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()


def test_a_store_is_cheap_and_touches_nothing(root: Path) -> None:
    before = _descriptors()
    stores = [FileStore(root) for _ in range(1000)]
    assert os.listdir(root) == []
    assert _descriptors() == before
    assert repr(stores[0]) == f"<FileStore {str(root)!r}>"
    assert stores[0].root == str(root)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_transaction_of_a_store_is_not_begun(root: Path) -> None:
    store = FileStore(root)
    one, other = store.transaction(), store.transaction()
    with one:
        one.write("a", "1")
    with other:
        other.write("a", other.read("a") + b"2")
    assert tree(root) == {"a": b"12"}


def test_one_store_in_many_threads(root: Path) -> None:
    store = FileStore(root, durability="process")
    _put(store, "n", "0")

    def work() -> None:
        for _ in range(10):
            store.update(lambda tx: tx.write("n", str(int(tx.read("n")) + 1)))
            with store.snapshot("n") as snap:
                int(snap.read("n"))
            assert store.status().unknown == []

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree(root) == {"n": b"80"}


def test_status_and_verify_beside_writers_at_work(root: Path) -> None:
    """What a writer takes away or is still writing while it is looked at is neither an error nor damage."""
    store = FileStore(root, durability="process")
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            with store.transaction() as tx:
                for name in "abcd":
                    tx.write(name, os.urandom(8))

    writers = [threading.Thread(target=write) for _ in range(3)]
    for thread in writers:
        thread.start()
    try:
        for _ in range(1000):
            found = store.status()
            assert found.unknown == []
            assert [one.error for one in found.pending if one.error] == []
            assert verify(root).sound
    finally:
        done.set()
        for thread in writers:
            thread.join()


def test_recover_and_status_of_a_store(root: Path) -> None:
    store = FileStore(root, timeout=0)
    assert store.status() == StoreStatus(is_root=False)
    assert store.recover() == RecoveryReport()
    _put(store, "a", "old")
    killed(lambda: _put(store, "a", "new"), "rename", 2)
    assert [one.paths for one in store.status().pending] == [["a"]]
    assert [one.paths for one in store.recover(on_conflict="raise").rolled_forward] == [["a"]]
    assert store.status().clean
    assert tree(root) == {"a": b"new"}


# -- update ---------------------------------------------------------------------------------------------------------


def test_update_commits_and_returns_the_value(root: Path) -> None:
    store = FileStore(root)

    def change(tx: FileTransaction) -> str:
        tx.write("a", "x")
        return "value"

    assert store.update(change) == "value"
    assert tree(root) == {"a": b"x"}
    assert store.update(lambda tx: tx.listdir()) == ["a"]


def test_update_runs_again_after_a_conflict(root: Path) -> None:
    store, runs = FileStore(root), list[Any]()

    def change(tx: FileTransaction) -> int:
        runs.append(tx)
        tx.write("half", str(len(runs)))
        if len(runs) < 4:
            raise ConflictError("not yet")
        return len(runs)

    assert store.update(change) == 4
    assert len({id(tx) for tx in runs}) == 4, "each time with a new transaction"
    assert tree(root) == {"half": b"4"}


def test_a_conflict_at_the_commit_runs_it_again(root: Path) -> None:
    store, runs = FileStore(root), list[Any]()

    def change(tx: FileTransaction) -> None:
        content = tx.read("a") if tx.exists("a") else b""
        tx.write("a", content + b"ours ", if_version=tx.version("a"))
        if not runs:
            (root / "a").write_text("theirs ", encoding="utf-8")
        runs.append(content)

    store.update(change)
    assert runs == [b"", b"theirs "]
    assert tree(root) == {"a": b"theirs ours "}


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize("kind", [ConflictError, SnapshotExpiredError])
def test_update_gives_up_with_the_last_conflict(root: Path, retries: int, kind: type[ConflictError]) -> None:
    runs = []

    def change(tx: FileTransaction) -> None:
        tx.write("a", "x")
        runs.append(tx)
        raise kind(f"run {len(runs)}")

    with pytest.raises(kind, match=f"run {retries + 1}"):
        FileStore(root).update(change, retries=retries)
    assert len(runs) == retries + 1
    assert tree(root) == {}
    _put(FileStore(root, timeout=0), "a", "works")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, OSError])
def test_update_does_not_repeat_what_is_no_conflict(root: Path, error: type[BaseException]) -> None:
    runs = []

    def change(tx: FileTransaction) -> None:
        runs.append(tx)
        tx.write("a", "x")
        raise error

    with pytest.raises(error):
        FileStore(root).update(change)
    assert len(runs) == 1
    assert tree(root) == {}


def test_update_inside_a_transaction_or_another_update(root: Path) -> None:
    store = FileStore(root)
    with store.transaction(), pytest.raises(NestedTransactionError):
        store.update(lambda tx: None)
    with pytest.raises(NestedTransactionError):
        store.update(lambda tx: store.update(lambda inner: None))
    assert store.update(lambda tx: 1) == 1


@pytest.mark.parametrize("retries", [-1, -10])
def test_retries_are_a_number(root: Path, retries: int) -> None:
    with pytest.raises(ValueError, match="retries"):
        FileStore(root).update(lambda tx: None, retries=retries)


# -- optimistic transactions ----------------------------------------------------------------------------------------


def test_a_base_of_another_root_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with FileStore(tmp_path / "other").snapshot() as snap, pytest.raises(ValueError, match="not of"):
        FileStore(root).transaction(base=snap)


SINCE: dict[str, tuple[Callable[[FileStore], Any], bool]] = {
    "nothing": (lambda store: None, True),
    "what was read": (lambda store: _put(store, "read", "theirs"), False),
    "the same bytes again": (lambda store: _put(store, "read", "old"), False),
    "what was only listed": (lambda store: _put(store, "d/new", "theirs"), False),
    "what was looked for and missing": (lambda store: _put(store, "missing", "theirs"), False),
    "something else": (lambda store: _put(store, "else", "theirs"), True),
}


@pytest.mark.parametrize("since", SINCE)
def test_an_optimistic_commit_needs_what_was_read_to_be_so(root: Path, since: str) -> None:
    store = FileStore(root)
    _put(store, "read", "old")
    _put(store, "d/a", "old")
    with store.snapshot() as snap:
        assert snap.read("read") == b"old"
        assert snap.listdir("d") == ["a"]
        assert not snap.exists("missing")
    change, commits = SINCE[since]
    change(store)
    tx = store.transaction(base=snap).begin()
    tx.write("result", "ours")
    if commits:
        tx.commit()
    else:
        with pytest.raises(ConflictError) as caught:
            tx.commit()
        assert caught.value.outcome == "before"
    assert (root / "result").exists() == commits
    _put(FileStore(root, timeout=0), "read", "next")


# -- waiting --------------------------------------------------------------------------------------------------------


def test_the_state_version_changes_with_every_commit_and_with_nothing_else(root: Path) -> None:
    store = FileStore(root)
    versions = [store.state_version()]

    def same() -> bool:
        return store.state_version() == versions[-1]

    assert same()
    for content in ("x", "x", "y"):
        _put(store, "a", content)
        assert store.state_version() not in versions
        versions.append(store.state_version())
    with store.transaction() as tx:
        tx.read("a")
        assert same()
    tx = store.transaction().begin()
    tx.write("a", "z")
    assert same()
    tx.rollback()
    store.recover()
    (root / "a").write_text("theirs", encoding="utf-8")
    with store.snapshot() as snap:
        assert snap.state_version == versions[-1]
    assert same()


def test_waiting_for_a_change(root: Path) -> None:
    store = FileStore(root)
    since = store.state_version()
    began = time.monotonic()
    assert store.wait_for_change(since, timeout=0) == since
    assert store.wait_for_change(since, timeout=0.05) == since
    assert 0.05 <= time.monotonic() - began < 30
    assert store.wait_for_change("something older", timeout=None) == since
    thread = threading.Timer(0.05, _put, (store, "a", "x"))
    thread.start()
    after = store.wait_for_change(since, timeout=30)
    thread.join()
    assert after == store.state_version() != since


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_waiting_takes_a_number_of_seconds(root: Path, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        FileStore(root).wait_for_change("", timeout)
