"""What the records of the log stand for, put in its place anew: made durable out of the record before its rename.

All paths are examined before one is touched. A path that shows none of the files that the records know, and not what
the last one put there, is somebody else's. Theirs is kept without asking where it came after the records and before
this start of the machine: then it was the last change before the power went. A path that shows nothing is ours.

Some of what looks like ours is theirs, too, where it was changed when the last commit was long over, and before this
start of the machine: another mode of the whole content, an older copy with its time. A commit is done soon after its
record is written; one that took longer has made a checkpoint before it returned (`TOOK_LONG`). A torn file stays ours,
whoever has changed its mode since; and so does a path that shows nothing.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from txfiles._disk import metadata
from txfiles._format import paths
from txfiles._tree.tokens import Tokens, digest_of_file
from txfiles.errors import RecoveryConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._commit.home import Home
    from txfiles._disk.system import Stat
    from txfiles._format.journal import Identity, Operation
    from txfiles._format.log import Record

Choice = Literal["raise", "keep-theirs", "roll-forward", "roll-back"]


TOOK_LONG = 5_000_000_000  # ns, of a commit from its time to where it is applied
_OVER = 2 * TOOK_LONG  # since the last one: nothing of it can be as late
_SLACK = 2_000_000_000  # ns; the clock may be set while the machine starts


class Final(NamedTuple):
    """The last operation of a path, its content and time, and all files that the records know there.

    Those of them that were `made` by a record were not synced.
    """

    op: Operation
    content: bytes
    time: int
    boot: str
    known: tuple[Identity, ...]
    made: tuple[Identity, ...]


def finals(records: Sequence[Record]) -> dict[bytes, Final]:
    """What each path is after all of the records."""
    found: dict[bytes, Final] = {}
    for record in records:
        contents = iter(record.contents)
        for op in record.journal.ops:
            before = found.get(op.path)
            known, made = (before.known, before.made) if before else ((), ())
            known += tuple(one for one in (op.old, op.new) if one is not None)
            made += () if op.new is None else (op.new,)
            content = next(contents) if op.kind == "write" else b""
            found[op.path] = Final(op, content, record.time, record.journal.boot, known, made)
    return found


class Examined(NamedTuple):
    """What the paths show of what the records put there: all of it, not all of it, or somebody else's file.

    Of those `later` came after the records; also where somebody has removed the directory of a file.
    """

    whole: list[Final]
    missing: list[Final]
    foreign: list[Final]
    later: list[Final]


def examine(home: Home, records: Sequence[Record], *, is_copy: bool) -> Examined:
    """Look at every path of the records. Reads only."""
    out = Examined([], [], [], [])
    gone: list[Final] = []
    over = max((record.time for record in records), default=0) + _OVER
    for path, final in finals(records).items():
        found = home.tree.stat(path)
        if is_whole(home, final, found):
            out.whole.append(final)
        elif found is None:  # a recovery that was cut off can leave that, too (A1)
            is_gone = not has_parent(home, path)
            (out.later if is_gone else out.missing).append(final)
            gone += [final] if is_gone else []
        elif not is_copy and over < found.st_ctime_ns and _is_not_ours(home, final, found):
            is_later = _came_before(home, final, found, is_copy=is_copy) or _has_content(home, final, found)
            (out.later if is_later else out.foreign).append(final)
        elif is_ours(final, found, is_copy=is_copy):
            out.missing.append(final)
        else:
            is_later = _came_before(home, final, found, is_copy=is_copy)
            (out.later if is_later else out.foreign).append(final)
    out.missing.extend([] if is_copy else _torn_elsewhere(home, gone))
    return out


def _torn_elsewhere(home: Home, gone: Sequence[Final]) -> list[Final]:
    """Files whose directory is not there, at the paths below the root to which somebody has moved it."""
    wanted = {identity.ino: (final, identity) for final in gone for identity in final.made}
    found = []
    todo = [b""] if wanted else []
    device = home.fs.fstat(home.root_fd).st_dev
    while todo:
        directory = todo.pop()
        try:
            entries = [(path, home.tree.stat(path)) for path in _entries(home, directory)]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        for path, status in entries:
            if status is None or status.st_dev != device:
                continue
            if stat.S_ISDIR(status.st_mode):
                todo.append(path)
            elif status.st_ino in wanted:
                final, made = wanted[status.st_ino]
                final = final._replace(op=final.op._replace(path=path))
                if _is_torn(final, made, status) and not _has_content(home, final, status):
                    found.append(final)
    return found


def _entries(home: Home, directory: bytes) -> list[bytes]:
    return [paths.join(directory, name) for name in home.tree.listdir(directory)]


def _is_torn(final: Final, made: Identity, found: Stat) -> bool:
    """As a power loss leaves the file of a record, and no other that has got its number since.

    That was made later, and has a later time, unless somebody set it back, which changes the other one.
    """
    is_old = made.mtime_ns - _OVER <= found.st_mtime_ns <= made.mtime_ns and found.st_ctime_ns <= final.time + _OVER
    return is_old and stat.S_ISREG(found.st_mode) and found.st_size <= made.size


def _came_before(home: Home, final: Final, found: Stat, *, is_copy: bool) -> bool:
    """Somebody else's came after the record, and before a power loss, if there was one."""
    if not is_copy and final.boot == home.fs.boot_id():
        return final.time <= found.st_ctime_ns
    return final.time <= found.st_ctime_ns < home.fs.booted() - _SLACK


