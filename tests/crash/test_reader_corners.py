"""What only a particular order of events shows, one test for each."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crash.test_reader_interleaved import Writer
from tests.support.boundary import killed, nth_call
from txfiles import FileStore, FileTransaction
from txfiles._disk import system
from txfiles.errors import CommitError, SnapshotExpiredError
from txfiles.testing._faults import FaultyFS


def set_up(root: Path) -> FileStore:
    store = FileStore(root, durability="process", timeout=0)
    with store.transaction() as tx:
        for name in ("a", "b", "d/c"):
            tx.write(name, f"{name} 0")
        tx.write("mark/0", "0")
    return store


def fail_and_undo(store: FileStore, rename: int, paths: dict[str, str], *, delete: str) -> None:
    """A transaction whose n-th rename fails."""

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fs: Any = nth_call("rename", rename, fail)
    with system.use(fs):
        tx = store.transaction()
    with pytest.raises(CommitError), tx:
        tx.delete_tree(delete)
        for path, text in paths.items():
            tx.write(path, text)


def test_a_directory_that_an_undo_made_anew_is_found(root: Path) -> None:
    """The reader still has the old one open."""
    store = set_up(root)
    with store.snapshot() as snap:
        assert snap.read("d/c") == b"d/c 0"
        before = (root / "d").stat().st_ino
        fail_and_undo(store, 3, {"a": "never"}, delete="d")
        assert (root / "d").stat().st_ino != before
        assert snap.read("d/c") == b"d/c 0"
        assert snap.exists("d/c")
        assert snap.listdir("d") == ["c"]
        assert snap.read("a") == b"a 0"


class TwoNames(Writer):
    """Makes a name, and fails with the next one."""

    def change(self, tx: FileTransaction, kind: str, generation: str) -> None:
        tx.write("mark/1000", generation)
        tx.write("z", generation)


def test_a_name_that_two_undone_commits_have_made_is_not_told(root: Path) -> None:
    store = set_up(root)
    made = root / "mark" / "1000"
    writer = TwoNames(root, ["undone 1", "undone 1"])
    lists = 0

    def until(there: bool) -> None:
        while made.exists() != there or (not there and any((root / ".txfiles").glob("*.aborting"))):
            assert not writer.ended
            writer.step()

    def plan(_: int, name: str) -> None:
        nonlocal lists
        if name == "listdir":
            lists += 1
            if lists in (1, 2, 3):  # the directory, the private directory, the directory again
                until(lists != 2)

    try:
        with store.snapshot() as snap:
            snap._reader._lookout.fs = snap._reader._lookout.tree.fs = FaultyFS(system.KernelFS(), plan)  # type: ignore[union-attr,assignment]
            assert snap.listdir("mark") == ["0"]
            assert lists > 4
    finally:
        writer.finish()


def test_a_state_that_was_read_too_early_and_then_undone_expires(root: Path) -> None:
    """Who would not wait for a writer reads the state after, and must not go on with the state before."""
    store = set_up(root)
    writer = Writer(root, ["undone 4"], seen=False)
    try:
        while (root / "a").read_text(encoding="utf-8") == "a 0":
            writer.step()
        with store.snapshot() as snap, store.snapshot("b") as pinned:
            assert snap.read("a") == b"a 1000"
            assert snap.read("b") == b"b 1000"
            writer.finish()
            for call in (lambda: snap.read("b"), lambda: snap.read("d/c"), snap.listdir):
                with pytest.raises(SnapshotExpiredError):
                    call()
            assert pinned.read("b") == b"b 1000"
    finally:
        writer.finish()
    with store.snapshot("a", "b") as snap:
        assert snap.read("a") == b"a 0"


class SlowClock(FaultyFS):
    """The time of the private directory stands still: within one tick of its clock, or where nobody keeps it."""

    time = 0

    def stat(self, at: int | None, name: bytes) -> Any:
        found = system.KernelFS().stat(at, name)
        if name != b".txfiles":
            return found
        fields = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
        return SimpleNamespace(**{field: getattr(found, field) for field in fields}, st_mtime_ns=self.time)


def die_half_way(root: Path) -> None:
    def write() -> None:
        with FileTransaction(root, durability="process") as tx:
            tx.write("a", "a 1")
            tx.write("b", "b 1")

    killed(write, "rename", 3)
    assert [(root / name).read_text(encoding="utf-8") for name in ("a", "b")] == ["a 1", "b 0"]


def read_both(store: FileStore, fs: Any) -> None:
    found = []
    for names in ([], ["a", "b"]):
        with system.use(fs), store.snapshot(*names) as snap:
            found.append([snap.read(name) for name in ("a", "b")])
    assert found in ([[b"a 0", b"b 0"]] * 2, [[b"a 1", b"b 1"]] * 2)


def test_a_root_is_not_taken_for_at_rest_within_a_tick(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = set_up(root)
    fs = SlowClock(system.KernelFS())
    fs.time = time.time_ns() + 10**12 + 1
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 1000.0)
        for _ in range(3):
            read_both(store, fs)
    die_half_way(root)
    read_both(store, fs)


@pytest.mark.parametrize("when", [-(10**12), 10**12])
def test_a_root_is_not_taken_for_at_rest_where_directories_have_no_time_or_a_coarse_one(root: Path, when: int) -> None:
    store = set_up(root)
    fs = SlowClock(system.KernelFS())
    fs.time = (time.time_ns() + when) // 10**9 * 10**9 + (when < 0)
    for _ in range(3):
        read_both(store, fs)
        time.sleep(0.06)
    die_half_way(root)
    read_both(store, fs)


def test_what_a_snapshot_of_a_root_at_rest_is_asked_after_a_commit(root: Path) -> None:
    store = set_up(root)
    for _ in range(3):  # until the root is known to be at rest
        with store.snapshot("a", "b") as snap:
            assert snap.read("a") == b"a 0"
        time.sleep(0.06)
    with store.snapshot("a", "b") as snap, store.snapshot("a") as other:
        with store.transaction() as tx:
            tx.write("b", "b 1")
        assert snap.read("b") == b"b 0"
        assert other.read("a") == b"a 0"
        with pytest.raises(SnapshotExpiredError):
            other.read("b")


def test_one_commit_between_a_look_and_the_next_is_followed_though_another_is_under_way(root: Path) -> None:
    store = set_up(root)
    with store.snapshot() as snap:
        assert snap.read("a") == b"a 0"
        with store.transaction() as tx:
            tx.write("a", "a 5")
        writer = Writer(root, ["commit"])
        try:
            while (root / "a").read_text(encoding="utf-8") == "a 5":
                writer.step()
            with pytest.raises(SnapshotExpiredError):
                snap.read("a")
            assert snap.read("b") == b"b 0"
            assert snap.listdir("mark") == ["0"]
            assert not snap.exists("mark/1")
            writer.finish()
            for path in ("a", "b", "mark/1"):
                with pytest.raises(SnapshotExpiredError):
                    snap.version(path)
        finally:
            writer.finish()


def test_a_reader_that_recovers_leaves_the_lock_free(root: Path) -> None:
    store = set_up(root)

    def write() -> None:
        with FileTransaction(root, durability="process") as tx:
            tx.write("a", "a 1")
            tx.write("b", "b 1")

    killed(write, "rename", 3)
    with store.snapshot("a", "b") as snap:
        assert [snap.read("a"), snap.read("b")] == [b"a 1", b"b 1"]
        assert store.status().clean
        with store.transaction() as tx:
            tx.write("a", "a 2")
        assert snap.read("a") == b"a 1"
