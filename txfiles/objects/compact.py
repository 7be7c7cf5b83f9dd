"""Compacting: what lives in packs that are mostly dead is written anew, so that gc can take them as a whole.

An ordinary transaction, in parts: each moves some files, as far as they still are what they were, and touches leaves of
the tree so that their nodes move, too. No file changes, no version, no snapshot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txfiles.objects import state as _state
from txfiles.objects import tree
from txfiles.objects.change import Change, Move
from txfiles.objects.collect import listed, retained
from txfiles.objects.content import Spool, Writer
from txfiles.objects.read import SMALL
from txfiles.objects.tree import Inner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from txfiles.objects.content import Content
    from txfiles.objects.read import Reading
    from txfiles.objects.root import Root
    from txfiles.objects.state import Entry

FILES, BYTES = 10_000, 256 << 20  # of a part, at most
_AT_ONCE = 500  # files


@dataclass
class Compacted:
    """What a run did: how many packs it has emptied, their size, and how many files and bytes of those moved."""

    packs: int = 0
    bytes: int = 0
    moved: int = 0
    moved_bytes: int = 0


def compact(
    root: Root, dead: float, timeout: float | None = 10.0, told: Callable[[int], None] = lambda files: None
) -> Compacted:
    """Empty the packs of which a part of at least `dead` is no longer needed, but for those that a tag retains.

    Raises `OSError`, `RecoveryError`, `SnapshotExpiredError`, and what a commit raises: the parts before are done then.
    """
    state = root.newest()
    reading = root.reading(state)
    sizes = {one.key.partition("/")[2]: one.size for _, one in listed(root, "pack")}
    live: Counter[str] = Counter()
    for pack, size, _, _ in _pieces(reading, None):
        live[pack] += size
    kept = retained(root, state)
    chosen = {pack for pack in live if live[pack] <= sizes.get(pack, 0) * (1 - dead) and f"pack/{pack}" not in kept}
    done = Compacted(len(chosen), sum(sizes[pack] for pack in chosen))
    part = _Part(reading)
    for pack, size, path, entry in _pieces(reading, chosen):
        if pack not in chosen:
            continue
        if part.is_full(size):
            _commit(root, part, timeout, done)
            told(done.moved)
            part = _Part(reading)
        part.take(path, entry)
    _commit(root, part, timeout, done)
    return done


def _commit(root: Root, part: _Part, timeout: float | None, done: Compacted) -> None:
    change = part.change()
    if change.writes:
        root.commit(change, timeout)
    done.moved += len(part.files)
    done.moved_bytes += part.size


def _pieces(reading: Reading, packs: set[str] | None) -> Iterator[tuple[str, int, bytes, Entry | None]]:
    """What a state refers to, with `packs` all of it that may lie in those: pack, size, and a path that leads there.

    With the entry where it is the content of a file; without, it is a node of the tree on the way to the path.
    """
    for path, entry in reading.state.delta.items():
        if entry is not None and entry.pack:
            yield entry.pack, entry.size, path, entry
    newest = None if packs is None else max(map(_state.seq_of, packs), default=-1)
    for ref, node, low in tree.walk(reading, reading.state.root, newest):
        if isinstance(node, Inner):
            yield ref.pack, ref.length, low, None
            continue
        yield ref.pack, ref.length, node.keys[0], None
        for path, entry in zip(*node, strict=True):
            if entry.pack and path not in reading.state.delta:
                yield entry.pack, entry.size, path, entry


class _Part:
    """A transaction that is being filled."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._touched: set[bytes] = set()
        self.files: list[tuple[bytes, Entry]] = []
        self.size: int = 0

    def is_full(self, size: int) -> bool:
        return len(self.files) + len(self._touched) >= FILES or (self.size > 0 and self.size + size > BYTES)

    def take(self, path: bytes, entry: Entry | None) -> None:
        if entry is None:
            self._touched.add(path)
        else:
            self.files.append((path, entry))
            self.size += entry.size

    def change(self) -> Change:
        change = Change(_state.new_id(), flush=True)
        change.writes.update({path: Move(None, None) for path in self._touched})
        spool = Spool()
        contents: dict[tuple[str, int], Content] = {}  # copies share one
        for start in range(0, len(self.files), _AT_ONCE):
            batch = self.files[start : start + _AT_ONCE]
            self._reading.contents([one for one in batch if one[1].size <= SMALL])  # remembered, and so read at once
            for path, entry in batch:
                place = entry.pack, entry.offset
                if place not in contents:
                    writer = Writer(spool)
                    for chunk in self._reading.chunks(path, entry):
                        writer.write(chunk)
                    contents[place] = writer.finish()
                change.writes[path] = Move(entry, contents[place])
        return change
