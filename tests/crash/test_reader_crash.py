"""A reader beside a commit that stands still: its writer was killed, or stopped, at each call to the system.

What a reader sees is the state before or the state after, whole, and it is what recovery then makes of it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.crash.scenarios import BY_NAME, NAMES, prepare
from tests.support import DEEP
from txfiles import FileStore, FileTransaction, Snapshot, recover
from txfiles._disk import system
from txfiles.errors import CommitError, SnapshotExpiredError
from txfiles.testing._faults import FaultyFS, kill_at

Seen = dict[str, bytes | None]
NAMES_CHANGE = frozenset(("create", "symlink", "mkdir", "rmdir", "link", "rename", "unlink"))
CHANGES = NAMES_CHANGE | {"open_append", "write", "chmod", "chown", "set_mtime", "set_xattr", "remove_xattr"}


def forbid_changes(_: int, name: str) -> None:
    """A plan: a read-only file system."""
    if name in CHANGES:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@contextmanager
def read_only() -> Iterator[None]:
    with system.use(FaultyFS(system.KernelFS(), forbid_changes)):  # type: ignore[arg-type]
        yield


def seen_on_disk(root: Path, folder: str = "") -> Seen:
    """Everything below the root, links followed: the content of files, `None` for directories."""
    found: Seen = {}
    for name in sorted(os.listdir(root / folder)):
        path = os.path.join(folder, name)
        if name == ".txfiles":
            continue
        if (root / path).is_dir():
            found[path] = None
            found |= seen_on_disk(root, path)
        else:
            found[path] = (root / path).read_bytes()
    return found


def seen_in(snap: Snapshot, folder: str = "") -> Seen:
    found: Seen = {}
    for name in snap.listdir(folder or "."):
        path = os.path.join(folder, name)
        assert snap.exists(path)
        try:
            found[path] = snap.read(path)
        except IsADirectoryError:
            found[path] = None
            found |= seen_in(snap, path)
    if not folder:
        assert snap.glob("**") == sorted(path for path, content in found.items() if content is not None)
    return found


def fresh(name: str, root: Path) -> Seen:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    prepare(BY_NAME[name], root)
    return seen_on_disk(root)


def commit(root: Path, name: str, fs: FaultyFS, durability: str) -> None:
    with system.use(fs), FileTransaction(root, durability=durability) as tx:  # type: ignore[arg-type]
        BY_NAME[name].change(tx)


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child; its number. It is not reaped."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(2)
        os._exit(0)
    return child


def listing(root: Path) -> list[tuple[str, int, bytes]]:
    private = root / ".txfiles"
    return [(p.name, p.stat().st_ino, p.read_bytes()) for p in sorted(private.iterdir())]


def check_reader(root: Path, before: Seen, after: Seen, *, copy: bool) -> bool:
    """Read beside what a dead writer left, without and with the right to write; whether it was the state after."""
    left = listing(root)
    with read_only():
        with FileStore(root, timeout=0).snapshot() as snap:
            found = seen_in(snap)
        files = [path for path, content in found.items() if content is not None]
        with FileStore(root, timeout=0).snapshot("missing", *files) as snap:
            assert [snap.read(path) for path in files] == [found[path] for path in files]
            assert not snap.exists("missing")
    assert listing(root) == left, "a reader without the right to write has changed something"
    assert found in (before, after)
    if copy:
        there = root.with_name("copy")
        shutil.copytree(root, there, symlinks=True)
        with FileStore(there, timeout=0).snapshot() as snap:
            assert seen_in(snap) == found
        shutil.rmtree(there)
    with FileStore(root, timeout=0).snapshot() as snap:
        assert seen_in(snap) == found
    recover(root, timeout=0)
    assert seen_on_disk(root) == found, "recovery ended otherwise than a reader saw it"
    return found == after


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("name", NAMES)
def test_writer_killed_at_each_call(memory: Path, name: str, durability: str) -> None:
    root = memory / "root"
    fresh(name, root)
    fs = FaultyFS(system.KernelFS())  # type: ignore[arg-type]
    commit(root, name, fs, durability)
    after = seen_on_disk(root)
    outcomes = set()
    calls = [n for n, call in enumerate(fs.trace, 1) if DEEP or call in CHANGES]
    for number in calls[:: 1 if DEEP or name != "mixed" else 4]:
        before = fresh(name, root)
        faulty = FaultyFS(system.KernelFS(), kill_at(number))  # type: ignore[arg-type]
        child = in_child(lambda faulty=faulty: commit(root, name, faulty, durability))  # type: ignore[misc]
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        try:
            outcomes.add(check_reader(root, before, after, copy=number % 5 == 0))
        except BaseException as error:
            error.add_note(f"killed at call {number}, {fs.trace[number - 1]}")
            raise
    assert outcomes == {False, True}


class FailThenDie:
    """A plan: the second rename onto a target fails, and `number` calls after that the process is killed."""

    def __init__(self, number: int, apply_from: int) -> None:
        self.number = number
        self.apply_from = apply_from
        self.failed_at = 0

    def __call__(self, now: int, name: str) -> None:
        if not self.failed_at and name == "rename" and now > self.apply_from:
            self.failed_at = now
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.failed_at and now == self.failed_at + self.number:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", ["replace four", "swap", "mixed"])
def test_writer_killed_at_each_call_of_an_undo(memory: Path, name: str) -> None:
    root = memory / "root"
    fresh(name, root)
    fs = FaultyFS(system.KernelFS())  # type: ignore[arg-type]
    commit(root, name, fs, "process")
    after = seen_on_disk(root)
    renames = [number for number, call in enumerate(fs.trace, 1) if call == "rename"]
    last_of_apply = renames[-2]  # the very last one makes the journal HEAD
    for number in range(1, 1000, 1 if DEEP else 3):
        before = fresh(name, root)
        plan = FailThenDie(number, last_of_apply - 1)

        def work(plan: FailThenDie = plan) -> None:
            with pytest.raises(CommitError):
                commit(root, name, FaultyFS(system.KernelFS(), plan), "process")  # type: ignore[arg-type]

        status = os.waitpid(in_child(work), 0)[1]
        if not os.WIFSIGNALED(status):
            assert status == 0
            break
        assert not check_reader(root, before, after, copy=False) or number < 3
    assert number > 8


def wait_for_stop(child: int) -> bool:
    """Wait until the child has stopped (true) or ended (false)."""
    status = os.waitpid(child, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        return True
    assert os.WIFEXITED(status)
    assert os.WEXITSTATUS(status) == 0
    return False


def stop_before_changes(_: int, name: str) -> None:
    """A plan: the process stops itself (SIGSTOP) before each call that changes something."""
    if name in CHANGES:
        os.kill(os.getpid(), signal.SIGSTOP)


def attempt(snap: Snapshot, expected: Seen) -> bool:
    """Read everything through a snapshot that was taken earlier; false if it has expired."""
    try:
        assert seen_in(snap) == expected
    except SnapshotExpiredError:
        return False
    return True


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("name", NAMES)
def test_writer_stopped_at_each_call(memory: Path, name: str, durability: str) -> None:
    """Snapshots taken before, and at some of the stops, stay what they were at each later stop, or expire."""
    root = memory / "root"
    fresh(name, root)
    commit(root, name, FaultyFS(system.KernelFS()), durability)  # type: ignore[arg-type]
    after = seen_on_disk(root)
    before = fresh(name, root)
    store = FileStore(root, timeout=0)
    child = in_child(lambda: commit(root, name, FaultyFS(system.KernelFS(), stop_before_changes), durability))  # type: ignore[arg-type]
    held: list[tuple[Snapshot, Seen]] = []
    outcomes = []
    pins = [path for path, content in before.items() if content is not None]
    try:
        pinned = store.snapshot(*pins)
        pinned.__enter__()
        stops = 0
        while wait_for_stop(child):
            left = listing(root)
            snap = store.snapshot()
            snap.__enter__()
            found = seen_in(snap)
            assert found in (before, after)
            outcomes.append(found == after)
            if stops % (3 if DEEP else 30) == 0 or (found == after and not any(s == after for _, s in held)):
                held.append((snap, found))
            else:
                snap.close()
            for old, expected in held:
                assert attempt(old, expected) or (expected == before and outcomes[-1])
            for path in pins:
                assert pinned.read(path) == before[path]
            assert listing(root) == left, "a reader beside a living writer has changed something"
            stops += 1
            os.kill(child, signal.SIGCONT)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        for old, _ in held:
            old.close()
        pinned.close()
    assert stops > 5
    assert outcomes == sorted(outcomes), "a reader saw the state after, and a later one the state before"
    assert set(outcomes) == {False, True}
    assert seen_on_disk(root) == after
