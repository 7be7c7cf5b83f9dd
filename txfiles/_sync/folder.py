"""A directory tree on disk: listed as a whole or with an error, and read as it was listed."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Self

from txfiles._format import paths
from txfiles._sync.sides import Entry, Listing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from txfiles._sync.excludes import Excludes

_CHUNK = 1 << 20
_PATH_AT_MOST = 2000  # bytes of one call; PATH_MAX (4096) is for the kernel's own additions, too
_HINT = "keep links with --links, or leave it out with --exclude"

_Chain = tuple[tuple[int, ...], "_Chain | None"]


class Folder:
    """The tree below `path`, without private directories of txfiles. Symbolic links are followed, or are entries.

    Its methods are those of a `Source`. Errors name paths as the user knows them, below `path`.
    """

    def __init__(self, path: str, excludes: Excludes, *, follow: bool) -> None:
        self.path = path
        self._excludes = excludes
        self._follow = follow
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.identity = _identity(os.fstat(self._fd))
        self.followed: set[str] = set()
        """The links to directories that were followed in listing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def shown(self, name: str) -> str:
        """A name below the folder as a path of the user's."""
        return os.path.join(self.path, name) if name else self.path

    def list(self) -> Listing:
        """Everything that is not excluded. Directories that are excluded are not entered."""
        found = Listing({}, set())
        todo: list[tuple[str, _Chain]] = [("", (self.identity, None))]
        while todo:
            folder, chain = todo.pop()
            for name, entry in self._children(folder, chain, found.kept):
                found.entries[name] = entry
                if entry.kind == "dir":
                    todo.append((name, (entry.identity, chain)))
        return Listing({name: found.entries[name] for name in sorted(found.entries)}, found.kept)

    def look(self, names: Iterable[str]) -> Listing:
        """Those of the names, parents before children, that are there; nothing is below a link or a file."""
        found: dict[str, Entry] = {}
        for name in names:
            parent = name.rpartition("/")[0]
            if parent and (parent not in found or found[parent].kind != "dir"):
                continue
            with paths.Naming(os.fsencode(self.shown(name)), always=True):
                try:
                    found[name] = self._entry(name)
                except FileNotFoundError:
                    continue
        return Listing(found, set())

    def read(self, name: str, entry: Entry) -> Generator[bytes]:
        """The content of a file, if it is the one that was listed and stays so until its end."""
        with paths.Naming(os.fsencode(self.shown(name)), always=True):
            fd = self._open(name, os.O_NONBLOCK)
        try:
            self._require_same(name, entry, fd)
            with paths.Naming(os.fsencode(self.shown(name)), always=True):
                while chunk := os.read(fd, _CHUNK):
                    yield chunk
            self._require_same(name, entry, fd)
        finally:
            os.close(fd)

    def require_unchanged(self, listing: Listing) -> None:
        """An error if anything came, went or changed since."""
        now = self.list().entries
        for name in sorted(listing.entries.keys() | now.keys()):
            before, after = listing.entries.get(name), now.get(name)
            if before is None or after is None or _mark(before) != _mark(after):
                raise self._changed(name)

    # -- inside -------------------------------------------------------------------------------------------------

    def _children(self, folder: str, chain: _Chain, kept: set[str]) -> Iterator[tuple[str, Entry]]:
        with paths.Naming(os.fsencode(self.shown(folder)), always=True):
            fd = self._open(folder, os.O_DIRECTORY) if folder else os.open(".", os.O_RDONLY, dir_fd=self._fd)
        try:
            if _identity(os.fstat(fd)) != chain[0]:
                raise self._changed(folder)
            with paths.Naming(os.fsencode(self.shown(folder)), always=True), os.scandir(fd) as items:
                children = list(items)
            for item in children:
                name = f"{folder}/{item.name}" if folder else item.name
                if paths.is_private(os.fsencode(item.name)):
                    continue
                with paths.Naming(os.fsencode(self.shown(name)), always=True):
                    if self._excludes.match(name, partial(item.is_dir, follow_symlinks=self._follow)):
                        _keep(kept, name)
                        continue
                    yield name, self._listed(item, name, fd, chain)
        finally:
            os.close(fd)

    def _listed(self, item: os.DirEntry[str], name: str, fd: int, chain: _Chain) -> Entry:
        found = item.stat(follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return _entry(found)
        if not self._follow:
            return _entry(found, os.readlink(item.name, dir_fd=fd))
        try:
            entry = _entry(os.stat(item.name, dir_fd=fd))
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, f"the link leads nowhere; {_HINT}", self.shown(name)) from error
        above: _Chain | None = chain if entry.kind == "dir" else None
        while above is not None:
            if above[0] == entry.identity:
                raise OSError(errno.ELOOP, f"the link leads to a directory that it is in; {_HINT}", self.shown(name))
            above = above[1]
        if entry.kind == "dir":
            self.followed.add(name)
        return entry

    def _entry(self, name: str) -> Entry:
        parent, _, last = name.rpartition("/")
        fd = self._open(parent, os.O_DIRECTORY) if len(name) * 4 > _PATH_AT_MOST else None
        at, path = (self._fd, name) if fd is None else (fd, last)
        try:
            found = os.stat(path, dir_fd=at, follow_symlinks=False)
            return _entry(found, os.readlink(path, dir_fd=at) if stat.S_ISLNK(found.st_mode) else "")
        finally:
            if fd is not None:
                os.close(fd)

    def _open(self, name: str, flags: int) -> int:
        """Open to read, however long the name is. What opens may be reached through a link: compare its identity."""
        at, rest = self._fd, os.fsencode(name)
        try:
            while len(rest) > _PATH_AT_MOST:
                cut = rest.rindex(b"/", 0, _PATH_AT_MOST)
                at, before = os.open(rest[:cut], os.O_RDONLY | os.O_DIRECTORY, dir_fd=at), at
                if before != self._fd:
                    os.close(before)
                rest = rest[cut + 1 :]
            return os.open(rest, os.O_RDONLY | flags | (0 if self._follow else os.O_NOFOLLOW), dir_fd=at)
        finally:
            if at != self._fd:
                os.close(at)

    def _require_same(self, name: str, entry: Entry, fd: int) -> None:
        if _mark(_entry(os.fstat(fd))) != _mark(entry):
            raise self._changed(name)

    def _changed(self, name: str) -> OSError:
        return OSError(errno.ESTALE, "came, went or changed since it was listed; try again", self.shown(name))


def _keep(kept: set[str], name: str) -> None:
    while "/" in name and (name := name.rpartition("/")[0]) not in kept:
        kept.add(name)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _entry(found: os.stat_result, link: str = "") -> Entry:
    mode = found.st_mode
    kind = (
        "file" if stat.S_ISREG(mode) else "dir" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "special"
    )
    times = found.st_mtime_ns, found.st_ctime_ns
    return Entry(kind, stat.S_IMODE(mode), found.st_size, *times, _identity(found), link)


def _mark(entry: Entry) -> Entry | tuple[object, ...]:
    """What stays while nobody changes it. What a directory contains is compared by its entries."""
    return ("dir", entry.identity) if entry.kind == "dir" else entry
