"""What a reader lays over the tree so that a commit under way looks as if it had ended, or not begun. Reads only.

While a journal stays in one state its operations go one way only, from not done to done (or back, in an undo). So a
reader that finds the same entries before and after it has read has read one state.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, NamedTuple, cast

from txfiles._commit.evidence import Evidence, OutOfSight, same_inode
from txfiles._commit.log_commit import shows, token_of
from txfiles._commit.log_recovery import undone
from txfiles._format import layout
from txfiles._tree.tokens import identity_of
from txfiles._tree.view import ABSENT, Absent, Directory, Told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txfiles._commit.home import Home
    from txfiles._commit.restore import Final
    from txfiles._disk.system import Stat
    from txfiles._format.journal import Identity, Journal, Meta, Operation


class Held(NamedTuple):
    """A file that lies under a name of the private directory."""

    name: bytes
    identity: Identity


class Logged(NamedTuple):
    """A file that the log has, and that is not in its place."""

    identity: Identity
    meta: Meta
    content: bytes

    @property
    def stat(self) -> Stat:
        mode, (ino, size, mtime_ns, _) = stat.S_IFREG | self.meta.mode, self.identity
        return cast("Stat", Told(mode, size, mtime_ns, mtime_ns, self.meta.uid, self.meta.gid, ino))


Entries = dict[bytes, Held | Logged | Directory | Absent]


def name_of(entry: Held | Logged) -> bytes:
    """The name of the private directory. REQUIRES: it has one."""
    assert isinstance(entry, Held)
    return entry.name


def lay_after(evidence: Evidence, entries: Entries) -> None:
    """The state after: what is not done yet is laid over the tree. What is done is on disk, and anybody's since."""
    evidence.look_anew()
    for op in evidence.journal.ops:
        entries.pop(op.path, None)
        target = evidence.target(op)
        if op.kind == "delete":
            if evidence.is_to_go(op, target):
                entries[op.path] = ABSENT
            continue
        token = evidence.token(op)
        if token is None:
            continue
        both_names = target is not None and same_inode(token, target)  # of one rename (A1)
        if op.kind == "write" and not both_names:
            assert op.new is not None
            entries[op.path] = Held(evidence.token_name(op), op.new)
        elif op.kind == "mkdir":
            assert op.meta is not None
            entries[op.path] = Directory(op.meta)
        elif op.kind == "rmdir" and _is_directory(target):
            entries[op.path] = ABSENT


def lay_before(evidence: Evidence, entries: Entries) -> None:
    """The state before: what was replaced or taken away is laid over the tree, also where that is still to come."""
    for op in reversed(evidence.journal.ops):
        if op.kind == "write" and op.old is not None:
            if evidence.old(op) is not None:
                entries[op.path] = Held(evidence.old_name(op), op.old)
        elif op.kind == "write":
            token = evidence.token(op)
            if token is None or not _is_taken(evidence, op, token):
                entries[op.path] = ABSENT
        elif op.kind == "delete":
            assert op.old is not None
            if evidence.deleted(op) is not None:
                entries[op.path] = Held(evidence.token_name(op), op.old)
    _lay_directories_before(evidence, entries)


def lay_intent_before(evidence: Evidence, entries: Entries) -> None:
    """The state before an intent: the old files that a power loss has left without their names, and the directories."""
    for op in evidence.journal.ops:
        if op.old is not None and evidence.lost_its_name(op, evidence.target(op)):
            entries[op.path] = Held(evidence.old_name(op), op.old)
    _lay_directories_before(evidence, entries)


def lay_record_before(home: Home, journal: Journal, entries: Entries) -> None:
    """The state before a record that is being applied or undone.

    Under the name of a token lies what was replaced, as soon as it is not the new file any more: for a moment also what
    somebody else had put there, which is put back.
    """
    for op in journal.ops:
        token = token_of(home, journal, op)
        name = layout.token(journal.tid, op.number)
        if token is not None and (op.new is None or not shows(token, op.new)):
            entries[op.path] = Held(name, identity_of(token))
        elif token is None and op.new is not None and op.old is None:
            entries[op.path] = ABSENT


def lay_record_after(home: Home, journal: Journal, entries: Entries) -> None:
    """The state after it."""
    for op in undone(home, journal)[0]:
        entries[op.path] = ABSENT if op.new is None else Held(layout.token(journal.tid, op.number), op.new)


def lay_logged(finals: Iterable[Final], entries: Entries) -> None:
    """What the records say of these paths, whatever is there."""
    for final in finals:
        op = final.op
        if op.kind == "delete":
            entries[op.path] = ABSENT
        else:
            assert op.new is not None
            assert op.meta is not None
            entries[op.path] = Logged(op.new, op.meta, final.content)


def _lay_directories_before(evidence: Evidence, entries: Entries) -> None:
    for op in reversed(evidence.journal.ops):
        if op.kind not in ("rmdir", "mkdir"):
            continue
        try:
            there = _is_directory(evidence.target(op))
        except OutOfSight:
            there = True
        if op.kind == "rmdir" and not there:
            assert op.meta is not None
            entries[op.path] = Directory(op.meta)
        elif op.kind == "mkdir" and there and not isinstance(entries.get(op.path), Held):
            entries[op.path] = ABSENT


def _is_taken(evidence: Evidence, op: Operation, token: Stat) -> bool:
    """Where a new file is to come there is another one."""
    try:
        target = evidence.target(op)
    except OutOfSight:  # its directory is new, too
        return False
    return target is not None and not same_inode(token, target)


def _is_directory(found: Stat | None) -> bool:
    return found is not None and stat.S_ISDIR(found.st_mode)
