"""A transaction reads its own writes, and nobody else does before the commit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction
from txfiles._tree.view import View
from txfiles.errors import InvalidPathError

GONE = object()


def view(tx: FileTransaction, path: str = ".") -> dict[str, bytes | None]:
    """What the transaction sees: files and directories, links followed."""
    found: dict[str, bytes | None] = {}
    for name in tx.listdir(path):
        below = name if path == "." else f"{path}/{name}"
        try:
            found[below] = tx.read(below)
        except IsADirectoryError:
            found[below] = None
            found |= view(tx, below)
    return found


def _fill(root: Path) -> None:
    (root / "d/e").mkdir(parents=True)
    (root / "f").mkdir()
    for path in ("a", "b", "d/a", "d/e/a"):
        (root / path).write_text(path, encoding="utf-8")


# The calls, and how the tree differs from `_fill` after them.
WAYS: dict[str, tuple[list[tuple[str, ...]], dict[str, Any]]] = {
    "nothing": ([], {}),
    "replaced": ([("write", "d/a", "new")], {"d/a": b"new"}),
    "new": ([("write", "n/o/p", "new")], {"n": None, "n/o": None, "n/o/p": b"new"}),
    "a file becomes a directory": (
        [("delete", "a"), ("write", "a/b/c", "new")],
        {"a": None, "a/b": None, "a/b/c": b"new"},
    ),
    "a directory becomes a file": (
        [("delete_tree", "d"), ("write", "d", "new")],
        {"d": b"new", "d/a": GONE, "d/e": GONE, "d/e/a": GONE},
    ),
    "a directory becomes a file and one again": (
        [("delete_tree", "d"), ("write", "d", "x"), ("delete", "d"), ("write", "d/n", "new")],
        {"d/n": b"new", "d/a": GONE, "d/e": GONE, "d/e/a": GONE},
    ),
    "a file becomes a directory and one again": (
        [("delete", "a"), ("mkdir", "a/x"), ("delete_tree", "a"), ("write", "a", "new")],
        {"a": b"new"},
    ),
    "emptied": ([("delete", "d/e/a"), ("delete", "d/a")], {"d/e/a": GONE, "d/a": GONE}),
    "moved onto its place": (
        [("delete_tree", "f"), ("move", "d", "f")],
        {"d": GONE, "d/a": GONE, "d/e": GONE, "d/e/a": GONE, "f/a": b"d/a", "f/e": None, "f/e/a": b"d/e/a"},
    ),
    "written in what was moved": (
        [("move", "d", "g"), ("write", "g/e/a", "new"), ("write", "g/n", "new"), ("delete", "g/a")],
        {"d": GONE, "d/a": GONE, "d/e": GONE, "d/e/a": GONE, "g": None, "g/e": None, "g/e/a": b"new", "g/n": b"new"},
    ),
    "moved after it was written": (
        [("write", "d/e/a", "new"), ("write", "d/n", "new"), ("move", "d/e", "f/e")],
        {"d/e": GONE, "d/e/a": GONE, "d/n": b"new", "f/e": None, "f/e/a": b"new"},
    ),
    "there and back": (
        [("move", "d", "x"), ("move", "x", "y/z"), ("move", "y/z", "d"), ("delete_tree", "y")],
        {},
    ),
    "swapped": (
        [("move", "a", "tmp"), ("move", "b", "a"), ("move", "tmp", "b")],
        {"a": b"b", "b": b"a"},
    ),
    "in a circle": (
        [("move", "a", "t"), ("move", "d/a", "a"), ("move", "b", "d/a"), ("move", "t", "b")],
        {"a": b"d/a", "d/a": b"b", "b": b"a"},
    ),
    "directories swapped": (
        [("move", "d", "t"), ("move", "f", "d"), ("move", "t", "f")],
        {"d/a": GONE, "d/e": GONE, "d/e/a": GONE, "f/a": b"d/a", "f/e": None, "f/e/a": b"d/e/a"},
    ),
    "a directory under one that was in it": (
        [("move", "d/e", "e"), ("move", "d", "e/d")],
        {"d": GONE, "d/a": GONE, "d/e": GONE, "d/e/a": GONE, "e": None, "e/a": b"d/e/a", "e/d": None, "e/d/a": b"d/a"},
    ),
    "copied and changed": (
        [("copy", "d", "g"), ("write", "d/a", "new"), ("copy", "d/a", "g/n")],
        {"g": None, "g/a": b"d/a", "g/e": None, "g/e/a": b"d/e/a", "d/a": b"new", "g/n": b"new"},
    ),
    "deleted and made": ([("delete_tree", "d"), ("mkdir", "d/e")], {"d/a": GONE, "d/e/a": GONE}),
    "made and deleted": ([("write", "n/o/p", "x"), ("delete_tree", "n")], {}),
    "written and deleted": ([("write", "a", "x"), ("delete", "a")], {"a": GONE}),
    "deleted and written": ([("delete", "a"), ("write", "a", "new")], {"a": b"new"}),
    "moved over": ([("move", "a", "d/a")], {"a": GONE, "d/a": b"a"}),
    "copied over": ([("copy", "a", "d/a")], {"d/a": b"a"}),
    "appended": ([("append", "a", "+"), ("append", "a", "+")], {"a": b"a++"}),
}


def _make(tx: FileTransaction, calls: list[tuple[str, ...]]) -> None:
    for name, *arguments in calls:
        if name == "append":
            with tx.open(arguments[0], "a") as stream:
                stream.write(arguments[1])
        else:
            getattr(tx, name)(*arguments)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_seen_is_what_is_committed(root: Path, way: str) -> None:
    _fill(root)
    before = tree(root)
    calls, differences = WAYS[way]
    expected: dict[str, Any] = before | differences
    expected = {path: content for path, content in expected.items() if content is not GONE}
    with FileTransaction(root) as tx:
        _make(tx, calls)
        assert view(tx) == expected
        assert tx.glob("**") == sorted(path for path, content in expected.items() if content is not None)
        assert {path for path in before | differences if tx.exists(path)} == set(expected)
        assert tree(root) == before
    assert tree(root) == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_rollback_forgets_it(root: Path, way: str) -> None:
    _fill(root)
    before = tree(root)
    tx = FileTransaction(root).begin()
    _make(tx, WAYS[way][0])
    tx.rollback()
    assert tree(root) == before
    assert sorted(os.listdir(root / ".txfiles")) == ["format", "lock"]


def test_what_other_programs_do_is_seen_until_it_is_staged_over(root: Path) -> None:
    with FileTransaction(root) as tx:
        assert tx.listdir() == []
        (root / "a").write_text("theirs", encoding="utf-8")
        assert (tx.listdir(), tx.read("a")) == (["a"], b"theirs")
        tx.write("a", "ours")
        (root / "a").write_text("theirs again", encoding="utf-8")
        assert tx.read("a") == b"ours"
    assert tree(root) == {"a": b"ours"}


# -- listdir, glob, exists ------------------------------------------------------------------------------------------


def test_listdir_is_sorted_and_without_private_directories(root: Path) -> None:
    _fill(root)
    (root / "f/.txfiles").mkdir()
    with FileTransaction(root) as tx:
        for name in ("Z", "é", "z", ".hidden", "10", "9"):
            tx.write(name, "")
        assert (
            tx.listdir()
            == tx.listdir(".")
            == tx.listdir("d/..")
            == [".hidden", "10", "9", "Z", "a", "b", "d", "f", "z", "é"]
        )
        assert tx.listdir("d/") == tx.listdir(b"d") == tx.listdir(Path("d")) == ["a", "e"]
        assert tx.listdir("f") == []


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", FileNotFoundError),
        ("a", NotADirectoryError),
        ("gone", FileNotFoundError),
        ("a/b", NotADirectoryError),
    ],
)
def test_listdir_of_what_is_no_directory(root: Path, path: str, error: type[OSError]) -> None:
    _fill(root)
    (root / "gone").mkdir()
    with FileTransaction(root) as tx:
        tx.delete_tree("gone")
        with pytest.raises(error) as caught:
            tx.listdir(path)
    assert caught.value.filename == path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a", "b"]),
        ("**", ["a", "b", "d/a", "d/e/a", "n/.h", "n/x.json"]),
        ("**/a", ["a", "d/a", "d/e/a"]),
        ("d/*", ["d/a"]),
        ("d/**/a", ["d/a", "d/e/a"]),
        ("*/*", ["d/a", "n/.h", "n/x.json"]),
        ("n/*.json", ["n/x.json"]),
        ("**/*.json", ["n/x.json"]),
        ("n/.*", ["n/.h"]),
        ("[ab]", ["a", "b"]),
        ("[!a]", ["b"]),
        ("?", ["a", "b"]),
        ("a", ["a"]),
        ("./d/a", ["d/a"]),
        ("d", []),
        ("x/**", []),
        ("a/*", []),
        (".txfiles/*", []),
        ("**/lock", []),
    ],
)
def test_glob(root: Path, pattern: str, found: list[str]) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.write("n/x.json", "{}")
        tx.write("n/.h", "")
        assert tx.glob(pattern) == found
        assert tx.glob(os.fsencode(pattern)) == found


@pytest.mark.parametrize(
    ("pattern", "entered"),
    [
        ("*", [""]),
        ("d", []),
        ("d/*", ["d"]),
        ("*/a", ["", "d", "f"]),
        ("*/*/a", ["", "d", "d/e", "f"]),
        ("**", ["", "d", "d/e", "f"]),
        ("d/**", ["d", "d/e"]),
    ],
)
def test_glob_enters_no_directory_in_vain(
    root: Path, pattern: str, entered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(root)
    listed = []
    listdir = View.listdir

    def note(view: View, path: bytes) -> list[bytes]:
        listed.append(os.fsdecode(path))
        return listdir(view, path)

    monkeypatch.setattr(View, "listdir", note)
    with FileTransaction(root) as tx:
        tx.glob(pattern)
    assert listed == entered


@pytest.mark.parametrize(
    ("pattern", "exclude", "found", "entered"),
    [
        ("**", ["d"], ["a", "b", "f/x.json"], ["", "f"]),
        ("**", ["d/e", b"f"], ["a", "b", "d/a"], ["", "d"]),
        ("**/*", ["**/e", "a"], ["b", "d/a", "f/x.json"], ["", "d", "f"]),
        ("d/**", ["d"], [], []),
        ("d/e/*", ["d"], [], []),
        ("d/a", ["d"], [], []),
        ("*", ["d/a"], ["a", "b"], [""]),
    ],
)
def test_what_glob_is_to_leave_out(
    root: Path,
    pattern: str,
    exclude: list[str | bytes],
    found: list[str],
    entered: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "d/a", "d/e/x", "f/x.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    listed = []
    listdir = View.listdir

    def note(view: View, path: bytes) -> list[bytes]:
        listed.append(os.fsdecode(path))
        return listdir(view, path)

    monkeypatch.setattr(View, "listdir", note)
    with FileTransaction(root) as tx:
        assert tx.glob(pattern, exclude=iter(exclude)) == found
    assert listed == entered
    with FileStore(root).snapshot() as snap:
        assert snap.glob(pattern, exclude=iter(exclude)) == found
    with FileStore(root).transaction() as tx, FileStore(root).snapshot() as snap:
        for reader in (tx, snap):
            with pytest.raises(TypeError):
                reader.glob(pattern, exclude="d")
            with pytest.raises(InvalidPathError):
                reader.glob(pattern, exclude=["/d"])


@pytest.mark.needs("users")
def test_a_directory_that_may_not_be_listed_can_be_left_out() -> None:
    code = """
