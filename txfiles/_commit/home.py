"""An open root: its descriptors, its lock and its private directory."""

from __future__ import annotations

import errno
import re
import stat
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

from txfiles._disk import metadata
from txfiles._disk.allowance import Allowance
from txfiles._disk.interrupts import HeldBack
from txfiles._disk.lock import make_lock
from txfiles._disk.system import give, release, write_all
from txfiles._format import journal, layout, paths
from txfiles._tree.borders import confined
from txfiles._tree.tree import Tree
from txfiles.errors import (
    ConflictError,
    InvalidPathError,
    JournalCorruptError,
    JournalVersionError,
    RecoveryError,
    UnsupportedFilesystemError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._calls.progress import Progress
    from txfiles._disk.system import FileSystem, Stat
    from txfiles._format.journal import Head, Journal
    from txfiles._format.paths import AnyPath

_FORMAT = re.compile(rb"txfiles ([0-9]{1,9}) ([a-z]{1,32})\n")
_FORMAT_AT_MOST = 4096  # bytes
_CHUNK = 1 << 16
_REMEMBERED = 256  # format files


def locate(fs: FileSystem, root: AnyPath) -> bytes:
    """The absolute path of a root, symbolic links resolved, so that every spelling is one root."""
    raw = paths.to_bytes(root)
    if not raw or b"\0" in raw:
        raise InvalidPathError(
            "the root is empty" if not raw else "the root contains a NUL byte", path=paths.decode(raw)
        )
    with HeldBack(), paths.Naming(raw):
        root = fs.absolute(raw)
    if paths.has_private(root):
        paths.refuse_private(paths.decode(root))
    return root


class Log(Protocol):
    """The log of a root, as far as its home needs it."""

    @property
    def seq(self) -> int: ...
    def close(self) -> None: ...


class Home:
    """What every step of the protocol works on. Owns its descriptors; `close()` frees them and the lock."""

    def __init__(
        self,
        fs: FileSystem,
        root: bytes,
        root_fd: int,
        private_fd: int,
        *,
        follow: bool = False,
        found: tuple[Stat, Stat] | None = None,
    ) -> None:
        self.fs = fs
        self.root = root
        self.root_fd = root_fd
        self.private_fd = private_fd
        self.tree = Tree(fs, root_fd, root, follow=follow)
        if found is not None:
            self._root_id, self._private_id = map(_identity, found)
        self.lock = make_lock(fs, private_fd, root, found and found[1])
        self.sync_failed = False
        self.lacks_spare = False  # as far as anybody has looked
        self.is_full = False  # somebody found no room
        self.allowance: Allowance = Allowance(root)  # whoever is allowed more puts another one here
        self.progress: Progress | None = None  # of the commit, where somebody asked
        self.log: Log | None = None  # open, and at rest, where there is one and a transaction has begun
        self.ended: set[str] = set()  # transactions of the log that a recovery has ended
        self._held = -1

    @classmethod
    def open(cls, fs: FileSystem, root: bytes, *, create: bool, follow: bool = False) -> Home:
        """Open for writing; makes the private directory, and with `create` the root, where they are missing.

        With `follow` links that lead out of the root are followed.
        """
        try:
            root_fd = open_root(fs, root, " (create=True makes it)")
        except FileNotFoundError:
            if not create:
                raise
            _make_directories(fs, root)
            root_fd = open_root(fs, root)
        try:
            found = fs.fstat(root_fd)
            private_fd, private = _make_private(fs, root, root_fd, found)
        except BaseException:
            release(fs, root_fd)
            raise
        home = cls(fs, root, root_fd, private_fd, follow=follow, found=(found, private))
        try:
            home.require_to_follow()
            home.require_own_mount()
            home.require_no_sandbox()
        except BaseException:
            home.close()
            raise
        return home

    @classmethod
    def find(cls, fs: FileSystem, root: bytes, *, follow: bool = False) -> Home | None:
        """Open what is there and make nothing; `None` when the root has no private directory."""
        root_fd = open_root(fs, root)
        try:
            private_fd = open_private(fs, root, root_fd)
        except FileNotFoundError:
            release(fs, root_fd)
            return None
        except BaseException:
            release(fs, root_fd)
            raise
        home = cls(fs, root, root_fd, private_fd, follow=follow)
        try:
            home.require_to_follow()
        except BaseException:
            home.close()
            raise
        return home

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            paths.name_below(error, self.root)
        self.close()

    def close(self) -> None:
        """Free the lock and the descriptors; may be called again, as it has to be when an interrupt came in between."""
        try:
            self.let_go()
            self.lock.release()
        finally:
            fds, self.root_fd, self.private_fd = (self.root_fd, self.private_fd), -1, -1
            self.tree.close()
            self.close_log()
            release(self.fs, *(fd for fd in fds if fd >= 0))

    def close_log(self) -> None:
        file, self.log = self.log, None
        if file is not None:
            file.close()

    def require_no_sandbox(self) -> None:
        """Nothing forbids to rename between the private directory and the root: or only the apply would find out."""
        if (error := confined(self.fs, self.root_fd, self.root)) is not None:
            raise error

    def require_own_mount(self) -> None:
        if self.fs.mount_id(self.root_fd) != self.fs.mount_id(self.private_fd):
            shown = paths.decode(paths.join(self.root, layout.PRIVATE))
            raise UnsupportedFilesystemError(f"{shown!r} is a mount of its own", path=shown)
        if self._root_id[0] != self._private_id[0]:
            shown = paths.decode(paths.join(self.root, layout.PRIVATE))
            raise UnsupportedFilesystemError(f"{shown!r} is a subvolume of its own", path=shown)

    @cached_property
    def _root_id(self) -> tuple[int, int]:
        return _identity(self.fs.fstat(self.root_fd))

    @cached_property
    def _private_id(self) -> tuple[int, int]:
        return _identity(self.fs.fstat(self.private_fd))

    def require_in_place(self) -> None:
        """The root and the lock file are still those that were opened (or two writers would believe in two locks)."""
        self.lock.check()
        if not (self._is_at_its_name() and self.is_in_place()):
            shown = paths.decode(self.root)
            raise ConflictError(f"the root {shown!r} was moved or replaced since the transaction began", path=shown)

    def _is_at_its_name(self) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            if _identity(self.fs.stat(None, self.root)) == self._root_id:
                return True
            fd = self.fs.open_dir(None, self.root, follow=True)  # a link may lead there now
            try:
                return _identity(self.fs.fstat(fd)) == self._root_id
            finally:
                release(self.fs, fd)
        return False

    def is_in_place(self) -> bool:
        """The private directory is still the one that was opened."""
        try:
            return _identity(self.fs.stat(self.root_fd, layout.PRIVATE)) == self._private_id
        except FileNotFoundError:
            return False

    def next_number(self, head: Head | None) -> int:
        """One that no transaction of this root has had, as far as HEAD, the log and this process know."""
        used = self.fs.numbers.get(self._era(), 0) if self.fs.numbers else 0
        return max(used, 0 if head is None else head.seq, 0 if self.log is None else self.log.seq) + 1

    def use_up(self, number: int) -> None:
        """Nobody is to get it again, although its transaction came to nothing."""
        era = self._era()
        self.fs.numbers[era] = max(number, self.fs.numbers.get(era, 0))

    def _era(self) -> tuple[int, int, int] | None:
        """Of a root, until it is removed and made anew."""
        with suppress(FileNotFoundError):
            found = self.fs.stat(self.private_fd, layout.FORMAT)
            return found.st_dev, found.st_ino, found.st_mtime_ns
        return None

    def require_to_follow(self) -> None:
        """Links lead out of the root only where nobody but the caller can have said so to recovery."""
        if self.tree.exits is None or self._private_is_the_callers_own():
            return
        private = self.fs.fstat(self.private_fd)
        shown = paths.decode(paths.join(self.root, layout.PRIVATE))
        mode = stat.S_IMODE(private.st_mode)
        message = (
            f'links="follow" is for who alone may write {shown!r}: it belongs to user {private.st_uid}, mode {mode:o}'
        )
        raise UnsupportedFilesystemError(message, path=shown)

    def follows(self, journal: Journal) -> bool:
        """Whether what it says of files out of the root counts: for who follows links, and wrote it. Nobody else looks
        there.
        """
        return not journal.exits or (self.tree.exits is not None and self.is_the_callers_own())

    def require_followed(self, journal: Journal) -> None:
        if not self.follows(journal):
            raise self.unfollowed(journal)

    def unfollowed(self, journal: Journal) -> RecoveryError:
        """What it means that they are not followed."""
        shown = paths.some([repr(paths.decode(one.path)) for one in journal.exits])
        message = (
            f"transaction {journal.tid} of {paths.decode(self.root)!r} changes files out of the root, through {shown}:"
            ' its owner can recover it with links="follow" (txfiles recover --follow-links); nothing was touched'
        )
        return RecoveryError(message, path=paths.decode(self.root), paths=tuple(journal.paths))

    def _private_is_the_callers_own(self) -> bool:
        private = self.fs.fstat(self.private_fd)
        return private.st_uid == self.fs.ids()[0] and not private.st_mode & 0o022

    def is_the_callers_own(self) -> bool:
        """Whether nobody but the caller (and the superuser) can have written what is pending."""
        uid = self.fs.ids()[0]
        if not self._private_is_the_callers_own():
            return False
        journals = [
            name
            for name in self.names()
            if name == layout.LOG or layout.parse(name).kind not in ("permanent", "token", "old", "unknown")
        ]
        return all(self.fs.stat(self.private_fd, name).st_uid == uid for name in journals)

    def share(self, fd: int, mode: int = 0o600) -> Stat:
        """Give a new file of our own its mode, whatever the umask, and to all who may write the private directory.

        Those are its group, and its owner if root made the file: or one run as root would lock the owner of the
        directory out. Returns what the file was before.
        """
        return share(self.fs, self.private_fd, fd, mode)

    def names(self) -> list[bytes]:
        return self.fs.listdir(self.private_fd)

    def read(self, name: bytes, limit: int = journal.MAX_SIZE) -> bytes | None:
        """The whole content of a file of the private directory; `None` if and only if there is none.

        Raises `JournalCorruptError` for one of more than `limit` bytes: a sparse file costs whoever plants it nothing.
        """
        found = self.read_file(name, limit)
        return None if found is None else found[0]

    def read_file(self, name: bytes, limit: int = journal.MAX_SIZE) -> tuple[bytes, Stat] | None:
        """The same with the file's stat."""
        try:
            return self._read(name, limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            error.filename = paths.decode(b"/".join((self.root, layout.PRIVATE, name)))
            raise

    def _read(self, name: bytes, limit: int) -> tuple[bytes, Stat]:
        fd = self.fs.open_read(self.private_fd, name)
        try:
            found = self.fs.fstat(fd)
            return read_whole(self.fs, fd, found.st_size, name, limit), found
        finally:
            release(self.fs, fd)

    def hold(self, fd: int) -> None:
        """Show readers that the writer of this file, a journal or the tail of the log, lives, until `let_go`.

        Where it cannot be shown they wait.
        """
        if self._held < 0:
            with suppress(OSError):
                self._held = self.fs.hold(fd)

    def let_go(self) -> None:
        held, self._held = self._held, -1
        if held >= 0:
            with suppress(OSError):
                self.fs.let_go(held)

    def step(self) -> None:
        """One more step of a commit is done."""
        if self.progress is not None:
            self.progress.step()

    def remove(self, name: bytes) -> None:
        """Unlink a file of the private directory if it is there."""
        try:
            self.fs.unlink(self.private_fd, name)
        except FileNotFoundError:
            pass
        except OSError as error:
            error.filename = paths.decode(b"/".join((self.root, layout.PRIVATE, name)))
            raise

    def discard(self, name: bytes) -> bool:
        """`remove` what nobody needs; false where it cannot go: it is immutable (chattr(1)) or a directory."""
        try:
            self.remove(name)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EISDIR):
                raise
            return False
        return True

    def format_is_ours(self) -> bool:
        """Whether `format` is there and ours; raises `JournalVersionError` where it is somebody else's."""
        return bool(self.format())

    def format(self) -> bytes:
        """The text of `format`; empty where it is missing or damaged. Raises `JournalVersionError`."""
        mark = _mark_of_format(self.fs, self.private_fd)
        if mark in _known_formats:
            return _known_formats[mark]
        text = self.read(layout.FORMAT, _FORMAT_AT_MOST)
        if text in (layout.FORMAT_TEXT, layout.FORMAT_WITH_LOG):
            _remember_format(mark, text)
            return text
        match = _FORMAT.fullmatch(text or b"")
        if match is not None:
            shown = paths.decode(self.root)
            told = match[0].decode().strip()
            raise JournalVersionError(
                f"{shown!r} has the format {told!r}, which this txfiles does not know", path=shown
            )
        return b""

    def write_format(self, text: bytes | None = None) -> None:
        """Write `format` anew, as it is or with another text.

        REQUIRES: the lock, and no journal, HEAD or log that needs the old one.
        """
        found = self.format()
        text = text or found or layout.FORMAT_TEXT
        if self._is_in_git():
            self._write_ignore()
        self.make(
            layout.FORMAT, lambda fd: write_all(self.fs, fd, text), durable=bool(found)
        )  # where something needs it

    def make(self, name: bytes, fill: Callable[[int], None], *, durable: bool) -> None:
        """Make a permanent file anew, under another name until it is whole."""
        temp = layout.token(self.fs.random_id(), 0)
        try:
            fd = self.fs.create(self.private_fd, temp)
            try:
                fill(fd)
                self.share(fd)
                if durable:
                    self.fs.sync_file(fd)
            finally:
                self.fs.close(fd)
            self.fs.rename(self.private_fd, temp, self.private_fd, name)
        except BaseException:
            self.remove(temp)
            raise

    def _is_in_git(self) -> bool:
        for directory in (*paths.ancestors(self.root)[1:], self.root):
            with suppress(OSError):
                self.fs.stat(None, directory.rstrip(b"/") + b"/.git")
                return True
        return False

    def _write_ignore(self) -> None:
        """Nothing hangs on it: it may be missing, empty after a power loss, or somebody else's."""
        with suppress(FileExistsError):
            fd = self.fs.create(self.private_fd, layout.IGNORE)
            try:
                write_all(self.fs, fd, layout.IGNORE_TEXT)
                self.share(fd)
            finally:
                self.fs.close(fd)

    def refuse_without_format(self) -> RecoveryError:
        shown = paths.decode(paths.join(self.root, layout.PRIVATE))
        return RecoveryError(
            f"{shown!r} holds a journal or a log, but no format file that goes with it; nothing was touched", path=shown
        )


def read_whole(fs: FileSystem, fd: int, size: int, name: bytes, limit: int = journal.MAX_SIZE) -> bytes:
    """What follows in an open file, of about `size` bytes. Raises `JournalCorruptError` for more than `limit` bytes.

    A hole ends it: text has none, and whoever plants a sparse file has paid for none of its size.
    """
    chunks: list[bytes] = []
    have = 0
    while have <= limit and size <= limit:
        wanted = min(max(0, size - have) + 1, _CHUNK)  # the one more tells whether it has become longer
        chunk = fs.read(fd, wanted)
        have += len(chunk)
        if not chunk or (len(chunk) == _CHUNK and not chunk.strip(b"\0")):
            return b"".join(chunks)
        chunks.append(chunk)
        if have == size and len(chunk) < wanted:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    shown = paths.decode(name)
    raise JournalCorruptError(f"{shown} is too large", path=shown)


_known_formats: dict[tuple[int, int, int, int] | None, bytes] = {}


def _remember_format(mark: tuple[int, int, int, int] | None, text: bytes) -> None:
    if mark is not None:
        if len(_known_formats) >= _REMEMBERED:
            _known_formats.clear()
        _known_formats[mark] = text


def format_is_known(fs: FileSystem, private_fd: int) -> bool:
    """Whether `format` is the file, unchanged, that this process has read before and found ours."""
    return _mark_of_format(fs, private_fd) in _known_formats


def _mark_of_format(fs: FileSystem, private_fd: int) -> tuple[int, int, int, int] | None:
    if fs.lock_factory is not None:
        return None  # simulated time is no time
    try:
        found = fs.stat(private_fd, layout.FORMAT)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _identity(found: Stat) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def open_root(fs: FileSystem, root: bytes, hint: str = "") -> int:
    try:
        return fs.open_dir(None, root, follow=True)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"the root does not exist{hint}", paths.decode(root)) from error
    except OSError as error:
        error.filename = paths.decode(root)
        raise


