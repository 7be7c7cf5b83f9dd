"""The tokens of one transaction: new content in the private directory, written once and not yet anybody's file."""

from __future__ import annotations

import errno
import stat
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from txfiles._disk import metadata
from txfiles._disk.allowance import Allowance, is_narrower
from txfiles._disk.interrupts import give_way
from txfiles._disk.rounds import descriptors
from txfiles._disk.system import NO_ROOM, release, write_all
from txfiles._format import layout, paths
from txfiles._format.digest import Digest, digest_of
from txfiles._format.journal import Identity, Meta, Operation
from txfiles._tree.borders import POSSIBLE
from txfiles.errors import ConflictError, UnsupportedFilesystemError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from txfiles._disk.rounds import Job, Sync
    from txfiles._disk.system import FileSystem, Stat
    from txfiles._tree.tree import Tree

_KEEP_OPEN = 16, 64  # descriptors that wait for the sync round, by the process's limit; other tokens are opened anew
JOURNAL = -1  # stands for the journal where its descriptor is kept, like that of a token, for the sync round
_STEP = 1 << 20
_BESIDE = 1 << 19  # bytes of a step from which a thread for its digest pays
_WRITEBACK_EVERY = 8 << 20
_INLINE_AT_MOST = 4 << 20  # bytes of all contents that are kept
_TICK = 1_000_000_000  # ns; clocks of files are coarser than their unit


class Kept(NamedTuple):
    """The metadata of the file at `path` when it was to be replaced; all are kept but the mode, if `mode` is given."""

    path: bytes
    meta: Meta
    mode: int | None


class Token(NamedTuple):
    """New content (`identity.link` is set: a symbolic link) waiting under the name `T.<number>`."""

    number: int
    identity: Identity
    digest: str
    meta: Meta
    kept: Kept | None = None


