"""What only a particular order of events shows, one test for each."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crash.test_reader_interleaved import Writer
from tests.support.boundary import killed, nth_call
from txfiles import FileStore, FileTransaction, _fs
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
    with _fs.use(fs):
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
            snap._reader._lookout.fs = snap._reader._lookout.tree.fs = FaultyFS(_fs.KernelFS(), plan)  # type: ignore[union-attr,assignment]
            assert snap.listdir("mark") == ["0"]
            assert lists > 4
    finally:
        writer.finish()


def test_a_state_that_was_read_too_early_and_then_undone_expires(root: Path) -> None:
    """Who would not wait for a living writer reads the state after, and must not go on with the state before."""
    store = set_up(root)
    writer = Writer(root, ["undone 4"])
    try:
        while (root / "a").read_text() == "a 0":
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
    """The private directory's time stands still, as within one tick of the clock of a file system."""

    def stat(self, at: int | None, name: bytes) -> Any:
        found = _fs.KernelFS().stat(at, name)
        if name != b".txfiles":
            return found
        fields = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
        return SimpleNamespace(
            **{field: getattr(found, field) for field in fields}, st_mtime_ns=1_700_000_000_123_456_789
        )


def test_a_root_is_not_taken_for_at_rest_within_a_tick(root: Path) -> None:
    store = set_up(root)
    fs: Any = SlowClock(_fs.KernelFS())

    def read(names: list[str]) -> list[bytes]:
        with _fs.use(fs), store.snapshot(*names) as snap:
            return [snap.read(name) for name in ("a", "b")]

    for _ in range(3):
        assert read([]) == read(["a", "b"]) == [b"a 0", b"b 0"]

    def write() -> None:
        with FileTransaction(root, durability="process") as tx:
            tx.write("a", "a 1")
            tx.write("b", "b 1")

    killed(write, "rename", 3)
    assert [(root / name).read_text() for name in ("a", "b")] == ["a 1", "b 0"]
    assert read(["a", "b"]) == [b"a 1", b"b 1"]
    assert read([]) == [b"a 1", b"b 1"]


def test_one_commit_between_a_look_and_the_next_is_followed_though_another_is_under_way(root: Path) -> None:
    store = set_up(root)
    with store.snapshot() as snap:
        assert snap.read("a") == b"a 0"
        with store.transaction() as tx:
            tx.write("a", "a 5")
        writer = Writer(root, ["commit"])
        try:
            while (root / "a").read_text() == "a 5":
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