def open_private(fs: FileSystem, root: bytes, root_fd: int, parent: Stat | None = None) -> int:
    """Open the private directory; never through a symbolic link, and not one that a stranger may have planted.

    In a sticky root, such as /tmp, anybody can make one, and with a journal in it have whoever recovers replace files
    that the sticky bit protects. So it must be the caller's, the root's owner's or the superuser's there.
    """
    try:
        fd = fs.open_dir(root_fd, layout.PRIVATE)
    except OSError as error:
        shown = paths.decode(paths.join(root, layout.PRIVATE))
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotADirectoryError(errno.ENOTDIR, "the private directory is not a directory", shown) from error
        error.filename = shown
        raise
    try:
        parent = parent or fs.fstat(root_fd)
        if parent.st_mode & stat.S_ISVTX and (owner := fs.fstat(fd).st_uid) not in (fs.ids()[0], parent.st_uid, 0):
            message = f"the private directory belongs to user {owner} in a sticky directory"
            raise PermissionError(errno.EPERM, message, paths.decode(paths.join(root, layout.PRIVATE)))
    except BaseException:
        release(fs, fd)
        raise
    return fd


def is_missing(fs: FileSystem, root: bytes) -> bool:
    """Whether there is no root. Anything but "no such entry" is raised."""
    try:
        fs.stat(None, root)
    except FileNotFoundError:
        return True
    except OSError as error:
        error.filename = paths.decode(root)
        raise
    return False


