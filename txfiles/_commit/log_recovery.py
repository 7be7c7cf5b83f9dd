"""Recovery of the log: from what the page cache shows where the writer's session goes on, else from the records.

The tail, of the same session, says which. What recovery puts in place is made durable before its rename, out of the
record. J7: all paths are examined before one is touched. Killed at any step, the next run ends in the same state.

    the tail says     do
    applying          what is not done yet of the last record; RecoveryConflictError where somebody else has come
    undoing           take back what is done of the last record, then as syncing without it
    syncing           put in its place anew what is there of the records: a sync may have failed
    nothing           (a power loss, another mount, a copied tree) put in place what is not whole, see `restore`; in the
                      boot of the records every path, where a sync may have failed
    tainted           the same, and then a new log takes the place of this one

Then a checkpoint. What of others is in the way is a RecoveryConflictError until the caller decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txfiles._commit.checkpoint import begin_anew, sync_changed
from txfiles._commit.log_commit import has_another_name, keep_linked, put, remove_tokens, shows, take_back, token_of
from txfiles._commit.protocol import make_parents
from txfiles._commit.restore import (
    conflict,
    examine,
    finals,
    has_parent,
    is_directory,
    is_there,
    put_anew,
    restore,
)
from txfiles._disk import metadata
from txfiles._format import layout, paths
from txfiles.errors import ConflictError, RecoveryConflictError

if TYPE_CHECKING:
    from txfiles._commit.home import Home
    from txfiles._commit.log_look import Found
    from txfiles._commit.logfile import LogFile
    from txfiles._commit.restore import Choice
    from txfiles._format.journal import Journal, Operation
    from txfiles._format.layout import State
    from txfiles._format.log import Record


class Recovered(NamedTuple):
    """What was in the log: the transactions that are committed; those for which something was done, or undone.

    `theirs` are the paths that are left as others have them since.
    """

    committed: list[Journal]
    forward: list[Journal]
    back: list[Journal]
    theirs: list[bytes]


def recover(home: Home, file: LogFile, on_conflict: Choice = "raise") -> Recovered:
    """Bring the log to rest, and empty. REQUIRES: the lock; the tail does not say "applied", for then it is at rest.

    Raises `RecoveryConflictError`, nothing touched, where a path shows somebody else's file; `OSError`.
    """
    phase, records = file.phase(), list(file.records)
    file.affirm()
    home.tree.close()
    forward: list[Journal] = []
    back: list[Journal] = []
    theirs: list[bytes] = []
    if phase == "applying" and records and _is_to_go_back(home, records[-1], on_conflict):
        file.mark("undoing")
        phase = "undoing"
    if phase == "undoing" and records:
        last = records.pop().journal
        back.append(last)
        theirs = [op.path for op in reversed(last.ops) if not take_back(home, last, op)]
        put_anew(home, records)
    elif phase == "syncing":
        forward += _of(records, put_anew(home, records))
    elif phase == "applying" and records:
        file.mark_begun()
        if _finish(home, records[-1].journal, on_conflict):
            forward.append(records[-1].journal)
    else:
        every = file.may_lack_sync and any(_is_of_this_boot(home, record) for record in records)
        done, theirs = restore(home, records, on_conflict, is_copy=file.is_copy, every=every)
        forward += _of(records, set(done))
    if phase in ("applying", None):
        file.mark("syncing")
    for journal in (*back, *(record.journal for record in records[-1:])):
        keep_linked(home, journal, [op for op in journal.ops if has_another_name(home, journal, op)])
    sync_changed(home, file)
    begin_anew(file)
    for journal in (*forward, *back, *(record.journal for record in records[-1:])):
        remove_tokens(home, journal)
    return Recovered([record.journal for record in records], forward, back, theirs)


class Outlook(NamedTuple):
    """What `recover` would do: with the last record if it is in doubt, at which paths, what of others is in its way.

    `state` is that of the record in doubt: `"committed"`, or `"aborting"` where it is to be undone.
    """

    in_doubt: Journal | None
    state: State
    restored: list[bytes]
    foreign: list[Operation]


def outlook(home: Home, found: Found) -> Outlook:
    """Reads only, and needs no lock: what a writer that lives is doing counts as cut off, but for a checkpoint."""
    records, phase = list(found.records), found.phase
    if not records or phase == "applied" or (phase == "syncing" and found.held):
        return Outlook(None, "committed", [], [])
    if phase == "applying":
        journal = records[-1].journal
        todo, foreign = undone(home, journal)
        return Outlook(journal, "committed", [op.path for op in todo], foreign)
    back = records.pop().journal if phase == "undoing" else None
    touched = set() if back is None else {op.path for op in back.ops}
    if phase in ("syncing", "undoing"):
        ours = {path for path, final in finals(records).items() if (at := home.tree.stat(path)) and is_there(final, at)}
        return Outlook(back, "aborting", sorted(ours | touched), [])
    seen = examine(home, records, is_copy=found.is_copy)
    every = seen.whole if phase is not None else []  # a sync may have failed
    restored = {final.op.path for final in (*seen.missing, *every)}
    return Outlook(None, "committed", sorted(restored), [final.op for final in seen.foreign])


def _of(records: list[Record], changed: set[bytes]) -> list[Journal]:
    """The transactions that have changed these paths."""
    return [record.journal for record in records if any(op.path in changed for op in record.journal.ops)]


def _is_of_this_boot(home: Home, record: Record) -> bool:
    return record.journal.boot == home.fs.boot_id()


def _is_to_go_back(home: Home, last: Record, on_conflict: Choice) -> bool:
    """Whether the caller wants that, of a commit that was cut off and has met somebody else's files."""
    return on_conflict == "roll-back" and bool(undone(home, last.journal)[1])


