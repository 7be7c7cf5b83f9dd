"""Inodes, and what of them is not durable yet. The rules are in `_simdisk`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["file", "dir", "link"]
Place = tuple[int, bytes]  # serial of a directory, name
Spans = tuple[tuple[int, int], ...]  # bytes of a file, each from one to before another; none touches the next

ROOT = 1  # the serial of the root directory; 0 stands for "no entry"
OWNER, XATTRS, MTIME = 1, 2, 4  # what of an inode may be old or new; OWNER is mode, uid and gid


class Change(NamedTuple):
    """One pending change of a name; both halves of a rename have one `id` and know each other's place."""

    id: int
    serial: int
    other: Place | None = None
    leaves: int = 0  # the inode that this, the removal half of a rename, takes away
    synced: bool = False  # its directory was synced, but the addition is not durable yet (D3)


class History(NamedTuple):
    """What a name durably leads to, and its pending changes. Those up to the id `doubtful` were in a failed sync."""

    base: int
    changes: tuple[Change, ...] = ()
    doubtful: int = 0

    def told(self) -> tuple[object, ...]:
        """All of it but the ids, which say when and not what."""
        changes = tuple((change.serial, change.other, change.leaves, change.synced) for change in self.changes)
        return self.base, changes, sum(change.id <= self.doubtful for change in self.changes)

    def value(self, count: int) -> int:
        """What the name leads to when the last change that survives is the `count`-th."""
        return self.changes[count - 1].serial if count else self.base


class Saved(NamedTuple):
    """What of an inode is durable, when that is not what can be read."""

    data: bytes
    owner: tuple[int, int, int]
    xattrs: dict[str, bytes]
    mtime: int


class Node:
    """An inode. Shared by the copies of a disk: get it from `Disk.own` before changing it."""

    def __init__(self, serial: int, ino: int, kind: Kind, mode: int, uid: int, gid: int, mtime: int) -> None:
        self.owned_by: object = None
        self.printed: int | None = None
        self.serial = serial
        self.ino = ino
        self.kind: Kind = kind
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.mtime = mtime
        self.nlink = 0
        self.gone = False  # no name, and not open either
        self.xattrs: dict[str, bytes] = {}  # replaced, never changed
        self.data = b""  # of a link, its text
        self.parent = 0
        self.device = 0  # added to the number of the file system
        self.mount = 1
        self.entries: dict[bytes, int] = {}
        self.pending: dict[bytes, History] = {}
        self.saved: Saved | None = None
        self.stale = 0  # OWNER | XATTRS | MTIME: differ from `saved`
        self.spans: Spans = ()  # the bytes written since they were last durable
        self.lost = 0  # the same two, but beyond the help of a sync (D6)
        self.lost_spans: Spans = ()

    def copy(self) -> Node:
        new: Node = object.__new__(Node)
        new.__dict__.update(self.__dict__)
        new.entries = self.entries.copy()
        new.pending = self.pending.copy()
        new.printed = None
        return new

    def settled(self, nlink: int, parent: int) -> Node:
        """A copy of which everything is durable."""
        new = self.copy()
        new.nlink, new.parent, new.gone = nlink, parent, False
        new.pending.clear()
        new.saved, new.stale, new.spans, new.lost, new.lost_spans = None, 0, (), 0, ()
        return new

    @property
    def owner(self) -> tuple[int, int, int]:
        return self.mode, self.uid, self.gid

    def leads_to(self) -> set[int]:
        """The inodes that its names lead to, now or after a power loss."""
        found = set(self.entries.values())
        for history in self.pending.values():
            found.update((history.base, *(change.serial for change in history.changes)))
        found.discard(0)
        return found

    def fingerprint(self) -> int:
        """Of all that can be seen of it, now or after a power loss, but for the mtime of a directory."""
        if self.printed is None:
            seen: list[object] = [self.kind, self.ino, self.owner, tuple(self.xattrs.items()), self.mount, self.nlink]
            if self.kind == "dir":
                pending = [(name, history.told()) for name, history in self.pending.items()]
                seen += [tuple(sorted(self.entries.items())), tuple(sorted(pending))]
            else:
                seen += [self.mtime, self.data]
            if self.saved is not None:
                data, owner, xattrs, mtime = self.saved
                seen += [data, owner, tuple(xattrs.items()), mtime, self.stale, self.spans, self.lost, self.lost_spans]
            self.printed = hash(tuple(seen))
        return self.printed
