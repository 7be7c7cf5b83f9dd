"""Two trees that are one, or one in the other, also through links and bind mounts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from txfiles.errors import InvalidPathError

if TYPE_CHECKING:
    from txfiles._sync.folder import Folder
    from txfiles._sync.sides import Listing


def require_apart(source: Folder, listing: Listing, target: str, there: Listing | None = None) -> None:
    """Raise `InvalidPathError` if a directory of one tree is one of the other, or lies in it.

    Paths alone do not tell, nor do the directories above alone: a bind mount has others. So what was listed on both
    sides is compared, too. The target may still be missing.
    """
    ours = {entry.identity: source.shown(name) for name, entry in listing.entries.items() if entry.kind == "dir"}
    ours[source.identity] = source.path
    for identity, path in _at_and_above(target).items():
        if identity in ours:
            raise _overlap(source.path, target, path)
    root = _identity_of(target)
    for name in ("", *source.followed):
        if root in _at_and_above(source.shown(name)):
            raise _overlap(source.path, target, source.shown(name))
    for name, entry in there.entries.items() if there is not None else ():
        if entry.kind == "dir" and entry.identity in ours:
            raise _overlap(source.path, target, os.path.join(target, name))


def _identity_of(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _at_and_above(path: str) -> dict[tuple[int, ...], str]:
    """The directories of a path by what they are, those of them that exist."""
    found, path = {}, os.path.realpath(path)
    while True:
        if (identity := _identity_of(path)) is not None:
            found[identity] = path
        if path == (path := os.path.dirname(path)):
            return found


def _overlap(source: str, target: str, shared: str) -> InvalidPathError:
    message = f"the source {source!r} and {target!r} overlap: {shared!r} is in both"
    return InvalidPathError(message, path=shared)
