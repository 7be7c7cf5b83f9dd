"""The journal's bytes: every journal round-trips, and what is not one is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import DEEP
from tests.unit.format.test_paths import normal
from txfiles._format import journal as _journal
from txfiles._format import layout
from txfiles._format import paths as _paths
from txfiles._format.digest import Digest
from txfiles._format.journal import Exit, Identity, Journal, Meta, Operation, decode, encode
from txfiles.errors import JournalCorruptError, JournalVersionError, RecoveryError

numbers = st.integers(0, 2**63 - 1)
hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
links = st.none() | st.binary(min_size=1, max_size=12).filter(lambda raw: b"\0" not in raw)
identities = st.builds(Identity, numbers, numbers, st.integers(-(2**63), 2**63 - 1), links)
xattr_names = st.binary(min_size=1, max_size=8).filter(lambda raw: b"\0" not in raw).map(_paths.decode)
xattrs = st.dictionaries(xattr_names, st.binary(max_size=20), max_size=3).map(lambda d: tuple(sorted(d.items())))
owners = st.integers(0, 2**32 - 2)
metas = st.builds(Meta, st.integers(0, 0o7777), owners, owners, xattrs)


@st.composite
def operations(draw: st.DrawFn, index: int, path: bytes) -> Operation:
    kind = draw(st.sampled_from(_journal._KINDS))
    op = Operation(index, kind, path)  # type: ignore[arg-type]
    if kind == "write":
        return op._replace(old=draw(st.none() | identities), new=draw(identities), digest=draw(hexes), meta=draw(metas))
    return op._replace(old=draw(identities)) if kind == "delete" else op._replace(meta=draw(metas))


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    paths = draw(st.lists(normal, min_size=1, max_size=5, unique=True))
    indices = draw(st.lists(st.integers(0, layout.MAX_NUMBER), min_size=5, max_size=5, unique=True))
    above = sorted({parent for path in paths for parent in _paths.ancestors(path)})
    return Journal(
        tid=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        seq=draw(numbers),
        durability=draw(st.sampled_from(["full", "process"])),
        boot=draw(st.sampled_from(["", "c6ecf4a2-5f7a-4d8b-9c1e-0f2a3b4c5d6e"])),
        ino=draw(numbers),
        ops=tuple(draw(operations(index, path)) for index, path in zip(indices, paths, strict=False)),
        dirs=tuple((path, draw(numbers)) for path in above),
        two_phase=draw(st.booleans()),
    )


@given(journals())
def test_a_head_is_the_same_from_what_was_written_and_from_what_is_read(journal: Journal) -> None:
    raw = encode(journal)
    written = _journal.decode_head(raw)
    _journal.decode_head(encode(replace(journal, seq=journal.seq + 1)))  # which is remembered now
    read = _journal.decode_head(raw)
    assert read is not None
    assert written is not None
    assert read is not written
    told = [(head.tid, head.seq, head.durable, head.paths) for head in (written, read)]
    assert told[0] == told[1] == (journal.tid, journal.seq, journal.durability == "full", journal.paths)
    for head in (written, read):
        for op in journal.ops:
            if op.new is not None:
                assert head.vouches_for_file(op.path, op.new) == head.durable
                assert not head.vouches_for_file(op.path, op.new._replace(ino=op.new.ino + 1))
        assert head.vouches == head.durable
        assert head.ino == journal.ino


@given(journals())
def test_a_large_head_is_the_same_without_its_operations(journal: Journal) -> None:
    raw = encode(journal)
    small = _journal.Head(orjson.loads(raw.partition(b"\n")[2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_journal, "_REMEMBERED", 0)
        patch.setattr(_journal, "_newest", None)
        large = _journal.decode_head(raw)
    assert large is not None
    told = [(h.tid, h.seq, h.durable, h.ino, h.born, h.vouches, h.paths) for h in (small, large)]
    assert told[0] == told[1]
    for op in journal.ops:
        if op.new is not None:
            assert large.vouches_for_file(op.path, op.new) == small.durable


@pytest.mark.parametrize("first", ["ops", "id"])
def test_a_large_head_whose_operations_do_not_come_last(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = orjson.loads(encode(SAMPLE).partition(b"\n")[2])
    text = orjson.dumps({name: body[name] for name in sorted(body, key=lambda name: name != first)})
    monkeypatch.setattr(_journal, "_REMEMBERED", 0)
    digest = hashlib.blake2b(text, digest_size=32).hexdigest().encode()
    head = _journal.decode_head(b"txfiles journal 2 %d %s\n%s" % (len(text), digest, text))
    assert head is not None
    assert (head.tid, head.paths) == (SAMPLE.tid, SAMPLE.paths)


def test_a_large_head_whose_operations_are_none_vouches_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    body = orjson.loads(encode(SAMPLE).partition(b"\n")[2])
    text = orjson.dumps({**body, "ops": [{"kind": "write"}]})
    monkeypatch.setattr(_journal, "_REMEMBERED", 0)
    digest = hashlib.blake2b(text, digest_size=32).hexdigest().encode()
    head = _journal.decode_head(b"txfiles journal 2 %d %s\n%s" % (len(text), digest, text))
    assert head is not None
    assert head.paths == []


@given(journals())
def test_c08_any_journal_round_trips(journal: Journal) -> None:
    raw = encode(journal)
    assert decode(raw, "J") == journal
    assert encode(decode(raw, "J")) == raw
    assert journal.paths == sorted(_paths.decode(op.path) for op in journal.ops)


SAMPLE = Journal(
    tid="0123456789abcdef" * 2,
    seq=7,
    durability="full",
    boot="c6ecf4a2-5f7a-4d8b-9c1e-0f2a3b4c5d6e",
    ino=12,
    ops=(
        Operation(
            number=0,
            kind="write",
            path=b"d/caf\xe9 100%",
            old=Identity(1, 2, -3),
            new=Identity(4, 5, 6),
            digest=Digest().hexdigest(),
            meta=Meta(0o640, 1000, 100, (("user.k", b"\0v"),)),
            was=Meta(0o600, 0, 100),
        ),
        Operation(number=1, kind="delete", path=b"gone", old=Identity(7, 8, 9, b"to")),
        Operation(number=2, kind="mkdir", path=b"new", meta=Meta(0o755, 0, 0)),
        Operation(number=3, kind="rmdir", path=b"was", meta=Meta(0o2755, 0, 0)),
    ),
    dirs=((b"", 2), (b"d", 3)),
)


def test_the_form_on_disk() -> None:
    head, body = encode(SAMPLE).split(b"\n")
    assert head == b"txfiles journal 2 %d %s" % (len(body), hashlib.blake2b(body, digest_size=32).hexdigest().encode())
    assert json.loads(body)["ops"][0]["path"] == "d/caf%E9 100%25"
    assert json.loads(body)["dirs"] == [["", 2], ["d", 3]]


def test_a16_truncated_at_any_offset() -> None:
    raw = encode(SAMPLE)
    for length in range(len(raw)):
        with pytest.raises(JournalCorruptError, match="J") as refused:
            decode(raw[:length], "J")
        assert refused.value.path == "J"


def test_a21_any_byte_flipped() -> None:
    raw = encode(SAMPLE)
    for position in range(len(raw)):
        for flip in range(1, 256) if DEEP else (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = bytearray(raw)
            damaged[position] ^= flip
            with pytest.raises(RecoveryError):
                decode(bytes(damaged), "J")


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw: bytes) -> None:
    with pytest.raises(JournalCorruptError):
        decode(raw, "J")


@pytest.mark.parametrize("version", [4, 10, 999_999_999])
def test_a_newer_version_is_refused_as_such(version: int) -> None:
    raw = encode(SAMPLE).replace(b"journal 2 ", b"journal %d " % version)
    with pytest.raises(JournalVersionError, match=f"format {version}"):
        decode(raw, "J")


def test_version_0_is_no_version() -> None:
    with pytest.raises(JournalCorruptError):
        decode(encode(SAMPLE).replace(b"journal 2 ", b"journal 0 "), "J")


def test_a_journal_of_the_first_version_is_known_as_such() -> None:
    old = replace(SAMPLE, version=1)
    assert encode(old).startswith(b"txfiles journal 1 ")
    assert decode(encode(old), "J") == old != SAMPLE


# A well-formed journal by somebody else: length and checksum are right.


def signed(body: bytes) -> bytes:
    return b"txfiles journal 2 %d %s\n" % (len(body), hashlib.blake2b(body, digest_size=32).hexdigest().encode()) + body


def planted(change: Callable[[dict[str, Any]], object]) -> bytes:
    body = json.loads(encode(SAMPLE).split(b"\n")[1])
    change(body)
    return signed(json.dumps(body).encode())


def test_a_change_that_is_none_is_accepted() -> None:
    assert decode(planted(lambda body: None), "J") == SAMPLE


HOSTILE_PATHS = [
    "",
    "/abs",
    "../victim",
    "d/../../victim",
    "d/..",
    ".",
    "./d",
    "d/",
    "d//x",
    ".txfiles/lock",
    ".TXFILES",
]


@pytest.mark.parametrize(
    "path",
    [
        *HOSTILE_PATHS,
        "d/.txfiles/x",
        "a%00b",
        "%2e%2e/victim",
        "%2fabs",
        "%2Etxfiles",
        "caf%C3%A9",
        "%",
        "%2",
        "%ZZ",
        "%e9",
        3,
        None,
    ],
)
def test_c09_hostile_paths_are_refused(path: object) -> None:
    for number in range(len(SAMPLE.ops)):
        with pytest.raises(JournalCorruptError):
            decode(planted(partial(_set_path, number, path)), "J")
    if path != "":
        with pytest.raises(JournalCorruptError):
            decode(planted(lambda body: body["dirs"].append([path, 1])), "J")


def _set_path(number: int, path: object, body: dict[str, Any]) -> None:
    body["ops"][number]["path"] = path


FIELDS: dict[str, list[object]] = {
    "id": ["", "0" * 31, "0" * 33, "G" * 32, "../../../../../../etc/passwd0000", "0" * 31 + "\n", 5, None],
    "seq": [-1, 1.5, "1", True, None, 2**64, 10**400, [], {}],
    "durability": ["", "none", "FULL", 1, None, ["full"]],
    "boot": ["x" * 65, "../", "G", None, 3],
    "ino": [-1, 2**64, "2", False],
    "two_phase": [0, 1, "yes", None],
    "ops": [[], {}, None, "ops", [None], [[]], ["x"], [{}], 3],
    "dirs": [[], {}, None, "ab", [None], ["ab"], [["", 1, 2]], [["", -1]], [["", 2], ["d", 3], ["d", 4]], [["d", 3]]],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in FIELDS.items() for v in values], ids=repr)
def test_a_field_of_another_form_is_refused(name: str, value: object) -> None:
    with pytest.raises(JournalCorruptError, match="not well formed"):
        decode(planted(lambda body: body.update({name: value})), "J")


@pytest.mark.parametrize("name", list(FIELDS))
def test_a_missing_field_is_refused(name: str) -> None:
    with pytest.raises(JournalCorruptError, match=name):
        decode(planted(lambda body: body.pop(name)), "J")


OPERATION_FIELDS: dict[str, list[object]] = {
    "k": [-1, 1, 1.0, "0", True, None, 10**10, 2**64],
    "kind": ["", "truncate", "Write", None, 3, ["write"], {"write": 1}],
    "old": [
        None,
        [],
        [1, 2],
        [1, 2, 3, 4],
        [1, 2, 3, "a", "b"],
        [-1, 2, 3],
        [1, -2, 3],
        ["1", 2, 3],
        {},
        "abc",
        [1, 2, 2**64],
    ],
    "new": [None, [1, 2, 3, None], [1, 2, "3"], [1, 2, 3, "a%00"], 3],
    "digest": ["", "0" * 63, "0" * 65, "A" * 64, None, 3],
    "meta": [
        None,
        [],
        [1, 2, 3],
        [-1, 0, 0, []],
        [0o10000, 0, 0, []],
        [0, -1, 0, []],
        [0, 0, 2**32 - 1, []],
        [0, 2**40, 0, []],
        [0, 0, 0, {}],
        [0, 0, 0, [["user.k", "zz"]]],
        [0, 0, 0, [["user.k"]]],
        [0, 0, 0, [["a%00", ""]]],
        [0, 0, 0, [[1, ""]]],
    ],
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in OPERATION_FIELDS.items() for v in values], ids=repr
)
def test_a_field_of_an_operation_of_another_form_is_refused(name: str, value: object) -> None:
    with pytest.raises(JournalCorruptError, match="not well formed"):
        decode(planted(lambda body: body["ops"][0].update({name: value})), "J")


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "k"), (0, "kind"), (0, "path"), (0, "new"), (0, "digest"), (0, "meta"), (1, "old"), (2, "meta"), (3, "meta")],
)
def test_an_operation_without_what_it_needs_is_refused(number: int, name: str) -> None:
    with pytest.raises(JournalCorruptError):
        decode(planted(lambda body: body["ops"][number].pop(name)), "J")


def test_one_path_made_twice_is_refused_and_replaced_in_kind_is_not() -> None:
    def twice(body: dict[str, Any]) -> None:
        body["ops"].append(body["ops"][0] | {"k": 9})

    def file_becomes_directory(body: dict[str, Any]) -> None:
        body["ops"].append(body["ops"][2] | {"k": 9, "path": body["ops"][1]["path"]})

    with pytest.raises(JournalCorruptError, match="twice"):
        decode(planted(twice), "J")
    assert decode(planted(file_becomes_directory), "J").ops[-1].path == SAMPLE.ops[1].path


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"1", b'"x"', b"{}", b"{", b"\xff", b'{"id": "\\ud800"}', b"NaN"]
)
def test_a_body_that_is_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(JournalCorruptError, match="not well formed"):
        decode(signed(body), "J")


@pytest.mark.parametrize("bomb", [b"[" * 1_000_000, b'{"a":' * 1_000_000, b"[" * 1_000_000 + b"]" * 1_000_000])
def test_g07_deep_nesting_is_refused(bomb: bytes) -> None:
    with pytest.raises(JournalCorruptError, match="not well formed"):
        decode(signed(bomb), "J")
    nested = encode(SAMPLE).split(b"\n")[1].replace(b'"seq":7', b'"seq":' + bomb)
    with pytest.raises(JournalCorruptError, match="not well formed"):
        decode(signed(nested), "J")


# Notes after the journal.


def test_the_last_whole_note_counts() -> None:
    raw = encode(SAMPLE)
    once = raw + _journal.taint("aaaa-1")
    assert decode(once, "J") == replace(SAMPLE, tainted_in="aaaa-1")
    assert decode(once + _journal.taint("bbbb-2"), "J").tainted_in == "bbbb-2"
    assert decode(raw + b"sync fa" + _journal.taint("bbbb-2"), "J").tainted_in == "bbbb-2"
    assert decode(once + _journal.taint("bbbb-2")[:-1], "J").tainted_in == "aaaa-1"


@given(st.binary(max_size=40).filter(lambda garbage: _journal.OVER not in garbage))
def test_what_follows_the_journal_does_not_change_it(garbage: bytes) -> None:
    assert replace(decode(encode(SAMPLE) + garbage, "J"), tainted_in=None) == SAMPLE


# -- links out of the root --------------------------------------------------------------------------------------------

OUT = _paths.OUTSIDE
WITH_EXITS = replace(
    SAMPLE,
    version=_journal.WITH_EXITS,
    exits=(Exit(b"l/dir", OUT + b"/home/caf\xe9", OUT + b"/home/caf\xe9", 5), Exit(b"top", OUT, OUT, 2)),
    ops=(
        *SAMPLE.ops,
        Operation(4, "delete", OUT + b"/home/caf\xe9/x/y", Identity(1, 2, 3), via=b"l/dir/x/y"),
        Operation(5, "delete", OUT + b"/etc", Identity(1, 2, 4, b"to"), via=b"top/etc"),
    ),
)


def _broken(change: Callable[[dict[str, Any]], object]) -> bytes:
    body = json.loads(encode(WITH_EXITS).partition(b"\n")[2])
    change(body)
    raw = json.dumps(body).encode()
    return b"txfiles journal 3 %d %s\n" % (len(raw), hashlib.blake2b(raw, digest_size=32).hexdigest().encode()) + raw


def test_links_out_of_the_root_round_trip_and_are_named_by_their_paths_in_it() -> None:
    raw = encode(WITH_EXITS)
    assert raw.startswith(b"txfiles journal 3 ")
    assert decode(raw, "J") == WITH_EXITS == decode(_broken(lambda _: None), "J")
    assert "l/dir/x/y" in WITH_EXITS.paths
    assert WITH_EXITS.inside().ops == SAMPLE.ops
    assert encode(SAMPLE).startswith(b"txfiles journal 2 ")
    body = json.loads(raw.partition(b"\n")[2])
    assert body["exits"] == [["l/dir", "/home/caf%E9", "/home/caf%E9", 5], ["top", "/", "/", 2]]
    assert (body["ops"][4]["path"], body["ops"][4]["to"]) == ("l/dir/x/y", "/home/caf%E9/x/y")


@pytest.mark.parametrize(
    "change",
    [
        {"exits": None},
        {"exits": []},
        {"exits/0/0": "../dir"},
        {"exits/0/0": "other"},
        {"exits/0/1": "home/caf%E9"},
        {"exits/0/1": "/home/../caf%E9"},
        {"exits/0/1": "/home//caf%E9"},
        {"exits/0/1": "/home/.txfiles"},
        {"exits/0/2": "/etc"},
        {"exits/0/3": -1},
        {"ops/4/to": "/home/caf%E9/x/z"},
        {"ops/4/to": "/root/.ssh/authorized_keys"},
        {"ops/4/to": "x/y"},
        {"ops/4/to": "/home/caf%E9/../x"},
        {"ops/4/to": "/home/caf%E9/x/.txfiles"},
        {"ops/4/to": None},
        {"ops/4/path": "/l/dir/x/y"},
        {"ops/4/path": "a"},
    ],
    ids=str,
)
def test_c09_what_a_journal_says_of_the_way_out_has_to_fit(change: dict[str, Any]) -> None:
    def meddle(body: Any) -> None:
        for place, value in change.items():
            *way, last = [int(part) if part.isdigit() else part for part in place.split("/")]
            for part in way:
                body = body[part]
            body[last] = value

    with pytest.raises(JournalCorruptError):
        decode(_broken(meddle), "J")


def test_a_journal_of_an_earlier_version_leads_nowhere() -> None:
    """Whatever fields it has."""
    raw = _broken(lambda _: None).replace(b"journal 3 ", b"journal 2 ", 1)
    with pytest.raises(JournalCorruptError):
        decode(raw, "J")
