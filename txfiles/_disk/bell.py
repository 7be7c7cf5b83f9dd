"""Who waits for the writers' lock sleeps until it is freed: futex(2) on a page of a file that all of them can read.

Most sleep in a row, in the order in which they came. Who was woken there and found the lock taken again is the next: he
sleeps at the door, where he is woken before the others.

The lock is flock(2), whoever sleeps where: a ring that nobody hears, or that is never made because the holder was
killed, costs time and nothing else. So nobody sleeps for long, and other programs (and systems: this is Linux) poll.
It rings for all processes that have the same `format` file; nothing is written to that. To map a page of it takes long,
so who sleeps has a lock on the private directory meanwhile, which keeps nobody from anything: it is only asked for.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

from txfiles._format.layout import FORMAT, FORMAT_TEXT

try:
    import fcntl
except ImportError:  # elsewhere than on Unix there is no bell
    fcntl = None  # type: ignore[assignment]

ROW, DOOR = 1, 2
_ALL = (1 << 31) - 1
_LINUX64 = sys.platform == "linux" and sys.maxsize > 1 << 32
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(os.uname().machine if _LINUX64 else "", -1)
_WAIT, _WAKE, _WAKE_ANY = 9, 10, 1  # FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET, FUTEX_WAKE
_EXPECTED = int.from_bytes(FORMAT_TEXT[:4], sys.byteorder)  # what is there, and stays
_SIZE = 4
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_PROT_READ, _MAP_SHARED, _DONTFORK = 1, 1, 10
_NONE = 0  # no page
_ASK, _SAY = 36, 37  # F_OFD_GETLK, F_OFD_SETLK: fcntl(2)
_SLEEPS, _ANYBODY, _AWAKE = (struct.pack("hhqqi", kind, 0, 0, 0, 0) for kind in (0, 1, 2))  # F_RDLCK, F_WRLCK, F_UNLCK

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """The bell of the private directory that is open at `private_fd`, or, with -1, one that is nowhere.

    The page is mapped from the first use on until `close`: it keeps the file system from being unmounted.
    """

    def __init__(self, private_fd: int) -> None:
        self._private_fd = private_fd
        self._pages: list[int] = []  # what the calls return is in it before a signal can be handled
        self._identity = (-1, -1)  # of the file that is mapped

    def wait(self, place: int, seconds: float) -> bool | None:
        """Sleep until it rings (true), for `seconds`, or until a signal comes. `None`, at once, if there is no bell."""
        if _FUTEX < 0:
            return None
        until = time.monotonic() + seconds
        moment = _Timespec(int(until), int(until % 1 * 1e9))
        try:
            fcntl.fcntl(self._private_fd, _SAY, _SLEEPS)
            answer = self._call(_WAIT, _EXPECTED, ctypes.byref(moment), place)
        except OSError:
            return None
        finally:
            with suppress(OSError):
                fcntl.fcntl(self._private_fd, _SAY, _AWAKE)
        if answer == 0:
            return True
        return False if -answer in (errno.ETIMEDOUT, errno.EINTR) else None

    def is_heard(self) -> bool:
        """Whether somebody sleeps, who has opened the directory himself."""
        if _FUTEX < 0:
            return False
        with suppress(OSError):
            return fcntl.fcntl(self._private_fd, _ASK, _ANYBODY)[:2] != _AWAKE[:2]
        return False

    def ring(self, place: int) -> bool:
        """Wake the one that has slept longest there; whether there was one."""
        return self._call(_WAKE, 1, None, place) > 0

    def ring_for_one(self) -> None:
        """Wake the one that has slept longest of all."""
        self._call(_WAKE_ANY, 1, None, 0)

    def ring_for_all(self) -> None:
        """Wake everybody, wherever he sleeps."""
        self._call(_WAKE_ANY, _ALL, None, 0)

    def close(self) -> None:
        """May be called again; another use opens it again."""
        if not self._pages:
            return
        self._pages.insert(0, _NONE)  # the next line ends there, wherever an interrupt has come before
        deque(map(_libc.munmap, iter(self._pages.pop, _NONE), repeat(_SIZE)), 0)

    def forget(self) -> None:
        """In a forked child, which has no copy of the page: what is there by now is its own."""
        self._pages = []

    def _call(self, what: int, number: int, moment: object, place: int) -> int:
        if _FUTEX < 0:
            return -errno.ENOSYS
        try:
            page = self._page()
        except OSError as error:
            return -(error.errno or errno.EIO)
        what_, number_, place_ = map(ctypes.c_long, (what, number, place))
        answer = _libc.syscall(_FUTEX, ctypes.c_void_p(page), what_, number_, moment, None, place_)
        return -ctypes.get_errno() if answer < 0 else int(answer)

    def _page(self) -> int:
        """The page of the file that is there now."""
        there = os.stat(FORMAT, dir_fd=self._private_fd, follow_symlinks=False)
        if self._identity != (there.st_dev, there.st_ino) or not any(self._pages):
            self.close()
            fds: list[int] = []
            try:
                fds.extend(map(partial(os.open, dir_fd=self._private_fd), (FORMAT,), (_FLAGS,)))
                there = os.fstat(fds[0])
                arguments = ((one,) for one in (None, _SIZE, _PROT_READ, _MAP_SHARED, fds[0], 0))
                self._pages.extend(map(_libc.mmap, *arguments))
            finally:
                for fd in fds:
                    os.close(fd)
            if self._pages[-1] == _FAILED:
                self._pages.pop()
                raise OSError(ctypes.get_errno(), "the page cannot be mapped")
            _libc.madvise(self._pages[-1], _SIZE, _DONTFORK)
            self._identity = there.st_dev, there.st_ino
        return self._pages[-1]
