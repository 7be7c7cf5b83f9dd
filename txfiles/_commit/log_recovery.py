"""Recovery of the log: from what the page cache shows where the writer's session goes on, else from the records.

The tail, of the same session, says which. What recovery puts in place is made durable before its rename, out of the
record. J7: all paths are examined before one is touched. Killed at any step, the next run ends in the same state.

    the tail says     do
    applied           nothing is left to be done
    applying          what is not done yet of the last record; RecoveryConflictError where somebody else has come
    undoing           take back what is done of the last record, then as syncing without it
    syncing           put every path in its place anew: a sync may have failed
    nothing           (a power loss, another mount, a copied tree) put in place what is not whole

In the last two cases a path that shows none of the files that the records know, and not what the last one put there,
is somebody else's: RecoveryConflictError until the caller decides. A path that shows nothing is ours.
Then a checkpoint.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

from txfiles._commit.checkpoint import begin_anew, checkpoint, remove_tokens, sync_changed
from txfiles._commit.log_commit import put, shows, take_back, token_of
from txfiles._disk import metadata
from txfiles._format import layout, paths
from txfiles._tree.tokens import Tokens, digest_of_file
from txfiles.errors import ConflictError, RecoveryConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._commit.home import Home
    from txfiles._commit.logfile import LogFile
    from txfiles._disk.system import Stat
    from txfiles._format.journal import Identity, Journal, Operation
    from txfiles._format.log import Record

Choice = Literal["raise", "keep-theirs", "roll-forward"]


class Final(NamedTuple):
    """The last operation of a path, its content, and all files that the records know there."""

    op: Operation
    content: bytes
    known: tuple[Identity, ...]


def recover(home: Home, file: LogFile, on_conflict: Choice = "raise") -> list[Journal]:
    """Bring the log to rest, and empty. REQUIRES: the lock. Returns the transactions that it held.

    Raises `RecoveryConflictError`, nothing touched, where a path shows somebody else's file; `OSError`.
    """
    phase, records = file.phase(), list(file.records)
    file.affirm()
    if phase == "undoing" and records:
        last = records.pop()
        for op in reversed(last.journal.ops):
            take_back(home, last.journal, op)
        _restore(home, file, records, on_conflict, every=True)
        sync_changed(home, file)
        begin_anew(file)
    else:
        if phase == "applying" and records:
            _finish(home, records[-1].journal, on_conflict)
        elif phase != "applied":
            _restore(home, file, records, on_conflict, every=phase == "syncing")
        checkpoint(home, file)
    remove_tokens(home)
    file.mark("applied")
    return [record.journal for record in records]


def _finish(home: Home, journal: Journal, on_conflict: Choice) -> None:
    todo, foreign = undone(home, journal)
    if foreign and on_conflict == "raise":
        raise conflict(foreign)
    for op in todo:
        if op in foreign:
            if on_conflict == "roll-forward":
                _force(home, journal, op)
            continue
        try:
            put(home, journal, op)
        except ConflictError as error:  # somebody came between the look and the deed
            raise RecoveryConflictError(str(error), paths=error.paths) from error


def _force(home: Home, journal: Journal, op: Operation) -> None:
    """Over whatever is there."""
    place, token = home.tree.at(op.path), (home.private_fd, layout.token(journal.tid, op.number))
    with paths.Naming(op.path, always=True):
        if op.kind == "write":
            home.fs.rename(*token, *place)
        elif home.tree.stat(op.path) is not None:
            home.fs.rename(*place, *token)


def _is_done(home: Home, journal: Journal, op: Operation) -> bool:
    token = token_of(home, journal, op)
    if op.kind == "delete":
        return token is not None
    assert op.new is not None
    return not shows(token, op.new)


def _is_old(home: Home, op: Operation) -> bool:
    found = home.tree.stat(op.path)
    return found is None if op.old is None else shows(found, op.old)


# -- from the records -----------------------------------------------------------------------------------------------


def finals(records: Sequence[Record]) -> dict[bytes, Final]:
    """What each path is after all of the records."""
    found: dict[bytes, Final] = {}
    for record in records:
        contents = iter(record.contents)
        for op in record.journal.ops:
            before = found[op.path].known if op.path in found else ()
            known = (*before, *(one for one in (op.old, op.new) if one is not None))
            found[op.path] = Final(op, next(contents) if op.kind == "write" else b"", known)
    return found


class Examined(NamedTuple):
    """What the paths show of what the records put there: all of it, not all of it, or somebody else's file."""

    whole: list[Final]
    missing: list[Final]
    foreign: list[Final]


