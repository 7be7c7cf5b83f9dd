"""Reading one state: what is at a path, what is in a directory, and contents, all checked against their digests.

Nodes and small contents are immutable and are remembered by (pack, offset) for the life of the process.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from bisect import bisect_left
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from txfiles._format import paths
from txfiles.errors import RecoveryError, SnapshotExpiredError
from txfiles.objects import tree
from txfiles.objects.requests import Missing
from txfiles.objects.state import HEAD, Entry, Ref, State, checksum
from txfiles.objects.wait import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from txfiles.objects.requests import Requests
    from txfiles.objects.tree import Node
    from txfiles.objects.wait import Clock

T = TypeVar("T")
R = TypeVar("R")

_REMEMBERED = 64 << 20  # bytes as stored
SMALL = 64 << 10  # bytes of a content that is remembered
_CHUNK = 8 << 20
WIDTH = 16  # requests at once


class Cache:
    """The nodes and contents used last, within a number of bytes."""

    def __init__(self, size: int = _REMEMBERED) -> None:
        self._left = size
        self._held: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, pack: str, offset: int) -> Any:
        with self._mutex:
            found = self._held.get((pack, offset))
            if found is None:
                return None
            self._held.move_to_end((pack, offset))
            return found[0]

    def put(self, pack: str, offset: int, value: object, size: int) -> None:
        with self._mutex:
            if (pack, offset) not in self._held:
                self._held[pack, offset] = value, size
                self._left -= size
            while self._left < 0:
                self._left += self._held.popitem(last=False)[1][1]


class Source:
    """A store and what was read of it: requests that are repeated, many at once where there are many."""

    def __init__(self, requests: Requests, clock: Clock, shown: str) -> None:
        self.requests = requests
        self.clock = clock
        self.shown = shown
        self.cache: Cache = Cache()
        self.width = WIDTH

    def remember(self, pack: str, offset: int, node: Node, length: int) -> None:
        """A node of `length` bytes as stored."""
        self.cache.put(pack, offset, node, 4 * length)

    def parts(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Parts of packs, each as (pack, offset, length). Raises `OSError`, `Missing`."""
        by_pack: dict[str, list[tuple[int, int]]] = {}
        for pack, offset, length in wanted:
            by_pack.setdefault(pack, []).append((offset, length))

        def fetch(pack: str) -> dict[tuple[str, int, int], bytes]:
            spans = sorted(set(by_pack[pack]))
            key = f"pack/{pack}"
            found = reading(self.clock, self.shown, lambda: self.requests.ranges(key, spans))
            return {(pack, *span): data for span, data in zip(spans, found, strict=True)}

        found: dict[tuple[str, int, int], bytes] = {}
        for answer in self.at_once(fetch, list(by_pack)):
            found.update(answer)
        return [found[one] for one in wanted]

    def at_once(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) < 2 or self.width < 2:
            return [call(item) for item in items]
        with ThreadPoolExecutor(min(self.width, len(items))) as pool:
            return list(pool.map(call, items))


class Found(NamedTuple):
    """What is at a path: a file with its entry, or a directory."""

    kind: str
    entry: Entry | None = None


DIRECTORY = Found("dir")


