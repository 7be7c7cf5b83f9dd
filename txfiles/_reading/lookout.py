"""What is under way in a root, seen without the lock and without write permission."""

from __future__ import annotations

import errno
import hashlib
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from txfiles._commit import inventory
from txfiles._commit.evidence import Evidence
from txfiles._commit.home import Home, format_is_known, open_private, open_root, read_whole
from txfiles._commit.recover import check_format, judge
from txfiles._disk.system import release
from txfiles._format import layout, paths
from txfiles._format.journal import decode
from txfiles._format.log import NO_CHAIN
from txfiles._reading.records import LogLook, Moved, Records, State
from txfiles._tree.tree import Tree
from txfiles.errors import JournalCorruptError, JournalVersionError, RecoveryError

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem, Stat
    from txfiles._format.journal import Journal

NEVER = "0"  # the version of a state before the first commit

_UNDER_WAY = (b".committed", b".aborting", b".intent")
_MANY = 200  # names that one getdents(2) surely returns; while more are listed, one of them can be renamed unseen
_HEADER = 160  # bytes of a journal that hold its checksum
_REMEMBERED = 256  # roots
_TICK = 0.05  # seconds; the kernel's is 0.01 at most
_COARSE = 1_000_000  # ns; file systems with ticks of a second have times that this divides
_CHECKSUM = re.compile(rb"txfiles journal [0-9]+ [0-9]+ ([0-9a-f]{32})")

Mark = tuple[int, int, int]  # device, inode and mtime of the private directory


class Look(NamedTuple):
    """`head` is the device and inode of HEAD. `journals` are the names of those whose writer is dead, or may be;
    `live` of those whose writer is at work on the files: until HEAD is another, the state is the one before them.
    `log` is the log, if there is one.
    """

    head: tuple[int, int] | None
    journals: frozenset[bytes]
    live: frozenset[bytes] = frozenset()
    log: LogLook | None = None

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way."""
        return not self.journals and not self.live and (self.log is None or self.log.is_quiet)

    @property
    def is_dead(self) -> bool:
        """Recovery has something to do, or may have."""
        return bool(self.journals) or (self.log is not None and self.log.is_dead)


AT_REST = Look(None, frozenset())


class Standing(NamedTuple):
    """A journal that recovery would act on. `forward`: to the state after; `begun`: files may have been touched."""

    name: bytes
    evidence: Evidence
    forward: bool
    begun: bool


class Gone(Moved):
    """The private directory was removed."""


class Known(NamedTuple):
    """Of a root at rest: its version, and of one with a log the session, of which alone that says anything."""

    version: str
    session: bytes | None


class Rest:
    """Roots that were found at rest, by the mark of their private directory: while it is the same they still are.

    Times of files have ticks, and a change within the tick of the last one leaves the mark as it is. So a mark counts
    only if it was there for longer than a tick before the directory was examined.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Mark, float, Known | None]] = {}
        self._last: dict[bytes, tuple[Mark, Known]] = {}

    def known(self, mark: Mark) -> Known | None:
        """What is known of the root if it is at rest."""
        seen = self._seen.get(mark[:2])
        return seen[2] if seen is not None and seen[0] == mark else None

    def last(self, root: bytes) -> tuple[Mark, Known] | None:
        """Mark of the root, and what was known of it, when it was last at rest; it may have been `left` since."""
        return self._last.get(root)

    def left(self, root: bytes) -> None:
        """The root has another mark by now."""
        self._last.pop(root, None)

    def examined(self, root: bytes, mark: Mark, at: float, known: Known) -> None:
        """Nothing was under way in an examination that found `mark` before and after, and began `at` (monotonic)."""
        seen = self._seen.get(mark[:2])
        if seen is None or seen[0] != mark:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
                self._last.clear()
            self._seen[mark[:2]] = (mark, time.monotonic(), None)
        elif at - seen[1] >= _TICK and mark[2] % _COARSE:
            self._seen[mark[:2]] = (mark, seen[1], known)
            self._last[root] = (mark, known)


rest = Rest()


def mark_from(found: Stat) -> Mark:
    """The mark of a private directory."""
    return found.st_dev, found.st_ino, found.st_mtime_ns


def unreadable(root: bytes) -> PermissionError:
    """What it means that a part of the private directory cannot be read."""
    message = "the private directory cannot be read, and only there it says what was committed"
    return PermissionError(errno.EACCES, message, paths.decode(paths.join(root, layout.PRIVATE)))


