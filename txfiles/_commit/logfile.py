"""The log as a file: made, opened, written to, and begun anew. What its records mean is not known here.

W1  The log is durable, with its zeros, its header, its name and the format that tells of it, before anything is
    written to it: no later write has to wait for anything but its own blocks.
W2  A record is durable when `add_record` returns, and only then counts; it is written when the one before it is.
W3  A new generation is durable when `restart` returns. Until then the records of the old one count.
W4  After a sync that failed, what can be read may not be on the disk (A4): `affirm` writes again what counts, or
    `renew` puts another file in the place of this one. Where the name of that one could not be made durable the tail
    says "tainted", and nothing is written before yet another one has it.
"""

from __future__ import annotations

import errno
import stat
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from txfiles._commit.durable import home_round, sync_private
from txfiles._commit.log_look import read_header, read_part, shown
from txfiles._disk.metadata import has_acl
from txfiles._disk.system import release, write_all_at
from txfiles._format import layout, log, paths
from txfiles._format.log import Header, Phase, Place, Record, Tail
from txfiles.errors import JournalCorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from txfiles._commit.home import Home
    from txfiles._format.journal import Identity, Journal, Meta
    from txfiles._tree.tree import Tree

_MOST_LOGS = 64  # of which is remembered what was read
_MOST_FILES = 10_000  # of a log, that are known to be durable
_FOR_ALL = stat.S_IRGRP | stat.S_IROTH


Mark = tuple[int, int, int]


def mark_of(tree: Tree, directory: bytes) -> Mark | None:
    """Another one after each change of a name in it; `None` where nobody can tell."""
    with suppress(OSError):
        found = tree.stat(directory)
        return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
    return None


class Read:
    """What this process has read of a log, up to `at`.

    `durable` are the files that the last checkpoint has made so, `changed` those of the records since: each path with
    its file, `None` where there is none, the last ones last; `last` are the paths of the last record. `directories` are
    those in which, and above which, no name has changed since they were durable but by records: each with what tells
    that.
    """

    def __init__(self, header: Header, durable: dict[bytes, Identity | None]) -> None:
        self.generation, self.at = header.generation, log.place(header, ())
        self.durable = durable
        self.changed: dict[bytes, Identity | None] = {}
        self.last: list[bytes] = []
        self.directories: dict[bytes, Mark] = {}

    def add(self, journal: Journal, at: Place) -> None:
        self.at = at
        self.last = [op.path for op in journal.ops]
        for op in journal.ops:
            self.changed.pop(op.path, None)
            self.changed[op.path] = op.new

    def vouches_for(self, path: bytes, file: Identity | None, holds: Callable[[bytes], bool]) -> bool:
        """It is known that just this is durable there; `holds` tells of a directory whether it is as it was.

        Where others change one in the moment in which a commit does, nobody notices: after a power loss recovery
        finds an old file at its old place then, or asks about one that had come back.
        """
        known = self.changed if path in self.changed else self.durable
        is_known = path in known and known[path] == file
        if not (is_known or (file is None and holds(b""))):
            return False
        return all(map(holds, paths.on_the_way(path)))

    def holds(self, tree: Tree, directory: bytes) -> bool:
        """Nobody but records has changed a name in it since it was durable."""
        return directory in self.directories and self.directories[directory] == mark_of(tree, directory)

    def put_elsewhere(self, path: bytes, file: Identity | None) -> bool:
        """What a record has put there is not what is there now: others have given it another name, or removed it."""
        put = self.changed.get(path)
        return put is not None and (file is None or file.ino != put.ino)


