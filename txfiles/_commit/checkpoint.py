"""The checkpoint: what the records of the log stand for becomes durable in the tree, and the log begins anew.

The tail says "syncing" before the first sync, so that whoever finds it does not believe the page cache (A4): after a
sync that failed, everything is put in its place anew, from the records; here at once, or by recovery.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._commit import spare
from txfiles._commit.durable import files_round, sync_everything
from txfiles._commit.restore import put_anew
from txfiles._disk.system import release
from txfiles._format import layout, paths
from txfiles._tree.tokens import identity_of

if TYPE_CHECKING:
    from txfiles._commit.home import Home
    from txfiles._commit.logfile import LogFile
    from txfiles._format.journal import Identity


def checkpoint(home: Home, file: LogFile) -> None:
    """End with an empty log. REQUIRES: every record is applied.

    Raises `OSError` or `RecoveryConflictError`; then the records count as before, and recovery has to go on.
    """
    if file.is_empty:
        return
    file.mark("syncing")
    _show(home)
    try:
        sync_changed(home, file)
    except OSError:
        home.tree.close()
        put_anew(home, file.records)
        sync_changed(home, file)
    begin_anew(file)
    spare.keep(home, durable=True)


def _show(home: Home) -> None:
    """Give the private directory a new time: who goes by that looks at the tail then, and may find it here for good."""
    name = layout.token(home.fs.random_id(), 0)
    with suppress(OSError):  # no room for a name
        release(home.fs, home.fs.create(home.private_fd, name))
        home.fs.unlink(home.private_fd, name)


def sync_changed(home: Home, file: LogFile) -> None:
    """Every path of every record, as it is now.

    Where one does not show the file that was put there, that may have another name by now: then everything.
    """
    home.tree.close()  # directories may have been moved since they were opened
    known = file.read()
    files_round(home, known.changed, {paths.split(path)[0] for path in known.changed})
    if any(known.put_elsewhere(path, _identity_at(home, path)) for path in known.changed):
        sync_everything(home)


def _identity_at(home: Home, path: bytes) -> Identity | None:
    found = home.tree.stat(path)
    return None if found is None else identity_of(found)


def begin_anew(file: LogFile) -> None:
    """Begin the log anew. REQUIRES: `sync_changed`."""
    try:
        if not file.must_go:
            file.restart()
    except OSError:
        file.must_go = True
    if file.must_go:
        file.renew()
    file.mark("applied")