def undone(home: Home, journal: Journal) -> tuple[list[Operation], list[Operation]]:
    """The operations of a record in doubt that are still to be done, and those at whose paths somebody else has come.

    Reads only.
    """
    todo = [op for op in journal.ops if not _is_done(home, journal, op)]
    return todo, [op for op in todo if not _is_old(home, op)]


def _finish(home: Home, journal: Journal, on_conflict: Choice) -> bool:
    """Whether there was anything to do."""
    todo, foreign = undone(home, journal)
    in_the_way = [op for op in foreign if on_conflict == "roll-forward" and is_directory(home, op.path)]
    if in_the_way or (foreign and on_conflict == "raise"):
        raise conflict(in_the_way or foreign)
    for op in todo:
        if op in foreign:
            if on_conflict == "roll-forward":
                _force(home, journal, op)
            continue
        try:
            put(home, journal, op)
        except ConflictError as error:  # somebody came between the look and the deed
            raise RecoveryConflictError(str(error), paths=error.paths) from error
    return bool(todo)


def _force(home: Home, journal: Journal, op: Operation) -> None:
    """Over whatever is there."""
    token = home.private_fd, layout.token(journal.tid, op.number)
    with paths.Naming(op.path, always=True):
        if op.kind == "write":
            make_parents(home, op)
            home.fs.rename(*token, *home.tree.at(op.path))
        elif home.tree.stat(op.path) is not None:
            home.fs.rename(*home.tree.at(op.path), *token)


def _is_done(home: Home, journal: Journal, op: Operation) -> bool:
    token = token_of(home, journal, op)
    if op.kind == "delete":
        return token is not None
    assert op.new is not None
    return not shows(token, op.new)


def _is_old(home: Home, op: Operation) -> bool:
    """What is there is what the record replaces, with its metadata."""
    found = home.tree.stat(op.path)
    if found is None or op.old is None:
        return found is None and op.old is None and has_parent(home, op.path)
    before = op.was or op.meta
    is_same = before is None or metadata.read(home.fs, *home.tree.at(op.path), found) == before
    return shows(found, op.old) and is_same
