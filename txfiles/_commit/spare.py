"""The spare: room that a root keeps for what makes room, on a disk that has none.

It means nothing, and may be missing at any time: whoever needs room unlinks it, and a later commit makes it again.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

from txfiles._disk.system import NO_ROOM
from txfiles._format import layout, paths

if TYPE_CHECKING:
    from txfiles._commit.home import Home

SIZE = 64 << 10
LARGE = 384 << 10  # elsewhere: what it takes to write a journal, and then
_TO_GROW = 256 << 10  # what xfs wants to have free before it lets a directory grow
_NAME = 64
_FRUGAL = ("ext", "btrfs", "memory")
_SHARE = 16


def keep(home: Home, *, durable: bool) -> None:
    """Make it where it was missed, if that takes at most a sixteenth of the room that is left.

    Nothing hangs on it, so that what fails here is no failure of the commit.
    """
    if not home.lacks_spare:
        return
    home.lacks_spare = False
    with suppress(OSError):
        size = SIZE if _is_frugal(home) else LARGE
        if home.fs.free(home.private_fd) >= _SHARE * size:
            # Synced, or a power loss could leave its name and not its room (A3).
            home.make(layout.SPARE, lambda fd: home.fs.allocate(fd, size), durable=durable)


def give(home: Home, error: Exception, *more: bytes) -> bool:
    """Whether `error` is that of a full disk, and there is room now: the spare went, or else the first of `more`.

    Not where the sync of a directory has failed: what is done again would believe another one (A4).
    """
    if home.sync_failed or not (isinstance(error, OSError) and error.errno in NO_ROOM):
        return False
    for name in (layout.SPARE, *more):
        with suppress(OSError):
            home.fs.unlink(home.private_fd, name)
            home.is_full = True
            return True
    return False


def require(home: Home, names: int) -> None:
    """Let a full disk be found out before the commit point: that many names are to come, and perhaps to go back."""
    if not home.is_full:
        return
    if not _is_frugal(home) and home.fs.free(home.private_fd) < _TO_GROW + names * _NAME:
        shown = paths.decode(paths.join(home.root, layout.PRIVATE))
        raise OSError(
            errno.ENOSPC, "there is no room for the names that a commit makes; fewer at a time may fit", shown
        )


def _is_frugal(home: Home) -> bool:
    return home.fs.kind(home.private_fd) in _FRUGAL
