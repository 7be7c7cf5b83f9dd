"""Small files of a root that is known to be at rest (R5 in `reader`): opened and read without more ado."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txfiles._format import layout
from txfiles._reading.lookout import Mark, mark_from, rest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txfiles._disk.system import FileSystem, Stat


class Resting(NamedTuple):
    """What was read, of which state; while the private directory has this mark it is the last one."""

    found: list[Stat]
    contents: list[bytes]
    version: str
    mark: Mark


def read_at_rest(fs: FileSystem, root: bytes, names: Sequence[bytes], limit: int) -> Resting | None:
    """Stat and content of files, each directly in the root and of at most `limit` bytes.

    `None` where the root is not known to be at rest, was left by a writer since, or where it takes more to read them,
    or to tell what is wrong: that is for a `Reader`. Not in `HeldBack`, which would take a tenth of the time: so an
    error is the kernel's if it has the very object that the kernel was given.
    """
    known = rest.last(root)
    if known is None or b"/" in b"".join(names):
        return None
    mark, (version, session) = known
    try:
        fd = fs.open_dir(None, root, follow=True)
        try:
            files = fs.read_small(fd, names, limit)
            same_session = session is None or fs.session(fd) == session
            if mark_from(fs.stat(fd, layout.PRIVATE)) != mark or not same_session:
                rest.left(root)
                files = None
        finally:
            fs.close(fd)
    except OSError as error:
        if any(error.filename is given for given in (root, layout.PRIVATE, *names)):
            return None
        raise
    return None if files is None else Resting(*files, version, mark)
