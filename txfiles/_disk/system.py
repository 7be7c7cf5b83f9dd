"""The boundary to the operating system: the one module that makes system calls on the tree.

`FileSystem` is what the rest of the package may ask for. `KernelFS` asks the kernel; `txfiles.testing.SimFS` is the
same object in memory, with the assumptions A1 to A5 as an adversary. Names are bytes relative to a directory
descriptor `at`; with `at=None` they are absolute paths. No call follows a symbolic link in its last component, except
those that say so. Errors are the kernel's own `OSError`s.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat as stat_module
import struct
import sys
import time
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

from txfiles._disk import rounds

try:
    import fcntl
except ImportError:  # elsewhere than on Unix: nothing is held
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from txfiles._disk.rounds import Job


class Stat(Protocol):
    """The fields of `os.stat_result` that are used."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...


class FileSystem(Protocol):
    """The calls. Each may raise `OSError`; those that change a directory are not durable until `sync_dir` (A2)."""

    lock_factory: Callable[..., object] | None
    """Makes the writers' lock instead of `lock.RootLock`, for a file system that the kernel does not know."""
    numbers: dict[tuple[int, int, int] | None, int]
    """The highest number of a transaction that came to nothing, of each root where one did."""
    logs: dict[tuple[object, ...], Any]
    """What this process has read of the log of each root, see `logfile.Read`."""

    def absolute(self, path: bytes) -> bytes: ...
    def open_dir(self, at: int | None, name: bytes, *, follow: bool = False, passing: bool = False) -> int: ...
    def open_read(self, at: int, name: bytes) -> int: ...
    def open_append(self, at: int, name: bytes) -> int: ...
    def open_lock(self, at: int, name: bytes) -> int: ...
    def open_write(self, at: int, name: bytes) -> int: ...
    def create(self, at: int, name: bytes, mode: int = 0o600) -> int: ...
    def close(self, fd: int) -> None: ...
    def hold(self, fd: int) -> int: ...
    def let_go(self, fd: int) -> None: ...
    def is_held(self, fd: int) -> bool: ...
    def read(self, fd: int, size: int) -> bytes: ...
    def write(self, fd: int, data: bytes | memoryview) -> int: ...
    def read_at(self, fd: int, size: int, offset: int) -> bytes: ...
    def read_small(self, at: int, names: Sequence[bytes], limit: int) -> tuple[list[Stat], list[bytes]] | None: ...
    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int: ...
    def allocate(self, fd: int, size: int) -> None: ...
    def write_in_place(self, fd: int) -> None: ...
    def kind(self, fd: int) -> str: ...
    def free(self, fd: int) -> int: ...
    def seek(self, fd: int, offset: int, whence: int) -> int: ...
    def truncate(self, fd: int, size: int) -> None: ...
    def fileno(self, fd: int) -> int: ...
    def fstat(self, fd: int) -> Stat: ...
    def stat(self, at: int | None, name: bytes) -> Stat: ...
    def mount_id(self, at: int, name: bytes = b"") -> int: ...
    def born(self, at: int, name: bytes = b"") -> int: ...
    def project(self, fd: int) -> tuple[int, bool]: ...
    def confined(self, at: int, directory: bytes, to: int | None = None) -> bool: ...
    def session(self, fd: int) -> bytes: ...
    def readlink(self, at: int, name: bytes) -> bytes: ...
    def symlink(self, text: bytes, at: int, name: bytes) -> None: ...
    def listdir(self, fd: int) -> list[bytes]: ...
    def mkdir(self, at: int | None, name: bytes, mode: int) -> None: ...
    def rmdir(self, at: int, name: bytes) -> None: ...
    def link(self, at: int, name: bytes, to: int, new: bytes) -> None: ...
    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None: ...
    def rename_new(self, at: int, name: bytes, to: int, new: bytes) -> None: ...
    def exchange(self, at: int, name: bytes, to: int, new: bytes) -> None: ...
    def unlink(self, at: int, name: bytes) -> None: ...
    def chmod(self, fd: int, mode: int) -> None: ...
    def chown(self, fd: int, uid: int, gid: int) -> None: ...
    def set_mtime(self, fd: int, mtime_ns: int) -> None: ...
    def xattrs(self, at: int, name: bytes) -> dict[str, bytes]: ...
    def set_xattr(self, fd: int, key: str, value: bytes) -> None: ...
    def remove_xattr(self, fd: int, key: str) -> None: ...
    def start_writeback(self, fd: int) -> None: ...
    def sync_file(self, fd: int) -> None: ...
    def sync_data(self, fd: int) -> None: ...
    def sync_dir(self, fd: int) -> None: ...
    def sync_file_system(self, fd: int) -> None: ...
    def run_all(self, jobs: Iterable[Job]) -> None: ...
    def random_id(self) -> str: ...
    def boot_id(self) -> str: ...
    def now(self) -> int: ...
    def booted(self) -> int: ...
    def pid(self) -> int: ...
    def ids(self) -> tuple[int, int]: ...
    def umask(self, at: int, parent: bytes) -> int: ...
    def on_fork(
        self,
        callback: Callable[[], None],
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None: ...


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, or of a quota that is used up."""
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_PATH = getattr(os, "O_PATH", os.O_RDONLY)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a FIFO that slipped in must not block us
_READ = os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _CLOEXEC
_LINUX = sys.platform == "linux"
if not hasattr(os, "O_TMPFILE"):
    import tempfile  # noqa: F401 (before it is needed: see docs/limits.md)
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_NOT_TO_GIVE = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOVERFLOW)
_UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


class Closed(int):
    """The number of a descriptor that is closed."""

    __slots__ = ()


class Descriptor(Closed):
    """A descriptor that is closed with its last reference: an interrupt may come before it has a name, or its end."""

    __slots__ = ()
    disowned = False

    def __del__(self) -> None:
        if not self.disowned:
            with suppress(OSError):
                os.close(self)


_Descriptor: type[Descriptor] = Descriptor


def _disown() -> None:
    """In a forked child: what is open there may be closed by its number, and the number used again."""
    global _Descriptor
    _Descriptor.disowned = True
    _Descriptor = type("Descriptor", (Descriptor,), {"__slots__": (), "disowned": False})


def _open(at: int | None, name: bytes, flags: int, mode: int = 0o777) -> int:
    """open(2). No signal is handled between the kernel's answer and the `Descriptor`: `map` calls both."""
    call = os.open if at is None else partial(os.open, dir_fd=at)
    return next(map(_Descriptor, map(call, (name,), (flags,), (mode,))))


_numbers: dict[tuple[int, int, int] | None, int] = {}
_logs: dict[tuple[object, ...], Any] = {}


class KernelFS:
    """`FileSystem` on the running kernel."""

    lock_factory: Callable[..., object] | None = None
    numbers = _numbers
    logs = _logs

    def absolute(self, path: bytes) -> bytes:
        """realpath(3); what is there the kernel resolves at once (proc(5)), which takes a fifth of the time."""
        if _LINUX:
            try:
                fd = _open(None, path, os.O_PATH | _CLOEXEC)
                try:
                    found = os.readlink(b"/proc/self/fd/%d" % fd)
                    if found == path:
                        return found
                    if os.path.samestat(os.fstat(fd), os.stat(found)):  # not one of another mount or root
                        return found
                finally:
                    self.close(fd)
            except OSError as error:
                if error.errno not in _UNREACHABLE:
                    raise
        return os.path.realpath(path)

    def open_dir(self, at: int | None, name: bytes, *, follow: bool = False, passing: bool = False) -> int:
        """With `passing` only for what is below it: O_PATH, where there is that, asks for no right to read it."""
        flags = (_PATH if passing else os.O_RDONLY) | _DIRECTORY | _CLOEXEC | (0 if follow else _NOFOLLOW)
        return _open(at, name, flags)

    def open_read(self, at: int, name: bytes) -> int:
        return _open(at, name, _READ)

    def open_append(self, at: int, name: bytes) -> int:
        return _open(at, name, os.O_WRONLY | os.O_APPEND | _NOFOLLOW | _NONBLOCK | _CLOEXEC)

    def open_lock(self, at: int, name: bytes) -> int:
        """For flock(2), where something may be written (EROFS): for reading, or who watches the root sees a change."""
        fd = _open(at, name, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _CLOEXEC)
        if os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            self.close(fd)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return fd

    def open_write(self, at: int, name: bytes) -> int:
        """To be read and overwritten in place."""
        return _open(at, name, os.O_RDWR | _NOFOLLOW | _NONBLOCK | _CLOEXEC)

    def create(self, at: int, name: bytes, mode: int = 0o600) -> int:
        return _open(at, name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC, mode)

    def close(self, fd: int) -> None:
        if type(fd) is Closed:  # before an interrupt: by now the number may be that of another file
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if isinstance(fd, Descriptor):
            fd.__class__ = Closed  # type: ignore[assignment]  # no `__del__` runs then, in which an interrupt is lost
        os.close(fd)

    def hold(self, fd: int) -> int:
        """Another descriptor of an open file, which is held until `let_go` of it, or the end of the process: flock(2).

        Raises `OSError` where there are no such locks, or somebody has it.
        """
        if fcntl is None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        mine = next(map(_Descriptor, map(os.dup, (fd,))))
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close(mine)
            raise
        return mine

    def let_go(self, fd: int) -> None:
        """Closing alone would leave it to a child that another thread has forked."""
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            self.close(fd)

    def is_held(self, fd: int) -> bool:
        """Whether somebody holds the file; those who ask do not see one another. False where nobody can tell."""
        try:
            if fcntl is None:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as error:
            return error.errno == errno.EWOULDBLOCK
        return False

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return os.write(fd, data)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def read_small(self, at: int, names: Sequence[bytes], limit: int) -> tuple[list[Stat], list[bytes]] | None:
        """Stat and content of each; `None` unless all are regular files of at most `limit` bytes, and of their size.

        In half the time of call by call.
        """
        found: list[Stat] = []
        contents: list[bytes] = []
        opened = map(_Descriptor, map(partial(os.open, dir_fd=at), names, repeat(_READ)))
        for name in names:
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
            size = status.st_size
            if size > limit or not stat_module.S_ISREG(status.st_mode):
                return None
            fd = next(opened)
            data = os.read(fd, size + 1)
            fd.__class__ = Closed  # type: ignore[assignment]  # as `close` does
            os.close(fd)
            if len(data) != size:
                return None
            found.append(status)
            contents.append(data)
        return found, contents

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, size: int) -> None:
        """Room for `size` bytes, zeros where there is nothing yet: posix_fallocate(3), ftruncate(2) elsewhere."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        elif os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)

    def write_in_place(self, fd: int) -> None:
        """Of a new file: what is written over stays where it is, where a file system knows that: ioctl_iflags(2)."""
        if _LINUX:
            with suppress(OSError):
                flags = bytearray(8)
                fcntl.ioctl(fd, _FS_IOC_GETFLAGS, flags)
                (found,) = struct.unpack("l", flags)
                fcntl.ioctl(fd, _FS_IOC_SETFLAGS, struct.pack("l", found | _NOCOW))

    def kind(self, fd: int) -> str:
        """`"btrfs"`, `"ext"` (2 to 4), `"memory"` (tmpfs, ramfs): the kind that a file is on, statfs(2); else empty."""
        call = getattr(_libc, "fstatfs", None) if _LINUX else None
        buffer = bytearray(256)
        if call is None or call(fd, _Buffer.from_buffer(buffer)) != 0:
            return ""
        return _KINDS.get(struct.unpack_from("l", buffer)[0] & 0xFFFFFFFF, "")

    def free(self, fd: int) -> int:
        """Bytes that the caller can still write on the file system of `fd`: statvfs(3)."""
        found = os.fstatvfs(fd)
        return found.f_bavail * found.f_frsize

    def seek(self, fd: int, offset: int, whence: int) -> int:
        return os.lseek(fd, offset, whence)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fileno(self, fd: int) -> int:
        """The kernel's number of a descriptor; raises `io.UnsupportedOperation` where the kernel does not know it."""
        return fd

    def fstat(self, fd: int) -> Stat:
        return os.fstat(fd)

    def stat(self, at: int | None, name: bytes) -> Stat:
        return os.stat(name, dir_fd=at, follow_symlinks=False)

    def mount_id(self, at: int, name: bytes = b"") -> int:
        """The mount that `name` (or `at` itself) is in: statx(2), STATX_MNT_ID; a device number elsewhere."""
        if not _LINUX:
            return (os.stat(name, dir_fd=at, follow_symlinks=False) if name else os.fstat(at)).st_dev
        found = _statx_mount_id(at, name)
        if found is None:
            fd = _open(at, name, os.O_PATH | _NOFOLLOW | _CLOEXEC) if name else at
            try:
                found = _fdinfo_mount_id(fd)
            finally:
                if fd != at:
                    self.close(fd)
        return found

    def born(self, at: int, name: bytes = b"") -> int:
        """When the inode was made, in nanoseconds: statx(2), STATX_BTIME; 0 where nobody knows.

        An inode number comes back as soon as its file is gone; nothing sets this time.
        """
        if not _LINUX:
            found = os.stat(name, dir_fd=at, follow_symlinks=False) if name else os.fstat(at)
            return int(getattr(found, "st_birthtime", 0) * 1e9)
        told = _statx(at, name, 0x800)
        if told is None:
            return 0
        seconds, nanoseconds = _BORN.unpack_from(told)
        return max(0, int(seconds * 10**9 + nanoseconds))

    def project(self, fd: int) -> tuple[int, bool]:
        """The quota project of a directory, and whether its entries must belong to it: ioctl_xfs_fsgetxattr(2)."""
        if _LINUX:
            buffer = bytearray(_FSXATTR.size)
            with suppress(OSError):  # a file system without projects
                fcntl.ioctl(fd, _FS_IOC_FSGETXATTR, buffer)
                flags, project = _FSXATTR.unpack(buffer)
                return project, bool(flags & _PROJINHERIT)
        return 0, False

    def confined(self, at: int, directory: bytes, to: int | None = None) -> bool:
        """Whether a sandbox keeps entries from moving between `at` and a directory in it: landlock(7), REFER.

        Or, with `to`, between `at` and that directory of the same mount; raises EACCES if nobody may write there.

        A directory cannot be linked, which is EPERM; but a sandbox is asked before that, and says EXDEV. What the disk
        itself failed is raised.
        """
        if _LINUX:
            try:
                name, beside = (directory + b"/refer", at) if to is None else (b"refer", to)
                os.link(directory, name, src_dir_fd=at, dst_dir_fd=beside, follow_symlinks=False)
            except OSError as error:
                if error.errno in _DISK_FAILED or (to is not None and error.errno == errno.EACCES):
                    raise
                return error.errno == errno.EXDEV
        return False

    def session(self, fd: int) -> bytes:
        """What two processes share only if they see one page cache of this file: boot and mount, 32 bytes.

        Empty, which equals no session, where either is not to be had. The boot alone says too little: a disk can be
        pulled, or unmounted and mounted again, and what was not synced is gone.
        """
        mount, boot = _unique_mount_id(fd) if _LINUX else None, self.boot_id()
        if mount is None or not boot:
            return b""
        return _session(boot, mount)

    def readlink(self, at: int, name: bytes) -> bytes:
        return os.readlink(name, dir_fd=at)

    def symlink(self, text: bytes, at: int, name: bytes) -> None:
        os.symlink(text, name, dir_fd=at)

    def listdir(self, fd: int) -> list[bytes]:
        """The names in a directory. Listed by a path it costs half the calls that a descriptor does (fdopendir(3))."""
        if _LINUX:
            try:
                return os.listdir(b"/proc/self/fd/%d" % fd)
            except OSError as error:  # without proc(5), or without the right to open it once more
                if error.errno not in _UNREACHABLE:
                    raise
        return [name.encode(_ENCODING, _ERRORS) for name in os.listdir(fd)]

    def mkdir(self, at: int | None, name: bytes, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=at)

    def rmdir(self, at: int, name: bytes) -> None:
        os.rmdir(name, dir_fd=at)

    def link(self, at: int, name: bytes, to: int, new: bytes) -> None:
        os.link(name, new, src_dir_fd=at, dst_dir_fd=to, follow_symlinks=False)

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        os.rename(name, new, src_dir_fd=at, dst_dir_fd=to)

    def rename_new(self, at: int, name: bytes, to: int, new: bytes) -> None:
        """Rename to a name that is free: RENAME_NOREPLACE; EINVAL where the file system lacks it (renameat2(2))."""
        _renameat2(at, name, to, new, 1)

    def exchange(self, at: int, name: bytes, to: int, new: bytes) -> None:
        """Let two names change what they lead to: RENAME_EXCHANGE; EINVAL where the file system lacks it."""
        _renameat2(at, name, to, new, 2)

    def unlink(self, at: int, name: bytes) -> None:
        os.unlink(name, dir_fd=at)

    def chmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def chown(self, fd: int, uid: int, gid: int) -> None:
        os.fchown(fd, uid, gid)

    def set_mtime(self, fd: int, mtime_ns: int) -> None:
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def xattrs(self, at: int, name: bytes) -> dict[str, bytes]:
        """All extended attributes of `name`; empty where the file system has none. Linux only (listxattr(2))."""
        if not _LINUX:
            return {}
        try:
            return _xattrs(b"/proc/self/fd/%d/%s" % (at, name))  # there is no listxattrat(2) to rely on
        except OSError as error:
            if error.errno != errno.ENOENT or os.path.isdir("/proc/self/fd"):
                raise
        return self._xattrs_without_proc(at, name)

    def _xattrs_without_proc(self, at: int, name: bytes) -> dict[str, bytes]:
        try:
            fd = self.open_read(at, name)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return {}  # a symbolic link has none that a user could set
            if error.errno == errno.EACCES:
                message = "/proc is not mounted, so extended attributes of what may not be read cannot be known"
                raise OSError(errno.ENOSYS, message, name) from error
            raise
        try:
            return _xattrs(fd)
        finally:
            self.close(fd)

    def set_xattr(self, fd: int, key: str, value: bytes) -> None:
        os.setxattr(fd, key, value)

    def remove_xattr(self, fd: int, key: str) -> None:
        if _LINUX:
            os.removexattr(fd, key)

    def start_writeback(self, fd: int) -> None:
        """Let the kernel begin to write the file's data, without waiting (sync_file_range(2)); only a hint."""
        if _LINUX:
            _libc.sync_file_range(fd, _OFF0, _OFF0, 2)  # SYNC_FILE_RANGE_WRITE

    def sync_file(self, fd: int) -> None:
        """fsync(2); on macOS F_FULLFSYNC, because fsync there leaves the data in the drive's cache (fsync(2))."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        """fdatasync(2): content and size; mode, owner and times may stay behind. On macOS as `sync_file`."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            self.sync_file(fd)

    def sync_dir(self, fd: int) -> None:
        self.sync_file(fd)

    def sync_file_system(self, fd: int) -> None:
        """syncfs(2): all that the file system of `fd` holds, also what the caller may not open. Linux only."""
        call = getattr(_libc, "syncfs", None)
        if call is None:
            raise OSError(errno.ENOSYS, "what may not be opened cannot be synced here")
        if call(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def run_all(self, jobs: Iterable[Job]) -> None:
        """Do every job, several at a time when there are many; then raise the first failure, or else the interrupt."""
        rounds.run_all(jobs, (KernelFS.sync_file, KernelFS.sync_dir) if _LINUX else ())

    def random_id(self) -> str:
        return os.urandom(16).hex()

    def boot_id(self) -> str:
        """What differs after every restart of the machine (proc(5)); empty where there is none to be had."""
        global _boot
        if _boot is None:
            try:
                with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                    _boot = file.read().decode().strip()  # as bytes: the encoding of a locale would have to be imported
            except OSError:
                _boot = ""
        return _boot

    def now(self) -> int:
        """The time of the wall, in nanoseconds."""
        return time.time_ns()

    def booted(self) -> int:
        """When the machine was started, by the same clock; 0 where nobody knows."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return 0 if clock is None else time.time_ns() - time.clock_gettime_ns(clock)

    def pid(self) -> int:
        return _pid

    def ids(self) -> tuple[int, int]:
        return os.geteuid(), os.getegid()

    def umask(self, at: int, parent: bytes) -> int:
        """The process umask, read without setting it: proc(5), or else the mode of a nameless file in `parent`."""
        with suppress(FileNotFoundError), open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"Umask:"):
                    return int(line[6:], 8)
        fd = _open_nameless(at, parent)
        try:
            return 0o777 & ~stat_module.S_IMODE(os.fstat(fd).st_mode)
        finally:
            self.close(fd)

    def on_fork(
        self,
        callback: Callable[[], None],
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Call it in each forked child, and in the parent `before` and `after` that."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=callback)
            if before is not None:
                os.register_at_fork(before=before)
            if after is not None:
                os.register_at_fork(after_in_parent=after)


_boot: str | None = None
_pid = os.getpid()


def _in_child() -> None:
    global _pid
    _pid = os.getpid()
    _disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


_libc: Any = ctypes.CDLL(None, use_errno=True)
_OFF0 = ctypes.c_int64(0)
_Buffer: Any = ctypes.c_char * 256
_DISK_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_FSXATTR = struct.Struct("=I8xI12x")  # fsx_xflags, fsx_projid
_FS_IOC_FSGETXATTR, _PROJINHERIT = 0x801C581F, 0x200
_FS_IOC_GETFLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_FS_IOC_SETFLAGS, _NOCOW = 1 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 2, 0x00800000
_KINDS = {0x9123683E: "btrfs", 0x01021994: "memory", 0x858458F6: "memory", 0xEF53: "ext"}  # magic numbers of statfs(2)
_MASK, _BORN, _MOUNT = struct.Struct("=I"), struct.Struct("=80xqI"), struct.Struct("=144xQ")  # of struct statx


def _xattrs(file: bytes | int) -> dict[str, bytes]:
    """Of a path, or of an open file."""
    follow = isinstance(file, int)
    try:
        keys = os.listxattr(file, follow_symlinks=follow)
        return {key: os.getxattr(file, key, follow_symlinks=follow) for key in sorted(keys)} if keys else {}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return {}
        raise


def _open_nameless(at: int, parent: bytes) -> int:
    """A new file of mode 0777 as far as the umask allows: without a name in `parent`, or else with one for a moment."""
    with suppress(AttributeError, OSError):
        return _open(at, parent, os.O_TMPFILE | os.O_WRONLY | _CLOEXEC)
    import tempfile

    path = os.fsencode(os.path.join(tempfile.gettempdir(), os.urandom(16).hex()))
    fd = _open(None, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOEXEC)
    os.unlink(path)
    return fd


def _statx_mount_id(at: int, name: bytes) -> int | None:
    """statx(2): `stx_mnt_id`, `None` where the C library, the kernel (before 5.8) or a filter of calls lacks it."""
    found = _statx(at, name, 0x1000)
    return None if found is None else int(_MOUNT.unpack_from(found)[0])


@lru_cache(64)
def _session(boot: str, mount: int) -> bytes:
    return hashlib.blake2b(b"%s %d" % (boot.encode(), mount), digest_size=32).digest()


def _unique_mount_id(fd: int) -> int | None:
    """The same that no later mount gets again: STATX_MNT_ID_UNIQUE, from Linux 6.8 on."""
    found = _statx(fd, b"", 0x4000)
    return None if found is None else int(_MOUNT.unpack_from(found)[0])


def _statx(at: int, name: bytes, wanted: int) -> bytearray | None:
    """`None` where `wanted` is not told."""
    call = getattr(_libc, "statx", None)
    if call is None:
        return None
    buffer = bytearray(256)
    flags = 0x100 | 0x800 | (0 if name else 0x1000)  # AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_EMPTY_PATH
    if call(at, name, flags, wanted, _Buffer.from_buffer(buffer)) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):  # a kernel, or a filter of system calls, that does not know it
            return None
        raise OSError(number, os.strerror(number), os.fsdecode(name))
    (mask,) = _MASK.unpack_from(buffer)
    return buffer if mask & wanted else None


def _renameat2(at: int, name: bytes, to: int, new: bytes, flags: int) -> None:
    call = getattr(_libc, "renameat2", None) if _LINUX else None
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name, None, new)
    if b"\0" in name or b"\0" in new:
        raise ValueError("embedded null byte")
    if call(at, name, to, new, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name, None, new)


def _fdinfo_mount_id(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENOSYS, "the kernel does not tell the mount of a file")


def write_all(fs: FileSystem, fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, however many calls it takes: write(2) may write less than it was given."""
    rest = data
    while rest:
        done = fs.write(fd, rest)
        if done == len(rest):
            return
        if done <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        rest = memoryview(rest)[done:]


def write_all_at(fs: FileSystem, fd: int, data: bytes | memoryview, offset: int) -> None:
    """The same in place, from `offset` on."""
    rest = memoryview(data)
    while rest:
        done = fs.write_at(fd, rest, offset)
        if done <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        rest, offset = rest[done:], offset + done


def give(fs: FileSystem, fd: int, uid: int, gid: int) -> bool:
    """chown(2); false where the caller may not, or where its user namespace does not know them (EINVAL)."""
    try:
        fs.chown(fd, uid, gid)
    except OSError as error:
        if error.errno not in _NOT_TO_GIVE:
            raise
        return False
    return True


def release(fs: FileSystem, *fds: int) -> None:
    """Close descriptors that nothing was written through: what close(2) then reports means nothing."""
    for fd in fds:
        try:  # noqa: SIM105 (readers close many files, and `suppress` takes longer than close(2))
            fs.close(fd)
        except OSError:
            pass


_current: FileSystem = KernelFS()


def current() -> FileSystem:
    """The file system that new transactions work on."""
    return _current


@contextmanager
def use(fs: FileSystem) -> Iterator[None]:
    """Let transactions begun inside the block work on `fs`; for `txfiles.testing`."""
    global _current
    before, _current = _current, fs
    try:
        yield
    finally:
        _current = before
