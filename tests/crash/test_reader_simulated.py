"""A reader in every state that a crash may leave on the simulated file system, before and after a recovery.

Without the right to write it sees what the recovery then makes of it, through the journal; with it, it recovers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import DEEP
from txfiles import FileStore, FileTransaction, Snapshot, recover
from txfiles._disk import system
from txfiles.errors import CommitError
from txfiles.testing import Scenario, SimFS, explore
from txfiles.testing._faults import FaultyFS

CHANGES = frozenset(
    ("create", "open_append", "write", "symlink", "mkdir", "rmdir", "link", "rename", "unlink", "sync_file", "sync_dir")
)
Seen = dict[str, bytes | None]
Change = Callable[[FileTransaction], Any]


def forbid_changes(_: int, name: str) -> None:
    if name in CHANGES:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def seen_in(snap: Snapshot, folder: str = "") -> Seen:
    found: Seen = {}
    for name in snap.listdir(folder or "."):
        path = f"{folder}/{name}" if folder else name
        try:
            found[path] = snap.read(path)
        except IsADirectoryError:
            found[path] = None
            found |= seen_in(snap, path)
        except FileNotFoundError:
            found[path] = b"a link to nothing"
    if not folder:
        assert snap.glob("**") == sorted(path for path, content in found.items() if content is not None)
    return found


def look(fs: Any) -> Seen:
    with system.use(fs):
        store = FileStore("/sim", timeout=0)
        with store.snapshot() as snap:
            found = seen_in(snap)
        files = [path for path, content in found.items() if content not in (None, b"a link to nothing")]
        with store.snapshot(*files) as pinned:
            assert {path: pinned.read(path) for path in files} == {path: found[path] for path in files}
    return found


def read_and_recover(fs: SimFS) -> None:
    """Takes the place of recovery: a reader that may not write, one that may and recovers, and then recovery itself."""
    version = fs.disk.version
    found = look(FaultyFS(fs, forbid_changes))
    assert fs.disk.version == version, "a reader without the right to write changed something"
    assert look(fs) == found, "a reader that may write saw something else than one that may not"
    recover("/sim", timeout=0)
    assert look(fs) == found, "recovery made something else of it than a reader saw"


def files(fs: SimFS) -> None:
    for name in "abcd":
        fs.put(f"/sim/{name}", f"old {name}")
    fs.mkdirs("/sim/dir/deep")
    fs.put("/sim/dir/one", "1")
    fs.put("/sim/dir/deep/two", "2")
    fs.mkdirs("/sim/gone")
    fs.put("/sim/gone/f", "f")
    fs.put_symlink("/sim/link", "dir/one")
    with FileTransaction("/sim") as tx:
        tx.write("settled", "once")
    fs.sync_everything()


def few_files(fs: SimFS) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", f"old {name}")


def replace(tx: FileTransaction) -> None:
    for name in "abc":
        tx.write(name, f"new {name}")
    tx.write("created", "new")


def rearrange(tx: FileTransaction) -> None:
    tx.delete("d")
    tx.move("a", "b")
    tx.delete_tree("gone")
    tx.write("gone", "a file where a directory was")
    tx.write("link", "through the link")


def make_directories(tx: FileTransaction) -> None:
    tx.write("new/nested/file", "created")
    tx.delete("c")
    tx.mkdir("c")
    tx.write("c/inside", "a directory where a file was")


def remove_directories(tx: FileTransaction) -> None:
    tx.delete_tree("dir")
    tx.write("a", "new a")


def first(tx: FileTransaction) -> None:
    tx.write("a", "new a")
    tx.write("new", "new")


def step(change: Change) -> Callable[[SimFS], None]:
    def run(_: SimFS) -> None:
        with FileTransaction("/sim") as tx:
            change(tx)

    return run


def undone(change: Change, nth: int) -> Callable[[SimFS], None]:
    """The n-th rename of the transaction fails: it is undone."""

    def run(fs: SimFS) -> None:
        renames = 0

        def plan(_: int, name: str) -> None:
            nonlocal renames
            renames += name == "rename"
            if name == "rename" and renames == nth:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        before, fs.plan = fs.plan, plan
        try:
            with pytest.raises(CommitError), FileTransaction("/sim") as tx:
                change(tx)
        finally:
            fs.plan = before

    return run


SETUPS: dict[Change, Callable[[SimFS], None]] = {first: few_files}


@pytest.mark.parametrize("change", [replace, rearrange, make_directories, remove_directories, first])
def test_every_crash_of_a_commit(change: Change) -> None:
    scenario = Scenario(change.__name__, SETUPS.get(change, files), [step(change)], recover=read_and_recover)
    explored = explore(scenario, (64, 2) if DEEP else (8,))
    assert explored.different > 20


@pytest.mark.parametrize("change", [replace, rearrange, remove_directories])
def test_every_crash_of_an_undo(change: Change) -> None:
    attempt = step(change)
    scenario = Scenario("undone", files, [undone(change, 4)], recover=read_and_recover, attempt=attempt)
    explored = explore(scenario, (32, 2) if DEEP else (5,))
    assert explored.different > 20


def test_every_crash_of_a_recovery() -> None:
    """Also of one that a reader began."""
    scenario = Scenario("twice", few_files, [step(first)], recover=read_and_recover)
    explore(scenario, (16, 4, 2) if DEEP else (4, 2))
