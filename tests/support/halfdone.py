"""A root whose commit died half done, and the pieces of it that lie in the private directory.

die(root, 1)                  # three files are committed, and one of them is in its place
staged(root, 1).unlink()      # the staged file of `b` is lost
recover(root)
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.boundary import killed
from txfiles import FileTransaction
from txfiles._format import layout

OLD: dict[str, object] = {"a": b"old a", "b": b"old b"}
NEW: dict[str, object] = {"a": b"new a\n", "b": b"new b\n", "sub": None, "sub/c": b"new c\n"}


def save(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "new a\n")
        tx.write("b", "new b\n")
        tx.write("sub/c", "new c\n")


def furnish(root: Path) -> None:
    """Settled once, so that a commit does not sync the home again."""
    with FileTransaction(root) as tx:
        tx.write("a", "old a")
        tx.write("b", "old b")


def die(root: Path, applied: int) -> None:
    """A commit that died before the journal's rename (-1) or after it and `applied` files."""
    furnish(root)
    killed(lambda: save(root), "rename", applied + 2)


def of_kind(root: Path, *kinds: str) -> list[Path]:
    """The files of the private directory that are of these kinds (see `_format.layout`), sorted by name."""
    found = [path for path in (root / ".txfiles").iterdir() if layout.parse(os.fsencode(path.name)).kind in kinds]
    return sorted(found, key=lambda path: path.name)


def staged(root: Path, number: int) -> Path:
    """The staged file of `a`, `b` or `sub/c`."""
    [path] = [path for path in of_kind(root, "token") if path.suffix == f".{number}"]
    return path


def journal_of(root: Path) -> Path:
    """The one journal that is pending."""
    [path] = of_kind(root, "intent", "committed", "aborting", "prepared")
    return path


def everything(root: Path) -> dict[str, object]:
    """All that is on disk, the private directory too."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(root))] = (info.st_mode, info.st_ino, info.st_nlink, info.st_mtime_ns, content)
    return found
