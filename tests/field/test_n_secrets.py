"""N18: a file with a secret is never there with a wider mode, by no name and at no moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.mounts import run
from txfiles import FileTransaction
from txfiles._disk import system

SECRET = b"hunter2 " * 300_000  # in several steps


class _Watched(system.KernelFS):
    """After every call that can give content or a mode to a file: who could read the secret now?"""

    seen: int = 0

    def _look(self, fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and os.pread(fd, 7, 0) == b"hunter2":
            self.seen += 1
            assert not found.st_mode & 0o077, oct(found.st_mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        assert not data or bytes(data[:7]) != b"hunter2" or not os.fstat(fd).st_mode & 0o077
        done = super().write(fd, data)
        self._look(fd)
        return done

    def chmod(self, fd: int, mode: int) -> None:
        super().chmod(fd, mode)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            self._look_at_all()

    def chown(self, fd: int, uid: int, gid: int) -> None:
        super().chown(fd, uid, gid)
        self._look_at_all()

    def set_xattr(self, fd: int, key: str, value: bytes) -> None:
        super().set_xattr(fd, key, value)
        self._look_at_all()

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        super().rename(at, name, to, new)
        self._look_at_all()

    def _look_at_all(self) -> None:
        for folder, _, files in os.walk(self.root):
            for name in files:
                found = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(found.st_mode) and Path(folder, name).read_bytes()[:7] == b"hunter2":
                    self.seen += 1
                    assert not found.st_mode & 0o077, (name, oct(found.st_mode))

    root: Path


def _write(tx: FileTransaction) -> None:
    tx.write("secret", SECRET, mode=0o600)


def _append(tx: FileTransaction) -> None:
    tx.append("secret", SECRET[:1000], mode=0o600)
    tx.append("secret", SECRET[1000:])


def _move(tx: FileTransaction) -> None:
    tx.write("sub/first", SECRET, mode=0o600)
    tx.move("sub/first", "secret")
    tx.delete_tree("sub")


def _copy(tx: FileTransaction) -> None:
    tx.write("first", SECRET, mode=0o600)
    tx.delete("secret", missing_ok=True)
    tx.copy("first", "secret")
    tx.delete("first")


WAYS = {"write": _write, "append": _append, "move": _move, "copy": _copy}


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.needs("setfacl")
@pytest.mark.parametrize("place", ["new", "instead of an open file", "open to a group", "under a default ACL"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_n18_a_secret_is_never_wider(root: Path, way: Callable[[FileTransaction], None], place: str) -> None:
    if place == "instead of an open file" and way is not _append:
        (root / "secret").write_bytes(b"old")
        (root / "secret").chmod(0o666)
    if place == "open to a group":
        os.chown(root, -1, 12345)
        root.chmod(0o2775)
    if place == "under a default ACL":
        run("setfacl", "-d", "-m", "u:1000:rwx,g::rwx,o::rwx", root)
    fs = _Watched()
    fs.root = root
    with _umask(0), system.use(fs), FileTransaction(root) as tx:
        way(tx)
    assert fs.seen > 1
    assert tree(root) == {"secret": SECRET}
    assert stat.S_IMODE(os.stat(root / "secret").st_mode) == 0o600
