"""The system calls of `SimFS`: they answer as Linux does to root. Nothing here counts, fails on purpose or crashes."""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple

from txfiles.testing._simdisk import Disk
from txfiles.testing._simnode import MTIME, OWNER, ROOT, XATTRS, Kind, Node
from txfiles.testing._simtree import NAME_MAX, Options, SimTree, Spot, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._disk.system import Stat

_FIRST_FD = 1 << 20  # the kernel's numbers are smaller: a descriptor that leaks to it is EBADF there
_TEXT_MAX = 4095
_NAMESPACES = ("user.", "trusted.", "security.", "system.")
_TYPES: dict[Kind, int] = {"file": stat.S_IFREG, "dir": stat.S_IFDIR, "link": stat.S_IFLNK}
How = Literal["replace", "new", "exchange"]
_devices = itertools.count(1000, 1000)


class SimStat(NamedTuple):
    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_mtime_ns: int

    @property
    def st_ctime_ns(self) -> int:
        """As if nobody set the time of a file."""
        return self.st_mtime_ns


class _Open:
    __slots__ = ("append", "path", "position", "readable", "serial", "writable")

    def __init__(self, serial: int, path: bytes, *, readable: bool, writable: bool = False, append: bool = False):
        self.serial = serial
        self.path = path
        self.readable = readable
        self.writable = writable
        self.append = append
        self.position = 0


