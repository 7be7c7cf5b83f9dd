"""Snapshots beside a commit that does not end: on read-only mounts, for other users, with damage, and in what time."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import mounts
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import killed, nth_call
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, JsonDocuments, recover
from txfiles._commit.protocol import Commit, prepare
from txfiles._disk import system
from txfiles.errors import (
    CommitOutcomeUnknownError,
    JournalCorruptError,
    LockTimeoutError,
    RecoveryConflictError,
    RecoveryError,
    SettleError,
    SnapshotExpiredError,
)
from txfiles.testing._faults import FaultyFS

NAMES = ("a", "b", "c", "d")
OLD, NEW = [b"old"] * 4, [b"new"] * 4


def set_up(root: Path, durability: str = "process", timeout: float = 0.3) -> FileStore:
    store = FileStore(root, durability=durability, timeout=timeout)  # type: ignore[arg-type]
    with store.transaction() as tx:
        for name in NAMES:
            tx.write(name, "old")
        tx.write("dir/gone", "old")
    return store


def write(root: Path) -> None:
    with FileTransaction(root, durability="process") as tx:
        for name in NAMES:
            tx.write(name, "new")
        tx.delete_tree("dir")
        tx.write("made/here", "new")


def half_done(root: Path) -> None:
    """A writer dies when some of its files are in place: the commit point is its first rename."""
    killed(lambda: write(root), "rename", 5)
    assert len({(root / name).read_text(encoding="utf-8") for name in NAMES}) == 2


def no_holds(_: int, name: str) -> None:
    """A plan: a file system without the locks by which a writer shows that it lives."""
    if name == "hold":
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@contextmanager
def stopped(root: Path, rename: int, *, seen: bool = True) -> Iterator[int]:
    """A writer that stops (SIGSTOP) before its n-th rename; it goes on, and ends, after the block.

    With `seen` readers can tell that it lives.
    """
    inner: Any = FaultyFS(system.KernelFS(), None if seen else no_holds)
    fs: Any = nth_call("rename", rename, lambda: os.kill(os.getpid(), signal.SIGSTOP), inner)
    child = os.fork()
    if child == 0:
        try:
            with system.use(fs):
                write(root)
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0


def read(store: FileStore, *pins: str) -> list[bytes]:
    with store.snapshot(*pins) as snap:
        found = [snap.read(name) for name in NAMES]
        new = found == NEW
        assert snap.exists("dir") != new
        assert snap.listdir() == sorted([*NAMES, "made" if new else "dir"])
        assert snap.glob("*/*") == ["made/here" if new else "dir/gone"]
        return found


# -- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_f04_beside_a_stopped_writer_the_timeout_is_kept_and_nothing_is_mixed(root: Path, timeout: float) -> None:
    set_up(root)
    store = FileStore(root, durability="process", timeout=timeout)
    with stopped(root, 5, seen=False):
        for pins in ((), NAMES):
            began = time.monotonic()
            assert read(store, *pins) == NEW
            assert timeout <= time.monotonic() - began < timeout + 20
        with pytest.raises(LockTimeoutError):
            store.recover()
    assert read(store) == NEW


@pytest.mark.parametrize("rename", range(1, 9))
def test_f04_beside_a_writer_that_is_seen_to_live_nobody_waits(root: Path, rename: int) -> None:
    """Its commit has not ended, so the state is the one before, whatever is in place already."""
    store = set_up(root, timeout=60)
    with stopped(root, rename), store.snapshot() as first, store.snapshot(*NAMES) as pinned:
        began = time.monotonic()
        version = store.state_version()
        assert read(store) == read(store, *NAMES) == OLD
        assert first.state_version == pinned.state_version == version
        assert [first.read(name) for name in NAMES] == [pinned.read(name) for name in NAMES] == OLD
        assert time.monotonic() - began < 30
    assert read(store) == NEW


def test_a_writer_that_stopped_before_its_commit_point_costs_no_time(root: Path) -> None:
    store = set_up(root, timeout=60)
    with stopped(root, 1):
        began = time.monotonic()
        assert read(store) == read(store, *NAMES) == OLD
        assert time.monotonic() - began < 30
    assert read(store) == NEW


def test_without_a_timeout_a_stopped_writer_is_not_waited_for_for_ever(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txfiles._reading.reader._PATIENCE", 0.2)
    set_up(root)
    with stopped(root, 5, seen=False):
        assert read(FileStore(root, durability="process", timeout=None)) == NEW


def test_a_commit_that_ends_soon_is_waited_for(root: Path) -> None:
    """And its outcome is what the snapshot shows, not what is in the journal."""
    store = set_up(root)
    began = time.monotonic()
    with stopped(root, 5, seen=False) as child:
        waker = os.fork()
        if waker == 0:
            with suppress(ProcessLookupError):
                time.sleep(0.1)
                os.kill(child, signal.SIGCONT)
            os._exit(0)
        assert read(FileStore(root, durability="process", timeout=20), *NAMES) == NEW
        assert 0.1 <= time.monotonic() - began < 15
        os.waitpid(waker, 0)
    assert store.status().clean


def test_a_dead_writer_is_recovered_at_once(root: Path) -> None:
    set_up(root)
    half_done(root)
    began = time.monotonic()
    assert read(FileStore(root, durability="process", timeout=60)) == NEW
    assert time.monotonic() - began < 30
    assert FileStore(root).status().clean


def test_no_rest_is_said(root: Path) -> None:
    """A root that changes at each look."""
    set_up(root)
    count = 0

    def change(_: int, name: str) -> None:
        nonlocal count
        if name == "listdir":
            count += 1
            with system.use(system.KernelFS()):
                write_once(root, str(count))

    fs: Any = FaultyFS(system.KernelFS(), change)
    with system.use(fs):
        store = FileStore(root, timeout=0)
        with pytest.raises(LockTimeoutError, match="not at rest"), store.snapshot("a"):
            pass


def write_once(root: Path, text: str) -> None:
    with FileTransaction(root, durability="process") as tx:
        tx.write("a", text)


# -- without the right to write -------------------------------------------------------------------------------------


@pytest.mark.needs("mount")
@pytest.mark.parametrize("rename", [1, 2, 4, 6, 8])
def test_e15_read_only_mount_with_a_commit_under_way(root: Path, tmp_path: Path, rename: int) -> None:
    set_up(root)
    killed(lambda: write(root), "rename", rename)
    where = tmp_path / "mounted"
    where.mkdir()
    left = sorted(os.listdir(root / ".txfiles"))
    with mounts.bind(root, where):
        mounts.run("mount", "-o", "remount,bind,ro", where)
        store = FileStore(where, timeout=60)
        began = time.monotonic()
        found = read(store)
        assert found in (OLD, NEW)
        assert read(store, *NAMES) == found
        assert time.monotonic() - began < 30, "it waited for a writer that is dead"
        docs = JsonDocuments(where, {"x": 1}, timeout=60)
        assert docs.load() == {"x": 1}
        with pytest.raises(OSError, match="Read-only") as caught, store.transaction():
            pass
        assert caught.value.errno == errno.EROFS
        assert sorted(os.listdir(root / ".txfiles")) == left
    recover(root)
    assert [(root / name).read_bytes() for name in NAMES] == found


@pytest.mark.needs("mount")
def test_e15_read_only_mount_at_rest(root: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "x").write_text("x", encoding="utf-8")
    set_up(root)
    for source in (root, tmp_path / "plain"):
        where = tmp_path / f"mounted-{source.name}"
        where.mkdir()
        with mounts.bind(source, where):
            mounts.run("mount", "-o", "remount,bind,ro", where)
            with FileStore(where).snapshot() as snap:
                assert snap.glob("**") == (["x"] if source.name == "plain" else [*NAMES, "dir/gone"])


@pytest.mark.needs("mount")
def test_a_living_writer_is_seen_through_a_read_only_mount(root: Path, tmp_path: Path) -> None:
    """Its lock is looked at without the right to take it: it is waited for, and at the end read through."""
    set_up(root)
    where = tmp_path / "mounted"
    where.mkdir()
    with mounts.bind(root, where):
        mounts.run("mount", "-o", "remount,bind,ro", where)
        with stopped(root, 5, seen=False):
            began = time.monotonic()
            assert read(FileStore(where, timeout=0.3)) == NEW
            assert 0.3 <= time.monotonic() - began < 20


@pytest.mark.needs("mount")
def test_through_a_read_only_mount_nobody_waits_for_a_writer_that_is_seen_to_live(root: Path, tmp_path: Path) -> None:
    set_up(root)
    where = tmp_path / "mounted"
    where.mkdir()
    with mounts.bind(root, where):
        mounts.run("mount", "-o", "remount,bind,ro", where)
        with stopped(root, 5):
            began = time.monotonic()
            assert read(FileStore(where, timeout=60)) == read(FileStore(where, timeout=60), *NAMES) == OLD
            assert time.monotonic() - began < 30


READ = """
from txfiles import FileStore
with FileStore(sys.argv[1], timeout=1).snapshot(*sys.argv[2:]) as snap:
    print(snap.read_text("a"), snap.read_text("b"))
