"""The writers' lock of a root on `SimFS`: in memory, and gone with the process."""

from __future__ import annotations

from typing import Protocol

from txfiles._disk.system import FileSystem, release
from txfiles._format.layout import LOCK
from txfiles._format.paths import decode
from txfiles.errors import ConflictError, LockTimeoutError, NestedTransactionError, TransactionClosedError


class LockingFS(FileSystem, Protocol):
    """A file system that knows who has which lock, by inode."""

    locks: dict[int, SimLock]


class SimLock:
    """Makes the lock file where it is missing, as the real lock does, but never waits: simulated time does not pass."""

    def __init__(self, fs: LockingFS, private_fd: int, root: bytes) -> None:
        self._fs = fs
        self._private_fd = private_fd
        self._path = decode(root)
        self._owner: object = None
        self._fd = -1
        self._ino = 0

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def acquire(self, timeout: float | None, owner: object) -> None:
        """Raises `LockTimeoutError` at once when somebody else has the lock, `NestedTransactionError` for its owner."""
        key = self._fs.fstat(self._private_fd).st_ino
        holder = self._fs.locks.get(key)
        if holder is not None and holder._owner == owner:
            raise NestedTransactionError(f"{self._path!r} is already locked by this owner", path=self._path)
        try:
            fd = self._fs.open_lock(self._private_fd, LOCK)
        except FileNotFoundError:
            fd = self._fs.create(self._private_fd, LOCK)
        if holder is not None:
            release(self._fs, fd)
            raise LockTimeoutError(f"{self._path!r} is locked by another writer", path=self._path)
        self._fd, self._ino, self._owner = fd, key, owner
        self._fs.locks[key] = self

    def stop_waiting(self) -> None:
        pass

    def check(self) -> None:
        """Raise `ConflictError` unless the lock file that is held is still the one on disk."""
        if not self.held:
            raise TransactionClosedError(f"{self._path!r} is not locked by this transaction", path=self._path)
        mine = self._fs.fstat(self._fd)
        try:
            if self._fs.stat(self._private_fd, LOCK).st_ino == mine.st_ino:
                return
        except FileNotFoundError:
            pass
        raise ConflictError(f"the lock file of {self._path!r} was removed or replaced", path=self._path)

    def release(self) -> None:
        if self.held:
            fd, self._fd = self._fd, -1
            del self._fs.locks[self._ino]
            release(self._fs, fd)