def examine(home: Home, records: Sequence[Record], *, is_copy: bool) -> Examined:
    """Look at every path of the records. Reads only."""
    out = Examined([], [], [])
    for path, final in finals(records).items():
        found = home.tree.stat(path)
        if _is_whole(home, final, found):
            out.whole.append(final)
        elif found is None or _is_ours(final, found, is_copy=is_copy):
            out.missing.append(final)
        else:
            out.foreign.append(final)
    return out


def undone(home: Home, journal: Journal) -> tuple[list[Operation], list[Operation]]:
    """The operations of a record in doubt that are still to be done, and those at whose paths somebody else has come.

    Reads only.
    """
    todo = [op for op in journal.ops if not _is_done(home, journal, op)]
    return todo, [op for op in todo if not _is_old(home, op)]


def _restore(home: Home, file: LogFile, records: Sequence[Record], on_conflict: Choice, *, every: bool) -> None:
    """Put in place what is not there, or `every` path."""
    found = examine(home, records, is_copy=file.is_copy)
    todo = [*found.missing, *(final for final in found.whole if every and final.op.kind == "write")]
    foreign = found.foreign
    if foreign and on_conflict == "raise":
        raise conflict([final.op for final in foreign])
    if on_conflict == "roll-forward":
        todo += foreign
    tokens = Tokens(home.fs, home.private_fd, home.fs.random_id(), durable=True)
    made = [(final, _make(tokens, final)) for final in todo if final.op.kind == "write"]
    home.fs.run_all([tokens.sync(number) for _, number in made])
    tokens.close()
    for final, number in made:
        with paths.Naming(final.op.path, always=True):
            home.fs.rename(home.private_fd, tokens.name(number), *home.tree.at(final.op.path))
    for final in todo:
        if final.op.kind == "delete" and home.tree.stat(final.op.path) is not None:
            home.fs.unlink(*home.tree.at(final.op.path))


def _make(tokens: Tokens, final: Final) -> int:
    assert final.op.meta is not None
    assert final.op.new is not None
    writer = tokens.new(final.op.path)
    try:
        writer.write(final.content)
        return writer.finish(final.op.meta, None, final.op.new.mtime_ns).number
    finally:
        writer.discard()


def _is_whole(home: Home, final: Final, found: Stat | None) -> bool:
    """The path shows what the last record put there, whatever its inode."""
    op = final.op
    if op.kind == "delete":
        return found is None
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_size != len(final.content):
        return False
    at, name = home.tree.at(op.path)
    return (
        metadata.read(home.fs, at, name, found) == op.meta
        and digest_of_file(home.fs, at, name, found.st_size) == op.digest
    )


def _is_ours(final: Final, found: Stat, *, is_copy: bool) -> bool:
    """A file that the records know, or that recovery has made of them: that has another inode, and the same time.

    What was not synced may have lost its size, and have the time of its birth; somebody else's change makes the time a
    later one. In a copied tree no inode counts.
    """
    if not stat.S_ISREG(found.st_mode):
        return False
    return any(
        (one.mtime_ns, one.size) == (found.st_mtime_ns, found.st_size)
        or (one.ino == found.st_ino and found.st_mtime_ns <= one.mtime_ns and not is_copy)
        for one in final.known
    )


def conflict(foreign: Sequence[Operation]) -> RecoveryConflictError:
    changed = tuple(sorted({paths.decode(op.path) for op in foreign}))
    shown = paths.some([*map(repr, changed)])
    message = f"changed by somebody else since the commit: {shown}; nothing was touched, decide with on_conflict"
    return RecoveryConflictError(message, paths=changed)