"""


@pytest.mark.needs("users")
def test_another_user_is_told_that_the_private_directory_is_closed() -> None:
    with public_directory() as directory:
        set_up(directory)
        for pins in ((), ("a", "b")):
            result = run_python(READ, directory, *pins, **as_user(1234))
            assert result.returncode == 1
            assert "PermissionError" in result.stderr
            assert "the private directory cannot be read" in result.stderr
            assert f"{directory}/.txfiles" in result.stderr
        (directory / ".txfiles").rename(directory / "elsewhere")
        assert run_python(READ, directory, **as_user(1234)).check().stdout == "old old\n"


@pytest.mark.needs("users")
@pytest.mark.parametrize("rename", [1, 2, 4, 6, 8])
def test_a_user_who_may_only_read_reads_through_the_journal(rename: int) -> None:
    with public_directory() as directory:
        set_up(directory)
        killed(lambda: write(directory), "rename", rename)
        private = directory / ".txfiles"
        private.chmod(0o755)
        for path in private.iterdir():
            path.chmod(path.stat().st_mode | 0o444)
        left = sorted(os.listdir(private))
        told = run_python(READ, directory, **as_user(1234)).check().stdout
        assert told in ("old old\n", "new new\n")
        assert run_python(READ, directory, "a", "b", **as_user(1234)).check().stdout == told
        assert sorted(os.listdir(private)) == left
        recover(directory)
        assert told == "{0} {0}\n".format((directory / "a").read_text(encoding="utf-8"))


# -- where nobody can tell the state --------------------------------------------------------------------------------


@contextmanager
def read_only() -> Iterator[None]:
    def forbid(_: int, name: str) -> None:
        if name in ("open_append", "open_lock", "create", "rename", "unlink", "mkdir", "rmdir", "link"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    fs: Any = FaultyFS(system.KernelFS(), forbid)
    with system.use(fs):
        yield


@pytest.mark.parametrize("writable", [True, False])
def test_a_conflict_needs_a_decision_before_anybody_can_read(root: Path, writable: bool) -> None:
    store = set_up(root)
    half_done(root)
    (root / "d").write_text("by hand", encoding="utf-8")
    for pins in ((), NAMES):
        with pytest.raises(RecoveryConflictError) as caught:
            if writable:
                read(store, *pins)
            else:
                with read_only():
                    read(store, *pins)
        assert caught.value.paths == ("d",)
    assert (root / "d").read_text(encoding="utf-8") == "by hand"
    store.recover(on_conflict="keep-theirs")
    with store.snapshot(*NAMES) as snap:
        assert [snap.read(name) for name in NAMES] == [b"new"] * 3 + [b"by hand"]


@pytest.mark.parametrize("writable", [True, False])
def test_a_damaged_journal_is_said(root: Path, writable: bool) -> None:
    store = set_up(root, "full")
    killed(lambda: write_durably(root), "rename", 3)
    [journal] = (root / ".txfiles").glob("*.committed")
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    for pins in ((), NAMES):
        with pytest.raises(JournalCorruptError):
            if writable:
                read(store, *pins)
            else:
                with read_only():
                    read(store, *pins)
    journal.write_bytes(whole)
    store.recover()


def write_durably(root: Path) -> None:
    with FileTransaction(root) as tx:
        for name in NAMES:
            tx.write(name, "new")


@pytest.mark.parametrize("writable", [True, False])
def test_a_lost_token_is_said(root: Path, writable: bool) -> None:
    store = set_up(root, "full")
    killed(lambda: write_durably(root), "rename", 3)
    tokens = [
        p for p in (root / ".txfiles").iterdir() if p.name[-1].isdigit() and p.read_text(encoding="utf-8") == "new"
    ]
    assert tokens
    kept = tokens[0].with_name("kept")
    tokens[0].rename(kept)
    with pytest.raises(RecoveryError):
        if writable:
            read(store)
        else:
            with read_only():
                read(store)
    kept.rename(tokens[0])
    store.recover()


def test_pinned_files_of_a_store_in_a_savepoint_of_its_own(root: Path) -> None:
    """A reader never waits for the transaction of its own thread."""
    store = set_up(root, timeout=60)
    with store.transaction() as tx:
        tx.write("a", "new")
        with tx.savepoint():
            tx.write("b", "new")
            began = time.monotonic()
            assert read(store, *NAMES) == OLD
            assert time.monotonic() - began < 30


def test_a_prepared_transaction_is_not_waited_for(root: Path) -> None:
    """Nothing of it is in place before the decision."""
    store = set_up(root, timeout=60)
    tx = store.transaction().begin()
    tx.write("a", "new")
    tx.delete("b")
    journal = prepare(tx._home, tx._staging, "process", two_phase=True)
    assert journal is not None
    private = root / ".txfiles"
    (private / f"{journal.tid}.intent").rename(private / f"{journal.tid}.prepared")
    began = time.monotonic()
    assert read(store) == read(store, *NAMES) == OLD
    assert time.monotonic() - began < 30
    with store.snapshot() as snap:
        Commit(tx._home, journal, "prepared")()
        assert snap.read("c") == b"old"
        with pytest.raises(SnapshotExpiredError):
            snap.read("a")
    tx._end(discard=False)
    assert sorted(name for name in os.listdir(root) if name in NAMES) == ["a", "c", "d"]


@pytest.mark.leaves_debris
def test_after_a_failed_sync_the_state_after_can_be_read_though_recovery_waits_for_a_restart(root: Path) -> None:
    set_up(root, "full")
    calls: Any = FaultyFS(system.KernelFS())
    with system.use(calls):
        write_durably(root)
    last = calls.trace.count("sync_dir")

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    faulty: Any = nth_call("sync_dir", last, fail)
    with system.use(faulty), pytest.raises((SettleError, CommitOutcomeUnknownError)), FileTransaction(root) as tx:
        for name in NAMES:
            tx.write(name, "newer")
    store = FileStore(root, timeout=60)
    with pytest.raises(RecoveryError, match="restart"):
        store.recover()
    began = time.monotonic()
    for pins in ((), NAMES):
        with store.snapshot(*pins) as snap:
            assert [snap.read(name) for name in NAMES] == [b"newer"] * 4
    assert time.monotonic() - began < 30
