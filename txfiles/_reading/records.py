"""The log beside a reader: which state it stands at, and what of it is not in the tree. Reads only.

L1  While the tail says "applied", or a writer that lives makes a checkpoint, the tree is the state.
L2  While a writer that lives goes on with the record behind the tail, the state is the one before it: what the record
    replaces lies under the names of its tokens.
L3  Where that writer is dead, recovery goes on to the state after (or, from an undo, before), and so does a reader.
L4  Where the page cache proves nothing (another session, a copied tree, a checkpoint that was cut off) the state is
    what the records say, all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txfiles._commit.log_look import Found, read_header, read_log, read_part, read_tail, shown
from txfiles._commit.log_recovery import undone
from txfiles._commit.restore import Examined, conflict, examine, finals
from txfiles._disk.system import release
from txfiles._format import layout, log
from txfiles._format.log import NO_CHAIN, Header, Place, Record, Tail
from txfiles._reading.overlay import lay_logged, lay_record_after, lay_record_before

if TYPE_CHECKING:
    from collections.abc import Container

    from txfiles._commit.home import Home
    from txfiles._commit.restore import Final
    from txfiles._format.journal import Operation
    from txfiles._reading.overlay import Entries

_PIECES = (4 * log.BLOCK, 64 * log.BLOCK)  # most records are smaller
_BEGUN = ("applying", "undoing")


class Moved(Exception):
    """What was being read was renamed or removed, or written over."""


class State(NamedTuple):
    """The state after a record, or after a checkpoint: its place in a generation of the log."""

    generation: int
    at: Place

    @property
    def chain(self) -> bytes:
        return self.at.chain


class LogLook(NamedTuple):
    """The log as it is found. `here`: the tail was written in this session, of a log that is no copy.

    `held`: the writer of what is under way lives, and has this session at least now. `anew`: the log has begun anew,
    and only the tail is still to say so. Where the tail says nothing, `generation` and `records`, how many there are,
    are those of the log.
    """

    tail: Tail | None
    here: bool
    held: bool
    anew: bool = False
    generation: int = 0
    records: int = 0

    @property
    def is_quiet(self) -> bool:
        """The tree is the state (L1)."""
        if self.tail is None or not self.here:
            return not self.records
        return self.anew or self.tail.phase == "applied" or (self.tail.phase == "syncing" and self.held)

    @property
    def in_doubt(self) -> bool:
        """A record is being applied or undone."""
        return self.tail is not None and self.here and not self.anew and self.tail.phase in _BEGUN

    @property
    def is_dead(self) -> bool:
        """Recovery has something to do that changes the tree, or may (L3, L4)."""
        return not (self.is_quiet or (self.in_doubt and self.held))


class Records:
    """What a reader has open of the log. Raises `Moved` for what a writer takes away meanwhile."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._fd = -1
        self._header: Header | None = None
        self._session = b""
        self._is_copy = False
        self._read: tuple[LogLook | None, Found | None] = None, None
        self._doubtful: tuple[Tail | None, Record | None] = None, None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            release(self._home.fs, fd)

    # -- looking ------------------------------------------------------------------------------------------------

    def look(self) -> LogLook:
        """REQUIRES: there is a log."""
        tail, held = read_tail(self._home)
        if self._header is None:
            self._open()
        here = tail is not None and not self._is_copy and (held or log.is_of(tail, self._session))
        if here and tail:
            sure = tail.phase == "applied" or (held and tail.phase != "undoing")
            anew = not sure and self._open().generation != tail.generation
            if held or not anew:
                return LogLook(tail, True, held, anew)
        seen = LogLook(tail, False, held, generation=self._open().generation)
        return seen._replace(records=len(self._all(seen).records))

    def _open(self) -> Header:
        """The log that has the name now."""
        self.close()
        try:
            self._fd = self._home.fs.open_read(self._home.private_fd, layout.LOG)
        except FileNotFoundError:
            raise Moved from None
        header, self._is_copy = read_header(self._home, self._fd)
        self._header = header
        self._session = self._home.fs.session(self._fd)
        return header

    def _header_of(self, generation: int) -> Header:
        header = self._header if self._header and self._header.generation == generation else self._open()
        if header.generation != generation:
            raise Moved
        return header

    def _all(self, look: LogLook) -> Found:
        key = look._replace(records=0)
        if self._read[0] != key:
            self._read = key, read_log(self._home)
        if (found := self._read[1]) is None:
            raise Moved
        return found

    def _in_doubt(self, tail: Tail) -> Record:
        """The record behind the tail."""
        if self._doubtful[0] != tail:
            header, before = self._header_of(tail.generation), Place(tail.seq, tail.chain, tail.offset)
            for size in (*_PIECES, log.SIZE):
                raw = read_part(self._home, self._fd, tail.offset, min(tail.offset + size, log.SIZE))
                if found := log.decode_behind(raw, header, before, shown(self._home)):
                    break
            else:
                raise Moved
            self._doubtful = tail, found[0]
        assert self._doubtful[1] is not None
        return self._doubtful[1]

    # -- states -------------------------------------------------------------------------------------------------

    def state(self, look: LogLook) -> State:
        """That of the look: before the record in doubt."""
        tail = look.tail
        if tail is not None and look.here and (look.is_quiet or look.in_doubt):
            return State(tail.generation, Place(tail.seq, tail.chain, tail.offset))
        found = self._all(look)
        return State(found.header.generation, log.place(found.header, found.records))

    def state_after(self, look: LogLook) -> State:
        """The one to which recovery goes on (L3)."""
        if look.held or not look.in_doubt or look.tail is None or look.tail.phase == "undoing":
            return self.state(look)
        record = self._in_doubt(look.tail)
        return State(look.tail.generation, Place(record.seq, record.digest, record.end))

    def changed(self, since: State | None, now: State) -> set[bytes] | None:
        """The paths of the records between two states; `None` where that is not to be known any more."""
        chain = NO_CHAIN if since is None else since.chain
        if chain == now.chain:
            return set()
        header = self._open()
        if header.generation != now.generation:
            return None
        begun_anew = since is None or since.generation != now.generation
        start = log.place(header, ()) if begun_anew or since is None else since.at
        if start.chain != chain:
            return None
        raw = read_part(self._home, self._fd, start.end, now.at.end)
        records = log.decode_behind(raw, header, start, shown(self._home))
        if not records or records[-1].digest != now.chain:
            return None
        return {op.path for record in records for op in record.journal.ops}

    # -- what is not in the tree --------------------------------------------------------------------------------

    def lay(self, look: LogLook, state: State, entries: Entries) -> None:
        """Lay over the tree what belongs to the state and is not there, at a look in which it can be read."""
        if look.is_quiet:
            return
        if look.in_doubt:
            assert look.tail is not None
            record = self._in_doubt(look.tail)
            if state.chain == record.digest:
                lay_record_after(self._home, record.journal, entries)
                return
            lay_record_before(self._home, record.journal, entries)
            if look.held or look.tail.phase == "applying":
                return
        lay_logged(self._missing(look).missing, entries)

    def _missing(self, look: LogLook) -> Examined:
        """What recovery would put in place. Of what an undo takes back it puts all of it there."""
        if look.here and not look.in_doubt:
            return Examined([], [], [], [])  # what others have removed or changed meanwhile is theirs
        found = self._all(look)
        if not look.in_doubt:
            return examine(self._home, found.records, is_copy=found.is_copy)
        if not found.records:
            raise Moved
        *records, last = found.records
        touched = {op.path for op in last.journal.ops}
        out = examine(self._home, records, is_copy=found.is_copy)
        missing = [final for path, final in finals(records).items() if path in touched]
        return Examined([], [*missing, *without(out.missing, touched)], without(out.foreign, touched), [])

    def require_no_conflict(self, look: LogLook) -> None:
        """Raise what recovery would, where it needs a decision. REQUIRES: the writer was dead at this look.

        Somebody who recovers can come between two questions about one path, but only once.
        """
        foreign = self._foreign(look)
        if foreign:
            foreign = [op for op in self._foreign(look) if op in foreign]
        if foreign and self.look() != look:
            raise Moved
        if foreign:
            raise conflict(foreign)

    def _foreign(self, look: LogLook) -> list[Operation]:
        if look.in_doubt and look.tail is not None and look.tail.phase == "applying":
            return undone(self._home, self._in_doubt(look.tail).journal)[1]
        return [final.op for final in self._missing(look).foreign]


def without(finals: list[Final], paths: Container[bytes]) -> list[Final]:
    return [final for final in finals if final.op.path not in paths]
