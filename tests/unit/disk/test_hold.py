"""A file that is held: who opens it sees that somebody works with it, until that ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from txfiles import FileStore, FileTransaction
from txfiles._disk import system
from txfiles._disk.system import FileSystem, KernelFS
from txfiles.errors import CommitError, SettleError
from txfiles.testing import SimFS
from txfiles.testing._faults import FaultyFS


@pytest.fixture(params=["kernel", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FileSystem, int]]:
    fs: FileSystem = KernelFS() if request.param == "kernel" else SimFS()
    at = fs.open_dir(None, os.fsencode(tmp_path) if request.param == "kernel" else b"/sim")
    yield fs, at
    fs.close(at)


def is_held(fs: FileSystem, at: int, name: bytes = b"a") -> bool:
    fd = fs.open_read(at, name)
    try:
        return fs.is_held(fd)
    finally:
        fs.close(fd)


@pytest.mark.parametrize("end", ["let_go", "close"])
def test_it_is_held_until_it_is_let_go_or_closed(place: tuple[FileSystem, int], end: str) -> None:
    fs, at = place
    fd = fs.create(at, b"a")
    assert not is_held(fs, at)
    mine = fs.hold(fd)
    fs.close(fd)
    assert is_held(fs, at)
    fs.rename(at, b"a", at, b"b")
    assert is_held(fs, at, b"b")
    assert is_held(fs, at, b"b"), "who asks has let it go"
    getattr(fs, end)(mine)
    assert not is_held(fs, at, b"b")


def test_one_holds_it(place: tuple[FileSystem, int]) -> None:
    fs, at = place
    fd = fs.create(at, b"a")
    other = fs.open_read(at, b"a")
    mine = fs.hold(fd)
    with pytest.raises(BlockingIOError) as raised:
        fs.hold(other)
    assert raised.value.errno == errno.EWOULDBLOCK
    fs.let_go(mine)
    fs.let_go(fs.hold(other))
    fs.close(fd)
    fs.close(other)


def test_a_crash_lets_it_go() -> None:
    sim = SimFS()
    fd = sim.create(sim.open_dir(None, b"/sim"), b"a")
    sim.hold(fd)
    after = sim.after_kill()
    assert not is_held(after, after.open_dir(None, b"/sim"))


def test_a_child_does_not_keep_what_its_parent_lets_go(tmp_path: Path) -> None:
    fs = KernelFS()
    at = fs.open_dir(None, os.fsencode(tmp_path))
    fd = fs.create(at, b"a")
    mine = fs.hold(fd)
    fs.close(fd)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(told, 1)
        os._exit(0)
    os.close(told)
    fs.let_go(mine)
    assert not is_held(fs, at)
    os.close(tell)
    os.waitpid(child, 0)
    fs.close(at)


def held_while(root: Path, fails: int = 0) -> list[tuple[str, bool]]:
    """Before each rename or unlink of a commit, whether its journal is held; the rename number `fails` fails."""
    seen: list[tuple[str, bool]] = []
    renames = 0

    def plan(_: int, name: str) -> None:
        nonlocal renames
        if name in ("rename", "unlink"):
            seen.extend(journals(root))
        renames += name == "rename"
        if name == "rename" and renames == fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with FileTransaction(root, create=True) as tx:
        tx.write("a", "old")
    with system.use(FaultyFS(KernelFS(), plan)):  # type: ignore[arg-type]
        tx = FileTransaction(root)
    with tx:
        tx.write("a", "new")
        tx.write("b", "new")
    return seen


def journals(root: Path) -> list[tuple[str, bool]]:
    found = []
    for path in sorted((root / ".txfiles").glob("*.*")):
        if path.suffix in (".intent", ".committed", ".aborting"):
            fs = KernelFS()
            at = fs.open_dir(None, os.fsencode(path.parent))
            found.append((path.suffix, is_held(fs, at, os.fsencode(path.name))))
            fs.close(at)
    return found


def test_a_journal_is_held_as_long_as_its_writer_works(root: Path) -> None:
    seen = held_while(root)
    assert dict(seen) == {".intent": True, ".committed": True}
    assert all(held for _, held in seen)


def test_a_journal_is_held_while_it_is_undone(root: Path) -> None:
    with pytest.raises(CommitError):
        held_while(root, fails=3)
    assert journals(root) == []


def test_a_journal_that_is_left_to_recovery_is_held_by_nobody(root: Path) -> None:
    """Its commit has returned: a reader must not take it for one that is under way."""
    with pytest.raises(SettleError):
        held_while(root, fails=4)
    assert journals(root) == [(".committed", False)]
    with FileStore(root).snapshot("a", "b") as snap:
        assert [snap.read("a"), snap.read("b")] == [b"new", b"new"]
