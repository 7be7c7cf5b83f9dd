"""The disk of `SimFS`: inodes, names, and what of them is not durable yet. Nothing here knows descriptors or errors.

What a power loss may do, as an adversary under the assumptions A1 to A4:

    D1  A change of a name is pending until its directory is synced. Any subset of the pending changes survives: a name
        shows what it led to before, or after any one of its changes.
    D2  A rename is a removal and an addition. The removal never survives alone: when the old name no longer leads to
        the inode, the new one has come to it. The addition alone is allowed, then both names lead to the inode. Between
        two directories so is the removal of what the new name led to: it leads nowhere then, the old one to the inode.
    D3  The removal is durable when both directories were synced after it; the addition, when its own was.
        An exchange is two changes that leave and come: it survives whole, or not at all.
    D4  A directory that does not survive takes with it everything in it, also what was renamed into it.
    D5  What was written to a file and not synced comes back old, new, short, zeroed, torn or as garbage, of several
        places of one file perhaps some; what was synced before and not written again is intact, and so is what was
        written over with the same bytes. Mode and owner, attributes and mtime are each old or new.
    D6  After a sync that failed, the changes that it was to make durable may be lost in spite of any later sync,
        until the same name, bytes or attributes are changed and synced again. Reading shows nothing of that.
"""

from __future__ import annotations

import heapq

from txfiles.testing._simnode import MTIME, OWNER, ROOT, XATTRS, Change, History, Kind, Node, Place, Saved, Spans

_KEEP_DEAD = 64


