"""The calls that look at files, and those that make links, modes and text: as `pathlib` and `os` have them."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txfiles
from tests.support.as_user import as_user, public_directory
from tests.support.boundary import tree
from tests.support.mounts import run
from tests.support.procs import run_python
from txfiles import FileStat, FileStore, FileTransaction
from txfiles.errors import ConflictError, InvalidPathError


def _fill(root: Path) -> None:
    (root / "d/e").mkdir(parents=True)
    (root / "a").write_bytes(b"alpha")
    (root / "a").chmod(0o640)
    (root / "d/b").write_bytes(b"beta")
    (root / "d/e/c").write_bytes(b"")
    (root / "to a").symlink_to("a")
    (root / "to d").symlink_to("d")
    (root / "to nothing").symlink_to("nothing")


@contextmanager
def _on_disk(root: Path) -> Iterator[Any]:
    _fill(root)
    with FileTransaction(root) as tx:
        yield tx


@contextmanager
def _staged(root: Path) -> Iterator[Any]:
    with FileTransaction(root) as tx:
        tx.mkdir("d/e")
        tx.write("a", b"alpha", mode=0o640)
        tx.write("d/b", b"beta")
        tx.write("d/e/c", b"")
        for name in ("a", "d", "nothing"):
            tx.symlink(name, f"to {name}")
        yield tx


@contextmanager
def _snapshot(root: Path) -> Iterator[Any]:
    _fill(root)
    with FileStore(root).snapshot() as snap:
        yield snap


@contextmanager
def _pinned(root: Path) -> Iterator[Any]:
    _fill(root)
    with FileStore(root).snapshot("a", "d/b", "no") as snap:
        yield snap


VIEWS = {"on disk": _on_disk, "staged": _staged, "snapshot": _snapshot, "pinned": _pinned}
views = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


@views
def test_what_there_is(root: Path, view: Callable[[Path], Any]) -> None:
    with view(root) as at:
        names = ["a", "d", "d/b", "d/e/c", "to a", "to d", "to nothing", "no", "a/below", ".", "d/"]
        assert [name for name in names if at.is_file(name)] == ["a", "d/b", "d/e/c", "to a"]
        assert [name for name in names if at.is_dir(name)] == ["d", "to d", ".", "d/"]
        assert at.iterdir() == ["a", "d", "to a", "to d", "to nothing"]
        assert at.iterdir("d") == ["d/b", "d/e"]
        assert at.iterdir("to d") == ["to d/b", "to d/e"]
        with pytest.raises(NotADirectoryError):
            at.iterdir("a")
        with pytest.raises(FileNotFoundError):
            at.iterdir("no")


@views
def test_walk(root: Path, view: Callable[[Path], Any]) -> None:
    links = ["to a", "to d", "to nothing"]
    with view(root) as at:
        assert at.walk() == [(".", ["d"], ["a", *links]), ("d", ["e"], ["b"]), ("d/e", [], ["c"])]
        assert at.walk("d") == [("d", ["e"], ["b"]), ("d/e", [], ["c"])]
        assert at.walk(exclude=["d/e", "to *"]) == [(".", ["d"], ["a"]), ("d", [], ["b"])]
        assert at.walk("d/e", exclude=["**/c"]) == [("d/e", [], [])]
        with pytest.raises(FileNotFoundError):
            at.walk("no")
        with pytest.raises(TypeError):
            at.walk(exclude="d")


@views
def test_links(root: Path, view: Callable[[Path], Any]) -> None:
    with view(root) as at:
        assert [at.readlink(f"to {name}") for name in ("a", "d", "nothing")] == ["a", "d", "nothing"]
        for name in ("a", "d"):
            with pytest.raises(OSError, match="not a symbolic link") as caught:
                at.readlink(name)
            assert caught.value.errno == errno.EINVAL
        with pytest.raises(FileNotFoundError):
            at.readlink("no")


@views
def test_stat(root: Path, view: Callable[[Path], Any]) -> None:
    with view(root) as at:
        found = at.stat("a")
        assert isinstance(found, FileStat)
        assert (stat.filemode(found.st_mode), found.st_size) == ("-rw-r-----", 5)
        assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
        assert found.st_mtime == found.st_mtime_ns / 1e9
        assert at.stat("to a") == found
        link = at.stat("to a", follow_symlinks=False)
        assert (stat.S_ISLNK(link.st_mode), link.st_size) == (True, 1)
        for name in (".", "d", "to d", "d/e"):
            assert stat.S_ISDIR(at.stat(name).st_mode)
        for name in ("no", "to nothing", "d/no"):
            with pytest.raises(FileNotFoundError):
                at.stat(name)
        with pytest.raises(NotADirectoryError):
            at.stat("a/below")
    after = os.stat(root / "a")
    assert dataclasses.asdict(found) == {field.name: getattr(after, field.name) for field in dataclasses.fields(found)}
    assert txfiles.FileStat is FileStat


def test_stat_of_a_directory_that_comes_where_a_file_was(root: Path) -> None:
    (root / "a").write_bytes(b"alpha")
    with FileTransaction(root) as tx:
        tx.delete("a")
        tx.mkdir("a/sub")
        tx.chmod("a", 0o750)
        found = tx.stat("a")
        assert (stat.filemode(found.st_mode), found.st_size, found.st_ino) == ("drwxr-x---", 0, 0)
        assert found.st_dev == os.stat(root).st_dev
    assert stat.S_IMODE(os.stat(root / "a").st_mode) == 0o750


@pytest.mark.needs("root")
def test_what_cannot_be_seen_is_not_nothing() -> None:
    with public_directory() as root:
        (root / "closed/sub").mkdir(parents=True)
        (root / "closed").chmod(0o700)
        os.chown(root, 1000, 1000)
        code = f"""
            from txfiles import FileStore
            store = FileStore({str(root)!r})
            with store.transaction() as tx, store.snapshot() as snap:
                for at in (tx, snap):
                    for call in (at.is_dir, at.is_file, at.stat, at.readlink, at.iterdir, at.walk, at.exists):
                        try:
                            print(call("closed/sub"))
                        except PermissionError as error:
                            print("refused", error.filename)
        """
        assert run_python(code, **as_user(1000)).stdout.splitlines() == ["refused closed/sub"] * 14


# -- text and appending ---------------------------------------------------------------------------------------------


def test_text(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write_text("a", "ä\n\r\n")
        tx.write_text("b", "ä", "latin-1")
        tx.write_text("c", "aé", "ascii", "replace")
        tx.write_text("d", "1\n2\n", newline="\r\n")
        assert (tx.read_text("b", "latin-1"), tx.read_text("b", errors="replace")) == ("ä", "\ufffd")
        for bad in (b"bytes", None):
            with pytest.raises(TypeError):
                tx.write_text("e", bad)  # type: ignore[arg-type]
        for encoding, newline in (("utf-8", "x"), ("ascii", "")):
            with pytest.raises(ValueError):
                tx.write_text("e", "ä", encoding, newline=newline)
        with pytest.raises(ConflictError):
            tx.write_text("a", "again", if_version=None)
    assert tree(root) == {"a": "ä\n\r\n".encode(), "b": b"\xe4", "c": b"a?", "d": b"1\r\n2\r\n"}
    with FileStore(root).snapshot() as snap:
        assert (snap.read_text("b", "latin-1"), snap.read_text("b", errors="ignore")) == ("ä", "")


def test_append(root: Path) -> None:
    (root / "a").write_bytes(b"1")
    (root / "a").chmod(0o640)
    (root / "link").symlink_to("a")
    with FileTransaction(root) as tx:
        tx.append("a", b"2")
        tx.append("link", iter([b"3", b"4"]))
        tx.append("new/b", "text", mode=0o600)
        with pytest.raises(TypeError):
            tx.append("a", [b"5", "6"])  # type: ignore[list-item]
        with pytest.raises(IsADirectoryError):
            tx.append("new", b"")
        assert (root / "a").read_bytes() == b"1"
    assert tree(root) == {"a": b"1234", "link": "-> a", "new": None, "new/b": b"text"}
    assert [stat.S_IMODE(os.stat(root / name).st_mode) for name in ("a", "new/b")] == [0o640, 0o600]


# -- modes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400, 0o000, 0o2755, 0o666])
def test_a_mode_is_exactly_that(root: Path, mode: int) -> None:
    for name in ("old", "changed"):
        (root / name).write_bytes(b"old")
        (root / name).chmod(0o604)
    with FileTransaction(root) as tx:
        tx.write("new", b"1", mode=mode)
        tx.write("old", b"2", mode=mode)
        tx.write_json("json", 3, mode=mode)
        tx.chmod("changed", mode)
        tx.write("staged", b"5")
        tx.chmod("staged", mode)
        assert stat.S_IMODE(tx.stat("staged").st_mode) == mode
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in sorted(root.iterdir()) if path.is_file()] == [mode] * 5
    assert tree(root) == {"new": b"1", "old": b"2", "json": b"3\n", "changed": b"old", "staged": b"5"}


@pytest.mark.parametrize("mode", [-1, 0o10000, 0.5, "600"])
def test_what_is_no_mode(root: Path, mode: Any) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", b"1")
        for call in (
            lambda: tx.write("b", b"2", mode=mode),
            lambda: tx.chmod("a", mode),
            lambda: tx.append("a", b"", mode=mode),
        ):
            with pytest.raises(ValueError, match="mode is a number"):
                call()
    assert tree(root) == {"a": b"1"}


def test_chmod_changes_nothing_else(root: Path) -> None:
    (root / "a").write_bytes(b"1")
    os.setxattr(root / "a", "user.k", b"v")
    (root / "link").symlink_to("a")
    with FileTransaction(root) as tx:
        version = tx.version("a")
        tx.chmod("a", stat.S_IMODE(os.stat(root / "a").st_mode))
        assert tx.version("a") == version
        tx.chmod("link", 0o600)
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            tx.chmod("a", 0o777)
            raise ZeroDivisionError
        assert tx.version("a") != version
    assert stat.S_IMODE(os.stat(root / "a").st_mode) == 0o600
    assert os.getxattr(root / "a", "user.k") == b"v"
    assert tree(root) == {"a": b"1", "link": "-> a"}


def test_the_mode_of_a_directory_that_is_there_is_not_changed(root: Path) -> None:
    (root / "d").mkdir()
    with FileTransaction(root) as tx:
        for name in ("d", "."):
            with pytest.raises(IsADirectoryError, match="cannot be changed"):
                tx.chmod(name, 0o700)
        with pytest.raises(FileNotFoundError):
            tx.chmod("no", 0o700)
        tx.mkdir("new/sub")
        tx.chmod("new", 0o700)
    assert [stat.S_IMODE(os.stat(root / name).st_mode) for name in ("new", "new/sub")] == [0o700, 0o755]


@pytest.mark.needs("root")
def test_only_the_owner_changes_a_mode() -> None:
    with public_directory(0o777) as root:
        (root / "theirs").write_bytes(b"1")
        (root / "theirs").chmod(0o666)
        code = f"""
            from txfiles import FileTransaction
            with FileTransaction({str(root)!r}) as tx:
                try:
                    tx.chmod("theirs", 0o600)
                except PermissionError as error:
                    print(error.errno, error.filename)
        """
        assert run_python(code, **as_user(1000)).stdout.split() == [str(errno.EPERM), "theirs"]


@pytest.mark.needs("setfacl")
def test_a_mode_holds_under_a_default_acl(root: Path) -> None:
    run("setfacl", "-d", "-m", "u:1000:rwx,g::rwx,o::rx", root)
    with FileTransaction(root) as tx:
        tx.write("secret", b"1", mode=0o600)
        tx.write("open", b"2")
        tx.write("closed", b"3")
    with FileTransaction(root) as tx:
        tx.chmod("closed", 0o600)
    modes = {name: stat.S_IMODE(os.stat(root / name).st_mode) for name in ("secret", "open", "closed")}
    assert modes == {"secret": 0o600, "open": 0o664, "closed": 0o600}
    for name in ("secret", "closed"):
        told = run("getfacl", "-pE", root / name)
        assert "mask::---" in told
        assert "other::---" in told


# -- links ----------------------------------------------------------------------------------------------------------


def test_a_link_is_made(root: Path) -> None:
    (root / "a").write_bytes(b"1")
    with FileTransaction(root) as tx:
        tx.symlink("../a", "new/link")
        tx.symlink(b"/etc/passwd", "out")
        tx.symlink("nowhere", "dangling")
        assert tx.read("new/link") == b"1"
        tx.write("new/link", b"2")
        with pytest.raises(InvalidPathError):
            tx.read("out")
        for name in ("a", "new", "out", "dangling"):
            with pytest.raises(FileExistsError):
                tx.symlink("x", name)
        for text in ("", "a\0b"):
            with pytest.raises(InvalidPathError):
                tx.symlink(text, "bad")
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            tx.symlink("x", "undone")
            raise ZeroDivisionError
    assert tree(root) == {
        "a": b"2",
        "new": None,
        "new/link": "-> ../a",
        "out": "-> /etc/passwd",
        "dangling": "-> nowhere",
    }


# -- what is to be new ----------------------------------------------------------------------------------------------

NEW: dict[str, Callable[[FileTransaction], object]] = {
    "copy": lambda tx: tx.copy("a", "new", overwrite=False),
    "copy a directory": lambda tx: tx.copy("d", "new", overwrite=False),
    "move": lambda tx: tx.move("a", "new", overwrite=False),
    "move a directory": lambda tx: tx.move("d", "new", overwrite=False),
    "mkdir": lambda tx: tx.mkdir("new", exist_ok=False),
    "symlink": lambda tx: tx.symlink("a", "new"),
    "write": lambda tx: tx.write("new", b"ours", if_version=None),
    "open": lambda tx: tx.open("new", "x").close(),
}


def _fill_two(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/b").write_bytes(b"beta")
    (root / "a").write_bytes(b"alpha")


@pytest.mark.parametrize("theirs", ["file", "directory", "link"])
@pytest.mark.parametrize("call", NEW)
def test_what_others_made_meanwhile_is_not_replaced(root: Path, call: str, theirs: str) -> None:
    _fill_two(root)
    with pytest.raises(ConflictError, match="'new'") as caught, FileTransaction(root) as tx:
        NEW[call](tx)
        if theirs == "file":
            (root / "new").write_bytes(b"theirs")
        elif theirs == "directory":
            (root / "new").mkdir()
        else:
            (root / "new").symlink_to("a")
    assert (caught.value.path, caught.value.outcome) == ("new", "before")
    made = {"file": b"theirs", "directory": None, "link": "-> a"}[theirs]
    assert tree(root) == {"a": b"alpha", "d": None, "d/b": b"beta", "new": made}


@pytest.mark.parametrize("call", NEW)
def test_what_is_there_is_refused_at_the_call(root: Path, call: str) -> None:
    _fill_two(root)
    (root / "new").write_bytes(b"old")
    with FileTransaction(root) as tx:
        with pytest.raises((FileExistsError, NotADirectoryError, ConflictError)):
            NEW[call](tx)
        tx.delete("new")
        NEW[call](tx)  # new in the transaction, and not on disk
    assert tree(root)["new"] in (b"alpha", None, "-> a", b"ours", b"")


def test_mkdir_of_a_directory_that_is_there(root: Path) -> None:
    (root / "d").mkdir()
    with FileTransaction(root) as tx:
        tx.mkdir("d")
        tx.mkdir("e")
        for name in ("d", "e", "."):
            with pytest.raises(FileExistsError, match="the directory exists"):
                tx.mkdir(name, exist_ok=False)
