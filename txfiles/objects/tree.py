"""The tree of all entries: a copy-on-write B+tree whose nodes lie in packs. A change makes new nodes; none is altered.

A leaf has entries sorted by path, an inner node the lowest path and the reference of each child. What is read comes
from `Nodes.load`, what is made goes into a `Pack`.
"""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from txfiles._format.journal import escape, unescape
from txfiles.errors import JournalCorruptError
from txfiles.objects import state as _state
from txfiles.objects.state import Entry, Ref, checksum, decode_entry, decode_ref, encode_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEAF = 128  # entries at most: about 8 kB compressed
INNER = 320  # children at most: three levels hold ten million files
RAW = 128 << 10  # bytes of names in a node at most
_AHEAD = 16  # nodes
_BATCH = 512  # nodes that are asked for at once
_SPARSE = 4  # a node with less than this part of what it could hold is joined with its neighbour


class Leaf(NamedTuple):
    keys: list[bytes]
    entries: list[Entry]


class Inner(NamedTuple):
    keys: list[bytes]  # the first is empty: there is no path below the lowest child
    refs: list[Ref]

    def child_at(self, path: bytes) -> int:
        return bisect_right(self.keys, path) - 1


Node = Leaf | Inner


class Nodes(Protocol):
    def load(self, ref: Ref) -> Node: ...

    def load_many(self, refs: Sequence[Ref]) -> list[Node]:
        """The same for several, at once."""
        ...


