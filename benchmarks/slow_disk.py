"""A disk in memory that tells what reaches it, and whose flush takes as long as one likes, as that of a common SSD.

One file, served through /dev/fuse (Linux, Documentation/filesystems/fuse; the structures are in linux/fuse.h), for a
loop device to stand on. The loop device hands on every flush of its file system as one fsync of this file.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_IN, _OUT, _ATTR = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ"), struct.Struct("<QII6Q10I")
_IO = struct.Struct("<QQI")  # file handle, offset, size: how fuse_read_in and fuse_write_in begin
_FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS = 2, 3, 4, 14, 15, 16, 17
_RELEASE, _FSYNC, _FLUSH, _INIT, _INTERRUPT, _BATCH_FORGET = 18, 20, 25, 26, 36, 42
_WRITE_HEADER = 40
_MAX_WRITE = 1 << 20
_DIRECT_IO, _PARALLEL_WRITES = 1, 1 << 6
_BIG_WRITES, _ASYNC_DIO, _MAX_PAGES = 1 << 5, 1 << 15, 1 << 22
_THREADS = 8
_PR_SET_PDEATHSIG, _MNT_DETACH = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


Seen = Callable[[int, bytes], object]
"""Told, in the disk's process, of each write (offset, data) and each flush (-1, nothing), in their order."""


@contextmanager
def mounted(path: Path, memory: mmap.mmap, flush_ms: float = 0.0, *, seen: Seen | None = None) -> Iterator[None]:
    """Let `path` be a file of the bytes in `memory` until the end of the block. Needs root.

    With `seen`, which is told before a request is answered, one request is answered at a time.
    """
    path.touch()
    fd = os.open("/dev/fuse", os.O_RDWR)
    mode = stat.S_IFREG | 0o600
    options = f"fd={fd},rootmode={mode:o},user_id=0,group_id=0".encode()
    if _libc.mount(b"slow_disk", os.fsencode(path), b"fuse", 0, options) != 0:
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, os.strerror(number), str(path))
    child = os.fork()
    if child == 0:
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # a disk does not wait for a processor
            _Disk(fd, memory, flush_ms, seen).serve()
        finally:
            os._exit(0)
    os.close(fd)
    try:
        yield
    finally:
        _libc.umount2(os.fsencode(path), _MNT_DETACH)  # the loop device may need a moment to let go
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class _Disk:
    def __init__(self, fd: int, memory: mmap.mmap, flush_ms: float, seen: Seen | None) -> None:
        self.fd = fd
        self.size = len(memory)
        self.flush = flush_ms / 1e3
        self.data = memory
        self.threads = 1 if seen else _THREADS
        self.seen: Seen = seen or (lambda _offset, _data: None)

    def serve(self) -> None:
        threads = [threading.Thread(target=self._answer_all) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _answer_all(self) -> None:
        while True:
            try:
                request = os.read(self.fd, _MAX_WRITE + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, *_ = _IN.unpack_from(request)
            if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            answer = self._answer(opcode, memoryview(request)[_IN.size :])
            number, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
            os.write(self.fd, _OUT.pack(_OUT.size + len(body), number, unique) + body)

    def _answer(self, opcode: int, body: memoryview) -> bytes | int:
        """The body of the reply, or an errno."""
        if opcode == _READ:
            _, offset, size = _IO.unpack_from(body)
            return self.data[offset : offset + size]
        if opcode == _WRITE:
            _, offset, size = _IO.unpack_from(body)
            data = bytes(body[_WRITE_HEADER : _WRITE_HEADER + size])
            self.data[offset : offset + size] = data
            self.seen(offset, data)
            return struct.pack("<II", size, 0)
        if opcode == _FSYNC:
            time.sleep(self.flush)
            self.seen(-1, b"")
            return b""
        if opcode in (_FLUSH, _RELEASE):
            return b""
        if opcode in (_GETATTR, _SETATTR):
            mode = stat.S_IFREG | 0o600
            return _ATTR.pack(3600, 0, 0, 1, self.size, self.size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
        if opcode == _OPEN:
            return struct.pack("<QII", 0, _DIRECT_IO | _PARALLEL_WRITES, 0)
        if opcode == _STATFS:
            return struct.pack("<5Q4I24x", self.size // 4096, 0, 0, 1, 0, 4096, 255, 4096, 0)
        if opcode == _INIT:
            flags = struct.unpack_from("<IIII", body)[3] & (_BIG_WRITES | _ASYNC_DIO | _MAX_PAGES)
            pages = _MAX_WRITE // mmap.PAGESIZE
            return struct.pack("<IIIIHHIIHHII24x", 7, 31, 0, flags, 64, 48, _MAX_WRITE, 1, pages, 0, 0, 0)
        return errno.ENOSYS
