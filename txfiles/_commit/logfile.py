"""The log as a file: made, opened, written to, and begun anew. What its records mean is not known here.

W1  The log is durable, with its zeros, its header and its name, before anything is written to it: no later write
    has to wait for anything but its own blocks.
W2  A record is durable when `add_record` returns, and only then counts; it is written when the one before it is.
W3  A new generation is durable when `restart` returns. Until then the records of the old one count.
W4  After a sync that failed, what can be read may not be on the disk (A4): `affirm` writes again what counts, or
    `renew` puts another file in the place of this one.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from txfiles._commit.durable import sync_private
from txfiles._disk.system import release, write_all_at
from txfiles._format import layout, log, paths
from txfiles._format.log import Header, Phase, Record
from txfiles.errors import JournalCorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._commit.home import Home
    from txfiles._format.journal import Journal


class LogFile:
    """The open log of a root. Owns its descriptors. REQUIRES: the lock."""

    def __init__(self, home: Home, fd: int, tail_fd: int, header: Header, records: list[Record]) -> None:
        self._home = home
        self._fd = fd
        self._tail_fd = tail_fd
        self._session = home.fs.session(fd)
        self.header = header
        self.records = records

    @classmethod
    def make(cls, home: Home, generation: int, seq: int, chain: bytes = log.NO_CHAIN) -> LogFile:
        """A new one in the place of any other, durable (W1), and empty.

        Raises `OSError`, `ENOSPC` and `EDQUOT` among them; what was there before is there then.
        """
        fs, name, tail_fd = home.fs, layout.token(home.fs.random_id(), 0), -1
        fd = fs.create(home.private_fd, name)
        try:
            home.share(fd)
            tail_fd = _open_tail(home)
            fs.allocate(fd, log.SIZE)
            write_all_at(fs, fd, bytes(log.SIZE), 0)  # or the first write of each block would change the extents
            header = Header(generation, seq, fs.fstat(fd).st_ino, chain)
            write_all_at(fs, fd, log.encode_header(header), log.slot(generation))
            fs.sync_file(fd)
            fs.rename(home.private_fd, name, home.private_fd, layout.LOG)
            sync_private(home)
            made = cls(home, fd, tail_fd, header, [])
            made.mark("applied")
        except BaseException:
            release(fs, *(one for one in (fd, tail_fd) if one >= 0))
            home.remove(name)
            raise
        return made

    @classmethod
    def open(cls, home: Home) -> LogFile | None:
        """What is there; `None` where there is no log. Raises `JournalCorruptError`."""
        fs, tail_fd = home.fs, -1
        try:
            fd = fs.open_write(home.private_fd, layout.LOG)
        except FileNotFoundError:
            return None
        try:
            tail_fd = _open_tail(home)
            shown = paths.decode(layout.LOG)
            if fs.fstat(fd).st_size != log.SIZE:
                raise JournalCorruptError(f"the log {shown} does not have its size", path=shown)
            raw = _read(home, fd, 0, log.SIZE)
            header = log.decode_headers(raw[: log.FIRST], shown)
            return cls(home, fd, tail_fd, header, log.decode_records(raw, header, shown))
        except BaseException:
            release(fs, *(one for one in (fd, tail_fd) if one >= 0))
            raise

    # -- what counts --------------------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        return log.place(self.header, self.records).seq

    @property
    def chain(self) -> bytes:
        return log.place(self.header, self.records).chain

    @property
    def end(self) -> int:
        return log.place(self.header, self.records).end

    @property
    def is_copy(self) -> bool:
        """It was copied, with its tree: no inode in it counts."""
        return self._home.fs.fstat(self._fd).st_ino != self.header.ino

    def encode(self, journal: Journal, time: int, contents: Sequence[bytes]) -> bytes:
        """The record that comes next. Raises `OSError` for what no record can hold."""
        return log.encode_record(self.header, self.chain, journal, time, contents)

    def has_room(self, record: bytes) -> bool:
        return len(record) <= log.SIZE - self.end

    def add_record(self, record: bytes) -> None:
        """One record, durable when this returns (W2). REQUIRES: it has room. After an `OSError`: `renew`."""
        write_all_at(self._home.fs, self._fd, record, self.end)
        self._home.fs.sync_data(self._fd)
        shown = paths.decode(layout.LOG)
        self.records.append(log.decode_next(record, self.header, self.end, shown))

    def affirm(self) -> None:
        """Write the header and the last record again, durably: a sync may have failed with nobody left to tell (W4)."""
        start = self.records[-2].end if len(self.records) > 1 else log.FIRST
        record = _read(self._home, self._fd, start, self.end)
        write_all_at(self._home.fs, self._fd, log.encode_header(self.header), log.slot(self.header.generation))
        write_all_at(self._home.fs, self._fd, record, start)
        self._home.fs.sync_data(self._fd)

    def restart(self) -> None:
        """Begin anew, durably (W3). REQUIRES: whatever the records stand for is durable without them."""
        ino = self._home.fs.fstat(self._fd).st_ino
        header = Header(self.header.generation + 1, self.seq, ino, self.chain)
        write_all_at(self._home.fs, self._fd, log.encode_header(header), log.slot(header.generation))
        self._home.fs.sync_data(self._fd)
        self.header, self.records = header, []

    def renew(self, *, skip: int = 0) -> None:
        """Go on with another file in the place of this one, empty (W4); `skip` sequence numbers are never used.

        REQUIRES: as `restart`. Raises `OSError`; then this one goes on.
        """
        new = LogFile.make(self._home, self.header.generation + 1, self.seq + skip, self.chain)
        self.close()
        self._fd, self._tail_fd, self.header, self.records = new._fd, new._tail_fd, new.header, []

    # -- the tail -----------------------------------------------------------------------------------------------

    def mark(self, phase: Phase) -> None:
        """Tell those who share this session up to where everything is applied, and what is being done.

        The tail is held while something is: so readers know that its writer lives. Not before it says so: whoever ends
        what a dead one had begun would be taken for that one.
        """
        applied = self.records[:-1] if phase in ("applying", "undoing") else self.records
        seq, chain, end = log.place(self.header, applied)
        tail = log.tail(self.header, seq, end, phase, self._session, chain)
        write_all_at(self._home.fs, self._tail_fd, log.encode_tail(tail), 0)
        if phase == "applied":
            self._home.let_go()
        else:
            self._home.hold(self._tail_fd)

    def phase(self) -> Phase | None:
        """What was being done when the tail was written, see `log.phase_of`."""
        tail = log.decode_tail(self._home.fs.read_at(self._tail_fd, log.TAIL_SIZE, 0))
        return None if self.is_copy else log.phase_of(tail, self._session, self.header, self.seq)

    def close(self) -> None:
        self._home.let_go()
        fds, self._fd, self._tail_fd = (self._fd, self._tail_fd), -1, -1
        release(self._home.fs, *(fd for fd in fds if fd >= 0))


def _open_tail(home: Home) -> int:
    try:
        return home.fs.open_write(home.private_fd, layout.TAIL)
    except FileNotFoundError:
        fd = home.fs.create(home.private_fd, layout.TAIL)
        home.share(fd)
        return fd


def _read(home: Home, fd: int, start: int, end: int) -> bytes:
    chunks, at = [], start
    while at < end and (chunk := home.fs.read_at(fd, end - at, at)):
        chunks.append(chunk)
        at += len(chunk)
    if at < end:
        raise OSError(errno.EIO, "the log is cut short", paths.decode(layout.LOG))
    return b"".join(chunks)