class Disk:
    """Nodes by serial. A serial is never used again; the inode number is, as soon as the inode is gone (`reuse`)."""

    def __init__(self, *, reuse: bool) -> None:
        self.nodes: dict[int, Node] = {}
        self.reuse = reuse
        self.version: int = 0  # another one after every change, also of what is durable
        self.used: int = 0  # bytes
        self._token = object()  # what marks the nodes that belong to this copy alone
        self._last = 0  # id or serial
        self._free: list[int] = []  # a heap
        self._next_ino = 2
        self._collect_at = _KEEP_DEAD

    def copy(self) -> Disk:
        """The same disk again; costs little, because nodes are copied when they change."""
        if len(self.nodes) > self._collect_at:
            self._collect()
        new: Disk = object.__new__(Disk)
        new.__dict__.update(self.__dict__)
        new.nodes, new._free = self.nodes.copy(), self._free.copy()
        self._token, new._token = object(), object()
        return new

    def with_nodes(self, nodes: dict[int, Node]) -> Disk:
        """A disk that has these nodes alone."""
        new = self.copy()
        new.nodes = nodes
        new.used = sum(len(node.data) for node in nodes.values() if node.kind == "file")
        new.version += 1
        if self.reuse:
            taken = {node.ino for node in nodes.values()}
            new._free = [ino for ino in range(2, self._next_ino) if ino not in taken]
        return new

    def own(self, serial: int) -> Node:
        """The node, to be changed."""
        node = self.nodes[serial]
        if node.owned_by is not self._token:
            node = node.copy()
            node.owned_by = self._token
            self.nodes[serial] = node
        node.printed = None
        self.version += 1
        return node

    def next_id(self) -> int:
        self._last += 1
        return self._last

    # -- changes, as any program sees them ------------------------------------------------------------------------

    def make(self, kind: Kind, mode: int, uid: int, gid: int, mtime: int, parent: int) -> Node:
        """A new inode without a name. Never synced: what comes back of it may be empty."""
        if self._free:
            ino = heapq.heappop(self._free)
        else:
            ino, self._next_ino = self._next_ino, self._next_ino + 1
        node = Node(self.next_id(), ino, kind, mode, uid, gid, mtime)
        node.owned_by = self._token
        if kind == "dir":
            node.parent, node.nlink = parent, 2
        if parent:
            above = self.nodes[parent]
            node.device, node.mount = above.device, above.mount
        self.nodes[node.serial] = node
        return node

    def enter(self, directory: int, name: bytes, serial: int, mtime: int) -> None:
        """Let a name lead to an inode that has no name in its way."""
        self._set(directory, name, Change(self.next_id(), serial), mtime)
        node = self.own(serial)
        if node.kind != "dir":
            node.nlink += 1

    def remove(self, directory: int, name: bytes, mtime: int) -> int:
        """Take a name away; the serial of what it led to."""
        serial = self.nodes[directory].entries[name]
        self._set(directory, name, Change(self.next_id(), 0), mtime)
        self._unlinked(serial)
        return serial

    def move(self, source: Place, target: Place, mtime: int) -> int:
        """Rename; the serial of what was replaced, or 0."""
        serial = self.nodes[source[0]].entries[source[1]]
        replaced = self.nodes[target[0]].entries.get(target[1], 0)
        if replaced and source[0] != target[0]:
            self._set(*target, Change(self.next_id(), 0), mtime)
        number = self.next_id()
        self._set(*target, Change(number, serial, source), mtime)
        self._set(*source, Change(number, 0, target, serial), mtime)
        if replaced:
            self._unlinked(replaced)
        if self.nodes[serial].kind == "dir":
            self.own(serial).parent = target[0]
        return replaced

    def exchange(self, one: Place, other: Place, mtime: int) -> None:
        """Let two names change what they lead to."""
        first, second = self.nodes[one[0]].entries[one[1]], self.nodes[other[0]].entries[other[1]]
        number = self.next_id()
        self._set(*other, Change(number, first, one, second), mtime)
        self._set(*one, Change(number, second, other, first), mtime)
        for serial, (directory, _) in ((first, other), (second, one)):
            if self.nodes[serial].kind == "dir":
                self.own(serial).parent = directory

    def _set(self, directory: int, name: bytes, change: Change, mtime: int) -> None:
        node = self.own(directory)
        node.mtime = mtime
        history = node.pending.get(name)
        if history is None:
            node.pending[name] = History(node.entries.get(name, 0), (change,))
        else:
            node.pending[name] = history._replace(changes=(*history.changes, change))
        if change.serial:
            node.entries[name] = change.serial
        else:
            del node.entries[name]

    def _unlinked(self, serial: int) -> None:
        node = self.own(serial)
        node.nlink = 0 if node.kind == "dir" else node.nlink - 1

    def forget(self, serial: int) -> None:
        """An inode without a name is no longer open either: its number and its space are free."""
        node = self.own(serial)
        node.gone = True
        if node.kind == "file":
            self.used -= len(node.data)
        if self.reuse:
            heapq.heappush(self._free, node.ino)

    def touch(self, serial: int, what: int) -> Node:
        """The node, to be changed in `what`."""
        node = self.own(serial)
        if node.saved is None:
            node.saved = Saved(node.data, node.owner, node.xattrs, node.mtime)
        node.stale |= what
        node.lost &= ~what
        return node

    def truncate(self, serial: int, size: int, mtime: int) -> None:
        node = self.touch(serial, MTIME)
        old, node.data, node.mtime = node.data, node.data[:size].ljust(size, b"\0"), mtime
        self.used += size - len(old)
        node.spans = _with(node.spans, min(size, len(old)), max(size, len(old)))

    def write(self, serial: int, position: int, data: bytes, mtime: int) -> None:
        node = self.touch(serial, MTIME)
        old, end = node.data, position + len(data)
        if position == len(old):
            node.data = old + data
        else:
            node.data = old[:position].ljust(position, b"\0") + data + old[end:]
        self.used += len(node.data) - len(old)
        node.mtime = mtime
        start = min(position, len(old))
        if old[position:end] != data:
            node.spans = _with(node.spans, start, end)
        node.lost_spans = _without(node.lost_spans, start, end)

    def overwrite(self, serial: int, data: bytes, mtime: int) -> None:
        """Truncate and write anew."""
        node = self.touch(serial, MTIME)
        self.used += len(data) - len(node.data)
        node.data, node.mtime = data, mtime
        node.spans, node.lost_spans = ((0, len(data)),), ()

    # -- what is durable ------------------------------------------------------------------------------------------

    def sync(self, serial: int) -> None:
        """fsync(2) that succeeds: of a file, its content and metadata; of a directory, its names too."""
        node = self.nodes[serial]
        if node.saved is None and not node.pending:
            return
        node = self.own(serial)
        if node.saved is not None:
            _save(node)
        additions = [name for name, history in node.pending.items() if not history.changes[-1].leaves]
        for name in additions:
            self._make_durable(node.pending.get(name), serial, name)
        removals = [(history.changes[-1].id, name) for name, history in node.pending.items()]
        for _, name in sorted(removals, reverse=True):  # a later rename may have moved on what an earlier one brought
            self._make_durable(node.pending.get(name), serial, name)

    def _make_durable(self, history: History | None, serial: int, name: bytes) -> None:
        if history is None or history.changes[-1].id <= history.doubtful:
            return
        last, count = history.changes[-1], len(history.changes)
        other = self._find(last) if last.leaves else None
        if other is None or other[1].synced:
            self._advance(serial, name, count)
            return
        marked = history._replace(changes=(*history.changes[:-1], last._replace(synced=True)))
        self.nodes[serial].pending[name] = marked
        if count > 1:
            self._advance(serial, name, count - 1)

    def _find(self, change: Change) -> tuple[int, Change] | None:
        """The other half, with its number among the pending changes of its name."""
        assert change.other is not None
        node = self.nodes.get(change.other[0])
        history = None if node is None else node.pending.get(change.other[1])
        for count, other in enumerate(() if history is None else history.changes, 1):
            if other.id == change.id:
                return count, other
        return None

    def _advance(self, directory: int, name: bytes, count: int) -> None:
        """The first `count` pending changes of a name become durable, and with them what D2 and D3 demand."""
        node = self.own(directory)
        history = node.pending[name]
        done, left = history.changes[:count], history.changes[count:]
        base = done[-1].serial
        if left:
            node.pending[name] = History(base, left, history.doubtful)
        else:
            del node.pending[name]
        for change in done:
            found = None if change.other is None else self._find(change)
            if found is None or change.other is None:
                continue
            if change.leaves:
                if change.leaves != base:
                    self._advance(*change.other, found[0])
            elif found[1].synced:
                self._advance(*change.other, found[0])

    def sync_data(self, serial: int) -> None:
        """fdatasync(2) that succeeds: the content is durable, the metadata are as they were."""
        if self.nodes[serial].saved is not None:
            _save(self.own(serial), OWNER | XATTRS | MTIME)

    def sync_failed(self, serial: int) -> None:
        """fsync(2) that reports an error (A4): D6."""
        node = self.own(serial)
        node.lost |= node.stale
        for start, end in node.spans:
            node.lost_spans = _with(node.lost_spans, start, end)
        for name, history in node.pending.items():
            node.pending[name] = history._replace(doubtful=history.changes[-1].id)

    def sync_everything(self) -> None:
        """sync(2), and no doubt about it: everything that can be read is durable."""
        for serial, node in list(self.nodes.items()):
            if node.saved is not None or node.pending:
                clean = node.settled(node.nlink, node.parent)
                clean.owned_by = self._token
                self.nodes[serial] = clean
        self.version += 1

    def reachable(self) -> set[int]:
        """The inodes that a name leads to, now or after a power loss."""
        seen, todo = {ROOT}, [ROOT]
        while todo:
            node = self.nodes[todo.pop()]
            if node.kind == "dir":
                below = node.leads_to() - seen
                seen |= below
                todo += below
        return seen

    def _collect(self) -> None:
        """Drop the nodes that are gone and that no power loss can bring back."""
        seen = self.reachable()
        self.nodes = {serial: node for serial, node in self.nodes.items() if serial in seen or not node.gone}
        self._collect_at = 2 * len(self.nodes) + _KEEP_DEAD


