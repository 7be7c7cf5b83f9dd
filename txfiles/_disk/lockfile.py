"""The lock file: how it is opened, made and shared. Who has the lock is the business of `lock`."""

from __future__ import annotations

import errno
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._disk.system import give
from txfiles._format.layout import LOCK

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem, Stat

_ATTEMPTS = 50  # at a file that somebody is making, or removes again and again
_PAUSE = 0.001  # seconds between them


def open_lock_file(fs: FileSystem, private_fd: int, private: Stat) -> tuple[int, Stat]:
    """Open the lock file, or make it, and what it is; never through a symbolic link."""
    for attempt in range(_ATTEMPTS):
        try:
            fd = fs.open_lock(private_fd, LOCK)  # no O_CREAT: fs.protected_regular forbids it, even to root
        except FileNotFoundError:
            try:
                fd = fs.create(private_fd, LOCK)
            except FileExistsError:
                continue
        except PermissionError:
            if not private.st_mode & stat.S_IWGRP or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)  # another member of the group may be just making it, and not have shared it yet
            continue
        try:
            return fd, _share(fs, fd, private)
        except BaseException:
            fs.close(fd)
            raise
    raise OSError(errno.EAGAIN, "made and removed again and again")


def _share(fs: FileSystem, fd: int, private: Stat) -> Stat:
    """Let all lock who may write the private directory, whatever the umask; and its owner, if root made the file.

    Only a file of our own, empty and without another name: a stranger may have moved in one that is to stay private.
    """
    file = fs.fstat(fd)
    if not stat.S_ISREG(file.st_mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(file.st_mode) else errno.EINVAL, "not a regular file")
    shared = private.st_mode & stat.S_IWGRP
    if file.st_uid == private.st_uid and not shared and file.st_mode & 0o600 == 0o600:
        return file  # as ever
    if file.st_uid != (euid := fs.ids()[0]) or file.st_size or file.st_nlink != 1:
        return file
    uid, gid = private.st_uid if euid == 0 else euid, private.st_gid if shared else file.st_gid
    mode = 0o660 if shared else 0o600
    if (uid, gid) != (file.st_uid, file.st_gid):
        give(fs, fd, uid, gid)  # not to a group that we are not in, nor as root that is nobody on a server
    if file.st_mode & mode != mode:
        fs.chmod(fd, mode)
    return file


def close_copies(fs: FileSystem, lock: Stat) -> None:
    """Close every descriptor of the lock file: another thread was opening one, and had no time to note its number."""
    listing = fs.open_dir(None, b"/dev/fd", follow=True)
    try:
        fds = [int(name) for name in fs.listdir(listing)]
    finally:
        fs.close(listing)
    for fd in fds:
        with suppress(OSError):  # `listing` itself is among them
            found = fs.fstat(fd)
            if (found.st_dev, found.st_ino) == (lock.st_dev, lock.st_ino):
                fs.close(fd)
