"""fsync of several descriptors at once: io_submit(2) with IOCB_CMD_FSYNC, Linux 4.18 and newer.

The kernel runs each on a worker of its own, so that all of them wait for one commit of the file system's journal; a
thread for each costs more than that saves.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import weakref
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_ONCE = 64
"""As many descriptors as a `Batch` takes at most."""
CONTEXTS = 8
"""As many rounds of a process have a context at once: all processes of a system share fs.aio-max-nr."""

_LINUX64 = sys.platform == "linux" and sys.maxsize > 1 << 32
_NUMBERS = {"x86_64": (206, 209, 208, 207), "aarch64": (0, 2, 4, 1), "riscv64": (0, 2, 4, 1)}
_SETUP, _SUBMIT, _GETEVENTS, _DESTROY = _NUMBERS.get(os.uname().machine if _LINUX64 else "", (-1, -1, -1, -1))
_REQUEST = struct.Struct("<QIiHhI40x")  # struct iocb of linux/aio_abi.h: data, key, flags, opcode, priority, fd
_EVENT = struct.Struct("<QQqq")  # struct io_event: data, the request's address, the result, a second one
_FSYNC = 2  # IOCB_CMD_FSYNC
_PATIENCE = 1000  # interrupts of one batch
_WRITE_AND_WAIT = 7  # of sync_file_range(2)
_FORBIDDEN = (errno.ENOSYS, errno.EPERM, errno.EACCES)  # by a filter of system calls, as containers have
# Answers of a worker that are none of the disk: it may lack what the caller may do (EOVERFLOW: FUSE in a user
# namespace, before Linux 5.7).
_NOT_SO = (errno.EOVERFLOW, errno.EINVAL, *_FORBIDDEN)

_libc = ctypes.CDLL(None, use_errno=True)
_start = ctypes.c_int64(0)
_write: Any = getattr(_libc, "sync_file_range", None)
_refused = _SETUP < 0 or _write is None


class Context(ctypes.c_ulong):
    """A context of the kernel for asynchronous calls; it ends with its last reference (io_destroy(2))."""

    __hash__ = object.__hash__
    _pid = 0  # it belongs to an address space, so that a forked child has none

    def begin(self) -> bool:
        if _libc.syscall(_SETUP, ctypes.c_long(AT_ONCE), ctypes.byref(self)) == 0:
            self._pid = os.getpid()
        return self._pid != 0

    def __del__(self) -> None:
        if self.value and self._pid == os.getpid():
            _libc.syscall(_DESTROY, self)  # waits for what is under way


_idle: list[Context] = []
_all: weakref.WeakSet[Context] = weakref.WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


def take_context() -> Context | None:
    """What a `Batch` needs; `None` where the kernel has none for this process. To be given back: it is dear to make."""
    global _refused
    try:
        return _idle.pop()
    except IndexError:
        pass
    context = Context(0)
    if _refused or len(_all) >= CONTEXTS or not context.begin():
        _refused = _refused or ctypes.get_errno() in _FORBIDDEN
        return None
    _all.add(context)
    nothing = ctypes.c_long(0)
    _refused = _libc.syscall(_GETEVENTS, context, nothing, nothing, None, None) != 0
    _refused = _refused or _write(-1, _start, _start, _WRITE_AND_WAIT) == 0 or ctypes.get_errno() != errno.EBADF
    return None if _refused else context


def give_context(context: Context, batch: Batch | None) -> None:
    """Take it back after the last batch. One with a request under way is left to end."""
    if batch is None or batch.done:
        _idle.append(context)


class Batch:
    """The fsync of each of some descriptors.

    The data of all is written before the first fsync. ext4, for one, notes in its journal where new data is when that
    has been written; what comes after the commit that the first fsync asks for needs another one.
    """

    def __init__(self, fds: Sequence[int], context: Context) -> None:
        self._fds = fds
        self._context = context
        self._written: list[int] = []  # what sync_file_range says of each
        self._error = errno.EIO  # of those that it failed for
        self._begun: list[int] = []  # how many io_submit has taken
        self._alone: dict[int, int] = {}  # the errno of each that was not done so
        self._gone = False  # there is no answer to be had
        requests = [_REQUEST.pack(number, 0, 0, _FSYNC, 0, fd) for number, fd in enumerate(fds)]
        self._requests = ctypes.create_string_buffer(b"".join(requests))
        first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * len(fds))(*range(first, first + len(fds) * _REQUEST.size, _REQUEST.size))
        self._events = ctypes.create_string_buffer(len(fds) * _EVENT.size)

    def run(self, interrupts: list[BaseException]) -> None:
        """Do all; an interrupt is added to the list, and ends nothing."""
        for _ in range(_PATIENCE):
            try:
                return self._go_on()
            except BaseException as interrupt:
                interrupts.append(interrupt)

    @property
    def done(self) -> bool:
        """Nothing of it is under way in the kernel."""
        return not self._begun or self._taken() == len(self._ended())

    def codes(self) -> Sequence[int | None]:
        """The errno of each, 0 where it was done; `None` for all of them if an interrupt came before `run` began.

        EIO for those of which nothing is known, as after two interrupts at once.
        """
        if not self._begun:
            return [None] * len(self._fds)
        codes = [errno.EIO] * len(self._fds)
        for number, _, result, _ in self._ended():
            codes[number] = -result
        for number, code in self._alone.items():
            codes[number] = code
        # A failed write counts: fsync does not tell of it again on this descriptor.
        return [code or (self._error if failed else 0) for code, failed in zip(codes, self._written, strict=True)]

    def _go_on(self) -> None:
        """From where an interrupt left it: `extend` has what the calls return before a signal can be handled."""
        count = len(self._fds)
        if len(self._written) < count:
            rest = self._fds[len(self._written) :]
            self._written.extend(map(_write, rest, repeat(_start), repeat(_start), repeat(_WRITE_AND_WAIT)))
            if self._written.count(-1) == 1:
                self._error = ctypes.get_errno()
            if ctypes.get_errno() in _FORBIDDEN:
                self._error = 0
        if not self._begun:
            self._begun.extend(map(_libc.syscall, [_SUBMIT], [self._context], [ctypes.c_long(count)], [self._pointers]))
        while (missing := self._taken() - len(ended := self._ended())) and not self._gone:
            into = ctypes.byref(self._events, (self._taken() - missing) * _EVENT.size)
            got = _libc.syscall(_GETEVENTS, self._context, ctypes.c_long(missing), ctypes.c_long(missing), into, None)
            self._gone = got < 0 and ctypes.get_errno() != errno.EINTR
        refused = [number for number, _, result, _ in ended if -result in _NOT_SO]
        for number in (*refused, *range(self._taken(), count)):
            if number not in self._alone:
                self._alone[number] = _fsync(self._fds[number])

    def _taken(self) -> int:
        return max(self._begun[0], 0)

    def _ended(self) -> list[tuple[int, int, int, int]]:
        return [event for event in _EVENT.iter_unpack(self._events.raw) if event[1]]


def _fsync(fd: int) -> int:
    try:
        os.fsync(fd)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