def _with(spans: Spans, start: int, end: int) -> Spans:
    """The spans, in order, with another one; those that touch are one."""
    apart = [span for span in spans if span[1] < start or span[0] > end]
    touching = [span for span in spans if span not in apart]
    one = min([start, *(span[0] for span in touching)]), max([end, *(span[1] for span in touching)])
    return tuple(sorted([*apart, one]))


def _without(spans: Spans, start: int, end: int) -> Spans:
    """The spans but for these bytes."""
    if not spans:
        return ()
    left = [part for one in spans for part in ((one[0], min(one[1], start)), (max(one[0], end), one[1]))]
    return tuple(part for part in left if part[0] < part[1])


def _save(node: Node, left: int = 0) -> None:
    """Everything that is not lost becomes durable, and of the metadata what is not left."""
    saved = node.saved
    assert saved is not None
    stale = node.lost | (node.stale & left)
    node.stale, node.spans = stale, node.lost_spans
    if not stale and not node.spans:
        node.saved = None
        return
    data = node.data
    for start, end in node.spans:
        data = data[:start] + saved.data[start:end].ljust(end - start, b"\0") + data[end:]
    node.saved = Saved(
        data,
        saved.owner if stale & OWNER else node.owner,
        saved.xattrs if stale & XATTRS else node.xattrs,
        saved.mtime if stale & MTIME else node.mtime,
    )
