"""Steps: what a txfiles that wrote the first version of the journal has left."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.steps import PRIVATE
from txfiles._format import layout
from txfiles._format.journal import decode, encode
from txfiles.testing import SimFS


def first_version(fs: SimFS) -> None:
    """The same journal in version 1: an empty marker for each delete that is not done."""
    (name,) = [name for name in fs.names(PRIVATE) if layout.parse(name.encode()).kind in ("intent", "committed")]
    journal = decode(fs.get(f"{PRIVATE}/{name}"), name)
    fs.put(f"{PRIVATE}/{name}", encode(replace(journal, version=1)))
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
