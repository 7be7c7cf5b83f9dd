"""The writers' lock of a root, and its policy.

L1  The lock is flock(2) on R/.txfiles/lock and nothing else. It ends with the process that holds it; the content,
    the age and the owner of the file mean nothing, and there is no other kind of lock to fall back to.
L2  The file is never removed. What was locked is compared with what is on disk, because whoever removes the file
    would otherwise let a second writer in.
L3  A forked child keeps no copy of the descriptor: it belongs to the same open file as the parent's, and would
    keep the lock after the parent's death. It is closed there, not unlocked, which would unlock the parent too.
    Nothing of that is known to a fork that Python does not see: see docs/limits.md.
L4  The writers of one process queue in the order of their arrival, and only the first of them asks the kernel.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Protocol, cast

import filelock

from txfiles._disk.bell import Bell
from txfiles._disk.interrupts import GivingWay
from txfiles._disk.lockfile import close_copies, open_lock_file
from txfiles._disk.pace import Pace, Wait
from txfiles._disk.system import release
from txfiles._format.layout import LOCK, PRIVATE
from txfiles._format.paths import decode
from txfiles.errors import (
    ConflictError,
    NestedTransactionError,
    TransactionClosedError,
    UnsupportedFilesystemError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._disk.system import FileSystem, Stat

_ATTEMPTS = 50  # at a lock file that somebody keeps replacing
_IDLE_QUEUES = 64  # remembered, for their pace
_NO_LOCKS = frozenset((errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP))


class Owner:
    """Who would wait for itself in a second transaction: a thread, a task, or a task and the thread that it blocks."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, thread: threading.Thread | None, task: object) -> None:
        self._thread = thread
        self._task = task

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owner) and (
            (self._thread is not None and self._thread is other._thread)
            or (self._task is not None and self._task == other._task)
        )

    def become(self, other: Owner) -> None:
        """From here on it is the other one who would wait for itself."""
        self._thread, self._task = other._thread, other._task

    def leave(self) -> None:
        """From here on nobody is this owner."""
        self._thread = self._task = None


def here() -> Owner:
    """The owner of what blocks this thread until it ends."""
    return Owner(threading.current_thread(), task_of_this_thread())


task_of_this_thread: Callable[[], object] = lambda: None  # noqa: E731 (`_asyncio.tasks` puts the one that knows asyncio here)


class Lock(Protocol):
    """The writers' lock of one root."""

    @property
    def held(self) -> bool: ...
    def acquire(self, timeout: float | None, owner: object) -> None: ...
    def stop_waiting(self) -> None: ...
    def check(self) -> None: ...
    def release(self) -> None: ...


def make_lock(fs: FileSystem, private_fd: int, root: bytes, private: Stat | None = None) -> Lock:
    """The lock that goes with a file system."""
    if fs.lock_factory is not None:
        return cast("Lock", fs.lock_factory(fs, private_fd, root))
    return RootLock(fs, private_fd, root, private)


def is_locked(fs: FileSystem, private_fd: int) -> bool:
    """Whether a writer has the lock now, for those who may not lock it themselves: it needs to be read only.

    Raises `OSError` when the lock file cannot be opened. Of a lock that is not the kernel's nothing is told: false.
    """
    if fs.lock_factory is not None:
        return False
    try:
        fd = fs.open_read(private_fd, LOCK)
    except FileNotFoundError:
        return False
    try:
        if not filelock.lock_descriptor(fd, blocking=False):
            return True
        filelock.unlock_descriptor(fd)  # closing alone would leave it to a child that is forked right now (L3)
        with closing(Bell(private_fd)) as bell:  # who was woken meanwhile found it taken
            if bell.is_heard():
                bell.ring_for_one()
        return False
    except OSError as error:
        if error.errno == errno.EBADF:  # NFS locks only what is open for writing: then nobody can tell
            return True
        if error.errno in _NO_LOCKS:
            return False
        raise
    finally:
        release(fs, fd)


def refuse_nested(fs: FileSystem, root: bytes, owner: object) -> None:
    """Raise `NestedTransactionError` where the owner already has or awaits the lock of this root in this process."""
    with suppress(FileNotFoundError, NotADirectoryError):
        private = fs.stat(None, b"/".join((root.rstrip(b"/"), PRIVATE)))
        with _mutex:
            queue = _queues.get((private.st_dev, private.st_ino), _no_queue)
            is_nested = any(ticket.owner == owner for ticket in queue.tickets)
        if is_nested:
            raise nested(decode(root))


def nested(root: str) -> NestedTransactionError:
    return NestedTransactionError(f"this thread or task already has a transaction on {root!r}", path=root)


