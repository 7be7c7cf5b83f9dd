"""The log as who only looks finds it: reads only, and needs no lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txfiles._disk.system import release
from txfiles._format import layout, log, paths
from txfiles._format.log import Header, Phase, Record, Tail
from txfiles.errors import JournalCorruptError

if TYPE_CHECKING:
    from txfiles._commit.home import Home

_TORN = 5  # looks at a tail that may be written right now


class Found(NamedTuple):
    """The records since the last checkpoint. `phase` as recovery would find it: `None` where only they can be believed.

    `is_copy`: the log was copied, with its tree. `held`: the writer of what is under way lives.
    """

    header: Header
    records: list[Record]
    phase: Phase | None
    is_copy: bool
    held: bool


def read_log(home: Home) -> Found | None:
    """What is there; `None` where there is no log. Raises `JournalCorruptError`, and `JournalVersionError`.

    Beside a writer it looks again: what was read in pieces while records were added may look damaged.
    """
    while True:
        before = read_tail(home)
        try:
            fd = home.fs.open_read(home.private_fd, layout.LOG)
        except FileNotFoundError:
            return None
        try:
            header, is_copy = read_header(home, fd)
            session = home.fs.session(fd)
            records = log.decode_records(read_part(home, fd, 0, log.SIZE), header, shown(home))
        except JournalCorruptError:
            if read_tail(home) == before:
                raise
            continue
        finally:
            release(home.fs, fd)
        if read_tail(home) == before:
            seq = log.place(header, records).seq
            phase = None if is_copy else log.phase_of(before[0], session, header, seq)
            return Found(header, records, phase, is_copy, before[1])


def read_tail(home: Home) -> tuple[Tail | None, bool]:
    """What the tail says, and whether the writer of what it says is under way lives and goes on with it."""
    try:
        fd = home.fs.open_read(home.private_fd, layout.TAIL)
    except FileNotFoundError:
        return None, False
    try:
        for _ in range(_TORN):
            tail = log.decode_tail(home.fs.read_at(fd, log.TAIL_SIZE, 0))
            if tail is not None:
                return tail, tail.phase != "applied" and home.fs.is_held(fd)
        return None, False
    finally:
        release(home.fs, fd)


def read_part(home: Home, fd: int, start: int, end: int) -> bytes:
    """A part of an open log; less where it ends before."""
    chunks, at = [], start
    while at < end and (chunk := home.fs.read_at(fd, end - at, at)):
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)


def read_header(home: Home, fd: int) -> tuple[Header, bool]:
    """The header of an open log, and whether it was copied. Raises `JournalCorruptError`."""
    found = home.fs.fstat(fd)
    if found.st_size != log.SIZE:
        raise JournalCorruptError(f"the log {shown(home)} does not have its size", path=shown(home))
    even, odd = (home.fs.read_at(fd, log.HEADER_SIZE, log.slot(parity)) for parity in (0, 1))
    header = log.decode_headers(even, odd, shown(home))
    return header, found.st_ino != header.ino or home.fs.born(fd) != header.born


def shown(home: Home) -> str:
    """What errors name."""
    return paths.decode(paths.join(home.root, layout.PRIVATE + b"/" + layout.LOG))
