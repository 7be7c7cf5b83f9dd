"""States before and transactions for the tests that let a commit die, fail or be interrupted on a real file system."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txfiles import FileTransaction

Tree = dict[str, tuple[Any, ...]]


def tree(root: Path) -> Tree:
    """Everything below a root except the private directory."""
    found: Tree = {}
    for directory, names, files in os.walk(root):
        if ".txfiles" in names:
            names.remove(".txfiles")
        for name in names + files:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            content: Any = None
            if stat.S_ISREG(info.st_mode):
                content = Path(path).read_bytes()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            attributes = tuple((k, os.getxattr(path, k, follow_symlinks=False)) for k in sorted(_listxattr(path)))
            found[os.path.relpath(path, root)] = (info.st_mode, info.st_uid, info.st_gid, content, attributes)
    return found


def _listxattr(path: str) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []


@dataclass(frozen=True)
class Scenario:
    name: str
    setup: Callable[[Path], None]
    change: Callable[[FileTransaction], None]


def _four(root: Path) -> None:
    for name in "abcd":
        (root / name).write_text(f"old {name}", encoding="utf-8")
    os.chmod(root / "b", 0o640)


def _replace_four(tx: FileTransaction) -> None:
    for name in "abcd":
        tx.write(name, f"new {name} " * 10)


def _mixed(root: Path) -> None:
    _four(root)
    (root / "dir" / "deep").mkdir(parents=True)
    (root / "dir" / "one").write_text("one", encoding="utf-8")
    (root / "dir" / "deep" / "two").write_text("two", encoding="utf-8")
    (root / "gone").mkdir()
    (root / "gone" / "f").write_text("f", encoding="utf-8")
    os.symlink("a", root / "link")
    os.link(root / "c", root / "c2")


def _change_mixed(tx: FileTransaction) -> None:
    tx.write("link", "through the link")
    tx.delete("b")
    tx.write("new/nested/file", "created")
    tx.move("c", "d")
    tx.delete_tree("gone")
    tx.move("dir", "moved")
    tx.write("gone", "a file where a directory was")
    tx.mkdir("empty")


def _swap(tx: FileTransaction) -> None:
    tx.move("a", "tmp")
    tx.move("b", "a")
    tx.move("tmp", "b")


SCENARIOS = [
    Scenario("replace one", _four, lambda tx: tx.write("a", "new")),
    Scenario("replace four", _four, _replace_four),
    Scenario("delete", _four, lambda tx: tx.delete("a")),
    Scenario("swap", _four, _swap),
    Scenario("mixed", _mixed, _change_mixed),
]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
NAMES = list(BY_NAME)


def prepare(scenario: Scenario, root: Path) -> Tree:
    """Make the state before, and bring the private directory to rest; the tree as it is then."""
    scenario.setup(root)
    with FileTransaction(root, durability="process") as tx:
        tx.write("settled", "once")
    return tree(root)


def resting(root: Path) -> bool:
    return set(os.listdir(root / ".txfiles")) <= {"format", "lock", "HEAD", "spare"}