def _is_not_ours(home: Home, final: Final, found: Stat) -> bool:
    """No commit, recovery or power loss leaves that."""
    if any((one.ino, one.mtime_ns) == (found.st_ino, found.st_mtime_ns) for one in final.known):
        return _has_content(home, final, found)
    return True


def has_parent(home: Home, path: bytes) -> bool:
    return is_directory(home, paths.split(path)[0])


def is_directory(home: Home, path: bytes) -> bool:
    found = home.tree.stat(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


class Restored(NamedTuple):
    """The paths that were put in place, and those that are left as others have them since."""

    paths: list[bytes]
    theirs: list[bytes]


def restore(home: Home, records: Sequence[Record], on_conflict: Choice, *, is_copy: bool, every: bool) -> Restored:
    """Put in place what is not there, or `every` path.

    Not durable yet. Raises `RecoveryConflictError`, nothing touched.
    """
    found = examine(home, records, is_copy=is_copy)
    todo = [*found.missing, *(final for final in found.whole if every and final.op.kind == "write")]
    foreign = found.foreign
    in_the_way = [final for final in foreign if on_conflict == "roll-forward" and is_directory(home, final.op.path)]
    if in_the_way or (foreign and on_conflict in ("raise", "roll-back")):
        raise conflict([final.op for final in in_the_way or foreign])
    theirs = [final.op.path for final in found.later]
    if on_conflict == "roll-forward":
        todo += foreign
    else:
        theirs += [final.op.path for final in foreign]
    _replace(home, [final for final in todo if final.op.kind == "write"])
    for final in todo:
        if final.op.kind == "delete" and home.tree.stat(final.op.path) is not None:
            home.fs.unlink(*home.tree.at(final.op.path))
    return Restored([final.op.path for final in todo], theirs)


def put_anew(home: Home, records: Sequence[Record]) -> set[bytes]:
    """The files that are there, in the session that put them there: a sync of theirs may have failed. Their paths.

    Whatever else a path shows, or that it shows nothing, was somebody else's doing, and so is the metadata.
    """
    todo = []
    for path, final in finals(records).items():
        found = home.tree.stat(path)
        if found is not None and is_there(final, found):
            meta = metadata.read(home.fs, *home.tree.at(path), found)
            todo.append(final._replace(op=final.op._replace(meta=meta)))
    _replace(home, todo)
    return {final.op.path for final in todo}


def is_there(final: Final, found: Stat) -> bool:
    """What the last record put there, or recovery in its place."""
    new = final.op.new
    return new is not None and stat.S_ISREG(found.st_mode) and new[1:3] == (found.st_size, found.st_mtime_ns)


def _replace(home: Home, todo: Sequence[Final]) -> None:
    tokens = Tokens(home.fs, home.private_fd, home.fs.random_id(), durable=True)
    try:
        made = [(final, _make(tokens, final)) for final in todo]
        home.fs.run_all([tokens.sync(number) for _, number in made])
        tokens.close()
        for final, number in made:
            with paths.Naming(final.op.path, always=True):
                home.fs.rename(home.private_fd, tokens.name(number), *home.tree.at(final.op.path))
    except BaseException:
        with suppress(OSError):
            tokens.remove_all()
        raise
    finally:
        tokens.forget()


def _make(tokens: Tokens, final: Final) -> int:
    assert final.op.meta is not None
    assert final.op.new is not None
    writer = tokens.new(final.op.path)
    try:
        writer.write(final.content)
        return writer.finish(final.op.meta, None, final.op.new.mtime_ns).number
    finally:
        writer.discard()


def is_whole(home: Home, final: Final, found: Stat | None) -> bool:
    """The path shows what the last record put there, whatever its inode."""
    op = final.op
    if op.kind == "delete":
        return found is None
    return (
        found is not None
        and _has_content(home, final, found)
        and metadata.read(home.fs, *home.tree.at(op.path), found) == op.meta
    )


def _has_content(home: Home, final: Final, found: Stat) -> bool:
    if final.op.kind == "delete" or not stat.S_ISREG(found.st_mode) or found.st_size != len(final.content):
        return False
    return digest_of_file(home.fs, *home.tree.at(final.op.path), found.st_size) == final.op.digest


def is_ours(final: Final, found: Stat, *, is_copy: bool) -> bool:
    """A file that the records know, or that recovery has made of them: that has another inode, and the same time.

    What was not synced may have lost its size, and have the time of its birth; somebody else's change makes the time a
    later one. Of what was there before, another file may have got the number. In a copied tree no inode counts.
    """
    if not stat.S_ISREG(found.st_mode):
        return False
    if any((one.mtime_ns, one.size) == (found.st_mtime_ns, found.st_size) for one in final.known):
        return True
    return not is_copy and any(one.ino == found.st_ino and found.st_mtime_ns <= one.mtime_ns for one in final.made)


def conflict(foreign: Sequence[Operation]) -> RecoveryConflictError:
    changed = tuple(sorted({paths.decode(op.path) for op in foreign}))
    shown = paths.some([*map(repr, changed)])
    message = f"changed by somebody else since the commit: {shown}; nothing was touched, decide with on_conflict"
    return RecoveryConflictError(message, paths=changed)
