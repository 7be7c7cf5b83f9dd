"""The checkpoint: what the records of the log stand for becomes durable in the tree, and the log begins anew.

The tail says "syncing" before the first sync, so that whoever finds it does not believe the page cache (A4): after a
sync that failed there, recovery puts everything in its place anew, from the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txfiles._commit.durable import files_round
from txfiles._format import layout, paths

if TYPE_CHECKING:
    from txfiles._commit.home import Home
    from txfiles._commit.logfile import LogFile
    from txfiles._format.log import Phase


def checkpoint(home: Home, file: LogFile, phase: Phase = "syncing") -> None:
    """End with an empty log. REQUIRES: every record is applied, or with `"undoing"` all but the last one.

    Raises `OSError`; then the records count as before, and recovery has to go on.
    """
    if file.records:
        file.mark(phase)
        sync_changed(home, file)
        begin_anew(file)


def sync_changed(home: Home, file: LogFile) -> None:
    """Every path of every record, as it is now."""
    home.tree.close()  # directories may have been moved since they were opened
    changed = {op.path for record in file.records for op in record.journal.ops}
    files_round(home, changed, {paths.split(path)[0] for path in changed})


def begin_anew(file: LogFile) -> None:
    """Begin the log anew. REQUIRES: `sync_changed`."""
    try:
        file.restart()
    except OSError:
        file.renew()
    file.mark("applied")


def remove_tokens(home: Home) -> None:
    """All that are there: no record needs one."""
    for name in sorted(home.names()):
        if layout.parse(name).kind == "token":
            home.discard(name)
