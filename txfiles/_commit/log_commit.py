"""A commit through the log: its record becomes durable by one sync, which is the commit point; names are exchanged.

J1  No target is touched before the sync of its record returned.
J2  A record is written only when the one before it is applied, and the tail says so: so in one session only the last
    one is in doubt.
J3  What a record replaces, the old file, its directory and those above it, is durable before it is written.
J4  The log begins anew only when every path of every record is durable by syncs that succeeded.
J5  Every other protocol begins with an empty log.
J8  No token goes that holds a replaced file before the tail says "applied".
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NoReturn

from txfiles._commit.checkpoint import begin_anew, checkpoint, sync_changed
from txfiles._commit.durable import files_round, sync_everything, sync_tokens
from txfiles._commit.inventory import read_head
from txfiles._commit.logfile import mark_of
from txfiles._commit.protocol import give_up, path_of, tell_what_is_theirs
from txfiles._commit.restore import TOOK_LONG, has_parent
from txfiles._disk.interrupts import give_way
from txfiles._disk.system import release
from txfiles._format import layout, log, paths
from txfiles._format.digest import digest_of
from txfiles._format.journal import Identity, Journal, Operation
from txfiles._tree.tokens import is_file
from txfiles.errors import CommitError, CommitOutcomeUnknownError, ConflictError, SettleError, TxFilesError

if TYPE_CHECKING:
    from collections.abc import Collection

    from txfiles._commit.home import Home
    from txfiles._commit.logfile import LogFile
    from txfiles._disk.system import Stat
    from txfiles._format.journal import Meta
    from txfiles._tree.staging import Staging
    from txfiles._tree.tokens import Tokens


def fits(operations: Collection[Operation]) -> bool:
    """Whether the log can hold it: small files that are written, and files that are deleted."""
    return all(
        op.via is None
        and (op.old is None or op.old.link is None)
        and (op.kind == "delete" or (op.new is not None and op.new.link is None and op.new.size <= log.INLINE))
        for op in operations
    )


def commit(home: Home, staging: Staging, file: LogFile, operations: list[Operation]) -> bool:
    """False, and nothing done, where the operations do not fit into a record.

    REQUIRES: `operations` are those of `staging.plan()`, at least one, and fit; the log is at rest.

    Raises `CommitError` or `ConflictError` when nothing has changed, `SettleError` when all has, and
    `CommitOutcomeUnknownError` when recovery has to decide.
    """
    try:
        staging.tokens.keep_only({op.number for op in operations})
        if home.progress is not None:
            home.progress.begin(len(operations))
        if sum(op.new.size for op in operations if op.new is not None) > log.SIZE - log.FIRST:
            return False
        seq = home.next_number(read_head(home)) if file.is_empty else file.seq + 1
        journal, contents = _journal(home, staging, file, operations, seq)
        now = home.fs.now()
        record = file.encode(journal, now, contents)
        if len(record) > log.SIZE - log.FIRST:
            return False
        _make_old_durable(home, file, journal)
        if not file.has_room(record):
            checkpoint(home, file)
            record = file.encode(journal, now, contents)
        staging.tokens.close()
        give_way()  # beyond this point it is finished
    except BaseException as cause:
        give_up(home, staging, [], 0, cause)
        raise
    try:
        file.add_record(record, journal)
    except OSError as cause:
        _take_back_record(home, staging, file, cause)
    _apply(home, staging, file, journal)
    if home.fs.now() - now > TOOK_LONG:
        _end(home, file)
    return True


def _end(home: Home, file: LogFile) -> None:
    """A checkpoint behind a commit that took so long that recovery could take its changes for somebody else's."""
    try:
        checkpoint(home, file)
    except (OSError, TxFilesError) as error:
        shown = paths.decode(home.root)
        message = f"committed in {shown!r}, but its checkpoint failed and is left to recovery"
        raise SettleError(f"{message}: {paths.told(error, home.root)}", path=shown) from error


