"""A simulated disk without system calls: to set a scene, to act as another program, to look at a result."""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from txfiles._format.layout import PRIVATE
from txfiles.testing._simdisk import Disk
from txfiles.testing._simnode import OWNER, ROOT, XATTRS, Kind, Node

NAME_MAX = 255
_PATH_MAX = 4096
_LINKS_MAX = 40  # as in path_resolution(7)
_CALL_NS = 1000  # what a call takes


@dataclass(frozen=True, slots=True)
class Options:
    """What kind of file system it is.

    `granularity_ns` of its clock: within a tick all times are equal. `reuse_inodes`: a new inode gets the lowest free
    number, as in ext4. `sync_dirs=False`: fsync of a directory is EINVAL; `hard_links=False`: link is EPERM;
    `xattrs=False`: ENOTSUP; `exchanges=False`: EINVAL; `sessions=False`: none can be told; `kind` as in `KernelFS`.
    `capacity` in bytes of content, then ENOSPC. `longest_write` in bytes. `seed`: the order of the jobs of `run_all`.
    """

    granularity_ns: int = 1
    reuse_inodes: bool = True
    sync_dirs: bool = True
    hard_links: bool = True
    xattrs: bool = True
    exchanges: bool = True
    sessions: bool = True
    kind: str = ""
    capacity: int | None = None
    longest_write: int | None = None
    umask: int = 0o022
    seed: int = 0


class Entry(NamedTuple):
    """What a path shows; `content` is a link's text. `str` content is UTF-8 as far as it can be."""

    kind: Kind
    content: bytes
    mode: int
    uid: int
    gid: int
    xattrs: tuple[tuple[str, bytes], ...]


Tree = dict[str, Entry]


class Spot(NamedTuple):
    """Where a path leads: `serial` is 0 when nothing is there; `name` is `.` for a path that ends in no name."""

    directory: int
    name: bytes
    serial: int


