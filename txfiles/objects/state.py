"""The state of a root: the bytes of `HEAD` and of the other objects that are no packs. Pure functions.

    txfiles head 1 <bytes of the body> <BLAKE2b-256 of the body, hex>\\n
    <body: one JSON object>

Names are written as in the journal. The bytes are untrusted: every field is checked, and what does not fit is refused.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from txfiles._format import paths
from txfiles._format.journal import escape, unescape
from txfiles.errors import JournalCorruptError, JournalVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
HEAD = "HEAD"
INLINE = 4096  # bytes of a content that stay in HEAD
MAX_ENTRIES = 512  # of the delta
MAX_SIZE = 128 << 10  # bytes of HEAD
RECENT = 512  # ids at most; half of them go into a block of `hist`

_FIRST = re.compile(rb"txfiles (head|hist|condemned|snapshot) ([0-9]{1,9}) ([0-9]{1,12}) ([0-9a-f]{64})\n")
_ID, _DIGEST = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9a-f]{32}\.[0-9]{1,9}")
_NAME = re.compile(r"([0-9]{1,15})-([0-9a-f]{32})")
_KEY = re.compile(r"(pack|hist|snap|gc)/([0-9]{1,15})-[0-9a-f]{32}")
Form = Literal["quoted", "bare"]


class Entry(NamedTuple):
    """A file, or with `version` alone (`size` -1) a directory. A content is inline in `data` or at `pack`, `offset`."""

    version: str
    size: int = -1
    digest: str = ""
    mode: int | None = None
    data: bytes | None = None
    pack: str = ""
    offset: int = 0

    @property
    def is_file(self) -> bool:
        return self.size >= 0


class Ref(NamedTuple):
    """Where a node of the tree lies. `oldest` is the smallest sequence number of a pack in it or beneath."""

    pack: str
    offset: int
    length: int
    digest: str
    oldest: int
    files: int


class Tag(NamedTuple):
    """A retained state: the object with its body, its sequence number and id."""

    snap: str
    seq: int
    id: str


@dataclass(frozen=True)
class State:
    """One committed state. `delta` has what differs from the tree below `root`; `None` is a deleted path there."""

    seq: int
    id: str
    recent: tuple[tuple[int, str], ...] = ()
    hist: tuple[str, int] | None = None
    floor: int = 0
    nextfloor: int = 0
    expired: int = 0
    tags: Mapping[str, Tag] = field(default_factory=dict)
    root: Ref | None = None
    delta: Mapping[bytes, Entry | None] = field(default_factory=dict)
    files: int = 0
    form: Form = "quoted"
    waited: int = 0  # milliseconds, about, that writers wait for others now: `turn`

    @cached_property
    def delta_keys(self) -> list[bytes]:
        return sorted(self.delta)

    @property
    def version(self) -> str:
        return f"{self.seq}-{self.id}"

    def has(self, tid: str) -> bool:
        """Whether a transaction is the last one or among the recent ones."""
        return tid == self.id or any(tid == known for _, known in self.recent)


def new_id() -> str:
    return secrets.token_hex(16)


def new_name(seq: int) -> str:
    """A name of an object whose upload begins now; `seq` is that of the newest HEAD that its writer knows."""
    return f"{seq}-{new_id()}"


def seq_of(name: str) -> int:
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name[:80]!r} is no name of an object")
    return int(found[1])


def seq_of_key(key: str, kind: str) -> int | None:
    """The sequence number in a key of exactly the pattern, else `None`: such a thing is not ours to touch."""
    found = _KEY.fullmatch(key)
    return int(found[2]) if found is not None and found[1] == kind else None


def checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


# -- bytes ------------------------------------------------------------------------------------------------------


def frame(kind: str, body: object) -> bytes:
    import orjson

    raw = orjson.dumps(body)
    return b"txfiles %s %d %d %s\n" % (kind.encode(), FORMAT, len(raw), checksum(raw).encode()) + raw


def unframe(kind: str, raw: bytes, shown: str) -> Any:
    """The body of an object. Raises `JournalCorruptError` and `JournalVersionError` with the name `shown`."""
    import orjson

    first = _FIRST.match(raw)
    if first is None or first[1].decode() != kind:
        raise JournalCorruptError(f"{shown} has no valid first line; it was not written by txfiles", path=shown)
    if int(first[2]) > FORMAT:
        raise JournalVersionError(f"{shown} was written by a newer txfiles (format {int(first[2])})", path=shown)
    body = raw[first.end() :]
    if int(first[2]) < 1 or len(body) != int(first[3]):
        raise JournalCorruptError(f"{shown} is cut short", path=shown)
    if checksum(body) != first[4].decode():
        raise JournalCorruptError(f"{shown} does not match its checksum", path=shown)
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise JournalCorruptError(f"{shown} is not well formed: {error}", path=shown) from error


def encode(state: State, kind: str = "head") -> bytes:
    return frame(
        kind,
        {
            "seq": state.seq,
            "id": state.id,
            "recent": state.recent,
            "hist": state.hist,
            "floor": state.floor,
            "nextfloor": state.nextfloor,
            "expired": state.expired,
            "tags": {tag: tuple(row) for tag, row in state.tags.items()},
            "root": None if state.root is None else tuple(state.root),
            "files": state.files,
            "form": state.form,
            "waited": state.waited,
            "delta": [encode_entry(path, state.delta[path]) for path in state.delta_keys],
        },
    )


def decode(raw: bytes, shown: str, kind: str = "head") -> State:
    body = unframe(kind, raw, shown)
    try:
        return _decode(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalCorruptError(f"{shown} is not well formed: {error}", path=shown) from error


def _decode(body: Any) -> State:
    delta: dict[bytes, Entry | None] = {}
    for row in _typed(body["delta"], list):
        path, entry = decode_entry(row)
        if path in delta:
            raise ValueError(f"{path!r} is there twice")
        delta[path] = entry
    hist = body["hist"]
    state = State(
        seq=number(body["seq"]),
        id=_matching(body["id"], _ID),
        recent=tuple((number(seq), _matching(tid, _ID)) for seq, tid in _typed(body["recent"], list)),
        hist=None if hist is None else (name(hist[0]), number(hist[1])),
        floor=number(body["floor"]),
        nextfloor=number(body["nextfloor"]),
        expired=number(body["expired"]),
        tags={
            _typed(tag, str): Tag(name(row[0]), number(row[1]), _matching(row[2], _ID))
            for tag, row in _typed(body["tags"], dict).items()
        },
        root=None if body["root"] is None else decode_ref(body["root"]),
        delta=delta,
        files=number(body["files"]),
        form="bare" if body["form"] == "bare" else "quoted",
        waited=number(body["waited"]),
    )
    if body["form"] not in ("quoted", "bare"):
        raise ValueError(f"the form of tokens {body['form']!r} is unknown")
    if not state.floor <= state.nextfloor <= state.seq or state.expired > state.seq:
        raise ValueError("the sequence numbers are out of order")
    return state


def encode_entry(path: bytes, entry: Entry | None) -> list[Any]:
    shown = escape(path)
    if entry is None:
        return [shown]
    if not entry.is_file:
        return [shown, entry.version]
    row: list[Any] = [shown, entry.version, entry.size, entry.digest, entry.mode]
    return [*row, b64encode(entry.data).decode()] if entry.data is not None else [*row, entry.pack, entry.offset]


def decode_entry(row: Any) -> tuple[bytes, Entry | None]:
    path = unescape(row[0])
    if not paths.is_normal(path):
        raise ValueError(f"{path!r} is not a path below the root")
    if len(row) == 1:
        return path, None
    version = _matching(row[1], _VERSION)
    if len(row) == 2:
        return path, Entry(version)
    size, digest, mode = number(row[2]), _matching(row[3], _DIGEST), row[4]
    if mode is not None and number(mode) > 0o7777:
        raise ValueError(f"mode {mode} is out of range")
    if len(row) == 7:
        return path, Entry(version, size, digest, mode, None, name(row[5]), number(row[6]))
    (text,) = row[5:]
    data = b64decode(_typed(text, str), validate=True)
    if len(data) != size or checksum(data) != digest:
        raise ValueError(f"the content of {path!r} does not match its digest")
    return path, Entry(version, size, digest, mode, data)


def decode_ref(row: Any) -> Ref:
    pack, offset, length, digest, oldest, files = row
    return Ref(name(pack), number(offset), number(length), _matching(digest, _DIGEST), number(oldest), number(files))


def number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a number, 0 or more, expected, not {str(value)[:80]!r}")
    return value


def name(value: Any) -> str:
    return _matching(value, _NAME)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _matching(value: Any, pattern: re.Pattern[str]) -> str:
    text: str = _typed(value, str)
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:80]!r} does not match {pattern.pattern}")
    return text


# -- blocks of ids, and lists of what gc condemned --------------------------------------------------------------


class Block(NamedTuple):
    """Ids pushed out of `recent`, and the block before."""

    ids: dict[str, int]
    before: str | None


def encode_block(ids: tuple[tuple[int, str], ...], before: str | None) -> bytes:
    return frame("hist", {"ids": ids, "before": before})


def decode_block(raw: bytes, shown: str) -> Block:
    body = unframe("hist", raw, shown)
    try:
        ids = {_matching(tid, _ID): number(seq) for seq, tid in body["ids"]}
        return Block(ids, None if body["before"] is None else name(body["before"]))
    except (ValueError, KeyError, TypeError) as error:
        raise JournalCorruptError(f"{shown} is not well formed: {error}", path=shown) from error


def encode_condemned(keys: list[str]) -> bytes:
    return frame("condemned", keys)


def decode_condemned(raw: bytes, shown: str) -> list[str]:
    """The keys in the list that have exactly the pattern of a key of ours."""
    keys = unframe("condemned", raw, shown)
    if not isinstance(keys, list):
        raise JournalCorruptError(f"{shown} is not well formed", path=shown)
    return [key for key in keys if isinstance(key, str) and _KEY.fullmatch(key) and not key.startswith("gc/")]


def successor(state: State, ids: list[str], **changes: Any) -> State:
    """The next state, by the transactions `ids`; the last of them names it."""
    recent = (*state.recent, (state.seq, state.id), *((state.seq + 1, tid) for tid in ids[:-1]))
    return replace(state, seq=state.seq + 1, id=ids[-1], recent=recent, **changes)
