"""Who waits for the writers' lock sleeps until it is freed: futex(2) on a page of a file that all of them can read.

The lock is flock(2), whoever sleeps where: a ring that nobody hears, or that is never made because the holder was
killed, costs time and nothing else. So nobody sleeps for long, and other programs (and systems: this is Linux) poll.
It rings for all processes that have the same `format` file; nothing is written to that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import partial
from typing import Any

from txfiles._format.layout import FORMAT, FORMAT_TEXT

ALL = (1 << 31) - 1
_LINUX64 = sys.platform == "linux" and sys.maxsize > 1 << 32
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(os.uname().machine if _LINUX64 else "", -1)
_WAIT, _WAKE = ctypes.c_long(0), ctypes.c_long(1)
_EXPECTED = ctypes.c_uint32(int.from_bytes(FORMAT_TEXT[:4], sys.byteorder))  # what is there, and stays
_SIZE = ctypes.c_size_t(4)
_START = ctypes.c_long(0)
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(private_fd: int, seconds: float) -> bool | None:
    """Sleep until it rings (true), for `seconds`, or until a signal comes. `None`, at once, if there is no bell."""
    time = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    answer = _call(private_fd, _WAIT, _EXPECTED, ctypes.byref(time))
    if answer == 0:
        return True
    return False if -answer in (errno.ETIMEDOUT, errno.EINTR) else None


def ring(private_fd: int, count: int = 1) -> int:
    """Wake those who have slept longest, at most `count`; how many there were."""
    return max(0, _call(private_fd, _WAKE, ctypes.c_long(count), None))


def _call(private_fd: int, what: ctypes.c_long, number: Any, time: Any) -> int:
    """futex(2) on a page that is mapped for this call only: it keeps the file system from being unmounted."""
    if _FUTEX < 0:
        return -errno.ENOSYS
    fds: list[int] = []  # `extend` has what the calls return before a signal can be handled
    pages: list[int] = []
    try:
        fds.extend(map(partial(os.open, dir_fd=private_fd), (FORMAT,), (_FLAGS,)))
        pages.extend(map(_libc.mmap, *((one,) for one in (None, _SIZE, _PROT_READ, _MAP_SHARED, fds[0], _START))))
        page = ctypes.c_void_p(pages[0])
        failed = page.value == _FAILED or _libc.syscall(_FUTEX, page, what, number, time, None, 0)
        return -ctypes.get_errno() if failed is True or failed < 0 else failed
    except OSError as error:
        return -(error.errno or errno.EIO)
    finally:
        if pages and pages[0] != _FAILED:
            _libc.munmap(ctypes.c_void_p(pages[0]), _SIZE)
        for fd in fds:
            os.close(fd)