class Pack:
    """The bytes of a pack that is being made, and the nodes in them, each with its offset and size."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size: int = 0
        self.pieces: list[bytes] = []
        self.nodes: list[tuple[int, Node, int]] = []

    def node(self, ref: Ref) -> Node | None:
        """A node that is in it, which nobody can load yet."""
        return next((node for offset, node, _ in self.nodes if (self.name, offset) == (ref.pack, ref.offset)), None)

    def add(self, data: bytes) -> int:
        """Append; returns the offset."""
        offset = self.size
        self.pieces.append(data)
        self.size += len(data)
        return offset


def encode(node: Node) -> bytes:
    import orjson

    if isinstance(node, Leaf):
        rows: list[Any] = [encode_entry(path, entry) for path, entry in zip(*node, strict=True)]
        body = {"leaf": rows}
    else:
        body = {"inner": [[escape(key), *ref] for key, ref in zip(*node, strict=True)]}
    return zlib.compress(orjson.dumps(body), 1)


def decode(raw: bytes, ref: Ref, shown: str) -> Node:
    """A node as its reference promises it, or `JournalCorruptError`."""
    import orjson

    if len(raw) != ref.length or checksum(raw) != ref.digest:
        raise JournalCorruptError(f"{shown} does not have the bytes that were written at {ref.offset}", path=shown)
    try:
        body = orjson.loads(zlib.decompress(raw))
        if "leaf" in body:
            keys: list[bytes] = []
            entries = []
            for row in body["leaf"]:
                path, entry = decode_entry(row)
                if entry is None or (keys and path <= keys[-1]):
                    raise ValueError(f"{path!r} is out of order")
                keys.append(path)
                entries.append(entry)
            return Leaf(keys, entries)
        names = [unescape(row[0]) for row in body["inner"]]
        refs = [decode_ref(row[1:]) for row in body["inner"]]
        if not names or names[0] or sorted(set(names)) != names:
            raise ValueError("the children are out of order")
        return Inner(names, refs)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise JournalCorruptError(f"{shown} has a damaged node at {ref.offset}: {error}", path=shown) from error


# -- reading ----------------------------------------------------------------------------------------------------


def lookup(nodes: Nodes, root: Ref | None, path: bytes) -> Entry | None:
    leaf = leaf_of(nodes, root, path)
    at = bisect_left(leaf.keys, path)
    return leaf.entries[at] if at < len(leaf.keys) and leaf.keys[at] == path else None


def leaf_of(nodes: Nodes, root: Ref | None, path: bytes) -> Leaf:
    """The leaf where a path is, or would be."""
    if root is None:
        return Leaf([], [])
    node = nodes.load(root)
    while isinstance(node, Inner):
        node = nodes.load(node.refs[node.child_at(path)])
    return node


def scan(nodes: Nodes, root: Ref | None, start: bytes) -> Iterator[tuple[bytes, Entry]]:
    """The entries from `start` on, in order. Who reads on is read ahead for."""
    todo: list[Ref | Node] = [] if root is None else [root]
    ahead = 1
    while todo:
        node = todo.pop()
        if isinstance(node, Ref):
            batch = [node]
            while todo and len(batch) < ahead and isinstance(todo[-1], Ref):
                batch.append(todo.pop())  # type: ignore[arg-type]
            todo += reversed(nodes.load_many(batch))
        elif isinstance(node, Inner):
            todo += reversed(node.refs[max(0, node.child_at(start)) :])
        else:
            at = bisect_left(node.keys, start)
            yield from zip(node.keys[at:], node.entries[at:], strict=True)
            ahead = min(_AHEAD, 2 * ahead)


def names(nodes: Nodes, root: Ref | None, prefix: bytes) -> dict[bytes, str]:
    """The names directly below a prefix, which is empty or ends with a slash, and their kinds.

    Where all that a node has is in one directory, the node is not read.
    """
    found: dict[bytes, str] = {}
    end = prefix[:-1] + b"0" if prefix else None  # what comes after the slash
    level: list[tuple[Ref, bytes, bytes | None]] = [] if root is None else [(root, b"", None)]
    while level:
        below: list[tuple[Ref, bytes, bytes | None]] = []
        for start in range(0, len(level), _BATCH):
            batch = level[start : start + _BATCH]
            for (_, low, high), node in zip(batch, nodes.load_many([ref for ref, _, _ in batch]), strict=True):
                if isinstance(node, Inner):
                    lows = [low, *node.keys[1:]]
                    below += zip(node.refs, lows, [*lows[1:], high], strict=True)
                else:
                    for at in range(bisect_left(node.keys, prefix), len(node.keys)):
                        if not node.keys[at].startswith(prefix):
                            break
                        name, kind = name_in(node.keys[at], prefix, node.entries[at])
                        found[name] = kind or ""
        level = []
        for ref, low, high in below:
            if (high is not None and high <= prefix) or (end is not None and low >= end):
                continue
            name, slash, _ = low[len(prefix) :].partition(b"/")
            if slash and low.startswith(prefix) and high is not None and high.startswith(prefix + name + slash):
                found[name] = "dir"
            else:
                level.append((ref, low, high))
    return found


def name_in(path: bytes, prefix: bytes, entry: Entry | None) -> tuple[bytes, str | None]:
    """The name below a prefix that a path begins with, and its kind; `None` for an entry that is none."""
    name, slash, _ = path[len(prefix) :].partition(b"/")
    if entry is None:
        return name, None
    return name, "dir" if slash or not entry.is_file else "file"


def walk(nodes: Nodes, root: Ref | None, newest: int | None = None) -> Iterator[tuple[Ref, Node, bytes]]:
    """The nodes, each with a path that leads to it; where `newest` is given, those with such a pack in or beneath."""
    todo = [] if root is None else [(root, b"")]
    while todo:
        batch = [todo.pop() for _ in range(min(_AHEAD, len(todo)))]
        batch = [(ref, low) for ref, low in batch if newest is None or ref.oldest <= newest]
        for (ref, low), node in zip(batch, nodes.load_many([ref for ref, _ in batch]), strict=True):
            yield ref, node, low
            if isinstance(node, Inner):
                todo += zip(node.refs, [low, *node.keys[1:]], strict=True)


def prefetch(nodes: Nodes, root: Ref | None, wanted: Sequence[bytes]) -> None:
    """Load the leaves of many paths level by level, those of a level at once."""
    level = {root: list(wanted)} if root is not None and wanted else {}
    while level:
        below: dict[Ref, list[bytes]] = {}
        for node, inside in zip(nodes.load_many(list(level)), level.values(), strict=True):
            if isinstance(node, Inner):
                for path in inside:
                    below.setdefault(node.refs[node.child_at(path)], []).append(path)
        level = below


# -- changing ---------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A child of the level above: written already (`ref`), or a node that is still to be."""

    key: bytes
    ref: Ref | None
    node: Node | None


def update(nodes: Nodes, root: Ref | None, changes: dict[bytes, Entry | None], pack: Pack) -> Ref | None:
    """A tree with the changes, its new nodes in `pack`."""
    keys = sorted(changes)
    if not keys:
        return root
    prefetch(nodes, root, keys)
    start = Leaf([], []) if root is None else nodes.load(root)
    pieces = _update(nodes, start, keys, changes, pack)
    while len(pieces) > 1:
        refs = _write_all(pieces, pack)
        pieces = _cut_inner([piece.key for piece in pieces], refs)
    if not pieces:
        return None
    while isinstance(top := pieces[0].node, Inner) and len(top.refs) == 1:  # the tree has become lower
        below = pack.node(top.refs[0]) or nodes.load(top.refs[0])
        if isinstance(below, Leaf):
            return top.refs[0]
        pieces = [_Piece(b"", top.refs[0], below)]
    return pieces[0].ref or _write(pieces[0], pack)


