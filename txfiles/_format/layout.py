"""Every name under the private directory: its builder and its parser.

    format                  format version and lock protocol
    lock                    the writers' lock file, never removed
    HEAD                    the journal of the last settled transaction
    log, tail               records of many transactions, and where they end (see `_format.log`)
    spare                   room that is kept for a delete on a full disk
    .gitignore              lets git take no notice of the directory, and `git clean` leave it
    T.k                     the token of operation k of transaction T
    T.k.old                 what a write replaces
    T.intent, T.committed, T.aborting, T.prepared
                            the journal of T, named after its state

T is 128 random bits in hex and k a decimal number; nothing else is ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PRIVATE = b".txfiles"
FORMAT = b"format"
LOCK = b"lock"
HEAD = b"HEAD"
LOG = b"log"
TAIL = b"tail"
SPARE = b"spare"
IGNORE = b".gitignore"
PERMANENT = frozenset((FORMAT, LOCK, HEAD))
_MEANT = PERMANENT | {LOG, TAIL}
LASTING = _MEANT | {SPARE, IGNORE}  # what may be there at rest; the last two mean nothing
FORMAT_TEXT = b"txfiles 1 flock\n"
FORMAT_WITH_LOG = b"txfiles 2 flock\n"  # what there is before there is a log: a txfiles that knows of none stays out
IGNORE_TEXT = b"# a journal that git removed or took back could not be recovered\n*\n"
MAX_NUMBER = 9_999_999_999  # ten digits, as the pattern below has them

State = Literal["intent", "committed", "aborting", "prepared"]
Kind = Literal["permanent", "token", "old", "intent", "committed", "aborting", "prepared", "unknown"]

_STATES: dict[bytes, State] = {
    b"intent": "intent",
    b"committed": "committed",
    b"aborting": "aborting",
    b"prepared": "prepared",
}
_NAME = re.compile(rb"([0-9a-f]{32})\.(?:(0|[1-9][0-9]{0,9})(\.old)?|(intent|committed|aborting|prepared))")


class Name(NamedTuple):
    """A parsed name of the private directory. `tid` is empty and `number` -1 where they do not apply."""

    kind: Kind
    tid: str = ""
    number: int = -1


def ours(names: Iterable[bytes]) -> set[bytes]:
    """Those of the names that mean anything; the others are files that somebody else put into the directory."""
    return {name for name in names if name in _MEANT or _NAME.fullmatch(name)}


def unsettled(names: Iterable[bytes]) -> Iterator[bytes]:
    """Those of the names that are ours and not there at rest; of many who asks most often needs the first alone."""
    return (name for name in names if name not in LASTING and _NAME.fullmatch(name))


def token(tid: str, number: int) -> bytes:
    return b"%s.%d" % (tid.encode(), number)


def old(tid: str, number: int) -> bytes:
    return b"%s.%d.old" % (tid.encode(), number)


def journal(tid: str, state: State) -> bytes:
    return b"%s.%s" % (tid.encode(), state.encode())


def staged_by(name: bytes) -> str:
    """The transaction of a token or an old file; empty for every other name."""
    match = _NAME.fullmatch(name)
    return match[1].decode() if match is not None and match[4] is None else ""


def parse(name: bytes) -> Name:
    if name in LASTING:
        return Name("permanent")
    match = _NAME.fullmatch(name)
    if match is None:
        return Name("unknown")
    tid, number, is_old, state = match.groups()
    if state is not None:
        return Name(_STATES[state], tid.decode())
    return Name("old" if is_old else "token", tid.decode(), int(number))
