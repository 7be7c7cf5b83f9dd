"""Which protocol a transaction goes by: that of `protocol`, or the log.

With durability "journal" a commit goes through the log where that can hold it: small files that are written, and
deletes. Everything else goes by "full", and so does all of it where no log can be (no room, no exchange of names, no
session to be told) or none is wanted: on btrfs a sync of the log costs two flushes anyway. On tmpfs nothing outlives a
power loss, and "process" is as good. None of that weakens what a commit promises; only its speed differs.

J5  Whatever goes by `protocol` begins with an empty log.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txfiles._commit import log_commit
from txfiles._commit.checkpoint import checkpoint
from txfiles._commit.durable import home_round, sync_open, sync_private
from txfiles._commit.inventory import read_head
from txfiles._commit.logfile import LogFile
from txfiles._commit.protocol import Commit, give_up, prepare
from txfiles._commit.recover import ensure_format, recover_locked
from txfiles._disk.system import NO_ROOM, write_all
from txfiles._format import journal as codec
from txfiles._format import layout, log
from txfiles._format.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from txfiles._commit.home import Home
    from txfiles._commit.recover import RecoveryReport
    from txfiles._format.journal import Durability, Operation, Synced
    from txfiles._tree.staging import Staging

_WITHOUT_LOG = ("btrfs", "memory")
_NO_LOG = (*NO_ROOM, errno.EFBIG, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def enter(home: Home, level: Durability) -> RecoveryReport | None:
    """Recover what a crash left; what was done, or `None` if nothing was. REQUIRES: the lock.

    The log is open then, and at rest, where there is one. Raises what `recover_locked` does.
    """
    report = None
    if not rests(home):
        report = recover_locked(home, durable=level != "process")
        ensure_format(home)
    if (file := log_of(home)) is not None and file.must_go:
        checkpoint(home, file)
        if file.must_go:
            file.renew()
    return report


def inline(level: Durability) -> int:
    """Bytes of a file that a commit does not sync, for the log takes its content; -1 where there is none."""
    return log.INLINE if level == "journal" else -1


def rests(home: Home) -> bool:
    """Nothing to recover and nothing to write: the permanent files, a format that is ours, a log without a commit that
    was cut off. The usual case.
    """
    there = home.names()
    home.lacks_spare = layout.SPARE not in there
    names = layout.ours(there)
    if names == layout.PERMANENT:
        return home.format_is_ours()
    if layout.LOG not in names or not names <= layout.LASTING or home.format() != layout.FORMAT_WITH_LOG:
        return False
    home.log = file = LogFile.open(home)
    return file is not None and file.phase() == "applied"


def commit(home: Home, staging: Staging, level: Durability) -> int:
    """Make the change; its number if it went through the log, else 0.

    Raises what `Commit` does, and an error of the caller's when nothing has changed.
    """
    operations: list[Operation] | None = None
    if level == "journal":
        with _giving_up(home, staging):
            home.require_in_place()
            operations = staging.plan()
            file = _log_for(home, operations)
        if file is not None and log_commit.commit(home, staging, file, operations):
            return file.seq
    if (journal := make_ready(home, staging, level, operations=operations)) is not None:
        Commit(home, journal)()
    return 0


def make_ready(
    home: Home,
    staging: Staging,
    level: Durability,
    *,
    two_phase: bool = False,
    operations: list[Operation] | None = None,
) -> Journal | None:
    """`prepare` behind an empty log (J5)."""
    if home.log is not None:
        with _giving_up(home, staging):
            if operations is None:
                home.require_in_place()
                operations = staging.plan()
            if operations:
                empty_log(home)
    durability = instead(home) if level == "journal" else level
    return prepare(home, staging, durability, two_phase=two_phase, operations=operations)


@contextmanager
def _giving_up(home: Home, staging: Staging) -> Iterator[None]:
    try:
        yield
    except BaseException as cause:
        give_up(home, staging, [], 0, cause)
        raise


def instead(home: Home) -> Synced:
    """What a commit goes by that cannot go through the log."""
    return "process" if home.fs.kind(home.private_fd) == "memory" else "full"


def bring_to_rest(home: Home, tid: str, level: Durability) -> bool:
    """After an interrupt that came between two steps; whether the transaction was committed."""
    home.close_log()
    enter(home, level)
    file = log_of(home)
    if tid in home.ended or (file is not None and any(record.journal.tid == tid for record in file.records)):
        return True
    head = read_head(home)
    return head is not None and head.tid == tid


# -- the log --------------------------------------------------------------------------------------------------------


def log_of(home: Home) -> LogFile | None:
    file = home.log
    assert file is None or isinstance(file, LogFile)
    return file


def empty_log(home: Home) -> None:
    """A checkpoint, where there is a log. REQUIRES: it is at rest."""
    if (file := log_of(home)) is not None:
        checkpoint(home, file)


def remove_log(home: Home) -> None:
    """Back to a root that every txfiles can use. REQUIRES: it is at rest, and the lock.

    Each step is durable before the next: a format without a log must not be beside one. The number and the version of
    the last commit go on in HEAD.
    """
    file = log_of(home)
    if file is not None:
        checkpoint(home, file)
        _write_head(home)
        home.close_log()
        home.remove(layout.LOG)
        home.remove(layout.TAIL)
        sync_private(home)
    if home.format() == layout.FORMAT_WITH_LOG:
        home.write_format(layout.FORMAT_TEXT)
        home_round(home)


def _write_head(home: Home) -> None:
    """Of a transaction that changes nothing, as the first txfiles wrote it."""
    fs, tid, seq = home.fs, home.fs.random_id(), home.next_number(read_head(home))
    name = layout.token(tid, 0)
    fd = fs.create(home.private_fd, name)
    try:
        ino = home.share(fd).st_ino
        journal = Journal(tid, seq, "full", fs.boot_id(), ino, (), (), version=1, born=fs.born(fd))
        write_all(fs, fd, codec.encode(journal))
        sync_open(home, fd)
        fs.rename(home.private_fd, name, home.private_fd, layout.HEAD)
    finally:
        fs.close(fd)


def _log_for(home: Home, operations: list[Operation]) -> LogFile | None:
    """The log that is to hold them, made where there is none yet; `None` where it cannot."""
    if not operations or not log_commit.fits(operations):
        return None
    file = log_of(home) or _make_log(home)
    metas = [op.meta for op in operations if op.meta is not None]
    return None if file is None or not file.may_hold(metas) else file


def _make_log(home: Home) -> LogFile | None:
    if home.fs.kind(home.private_fd) in _WITHOUT_LOG or not home.fs.session(home.private_fd):
        return None
    try:
        home.log = file = LogFile.make(home, 1, home.next_number(read_head(home)) - 1)
    except OSError as error:
        if error.errno not in _NO_LOG:
            raise
        return None
    return file
