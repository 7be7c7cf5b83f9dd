"""The journal: bytes <-> `Journal`, no I/O.

    txfiles journal 2 <bytes of the body> <BLAKE2b-256 of the body, hex>\\n
    <body: one JSON object>

In version 1 a deleted file was renamed over an empty marker, in version 2 to a name that does not exist. Version 3 is
version 2 with links that lead out of the root.

Paths are JSON strings; a byte that is not part of valid UTF-8, and `%`, stand as `%XX`. Whatever follows the body
are notes of the kernel sessions in which a sync failed (see `taint`); they are no part of the journal, and the last
whole one counts. The bytes are untrusted: every field is checked, and what does not fit is refused.
"""

from __future__ import annotations

import errno
import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from txfiles._format import layout, paths
from txfiles.errors import JournalCorruptError, JournalVersionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

VERSION = 2
WITH_EXITS = 3
NO_BOOT_ID = "0"  # in a note of a failed sync, where a restart cannot be told: there it holds for ever
MAX_SIZE = 1 << 30
_FOR_NOTES = 1 << 10  # bytes of it
_NO_ID = (1 << 32) - 1  # what chown(2) takes for "leave it as it is"

OpKind = Literal["delete", "rmdir", "mkdir", "write"]
Durability = Literal["full", "journal", "process"]  # that a caller asks for
Synced = Literal["full", "process"]  # how the transaction of a journal is
_KINDS = ("delete", "rmdir", "mkdir", "write")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_HEAD = re.compile(rb"txfiles journal ([0-9]{1,9}) ([0-9]{1,12}) ([0-9a-f]{64})\n")
_TID, _BOOT, _DIGEST = map(re.compile, (r"[0-9a-f]{32}", r"[0-9a-f-]{0,64}", r"[0-9a-f]{64}"))
_TAINT = re.compile(rb"sync failed ([0-9a-f-]{1,64})\n")
OVER = b"over\n"  # what is appended to a journal before its name goes, where nothing else would say that it is over


class Identity(NamedTuple):
    """What tells one version of a file from another. `link` is the text of a symbolic link, `None` for a file.

    The inode is a hint: it says nothing in a copied tree, and may be used again. Never the device number, which
    changes between boots.
    """

    ino: int
    size: int
    mtime_ns: int
    link: bytes | None = None


class Meta(NamedTuple):
    """Mode bits (07777), owner, group and extended attributes (POSIX ACLs are among them), sorted by name."""

    mode: int
    uid: int
    gid: int
    xattrs: tuple[tuple[str, bytes], ...] = ()


class Exit(NamedTuple):
    """A symbolic link that leads out of the root: the path below the root that led out, and where to, resolved.

    `ino` is that of `directory`, which is `to` itself or the directory that `to` is in. `links` are all on the way, for
    who followed them.
    """

    path: bytes
    to: bytes
    directory: bytes = b""
    ino: int = 0
    links: tuple[bytes, ...] = ()


class Operation(NamedTuple):
    """One change of one resolved path.

    `old` is what a write replaces or a delete takes away; `new`, `digest` and `meta` what a write puts there;
    `meta` also the directory that a mkdir makes or a rmdir takes away. `was` are the metadata of what a write replaces,
    where they are others than `meta`. `via` is the path below the root of what is out of it.
    """

    number: int
    kind: OpKind
    path: bytes
    old: Identity | None = None
    new: Identity | None = None
    digest: str | None = None
    meta: Meta | None = None
    was: Meta | None = None
    via: bytes | None = None

    @property
    def name(self) -> bytes:
        """The path below the root."""
        return self.path if self.via is None else self.via


@dataclass(frozen=True, slots=True)
class Journal:
    """One transaction. `dirs` maps every directory that it touches, and their ancestors, to its inode (0: made by it).

    `ino` and `born` are the journal's own inode and its birth time (0 where there is none): where they differ from the
    file's, the tree was copied and no inode here counts.
    `exits` are the links out of the root that operations went through.
    """

    tid: str
    seq: int
    durability: Synced
    boot: str
    ino: int
    ops: tuple[Operation, ...]
    dirs: tuple[tuple[bytes, int], ...]
    two_phase: bool = False
    tainted_in: str | None = None
    over: bool = False
    version: int = VERSION
    born: int = 0
    exits: tuple[Exit, ...] = ()

    @property
    def paths(self) -> list[str]:
        return sorted({paths.decode(op.name) for op in self.ops})

    def exit_of(self, op: Operation) -> Exit | None:
        return None if op.via is None else exit_of(self.exits, op.path)

    def inside(self) -> Journal:
        """What it says of the root itself."""
        return replace(self, ops=tuple(op for op in self.ops if op.via is None), exits=())


