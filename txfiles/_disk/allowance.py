"""What a place does not give, as far as the caller has accepted that in advance, by name; and what was given up."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from txfiles._format import paths

if TYPE_CHECKING:
    from collections.abc import Collection

    from txfiles._format.journal import Meta

Accept = Literal["narrowed-modes", "unsynced-directories"]
"""What has to be accepted: else it is an error."""

NAMES: tuple[Accept, ...] = get_args(Accept)
_told: set[tuple[bytes, str]] = set()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What a file did not get: a name of `Accept`, `"changed-owners"` or `"left-open"`, and the path, or the root's."""

    what: Literal["narrowed-modes", "unsynced-directories", "changed-owners", "left-open"]
    path: str


class UnsyncedDirectoryError(OSError):
    """The file system has no sync of directories, and nobody has accepted that. It is no failure of the disk."""


class Allowance:
    """What was accepted for one root, and a record of what it was needed for."""

    def __init__(self, root: bytes, accept: Collection[Accept] = ()) -> None:
        self._root = root
        self._accepted = frozenset(accept)
        self._given_up: dict[GivenUp, None] = {}

    @property
    def given_up(self) -> tuple[GivenUp, ...]:
        """In the order in which it happened."""
        return tuple(self._given_up)

    def accepts(self, what: Accept) -> bool:
        return what in self._accepted

    def directories(self, why: str) -> None:
        """The place syncs no directories."""
        why = f"the file system cannot sync directories ({why}); after a power loss it decides what is durable"
        self._tell(GivenUp("unsynced-directories", paths.decode(self._root)), logging.WARNING, why)

    def metadata(self, path: bytes, wanted: Meta, has: Meta, *, new: bool) -> None:
        """A file has got `has` instead of `wanted`; one that is `new` has lost no owner."""
        shown = paths.decode(path)
        if is_narrower(wanted, has):
            why = f"{shown!r} has lost group {wanted.gid} and what it might do, or set-id bits: chown was refused"
            self._tell(GivenUp("narrowed-modes", shown), logging.WARNING, why)
        elif not new and (has.uid, has.gid) != (wanted.uid, wanted.gid):
            why = f"{shown!r} belongs to {has.uid}:{has.gid} now, not {wanted.uid}:{wanted.gid}: chown was refused"
            self._tell(GivenUp("changed-owners", shown), logging.INFO, why)

    def left_open(self, path: bytes, owner: int, mode: int) -> None:
        """A new directory of a member of the group who died, which only that one can close."""
        shown = paths.decode(path)
        why = f"{shown!r} stays open to the group of the root: only user {owner} can close it, chmod {mode:o}"
        self._tell(GivenUp("left-open", shown), logging.WARNING, why)

    def _tell(self, lost: GivenUp, level: int, why: str) -> None:
        self._given_up[lost] = None
        if (self._root, lost.what) not in _told:  # the record has each one, the log one for a root
            _told.add((self._root, lost.what))
            logging.getLogger("txfiles").log(level, "%s: %s", paths.decode(self._root), why)


def is_narrower(wanted: Meta, has: Meta) -> bool:
    """Whether somebody may do less than `wanted` says, as far as chown(2) is the reason."""
    return has.mode != wanted.mode or (has.gid != wanted.gid and len(has.xattrs) < len(wanted.xattrs))


def check_accept(accept: Collection[str]) -> None:
    """Raises `ValueError` for a name that is none."""
    unknown = [accept] if isinstance(accept, str) else sorted(set(accept).difference(NAMES), key=repr)
    if unknown:
        known = ", ".join(map(repr, NAMES))
        raise ValueError(f"accept is a collection of {known}; not {', '.join(map(repr, unknown))}")
