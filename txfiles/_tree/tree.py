"""The tree below the root, walked one component at a time from the root's descriptor; no symbolic link is followed.

Symbolic links are followed knowingly, by `resolve`, and only inside the root; or out of it, for who has asked for that.
Then a path begins with `paths.OUTSIDE`, and is walked from the directory / on.
"""

from __future__ import annotations

import errno
import stat
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from txfiles._disk.system import release
from txfiles._format import paths
from txfiles._format.journal import Exit
from txfiles._tree.borders import Borders
from txfiles._tree.exits import Exits, Trail
from txfiles.errors import InvalidPathError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._disk.system import FileSystem, Stat
    from txfiles.errors import UnsupportedFilesystemError

_OPEN_AT_MOST = 16
_LINKS_AT_MOST = 40  # as in path_resolution(7)
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}


class Node(NamedTuple):
    """What a name leads to: `kind` is dir, file, link or special; `link` the text of a link; `stat` if on disk."""

    kind: str
    link: bytes = b""
    stat: Stat | None = None


class Tree:
    """Names below an open root directory. Keeps the last few directories open; `close()` ends that, not the root."""

    def __init__(self, fs: FileSystem, root_fd: int, root: bytes, *, follow: bool = False) -> None:
        self.fs = fs
        self.root_fd = root_fd
        self.root = root
        self.exits: Exits | None = Exits(fs.ids()[0], root) if follow else None
        self._open: dict[bytes, int] = {}
        self._borders = Borders(fs, root_fd, root)
        self._followed: set[bytes] = set()
        self._reachable: set[bytes] = {paths.ROOT}
        self._inside: set[bytes] = {paths.ROOT}

    def own_view(self) -> Any:
        """A view of this tree, if it is one that `View` cannot make."""
        return None

    def close(self) -> None:
        """Close every directory but the root, and forget what was known about them."""
        if self._open:
            fds, self._open = list(self._open.values()), {}
            release(self.fs, *fds)
        self._reachable, self._inside = {paths.ROOT}, {paths.ROOT}
        self._followed.clear()

    def open_dir(self, path: bytes) -> int:
        """A descriptor of the directory, good until some other directories have been opened. Not to be closed."""
        if paths.is_outside(path):
            return self._keep(path, passing=False)
        below = []
        while path and path not in self._open:
            below.append(path)
            path, _ = paths.split(path)
        fd = self.root_fd
        if path:
            fd = self._open[path] = self._open.pop(path)
        for path in reversed(below):
            fd = self._open_below(fd, path)
            self._make_room()
            self._open[path] = fd
        return fd

    def _make_room(self) -> None:
        while len(self._open) >= _OPEN_AT_MOST:
            oldest = next(iter(self._open))
            release(self.fs, self._open.pop(oldest))

    def _keep(self, path: bytes, *, passing: bool) -> int:
        """The same out of the root; with `passing` not for itself, but for what is in it."""
        key = path + b"/" if passing else path
        if key not in self._open:
            with paths.Naming(path):
                fd = self.walk(path, passing=passing)
            self._make_room()
            self._open[key] = fd
        return self._open[key]

    def _open_below(self, parent_fd: int, path: bytes) -> int:
        try:
            return self.fs.open_dir(parent_fd, paths.split(path)[1])
        except OSError as error:
            error.filename = paths.decode(path)
            raise

    def walk(self, path: bytes, *, passing: bool = False) -> int:
        """A descriptor of the directory for the caller to close; may be called from any thread."""
        names = path.split(b"/") if path else []
        outside = paths.is_outside(path)
        if outside:  # the directories above the root are not all for us to read
            del names[0]
            fd = self.fs.open_dir(None, b"/", passing=passing or bool(names))
        else:
            fd = self.fs.open_dir(self.root_fd, b".")
        for left, name in zip(reversed(range(len(names))), names, strict=True):
            try:
                below = self.fs.open_dir(fd, name, passing=outside and (passing or left > 0))
            finally:
                release(self.fs, fd)
            fd = below
        return fd

    def at(self, path: bytes) -> tuple[int, bytes]:
        """The parent's descriptor and the last name: how every call names a file."""
        parent, _, name = path.rpartition(b"/")
        if path[:1] == paths.OUTSIDE:
            return self._keep(parent or path, passing=True), name if parent else b"."
        return self.open_dir(parent) if parent else self.root_fd, name

    def stat(self, path: bytes) -> Stat | None:
        """The `lstat` of a path, `None` if and only if there is no such entry."""
        if not path:
            return self.fs.fstat(self.root_fd)
        try:
            return self.fs.stat(*self.at(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP) and self._parent_is_no_directory(path):
                return None
            error.filename = paths.decode(path)
            raise

    def _parent_is_no_directory(self, path: bytes) -> bool:
        for parent in paths.on_the_way(path):
            found = self.stat(parent)
            if found is None or not stat.S_ISDIR(found.st_mode):
                return True
        return False

    def look(self, path: bytes) -> Node | None:
        found = self.stat(path)
        if found is None:
            return None
        kind = kind_of(found)
        return Node(kind, self.fs.readlink(*self.at(path)) if kind == "link" else b"", found)

    def listdir(self, path: bytes) -> list[bytes]:
        """The names in a directory, private directories left out."""
        names = self.fs.listdir(self.open_dir(path))
        return [name for name in names if not paths.is_private(name)]

    def require_reachable(self, directory: bytes) -> None:
        """Raise `UnsupportedFilesystemError` if nothing in `directory` can be renamed to elsewhere below the root."""
        if directory not in self._reachable:
            self._borders.require_reachable(self.open_dir(directory), directory)
            self._reachable.add(directory)

    def require_inside(self, directory: bytes) -> None:
        """The same, and if nothing of ours can be renamed into it."""
        if directory not in self._inside:
            self._borders.require_inside(self.open_dir(directory), directory)
            self._reachable.add(directory)
            self._inside.add(directory)

    def require_own_mount(self, path: bytes) -> None:
        """Raise `UnsupportedFilesystemError` if a path out of the root is in another mount, or would be."""
        while self.stat(path) is None:
            path, _ = paths.split(path)
        if path not in self._followed:
            self._borders.require_own_mount(*self.at(path), path)
            self._followed.add(path)

    def parents(self, path: bytes) -> list[bytes]:
        """The directories above that are in the root, or below a link out of it; of these the first one is there."""
        if not paths.is_outside(path):
            return paths.ancestors(path)
        assert self.exits is not None
        start = self.exits.of(path).to
        if start == path or not self._is_directory(start):
            start, _ = paths.split(start)
        if not self._is_directory(start):
            message = "there is no directory where the link leads to"
            raise FileNotFoundError(errno.ENOENT, message, paths.decode(start))
        return [above for above in paths.ancestors(path) if above == start or paths.is_below(above, start)]

    def is_above_root(self, path: bytes) -> bool:
        """Whether it is out of the root and leads to it: who made the root has made it durable."""
        return paths.is_outside(path) and paths.is_below(self.root, path[1:])

    def settled(self, exit_: Exit) -> Exit:
        """The same, with the directory that it leads to and its identity."""
        directory = exit_.to if self._is_directory(exit_.to) else paths.split(exit_.to)[0]
        found = self.stat(directory)
        return exit_._replace(directory=directory, ino=0 if found is None else found.st_ino)

    def still_leads(self, exit_: Exit) -> bool:
        """Whether a link leads out of the root to where it did, and to the same directory there."""
        assert self.exits is not None
        try:
            to, _ = resolve(exit_.path, self.look, self.root, follow_last=True, exits=Exits(self.exits.uid, self.root))
        except (NotADirectoryError, InvalidPathError):
            return False
        except OSError as error:
            if error.errno == errno.ELOOP:
                return False
            raise
        found = self.stat(exit_.directory)
        return to == exit_.to and found is not None and found.st_ino == exit_.ino

    def _is_directory(self, path: bytes) -> bool:
        found = self.stat(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def require_file_in_mount(self, path: bytes) -> None:
        """The same for a file: a single file can be a bind mount, and then rename fails with EBUSY."""
        self._borders.require_mount(*self.at(path), path)

    def explain_crossing(self, path: bytes) -> UnsupportedFilesystemError | None:
        """What it means that the system said EXDEV to a rename or link of `path`, if that can be found out."""
        return self._borders.explain(*self.at(path), path)

    def forget(self, path: bytes) -> None:
        """A directory is about to go, or is gone: close it and whatever was open below it."""
        for known in [p for p in self._open if p == path or paths.is_below(p, path)]:
            release(self.fs, self._open.pop(known))
        self._reachable.discard(path)
        self._inside.discard(path)


def kind_of(found: Stat) -> str:
    return _KINDS.get(found.st_mode & 0o170000, "special")


def resolve(
    path: bytes, look: Callable[[bytes], Node | None], root: bytes, *, follow_last: bool, exits: Exits | None = None
) -> tuple[bytes, Node | None]:
    """The path without symbolic links that `path` leads to, itself below the root, and what is there.

    Raises `InvalidPathError` when a link leaves the root, unless `exits` notes that, `NotADirectoryError`, and
    `OSError` (ELOOP).
    """
    shown = paths.decode(path)
    todo = deque(path.split(b"/"))
    own = len(todo)  # how many components of the path itself are left, behind those of links
    trail = None if exits is None else Trail(exits, shown)
    done: list[bytes] = []
    links = 0
    missing: int | None = None  # how many components are there, once one is not
    node: Node | None = Node("dir")
    while todo:
        is_own = len(todo) == own
        own -= is_own
        part = todo.popleft()
        if trail is not None and is_own:
            trail.arrive(done)
            trail.step(part)
        if part in (b"", b"."):
            continue
        if part == b"..":
            if done:
                done = _above(done)
            else:
                done, missing = _leave(exits, shown), None
            node = Node("dir")
            continue
        paths.check_component(part, shown)
        if missing is not None and len(done) <= missing:
            missing = None
        node = look(b"/".join([*done, part])) if missing is None else None
        if node is not None and node.kind == "link" and (todo or follow_last):
            links += 1
            if links > _LINKS_AT_MOST:
                raise OSError(errno.ELOOP, "too many levels of symbolic links", shown)
            text = node.link
            if trail is not None:
                trail.follow(done, part, node.stat)
            if text.startswith(b"/"):
                if text == root or text.startswith(root.rstrip(b"/") + b"/"):
                    done, text = [], text[len(root) :]
                else:
                    done = _leave(exits, shown)[:1]
            node = Node("dir")
            todo.extendleft(reversed(text.split(b"/")))
            continue
        if todo and node is not None and node.kind != "dir":
            raise NotADirectoryError(errno.ENOTDIR, "a parent is not a directory", shown)
        if node is None and missing is None:
            missing = len(done)
        done.append(part)
        if exits is not None and done == [paths.OUTSIDE, *exits.root]:
            done, missing = [], None
    if trail is not None:
        trail.arrive(done)
    return b"/".join(done), node


def _above(done: list[bytes]) -> list[bytes]:
    return done[:-1] if done != [paths.OUTSIDE] else done


def _leave(exits: Exits | None, shown: str) -> list[bytes]:
    """The directory above the root."""
    if exits is None:
        message = f'{shown!r} leaves the root through a symbolic link, which only links="follow" follows'
        raise InvalidPathError(message, path=shown)
    return [paths.OUTSIDE, *exits.root[:-1]] if exits.root else []
