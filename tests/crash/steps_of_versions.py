"""Steps: what a txfiles that wrote the first version of the journal has left."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.crash.steps import PRIVATE, WRITES, at_call
from txfiles import FileTransaction
from txfiles._format import layout
from txfiles._format.journal import decode, encode
from txfiles.errors import CommitError
from txfiles.testing import SimFS, Tree


def first_version(fs: SimFS) -> None:
    """The same journal in version 1: an empty marker for each delete that is not done."""
    (name,) = [name for name in fs.names(PRIVATE) if layout.parse(name.encode()).kind in ("intent", "committed")]
    journal = decode(fs.get(f"{PRIVATE}/{name}"), name)
    ops = tuple(op._replace(was=None) for op in journal.ops)
    fs.put(f"{PRIVATE}/{name}", encode(replace(journal, version=1, ops=ops)))
    for op in journal.ops:
        token = f"{PRIVATE}/{layout.token(journal.tid, op.number).decode()}"
        if op.kind == "delete" and not fs.exists(token):
            fs.put(token, "", mode=0o600)


def without_markers(fs: SimFS) -> None:
    """A power loss took the markers, and left the files that were to be renamed over them."""
    for name, found in fs.tree(skip_private=False).items():
        if name.startswith(".txfiles/") and name[-1].isdigit() and found.content == b"":
            fs.remove(f"/sim/{name}")


def marker_with_the_number_of(path: str, fs: SimFS) -> None:
    """Another program removes a file, and the marker that is made next gets its inode number."""
    (name,) = [
        name
        for name, found in fs.tree(skip_private=False).items()
        if name.startswith(".txfiles/") and name[-1].isdigit() and found.content == b""
    ]
    fs.remove(f"/sim/{name}")
    number = fs.disk.nodes[fs._find(path).serial].ino
    fs.remove(path)
    fs.put(f"/sim/{name}", "", mode=0o600)
    assert fs.disk.nodes[fs._find(f"/sim/{name}").serial].ino == number


def undone_beside_a_removed(fs: SimFS) -> None:
    """Somebody removes a file that a commit has just put in place, and then the commit fails."""

    def fail() -> None:
        fs.remove("/sim/b")
        raise OSError(errno.EIO, "injected")

    with pytest.raises(CommitError) as caught, FileTransaction("/sim") as tx:
        WRITES(tx)
        fs.plan = at_call("rename", 4, fail)
    fs.plan = None
    assert any("'b'" in note for note in caught.value.__notes__)


def other_meta(
    path: str,
    mode: int | None = None,
    uid: int | None = None,
    gid: int | None = None,
    xattrs: dict[str, bytes] | None = None,
) -> Callable[[SimFS], None]:
    """Somebody changes that of a file, and not its content."""

    def step(fs: SimFS) -> None:
        fs._set_meta(fs._find(f"/sim/{path}").serial, mode, uid, gid, xattrs)
        fs.sync_everything()

    return step


def has_meta(
    path: str, mode: int, uid: int = 0, gid: int = 0, xattrs: tuple[tuple[str, bytes], ...] = ()
) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        found = fs.tree()[path]
        assert (found.mode, found.uid, found.gid, found.xattrs) == (mode, uid, gid, xattrs)

    return step


def written_meanwhile(act: Callable[[SimFS], None], mode: int | None = None) -> Callable[[SimFS], None]:
    """Somebody does something to `a` and `special` between their writes and the commit."""

    def step(fs: SimFS) -> None:
        with FileTransaction("/sim") as tx:
            tx.write("special", "first", mode=mode)
            tx.write("special", "new s")
            tx.write("a", "new a", mode=mode)
            tx.write("b", "new b")
            tx.move("b", "c")
            act(fs)

    return step


def old_b_is_there(fs: SimFS, _: Sequence[Tree]) -> None:
    assert fs.get("/sim/b") == b"old b"
