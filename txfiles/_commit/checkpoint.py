"""The checkpoint: what the records of the log stand for becomes durable in the tree, and the log begins anew.

The tail says "syncing" before the first sync, so that whoever finds it does not believe the page cache (A4): after a
sync that failed, everything is put in its place anew, from the records; here at once, or by recovery.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._commit.durable import files_round
from txfiles._commit.restore import restore
from txfiles._disk.system import release
from txfiles._format import layout, paths

if TYPE_CHECKING:
    from txfiles._commit.home import Home
    from txfiles._commit.logfile import LogFile


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
        restore(home, file.records, "keep-theirs", is_copy=file.is_copy, every=True)
        sync_changed(home, file)
    begin_anew(file)


def _show(home: Home) -> None:
    """Give the private directory a new time: who goes by that looks at the tail then, and may find it here for good."""
    name = layout.token(home.fs.random_id(), 0)
    with suppress(OSError):  # no room for a name
        release(home.fs, home.fs.create(home.private_fd, name))
        home.fs.unlink(home.private_fd, name)


def sync_changed(home: Home, file: LogFile) -> None:
    """Every path of every record, as it is now."""
    home.tree.close()  # directories may have been moved since they were opened
    changed = set(file.read().changed)
    files_round(home, changed, {paths.split(path)[0] for path in changed})


def begin_anew(file: LogFile) -> None:
    """Begin the log anew. REQUIRES: `sync_changed`."""
    try:
        file.restart()
    except OSError:
        file.renew()
    file.mark("applied")
