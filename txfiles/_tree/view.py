"""A view of the tree: what is on disk, with entries laid over it that change, hide or add some of its paths.

Every path here is resolved: without symbolic links, as `tree.resolve` returns it.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from txfiles._format import paths
from txfiles._tree.tree import Node, Tree, kind_of, resolve
from txfiles.errors import InvalidPathError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from txfiles._disk.system import FileSystem, Stat
    from txfiles._format.journal import Identity, Meta


class Content(Protocol):
    """A file or symbolic link (`identity.link` is set) that lies somewhere else than at its path."""

    @property
    def identity(self) -> Identity: ...


class Held(NamedTuple):
    """A file that is in no file system: its version and what is known of it, and how to get its content."""

    version: str
    stat: Stat
    content: Callable[[], bytes]


class Told(NamedTuple):
    """As a stat, of a file that is in no file system: 0 is what nobody knows of it."""

    st_mode: int
    st_size: int
    st_mtime_ns: int = 0
    st_ctime_ns: int = 0
    st_uid: int = 0
    st_gid: int = 0
    st_ino: int = 0
    st_dev: int = 0
    st_nlink: int = 1


class Absent:
    """There is nothing at the path in this view."""


class Directory(NamedTuple):
    """There is a directory at the path in this view, whether or not it is on disk."""

    meta: Meta


ABSENT = Absent()
C = TypeVar("C", bound=Content)


class View(Generic[C]):
    """Entries by resolved path, over the tree on disk. `held_at` tells where a content can be opened.

    `is_still`: an answer counts only if no transaction has begun meanwhile, so that a name leads to one file.
    """

    is_still = False

    def __init__(
        self,
        fs: FileSystem,
        tree: Tree,
        held_at: Callable[[C], tuple[int, bytes]],
        entries: Mapping[bytes, C | Directory | Absent] | None = None,
    ) -> None:
        self.fs = fs
        self.tree = tree
        self.entries: dict[bytes, C | Directory | Absent] = {}
        self._held_at = held_at
        self._children: dict[bytes, set[bytes]] = {}
        for path, entry in (entries or {}).items():
            self.lay(path, entry)

    def lay(self, path: bytes, entry: C | Directory | Absent | None) -> None:
        """Lay an entry over a path, or with `None` take it away."""
        parent, _, name = path.rpartition(b"/")
        if entry is None:
            self.entries.pop(path, None)
            self._children.get(parent, set()).discard(name)
        else:
            self.entries[path] = entry
            self._children.setdefault(parent, set()).add(name)

    def resolve(self, path: bytes, *, follow_last: bool = True) -> bytes:
        return self.find(path, follow_last=follow_last)[0]

    def find(self, path: bytes, *, follow_last: bool = True) -> tuple[bytes, Node | None]:
        """The resolved path, and what is there in this view."""
        if path and b"/" not in path:
            node = self.look(path)
            if node is None or node.kind != "link" or not follow_last:
                return path, node
        if not path:
            return path, Node("dir")
        tree = self.tree
        found, node = resolve(path, self.look, tree.root, follow_last=follow_last, exits=tree.exits)
        if paths.is_outside(found):
            tree.require_own_mount(found)
        return found, node

    def name_of(self, path: bytes) -> bytes:
        """A resolved path as one below the root."""
        return path if self.tree.exits is None else self.tree.exits.name_of(path)

    def peek(self, path: bytes) -> tuple[bytes, Node | None]:
        """`find` for who goes on to write there, whatever file it is."""
        return self.find(path)

    def listed(self, path: bytes) -> Node | None:
        """`look` for a path that a directory was listed with."""
        return self.look(path)

    def held(self, path: bytes) -> Held | None:
        """A file that is in no file system; `None` where `file` tells."""
        return None

    def exists(self, path: bytes) -> bool:
        """Whether there is a file or directory, not resolved; below a file there is nothing."""
        try:
            return self.find(path)[1] is not None
        except NotADirectoryError:
            return False

    def look(self, path: bytes) -> Node | None:
        """What a path is in this view. REQUIRES: its parent is a directory of this view, or absent."""
        entry = self.entries.get(path)
        if entry is None:
            return self.tree.look(path) if b"/" not in path or self.on_disk(path) else None
        if isinstance(entry, Absent):
            return None
        if isinstance(entry, Directory):
            return Node("dir")
        return Node("file") if entry.identity.link is None else Node("link", entry.identity.link)

    def on_disk(self, path: bytes) -> bool:
        """Whether the disk has a say about a path without an entry: nothing above it was taken away."""
        if not self.entries:
            return True
        while b"/" in path:
            path, _ = paths.split(path)
            entry = self.entries.get(path)
            if entry is not None and not isinstance(entry, Directory):
                return False
        return True

    def stat(self, path: bytes) -> Stat | None:
        """The stat of a file or link in this view; `None` for what is absent or a directory only in the view."""
        entry = self.entries.get(path)
        if entry is None:
            return self.tree.stat(path) if self.on_disk(path) else None
        if isinstance(entry, (Absent, Directory)):
            return None
        return self.fs.stat(*self._held_at(entry))

    def file(self, path: bytes) -> tuple[int, bytes, Stat]:
        """Directory descriptor, name and stat of the regular file that a path, not yet resolved, leads to."""
        if not self.entries and b"/" not in path:
            found = self.fs.stat(self.tree.root_fd, path)
            if stat.S_ISREG(found.st_mode):
                return self.tree.root_fd, path, found
        resolved, node = self.find(path)
        must_be_file(resolved, node)
        at, name = self.where(resolved)
        return at, name, self.fs.stat(at, name)

    def where(self, path: bytes) -> tuple[int, bytes]:
        """Directory descriptor and name under which the content of a file in this view can be opened now."""
        entry = self.entries.get(path)
        if entry is None or isinstance(entry, (Absent, Directory)):
            return self.tree.at(path)
        return self._held_at(entry)

    def listdir(self, path: bytes) -> list[bytes]:
        """The names in a directory of this view, sorted."""
        self.require_directory(path)
        names: set[bytes] = set()
        if path not in self.entries or self.is_directory_on_disk(path):
            names.update(self.tree.listdir(path))
        for name in self._children.get(path, ()):
            if isinstance(self.entries[paths.join(path, name)], Absent):
                names.discard(name)
            else:
                names.add(name)
        return sorted(names)

    def is_directory_on_disk(self, path: bytes) -> bool:
        found = self.tree.stat(path) if self.on_disk(path) else None
        return found is not None and stat.S_ISDIR(found.st_mode)

    def parent_is_directory(self, path: bytes) -> bool:
        """Every directory above is one in this view."""
        return all((node := self.look(above)) is not None and node.kind == "dir" for above in paths.on_the_way(path))

    def require_directory(self, path: bytes) -> None:
        node = Node("dir") if not path else self.look(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", paths.decode(path))
        if node.kind != "dir":
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", paths.decode(path))

    def require_file(self, path: bytes, *, links: bool = False) -> Node:
        """The path is a file (or, with `links`, a symbolic link) of this view."""
        return must_be_file(path, self.look(path) if path else Node("dir"), links=links)

    def version(self, path: bytes) -> str | None:
        found = self.stat(path)
        return version_of(found) if found is not None and kind_of(found) == "file" else None


def must_be_file(path: bytes, node: Node | None, *, links: bool = False) -> Node:
    if node is None:
        raise FileNotFoundError(errno.ENOENT, "no such file", paths.decode(path))
    if node.kind == "dir":
        raise IsADirectoryError(errno.EISDIR, "is a directory", paths.decode(path))
    if node.kind == "special" or (node.kind == "link" and not links):
        raise refuse_special(path)
    return node


def refuse_special(path: bytes) -> InvalidPathError:
    shown = paths.decode(path)
    return InvalidPathError(f"{shown!r} is not a regular file (a device, a FIFO, a socket or a link)", path=shown)


def version_of(found: Stat) -> str:
    """A version: it changes with every replacement, because mtimes never go back and the old inode is still in use."""
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