def exit_of(exits: Iterable[Exit], path: bytes) -> Exit | None:
    """The one that leads to a path or, the nearest, above it."""
    found = [one for one in exits if path == one.to or paths.is_below(path, one.to)]
    return max(found, key=lambda one: len(one.to), default=None)


class Head:
    """The last settled transaction, as far as the next one needs it: its number, and what it vouches for.

    Only looked up, never followed; so it is read without the checks of a journal that is to be replayed. `ino` and
    `born` are the file that it was written to: one that was copied, with its root, vouches for nothing.
    Where the fields come without the operations, those are read from the whole text when they are asked for.
    """

    def __init__(self, body: dict[str, Any], text: bytes = b"") -> None:
        self.tid: str = _typed(body["id"], str)
        self.seq: int = _number(body["seq"])
        self.durable: bool = body["durability"] == "full"
        self.ino: int = _number(body["ino"])
        self.born: int = _number(body.get("born", 0))
        self.is_copy = False
        self._text = text
        if not text:
            self._ops = _by_path(body["ops"])

    @cached_property
    def _ops(self) -> dict[str, dict[str, Any]]:
        try:
            return _by_path(orjson.loads(self._text)["ops"])
        except (ValueError, KeyError, TypeError):
            return {}  # it vouches for nothing

    @property
    def paths(self) -> list[str]:
        """The paths that it changed, sorted."""
        return sorted(paths.decode(unescape(path)) for path in self._ops)

    def vouches_for_file(self, path: bytes, identity: Identity) -> bool:
        """It put this very file there, durably."""
        op = self._ops.get(escape(path))
        return self.vouches and op is not None and op.get("new") == _encode_identity(identity)

    @property
    def vouches(self) -> bool:
        """What it has put in place is durable, and so are the root and its private directory."""
        return self.durable and not self.is_copy


def _by_path(ops: Any) -> dict[str, dict[str, Any]]:
    return {_typed(op["path"], str): op for op in _typed(ops, list)}


_newest: tuple[bytes, Head] | None = None  # what was encoded or decoded last: most often the next HEAD to be read
_REMEMBERED = 1 << 16  # bytes of one


def decode_head(raw: bytes) -> Head | None:
    """The HEAD of a root; `None` where a power loss left that of a process transaction unreadable."""
    global _newest
    known = _newest
    if known is not None and known[0] == raw:
        return known[1]
    try:
        body = _body(raw, "HEAD")[2]
        if len(raw) > _REMEMBERED and (head := _head_of_many(body)) is not None:
            return head
        head = Head(orjson.loads(body))
    except (JournalCorruptError, ValueError, KeyError, TypeError):
        return None
    if len(raw) <= _REMEMBERED:
        _newest = raw, head
    return head


def _head_of_many(body: bytes) -> Head | None:
    """Without its operations so far; `None` where they do not come last, as `encode` has them."""
    try:
        return Head(orjson.loads(body.partition(b',"ops":[')[0] + b"}"), body)
    except (ValueError, KeyError):
        return None


def taint(boot: str) -> bytes:
    """What is appended to a journal after a sync failed: the page cache of this boot may show what the disk lacks."""
    return b"sync failed %s\n" % (boot or NO_BOOT_ID).encode()


def encode_for_head(journal: Journal) -> bytes:
    """`encode`, and remember what will be read as HEAD."""
    global _newest
    raw, fields = _encode(journal)
    if len(raw) <= _REMEMBERED:
        _newest = raw, Head(fields)
    return raw


def encode(journal: Journal) -> bytes:
    """Raises `OSError` for what no journal can hold."""
    return _encode(journal)[0]


def _encode(journal: Journal) -> tuple[bytes, dict[str, Any]]:
    fields = {
        "id": journal.tid,
        "seq": journal.seq,
        "durability": journal.durability,
        "boot": journal.boot,
        "ino": journal.ino,
        "born": journal.born,
        "two_phase": journal.two_phase,
        "ops": [_encode_op(op) for op in journal.ops],
        "dirs": [[escape(path), ino] for path, ino in journal.dirs if not paths.is_outside(path)],
    }
    if journal.exits:
        fields["exits"] = [[escape(one.path), *map(_absolute, one[1:3]), one.ino] for one in journal.exits]
    try:
        body = orjson.dumps(fields)
    except TypeError as error:  # of an integer beyond 64 bits
        raise _beyond_64_bits(journal) from error
    version = WITH_EXITS if journal.exits else journal.version
    raw = b"txfiles journal %d %d %s\n%s" % (version, len(body), _checksum(body), body)
    if len(raw) > MAX_SIZE - _FOR_NOTES:  # or the next transaction could not read it
        raise OSError(errno.EFBIG, f"a journal of {len(raw)} bytes is too large")
    return raw, fields