def _make_directories(fs: FileSystem, path: bytes) -> None:
    """Not durable yet: that is for the first commit (`home_round`), whoever has made them."""
    try:
        fs.mkdir(None, path, 0o777)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_directories(fs, path.rpartition(b"/")[0] or b"/")
        _make_directories(fs, path)


def _make_private(fs: FileSystem, root: bytes, root_fd: int, parent: Stat) -> tuple[int, Stat]:
    made = False
    try:
        fd = open_private(fs, root, root_fd, parent)
    except FileNotFoundError:
        try:
            fs.mkdir(root_fd, layout.PRIVATE, 0o700)
            made = True
        except FileExistsError:
            pass
        except OSError as error:
            error.filename = paths.decode(paths.join(root, layout.PRIVATE))
            raise
        try:
            fd = open_private(fs, root, root_fd, parent)
        except PermissionError:
            if made:  # the umask takes it from its owner: it would be in the way for ever
                with suppress(OSError):
                    fs.rmdir(root_fd, layout.PRIVATE)
            raise
    try:
        if made and stat.S_IMODE(mode := fs.fstat(fd).st_mode) & 0o777 != 0o700:
            fs.chmod(fd, 0o700 | mode & stat.S_ISGID)  # whatever the umask
        return fd, _share_private(fs, root_fd, parent, fd)
    except BaseException:
        release(fs, fd)
        if made:  # half made it would be in the way of others
            with suppress(OSError):
                fs.rmdir(root_fd, layout.PRIVATE)
        raise