class LogFile:
    """The open log of a root. Owns its descriptors. REQUIRES: the lock.

    `last` is the place behind the last record, `before` the one behind those before it. It `must_go`, another file has
    to take its place, where the root was given to a group later: what that may not read can be in it; where it has
    another name: a copy of the tree that is made of links has the same log; where it is a copy itself; and where its
    own name may not be durable (W4).
    """

    must_go = False

    def __init__(self, home: Home, fd: int, tail_fd: int, header: Header, *, is_copy: bool = False) -> None:
        self._home = home
        self._fd = fd
        self._tail_fd = tail_fd
        self._session = home.fs.session(fd)
        self._phase: Phase | None = None
        self._tail: Tail | None = None  # as it was found
        self._records: list[Record] | None = None
        self._key = header.ino, header.born, header.key, self._session
        self.is_copy = is_copy
        self._begin(header)

    def _begin(self, header: Header) -> None:
        self.header = header
        self.last = self.before = log.place(header, ())

    @property
    def seq(self) -> int:
        return self.last.seq

    @classmethod
    def make(cls, home: Home, generation: int, seq: int, chain: bytes = log.NO_CHAIN) -> LogFile:
        """A new one in the place of any other, durable (W1), and empty.

        Raises `OSError`: `ENOSPC` and `EDQUOT` among them, and `EINVAL` or `ENOSYS` where names cannot be exchanged.
        What was there before is there then; or the tail says "tainted".
        """
        fs, private = home.fs, home.private_fd
        name, other = (layout.token(home.fs.random_id(), number) for number in (0, 1))
        tail_fd, renamed = -1, False
        fd = fs.create(private, name)
        try:
            home.share(fd)
            tail_fd = _open_tail(home)
            fs.close(fs.create(private, other))
            fs.exchange(private, name, private, other)
            fs.exchange(private, name, private, other)
            fs.unlink(private, other)
            fs.write_in_place(fd)
            fs.allocate(fd, log.SIZE)
            write_all_at(fs, fd, bytes(log.SIZE), 0)  # or the first write of each block would change the extents
            header = Header(generation, seq, fs.fstat(fd).st_ino, fs.born(fd), chain, fs.random_id().encode())
            write_all_at(fs, fd, log.encode_header(header), log.slot(generation))
            fs.sync_file(fd)
            _make_format_durable(home)
            made = cls(home, fd, tail_fd, header)
            fs.rename(private, name, private, layout.LOG)
            renamed = True
            sync_private(home)
            made.mark("applied")
        except BaseException:
            if renamed:
                with suppress(OSError):
                    made.mark("tainted")
            release(fs, *(one for one in (fd, tail_fd) if one >= 0))
            home.remove(name)
            home.remove(other)
            raise
        return made

    @classmethod
    def open(cls, home: Home) -> LogFile | None:
        """What is there; `None` where there is no log. Raises `JournalCorruptError`.

        In the session of who wrote it last the tail tells where it ends; else, and where it has gone on behind that,
        all of it is read.
        """
        fs, tail_fd = home.fs, -1
        try:
            fd = fs.open_write(home.private_fd, layout.LOG)
        except FileNotFoundError:
            return None
        try:
            tail_fd = _open_tail(home)
            found, tail = fs.fstat(fd), fs.fstat(tail_fd)
            if tail.st_nlink > 1:
                shared, tail_fd = tail_fd, -1
                tail_fd = _own_tail(home, shared)
            header, is_copy = read_header(home, fd)
            file = cls(home, fd, tail_fd, header, is_copy=is_copy)
            file._find_end()
            is_shared_since = bool(tail.st_mode & ~found.st_mode & stat.S_IWGRP)
            file.must_go = is_copy or found.st_nlink > 1 or is_shared_since or file.phase() == "tainted"
        except BaseException:
            release(fs, *(one for one in (fd, tail_fd) if one >= 0))
            raise
        return file

    def _find_end(self) -> None:
        raw = b"" if self.is_copy else self._home.fs.read_at(self._tail_fd, log.TAIL_SIZE, 0)
        self._tail = tail = log.decode_tail(raw)
        if tail is not None and log.phase_of(tail, self._session, self.header, tail.seq) == "applied":
            self.last = self.before = Place(tail.seq, tail.chain, tail.offset)
            self._phase = "applied"
            if not log.is_record(self._home.fs.read_at(self._fd, log.RECORD_SIZE, tail.offset), self.header):
                return
        self._load()
        self._phase = log.phase_of(tail, self._session, self.header, self.seq)

    # -- what counts --------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        """All of them, read from the file."""
        return self._load() if self._records is None else self._records

    def _load(self) -> list[Record]:
        self._records = log.decode_records(_read(self._home, self._fd, 0, log.SIZE), self.header, shown(self._home))
        self.last, self.before = (log.place(self.header, these) for these in (self._records, self._records[:-1]))
        return self._records

    @property
    def is_empty(self) -> bool:
        return self.last.end == log.FIRST

    def read(self) -> Read:
        """What is in it, in short: what came since this process has read it is read now.

        All of it where that does not follow what was read: a backup may have been put back into this file.
        """
        cache = self._home.fs.logs
        known: Read | None = cache.get(self._key)
        if known is None or known.generation != self.header.generation or not self._read_on(known):
            known = Read(self.header, self._read_known())
            if not self._read_on(known):
                name = shown(self._home)
                raise JournalCorruptError(f"the log {name} is damaged at byte {known.at.end}", path=name)
            if len(cache) >= _MOST_LOGS:
                cache.clear()
            self._vouch_for_last(known)
        cache[self._key] = known
        return known

    def _vouch_for_last(self, known: Read) -> None:
        """For what is above the files of the last record: nobody has changed it since the tail was written behind that.

        By the times that the kernel gave both; within one tick of its clock this notices nothing.
        """
        if self._phase != "applied":
            return
        tail = self._home.fs.fstat(self._tail_fd)
        until = min(tail.st_mtime_ns, tail.st_ctime_ns)
        for directory in paths.above(known.last):
            mark = mark_of(self._home.tree, directory)
            if mark is not None and mark[2] <= until:
                known.directories[directory] = mark

    def _read_on(self, known: Read) -> bool:
        """Whether it leads to the last record."""
        if known.at.end < self.last.end:
            raw = _read(self._home, self._fd, known.at.end, self.last.end)
            for record in log.decode_behind(raw, self.header, known.at, shown(self._home)):
                known.add(record.journal, Place(record.seq, record.digest, record.end))
        return known.at == self.last

    def _read_known(self) -> dict[bytes, Identity | None]:
        if self.is_copy or not self.header.born:
            return {}
        raw = self._home.fs.read_at(self._fd, log.KNOWN, log.known_slot(self.header.generation))
        return log.decode_known(raw, self.header)

    def encode(self, journal: Journal, time: int, contents: Sequence[bytes]) -> bytes:
        """The record that comes next. Raises `OSError` for what no record can hold."""
        return log.encode_record(self.header, self.last.chain, journal, time, contents)

    def may_hold(self, metas: Iterable[Meta]) -> bool:
        """Whether all who can read the log may read files with this metadata: or contents would be open to them."""
        found = self._home.fs.fstat(self._fd)
        shared = bool(found.st_mode & stat.S_IRGRP)
        return all(
            meta.mode & _FOR_ALL == _FOR_ALL
            or (
                meta.uid == found.st_uid
                and not (shared and (meta.gid != found.st_gid or not meta.mode & stat.S_IRGRP or has_acl(meta)))
            )
            for meta in metas
        )

    def has_room(self, record: bytes) -> bool:
        return len(record) <= log.SIZE - self.last.end

    def add_record(self, record: bytes, journal: Journal) -> None:
        """One record, durable when this returns (W2). REQUIRES: it has room. After an `OSError`: `renew`."""
        known = self.read()
        write_all_at(self._home.fs, self._fd, record, self.last.end)
        self._home.fs.sync_data(self._fd)
        self.before = self.last
        self.last = Place(journal.seq, log.digest_of(record), self.last.end + len(record))
        self._records = None
        known.add(journal, self.last)

    def affirm(self) -> None:
        """Write the header and the last record again, durably: a sync may have failed with nobody left to tell (W4)."""
        start = self.before.end
        record = _read(self._home, self._fd, start, self.last.end)
        write_all_at(self._home.fs, self._fd, log.encode_header(self.header), log.slot(self.header.generation))
        write_all_at(self._home.fs, self._fd, record, start)
        self._home.fs.sync_data(self._fd)

    def restart(self) -> None:
        """Begin anew, durably (W3). REQUIRES: whatever the records stand for is durable without them."""
        generation = self.header.generation + 1
        header = self.header._replace(generation=generation, seq=self.seq, chain=self._chain)
        read = self.read()
        durable = {path: file for path, file in read.durable.items() if path not in read.changed} | read.changed
        durable = dict(islice(durable.items(), max(0, len(durable) - _MOST_FILES), None))
        write_all_at(self._home.fs, self._fd, log.encode_known(header, durable), log.known_slot(generation))
        write_all_at(self._home.fs, self._fd, log.encode_header(header), log.slot(generation))
        self._home.fs.sync_data(self._fd)
        self._begin(header)
        self._records = None
        self._home.fs.logs[self._key] = new = Read(header, durable)
        new.directories = read.directories

    def renew(self, *, skip: int = 0) -> None:
        """Go on with another file in the place of this one, empty (W4); `skip` sequence numbers are never used.

        REQUIRES: as `restart`. Raises `OSError`; then this one goes on, or the tail says "tainted".
        """
        new = LogFile.make(self._home, self.header.generation + 1, self.seq + skip, self._chain)
        self.close()
        self.__dict__.update(new.__dict__)
        self.must_go = False

    @property
    def _chain(self) -> bytes:
        """Of the state that goes on: that of a record that was undone is as it was before it."""
        return (self.before if self._phase == "undoing" else self.last).chain

    # -- the tail -----------------------------------------------------------------------------------------------

    def mark(self, phase: Phase) -> None:
        """Tell those who share this session up to where everything is applied, and what is being done.

        The tail is held while something is: so readers know that its writer lives. What was applied before nobody saw
        has to be held first; and else only then, for whoever ends what a dead one had begun is not that one.
        """
        if phase == "applying":
            self._home.hold(self._tail_fd)
        at = self.before if phase in ("applying", "undoing") else self.last
        tail = log.tail(self.header, at.seq, at.end, phase, self._session, at.chain)
        write_all_at(self._home.fs, self._tail_fd, log.encode_tail(tail), 0)
        self._phase = phase
        if phase == "applied":
            self._home.let_go()
        else:
            self._home.hold(self._tail_fd)

    def mark_begun(self) -> None:
        """Mark a record that is to be applied, of which nobody can have seen anything as long as "applied" stood there.

        One that was marked already stays so, and is not held: readers may have seen its state after its writer died.
        """
        tail = log.decode_tail(self._home.fs.read_at(self._tail_fd, log.TAIL_SIZE, 0))
        if tail is not None and tail.phase == "applied":
            self.mark("applying")

    def phase(self) -> Phase | None:
        """What was being done when the tail was written, see `log.phase_of`."""
        return self._phase

    @property
    def may_lack_sync(self) -> bool:
        """Where the tail is of another session: it does not say that no sync can have failed."""
        tail = self._tail
        is_current = tail is not None and tail.generation == self.header.generation
        return not is_current or (tail is not None and tail.phase not in ("applied", "applying"))

    def close(self) -> None:
        self._home.let_go()
        fds, self._fd, self._tail_fd = (self._fd, self._tail_fd), -1, -1
        release(self._home.fs, *(fd for fd in fds if fd >= 0))