def _journal(
    home: Home, staging: Staging, file: LogFile, operations: list[Operation], seq: int
) -> tuple[Journal, list[bytes]]:
    tokens = staging.tokens
    ops, contents = [], []
    for op in operations:
        if op.kind == "delete":
            ops.append(op._replace(number=tokens.reserve()))
            continue
        assert op.new is not None
        content = _content(home, tokens, op)
        if content is None:
            shown = paths.decode(op.path)
            raise ConflictError(f"what was staged for {shown!r} was changed by somebody else", path=shown)
        ops.append(op)
        contents.append(content)
    above = paths.above(op.path for op in ops)
    dirs = tuple((path, 0) for path in sorted(above))  # a record asks for none
    return Journal(tokens.tid, seq, "full", home.fs.boot_id(), file.header.ino, tuple(ops), dirs), contents


def _content(home: Home, tokens: Tokens, op: Operation) -> bytes | None:
    """What is in the token of a write; `None` where that is no longer what was staged."""
    assert op.new is not None
    name, kept = tokens.name(op.number), tokens.contents.get(op.number)
    if kept is not None:
        return kept if is_file(home.fs.stat(home.private_fd, name), op.new) else None
    fd = home.fs.open_read(home.private_fd, name)
    try:
        content = home.fs.read_at(fd, op.new.size + 1, 0)
        is_whole = len(content) == op.new.size and is_file(home.fs.fstat(fd), op.new)
        return content if is_whole and digest_of(content) == op.digest else None
    finally:
        release(home.fs, fd)


def _make_old_durable(home: Home, file: LogFile, journal: Journal) -> None:
    """J3: what an earlier record put there needs no sync, for that is durable by its record, or by a checkpoint.

    Where another protocol has changed a path since, its journal must not come back to find what is put there now. So
    the private directory is synced, too.
    """
    known, tree = file.read(), home.tree
    holds = lru_cache(None)(partial(known.holds, tree))
    unknown = [op for op in journal.ops if not known.vouches_for(op.path, op.old, holds)]
    if not unknown:
        return
    above = {directory for op in unknown for directory in paths.ancestors(op.path)}
    marks = {directory: mark_of(tree, directory) for directory in above}
    files_round(home, {op.path for op in unknown}, above)
    if any(known.put_elsewhere(op.path, op.old) for op in unknown):
        sync_everything(home)
    known.directories.update((directory, mark) for directory, mark in marks.items() if mark is not None)


def _take_back_record(home: Home, staging: Staging, file: LogFile, cause: OSError) -> NoReturn:
    """Its sync failed: another log takes the place of this one, in which it never was."""
    shown = paths.decode(home.root)
    told = paths.told(cause, home.root)
    try:
        file.mark("syncing")
        sync_changed(home, file)
        file.renew(skip=1)
        staging.tokens.remove_all()
    except OSError as error:
        message = f"the commit in {shown!r} failed ({told}), and so did its undoing: {paths.told(error, home.root)}"
        raise CommitOutcomeUnknownError(f"{message}; recovery decides", path=shown) from cause
    raise CommitError(f"nothing was changed in {shown!r}: {told}", path=path_of(cause, shown)) from cause


def _apply(home: Home, staging: Staging, file: LogFile, journal: Journal) -> None:
    shown = paths.decode(home.root)
    home.tree.close()  # directories may have been moved since they were opened
    directories = _unchanged(home, file, journal)
    try:
        file.mark("applying")
        try:
            linked = []
            for op in journal.ops:
                if put(home, journal, op):
                    linked.append(op)
                home.step()
            keep_linked(home, journal, linked)
        except (OSError, TxFilesError) as cause:
            theirs = _undo(home, staging, file, journal)
            message = f"nothing was changed in {shown!r}: {paths.told(cause, home.root)}"
            failure = cause if isinstance(cause, TxFilesError) else CommitError(message, path=path_of(cause, shown))
            tell_what_is_theirs(failure, theirs)
            if failure is cause:
                raise
            raise failure from cause
        file.mark("applied")
    except OSError as error:
        message = f"the commit in {shown!r} was cut off: {paths.told(error, home.root)}; recovery decides"
        raise CommitOutcomeUnknownError(message, path=shown) from error
    try:
        for directory in directories:
            if (mark := mark_of(home.tree, directory)) is not None:
                file.read().directories[directory] = mark
        for op in journal.ops:
            home.remove(layout.token(journal.tid, op.number))
    except OSError as error:
        message = f"committed in {shown!r}, but tidying up failed and is left to recovery"
        raise SettleError(f"{message}: {paths.told(error, home.root)}", path=shown) from error


