"""`FileStore.transaction(base=...)` and `FileStore.update`: no update is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEEP
from tests.support.procs import child
from txfiles import AsyncFileTransaction, FileStore, FileTransaction, Snapshot
from txfiles._disk import system
from txfiles.errors import ConflictError, SnapshotExpiredError, TransactionClosedError

PROCESSES, TIMES = (8, 500) if DEEP else (4, 60)


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root, durability="process", timeout=30)


def put(store: FileStore, **files: str) -> None:
    with store.transaction() as tx:
        for name, text in files.items():
            tx.write(name, text)


# -- optimistic transactions ----------------------------------------------------------------------------------------


def commit_on(store: FileStore, snap: Snapshot) -> None:
    with store.transaction(base=snap) as tx:
        tx.write("result", "done")


def test_a_file_that_was_read_and_has_changed_is_a_conflict(root: Path, store: FileStore) -> None:
    put(store, a="1", b="1")
    with store.snapshot("a", "b") as snap:
        snap.read("a")
    put(store, a="2")
    with pytest.raises(ConflictError) as caught:
        commit_on(store, snap)
    assert caught.value.path == "a"
    assert caught.value.outcome == "before"
    assert not (root / "result").exists()


def test_what_was_not_read_may_change(root: Path, store: FileStore) -> None:
    put(store, a="1", b="1")
    with store.snapshot("a", "b") as snap:
        snap.read("a")
        put(store, b="2", c="2")
    commit_on(store, snap)
    assert (root / "result").read_text(encoding="utf-8") == "done"


def test_reads_inside_the_transaction_count_too(store: FileStore) -> None:
    put(store, a="1")
    with store.snapshot("a") as snap:
        put(store, a="2")
        with pytest.raises(ConflictError), store.transaction(base=snap) as tx:
            tx.write("result", snap.read("a"))
        put(store, a="3")
        with pytest.raises(ConflictError), store.transaction(base=snap):
            pass  # also a transaction that changes nothing says so


def fails(error: type[Exception], call: Callable[[str], object], path: str) -> None:
    with pytest.raises(error):
        call(path)


def make_file(tx: FileTransaction) -> None:
    tx.delete_tree("d")
    tx.write("d", "2")


OBSERVATIONS: dict[str, Callable[[Snapshot], object]] = {
    "read": lambda snap: snap.read("a"),
    "read_text": lambda snap: snap.read_text("a"),
    "version": lambda snap: snap.version("a"),
    "read missing": lambda snap: fails(FileNotFoundError, snap.read, "missing"),
    "version missing": lambda snap: snap.version("missing"),
    "exists missing": lambda snap: snap.exists("missing"),
    "exists": lambda snap: snap.exists("a"),
    "listdir": lambda snap: snap.listdir("d"),
    "listdir missing": lambda snap: fails(FileNotFoundError, snap.listdir, "no"),
    "glob": lambda snap: snap.glob("d/*.txt"),
    "link": lambda snap: snap.read("link"),
    "read a directory": lambda snap: fails(IsADirectoryError, snap.read, "d"),
}
CHANGES: dict[str, tuple[Callable[[FileTransaction], object], set[str]]] = {
    "replace": (lambda tx: tx.write("a", "2"), {"read", "read_text", "version", "link"}),
    "replace by the same": (lambda tx: tx.write("a", "1"), {"read", "read_text", "version", "link"}),
    "delete": (lambda tx: tx.delete("a"), {"read", "read_text", "version", "exists", "link"}),
    "create": (lambda tx: tx.write("missing", "2"), {"read missing", "version missing", "exists missing"}),
    "create inside": (lambda tx: tx.write("d/y.txt", "2"), {"listdir", "glob"}),
    "create beside": (lambda tx: tx.write("d/y", "2"), {"listdir"}),
    "make a directory": (lambda tx: tx.mkdir("no"), {"listdir missing"}),
    "other": (lambda tx: tx.write("other", "2"), set()),
    "directory to file": (make_file, {"listdir", "glob", "read a directory"}),
}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_learned_through_the_snapshot(root: Path, store: FileStore, change: str, pinned: bool) -> None:
    put(store, a="1", b="1", other="1", **{"d/x.txt": "1"})
    os.symlink("a", root / "link")
    act, conflicts = CHANGES[change]
    seen: dict[str, Snapshot] = {}
    for name, observe in OBSERVATIONS.items():
        with store.snapshot(*["a", "missing", "link"] * pinned) as snap:
            observe(snap)
        seen[name] = snap
    with store.transaction() as tx:
        act(tx)
    found = set()
    for name, snap in seen.items():
        try:
            commit_on(store, snap)
        except ConflictError:
            found.add(name)
    assert found == conflicts


def test_a_link_that_leads_elsewhere_is_a_conflict(root: Path, store: FileStore) -> None:
    put(store, one="same", two="same")
    os.symlink("one", root / "current")
    with store.snapshot() as snap:
        snap.read("current")
    (root / "current").unlink()
    os.symlink("two", root / "current")
    with pytest.raises(ConflictError):
        commit_on(store, snap)


def test_f03_a_change_by_another_program_is_a_conflict(root: Path, store: FileStore) -> None:
    put(store, a="1")
    with store.snapshot() as snap:
        snap.read("a")
        (root / "a").write_text("22", encoding="utf-8")
    with pytest.raises(ConflictError):
        commit_on(store, snap)


def test_an_expired_snapshot_is_a_conflict(store: FileStore) -> None:
    put(store, a="1")
    with store.snapshot() as snap:
        put(store, a="2")
        with pytest.raises(SnapshotExpiredError), store.transaction(base=snap) as tx:
            tx.write("a", snap.read("a") + b"!")
    with store.snapshot() as snap:
        assert snap.read("a") == b"2"


def test_the_base_must_be_of_this_root(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with FileStore(tmp_path / "other").snapshot() as snap, pytest.raises(ValueError, match="the snapshot is of"):
        store.transaction(base=snap)


def test_a_base_holds_no_lock_and_changes_no_life(store: FileStore) -> None:
    put(store, a="1")
    with store.snapshot("a") as snap:
        snap.read("a")
        tx = store.transaction(base=snap)
        with pytest.raises(TransactionClosedError):
            tx.commit()
        put(store, b="2")
        with tx:
            tx.write("a", "2")
        with pytest.raises(TransactionClosedError):
            tx.begin()
    assert store.status().clean


def test_optimistic_writers_lose_no_update(store: FileStore) -> None:
    """Threads that read without the lock, and commit if nobody was faster."""
    put(store, count="0")
    conflicts: list[int] = []

    def add() -> None:
        for _ in range(20):
            while True:
                try:
                    with store.snapshot("count") as snap:
                        number = int(snap.read("count"))
                    with store.transaction(base=snap) as tx:
                        tx.write("count", str(number + 1))
                    break
                except ConflictError:
                    conflicts.append(number)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.snapshot() as snap:
        assert snap.read("count") == b"80"
    assert conflicts, "the threads never met: the test shows nothing"


# -- update ---------------------------------------------------------------------------------------------------------


def test_update_commits_and_returns_the_value(root: Path, store: FileStore) -> None:
    def change(tx: FileTransaction) -> int:
        tx.write("a", "1")
        return 42

    assert store.update(change) == 42
    assert (root / "a").read_text(encoding="utf-8") == "1"


def test_update_tries_again_after_a_conflict(root: Path, store: FileStore) -> None:
    put(store, a="0")
    attempts = 0

    def change(tx: FileTransaction) -> str:
        nonlocal attempts
        attempts += 1
        version = tx.version("a")
        text = tx.read_text("a")
        if attempts < 4:
            (root / "new").write_text(f"by another program {attempts}", encoding="utf-8")
            os.replace(root / "new", root / "a")
        tx.write("b", "staged")
        tx.write("a", text + "!", if_version=version)
        return text

    assert store.update(change) == "by another program 3"
    assert attempts == 4
    assert (root / "a").read_text(encoding="utf-8") == "by another program 3!"


def test_a_coroutine_function_is_refused(store: FileStore) -> None:
    async def change(tx: FileTransaction) -> None:
        tx.write("a", "never")

    before = store.state_version()
    update: Any = store.update
    with pytest.raises(TypeError, match="async_update"):
        update(change)
    assert store.state_version() == before


@pytest.mark.parametrize("retries", [0, 2])
def test_update_gives_up(root: Path, store: FileStore, retries: int) -> None:
    attempts = 0

    def change(tx: FileTransaction) -> None:
        nonlocal attempts
        attempts += 1
        tx.write("b", "staged")
        raise ConflictError(f"attempt {attempts}")

    with pytest.raises(ConflictError, match=f"attempt {retries + 1}"):
        store.update(change, retries=retries)
    assert attempts == retries + 1
    assert not (root / "b").exists()


def test_update_does_not_try_again_after_other_errors(store: FileStore) -> None:
    attempts = 0

    def change(_: FileTransaction) -> None:
        nonlocal attempts
        attempts += 1
        raise KeyError

    with pytest.raises(KeyError):
        store.update(change)
    assert attempts == 1
    with pytest.raises(ValueError, match="retries"):
        store.update(change, retries=-1)


def test_the_pauses_grow_and_are_random(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr("random.uniform", lambda _, most: most)

    def change(_: FileTransaction) -> None:
        raise ConflictError("always")

    with pytest.raises(ConflictError):
        store.update(change, retries=10)
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


INCREMENT = """
from txfiles import FileStore
store = FileStore(sys.argv[1], durability="process", timeout=600)
def increment(tx):
    tx.write("count", str(int(tx.read("count")) + 1))