def _make_format_durable(home: Home) -> None:
    """A txfiles that knows of no log has to refuse the root before it has one."""
    if home.format() != layout.FORMAT_WITH_LOG:
        home.write_format(layout.FORMAT_WITH_LOG)
    try:
        home_round(home)
    except OSError:
        with suppress(OSError):
            home.write_format()  # the next one is to sync another file than the one that failed
        raise


def _open_tail(home: Home) -> int:
    try:
        return home.fs.open_write(home.private_fd, layout.TAIL)
    except FileNotFoundError:
        fd = home.fs.create(home.private_fd, layout.TAIL)
        home.share(fd)
        return fd


def _own_tail(home: Home, fd: int) -> int:
    """The same for this root alone; closes the one that it shares."""
    try:
        raw = home.fs.read_at(fd, log.TAIL_SIZE, 0)
    finally:
        release(home.fs, fd)
    name = layout.token(home.fs.random_id(), 0)
    mine = home.fs.create(home.private_fd, name)
    try:
        home.share(mine)
        write_all_at(home.fs, mine, raw, 0)
        home.fs.rename(home.private_fd, name, home.private_fd, layout.TAIL)
    except BaseException:
        release(home.fs, mine)
        home.remove(name)
        raise
    return mine


def _read(home: Home, fd: int, start: int, end: int) -> bytes:
    raw = read_part(home, fd, start, end)
    if len(raw) < end - start:
        raise OSError(errno.EIO, "the log is cut short", shown(home))
    return raw