class SimCalls(SimTree):
    """The calls of the boundary that touch the tree. Attributes are plain names and values; an ACL is one of them."""

    def __init__(self, options: Options, disk: Disk | None = None) -> None:
        super().__init__(options, disk)
        self._device = next(_devices)  # other than in any other life of this disk
        self._fds: dict[int, _Open] = {}
        self._opened: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._next_fd = _FIRST_FD

    # -- opening --------------------------------------------------------------------------------------------------

    def open_dir(self, at: int | None, name: bytes, *, follow: bool = False, passing: bool = False) -> int:
        spot = self._at(at, name, follow=follow)
        node = self.disk.nodes[self._existing(spot, name)]
        if node.kind != "dir":
            raise failure(errno.ENOTDIR, name)
        return self._open(node, at, name, readable=True)

    def open_read(self, at: int, name: bytes) -> int:
        node = self.disk.nodes[self._existing(self._at(at, name), name)]
        if node.kind == "link":
            raise failure(errno.ELOOP, name)
        return self._open(node, at, name, readable=True)

    def open_append(self, at: int, name: bytes) -> int:
        node = self.disk.nodes[self._existing(self._at(at, name), name)]
        if node.kind != "file":
            raise failure(errno.ELOOP if node.kind == "link" else errno.EISDIR, name)
        return self._open(node, at, name, readable=False, writable=True, append=True)

    def open_lock(self, at: int, name: bytes) -> int:
        return self.open_read(at, name)

    def open_write(self, at: int, name: bytes) -> int:
        node = self.disk.nodes[self._existing(self._at(at, name), name)]
        if node.kind != "file":
            raise failure(errno.ELOOP if node.kind == "link" else errno.EISDIR, name)
        return self._open(node, at, name, readable=True, writable=True)

    def create(self, at: int, name: bytes, mode: int = 0o600) -> int:
        spot = self._free_spot(at, name)
        node = self._make(spot, "file", mode & 0o7777 & ~self.options.umask)
        return self._open(node, at, name, readable=True, writable=True)

    def close(self, fd: int) -> None:
        self._close(fd)

    def hold(self, fd: int) -> int:
        opened = self._fd(fd)
        if opened.serial in self._held.values():
            raise failure(errno.EWOULDBLOCK)
        mine = self._open_as(opened)
        self._held[mine] = opened.serial
        return mine

    def let_go(self, fd: int) -> None:
        self._close(fd)

    def is_held(self, fd: int) -> bool:
        return self._fd(fd).serial in self._held.values()

    def _close(self, fd: int) -> None:
        serial = self._fd(fd).serial
        del self._fds[fd]
        self._held.pop(fd, None)
        self._opened[serial] -= 1
        if not self._opened[serial]:
            del self._opened[serial]
            self._unlinked(serial)

    def _open(
        self, node: Node, at: int | None, name: bytes, *, readable: bool, writable: bool = False, append: bool = False
    ) -> int:
        path = self._told_at(at, name)
        return self._open_as(_Open(node.serial, path, readable=readable, writable=writable, append=append))

    def _open_as(self, opened: _Open) -> int:
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._fds[fd] = opened
        self._opened[opened.serial] = self._opened.get(opened.serial, 0) + 1
        return fd

    def _is_open(self, serial: int) -> bool:
        return serial in self._opened

    def _fd(self, fd: int) -> _Open:
        try:
            return self._fds[fd]
        except KeyError:
            raise failure(errno.EBADF) from None

    def _at(self, at: int | None, name: bytes, *, follow: bool = False) -> Spot:
        if b"\0" in name:
            raise ValueError("embedded null byte")
        return self._walk(ROOT if at is None else self._fd(at).serial, name, follow=follow)

    def _free_spot(self, at: int | None, name: bytes) -> Spot:
        """Where something new is to be made."""
        spot = self._at(at, name)
        if spot.serial:
            raise failure(errno.EEXIST, name)
        if not self.disk.nodes[spot.directory].nlink:
            raise failure(errno.ENOENT, name)
        return spot

    # -- content --------------------------------------------------------------------------------------------------

    def read(self, fd: int, size: int) -> bytes:
        data = self._read(fd, size, self._fd(fd).position)
        self._fd(fd).position += len(data)
        return data

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        return self._read(fd, size, offset)

    def read_small(self, at: int, names: Sequence[bytes], limit: int) -> tuple[list[Stat], list[bytes]] | None:
        found: list[int] = []
        for name in names:
            found.append(self._existing(self._at(at, name), name))
            node = self.disk.nodes[found[-1]]
            if node.kind != "file" or len(node.data) > limit:
                return None
        return [self._stat(serial) for serial in found], [bytes(self.disk.nodes[serial].data) for serial in found]

    def _read(self, fd: int, size: int, position: int) -> bytes:
        opened = self._fd(fd)
        node = self.disk.nodes[opened.serial]
        if not opened.readable:
            raise failure(errno.EBADF)
        if node.kind == "dir":
            raise failure(errno.EISDIR)
        return node.data[position : position + size]

    def write(self, fd: int, data: bytes | memoryview) -> int:
        opened = self._fd(fd)
        size = len(self.disk.nodes[opened.serial].data)
        position = size if opened.append else opened.position
        done = self._write(opened, data, position)
        if done:
            opened.position = position + done
        return done

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        opened = self._fd(fd)
        size = len(self.disk.nodes[opened.serial].data)
        return self._write(opened, data, size if opened.append else offset)  # as Linux does (pwrite(2), BUGS)

    def _write(self, opened: _Open, data: bytes | memoryview, position: int) -> int:
        if not opened.writable:
            raise failure(errno.EBADF)
        chunk = bytes(data)[: self.options.longest_write]
        if chunk:
            beyond = max(0, position - len(self.disk.nodes[opened.serial].data))
            chunk = chunk[: max(0, self._room(opened, position) - beyond)]
            if not chunk:
                raise failure(errno.ENOSPC)
            self.disk.write(opened.serial, position, chunk, self._mtime())
        return len(chunk)

    def _room(self, opened: _Open, position: int) -> int:
        """Bytes that can be written from there on."""
        if self.options.capacity is None:
            return sys.maxsize
        return self.options.capacity - self.disk.used + max(0, len(self.disk.nodes[opened.serial].data) - position)

    def allocate(self, fd: int, size: int) -> None:
        opened = self._fd(fd)
        if not opened.writable:
            raise failure(errno.EBADF)
        have = len(self.disk.nodes[opened.serial].data)
        if size > have:
            if size - have > self._room(opened, have):
                raise failure(errno.ENOSPC)
            self.disk.truncate(opened.serial, size, self._mtime())

    def write_in_place(self, fd: int) -> None:
        self._fd(fd)

    def kind(self, fd: int) -> str:
        return self.options.kind

    def free(self, fd: int) -> int:
        self._fd(fd)
        capacity = self.options.capacity  # where there is none, nobody tells it
        return 0 if capacity is None else max(0, capacity - self.disk.used)

    def seek(self, fd: int, offset: int, whence: int) -> int:
        opened = self._fd(fd)
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: opened.position, os.SEEK_END: len(self.disk.nodes[opened.serial].data)}
        if whence not in bases or bases[whence] + offset < 0:
            raise failure(errno.EINVAL)
        opened.position = bases[whence] + offset
        return opened.position

    def truncate(self, fd: int, size: int) -> None:
        opened = self._fd(fd)
        if not opened.writable:
            raise failure(errno.EINVAL)
        self.disk.truncate(opened.serial, size, self._mtime())

    def fileno(self, fd: int) -> int:
        raise io.UnsupportedOperation("fileno: a simulated file has no descriptor")

    # -- looking --------------------------------------------------------------------------------------------------

    def fstat(self, fd: int) -> SimStat:
        return self._stat(self._fd(fd).serial)

    def stat(self, at: int | None, name: bytes) -> SimStat:
        return self._stat(self._existing(self._at(at, name), name))

    def _stat(self, serial: int) -> SimStat:
        node = self.disk.nodes[serial]
        mode, device = _TYPES[node.kind] | node.mode, self._device + node.device
        size = len(node.data) if node.kind != "dir" else 4096
        return SimStat(mode, node.ino, device, node.nlink, node.uid, node.gid, size, node.mtime)

    def mount_id(self, at: int, name: bytes = b"") -> int:
        serial = self._existing(self._at(at, name), name) if name else self._fd(at).serial
        return self.disk.nodes[serial].mount

    def born(self, at: int, name: bytes = b"") -> int:
        return self._existing(self._at(at, name), name) if name else self._fd(at).serial

    def project(self, fd: int) -> tuple[int, bool]:
        return 0, False

    def confined(self, at: int, directory: bytes, to: int | None = None) -> bool:
        return False

    def readlink(self, at: int, name: bytes) -> bytes:
        node = self.disk.nodes[self._existing(self._at(at, name), name)]
        if node.kind != "link":
            raise failure(errno.EINVAL, name)
        return node.data

    def listdir(self, fd: int) -> list[bytes]:
        node = self.disk.nodes[self._fd(fd).serial]
        if node.kind != "dir":
            raise failure(errno.ENOTDIR)
        return list(node.entries)

    def xattrs(self, at: int, name: bytes) -> dict[str, bytes]:
        return dict(self.disk.nodes[self._existing(self._at(at, name), name)].xattrs)

    # -- names ----------------------------------------------------------------------------------------------------

    def symlink(self, text: bytes, at: int, name: bytes) -> None:
        if not text or len(text) > _TEXT_MAX:
            raise failure(errno.ENAMETOOLONG if text else errno.ENOENT, text)
        self._make(self._free_spot(at, name), "link", 0o777).data = text

    def mkdir(self, at: int | None, name: bytes, mode: int) -> None:
        self._make(self._free_spot(at, name), "dir", mode & 0o1777 & ~self.options.umask)

    def rmdir(self, at: int, name: bytes) -> None:
        spot = self._at(at, name)
        if spot.name in (b".", b".."):
            raise failure(errno.EINVAL if spot.name == b"." else errno.ENOTEMPTY, name)
        node = self.disk.nodes[self._existing(spot, name)]
        if node.kind != "dir":
            raise failure(errno.ENOTDIR, name)
        self._refuse_mount_point(spot)
        if node.entries:
            raise failure(errno.ENOTEMPTY, name)
        self._remove(spot)

    def unlink(self, at: int, name: bytes) -> None:
        spot = self._at(at, name)
        if spot.name in (b".", b"..") or self.disk.nodes[self._existing(spot, name)].kind == "dir":
            raise failure(errno.EISDIR, name)
        self._refuse_mount_point(spot)
        self._remove(spot)

    def _remove(self, spot: Spot) -> None:
        self.disk.remove(spot.directory, spot.name, self._mtime())
        self._unlinked(spot.serial)

    def _refuse_mount_point(self, spot: Spot) -> None:
        if self.disk.nodes[spot.serial].mount != self.disk.nodes[spot.directory].mount:
            raise failure(errno.EBUSY, spot.name)

    def link(self, at: int, name: bytes, to: int, new: bytes) -> None:
        node = self.disk.nodes[self._existing(self._at(at, name), name)]
        spot = self._free_spot(to, new)
        if node.mount != self.disk.nodes[spot.directory].mount:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name, None, new)
        if node.kind == "dir" or not self.options.hard_links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), name, None, new)
        self.disk.enter(spot.directory, spot.name, node.serial, self._mtime())

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self._rename(at, name, to, new)

    def rename_new(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self._rename(at, name, to, new, "new")

    def exchange(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if not self.options.exchanges:
            raise failure(errno.EINVAL)
        self._rename(at, name, to, new, "exchange")

    def _rename(self, at: int, name: bytes, to: int, new: bytes, how: How = "replace") -> None:
        source, target = self._at_last(at, name), self._at_last(to, new)
        try:
            if self._may_rename(source, target, how):
                places = (source.directory, source.name), (target.directory, target.name)
                if how == "exchange":
                    self.disk.exchange(*places, self._mtime())
                    return
                self.disk.move(*places, self._mtime())
                if target.serial:
                    self._unlinked(target.serial)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name, None, new) from None

    def _at_last(self, at: int, name: bytes) -> Spot:
        """For a rename, which looks at the names themselves only when both directories are found."""
        if len(name) > NAME_MAX and b"/" not in name:
            return Spot(self._at(at, b".").serial, name, 0)
        return self._at(at, name)

    def _may_rename(self, source: Spot, target: Spot, how: How) -> bool:
        """Whether rename(2) has anything to do; the checks are in its order."""
        nodes = self.disk.nodes
        if nodes[source.directory].mount != nodes[target.directory].mount:
            raise failure(errno.EXDEV)
        for spot in (source, target):
            if spot.name in (b".", b".."):
                raise failure(errno.EEXIST if spot is target and how == "new" else errno.EBUSY)
        for spot in (source, target):
            if len(spot.name) > NAME_MAX:
                raise failure(errno.ENAMETOOLONG)
            self._existing(source, source.name)
        node, replaced = nodes[source.serial], nodes.get(target.serial)
        if how == "new" and replaced is not None:
            raise failure(errno.EEXIST)
        if how == "exchange" and replaced is None:
            raise failure(errno.ENOENT)
        if self._is_above(node.serial, target.directory):
            raise failure(errno.EINVAL)
        if target.serial and self._is_above(target.serial, source.directory):
            raise failure(errno.EINVAL if how == "exchange" else errno.ENOTEMPTY)
        if node is replaced:
            return False
        if replaced is None:
            if not nodes[target.directory].nlink:
                raise failure(errno.ENOENT)
        elif how == "exchange":
            pass
        elif node.kind == "dir" and replaced.kind != "dir":
            raise failure(errno.ENOTDIR)
        elif node.kind != "dir" and replaced.kind == "dir":
            raise failure(errno.EISDIR)
        for spot in (source, target) if replaced is not None else (source,):
            self._refuse_mount_point(spot)
        if replaced is not None and replaced.entries and how != "exchange":
            raise failure(errno.ENOTEMPTY)
        return True

    def _is_above(self, serial: int, directory: int) -> bool:
        while directory not in (0, serial):
            directory = self.disk.nodes[directory].parent
        return bool(directory)

    # -- metadata -------------------------------------------------------------------------------------------------

    def chmod(self, fd: int, mode: int) -> None:
        self.disk.touch(self._fd(fd).serial, OWNER).mode = mode & 0o7777

    def chown(self, fd: int, uid: int, gid: int) -> None:
        node = self.disk.touch(self._fd(fd).serial, OWNER)
        node.uid, node.gid = node.uid if uid == -1 else uid, node.gid if gid == -1 else gid
        if node.kind != "dir":  # set-id bits go (chown(2))
            node.mode &= ~(stat.S_ISUID | (stat.S_ISGID if node.mode & stat.S_IXGRP else 0))

    def set_mtime(self, fd: int, mtime_ns: int) -> None:
        self.disk.touch(self._fd(fd).serial, MTIME).mtime = mtime_ns

    def set_xattr(self, fd: int, key: str, value: bytes) -> None:
        serial = self._fd(fd).serial
        if not self.options.xattrs or not key.startswith(_NAMESPACES):
            raise failure(errno.ENOTSUP)
        xattrs = {**self.disk.nodes[serial].xattrs, key: bytes(value)}
        self.disk.touch(serial, XATTRS).xattrs = dict(sorted(xattrs.items()))

    def remove_xattr(self, fd: int, key: str) -> None:
        serial = self._fd(fd).serial
        if not self.options.xattrs or not key.startswith(_NAMESPACES):
            raise failure(errno.ENOTSUP)
        xattrs = dict(self.disk.nodes[serial].xattrs)
        if xattrs.pop(key, None) is None:
            raise failure(errno.ENODATA)
        self.disk.touch(serial, XATTRS).xattrs = xattrs

    # -- durability -----------------------------------------------------------------------------------------------

    def start_writeback(self, fd: int) -> None:
        self._fd(fd)  # a hint: what is not synced may have come to the disk or not, as before

    def sync_file(self, fd: int) -> None:
        self._sync_fd(fd)

    def sync_data(self, fd: int) -> None:
        serial = self._fd(fd).serial
        if self.disk.nodes[serial].kind == "dir":
            self._sync_fd(fd)
        else:
            self.disk.sync_data(serial)

    def sync_dir(self, fd: int) -> None:
        self._sync_fd(fd)

    def sync_file_system(self, fd: int) -> None:
        for serial in list(self.disk.nodes):
            self.disk.sync(serial)

    def _sync_fd(self, fd: int) -> None:
        serial = self._fd(fd).serial
        if self.disk.nodes[serial].kind == "dir" and not self.options.sync_dirs:
            raise failure(errno.EINVAL)
        self.disk.sync(serial)

    def _told_at(self, at: int | None, name: bytes) -> bytes:
        if at is None or name.startswith(b"/"):
            return name
        base = self._fds[at].path
        return base if name in (b"", b".") else base + b"/" + name