class Reading:
    """One state of a root. `newest` asks for the state that is current now."""

    def __init__(self, source: Source, state: State, newest: Callable[[], State]) -> None:
        self.source = source
        self.state = state
        self._newest = newest

    # -- nodes --------------------------------------------------------------------------------------------------

    def load(self, ref: Ref) -> Node:
        return self.load_many([ref])[0]

    def load_many(self, refs: Sequence[Ref]) -> list[Node]:
        cache = self.source.cache
        found: dict[Ref, Node] = {ref: node for ref in refs if (node := cache.get(ref.pack, ref.offset)) is not None}
        missing = [ref for ref in dict.fromkeys(refs) if ref not in found]
        if missing:
            parts = self._parts([(ref.pack, ref.offset, ref.length) for ref in missing])
            for ref, raw in zip(missing, parts, strict=True):
                found[ref] = node = tree.decode(raw, ref, f"pack/{ref.pack}")
                self.source.remember(ref.pack, ref.offset, node, ref.length)
        return [found[ref] for ref in refs]

    def _parts(self, wanted: list[tuple[str, int, int]]) -> list[bytes]:
        try:
            return self.source.parts(wanted)
        except Missing as error:
            raise self._gone(error) from error.cause

    def _gone(self, error: Missing) -> Exception:
        """A pack that is not there: gc may have deleted it, unless the current state or a tag still needs it."""
        now = self._newest()
        kept = any((tag.seq, tag.id) == (self.state.seq, self.state.id) for tag in now.tags.values())
        if kept or self.state.seq >= now.expired:
            return RecoveryError(
                f"{self.source.shown}: an object that {HEAD} refers to is missing; something else deleted it, say a"
                f" lifecycle rule: {error}",
                path=self.source.shown,
            )
        return SnapshotExpiredError(
            f"the state {self.state.seq} of {self.source.shown} has expired; take a new snapshot",
            path=self.source.shown,
        )

    # -- names --------------------------------------------------------------------------------------------------

    def entry(self, path: bytes) -> Entry | None:
        """What was put at exactly this path."""
        if path in self.state.delta:
            return self.state.delta[path]
        return tree.lookup(self, self.state.root, path)

    def find(self, path: bytes) -> Found | None:
        """What is there; directories are also what has something below."""
        if not path:
            return DIRECTORY
        entry = self.entry(path)
        if entry is not None and entry.is_file:
            return Found("file", entry)
        return DIRECTORY if entry is not None or self.first_below(path) is not None else None

    def scan(self, start: bytes) -> Iterator[tuple[bytes, Entry]]:
        """The entries from `start` on, in order."""
        keys, delta = self.state.delta_keys, self.state.delta
        stored = tree.scan(self, self.state.root, start)
        at, item = bisect_left(keys, start), next(stored, None)
        while True:
            if at < len(keys) and (item is None or keys[at] <= item[0]):
                key = keys[at]
                at += 1
                if item is not None and item[0] == key:
                    item = next(stored, None)
                if (entry := delta[key]) is not None:
                    yield key, entry
            elif item is None:
                return
            else:
                yield item
                item = next(stored, None)

    def first_below(self, path: bytes) -> bytes | None:
        prefix = path + b"/" if path else b""
        for key, _ in self.scan(prefix):
            return key if key.startswith(prefix) else None
        return None

    def listing(self, path: bytes) -> dict[bytes, str]:
        """The names in a directory and their kinds, sorted; whole subtrees are passed over."""
        prefix = path + b"/" if path else b""
        found = tree.names(self, self.state.root, prefix)
        keys, deleted = self.state.delta_keys, set()
        for at in range(bisect_left(keys, prefix), len(keys)):
            if not keys[at].startswith(prefix):
                break
            name, entry = tree.name_in(keys[at], prefix, self.state.delta[keys[at]])
            if entry is None:
                deleted.add(name)
            else:
                found[name] = entry
        for name in deleted:  # or a part of what is there
            now = self.find(prefix + name)
            if now is None:
                found.pop(name, None)
            else:
                found[name] = now.kind
        return dict(sorted(found.items()))

    def file_above(self, path: bytes) -> bytes | None:
        """An ancestor that is a file. Looks where the path itself is as far as that can tell."""
        above = paths.ancestors(path)[1:]
        in_delta = self.state.delta
        for directory in above:
            entry = in_delta.get(directory)
            if entry is not None and entry.is_file:
                return directory
        leaf = tree.leaf_of(self, self.state.root, path)
        at = bisect_left(leaf.keys, path)
        beside = leaf.keys[max(0, at - 1) : at + 1]
        for directory in reversed(above):
            if any(key.startswith(directory + b"/") for key in beside):
                return None  # the tree has something below it, and so below all that are above it
            if directory not in in_delta:
                entry = tree.lookup(self, self.state.root, directory)
                if entry is not None and entry.is_file:
                    return directory
        return None

    def prefetch(self, wanted: Sequence[bytes]) -> None:
        tree.prefetch(self, self.state.root, [path for path in wanted if path not in self.state.delta])

    # -- contents -----------------------------------------------------------------------------------------------

    def content(self, path: bytes, entry: Entry) -> bytes:
        return self.contents([(path, entry)])[0]

    def contents(self, wanted: Sequence[tuple[bytes, Entry]]) -> list[bytes]:
        """Whole contents, fetched at once."""
        out: list[bytes | None] = []
        for _, entry in wanted:
            out.append(entry.data if entry.data is not None else self.source.cache.get(entry.pack, entry.offset))
        missing = [at for at, data in enumerate(out) if data is None]
        if missing:
            entries = [wanted[at][1] for at in missing]
            parts = self._parts([(entry.pack, entry.offset, entry.size) for entry in entries])
            for at, entry, data in zip(missing, entries, parts, strict=True):
                if len(data) != entry.size or checksum(data) != entry.digest:
                    raise self._damaged(wanted[at][0], entry)
                out[at] = data
                if entry.size <= SMALL:
                    self.source.cache.put(entry.pack, entry.offset, data, entry.size)
        return [data for data in out if data is not None]

    def chunks(self, path: bytes, entry: Entry) -> Iterator[bytes]:
        """A content in pieces; the last one comes only when all of it was what was written."""
        if entry.size <= _CHUNK:
            yield self.content(path, entry)
            return
        digest, last = hashlib.blake2b(digest_size=32), b""
        for offset in range(0, entry.size, _CHUNK):
            if last:
                yield last
            length = min(_CHUNK, entry.size - offset)
            (last,) = self._parts([(entry.pack, entry.offset + offset, length)])
            digest.update(last)
            if len(last) != length:
                raise self._damaged(path, entry)
        if digest.hexdigest() != entry.digest:
            raise self._damaged(path, entry)
        yield last

    def _damaged(self, path: bytes, entry: Entry) -> RecoveryError:
        shown = paths.decode(path)
        return RecoveryError(
            f"the content of {shown!r} is not what was written: pack/{entry.pack} was changed by something else",
            path=shown,
        )


def no_such_file(path: bytes) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such file", paths.decode(path))