def _unchanged(home: Home, file: LogFile, journal: Journal) -> list[bytes]:
    """The directories that the commit is about to change and nobody else has: those it may vouch for again.

    Until then it vouches for none of them.
    """
    known = file.read().directories
    touched = paths.parents([op.path for op in journal.ops]).intersection(known)
    return [directory for directory in touched if known.pop(directory) == mark_of(home.tree, directory)]


def put(home: Home, journal: Journal, op: Operation) -> bool:
    """Exchange the names, and see what came out: whether that has another name, too.

    Raises `ConflictError`, all as it was, for what is somebody else's.
    """
    token, place = (home.private_fd, layout.token(journal.tid, op.number)), home.tree.at(op.path)
    swap = home.fs.rename_new if op.old is None or op.kind == "delete" else home.fs.exchange
    one, other = (place, token) if op.kind == "delete" else (token, place)
    try:
        swap(*one, *other)
    except (FileExistsError, FileNotFoundError) as error:
        raise _foreign(op) from error
    except OSError as error:
        paths.give_name(error, op.path, always=True)
        raise
    if op.old is None:
        return False
    found = home.fs.stat(*token)
    if not shows(found, op.old) or not has_mode(found, op.was or op.meta):
        swap(*other, *one)
        raise _foreign(op)
    return found.st_nlink > 1


def has_mode(found: Stat, meta: Meta | None) -> bool:
    """It has these permissions and owners."""
    return meta is None or (found.st_mode & 0o7777, found.st_uid, found.st_gid) == meta[:3]


def has_another_name(home: Home, journal: Journal, op: Operation) -> bool:
    """What was replaced, if it was."""
    token = token_of(home, journal, op)
    return token is not None and token.st_nlink > 1


def keep_linked(home: Home, journal: Journal, operations: Collection[Operation]) -> None:
    """Make durable what was replaced and has another name, for the log keeps it no longer."""
    if operations:
        sync_tokens(home, [layout.token(journal.tid, op.number) for op in operations])


def take_back(home: Home, journal: Journal, op: Operation) -> bool:
    """Undo one operation, if it was done; false where somebody has come since, whose file stays."""
    private, token = (home.private_fd, layout.token(journal.tid, op.number)), token_of(home, journal, op)
    if token is None if op.kind == "delete" else shows(token, op.new):
        return True  # not done
    found = home.tree.stat(op.path)
    if op.kind == "delete":
        if found is not None or not has_parent(home, op.path):
            return False
        home.fs.rename_new(*private, *home.tree.at(op.path))
        return True
    if found is None or not shows(found, op.new) or not has_mode(found, op.meta):
        return False
    if op.old is None:
        home.fs.rename_new(*home.tree.at(op.path), *private)
    else:
        home.fs.exchange(*private, *home.tree.at(op.path))
    return True


def token_of(home: Home, journal: Journal, op: Operation) -> Stat | None:
    """What lies under the token's name."""
    try:
        return home.fs.stat(home.private_fd, layout.token(journal.tid, op.number))
    except FileNotFoundError:
        return None


def remove_tokens(home: Home, journal: Journal) -> None:
    """As far as they can go. REQUIRES: no record needs them."""
    for op in journal.ops:
        with suppress(OSError):
            home.remove(layout.token(journal.tid, op.number))


def shows(found: Stat | None, recorded: Identity | None) -> bool:
    """What was found is the regular file that was recorded."""
    return found is not None and recorded is not None and is_file(found, recorded)


def _undo(home: Home, staging: Staging, file: LogFile, journal: Journal) -> list[Operation]:
    """What could not be undone. Nothing is reported before the record is retired: a power loss rolls it forward."""
    file.mark("undoing")
    theirs = [op for op in reversed(journal.ops) if not take_back(home, journal, op)]
    sync_changed(home, file)
    begin_anew(file)
    with suppress(OSError):
        staging.tokens.remove_all()
    remove_tokens(home, journal)  # also a deleted file in whose place somebody has put another one
    return theirs


def _foreign(op: Operation) -> ConflictError:
    shown = paths.decode(op.path)
    return ConflictError(f"{shown!r} was changed by somebody else during the commit", path=shown)