class RootLock:
    """The writers' lock of the root at the absolute path `root`, whose private directory is open at `private_fd`.

    The caller keeps `private_fd` open until the lock is released. A lock that is dropped while held is released.
    `private` is what was found there just now.
    """

    _ticket: _Ticket | None = None  # also where `__init__` was never entered

    def __init__(self, fs: FileSystem, private_fd: int, root: bytes, private: Stat | None = None) -> None:
        self._waiting: _Ticket | None = None
        self._stopped = False
        self._fs = fs
        self._private_fd = private_fd
        self._private = private
        self._path = decode(b"/".join((root.rstrip(b"/"), PRIVATE, LOCK)))
        _hook_fork(fs)

    @property
    def held(self) -> bool:
        """Whether this object has the lock; false in a forked child."""
        return self._ticket is not None and self._ticket.locked

    def acquire(self, timeout: float | None, owner: object) -> None:
        """Wait for the lock, at most `timeout` seconds; `None` is for ever, 0 gives up at once.

        Owners are compared with `==`. Raises `NestedTransactionError` when the owner already has or awaits the lock of
        this root in this process, `LockTimeoutError`, `UnsupportedFilesystemError` where there are no file locks, and
        `OSError` when the lock file cannot be opened. After an error nothing is held.
        """
        if self.held:
            raise NestedTransactionError(f"{self._path!r} is already locked by this transaction", path=self._path)
        wait = Wait(timeout, self._path)
        ticket = self._waiting = _Ticket(self._fs, self._private_fd, owner)
        try:
            private = self._private or self._fs.fstat(self._private_fd)
            if not ticket.join((private.st_dev, private.st_ino)):
                message = f"this thread or task already has a transaction that locks {self._path!r}"
                raise NestedTransactionError(message, path=self._path)
            with GivingWay():
                if self._stopped or not ticket.turn.acquire(timeout=wait.left()) or self._stopped:
                    raise wait.timed_out()
            self._lock(ticket, private, wait)
            self._ticket = ticket
        except BaseException:
            _end(ticket)
            raise
        finally:
            self._waiting = None

    def stop_waiting(self) -> None:
        """From another thread: `acquire`, now or later, ends with `LockTimeoutError` unless it is about to succeed."""
        self._stopped = True
        ticket = self._waiting
        if ticket is not None:
            with _mutex:
                ticket.wake()
            with closing(Bell(self._private_fd)) as bell:
                bell.ring_for_all()

    def check(self) -> None:
        """Raise `ConflictError` unless the lock file that is held is still the one on disk."""
        ticket = self._ticket
        if ticket is None or not ticket.locked:
            raise TransactionClosedError(f"{self._path!r} is not locked by this transaction", path=self._path)
        if not self._is_on_disk(ticket):
            raise ConflictError(f"the lock file {self._path!r} was removed or replaced", path=self._path)

    def release(self) -> None:
        """Free the lock, from any thread; does nothing when it is not held."""
        if self._ticket is not None:
            _end(self._ticket)
            self._ticket = None

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()

    def _lock(self, ticket: _Ticket, private: Stat, wait: Wait) -> None:
        """REQUIRES: `ticket` is the first of its queue."""
        queue, bell = ticket.queue, ticket.bell
        queue.begin(wait, bell)
        for _ in range(_ATTEMPTS):
            try:
                ticket.open(private)
            except OSError as error:
                raise self._named(error) from error
            while not self._try(ticket):
                if self._stopped:
                    raise wait.timed_out()
                wait.sleep(bell)
                queue.met_others()
            if self._is_on_disk(ticket):
                ticket.locked = True
                return
            ticket.close()
        raise ConflictError(f"the lock file {self._path!r} is replaced again and again", path=self._path)

    def _try(self, ticket: _Ticket) -> bool:
        if ticket.fd < 0:
            raise TransactionClosedError("the process was forked while it waited for the lock", path=self._path)
        try:
            return ticket.try_lock()
        except OSError as error:
            if error.errno in _NO_LOCKS:
                message = f"the file system has no file locks: {error.strerror}: {self._path!r}"
                raise UnsupportedFilesystemError(message, path=self._path) from error
            raise self._named(error) from error

    def _is_on_disk(self, ticket: _Ticket) -> bool:
        try:
            there = self._fs.stat(self._private_fd, LOCK)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == ticket.identity

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, f"{error.strerror} (the lock file)", self._path)


