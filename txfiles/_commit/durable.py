"""The sync rounds: what has to be durable together. Functions here make durable, none changes the tree."""

from __future__ import annotations

import errno
import stat
from functools import partial
from typing import TYPE_CHECKING

from txfiles._disk.allowance import UnsyncedDirectoryError
from txfiles._disk.rounds import perform
from txfiles._disk.system import release
from txfiles._format import layout, paths
from txfiles._tree.tokens import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from txfiles._commit.home import Home
    from txfiles._disk.rounds import Job, Sync
    from txfiles._format.journal import Head, Journal, Operation
    from txfiles._tree.tokens import Tokens

_NOT_SUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def first_round(home: Home, tokens: Tokens, journal: Journal, head: Head | None) -> None:
    """Before the commit point: every token, the journal, the private directory, and what they stand on (I1).

    What HEAD vouches for, a file that a durable transaction has put there, is durable already.
    Everything else may be another program's unsynced work: its old files, lest recovery later mistake what a power
    loss made of them for somebody's change, and the directories above, lest they go and take the new files along.
    """
    if journal.durability == "process":
        return
    jobs: list[Job] = [tokens.sync(op.number) for op in journal.ops if op.new is not None and op.new.link is None]
    if home.progress is not None:
        jobs = [partial(_counted, home, job) for job in jobs]
    jobs.append(tokens.sync(JOURNAL))
    jobs.append(partial(_sync_dir, home, home.private_fd))
    jobs += [
        partial(_sync_old, home, journal, op)
        for op in journal.ops
        if op.old is not None and op.old.link is None and (head is None or not head.vouches_for_file(op.path, op.old))
    ]
    above = {paths.split(path)[0] for path, ino in journal.dirs if path and ino}
    above.update(paths.split(link)[0] for one in journal.exits for link in one.links)
    jobs += [partial(_sync_directory, home, path) for path in sorted(above)]
    home.fs.run_all(jobs)


def _counted(home: Home, job: Job) -> Generator[Sync, None, None]:
    if isinstance(job, tuple):
        yield job
    else:
        yield from job()
    home.step()


def home_round(home: Home) -> None:
    """Once for a root, before its first journal is made: that must not survive without `format` and its directories.

    Nobody knows who made those above the root, and whether they are durable.
    """
    jobs: list[Job] = [
        partial(_sync_file, home, layout.FORMAT),
        partial(_sync_dir, home, home.private_fd),
        partial(_sync_dir, home, home.root_fd),
        *(partial(_sync_above, home, directory) for directory in paths.ancestors(home.root)[1:]),
    ]
    home.fs.run_all(jobs)


def second_round(home: Home, journal: Journal, private_done: list[bool]) -> None:
    """After apply or undo: every touched directory and the private one. `private_done[0]` tells of the latter."""

    def private() -> Generator[Sync, None, None]:
        yield from _sync_dir(home, home.private_fd)
        private_done[0] = True

    touched = {paths.split(op.path)[0] for op in journal.ops}
    touched.update(op.path for op in journal.ops if op.kind == "mkdir")
    home.fs.run_all([private, *(partial(_sync_directory, home, path) for path in sorted(touched))])


def files_round(home: Home, files: Iterable[bytes], directories: Iterable[bytes]) -> None:
    """Files as they are now, where there are any, directories, and the private one."""
    jobs: list[Job] = [partial(_sync_dir, home, home.private_fd)]
    jobs += [partial(_sync_target, home, path) for path in sorted(files)]
    jobs += [partial(_sync_directory, home, path) for path in sorted(directories)]
    home.fs.run_all(jobs)


def sync_directories(home: Home, directories: Iterable[bytes], *, private: bool = False) -> None:
    """A barrier: these directories (those that exist), and with `private` the private one."""
    jobs: list[Job] = [partial(_sync_directory, home, path) for path in sorted(directories)]
    if private:
        jobs.append(partial(_sync_dir, home, home.private_fd))
    home.fs.run_all(jobs)


def sync_everything(home: Home) -> None:
    """All that is in the file system of the root, for a file of which no name is known."""
    home.fs.sync_file_system(home.private_fd)


def sync_tokens(home: Home, names: Iterable[bytes]) -> None:
    """Files that lie in the private directory."""
    home.fs.run_all([partial(_sync_content, home, home.private_fd, name) for name in sorted(names)])


def sync_private(home: Home) -> None:
    perform(partial(_sync_dir, home, home.private_fd))


def sync_open(home: Home, fd: int) -> None:
    def job() -> Generator[Sync, None, None]:
        yield home.fs.sync_file, fd

    perform(job)


def _sync_file(home: Home, name: bytes) -> Generator[Sync, None, None]:
    fd = home.fs.open_read(home.private_fd, name)
    try:
        yield home.fs.sync_file, fd
    finally:
        release(home.fs, fd)


def _sync_old(home: Home, journal: Journal, op: Operation) -> Generator[Sync, None, None]:
    """Through the link that was made for a write; a delete makes none."""
    at, name = home.private_fd, layout.old(journal.tid, op.number)
    parent = -1
    if op.kind == "delete":
        parent = home.tree.walk(paths.split(op.path)[0])
        at, name = parent, paths.split(op.path)[1]
    try:
        yield from _sync_content(home, at, name)
    finally:
        if parent >= 0:
            release(home.fs, parent)


def _sync_content(home: Home, at: int, name: bytes) -> Generator[Sync, None, None]:
    try:
        fd = home.fs.open_read(at, name)
    except PermissionError:  # replaced without being read
        yield home.fs.sync_file_system, home.private_fd
        return
    try:
        yield home.fs.sync_file, fd
    finally:
        release(home.fs, fd)


def _sync_target(home: Home, path: bytes) -> Generator[Sync, None, None]:
    above, name = paths.split(path)
    try:
        parent = home.tree.walk(above)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed since, with its directory: what is above that says so
    try:
        if stat.S_ISREG(home.fs.stat(parent, name).st_mode):
            yield from _sync_content(home, parent, name)
    except FileNotFoundError:
        pass  # its directory says so
    finally:
        release(home.fs, parent)


def _sync_directory(home: Home, path: bytes) -> Generator[Sync, None, None]:
    if not path:
        yield from _sync_dir(home, home.root_fd)
        return
    try:
        fd = home.tree.walk(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed, by this transaction or by somebody else: its parent says so
    except PermissionError:  # one may pass, out of the root; or another member of a group has made it, and died
        yield home.fs.sync_file_system, home.private_fd
        return
    try:
        yield from _sync_dir(home, fd)
    finally:
        release(home.fs, fd)


def _sync_above(home: Home, directory: bytes) -> Generator[Sync, None, None]:
    try:
        fd = home.fs.open_dir(None, directory or b"/", follow=True)
    except PermissionError:  # one may make a root in what one may only write
        yield home.fs.sync_file_system, home.root_fd
        return
    try:
        yield from _sync_dir(home, fd)
    finally:
        release(home.fs, fd)


def _sync_dir(home: Home, fd: int) -> Generator[Sync, None, None]:
    """fsync of a directory; one that has none (some network and FUSE mounts) has to be accepted."""
    try:
        yield home.fs.sync_dir, fd
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            home.sync_failed = True
            raise
        if not home.allowance.accepts("unsynced-directories"):
            message = f"the file system cannot sync directories ({error.strerror}), so a commit may not survive a power"
            message += ' loss; accept={"unsynced-directories"} takes that'
            raise UnsyncedDirectoryError(error.errno, message, paths.decode(home.root)) from error
        home.allowance.directories(error.strerror or "")
