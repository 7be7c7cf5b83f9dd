"""What lies in the private directory, sorted: reads only."""

from __future__ import annotations

import contextlib
import errno
import stat
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from txfiles._format import layout, paths
from txfiles._format.journal import Head, Journal, decode, decode_head
from txfiles.errors import JournalCorruptError, JournalVersionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from txfiles._commit.home import Home
    from txfiles._disk.system import Stat
    from txfiles._format.layout import State

T = TypeVar("T")

_LOOKS = 100
_ORDER: tuple[State, ...] = ("intent", "prepared", "committed", "aborting")


@dataclass(slots=True)
class Pending:
    """A journal and its state; `journal` is `None` and `error` says why when it cannot be read.

    `also` are earlier states of the same journal whose names survived (A1). `same_tree`: it is where it was written,
    and `written` when, in nanoseconds.
    """

    tid: str
    state: State
    journal: Journal | None
    error: JournalCorruptError | None
    process: bool
    same_tree: bool
    written: int
    also: list[State] = field(default_factory=list)


@dataclass(slots=True)
class Inventory:
    """`pending` is in the order of sequence numbers; `loose` are the names of tokens and old files by transaction.

    `unknown` have a name of ours and are not a file of ours; `foreign` have no such name, and do no harm.
    """

    names: list[bytes]
    head: Head | None
    pending: list[Pending]
    loose: dict[str, list[bytes]]
    unknown: list[bytes]
    foreign: list[bytes]


def read_head(home: Home) -> Head | None:
    """The last settled transaction; `None` too where a power loss left that of a process transaction unreadable."""
    found = home.read_file(layout.HEAD)
    if found is None:
        return None
    head = decode_head(found[0])
    if head is None or not head.durable:  # which vouches for nothing anyway
        return head
    if not (head.born and _is_where_it_was_written(home, layout.HEAD, found[1], head)):
        head = copy(head)
        head.is_copy = True
    return head


def _is_where_it_was_written(home: Home, name: bytes, found: Stat, journal: Journal | Head) -> bool:
    """Not in a copy, whose inodes have other numbers or, by chance, the same; a number comes back at once.

    A journal without a time of birth goes by its number: where that is wrong, recovery finds conflicts. A HEAD without
    one vouches for nothing, which costs only syncs.
    """
    if found.st_ino != journal.ino:
        return False
    return not journal.born or home.fs.born(home.private_fd, name) == journal.born


def undisturbed(look: Callable[[], T]) -> T:
    """What `look` finds without the lock; it looks again when a writer at work takes away what it had just listed."""
    for _ in range(_LOOKS):
        with contextlib.suppress(FileNotFoundError):
            return look()
    return look()


def take(home: Home, names: list[bytes] | None = None) -> Inventory:
    """List the private directory, if it is not listed yet, and read its journals.

    Raises `JournalVersionError` for those of a newer txfiles, and `FileNotFoundError` when a journal goes away
    meanwhile, which only the holder of the lock can rule out.
    """
    if names is None:
        names = home.names()
    states: dict[str, list[State]] = {}
    loose: dict[str, list[bytes]] = {}
    unknown, foreign = [], []
    for raw in sorted(names):
        if tid := layout.staged_by(raw):  # nearly all of them, where there are many
            loose.setdefault(tid, []).append(raw)
            continue
        name = layout.parse(raw)
        if name.kind == "unknown":
            foreign.append(raw)
        elif name.kind in _ORDER:
            if is_ours(home, raw):
                states.setdefault(name.tid, []).append(name.kind)
            else:
                unknown.append(raw)
    for tid in loose.keys() - states.keys():  # those of a journal are examined with it
        present, loose[tid] = loose[tid], []
        for raw in present:
            (loose[tid] if is_ours(home, raw, links=True) else unknown).append(raw)
    found = [_pending(home, tid, present) for tid, present in states.items()]
    found.sort(key=lambda p: (-1 if p.journal is None else p.journal.seq, p.tid))
    return Inventory(names, read_head(home), found, loose, sorted(unknown), foreign)


def is_ours(home: Home, name: bytes, *, links: bool = False) -> bool:
    """A file of ours by its kind, too: what else bears such a name (a directory, a planted link) is not touched."""
    try:
        mode = home.fs.stat(home.private_fd, name).st_mode
    except FileNotFoundError:
        return True  # a writer at work took it away since the listing
    return stat.S_ISREG(mode) or (links and stat.S_ISLNK(mode))


def _pending(home: Home, tid: str, present: list[State]) -> Pending:
    *also, state = sorted(present, key=_ORDER.index)
    if state == "prepared" and "intent" in also:
        state, also = "intent", ["prepared"]  # prepare() had not returned: nobody knows of it
    name = layout.journal(tid, state)
    shown = paths.decode(name)
    try:
        raw = home.read(name)
    except PermissionError:  # its writer, another member of a group, died before he had shared and written it
        if home.fs.stat(home.private_fd, name).st_size:
            raise
        raw = b""
    if raw is None:
        raise FileNotFoundError(errno.ENOENT, "went away since the listing", shown)
    found = home.fs.stat(home.private_fd, name)
    pending = Pending(tid, state, None, None, is_process(home, name), False, found.st_mtime_ns, also)
    try:
        journal = decode(raw, shown)
        if journal.tid != tid:
            raise JournalCorruptError(f"the journal {shown} is that of another transaction", path=shown)
    except JournalVersionError:
        raise
    except JournalCorruptError as error:
        pending.error = error
    else:
        pending.journal, pending.same_tree = journal, _is_where_it_was_written(home, name, found, journal)
    return pending


def is_process(home: Home, name: bytes) -> bool:
    """Whether a journal (or HEAD) is marked, by being read-only, as one that was never synced."""
    return not home.fs.stat(home.private_fd, name).st_mode & 0o200


def stays(home: Home, name: bytes, head: Head | None) -> bool:
    """Whether a loose name is not ours to remove."""
    return not is_ours(home, name, links=True) or keeps_old(home, name, head)


def keeps_old(home: Home, name: bytes, head: Head | None) -> bool:
    """Whether a loose `.old` is the only link to its file, and not of the settled transaction: nobody's to remove."""
    parsed = layout.parse(name)
    if parsed.kind != "old" or (head is not None and head.tid == parsed.tid):
        return False
    return home.fs.stat(home.private_fd, name).st_nlink == 1