def _share_private(fs: FileSystem, root_fd: int, root: Stat, private_fd: int) -> Stat:
    """Open the private directory to those who may write the root, its group and (if root made it) its owner.

    A default ACL that it inherited is dropped. Returns what it is then.
    """
    private = fs.fstat(private_fd)
    if private.st_uid != fs.ids()[0]:
        return private
    # A group that we are not in, or that our user namespace does not know, stays out.
    to_open = root.st_mode & stat.S_IWGRP and not private.st_mode & stat.S_IWGRP
    if opened := bool(to_open) and give(fs, private_fd, -1, root.st_gid):
        fs.chmod(private_fd, 0o770)
        _share_permanent(fs, private_fd)
    has = fs.xattrs(root_fd, layout.PRIVATE)
    dropped = [key for key in (metadata.DEFAULT_ACL, metadata.ACCESS_ACL) if key in has]
    for key in dropped:
        fs.remove_xattr(private_fd, key)
    # Last: whoever is not its owner does none of this.
    given = private.st_uid == 0 != root.st_uid and give(fs, private_fd, root.st_uid, root.st_gid)
    return fs.fstat(private_fd) if opened or dropped or given else private


def _share_permanent(fs: FileSystem, private_fd: int) -> None:
    """Open what was written while the root was ours alone, but for the log: contents are in it."""
    for name in (layout.FORMAT, layout.HEAD, layout.TAIL):
        with suppress(FileNotFoundError):
            fd = fs.open_read(private_fd, name)
            try:
                share(fs, private_fd, fd, stat.S_IMODE(fs.fstat(fd).st_mode) & 0o600)
            finally:
                release(fs, fd)


def share(fs: FileSystem, private_fd: int, fd: int, mode: int) -> Stat:
    """See `Home.share`."""
    file, private = fs.fstat(fd), fs.fstat(private_fd)
    shared = bool(private.st_mode & stat.S_IWGRP)
    uid = private.st_uid if file.st_uid != private.st_uid and fs.ids()[0] == 0 else file.st_uid
    gid = private.st_gid if shared or uid != file.st_uid else file.st_gid
    if (uid, gid) != (file.st_uid, file.st_gid):
        give(fs, fd, uid, gid)  # not to a group that we are not in, nor as root that is nobody on a server
    if shared:
        mode |= (mode & 0o600) >> 3
    if mode & ~file.st_mode:
        fs.chmod(fd, mode)
    return file