class _Queue(Pace):
    """The writers of this process for one root, in the order of their arrival, and the pace that they keep."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets: deque[_Ticket] = deque()


# Reentrant: a lock that is collected is released, and a signal handler may save, in the midst of what is done under it.
_mutex = threading.RLock()
_queues: dict[tuple[int, int], _Queue] = {}
_no_queue = _Queue()


class _Ticket:
    """The place of one writer in the queue, and its descriptor of the lock file while it is the first.

    A descriptor that is open, locked or not, belongs to a ticket that is in a queue: that is how a child finds it.
    """

    def __init__(self, fs: FileSystem, private_fd: int, owner: object) -> None:
        self.owner = owner
        self.bell = Bell(private_fd)
        self.turn = threading.Lock()  # released when the ticket is the first
        self.turn.acquire()
        self.queue = _no_queue
        self.fd = -1
        self.identity = (-1, -1)  # of the file that `fd` is open on
        self.locked = False
        self._fs = fs
        self._private_fd = private_fd
        self._opening_at = -1
        self._unlock_due = False
        self._closing = threading.RLock()

    def join(self, key: tuple[int, int]) -> bool:
        """Go to the end of the queue; false when the owner is in it already."""
        with _mutex:
            if key not in _queues and len(_queues) >= _IDLE_QUEUES:
                for idle in [known for known, queue in list(_queues.items()) if not queue.tickets]:
                    _queues.pop(idle, None)
            queue = _queues.get(key) or _Queue()
            if any(ticket.owner == self.owner for ticket in list(queue.tickets)):
                return False
            self.queue = queue
            queue.tickets.append(self)
            _queues[key] = queue
            queue.tickets[0].wake()
            return True

    def leave(self) -> None:
        self.bell.close()
        with _mutex:
            if self in self.queue.tickets:
                self.queue.tickets.remove(self)
            if self.queue.tickets:
                self.queue.tickets[0].wake()

    def wake(self) -> None:
        """REQUIRES: `_mutex`. May be called again."""
        with suppress(RuntimeError):  # it is awake
            self.turn.release()

    def open(self, private: Stat) -> None:
        self._opening_at = self._private_fd
        try:
            self.fd, file = open_lock_file(self._fs, self._private_fd, private)
            self.identity = file.st_dev, file.st_ino
        finally:
            self._opening_at = -1

    def try_lock(self) -> bool:
        try:
            return self._try_lock()
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            self._open_to_write()  # NFS locks only what is open for writing: flock(2)
            return self._try_lock()

    def _try_lock(self) -> bool:
        self._unlock_due = True  # also if a Ctrl-C comes after the kernel's answer
        try:
            self._unlock_due = filelock.lock_descriptor(self.fd, blocking=False)
        except OSError:
            self._unlock_due = False
            raise
        return self._unlock_due

    def _open_to_write(self) -> None:
        fd = self._fs.open_append(self._private_fd, LOCK)
        file = self._fs.fstat(fd)
        if (file.st_dev, file.st_ino) != self.identity:
            release(self._fs, fd)
            raise ConflictError("the lock file was replaced while it was opened")
        fd, self.fd = self.fd, fd
        release(self._fs, fd)

    def close(self) -> None:
        """Unlock and close. Closing alone would leave the lock to a child that another thread forks right now (L3)."""
        with self._closing:
            if self.fd < 0:
                return
            try:
                if self._unlock_due:
                    with suppress(OSError):  # closing frees it as well
                        filelock.unlock_descriptor(self.fd)
                        self.queue.freed(self.bell)
            finally:
                if self.locked:
                    self.queue.released = time.monotonic()
                fd, self.fd, self.locked, self._unlock_due = self.fd, -1, False, False
                release(self._fs, fd)

    def abandon(self) -> None:
        """In a forked child: close what belongs to the parent (L3)."""
        fd, self.fd, self.locked, self.queue = self.fd, -1, False, _no_queue
        self._closing = threading.RLock()
        self.bell.forget()
        if fd >= 0:
            release(self._fs, fd)
        elif self._opening_at >= 0:
            with suppress(FileNotFoundError):  # then it was not made yet
                close_copies(self._fs, self._fs.stat(self._opening_at, LOCK))


def _end(ticket: _Ticket) -> None:
    try:
        ticket.close()
        ticket.leave()
    except BaseException:  # once more, so that a Ctrl-C in the midst of it leaves nothing held
        ticket.close()
        ticket.leave()
        raise


_fork_hooked = False


def _hook_fork(fs: FileSystem) -> None:
    global _fork_hooked
    with _mutex:
        if not _fork_hooked:
            _fork_hooked = True
            fs.on_fork(_abandon_all)


def _abandon_all() -> None:
    """In a forked child: nothing of the parent's locks is ours, nor what its other threads were doing with them."""
    global _mutex
    _mutex = threading.RLock()
    tickets = [ticket for queue in list(_queues.values()) for ticket in list(queue.tickets)]
    _queues.clear()
    for ticket in tickets:
        ticket.abandon()