def _update(
    nodes: Nodes, node: Node, keys: list[bytes], changes: dict[bytes, Entry | None], pack: Pack
) -> list[_Piece]:
    if isinstance(node, Leaf):
        merged = dict(zip(*node, strict=True))
        for key in keys:
            entry = changes[key]
            if entry is None:
                merged.pop(key, None)
            else:
                merged[key] = entry
        return _cut_leaf(sorted(merged.items()))
    pieces: list[_Piece] = []
    at = 0
    for position, (low, ref) in enumerate(zip(*node, strict=True)):
        high = node.keys[position + 1] if position + 1 < len(node.keys) else None
        end = len(keys) if high is None else bisect_left(keys, high, at)
        if end == at:
            pieces.append(_Piece(low, ref, None))
        else:
            below = _update(nodes, nodes.load(ref), keys[at:end], changes, pack)
            if below:
                below[0] = below[0]._replace(key=low)
            pieces += below
        at = end
    pieces = _join_sparse(nodes, pieces)
    if not pieces:
        return []
    pieces[0] = pieces[0]._replace(key=b"")
    return _cut_inner([piece.key for piece in pieces], _write_all(pieces, pack))


def _join_sparse(nodes: Nodes, pieces: list[_Piece]) -> list[_Piece]:
    """Join new nodes that have become small with the neighbour."""
    out: list[_Piece] = []
    for piece in pieces:
        if out and (_is_sparse(piece) or _is_sparse(out[-1])):
            left = out.pop()
            one, other = _node(nodes, left), _node(nodes, piece)
            if isinstance(one, Leaf) and isinstance(other, Leaf):
                joined = _cut_leaf([*zip(*one, strict=True), *zip(*other, strict=True)])
            else:
                assert isinstance(one, Inner)
                assert isinstance(other, Inner)
                joined = _cut_inner([*one.keys, piece.key, *other.keys[1:]], [*one.refs, *other.refs])
            joined[0] = joined[0]._replace(key=left.key)
            out += joined
        else:
            out.append(piece)
    return out


def _is_sparse(piece: _Piece) -> bool:
    if piece.node is None:
        return False
    most = LEAF if isinstance(piece.node, Leaf) else INNER
    return len(piece.node.keys) * _SPARSE < most


def _node(nodes: Nodes, piece: _Piece) -> Node:
    if piece.node is not None:
        return piece.node
    assert piece.ref is not None
    return nodes.load(piece.ref)


def _cut_leaf(items: list[tuple[bytes, Entry]]) -> list[_Piece]:
    return [
        _Piece(items[start][0], None, Leaf([k for k, _ in items[start:end]], [e for _, e in items[start:end]]))
        for start, end in _cuts([len(key) for key, _ in items], LEAF)
    ]


def _cut_inner(keys: list[bytes], refs: list[Ref]) -> list[_Piece]:
    return [
        _Piece(keys[start], None, Inner([b"", *keys[start + 1 : end]], refs[start:end]))
        for start, end in _cuts([len(key) for key in keys], INNER)
    ]


def _cuts(lengths: list[int], most: int) -> list[tuple[int, int]]:
    """Where to cut a row into even parts of at most `most`, each with names of at most `RAW` bytes."""
    parts = max(-(-len(lengths) // most), -(-sum(lengths) // RAW))
    edges = sorted({round(n * len(lengths) / parts) for n in range(parts + 1)}) if lengths else []
    return list(itertools.pairwise(edges))


def _write_all(pieces: list[_Piece], pack: Pack) -> list[Ref]:
    return [piece.ref or _write(piece, pack) for piece in pieces]


def _write(piece: _Piece, pack: Pack) -> Ref:
    node = piece.node
    assert node is not None
    raw = encode(node)
    if isinstance(node, Leaf):
        packs = [_state.seq_of(entry.pack) for entry in node.entries if entry.pack]
        files = sum(entry.is_file for entry in node.entries)
    else:
        packs = [ref.oldest for ref in node.refs]
        files = sum(ref.files for ref in node.refs)
    oldest = min([_state.seq_of(pack.name), *packs])
    offset = pack.add(raw)
    pack.nodes.append((offset, node, len(raw)))
    return Ref(pack.name, offset, len(raw), checksum(raw), oldest, files)


# -- which packs a tree refers to -------------------------------------------------------------------------------


def packs_below(nodes: Nodes, roots: Sequence[Ref], floor: int) -> set[str]:
    """The packs with a number below `floor` that trees refer to. Subtrees without any are not read."""
    found: set[str] = set()
    seen: set[Ref] = set()
    level = [root for root in roots if root.oldest < floor]
    while level:
        seen.update(level)
        below: set[Ref] = set()
        for ref, node in zip(level, nodes.load_many(level), strict=True):
            found.add(ref.pack)
            if isinstance(node, Leaf):
                found.update(entry.pack for entry in node.entries if entry.pack)
            else:
                below.update(child for child in node.refs if child.oldest < floor)
        level = sorted(below - seen)
    return {pack for pack in found if _state.seq_of(pack) < floor}
