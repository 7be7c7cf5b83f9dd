"""The staged view: the tree as it would be after the commit, and what a commit has to do to make it so.

Every path here is resolved: without symbolic links, as `tree.resolve` returns it.
"""

from __future__ import annotations

import errno
import io
import stat
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from txfiles._disk import metadata
from txfiles._disk.interrupts import give_way
from txfiles._disk.system import release
from txfiles._format import paths
from txfiles._format.journal import Exit, Identity, Meta, Operation
from txfiles._format.layout import PRIVATE
from txfiles._tree import streams
from txfiles._tree.tokens import Token, Tokens, identity_of
from txfiles._tree.tree import Node, Tree, kind_of
from txfiles._tree.view import ABSENT, Absent, Directory, View, must_be_file, refuse_special, version_of
from txfiles.errors import ConflictError, InvalidPathError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from txfiles._disk.system import FileSystem, Stat

_CHUNK = 1 << 20  # bytes that are read at once


class Place(NamedTuple):
    """Where a write goes. `identity` and `meta` are those of the file there, `None` when there is none."""

    path: bytes
    identity: Identity | None
    meta: Meta | None


Entry = Token | Directory | Absent


class Staging(View[Token]):
    """Entries by resolved path, over the tree on disk. A token belongs to one entry at a time."""

    def __init__(self, fs: FileSystem, tree: Tree, tokens: Tokens) -> None:
        super().__init__(fs, tree, lambda token: (tokens.at, tokens.name(token.number)))
        self.tokens = tokens
        self.expected: dict[bytes, str | None] = {}
        self.checks: list[Callable[[Tree], None]] = []
        self._undo: list[tuple[bytes, Entry | None]] = []
        self._depth = 0
        self._may_go: set[tuple[bytes, str]] = set()

    # -- changing -----------------------------------------------------------------------------------------------

    def step(self) -> _Step:
        """All that is staged inside, or after an error nothing of it. Steps nest."""
        return _Step(self)

    def _roll_back(self, mark: int) -> None:
        undone = self._undo[mark:]
        entries = [self.entries.get(path) for path, _ in undone]
        for path, before in reversed(undone):
            self.lay(path, before)
        del self._undo[mark:]
        self._remove_tokens(undone, entries)

    def _forget_undo(self) -> None:
        undo, self._undo = self._undo, []
        for _, before in undo:
            if before is not None:
                self._remove_tokens(undo, [])
                break

    def _remove_tokens(self, undo: list[tuple[bytes, Entry | None]], displaced: list[Entry | None]) -> None:
        """Unlink what was displaced at the paths of `undo` and is held neither there nor after a further roll-back.

        Nothing else can hold it: a token is at one path at a time, and where the step put it is in `undo`.
        """
        displaced.extend(before for _, before in undo)
        if dropped := _numbers(displaced):
            dropped -= _numbers(self.entries.get(path) for path, _ in undo)
            dropped -= _numbers(before for _, before in self._undo)
            for number in dropped:
                self.tokens.remove(number)

    def put(self, path: bytes, entry: Entry) -> None:
        """Stage `entry`. REQUIRES: inside a `step`."""
        if isinstance(entry, Absent):
            self._require_reachable(path)
            self._may_go.add((path, "file"))
        self._put(path, entry)

    def remove_directory(self, path: bytes) -> None:
        """Stage the removal of a directory. REQUIRES: inside a `step`, and that of its contents is staged."""
        self._require_reachable(path)
        if self.is_directory_on_disk(path):
            self.tree.require_reachable(path)  # an undo makes a directory, not a subvolume
        self._may_go.add((path, "dir"))
        self._put(path, ABSENT)

    def _require_reachable(self, path: bytes) -> None:
        """What is at the path can be renamed, as far as its directory tells."""
        parent, _ = paths.split(path)
        if parent and self.is_directory_on_disk(parent):
            self.tree.require_reachable(parent)

    def _put(self, path: bytes, entry: Entry) -> None:
        assert self._depth > 0
        self._undo.append((path, self.entries.get(path)))
        self.lay(path, entry)

    def make_parents(self, path: bytes) -> None:
        """Stage the missing directories above `path`; what is there must be a directory of the root's mount."""
        for directory in self.tree.parents(path):
            self.make_directory(directory)
        self._require_possible_name(path)

    def make_directory(self, path: bytes) -> None:
        node = Node("dir") if not path else self.look(path)
        if node is None:
            self._require_possible_name(path)
            self.put(path, Directory(self.meta_for_new(path, is_dir=True)))
        elif node.kind != "dir":
            raise NotADirectoryError(errno.ENOTDIR, "a parent is not a directory", paths.decode(path))
        elif path not in self.entries:
            self.tree.require_inside(path)

    def _require_possible_name(self, path: bytes) -> None:
        """Ask for the name where a directory is: in one that is still to be made only the commit would find out."""
        try:
            self.fs.stat(self.tree.root_fd, paths.split(path)[1])
        except FileNotFoundError:
            pass
        except OSError as error:
            error.filename = paths.decode(path)
            raise

    def meta_for_new(self, path: bytes, *, is_dir: bool = False, mode: int | None = None) -> Meta:
        """The metadata of a new entry, by the rules of the nearest directory that exists; `mode` is that of open(2)."""
        parent, _ = paths.split(path)
        staged = []
        while parent and isinstance(self.entries.get(parent), Directory):
            staged.append(parent)
            parent, _ = paths.split(parent)
        while staged and self.is_directory_on_disk(staged[-1]):
            parent = staged.pop()
        found = self.tree.stat(parent)
        assert found is not None
        at, name = self.tree.at(parent) if parent else (self.tree.root_fd, b".")
        return metadata.for_new(self.fs, at, name, found, is_dir=is_dir, mode=mode)

    def meta_of(self, path: bytes) -> Meta:
        """The metadata of a file or directory of this view."""
        entry = self.entries.get(path)
        if isinstance(entry, (Token, Directory)):
            return entry.meta
        found = self.tree.stat(path)
        assert found is not None
        return metadata.read(self.fs, *self.tree.at(path), found)

    def place(self, path: bytes) -> Place:
        """Where a write to `path` goes, and what it takes the place of: absent, or a regular file."""
        resolved, node = self.find(path)
        if node is None:
            return Place(resolved, None, None)
        if node.kind != "file":
            must_be_file(resolved, node)
        parent, _, _ = resolved.rpartition(b"/")
        if parent and self.is_directory_on_disk(parent):
            self.tree.require_inside(parent)
        if node.stat is None:
            entry = self.entries[resolved]
            assert isinstance(entry, Token)
            return Place(resolved, entry.identity, entry.meta)
        meta = metadata.read(self.fs, *self.tree.at(resolved), node.stat)
        return Place(resolved, identity_of(node.stat), meta)

    # -- contents -----------------------------------------------------------------------------------------------

    def open_file(self, path: bytes) -> int:
        """A descriptor of a regular file of this view."""
        self.require_file(path)
        at, name = self.where(path)
        try:
            fd = self.fs.open_read(at, name)
        except OSError as error:
            error.filename = paths.decode(path)
            raise
        try:
            if not stat.S_ISREG(self.fs.fstat(fd).st_mode):
                raise refuse_special(path)
        except BaseException:
            release(self.fs, fd)
            raise
        return fd

    def content(self, path: bytes) -> bytes:
        """The whole content of a file."""
        fd = self.open_file(path)
        try:
            chunks = []
            while chunk := self.fs.read(fd, _CHUNK):
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            release(self.fs, fd)

    def raw(self, path: bytes) -> io.RawIOBase:
        """The content of a file as it is read."""
        return streams.RawReader(self.fs, self.open_file(path))

    def chunks(self, path: bytes) -> Iterator[bytes]:
        """The content of a file in pieces. REQUIRES: it is a file."""
        fd = self.fs.open_read(*self.where(path))
        try:
            while chunk := self.fs.read(fd, _CHUNK):
                give_way()
                yield chunk
        finally:
            release(self.fs, fd)

    def taken(self, path: bytes) -> Token:
        """What is at the path of a file or link, to be put at another one."""
        entry = self.entries.get(path)
        return entry if isinstance(entry, Token) else self.tokens.link_file(self.tree, path)

    def linked(self, path: bytes) -> Token:
        """A second name of a file, for another path."""
        entry = self.entries.get(path)
        return self.tokens.second(entry) if isinstance(entry, Token) else self.tokens.link_file(self.tree, path)

    def copied(self, source: bytes, target: bytes, meta: Meta | None = None) -> Token:
        """A copy of a file, for another path: content, mode and attributes, or with `meta`."""
        if meta is None:
            meta = self.copied_meta(source, target)
        fd = self.fs.open_read(*self.where(source))
        try:
            if not stat.S_ISREG(self.fs.fstat(fd).st_mode):
                raise refuse_special(source)
            writer = self.tokens.new(target)
            try:
                while chunk := self.fs.read(fd, _CHUNK):
                    give_way()
                    writer.write(chunk)
                return writer.finish(meta, self.place(target).identity)
            finally:
                writer.discard()
        finally:
            release(self.fs, fd)

    def copied_meta(self, source: bytes, target: bytes, *, is_dir: bool = False) -> Meta:
        """Mode and attributes of the source, owner and group of what the target is or would be."""
        meta = self.meta_of(source)
        exists = self.look(target) is not None
        owner = self.meta_of(target) if exists else self.meta_for_new(target, is_dir=is_dir)
        kept = meta.mode if (meta.uid, meta.gid) == (owner.uid, owner.gid) else meta.mode & 0o1777
        return meta._replace(mode=kept, uid=owner.uid, gid=owner.gid)

    def refuse_nested_root(self, path: bytes) -> None:
        """A directory that is a root of its own is not moved or removed."""
        if self.tree.stat(paths.join(path, PRIVATE)) is not None and path not in self.entries:
            shown = paths.decode(path)
            raise InvalidPathError(f"{shown!r} is a txfiles root of its own; it cannot be deleted or moved", path=shown)

    def expect(self, path: bytes, version: str | None) -> None:
        """The commit is to find this version on disk."""
        self.expected.setdefault(path, version)

    def expect_nothing(self, path: bytes) -> None:
        """The commit is to find nothing on disk, unless this transaction takes away what is there."""
        if path not in self.entries:
            self.expect(path, None)

    @property
    def in_step(self) -> bool:
        return self._depth > 0

    # -- the net effect -----------------------------------------------------------------------------------------

    def plan(self) -> list[Operation]:
        """The operations that make the disk look like this view, one per path; empty where it does already.

        Deletes come first, then directories that go (deepest first), directories that come, and writes: so a file
        can become a directory and back. Operations without a token have the number -1.
        """
        self.tree.close()  # look afresh: other programs may have moved directories since
        for check in self.checks:
            check(self.tree)
        for path, version in self.expected.items():
            self._require_on_disk(path, version)
        deletes, goes, comes, writes = [], [], [], []
        names: dict[tuple[bytes, int], bytes] = {}
        for path, entry in sorted(self.entries.items(), key=itemgetter(0)):
            found = self.tree.stat(path)
            kind = None if found is None else kind_of(found)
            if kind == "special":
                raise refuse_special(path)
            if found is not None and kind != "dir":
                parent, _, _ = path.rpartition(b"/")
                if (other := names.setdefault((parent, found.st_ino), path)) is not path:
                    self._require_two_names(other, path)
            if found is not None and kind == "dir" and not isinstance(entry, Directory):
                if (path, "dir") not in self._may_go:
                    raise IsADirectoryError(errno.EISDIR, "has become a directory", paths.decode(path))
                goes.append(Operation(-1, "rmdir", path, meta=metadata.read(self.fs, *self.tree.at(path), found)))
                found = kind = None
            if isinstance(entry, Token):
                now = None if found is None else metadata.read(self.fs, *self.tree.at(path), found)
                if entry.kept is not None and entry.kept.path == path and now not in (None, entry.kept.meta):
                    entry = self.tokens.keep_meta(entry, entry.kept, now)
                old = None if found is None else self._identity(path, found)
                if old is None or old != entry.identity:  # otherwise a file that was moved to where it is
                    was = None if now == entry.meta else now
                    done = entry.identity, entry.digest, entry.meta, was
                    writes.append(Operation(entry.number, "write", path, old, *done))
            elif found is not None and kind != "dir":
                if isinstance(entry, Directory) and (path, "file") not in self._may_go:
                    raise FileExistsError(errno.EEXIST, "has become a file", paths.decode(path))
                self.tree.require_file_in_mount(path)
                deletes.append(Operation(-1, "delete", path, old=self._identity(path, found)))
            if isinstance(entry, Directory) and kind != "dir":
                comes.append(Operation(-1, "mkdir", path, meta=entry.meta))
        self._require_empty(goes, {op.path for op in (*deletes, *goes)})
        operations = [*deletes, *reversed(goes), *comes, *writes]
        directories = paths.parents([op.path for op in operations])
        self._require_own_directories(directories.union(op.path for op in goes))
        for directory in directories:
            if isinstance(self.entries.get(directory), (Absent, Directory)) and not self.is_directory_on_disk(
                directory
            ):
                continue
            self.tree.require_reachable(directory)
        return self._by_links(operations)

    def _by_links(self, operations: list[Operation]) -> list[Operation]:
        """Let what is out of the root be named by the links to it, which lead there still, and after the commit."""
        if self.tree.exits is None:
            return operations
        for one in self.exits(operations):
            shown = paths.decode(one.path)
            if not self.tree.still_leads(one):
                raise ConflictError(f"{shown!r} leads elsewhere now than when it was followed", path=shown)
            if self.resolve(one.path) != one.to:
                message = f"the links of {shown!r} and what is behind them cannot be changed in one transaction"
                raise InvalidPathError(message, path=shown)
        return [op._replace(via=self.name_of(op.path)) if paths.is_outside(op.path) else op for op in operations]

    def exits(self, operations: Iterable[Operation]) -> tuple[Exit, ...]:
        """The links out of the root that operations go through."""
        exits = self.tree.exits
        found = {exits.of(op.path) for op in operations if paths.is_outside(op.path)} if exits is not None else ()
        return tuple(map(self.tree.settled, sorted(found)))

    def _require_empty(self, directories: list[Operation], gone: set[bytes]) -> None:
        for op in directories:
            if any(paths.join(op.path, name) not in gone for name in self.fs.listdir(self.tree.open_dir(op.path))):
                message = "somebody else has put something into the directory"
                raise OSError(errno.ENOTEMPTY, message, paths.decode(op.path))

    def _require_two_names(self, path: bytes, other: bytes) -> None:
        """Refuse two entries of a directory that are one file, unless as two hard links: one would undo the other."""
        parent, name = paths.split(path)
        if not {name, paths.split(other)[1]} <= set(self.tree.listdir(parent)):
            raise paths.one_name(path, other)

    def _require_own_directories(self, directories: set[bytes]) -> None:
        names: dict[tuple[int, int], bytes] = {}
        for path in sorted(directories) if len(directories) > 1 else ():
            found = self.tree.stat(path)
            if found is not None and (other := names.setdefault((found.st_dev, found.st_ino), path)) != path:
                raise paths.one_name(other, path)

    def _require_on_disk(self, path: bytes, version: str | None) -> None:
        found = self.tree.stat(path)
        if found is not None and kind_of(found) != "file":
            shown = paths.decode(path)
            what = {"dir": "directory", "link": "symbolic link"}.get(kind_of(found), "special file")
            raise ConflictError(f"{shown!r} is a {what} now", path=shown)
        require_version(path, None if found is None else version_of(found), version)

    def _identity(self, path: bytes, found: Stat) -> Identity:
        link = self.fs.readlink(*self.tree.at(path)) if stat.S_ISLNK(found.st_mode) else None
        return identity_of(found, link)


def _numbers(entries: Iterable[Entry | None]) -> set[int]:
    return {entry.number for entry in entries if isinstance(entry, Token)}


class _Step:
    __slots__ = ("_mark", "_staging")

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def __enter__(self) -> None:
        staging = self._staging
        staging._depth += 1
        self._mark = len(staging._undo), len(staging.expected)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        staging = self._staging
        staging._depth -= 1
        if kind is not None:
            while len(staging.expected) > self._mark[1]:
                staging.expected.popitem()
            staging._roll_back(self._mark[0])
        elif staging._depth == 0:
            staging._forget_undo()


def require_version(path: bytes, found: str | None, wanted: str | None) -> None:
    if found != wanted:
        shown = paths.decode(path)
        have, want = ("is missing" if v is None else f"has version {v}" for v in (found, wanted))
        raise ConflictError(f"{shown!r} {have}, but it was expected that it {want}", path=shown)


__all__ = ["ABSENT", "Absent", "Directory", "Staging", "refuse_special", "require_version", "version_of"]