class Lookout:
    """An open root whose private directory may not be there, or not yet. `head_fd` is HEAD as it was last adopted."""

    def __init__(self, fs: FileSystem, root: bytes, *, follow: bool = False) -> None:
        self.fs = fs
        self.root = root
        self.root_fd = open_root(fs, root)
        self.private_fd = self.head_fd = -1
        self.head: tuple[int, int] | None = None
        self.tree = Tree(fs, self.root_fd, root, follow=follow)
        self.intents: frozenset[bytes] | None = None
        self._head_time = 0
        self._home: Home | None = None
        self._judged: tuple[Look, list[Standing]] = AT_REST, []
        self._live: dict[bytes, Evidence] = {}
        self._records: Records | None = None

    def close(self) -> None:
        """Free the descriptors; may be called again."""
        fds, self.root_fd, self.private_fd, self.head_fd = (self.root_fd, self.private_fd, self.head_fd), -1, -1, -1
        self.tree.close()
        if self._records is not None:
            self._records.close()
        for fd in fds:
            if fd >= 0:
                release(self.fs, fd)

    @property
    def home(self) -> Home:
        """The root as recovery and its evidence want it. REQUIRES: a private directory."""
        if self._home is None:
            self._home = Home(self.fs, self.root, self.root_fd, self.private_fd)
            self._home.tree = self.tree
        return self._home

    @property
    def records(self) -> Records:
        """REQUIRES: a private directory."""
        if self._records is None:
            self._records = Records(self.home)
        return self._records

    def session(self) -> bytes:
        """That of the private directory, too, for it is in the same mount."""
        return self.fs.session(self.root_fd)

    def _has_private(self) -> bool:
        if self.private_fd < 0:
            try:
                self.private_fd = open_private(self.fs, self.root, self.root_fd)
            except FileNotFoundError:
                return False
            if self.tree.exits is not None:
                self.home.require_to_follow()
        return True

    def mark(self) -> Mark | None:
        """What changes whenever a transaction does anything; `None` as long as there is no private directory."""
        try:
            return mark_from(self.fs.stat(self.root_fd, layout.PRIVATE))
        except FileNotFoundError:
            return None

    def mark_is_kept(self, mark: Mark | None) -> TypeGuard[Mark]:
        """Whether the file system gives a directory a new time when its entries change: it did so after HEAD was
        written, or more than a tick after the log was made. Simulated time is no time.
        """
        if mark is None or self.fs.lock_factory is not None:
            return False
        return 0 < self._head_time <= mark[2] or 0 < self._born() <= mark[2] - int(_TICK * 1e9)

    def _born(self) -> int:
        try:
            return self.fs.born(self.private_fd, layout.LOG)
        except FileNotFoundError:
            return 0

    def look(self) -> Look:
        """Journals first: a commit that ends after they were listed replaces HEAD, and that is seen next.

        Of intents only those in `intents`, if that is set: one that was written since has touched nothing.
        """
        if self.private_fd < 0 and not self._has_private():
            return AT_REST
        names = self._names()
        if len(names) > _MANY:
            names += self._names()
        journals, live = [], []
        for name in names:
            if name.endswith(_UNDER_WAY) and self.matters(name):
                if not self._is_live(name):
                    journals.append(name)
                elif not name.endswith(b".intent"):
                    live.append(name)
        head = self._identity(layout.HEAD)
        found = self.records.look() if layout.LOG in names else None
        return Look(head, frozenset(journals), frozenset(live), found)

    def look_at_log(self) -> LogLook | None:
        """`None` where there is none."""
        if not self._has_private() or self._identity(layout.LOG) is None:
            return None
        return self.records.look()

    def state(self, look: LogLook | None) -> State | None:
        """The state of the log in which it is read; before what its writer is going on with."""
        return None if look is None else self.records.state(look)

    def _is_live(self, name: bytes) -> bool:
        """Whether the writer of a journal is at work; one that has begun with the files is read, too.

        Raises `Moved` for what has another name by now.
        """
        try:
            fd = self.fs.open_read(self.private_fd, name)
        except FileNotFoundError:
            raise Moved from None
        except OSError:
            return False  # it cannot be seen: whoever has to read it will say so
        try:
            if not self.fs.is_held(fd):
                return False
            if not name.endswith(b".intent") and name not in self._live:
                raw = read_whole(self.fs, fd, self.fs.fstat(fd).st_size, name)
                self._live = {name: Evidence(self.home, decode(raw, paths.decode(name)), same_tree=True)}
        except (JournalCorruptError, JournalVersionError):
            return False
        finally:
            release(self.fs, fd)
        return True

    def live(self, name: bytes) -> Evidence:
        """What a journal of the last look says. REQUIRES: its writer was at work."""
        return self._live[name]

    def _names(self) -> list[bytes]:
        try:
            names = self.fs.listdir(self.private_fd)
        except FileNotFoundError:
            raise Gone from None
        if not names and not self.fs.fstat(self.private_fd).st_nlink:
            raise Gone
        return names

    def _identity(self, name: bytes) -> tuple[int, int] | None:
        try:
            found = self.fs.stat(self.private_fd, name)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def matters(self, name: bytes) -> bool:
        """Whether a journal can tell something about the files."""
        if self.intents is not None and name.endswith(b".intent"):
            return name in self.intents
        return layout.parse(name).kind != "unknown"

    def standing(self, look: Look) -> list[Standing]:
        """The journals of `look` that recovery would act on, in its order. Raises `RecoveryError` and `Moved`.

        What a journal says does not change while it has its name.
        """
        if not look.journals:
            return []
        self.tree.close()
        if look != self._judged[0]:
            try:
                self._judged = look, self._judge(look)
            except (FileNotFoundError, RecoveryError):
                if self.look() == look:
                    raise
                raise Moved from None
        return self._judged[1]

    def _judge(self, look: Look) -> list[Standing]:
        found = inventory.take(self.home)
        standing = []
        for pending in found.pending:
            journal = judge(self.home, pending, found)
            name = layout.journal(pending.tid, pending.state)
            if journal is None or name not in look.journals:
                continue
            if not self.home.follows(journal):
                journal = journal.inside()
            evidence = Evidence(self.home, journal, same_tree=pending.same_tree)
            forward = pending.state == "committed" or (pending.state == "intent" and evidence.proves_commit())
            standing.append(Standing(name, evidence, forward, forward or pending.state == "aborting"))
        return standing

    def require_format(self) -> None:
        """The private directory is one that we know. Raises `JournalVersionError` and `RecoveryError`."""
        if self.private_fd < 0 or format_is_known(self.fs, self.private_fd):
            return
        if not self.home.format_is_ours():
            check_format(self.home, inventory.take(self.home))

    # -- HEAD ---------------------------------------------------------------------------------------------------

    def adopt_head(self) -> None:
        """Keep HEAD as it is now open, so that nothing else gets its inode number."""
        if self.head_fd >= 0:
            release(self.fs, self.head_fd)
            self.head_fd = -1
        self.head, self._head_time = None, 0
        if self._has_private():
            try:
                self.head_fd = self.fs.open_read(self.private_fd, layout.HEAD)
            except FileNotFoundError:
                return
            found = self.fs.fstat(self.head_fd)
            self.head, self._head_time = (found.st_dev, found.st_ino), found.st_mtime_ns

    def read_head(self) -> Journal | None:
        """The adopted HEAD; `None` too for one that a power loss left unreadable, as for writers."""
        if self.head_fd < 0:
            return None
        self.fs.seek(self.head_fd, 0, 0)
        try:
            raw = read_whole(self.fs, self.head_fd, self.fs.fstat(self.head_fd).st_size, layout.HEAD)
            return decode(raw, "HEAD")
        except JournalCorruptError:
            return None

    def version(self, journal: bytes | None = None, log: State | None = None) -> str:
        """The version of the state of the adopted HEAD, or of the state after a journal under way, and of the log."""
        version = self._version(journal)
        if log is None or log.chain == NO_CHAIN:
            return version
        return hashlib.blake2b(version.encode() + log.chain, digest_size=16).hexdigest()

    def version_now(self) -> str:
        """The version of the committed state."""
        while True:
            self.adopt_head()
            with suppress(Moved):
                return self.version(log=self.state(self.look_at_log()))

    def _version(self, journal: bytes | None) -> str:
        if journal is not None:
            data = self.home.read(journal)
            if data is None:
                raise Moved
        elif self.head_fd < 0:
            return NEVER
        else:
            self.fs.seek(self.head_fd, 0, 0)
            data = self.fs.read(self.head_fd, _HEADER)
        match = _CHECKSUM.match(data)
        return NEVER if match is None else match[1].decode()
