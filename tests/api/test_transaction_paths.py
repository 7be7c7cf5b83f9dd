"""What a path may be, and what a root may be."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.support.boundary import tree
from tests.support.mounts import read_only
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, recover, status
from txfiles.errors import InvalidPathError, LockTimeoutError, NestedTransactionError


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


# -- paths ----------------------------------------------------------------------------------------------------------

# Calls that take the path of a file, and those that take one of a directory, too.
OF_FILES: dict[str, Callable[[FileTransaction, Any], object]] = {
    "write": lambda tx, path: tx.write(path, "x"),
    "write if_version": lambda tx, path: tx.write(path, "x", if_version=None),
    "write_json": lambda tx, path: tx.write_json(path, 1),
    "open r": lambda tx, path: tx.open(path),
    "open w": lambda tx, path: tx.open(path, "w"),
    "read": lambda tx, path: tx.read(path),
    "read_text": lambda tx, path: tx.read_text(path),
    "read_json": lambda tx, path: tx.read_json(path),
    "version": lambda tx, path: tx.version(path),
    "delete": lambda tx, path: tx.delete(path),
    "delete missing_ok": lambda tx, path: tx.delete(path, missing_ok=True),
}
OF_DIRECTORIES: dict[str, Callable[[FileTransaction, Any], object]] = {
    "move": lambda tx, path: tx.move(path, "z"),
    "move to": lambda tx, path: tx.move("there", path),
    "copy": lambda tx, path: tx.copy(path, "z"),
    "copy to": lambda tx, path: tx.copy("there", path),
    "mkdir": lambda tx, path: tx.mkdir(path),
    "listdir": lambda tx, path: tx.listdir(path),
    "exists": lambda tx, path: tx.exists(path),
    "delete_tree": lambda tx, path: tx.delete_tree(path),
}
NEVER = [
    "", "..", "../x", "a/../../x", "a/../..", "/", "/x", "//x", "/etc/passwd", "a\0b", "\0",
    ".txfiles", ".txfiles/lock", "./.txfiles/HEAD", "d/.txfiles", "d/.txfiles/x", "d/../.txfiles/x",
    ".TXFILES/lock", ".TxFiles", "d/.tXfIlEs/x", b".txfiles/lock", b"..", b"a\0b", b"", ".txfile\u017f",
]  # fmt: skip
NOT_A_FILE = ["x/", "d/", ".", "./", "d/..", "d/.", "x//"]


@pytest.mark.parametrize("path", NEVER, ids=repr)
def test_never_a_path(root: Path, path: str | bytes) -> None:
    (root / "there").write_text("there", encoding="utf-8")
    (root / "d").mkdir()
    with FileTransaction(root) as tx:
        for name, call in (OF_FILES | OF_DIRECTORIES).items():
            with pytest.raises(InvalidPathError) as caught:
                call(tx, path)
            assert isinstance(caught.value, ValueError), name
            assert (caught.value.outcome, caught.value.path) == ("before", os.fsdecode(path)), name
            assert _private(root) == ["format", "lock"], name
        tx.write("next", "works")
    assert tree(root) == {"there": b"there", "d": None, "next": b"works"}


@pytest.mark.parametrize("path", NOT_A_FILE)
def test_not_the_path_of_a_file(root: Path, path: str) -> None:
    (root / "d").mkdir()
    with FileTransaction(root) as tx:
        for name, call in OF_FILES.items():
            with pytest.raises(InvalidPathError) as caught:
                call(tx, path)
            assert caught.value.path == path, name
            assert _private(root) == ["format", "lock"], name
    assert tree(root) == {"d": None}


NO_PATHS = [None, 5, 1.5, ["a"], object(), bytearray(b"a"), memoryview(b"a")]


@pytest.mark.parametrize("path", NO_PATHS, ids=lambda path: type(path).__name__)
def test_no_path_at_all(root: Path, path: object) -> None:
    (root / "there").write_text("there", encoding="utf-8")
    with FileTransaction(root) as tx:
        for call in (OF_FILES | OF_DIRECTORIES).values():
            with pytest.raises(TypeError):
                call(tx, path)
    assert tree(root) == {"there": b"there"}


class Fspath:
    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"Fspath({self.path!r})"


SPELLINGS: list[Any] = [
    "d/a", "./d/a", "d/./a", "d//a", ".//d///a", "x/../d/a", "d/e/../a", "d/x/y/../../a", "./x/.././d/a",
    b"d/a", b"./d//a", Path("d/a"), PurePosixPath("d") / "a", Fspath("d/a"), Fspath(b"d/a"),
]  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS, ids=repr)
def test_all_spellings_are_one_file(root: Path, path: Any) -> None:
    with FileTransaction(root) as tx:
        tx.write(path, "1")
        assert tx.read("d/a") == tx.read(path) == b"1"
        tx.write("d/a", "2")
        assert tx.read(path) == b"2"
        assert tx.version(path) == tx.version("d/a")
        assert tx.exists(path)
        assert len(_private(root)) == 3
    assert tree(root) == {"d": None, "d/a": b"2"}


NAMES = [
    "name", "with space", " ", "new\nline", "tab\t", "quote'\"", "back\\slash", "*", "?", "[a]", "~", "~user", "$HOME",
    "-rf", ".hidden", "...", "..a", "a..", ".txfiles2", "txfiles", ".txfile", "CON", "a:b", "ü", "u\u0308",
    "\N{SNOWMAN}", "日本語", "\u202e", "\x01", "\x7f", "x" * 255, "é" * 127, b"\xff", b"\xfe\x80x",
    b"\xed\xa0\x80", "\udcff",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
def test_any_name_is_a_name(root: Path, name: str | bytes) -> None:
    raw = os.fsencode(name)
    with FileTransaction(root) as tx:
        tx.write(name, "x")
        tx.write(raw + b"." if len(raw) < 250 else raw[:-1], "y")
        tx.write(b"d/" + raw, "z")
        assert tx.listdir("d") == [os.fsdecode(name)]
        assert os.fsdecode(name) in tx.glob("*")
    with FileTransaction(root) as tx:
        assert tx.read(os.fsdecode(name)) == b"x"
        tx.move(b"d/" + raw, b"e/" + raw)
        tx.delete(name)
    assert raw not in os.listdir(os.fsencode(root))
    assert os.listdir(os.fsencode(root / "e")) == [raw]


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "d/" + "x" * 300, "x" * 257 + "/a"], ids=len)
@pytest.mark.parametrize("call", ["write", "open w", "read", "delete", "mkdir", "copy to", "exists"])
def test_a_name_that_is_too_long(root: Path, call: str, name: str) -> None:
    (root / "there").write_text("there", encoding="utf-8")
    (root / "d").mkdir()
    with FileTransaction(root) as tx:
        with pytest.raises(OSError, match="too long") as caught:
            (OF_FILES | OF_DIRECTORIES)[call](tx, name)
        assert caught.value.errno == errno.ENAMETOOLONG
        assert _private(root) == ["format", "lock"]
        tx.write("x" * 255, "works")
    assert len(tree(root)) == 3


@pytest.mark.parametrize("parent", ["new", "was/a/file", "gone", "gone/deep"])
@pytest.mark.parametrize("call", ["write", "open w", "mkdir", "copy to", "move to"])
def test_a_name_that_is_too_long_in_a_directory_that_is_to_be_made(root: Path, call: str, parent: str) -> None:
    (root / "there").write_text("there", encoding="utf-8")
    (root / "was").write_text("a file", encoding="utf-8")
    (root / "gone").mkdir()
    with FileTransaction(root) as tx:
        tx.delete("was")
        tx.delete_tree("gone")
        with pytest.raises(OSError, match="too long") as caught:
            _close((OF_FILES | OF_DIRECTORIES)[call](tx, f"{parent}/{'x' * 256}"))
        assert (caught.value.errno, caught.value.filename) == (errno.ENAMETOOLONG, f"{parent}/{'x' * 256}")
        assert (tx.glob("**"), tx.listdir()) == (["there"], ["there"])
        tx.write("next", "works")
    assert tree(root) == {"there": b"there", "next": b"works"}


def _close(stream: Any) -> None:
    if stream is not None:
        stream.close()


# -- roots ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, Path, os.fsencode, Fspath], ids=["str", "Path", "bytes", "PathLike"])
def test_every_form_of_a_root(root: Path, form: Callable[[Any], Any]) -> None:
    given = str(root) if form is Fspath else root
    with FileTransaction(form(given)) as tx:
        tx.write("a", "x")
    assert FileStore(form(given)).root == str(root)
    assert recover(form(given)).clean
    assert status(form(given)).clean


@pytest.mark.parametrize("given", [None, 5, ["a"]])
def test_no_root(given: Any) -> None:
    for make in (FileTransaction, FileStore, recover, status):
        with pytest.raises(TypeError):
            make(given)


@pytest.mark.parametrize("given", ["", b"", "a\0b"], ids=repr)
def test_an_invalid_root(given: Any) -> None:
    for make in (FileTransaction, FileStore, recover, status):
        with pytest.raises(InvalidPathError):
            make(given)


def test_a_missing_root(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for call in (lambda: FileTransaction(missing).begin(), lambda: recover(missing), lambda: status(missing)):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.filename == str(missing)
    assert os.listdir(tmp_path) == []


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for create in (False, True):
        with pytest.raises(NotADirectoryError) as caught:
            FileTransaction(tmp_path / "file", create=create).begin()
        assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        FileTransaction(tmp_path / "file/below", create=True).begin()
    assert tree(tmp_path) == {"file": b"x"}


def test_create_makes_the_root_and_what_is_above(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    root = watch(tmp_path / "a/b/c")
    tx = FileTransaction(root, create=True)
    assert os.listdir(tmp_path) == []
    with tx:
        tx.write("x", "x")
    with FileTransaction(root, create=True) as tx:
        tx.write("y", "y")
    assert tree(root) == {"x": b"x", "y": b"y"}
    assert root.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_dangling_link_as_the_root(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(FileNotFoundError):
        FileTransaction(tmp_path / "link").begin()
    with FileTransaction(tmp_path / "link", create=True) as tx:
        tx.write("a", "x")
    assert (tmp_path / "target/a").read_text(encoding="utf-8") == "x"
    assert (tmp_path / "link").is_symlink()


def test_the_root_is_fixed_when_the_object_is_made(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(root)
    tx, store = FileTransaction("."), FileStore(".")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with tx:
        tx.write("a", "x")
    with store.transaction() as tx:
        monkeypatch.chdir(tmp_path)
        tx.write("b", "x")
    assert tree(root) == {"a": b"x", "b": b"x"}
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_link_to_the_root_is_followed_once(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("root")
    tx = FileTransaction(tmp_path / "link")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    with tx:
        tx.write("a", "x")
    assert tree(root) == {"a": b"x"}
    assert os.listdir(tmp_path / "other") == []


@pytest.mark.parametrize("spelling", ["{root}/", "{root}/.", "{root}/../root", "{tmp}/link", "relative", "{tmp}//root"])
def test_every_spelling_of_a_root_has_one_lock(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    other = "root" if spelling == "relative" else spelling.format(root=root, tmp=tmp_path)
    with FileTransaction(root):
        with pytest.raises(NestedTransactionError):
            FileTransaction(other).begin()
        code = "from txfiles import *\nFileTransaction(sys.argv[1], timeout=0).begin()"
        done = run_python(code, other, cwd=tmp_path)
        assert LockTimeoutError.__name__ in done.stderr


@pytest.mark.needs("root", "mount")
def test_a_read_only_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("x", encoding="utf-8")
    with read_only(root):
        with pytest.raises(OSError, match="Read-only") as caught:
            FileTransaction(root).begin()
        assert caught.value.errno == errno.EROFS
        assert str(caught.value.filename).startswith(str(root))
        assert recover(root).clean
        assert status(root).clean
    assert os.listdir(root) == ["a"]


@pytest.mark.needs("root", "mount")
def test_a_root_that_became_read_only(tmp_path: Path, watch: Callable[[Path], Path]) -> None:
    root = watch(tmp_path / "root")
    root.mkdir()
    with FileTransaction(root) as tx:
        tx.write("a", "x")
    with read_only(root):
        assert recover(root).clean
        with pytest.raises(OSError, match="Read-only"), FileTransaction(root) as tx:
            tx.write("a", "y")
        with FileStore(root).snapshot() as snap:
            assert snap.read("a") == b"x"
    assert tree(root) == {"a": b"x"}
