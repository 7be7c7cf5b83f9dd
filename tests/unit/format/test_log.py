"""The log's bytes: what was written whole comes back, what was cut off is the end, and nothing is guessed."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.format.test_journal import journals
from txfiles._format import journal as codec
from txfiles._format import log
from txfiles._format.digest import digest_of
from txfiles._format.journal import Identity, Journal, Meta, Operation
from txfiles._format.log import BLOCK, FIRST, Header, Record, Tail
from txfiles.errors import JournalCorruptError, JournalVersionError

HEADER = Header(generation=7, seq=40, ino=11, chain=b"c" * 32)
META = Meta(0o644, 0, 0)


def journal(seq: int, *contents: bytes) -> Journal:
    ops = [
        Operation(number, "write", b"f%d" % number, None, Identity(5, len(content), 9), digest_of(content), META)
        for number, content in enumerate(contents)
    ]
    ops.append(Operation(len(ops), "delete", b"gone", Identity(3, 4, 5)))
    return Journal("0123456789abcdef" * 2, seq, "full", "b00-7", 12, tuple(ops), ((b"", 2),))


def a_log(*transactions: tuple[bytes, ...], header: Header = HEADER) -> tuple[bytearray, list[int]]:
    """A whole log, and where each record ends."""
    raw, ends, chain = bytearray(96 * BLOCK), [FIRST], header.chain
    for number, contents in enumerate(transactions, 1):
        record = log.encode_record(header, chain, journal(header.seq + number, *contents), 1000 + number, contents)
        assert len(record) % BLOCK == 0
        raw[ends[-1] : ends[-1] + len(record)] = record
        ends.append(ends[-1] + len(record))
        chain = log.digest_of(record)
    return raw, ends


def decoded(raw: bytes | bytearray, header: Header = HEADER) -> list[Record]:
    return log.decode_records(bytes(raw), header, "log")


THREE = ((b"one", b""), (b"x" * 5000,), (b"three",))


# -- headers --------------------------------------------------------------------------------------------------------


def both(*headers: Header) -> bytes:
    raw = bytearray(FIRST)
    for header in headers:
        encoded = log.encode_header(header)
        assert len(encoded) <= 512
        at = log.slot(header.generation)
        raw[at : at + len(encoded)] = encoded
    return bytes(raw)


def headers(raw: bytes) -> Header:
    return log.decode_headers(raw[: log.HEADER_SIZE], raw[log.slot(1) :][: log.HEADER_SIZE], "log")


def test_the_header_of_the_higher_generation_counts() -> None:
    newer = HEADER._replace(generation=8, seq=50)
    assert headers(both(HEADER, newer)) == newer
    assert headers(both(newer, HEADER._replace(generation=9))).generation == 9
    assert headers(both(HEADER)) == HEADER


@pytest.mark.parametrize("byte", range(len(log.encode_header(HEADER))))
def test_a_header_that_was_cut_off_leaves_the_one_before(byte: int) -> None:
    newer = HEADER._replace(generation=8)
    raw = bytearray(both(HEADER, newer))
    raw[log.slot(8) + byte] ^= 1
    assert headers(bytes(raw)) == HEADER
    raw[log.slot(7) + byte] ^= 1
    with pytest.raises(JournalCorruptError):
        headers(bytes(raw))


@pytest.mark.parametrize("raw", [b"", bytes(FIRST), both(HEADER)[: log.slot(1)] * 2])
def test_no_header_is_refused(raw: bytes) -> None:
    with pytest.raises(JournalCorruptError):
        headers(raw)


def test_a_header_in_the_wrong_slot_does_not_count() -> None:
    raw = both(HEADER)
    with pytest.raises(JournalCorruptError):
        headers(raw[log.slot(1) :] + raw[: log.slot(1)])


# -- records --------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.binary(max_size=9000), max_size=4).map(tuple), max_size=5))
def test_records_round_trip(transactions: list[tuple[bytes, ...]]) -> None:
    raw, ends = a_log(*transactions)
    found = decoded(raw)
    assert [record.contents for record in found] == transactions
    assert [record.journal for record in found] == [
        journal(HEADER.seq + number, *contents) for number, contents in enumerate(transactions, 1)
    ]
    assert [record.end for record in found] == ends[1:]
    assert [record.time for record in found] == list(range(1001, 1001 + len(transactions)))


@given(journals())
def test_a_record_holds_small_files_and_nothing_else(one: Journal) -> None:
    fits = not one.two_phase and all(
        op.kind == "delete"
        or (op.kind == "write" and op.new is not None and op.new.link is None and op.new.size <= log.INLINE)
        for op in one.ops
    )
    assert log.holds(one) == fits


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "mkdir", "new": None},
        {"new": Identity(1, log.INLINE + 1, 1)},
        {"new": Identity(1, 1, 1, b"link")},
    ],
)
def test_what_a_record_does_not_hold(change: dict[str, Any]) -> None:
    one = journal(1, b"x")
    assert log.holds(one)
    assert not log.holds(replace(one, ops=(one.ops[0]._replace(**change),)))
    assert not log.holds(replace(one, two_phase=True))


@pytest.mark.parametrize("broken", range(3))
def test_every_damaged_byte_is_found(broken: int) -> None:
    raw, ends = a_log(*THREE)
    end = ends[broken + 1]
    size = log._size(bytes(raw), ends[broken])
    for byte in range(ends[broken], ends[broken] + size, 1 if size < 2000 else 7):
        bad = bytearray(raw)
        bad[byte] ^= 0x40
        if broken == 2:  # the last: a write that was cut off
            assert len(decoded(bad)) == 2
        else:
            with pytest.raises(JournalCorruptError, match=f"at byte {ends[broken]}$"):
                decoded(bad)
    assert end - ends[broken] >= size


@pytest.mark.parametrize("filler", [b"\0", b"\xff"])
def test_a_record_that_was_cut_off_anywhere_is_the_end(filler: bytes) -> None:
    raw, ends = a_log(*THREE)
    size = log._size(bytes(raw), ends[2])
    for kept in range(size):
        bad = raw[: ends[2] + kept] + filler * (len(raw) - ends[2] - kept)
        if bad != raw:
            assert len(decoded(bad)) in ((2, 3) if kept > size - 2 else (2,))
    assert len(decoded(raw[: ends[2] + size])) == 3  # the blocks' rest is nothing
    assert len(decoded(raw[: ends[2] + size - 1])) == 2


def test_what_is_left_of_an_earlier_generation_is_no_record() -> None:
    raw, ends = a_log(*THREE)
    newer = HEADER._replace(generation=8, seq=HEADER.seq + 3)
    assert decoded(raw, newer) == []
    record = log.encode_record(newer, newer.chain, journal(newer.seq + 1, b"new"), 1, [b"new"])
    raw[FIRST : FIRST + len(record)] = record
    assert [one.contents for one in decoded(raw, newer)] == [(b"new",)]
    assert not log.is_record(bytes(raw[ends[1] :]), newer)
    assert log.is_record(bytes(raw[FIRST:]), newer)


def test_a_record_counts_behind_the_one_that_it_was_written_behind_only() -> None:
    header = HEADER._replace(chain=b"d" * 32)
    raw, _ = a_log(*THREE)
    with pytest.raises(JournalCorruptError):  # all are whole, and none follows
        decoded(raw, header)
    with pytest.raises(JournalCorruptError):
        decoded(raw, HEADER._replace(seq=HEADER.seq + 1))
    assert decoded(raw, HEADER._replace(seq=HEADER.seq + 3)) == []


def _sealed(generation: int, seq: int, body: bytes, payload: bytes, version: int = log.VERSION) -> bytes:
    """A record with a right digest, whatever is in it."""
    head = struct.pack(">8sIQQQQQ32s", b"txf rec\0", version, generation, seq, 1, len(body), len(payload), HEADER.chain)
    return bytes(FIRST) + head + body + payload + log._digest(head + body, HEADER.key)


@pytest.mark.parametrize(
    ("one", "payload"),
    [
        (journal(41, b"abc"), b"ab"),
        (journal(41, b"abc"), b"abcd"),
        (journal(42, b"abc"), b"abc"),
        (replace(journal(41, b"abc"), two_phase=True), b"abc"),
        (replace(journal(41), ops=(Operation(0, "mkdir", b"d", meta=META),)), b""),
    ],
)
def test_what_no_transaction_writes_is_refused(one: Journal, payload: bytes) -> None:
    with pytest.raises(JournalCorruptError):
        decoded(_sealed(7, 41, codec.encode(one), payload))
    assert decoded(_sealed(7, 41, codec.encode(journal(41, b"abc")), b"abc"))


def test_a_journal_that_is_none_is_refused() -> None:
    with pytest.raises(JournalCorruptError):
        decoded(_sealed(7, 41, b"nonsense", b""))


def test_a_later_version_is_refused() -> None:
    with pytest.raises(JournalVersionError):
        decoded(_sealed(7, 41, codec.encode(journal(41)), b"", version=2))
    raw = struct.pack(">8sIQQQQ32s32s", b"txf log\0", 2, 8, 1, 1, 1, b"", b"")
    with pytest.raises(JournalVersionError):
        headers((raw + log._digest(raw)).ljust(FIRST, b"\0"))


@pytest.mark.parametrize("field", [5, 6])
def test_a_size_beyond_the_log_costs_nothing(field: int) -> None:
    fields: list[Any] = [b"txf rec\0", log.VERSION, 7, 41, 1, 0, 0, HEADER.chain]
    fields[field] = 2**63
    assert decoded(bytes(FIRST) + struct.pack(">8sIQQQQQ32s", *fields) + bytes(BLOCK)) == []


@given(st.binary(max_size=300), st.integers(0, 2))
def test_any_bytes_are_records_or_refused(junk: bytes, at: int) -> None:
    raw, ends = a_log(*THREE)
    raw[ends[at] : ends[at] + len(junk)] = junk
    try:
        found = decoded(raw)
    except (JournalCorruptError, JournalVersionError):
        return
    assert [record.contents for record in found] == list(THREE[: len(found)])


def test_there_may_be_a_gap_before_the_first_record_only() -> None:
    raw, ends = a_log(*THREE, header=HEADER._replace(seq=HEADER.seq + 5))
    assert [record.seq for record in decoded(raw)] == [46, 47, 48]
    one = log.encode_record(HEADER, log.digest_of(bytes(raw[ends[1] :])), journal(49, b"x"), 1, [b"x"])
    raw[ends[2] : ends[2] + len(one)] = one
    with pytest.raises(JournalCorruptError):
        decoded(raw)


def test_a_content_that_is_a_record_of_another_log_is_none() -> None:
    """Behind a record that was cut off."""
    raw, ends = a_log(*THREE, header=HEADER._replace(key=b"k" * 32))
    planted, _ = a_log((b"",), (b"",), (b"",), (b"",), (b"",))
    raw[ends[1] : ends[1] + 3 * BLOCK] = bytes(BLOCK) + planted[FIRST + 2 * BLOCK : FIRST + 4 * BLOCK]
    assert len(decoded(raw, HEADER._replace(key=b"k" * 32))) == 1


# -- what is durable ------------------------------------------------------------------------------------------------

FILES = {b"a": Identity(5, 6, 7), b"d/b%\xff": None, b"c": Identity(1, 2, -3)}


def test_what_is_durable_round_trips_and_counts_in_its_generation_alone() -> None:
    raw = log.encode_known(HEADER, FILES)
    assert list(log.decode_known(raw + b"junk", HEADER).items()) == list(FILES.items())
    assert log.decode_known(raw, HEADER._replace(generation=9)) == {}
    assert log.decode_known(raw, HEADER._replace(key=b"k" * 32)) == {}
    for byte in range(len(raw)):
        bad = bytearray(raw)
        bad[byte] ^= 1
        assert log.decode_known(bytes(bad), HEADER) == {}
        assert log.decode_known(raw[:byte], HEADER) == {}


def test_of_too_many_durable_files_the_last_are_kept() -> None:
    many: dict[bytes, Identity | None] = {b"%06d" % number: Identity(number, 1, 1) for number in range(9999)}
    raw = log.encode_known(HEADER, many)
    assert log.KNOWN - 50 < len(raw) <= log.KNOWN
    kept = log.decode_known(raw, HEADER)
    assert list(kept.items()) == list(many.items())[-len(kept) :]


# -- the tail -------------------------------------------------------------------------------------------------------

SESSION = b"s" * 32


@pytest.mark.parametrize("phase", ["applied", "applying", "syncing", "undoing", "tainted"])
def test_the_tail_round_trips(phase: log.Phase) -> None:
    tail = log.tail(HEADER, 43, FIRST + BLOCK, phase, SESSION, b"h" * 32)
    raw = log.encode_tail(tail)
    assert len(raw) == log.TAIL_SIZE == 86
    assert log.decode_tail(raw) == tail
    assert tail.phase == phase
    for byte in range(len(raw)):
        bad = bytearray(raw)
        bad[byte] ^= 1
        assert log.decode_tail(bytes(bad)) is None
    for size in range(len(raw)):
        assert log.decode_tail(raw[:size]) is None


def test_a_tail_says_nothing_outside_its_session() -> None:
    tail = log.tail(HEADER, 43, FIRST, "applied", SESSION, b"h" * 32)
    assert log.is_of(tail, SESSION)
    assert not log.is_of(tail, b"t" * 32)
    nowhere = log.tail(HEADER, 43, FIRST, "applied", b"", b"h" * 32)
    assert not log.is_of(nowhere, b"")
    assert not log.is_of(tail, b"")


@pytest.mark.parametrize("offset", [0, FIRST - BLOCK, FIRST + 1, log.SIZE + BLOCK])
def test_a_tail_that_points_nowhere_is_none(offset: int) -> None:
    tail = Tail(7, 43, offset, "applied", SESSION[:18], b"h" * 32)
    assert log.decode_tail(log.encode_tail(tail)) is None
