"""N36: who watches a root and reads it in a transaction is not told of that as of a change."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest

from txfiles import FileStore, FileTransaction
from txfiles.errors import LockTimeoutError

_EVENT = struct.Struct("iIII")
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8  # inotify(7)
_NAMES = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800  # moved, created, deleted
_ANY = _MODIFY | _ATTRIB | _CLOSE_WRITE | _NAMES


class Events(list[tuple[bytes, int]]):
    """The changes that inotify tells, read when the block ends."""


@contextmanager
def watched(*directories: Path) -> Iterator[Events]:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0
    try:
        for directory in directories:
            assert libc.inotify_add_watch(fd, os.fsencode(directory), _ANY) >= 0
        events = Events()
        yield events
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        while data:
            _, mask, _, length = _EVENT.unpack_from(data)
            events.append((data[_EVENT.size : _EVENT.size + length].rstrip(b"\0"), mask))
            data = data[_EVENT.size + length :]
    finally:
        os.close(fd)


def test_n36_reading_in_a_transaction_makes_no_event(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "one")
        tx.write("sub/b", "two")
    with watched(root, root / "sub", root / ".txfiles") as events:
        with FileTransaction(root) as tx:
            assert tx.read("a") == b"one"
            assert tx.glob("**") == ["a", "sub/b"]
            assert tx.version("sub/b")
        with FileStore(root).snapshot() as snap:
            assert snap.read("a") == b"one"
    assert events == []


def test_n36_the_watch_would_see_a_change(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "one")
    with watched(root, root / ".txfiles") as events, FileTransaction(root) as tx:
        tx.write("a", "two")
    assert {b"HEAD", b"a"} <= dict(events).keys()


def test_n36_where_only_what_is_open_for_writing_can_be_locked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: flock(2) of a descriptor that is open for reading is EBADF there."""
    lock = filelock.lock_descriptor

    def over_nfs(fd: int, **options: bool) -> bool:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        return lock(fd, **options)

    monkeypatch.setattr(filelock, "lock_descriptor", over_nfs)
    with FileTransaction(root) as tx:
        tx.write("a", "one")
    with FileTransaction(root) as tx:
        with ThreadPoolExecutor(1) as pool, pytest.raises(LockTimeoutError):
            pool.submit(FileTransaction(root, timeout=0).begin).result()
        tx.write("a", "two")
    assert (root / "a").read_text(encoding="utf-8") == "two"
