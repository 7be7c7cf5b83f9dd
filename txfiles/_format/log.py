"""The log of many transactions in one preallocated file: bytes <-> headers, records and the tail, no I/O.

    0        header of even generations         fixed size: it is overwritten in place, and never grows
    4096     files known to be durable then
    69632    header of odd generations          the valid one of the higher generation counts
    73728    files known to be durable then
    139264   records, one behind the other      each in whole blocks of 4096 bytes: no two share a block

A record is a journal and the contents of the files that it writes, whose digests are in the journal. Its own digest is
that of all before the contents, and each carries that of the one before, the first that of the header: so a record
counts if and only if it is whole and follows what it was written behind, and what is left of an earlier generation
never does. Digests of records have the log's own key: no content of a file looks like one.
Sequence numbers have no gap, but before the first one: in between there may have been other commits.

The tail is a file of its own that is never synced: where the log ends and what was being done, for those who share the
page cache of whoever wrote it (`session`), and for nobody else. All bytes are untrusted: what does not fit is refused.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson

from txfiles._format import journal as codec
from txfiles._format.digest import digest_of as digest_of_content
from txfiles._format.journal import Identity
from txfiles.errors import JournalCorruptError, JournalVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._format.journal import Journal, Operation

SIZE = 4 << 20
BLOCK = 4096
KNOWN = 16 * BLOCK  # of what is known to be durable
FIRST = 2 * (BLOCK + KNOWN)  # where records begin
INLINE = 64 << 10  # bytes of a file whose content goes into a record
VERSION = 1
NO_CHAIN = bytes(32)

Phase = Literal["applied", "applying", "syncing", "undoing", "tainted"]
_PHASES: tuple[Phase, ...] = ("applied", "applying", "syncing", "undoing", "tainted")
_HEADER = struct.Struct(">8sIQQQQ32s32s")  # magic, version, generation, sequence number, inode, birth, chain, key
_RECORD = struct.Struct(">8sIQQQQQ32s")  # magic, version, generation, sequence number, time, two lengths, chain
_KNOWN = struct.Struct(">8sQI")  # magic, generation, length
_TAIL = struct.Struct(">4sQQQI18s32s")  # magic, generation, sequence number, offset, phase, session, chain
_CRC = struct.Struct(">I")
_DIGEST = 32
_HEADER_MAGIC, _RECORD_MAGIC, _KNOWN_MAGIC, _TAIL_MAGIC = b"txf log\0", b"txf rec\0", b"txf kno\0", b"txft"
HEADER_SIZE = _HEADER.size + _DIGEST
RECORD_SIZE = _RECORD.size  # at least
TAIL_SIZE = _TAIL.size + _CRC.size


class Header(NamedTuple):
    """What the records of one generation follow.

    `ino` and `born` are the log's own inode and its birth time (0 where there is none): others in a copied tree. `key`
    is 32 random hex digits.
    """

    generation: int
    seq: int
    ino: int
    born: int = 0
    chain: bytes = NO_CHAIN
    key: bytes = bytes(32)


class Record(NamedTuple):
    """One transaction: its journal, and the contents of its writes in their order. `time` is that of the wall, in ns.

    `digest` is what the next one has as its chain, `end` where that may begin.
    """

    seq: int
    time: int
    journal: Journal
    contents: tuple[bytes, ...]
    digest: bytes
    end: int


class Place(NamedTuple):
    """A state: the sequence number and the digest of the last record that is in it, and where the next one begins."""

    seq: int
    chain: bytes
    end: int


class Tail(NamedTuple):
    """Up to where everything is applied, in the eyes of one session; `session` is the beginning of it.

    In the phases "applying" and "undoing" the record that begins at `offset` is in doubt.
    """

    generation: int
    seq: int
    offset: int
    phase: Phase
    session: bytes
    chain: bytes


# -- headers --------------------------------------------------------------------------------------------------------


def encode_header(header: Header) -> bytes:
    """To be written at `slot`: so the one before it stays whole until this one is."""
    raw = _HEADER.pack(_HEADER_MAGIC, VERSION, *header)
    return raw + _digest(raw)


def slot(generation: int) -> int:
    return generation % 2 * (BLOCK + KNOWN)


def decode_headers(even: bytes, odd: bytes, name: str) -> Header:
    """The one that counts, of the beginnings of both slots. Raises `JournalCorruptError` where neither is whole."""
    found = [
        header
        for parity, raw in enumerate((even, odd))
        if (header := _decode_header(raw, name)) is not None and header.generation % 2 == parity
    ]
    if not found:
        raise JournalCorruptError(f"the log {name} has no valid header", path=name)
    return max(found)


@lru_cache(64)
def _decode_header(raw: bytes, name: str) -> Header | None:
    body = raw[: _HEADER.size]
    if raw[_HEADER.size : HEADER_SIZE] != _digest(body):
        return None
    magic, version, *fields = _HEADER.unpack(body)
    if magic != _HEADER_MAGIC:
        return None
    if version != VERSION:
        raise JournalVersionError(f"the log {name} has version {version}, which this txfiles does not know", path=name)
    return Header(*fields)


# -- records --------------------------------------------------------------------------------------------------------


def encode_record(header: Header, chain: bytes, journal: Journal, time: int, contents: Sequence[bytes]) -> bytes:
    """In whole blocks. `chain` is the digest of the record before, or the header's. Raises `OSError` as `encode` does.

    REQUIRES: `holds(journal)`; `contents` are those of its writes, in their order, and have the digests that it says.
    """
    sizes = [len(content) for content in contents]
    assert sizes == [op.new.size for op in _writes(journal) if op.new is not None]
    body, payload_size = codec.encode(journal), sum(sizes)
    fields = header.generation, journal.seq, time, len(body), payload_size, chain
    head = _RECORD.pack(_RECORD_MAGIC, VERSION, *fields) + body
    size = len(head) + payload_size + _DIGEST
    return b"".join((head, *contents, _digest(head, header.key), bytes(_blocks(size) - size)))


def digest_of(record: bytes) -> bytes:
    """The digest of an encoded record."""
    size = _size(record, 0)
    return record[size - _DIGEST : size]


def holds(journal: Journal) -> bool:
    """Whether a record can be all there is of it: small files that are written and deleted, and nothing else."""
    return not (journal.two_phase or journal.exits) and all(
        op.kind == "delete"
        or (op.kind == "write" and op.new is not None and op.new.link is None and op.new.size <= INLINE)
        for op in journal.ops
    )


def decode_records(raw: bytes, header: Header, name: str) -> list[Record]:
    """All that count, of a whole log.

    The first that does not fit is the end: a write that was cut off. Raises `JournalCorruptError` where a whole one of
    this generation lies behind it, because then something is lost that had been durable.
    """
    found = decode_behind(raw[FIRST:], header, place(header, ()), name)
    last = place(header, found)
    for behind in range(last.end, len(raw), BLOCK):
        record = _decode_record(raw, behind, header, name)
        if record is not None and record.seq > last.seq:
            raise JournalCorruptError(f"the log {name} is damaged at byte {last.end}", path=name)
    return found


def decode_behind(raw: bytes, header: Header, start: Place, name: str) -> list[Record]:
    """Those that follow in the bytes that begin at a place."""
    found: list[Record] = []
    seq, chain, at = start.seq, start.chain, 0
    while (record := _decode_record(raw, at, header, name)) is not None:
        is_next = record.seq == seq + 1 or (record.seq > seq and start.end + at == FIRST)
        if not is_next or _chain(raw, at) != chain:
            break
        at, seq, chain = record.end, record.seq, record.digest
        found.append(record._replace(end=start.end + at))
    return found


def place(header: Header, records: Sequence[Record]) -> Place:
    """The state after these records, all those of the header up to one of them."""
    last = records[-1] if records else None
    return Place(header.seq, header.chain, FIRST) if last is None else Place(last.seq, last.digest, last.end)


def is_record(raw: bytes, header: Header) -> bool:
    """Whether what begins here looks like one of this generation, whole or not."""
    return len(raw) >= _RECORD.size and raw.startswith(_RECORD_MAGIC) and _generation(raw, 0) == header.generation


def _decode_record(raw: bytes, at: int, header: Header, name: str) -> Record | None:
    if not is_record(raw[at : at + _RECORD.size], header):
        return None
    _, version, _, seq, time, body_size, payload_size, _ = _RECORD.unpack_from(raw, at)
    start = at + _RECORD.size + body_size
    behind = start + payload_size
    if raw[behind : behind + _DIGEST] != _digest(memoryview(raw)[at:start], header.key):
        return None
    if version != VERSION:
        message = f"the log {name} has a record of version {version}, which this txfiles does not know"
        raise JournalVersionError(message, path=name)
    journal = codec.decode(raw[start - body_size : start], name)
    sizes = [(op.new.size, op.digest) for op in _writes(journal) if op.new is not None]
    if journal.seq != seq or not holds(journal) or sum(size for size, _ in sizes) != payload_size:
        raise JournalCorruptError(f"the log {name} has a record that no transaction writes, at byte {at}", path=name)
    contents = []
    for size, digest in sizes:
        contents.append(raw[start : start + size])
        start += size
        if digest_of_content(contents[-1]) != digest:
            return None
    return Record(seq, time, journal, tuple(contents), raw[start : start + _DIGEST], at + _blocks(start + _DIGEST - at))


def _size(raw: bytes, at: int) -> int:
    _, _, _, _, _, body, payload, _ = _RECORD.unpack_from(raw, at)
    return int(_RECORD.size + body + payload + _DIGEST)


def _generation(raw: bytes, at: int) -> int:
    return int(_RECORD.unpack_from(raw, at)[2])


def _chain(raw: bytes, at: int) -> bytes:
    return bytes(_RECORD.unpack_from(raw, at)[7])


def _writes(journal: Journal) -> list[Operation]:
    return [op for op in journal.ops if op.kind == "write"]


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _digest(raw: bytes | memoryview, key: bytes = b"") -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST, key=key).digest()


# -- what is durable ------------------------------------------------------------------------------------------------


def known_slot(generation: int) -> int:
    return slot(generation) + BLOCK


def encode_known(header: Header, known: dict[bytes, Identity | None]) -> bytes:
    """What is durable beside the records of this header, each path with its file; the last that there is room for."""
    room = KNOWN - _KNOWN.size - _DIGEST - 2
    rows = []
    for path, identity in reversed(known.items()):
        row = orjson.dumps([codec.escape(path), None if identity is None else identity[:3]])
        room -= len(row) + 1
        if room < 0:
            break
        rows.append(row)
    body = b"[%s]" % b",".join(reversed(rows))
    raw = _KNOWN.pack(_KNOWN_MAGIC, header.generation, len(body)) + body
    return raw + _digest(raw, header.key)


def decode_known(raw: bytes, header: Header) -> dict[bytes, Identity | None]:
    """Nothing is known where it was cut off, or is of another generation."""
    if len(raw) < _KNOWN.size:
        return {}
    magic, generation, size = _KNOWN.unpack_from(raw)
    end = _KNOWN.size + size
    if (magic, generation) != (_KNOWN_MAGIC, header.generation):
        return {}
    if raw[end : end + _DIGEST] != _digest(raw[:end], header.key):
        return {}
    rows = orjson.loads(raw[_KNOWN.size : end])
    return {codec.unescape(path): None if file is None else Identity(*file) for path, file in rows}


# -- the tail -------------------------------------------------------------------------------------------------------


def tail(header: Header, seq: int, offset: int, phase: Phase, session: bytes, chain: bytes) -> Tail:
    return Tail(header.generation, seq, offset, phase, session[:18].ljust(18, b"\0"), chain)


def encode_tail(of: Tail) -> bytes:
    raw = _TAIL.pack(_TAIL_MAGIC, of.generation, of.seq, of.offset, _PHASES.index(of.phase), of.session, of.chain)
    return raw + _CRC.pack(zlib.crc32(raw))


def decode_tail(raw: bytes) -> Tail | None:
    """`None` for what is none: whoever reads it then believes nothing."""
    if len(raw) != TAIL_SIZE or _CRC.unpack_from(raw, _TAIL.size)[0] != zlib.crc32(raw[: _TAIL.size]):
        return None
    magic, generation, seq, offset, phase, session, chain = _TAIL.unpack_from(raw)
    if magic != _TAIL_MAGIC or phase >= len(_PHASES) or offset % BLOCK or not FIRST <= offset <= SIZE:
        return None
    return Tail(generation, seq, offset, _PHASES[phase], session, chain)


def is_of(found: Tail, session: bytes) -> bool:
    """Whether the tail was written in this session; never where there is none to be told."""
    return bool(session) and found.session == session[:18].ljust(18, b"\0")


def phase_of(found: Tail | None, session: bytes, header: Header, seq: int) -> Phase | None:
    """What was being done to the log of this header, whose last record is `seq`; `None` where it is of another session.

    A record that came behind a tail that says "applied" is one of which nothing is applied yet: "applying". A tail that
    says "tainted" says so in every session: it may be of the same machine.
    """
    if found is not None and found.phase == "tainted":
        return "tainted"
    if found is None or not is_of(found, session) or found.generation != header.generation:
        return None
    return "applying" if found.phase == "applied" and found.seq != seq else found.phase
