"""Steps of other programs at every crash of a commit (G6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.crash.steps import PRIVATE, keep_theirs, replaced
from txfiles import recover
from txfiles.testing import SimFS, Tree

# -- meanwhile: at every crash --------------------------------------------------------------------------------------


def pending(fs: SimFS) -> bool:
    names = fs.names(PRIVATE) if fs.exists(PRIVATE) else ()
    return any(name.endswith((".intent", ".committed", ".aborting")) for name in names)


def meanwhile(act: Callable[[SimFS], None]) -> Callable[[SimFS], None]:
    """After a crash in the middle and before recovery somebody changes `b`."""

    def recovery(fs: SimFS) -> None:
        if pending(fs) and fs.exists("/sim/b") and fs.get("/sim/b") == b"old b":
            act(fs)
            fs.put("/meddled", "")
        keep_theirs(fs)

    return recovery


def theirs_is_kept(fs: SimFS, allowed: Sequence[Tree]) -> None:
    if fs.exists("/meddled"):
        assert fs.get("/sim/b").startswith(b"other")
    else:
        assert fs.tree() in allowed


def same_bytes_meanwhile(fs: SimFS) -> None:
    """After a crash somebody puts in the place of `b` what was to come: no proof, as long as its token is there."""
    if (
        pending(fs)
        and fs.exists("/sim/b")
        and fs.get("/sim/b") == b"old b"
        and any(name.endswith(".1") for name in fs.names(PRIVATE))
    ):
        replaced("/sim/b", "new b")(fs)
    keep_theirs(fs)


def same_new_file_meanwhile(fs: SimFS) -> None:
    if pending(fs) and not fs.exists("/sim/e"):
        fs.put("/sim/e", "new e")
    recover("/sim")


def like_the_new_file_meanwhile(fs: SimFS) -> None:
    """The same bytes with another mode: when a power loss took the token, this is not where it went."""
    if pending(fs) and not fs.exists("/sim/e"):
        fs.put("/sim/e", "new e", mode=0o600)
    keep_theirs(fs)


def new_file_in_undo(fs: SimFS) -> None:
    """While an undo is pending somebody makes the file that the transaction no longer makes."""
    if any(name.endswith(".aborting") for name in fs.names(PRIVATE)) and not fs.exists("/sim/A"):
        fs.put("/sim/A", "other")
    recover("/sim")


def at_rest(fs: SimFS, _: Sequence[Tree]) -> None:
    assert fs.names(PRIVATE) <= {"HEAD", "lock", "format"}