for _ in range(int(sys.argv[2])):
    store.update(increment)
"""


def test_f02_increments_of_many_processes(root: Path, store: FileStore) -> None:
    put(store, count="0")
    with ExitStack() as stack:
        workers = [stack.enter_context(child(INCREMENT, root, TIMES)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.finish(600).check()
    with store.snapshot() as snap:
        assert int(snap.read("count")) == PROCESSES * TIMES


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_conflict_of_a_callback_is_not_tried_again(store: FileStore, group: bool, is_async: bool) -> None:
    """The commit was made."""

    def called() -> None:
        raise ConflictError("of another root")

    def change(tx: FileTransaction) -> None:
        tx.write("n", tx.read_text("n") + "+")
        tx.on_commit(called)

    async def async_change(tx: AsyncFileTransaction) -> None:
        await tx.write("n", await tx.read_text("n") + "+")
        await tx.on_commit(called)

    put(store, n="0")
    with pytest.raises(ConflictError, match="another root") as caught:
        if is_async:
            asyncio.run(store.async_update(async_change, group=group, retries=3))
        else:
            store.update(change, group=group, retries=3)
    assert caught.value.outcome == "after"
    assert (Path(store.root) / "n").read_text(encoding="utf-8") == "0+"


class Replacing(system.KernelFS):
    """A file is replaced by another program just when its old one is linked: link(2) finds none then."""

    times = 2

    def link(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if name == b"n" and self.times:
            self.times -= 1
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        super().link(at, name, to, new)


def test_a_file_that_is_replaced_in_that_moment_is_tried_again(store: FileStore) -> None:
    put(store, n="0")
    with system.use(Replacing()):
        FileStore(store.root, durability="process").update(lambda tx: tx.write("n", "1"))
    assert (Path(store.root) / "n").read_text(encoding="utf-8") == "1"