class SimTree:
    """A disk with a clock. The calls of this class are those of another program or of the test; nothing counts them.

    With `synced=False` what they do is pending, as the work of a program that never calls fsync.
    """

    def __init__(self, options: Options, disk: Disk | None = None, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self.options = options
        self._now_ns = now_ns
        if disk is None:
            disk = Disk(reuse=options.reuse_inodes)
            disk.make("dir", 0o755, 0, 0, self._mtime(), 0)
        self.disk = disk

    def _mtime(self) -> int:
        self._now_ns += _CALL_NS
        return self._now_ns - self._now_ns % self.options.granularity_ns

    # -- setting the scene ----------------------------------------------------------------------------------------

    def put(
        self,
        path: str | bytes,
        content: str | bytes,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        xattrs: dict[str, bytes] | None = None,
        synced: bool = True,
    ) -> None:
        """Write a file, in place if it exists. A new one gets mode 0644; parents must exist."""
        spot = self._find(path)
        data = content.encode() if isinstance(content, str) else content
        node = self.disk.nodes[spot.serial] if spot.serial else self._make(spot, "file", 0o644)
        if data or node.data:
            self.disk.overwrite(node.serial, data, self._mtime())
        self._set_meta(node.serial, mode, uid, gid, xattrs)
        if synced:
            self._sync(node.serial, spot.directory)

    def mkdirs(
        self,
        path: str | bytes,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        xattrs: dict[str, bytes] | None = None,
        synced: bool = True,
    ) -> None:
        """Make a directory and its missing parents, mode 0755; a mode, owner or attributes go to the last one."""
        raw = os.fsencode(path)
        made: list[Spot] = []
        for end in [index for index in range(1, len(raw)) if raw[index : index + 1] == b"/"] + [len(raw)]:
            spot = self._find(raw[:end])
            if not spot.serial:
                made.append(spot)
                self._make(spot, "dir", 0o755)
        self._set_meta(self._find(raw).serial, mode, uid, gid, xattrs)
        if synced:
            for spot in made:
                self._sync(self.disk.nodes[spot.directory].entries[spot.name], spot.directory)

    def put_symlink(self, path: str | bytes, text: str | bytes, *, synced: bool = True) -> None:
        """Make a symbolic link."""
        spot = self._find(path, follow=False)
        self._make(spot, "link", 0o777).data = os.fsencode(text)
        if synced:
            self._sync(spot.directory)

    def put_link(self, path: str | bytes, existing: str | bytes, *, synced: bool = True) -> None:
        """Give a file another name."""
        spot, serial = self._find(path, follow=False), self._find(existing, follow=False).serial
        self.disk.enter(spot.directory, spot.name, serial, self._mtime())
        if synced:
            self._sync(spot.directory)

    def remove(self, path: str | bytes, *, synced: bool = True) -> None:
        """Remove a file, a link or an empty directory."""
        spot = self._find(path, follow=False)
        node = self.disk.nodes[self._existing(spot, path)]
        if node.entries:
            raise failure(errno.ENOTEMPTY, path)
        self.disk.remove(spot.directory, spot.name, self._mtime())
        self._unlinked(node.serial)
        if synced:
            self._sync(spot.directory)

    def mount(self, path: str | bytes, *, same_device: bool = False) -> None:
        """Let another file system begin at `path`, or (`same_device`) a bind mount of this one."""
        top = self._existing(self._find(path, follow=False), path)
        mount = 1 + max(node.mount for node in self.disk.nodes.values())
        todo = [top]
        while todo:
            node = self.disk.own(todo.pop())
            node.mount = mount
            node.device += 0 if same_device else mount
            todo += node.entries.values()

    def sync_everything(self) -> None:
        """sync(2): whatever can be read now survives."""
        self.disk.sync_everything()

    def _make(self, spot: Spot, kind: Kind, mode: int, uid: int = 0, gid: int = 0) -> Node:
        above = self.disk.nodes[spot.directory]
        if above.mode & 0o2000:
            gid, mode = above.gid, mode | (0o2000 if kind == "dir" else 0)
        node = self.disk.make(kind, mode, uid, gid, self._mtime(), spot.directory)
        self.disk.enter(spot.directory, spot.name, node.serial, node.mtime)
        return node

    def _set_meta(
        self, serial: int, mode: int | None, uid: int | None, gid: int | None, xattrs: dict[str, bytes] | None
    ) -> None:
        node = self.disk.nodes[serial]
        wanted = tuple(old if new is None else new for old, new in zip(node.owner, (mode, uid, gid), strict=True))
        if wanted != node.owner:
            node = self.disk.touch(serial, OWNER)
            node.mode, node.uid, node.gid = wanted
        if xattrs is not None:
            self.disk.touch(serial, XATTRS).xattrs = dict(sorted(xattrs.items()))

    def _sync(self, *serials: int) -> None:
        for serial in serials:
            self.disk.sync(serial)

    def _unlinked(self, serial: int) -> None:
        """A name of this inode is gone; with the last one so is the inode, unless it is open."""
        node = self.disk.nodes[serial]
        if not node.nlink and not node.gone and not self._is_open(serial):
            self.disk.forget(serial)

    def _is_open(self, serial: int) -> bool:
        return False

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, path: str | bytes) -> bytes:
        """The content of a file, links followed."""
        return self.disk.nodes[self._existing(self._find(path), path)].data

    def exists(self, path: str | bytes) -> bool:
        """Whether there is something at `path`, a dangling link too."""
        try:
            return bool(self._find(path, follow=False).serial)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self, path: str | bytes) -> set[str]:
        """The names in a directory."""
        return {os.fsdecode(name) for name in self.disk.nodes[self._existing(self._find(path), path)].entries}

    def tree(self, root: str | bytes = b"/sim", *, skip_private: bool = True) -> Tree:
        """Everything below `root` by its path relative to it; without the private directories, unless asked for."""
        nodes, found = self.disk.nodes, {}
        todo = [(self._existing(self._find(root), root), "")]
        while todo:
            directory, prefix = todo.pop()
            for name, serial in nodes[directory].entries.items():
                if skip_private and name == PRIVATE:
                    continue
                node, path = nodes[serial], prefix + os.fsdecode(name)
                found[path] = Entry(node.kind, node.data, node.mode, node.uid, node.gid, tuple(node.xattrs.items()))
                if node.kind == "dir":
                    todo.append((serial, path + "/"))
        return found

    def fingerprint(self) -> int:
        """Equal for two disks that nobody can tell apart, not even by crashing; almost surely different otherwise."""
        nodes = self.disk.nodes
        return hash(tuple((serial, nodes[serial].fingerprint()) for serial in sorted(self.disk.reachable())))

    # -- walking --------------------------------------------------------------------------------------------------

    def _find(self, path: str | bytes, *, follow: bool = True) -> Spot:
        return self._walk(ROOT, os.fsencode(path), follow=follow)

    def _existing(self, spot: Spot, path: str | bytes) -> int:
        if not spot.serial:
            raise failure(errno.ENOENT, path)
        return spot.serial

    def _walk(self, start: int, path: bytes, *, follow: bool) -> Spot:
        """path_resolution(7); only the last component may be missing."""
        nodes = self.disk.nodes
        if b"/" not in path and path not in (b"", b".", b".."):  # the usual case
            here = nodes[start]
            if here.kind != "dir":
                raise failure(errno.ENOTDIR, path)
            if len(path) > NAME_MAX:
                raise failure(errno.ENAMETOOLONG, path)
            serial = here.entries.get(path, 0)
            if not follow or not serial or nodes[serial].kind != "link":
                return Spot(start, path, serial)
        if not path or len(path) >= _PATH_MAX:
            raise failure(errno.ENAMETOOLONG if path else errno.ENOENT, path)
        spot = Spot(ROOT if path.startswith(b"/") else start, b".", ROOT if path.startswith(b"/") else start)
        todo = deque(path.split(b"/"))
        links = 0
        while todo:
            name = todo.popleft()
            if not spot.serial:
                raise failure(errno.ENOENT, path)
            here = nodes[spot.serial]
            if here.kind != "dir":
                raise failure(errno.ENOTDIR, path)
            if name in (b"", b"."):
                spot = Spot(here.serial, b".", here.serial)
            elif name == b"..":
                above = here.parent or ROOT
                spot = Spot(above, b"..", above)
            elif len(name) > NAME_MAX:
                raise failure(errno.ENAMETOOLONG, path)
            else:
                spot = Spot(here.serial, name, here.entries.get(name, 0))
                if spot.serial and nodes[spot.serial].kind == "link" and (todo or follow):
                    links += 1
                    if links > _LINKS_MAX:
                        raise failure(errno.ELOOP, path)
                    text = nodes[spot.serial].data
                    start = ROOT if text.startswith(b"/") else here.serial
                    spot = Spot(start, b".", start)
                    todo.extendleft(reversed(text.split(b"/")))
        return spot

    def absolute(self, path: bytes) -> bytes:
        """realpath(3) from the root directory; what does not exist is kept as it is."""
        done: list[bytes] = []
        todo = deque(path.split(b"/"))
        links = 0
        while todo:
            part = todo.popleft()
            if part == b"..":
                done = done[:-1]
            elif part not in (b"", b"."):
                done.append(part)
                text = self._text_of(b"/" + b"/".join(done)) if links < _LINKS_MAX else None
                if text is not None:
                    links += 1
                    done = [] if text.startswith(b"/") else done[:-1]
                    todo.extendleft(reversed(text.split(b"/")))
        return b"/" + b"/".join(done)

    def _text_of(self, path: bytes) -> bytes | None:
        """The text of a symbolic link; `None` for anything else."""
        try:
            node = self.disk.nodes.get(self._find(path, follow=False).serial)
        except OSError:
            return None
        return node.data if node is not None and node.kind == "link" else None


def failure(code: int, path: str | bytes | None = None) -> OSError:
    """The error of a call."""
    return OSError(code, os.strerror(code)) if path is None else OSError(code, os.strerror(code), path)
