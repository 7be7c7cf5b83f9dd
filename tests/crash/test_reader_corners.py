"""What only a particular order of events shows, one test for each."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.crash.test_reader_interleaved import Writer
from tests.support.boundary import killed, nth_call
from txfiles import FileStore, FileTransaction
from txfiles._disk import system
from txfiles._reading import resting
from txfiles.errors import CommitError, InvalidPathError, SnapshotExpiredError
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


def known_to_rest(store: FileStore) -> None:
    """Look often enough for the root to be known to be at rest."""
    for _ in range(3):
        with store.snapshot("a", "b") as snap:
            assert snap.read("a") == b"a 0"
        time.sleep(0.06)


class CallByCall(FaultyFS):
    """Small files of a root at rest are read in as many calls as it takes, so that something can come between."""

    def read_small(self, at: int, names: Sequence[bytes], limit: int) -> tuple[list[Any], list[bytes]]:
        found, contents = [], []
        for name in names:
            found.append(self.stat(at, name))
            fd = self.open_read(at, name)
            contents.append(self.read(fd, limit))
            self.close(fd)
        return found, contents


def left_between_two_calls(memory: Path, kind: str) -> Iterator[list[bytes]]:
    """A writer begins, and goes on by so many steps, before each call of a reader that took the root to be at rest."""
    for steps in (14, 16, 100):
        place, reached = 0, True
        while reached:
            root = memory / f"{steps}-{place}"
            root.mkdir()
            store = set_up(root)
            known_to_rest(store)
            writer = Writer(root, [kind])
            calls = 0

            def plan(_: int, name: str, place: int = place, writer: Writer = writer, steps: int = steps) -> None:
                nonlocal calls
                if calls == place:
                    writer.step(steps)
                calls += 1

            try:
                with system.use(CallByCall(system.KernelFS(), plan)), store.snapshot("a", "b") as snap:  # type: ignore[arg-type]
                    yield [snap.read("a"), snap.read("b")]
            finally:
                writer.finish()
            reached, place = calls > place, place + 1
        assert place > 8


@pytest.mark.parametrize("kind", ["commit", "undone 1"])
def test_a_root_at_rest_that_is_left_between_any_two_calls(memory: Path, kind: str) -> None:
    states = [[b"a 0", b"b 0"], [b"a 1", b"b 1"]][: 1 + (kind == "commit")]
    for found in left_between_two_calls(memory, kind):
        assert found in states


def test_without_the_mark_a_root_at_rest_that_is_left_would_be_mixed(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "mark_from", lambda found: ANY)
    assert [b"a 0", b"b 1"] in list(left_between_two_calls(memory, "commit"))


def test_what_a_snapshot_of_a_root_at_rest_is_asked_later(root: Path) -> None:
    """It opens the directory anew, and knows whether it is another one, and what a commit has changed."""
    store = set_up(root)
    known_to_rest(store)
    with store.snapshot("a", "b") as snap, store.snapshot("a") as other, store.snapshot("a") as third:
        assert snap.read("d/c") == b"d/c 0"
        assert snap.listdir() == ["a", "b", "d", "mark"]
        root.rename(root.with_name("elsewhere"))
        assert snap.read("d/c") == b"d/c 0"  # which is open
        for there in (False, True):
            if there:
                root.mkdir()
                set_up(root)
            assert third.read("a") == b"a 0"
            with pytest.raises(SnapshotExpiredError):
                third.read("d/c")
        shutil.rmtree(root)
        root.with_name("elsewhere").rename(root)
        with store.transaction() as tx:
            tx.write("b", "b 1")
        assert snap.read("b") == b"b 0"
        assert other.read("a") == b"a 0"
        with pytest.raises(SnapshotExpiredError):
            other.read("b")


@pytest.mark.parametrize("odd", ["missing", "directory", "link", "fifo", "large"])
def test_odd_files_of_a_root_at_rest(root: Path, odd: str) -> None:
    """What cannot be opened and read at once is pinned as ever, or refused as ever."""
    store = set_up(root)
    path = root / "odd"
    if odd == "directory":
        path.mkdir()
    elif odd == "link":
        path.symlink_to("a")
    elif odd == "fifo":
        os.mkfifo(path)
    elif odd == "large":
        path.write_bytes(b"x" * 70_000)
    known_to_rest(store)
    if odd in ("directory", "fifo"):
        with pytest.raises((IsADirectoryError, InvalidPathError)), store.snapshot("a", "odd"):
            pass
        return
    with store.snapshot("a", "odd") as snap:
        assert snap.read("a") == b"a 0"
        if odd == "missing":
            with pytest.raises(FileNotFoundError):
                snap.read("odd")
        else:
            assert snap.read("odd") == (b"a 0" if odd == "link" else b"x" * 70_000)


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
