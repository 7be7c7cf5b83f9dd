"""A transaction as the commit sees it: what it read, what it writes, and whether a state still is what it read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from txfiles._format import paths
from txfiles.errors import ConflictError
from txfiles.objects import tree
from txfiles.objects.state import INLINE, Entry, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from txfiles.objects.content import Content
    from txfiles.objects.read import Found, Reading

    Places = Mapping[Content, tuple[str, int]]


class Put(NamedTuple):
    """A file that is written: with a new content, or with that of `origin`, a path and its version."""

    version: str
    mode: int | None
    content: Content | None = None
    origin: tuple[bytes, str] | None = None


class MakeDirectory(NamedTuple):
    version: str


class Move(NamedTuple):
    """A file that gets a new place, the same content there, if its entry still is `entry`; without one, it is only
    written to the tree again. No change to anybody who reads."""

    entry: Entry | None
    content: Content | None


Write = Put | MakeDirectory | Move | None

Seen = str | None  # the version of a file, "dir", or nothing


def seen(found: Found | None) -> Seen:
    if found is None:
        return None
    return "dir" if found.entry is None else found.entry.version


@dataclass
class Change:
    """`alter` is what an administrative transaction does to the state besides."""

    tid: str
    reads: dict[bytes, Seen] = field(default_factory=dict)
    listings: dict[bytes, dict[bytes, str]] = field(default_factory=dict)
    writes: dict[bytes, Write] = field(default_factory=dict)
    alter: Callable[[State], State] | None = None
    checks: list[Callable[[Reading], None]] = field(default_factory=list)
    flush: bool = False  # the delta is to go into the tree

    @property
    def is_empty(self) -> bool:
        return not self.writes and self.alter is None

    def contents(self) -> Iterable[Content]:
        """Those that need a place in a pack, each once."""
        puts = [put for put in self.writes.values() if isinstance(put, (Put, Move))]
        return dict.fromkeys(put.content for put in puts if put.content is not None and put.content.size > INLINE)

    def validate(self, reading: Reading) -> None:
        """Raise `ConflictError` if anything that was read, listed or looked up is not so in this state."""
        reading.prefetch(sorted({*self.reads, *self.writes}))
        for path, expected in self.reads.items():
            if seen(reading.find(path)) != expected:
                raise _changed(path)
        for path, names in self.listings.items():
            if reading.listing(path) != names:
                raise _changed(path)
        for check in self.checks:
            check(reading)
        for path, put in self.writes.items():
            if put is None or isinstance(put, Move):
                continue
            if isinstance(put, MakeDirectory) and path not in self.reads:
                found = reading.find(path)
                if found is not None and found.kind == "file":
                    raise _changed(path)
            above = reading.file_above(path)
            if above is not None and above not in self.writes:
                raise _changed(above)
            if isinstance(put, Put):
                self._require_nothing_below(reading, path)

    def _require_nothing_below(self, reading: Reading, path: bytes) -> None:
        prefix = path + b"/"
        for key, _ in reading.scan(prefix):
            if not key.startswith(prefix):
                return
            if self.writes.get(key, key) is not None:
                raise _changed(path)

    def apply(self, reading: Reading, places: Places) -> State:
        """The state with the writes in its delta. REQUIRES: it was validated against this reading."""
        state = reading.state
        delta, files = dict(state.delta), state.files
        for path, put in self.writes.items():
            old = reading.entry(path)
            if isinstance(put, Move):
                delta[path] = old  # a `None`, too, makes a leaf anew
                if old is not None and put.content is not None and put.entry == old:
                    delta[path] = _placed(old, put.content, places)
                continue
            entry = None if put is None else _entry(put, old, reading, places)
            files += (entry is not None and entry.is_file) - (old is not None and old.is_file)
            if entry is not None or tree.lookup(reading, state.root, path) is not None:
                delta[path] = entry
            else:
                delta.pop(path, None)
        state = replace(state, delta=delta, files=files)
        return state if self.alter is None else self.alter(state)


def _entry(put: Put | MakeDirectory, old: Entry | None, reading: Reading, places: Places) -> Entry:
    if isinstance(put, MakeDirectory):
        return Entry(put.version)
    if put.content is None:
        assert put.origin is not None
        source = reading.entry(put.origin[0])  # as it lies now: it may have moved to another pack since it was read
        assert source is not None
        assert source.version == put.origin[1]
        return source._replace(version=put.version, mode=source.mode if put.mode is None else put.mode)
    mode = old.mode if put.mode is None and old is not None else put.mode
    return _placed(Entry(put.version, put.content.size, put.content.digest, mode), put.content, places)


def _placed(entry: Entry, content: Content, places: Places) -> Entry:
    if content.size <= INLINE:
        return entry._replace(data=content.read(), pack="", offset=0)
    pack, offset = places.get(content) or content.place or ("", 0)
    assert pack
    return entry._replace(data=None, pack=pack, offset=offset)


def _changed(path: bytes) -> ConflictError:
    shown = paths.decode(path) or "."
    return ConflictError(f"{shown!r} was changed by another transaction since it was read", path=shown)