class Tokens:
    """Makes tokens below the descriptor `at`.

    `durable` tokens begin to reach the disk while others are written, those of more than `inline` bytes: a log takes
    the content of the others, which `contents` has as long as that is not too much for it.
    """

    def __init__(
        self,
        fs: FileSystem,
        at: int,
        tid: str,
        *,
        durable: bool,
        inline: int = -1,
        allowance: Allowance | None = None,
    ) -> None:
        self.fs = fs
        self.at = at
        self.tid = tid
        self.durable = durable
        self.inline = inline
        self.contents: dict[int, bytes] = {}
        self._room = _INLINE_AT_MOST
        self.allowance: Allowance = Allowance(b"") if allowance is None else allowance
        self._next = 0
        self._made: set[int] = set()
        self._old: set[int] = set()
        self._open: dict[int, int] = {}
        self._synced: set[int] = set()

    def name(self, number: int) -> bytes:
        return layout.token(self.tid, number)

    def reserve(self) -> int:
        """A number that no token of this transaction has had."""
        self._next += 1
        return self._next - 1

    def new(self, path: bytes) -> Writer:
        """Create an empty token (mode 0600, O_EXCL) to write to; `path` is what errors are to name."""
        number = self.reserve()
        self._made.add(number)
        try:
            fd = self.fs.create(self.at, self.name(number))
        except OSError as error:
            paths.give_name(error, path)
            raise
        return Writer(self, number, fd, path)

    def marker(self) -> int:
        """Create the empty token of an operation that brings no content; its number."""
        number = self.reserve()
        self._made.add(number)
        try:
            self.fs.close(self.fs.create(self.at, self.name(number)))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.fs.link(self.at, layout.FORMAT, self.at, self.name(number))  # another name takes no inode
        return number

    def keep_meta(self, token: Token, kept: Kept, now: Meta) -> Token:
        """Give the token what the file that it is to replace has now, for somebody has changed that since."""
        wanted = now if kept.mode is None else metadata.with_mode(now, kept.mode)
        number = token.number
        fd = self._open.get(number)
        mine = self.fs.open_read(self.at, self.name(number)) if fd is None else fd
        try:
            for key in {key for key, _ in token.meta.xattrs} - {key for key, _ in wanted.xattrs}:
                self.fs.remove_xattr(mine, key)
            meta = metadata.apply(self.fs, mine, self.fs.fstat(mine), wanted)
            self.require_kept(kept.path, wanted, meta, new=False)
        finally:
            if fd is None:
                release(self.fs, mine)
        return token._replace(meta=meta)

    def require_kept(self, path: bytes, wanted: Meta, has: Meta, *, new: bool) -> None:
        """Raises `PermissionError` where permissions of what is replaced would be lost, unless that is accepted."""
        if not new and is_narrower(wanted, has) and not self.allowance.accepts("narrowed-modes"):
            message = (
                f"only group {wanted.gid} (or the owner) may keep the permissions of this file, and chown was refused"
            )
            message += '; accept={"narrowed-modes"} does without them'
            raise PermissionError(errno.EPERM, message, paths.decode(path))
        self.allowance.metadata(path, wanted, has, new=new)

    def link_file(self, tree: Tree, path: bytes) -> Token:
        """Make the file `path` itself the token, by a hard link: how a move keeps its content."""
        with self._new() as number:
            self.hard_link(tree, path, self.name(number))
            found = self.fs.stat(self.at, self.name(number))
            meta = metadata.read(self.fs, self.at, self.name(number), found)
            if stat.S_ISLNK(found.st_mode):
                text = self.fs.readlink(self.at, self.name(number))
                return Token(number, identity_of(found, text), digest_of(text), meta)
            digest = digest_of_file(self.fs, self.at, self.name(number), found.st_size)
            return Token(number, identity_of(found), digest, meta)

    def second(self, token: Token) -> Token:
        """Another token that is the same file."""
        with self._new() as number:
            self.fs.link(self.at, self.name(token.number), self.at, self.name(number))
            return token._replace(number=number)

    def link_old(self, tree: Tree, op: Operation) -> Identity:
        """Link what a write replaces to its `.old`; the identity of what was linked."""
        name = layout.old(self.tid, op.number)
        self._old.add(op.number)
        shown = paths.decode(op.path)
        try:
            self.hard_link(tree, op.path, name)
        except FileNotFoundError as error:  # also where another file takes its place just then: link(2)
            raise ConflictError(f"{shown!r} was changed by somebody else during the commit", path=shown) from error
        found = self.fs.stat(self.at, name)
        assert op.old is not None
        if is_file(found, op.old):
            return op.old
        if found.st_ino != op.old.ino and (now := tree.stat(op.path)) is not None and is_file(now, op.old):
            message = f"the file system shows two names of the file {shown!r} with two inode numbers"
            raise UnsupportedFilesystemError(message, path=shown)
        if stat.S_ISLNK(found.st_mode):
            return identity_of(found, self.fs.readlink(self.at, name))
        if not stat.S_ISREG(found.st_mode):
            raise ConflictError(f"{shown!r} is no longer a regular file", path=shown)
        return identity_of(found)

    def hard_link(self, tree: Tree, path: bytes, new: bytes) -> None:
        """link(2) of `path` into the private directory; says what it means when the place or the file forbids it."""
        try:
            self.fs.link(*tree.at(path), self.at, new)
        except OSError as error:
            shown = paths.decode(path)
            if error.errno == errno.EXDEV:
                known = tree.explain_crossing(path)
                raise known or UnsupportedFilesystemError(f"{shown!r}: {POSSIBLE}", path=shown) from error
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS) and not self._can_link():
                message = f"the file system of {shown!r} has no hard links, which a commit needs"
                raise UnsupportedFilesystemError(message, path=shown) from error
            if error.errno == errno.EPERM:  # chattr(1), or fs.protected_hardlinks in proc(5)
                error.strerror = "it is immutable, or only who may read and write a file may replace or move it"
            raise OSError(error.errno, error.strerror, shown) from error

    def _can_link(self) -> bool:
        number = self.marker()
        second = self.reserve()
        self._made.add(second)
        try:
            self.fs.link(self.at, self.name(number), self.at, self.name(second))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            return False
        finally:
            self.remove(number)
            self.remove(second)
        return True

    def symlink(self, text: bytes) -> Token:
        with self._new() as number:
            self.fs.symlink(text, self.at, self.name(number))
            found = self.fs.stat(self.at, self.name(number))
            meta = metadata.read(self.fs, self.at, self.name(number), found)
            return Token(number, identity_of(found, text), digest_of(text), meta)

    @contextmanager
    def _new(self) -> Iterator[int]:
        """The number of a token that is made in the block; where the block fails, the token goes."""
        number = self.reserve()
        self._made.add(number)
        try:
            yield number
        except BaseException:
            with suppress(OSError):  # the error that led here is the one to raise
                self.remove(number)
            raise

    def remove(self, number: int) -> None:
        """Unlink a token of this transaction that is no longer wanted; one that is gone already is no error."""
        if (fd := self._open.pop(number, None)) is not None:
            release(self.fs, fd)
        if number in self._made:
            with suppress(FileNotFoundError):
                self.fs.unlink(self.at, self.name(number))
            self._made.discard(number)
            self.contents.pop(number, None)

    def keep_only(self, numbers: set[int]) -> None:
        """Unlink those that no operation needs."""
        for number in sorted(self._made - numbers):
            self.remove(number)

    def remove_all(self) -> None:
        """Unlink every token made so far; may be called again after an error or an interrupt."""
        self.drop()
        for number in sorted(self._made):
            self.remove(number)
        for number in sorted(self._old):
            with suppress(FileNotFoundError):
                self.fs.unlink(self.at, layout.old(self.tid, number))
            self._old.discard(number)

    def close(self) -> None:
        """Close the descriptors that were kept for the sync round: all of them, then raises the first error."""
        failed: OSError | None = None
        while self._open:
            try:
                self.fs.close(self._open.popitem()[1])
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def drop(self) -> None:
        """Close them without asking."""
        fds, self._open = list(self._open.values()), {}
        release(self.fs, *fds)

    def forget(self) -> None:
        """The transaction is over: what is still there belongs to recovery, and `at` may be another directory soon."""
        self.drop()
        self._made.clear()
        self._old.clear()
        self.contents.clear()

    def sync(self, number: int) -> Job:
        """The job that makes content, size and metadata of a token durable (A3)."""
        fd = self._open.get(number)
        return partial(self._sync_anew, number) if fd is None else (self.fs.sync_file, fd)

    def _sync_anew(self, number: int) -> Generator[Sync, None, None]:
        if number in self._synced:
            return
        fd = self.fs.open_read(self.at, self.name(number))
        try:
            yield self.fs.sync_file, fd
        finally:
            release(self.fs, fd)

    def keep_content(self, number: int, content: bytes) -> None:
        self._room -= len(content)
        if self._room >= 0:
            self.contents[number] = content
        else:
            self.contents.clear()

    def keep_journal(self, fd: int) -> None:
        """Take over the descriptor that wrote the journal."""
        self._open[JOURNAL] = fd

    def keep(self, number: int, fd: int, mode: int, size: int) -> None:
        """Take over the descriptor that wrote a token: kept for the sync round, or closed where another can be had."""
        if (not self.durable or size <= self.inline) and mode & stat.S_IRUSR:  # most often there is no such round
            self.fs.close(fd)
            return
        kept = len(self._open)
        self._open[number] = fd
        if kept < _KEEP_OPEN[0] or kept < min(_KEEP_OPEN[1], descriptors() // 16):
            return
        if self.durable and not mode & stat.S_IRUSR:
            self.fs.sync_file(fd)
            self._synced.add(number)
        self.fs.close(self._open.pop(number))


class Writer:
    """The one way in which content gets into a token. Ends with `discard`, which follows `finish`, too."""

    def __init__(self, tokens: Tokens, number: int, fd: int, path: bytes) -> None:
        self.number = number
        self.size: int = 0
        self._path = path
        self._tokens = tokens
        self._fs = tokens.fs
        self._fd = fd
        self._digest = Digest()
        self._started = 0
        self._finished = False
        self._appended = True  # and nothing else: then `size` and the digest are those of the content
        self._parts: list[bytes | memoryview] = []  # of that, as long as it is to be kept

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data`, however many system calls it takes; its length in bytes."""
        view = data if type(data) is bytes else memoryview(data).cast("B")
        try:
            if len(view) <= _STEP:
                self._add(view)
            else:
                whole = memoryview(view)
                for start in range(0, len(whole), _STEP):
                    give_way()
                    self._add(whole[start : start + _STEP])
        except OSError as error:
            paths.give_name(error, self._path)
            raise
        return len(view)

    def seek(self, offset: int, whence: int) -> int:
        """The new position. What is not appended parts content and digest: that is taken anew at the end."""
        appended, self._appended = self._appended, False
        position = self._fs.seek(self._fd, offset, whence)
        self._appended = appended and position == self.size
        return position

    def read(self, size: int) -> bytes:
        appended, self._appended = self._appended, False
        data = self._fs.read(self._fd, size)
        self._appended = appended and not data
        return data

    def truncate(self, size: int) -> int:
        self._appended &= size == self.size
        self._fs.truncate(self._fd, size)
        return size

    def lend(self) -> int:
        """The descriptor, for others to write to."""
        self._appended = False
        return self._fs.fileno(self._fd)

    def _add(self, step: bytes | memoryview) -> None:
        if not isinstance(step, bytes) and not isinstance(step.obj, bytes):
            step = bytes(step)  # or what changes it meanwhile would part content and digest
        if not self._appended:
            write_all(self._fs, self._fd, step)
            return
        if len(step) < _BESIDE:
            self._digest.update(step)
            write_all(self._fs, self._fd, step)
        else:
            with self._digest.updated_beside(step):
                write_all(self._fs, self._fd, step)
        self.size += len(step)
        if self.size <= self._tokens.inline:
            self._parts.append(step)
        if self.size - self._started >= _WRITEBACK_EVERY and self._tokens.durable:
            self._fs.start_writeback(self._fd)
            self._started = self.size

    def finish(
        self, meta: Meta, replaces: Identity | None, mtime_ns: int | None = None, *, kept: Kept | None = None
    ) -> Token:
        """Give the token its metadata (and a modification time) and start its write-back, without waiting.

        Its mtime is later than that of what it replaces, also within one tick of the clock, so that a version
        never comes back.
        """
        try:
            if self._tokens.durable and self.size > self._tokens.inline:
                self._fs.start_writeback(self._fd)
            found = self._fs.fstat(self._fd)
            digest = self._digest.hexdigest() if self._appended else self._digest_of_all(found.st_size)
            wanted, meta = meta, metadata.apply(self._fs, self._fd, found, meta)
            if meta is not wanted:
                self._tokens.require_kept(self._path, wanted, meta, new=replaces is None)
            if mtime_ns is not None:
                self._fs.set_mtime(self._fd, mtime_ns)
                found = self._fs.fstat(self._fd)
            elif replaces is not None and found.st_mtime_ns <= replaces.mtime_ns < found.st_mtime_ns + _TICK:
                self._fs.set_mtime(self._fd, replaces.mtime_ns + 1)
                found = self._fs.fstat(self._fd)
            if self._appended and self.size <= self._tokens.inline:
                self._tokens.keep_content(self.number, b"".join(self._parts))
            fd, self._fd = self._fd, -1
            self._tokens.keep(self.number, fd, meta.mode, found.st_size)
            self._finished = True
        except OSError as error:
            paths.give_name(error, self._path)
            raise
        return Token(self.number, identity_of(found), digest, meta, kept)

    def _digest_of_all(self, size: int) -> str:
        return digest_of_file(self._fs, self._tokens.at, self._tokens.name(self.number), size)

    def discard(self) -> None:
        """Close and unlink the token; does nothing after a `finish` that succeeded."""
        if not self._finished:
            self.close()
            self._tokens.remove(self.number)

    def close(self) -> None:
        """Close the token and leave it where it is."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            release(self._fs, fd)


def identity_of(found: Stat, link: bytes | None = None) -> Identity:
    return Identity(found.st_ino, found.st_size, found.st_mtime_ns, link)


def is_file(found: Stat, identity: Identity) -> bool:
    """What was found is the regular file of that identity."""
    same = (found.st_ino, found.st_size, found.st_mtime_ns, None) == identity
    return same and stat.S_ISREG(found.st_mode)


def digest_of_file(fs: FileSystem, at: int, name: bytes, size: int) -> str:
    """The digest of a file of `size` bytes; of all that is there if it has become longer."""
    digest = Digest()
    fd = fs.open_read(at, name)
    try:
        wanted = min(size + 1, _STEP)  # the one more tells whether it has
        while chunk := fs.read(fd, wanted):
            give_way()
            digest.update(chunk)
            size -= len(chunk)
            if not size and len(chunk) < wanted:
                break
            wanted = min(size + 1, _STEP) if size >= 0 else _STEP
    finally:
        release(fs, fd)
    return digest.hexdigest()