def _beyond_64_bits(journal: Journal) -> OSError:
    """As a time can be, which tmpfs does not limit."""
    for op in journal.ops:
        for file in (op.old, op.new):
            if file is not None and not -(1 << 63) <= file.mtime_ns < 1 << 64:
                message = "its time of modification is beyond 64 bits of nanoseconds"
                return OSError(errno.EOVERFLOW, message, paths.decode(op.path))
    return OSError(errno.EOVERFLOW, "a number is beyond 64 bits")


def decode(raw: bytes, name: str) -> Journal:
    """Parse and validate. Raises `JournalVersionError` and `JournalCorruptError`, both naming `name`."""
    version, start, body = _body(raw, name)
    try:
        journal = _decode_body(orjson.loads(body), version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalCorruptError(f"the journal {name} is not well formed: {error}", path=name) from error
    behind = raw[start + len(body) :]
    if not behind:
        return journal
    notes: list[bytes] = _TAINT.findall(behind)
    return replace(journal, tainted_in=notes[-1].decode() if notes else None, over=OVER in behind)


def _body(raw: bytes, name: str) -> tuple[int, int, bytes]:
    """The version, where the body begins, and the body, as the first line promises it."""
    head = _HEAD.match(raw)
    if head is None:
        raise JournalCorruptError(f"the journal {name} has no valid first line", path=name)
    if int(head[1]) > WITH_EXITS:
        raise JournalVersionError(
            f"the journal {name} was written by a newer txfiles (format {int(head[1])})", path=name
        )
    body = raw[head.end() : head.end() + int(head[2])]
    if int(head[1]) < 1 or len(body) != int(head[2]):
        raise JournalCorruptError(f"the journal {name} is cut short", path=name)
    if _checksum(body) != head[3]:
        raise JournalCorruptError(f"the journal {name} does not match its checksum", path=name)
    return int(head[1]), head.end(), body


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).hexdigest().encode()


def escape(path: bytes) -> str:
    if b"%" not in path:
        try:
            return path.decode()
        except UnicodeDecodeError:
            pass
    text = path.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in text)


def unescape(text: Any) -> bytes:
    raw: bytes = _typed(text, str).encode()
    escaped = b"%" in raw
    if escaped:
        raw = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw)
    if b"\0" in raw or (escaped and escape(raw) != text):
        raise ValueError(f"{text!r} is not a name as a journal writes it")
    return raw


def _encode_op(op: Operation) -> dict[str, Any]:
    number, kind, path, old, new, digest, meta, was, via = op
    out: dict[str, Any] = {"k": number, "kind": kind, "path": escape(path if via is None else via)}
    if via is not None:
        out["to"] = _absolute(path)
    if old is not None:
        out["old"] = _encode_identity(old)
    if new is not None:
        out["new"] = _encode_identity(new)
    if digest is not None:
        out["digest"] = digest
    if meta is not None:
        out["meta"] = _encode_meta(meta)
    if was is not None:
        out["was"] = _encode_meta(was)
    return out


def _encode_meta(meta: Meta) -> list[Any]:
    mode, uid, gid, xattrs = meta
    return [mode, uid, gid, [[escape(paths.encode(k)), v.hex()] for k, v in xattrs] if xattrs else []]


def _encode_identity(identity: Identity) -> list[Any]:
    ino, size, mtime_ns, link = identity
    return [ino, size, mtime_ns] if link is None else [ino, size, mtime_ns, escape(link)]


def _absolute(path: bytes) -> str:
    return escape(path[1:] or b"/")


def _decode_absolute(raw: Any) -> bytes:
    path = unescape(raw)
    if path != b"/" and not (path.startswith(b"/") and paths.is_normal(path[1:])):
        raise ValueError(f"{path[-80:]!r} is no absolute path")
    return paths.OUTSIDE + path.rstrip(b"/")


def _decode_exit(raw: Any) -> Exit:
    path, to, directory, ino = _typed(raw, list)
    found = Exit(_normal(path), _decode_absolute(to), _decode_absolute(directory), _number(ino))
    if found.directory not in (found.to, paths.split(found.to)[0]):
        raise ValueError(f"{found.directory[-80:]!r} is not where {found.path[-80:]!r} leads")
    return found