import sys
from txfiles import FileStore
store = FileStore(sys.argv[1])
with store.transaction() as tx:
    tx.write("a", "a")
with store.transaction() as tx, store.snapshot() as snap:
    for reader in (tx, snap):
        try:
            reader.glob("**")
        except PermissionError as error:
            assert error.filename == "lost+found", error
        else:
            raise AssertionError
        assert reader.glob("**", exclude=["lost+found"]) == ["a"]
"""
    with public_directory(0o777) as top:
        (top / "lost+found").mkdir(mode=0o700)
        run_python(code, top, **as_user(1000)).check()


@pytest.mark.parametrize("pattern", ["/a", "../*", "d/../../x"])
def test_glob_stays_in_the_root(root: Path, pattern: str) -> None:
    with FileTransaction(root) as tx, pytest.raises(InvalidPathError):
        tx.glob(pattern)


def test_exists(root: Path) -> None:
    _fill(root)
    (root / "dangling").symlink_to("nowhere")
    (root / "link").symlink_to("d")
    with FileTransaction(root) as tx:
        tx.delete("b")
        tx.mkdir("n")
        for path, there in {
            ".": True,
            "a": True,
            "d": True,
            "d/": True,
            "b": False,
            "n": True,
            "x/y": False,
            "link/a": True,
            "dangling": False,
        }.items():
            assert tx.exists(path) is there, path


@pytest.mark.parametrize("call", ["read", "read_text", "read_json", "delete"])
@pytest.mark.parametrize("path", ["missing", "gone", "d/missing", "x/y"])
def test_what_is_missing_is_said_with_its_path(root: Path, call: str, path: str) -> None:
    _fill(root)
    (root / "gone").touch()
    with FileTransaction(root) as tx:
        tx.delete("gone")
        with pytest.raises(FileNotFoundError) as caught:
            getattr(tx, call)(path)
    assert caught.value.filename == path


def test_a_large_file_is_read_whole(root: Path) -> None:
    content = os.urandom((3 << 20) + 17)
    (root / "a").write_bytes(content)
    with FileTransaction(root) as tx:
        assert tx.read("a") == content
        tx.copy("a", "b")
        assert tx.read("b") == content