def _decode_body(body: Any, version: int) -> Journal:
    journal = Journal(
        version=version,
        tid=_matching(body["id"], _TID),
        seq=_number(body["seq"]),
        durability="full" if body["durability"] == "full" else _literal(body["durability"], "process"),
        boot=_matching(body["boot"], _BOOT),
        ino=_number(body["ino"]),
        born=_number(body.get("born", 0)),
        two_phase=_typed(body["two_phase"], bool),
        ops=tuple(_decode_op(op, version) for op in _taken_from(_typed(body["ops"], list))),
        dirs=tuple((_directory(path), _number(ino)) for path, ino in _typed(body["dirs"], list)),
        exits=tuple(map(_decode_exit, _typed(body["exits"], list))) if version >= WITH_EXITS else (),
    )
    if not journal.ops:
        raise ValueError("it has no operations")
    if len({op.number for op in journal.ops}) != len(journal.ops):
        raise ValueError("two operations share one number")
    if len({(op.path, op.kind in ("write", "mkdir")) for op in journal.ops}) != len(journal.ops):
        raise ValueError("one path is made or removed twice")
    named = dict(journal.dirs)
    if len(named) != len(journal.dirs):
        raise ValueError("a directory is listed twice")
    for op in journal.ops:
        if op.via is None:
            _require_listed(op.path, named)
        elif (one := journal.exit_of(op)) is None or op.via != one.path + op.path[len(one.to) :]:
            raise ValueError(f"no link leads from {op.via[-80:]!r} to {op.path[-80:]!r}")
    for path in filter(None, named):
        _require_listed(path, named)  # so each has all that are above it
    return journal


def _taken_from(items: list[Any]) -> Iterator[Any]:
    """Each in turn, and the list has it no longer: of many, the garbage collector need not go through both forms."""
    items.reverse()
    while items:
        yield items.pop()


def _require_listed(path: bytes, named: Collection[bytes]) -> None:
    if path.rpartition(b"/")[0] not in named:
        raise ValueError(f"the directory above {path[-80:]!r} is not listed")


def _decode_op(raw: Any, version: int) -> Operation:
    number, kind, path, via = _number(raw["k"]), raw["kind"], _normal(raw["path"]), None
    if number > layout.MAX_NUMBER:
        raise ValueError(f"operation number {number} is out of range")
    if kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    if version >= WITH_EXITS and "to" in raw:
        path, via = _decode_absolute(raw["to"]), path
    old = _decode_identity(raw["old"]) if "old" in raw else None
    new = _decode_identity(raw["new"]) if "new" in raw else None
    digest = _matching(raw["digest"], _DIGEST) if "digest" in raw else None
    meta = _decode_meta(raw["meta"]) if "meta" in raw else None
    was = _decode_meta(raw["was"]) if "was" in raw else None
    missing = old is None if kind == "delete" else meta is None
    if missing or (kind == "write" and (new is None or digest is None)):
        raise ValueError(f"a field of the {kind} of {path!r} is missing")
    return Operation(number, kind, path, old, new, digest, meta, was, via)


def _normal(raw: Any) -> bytes:
    path = unescape(raw)
    if not paths.is_normal(path):
        raise ValueError(f"{path!r} is not a path below the root")
    return path


def _decode_identity(raw: Any) -> Identity:
    size = len(_typed(raw, list))
    if not 3 <= size <= 4:
        raise ValueError("an identity has three fields, or four")
    return Identity(_number(raw[0]), _number(raw[1]), _typed(raw[2], int), unescape(raw[3]) if size == 4 else None)


def _decode_meta(raw: Any) -> Meta:
    mode, uid, gid, xattrs = _typed(raw, list)
    if not 0 <= _number(mode) <= 0o7777:
        raise ValueError(f"mode {mode} is out of range")
    if _number(uid) >= _NO_ID or _number(gid) >= _NO_ID:
        raise ValueError(f"owner {uid}:{gid} is out of range")
    if not _typed(xattrs, list):
        return Meta(mode, uid, gid)
    return Meta(mode, uid, gid, tuple((paths.decode(unescape(k)), bytes.fromhex(_typed(v, str))) for k, v in xattrs))


def _directory(raw: Any) -> bytes:
    path = unescape(raw)
    if path != paths.ROOT and not paths.is_normal(path):
        raise ValueError(f"{path!r} is not a directory below the root")
    return path


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a number, 0 or more, expected, not {str(value)[:80]!r}")
    return value


def _matching(value: Any, pattern: re.Pattern[str]) -> str:
    text: str = _typed(value, str)
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:80]!r} does not match {pattern.pattern}")
    return text


def _literal(value: Any, wanted: Synced) -> Synced:
    if value != wanted:
        raise ValueError(f"durability {value!r} is unknown")
    return wanted
