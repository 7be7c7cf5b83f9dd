"""`delete`, `delete_tree`, `move`, `copy`, `mkdir`: what they do to files, directories, links and anything else."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles._disk import system
from txfiles._tree import tokens
from txfiles.errors import CommitError, InvalidPathError, TxFilesError
from txfiles.testing._faults import FaultyFS


def _private(root: Path) -> list[str]:
    return sorted(os.listdir(root / ".txfiles"))


def _fill(root: Path) -> None:
    (root / "d/e").mkdir(parents=True)
    (root / "empty").mkdir()
    for path in ("a", "b", "d/a", "d/e/a"):
        (root / path).write_text(path, encoding="utf-8")
    (root / "link").symlink_to("a")
    (root / "dirlink").symlink_to("d")
    (root / "dangling").symlink_to("nowhere")
    (root / "d/up").symlink_to("../b")


Call = Callable[[FileTransaction], object]

REFUSED: dict[str, tuple[Call, type[Exception], str, int | None]] = {
    "delete a missing file": (lambda tx: tx.delete("x"), FileNotFoundError, "x", errno.ENOENT),
    "delete below a missing directory": (lambda tx: tx.delete("x/y"), FileNotFoundError, "x/y", errno.ENOENT),
    "delete a directory": (lambda tx: tx.delete("d"), IsADirectoryError, "d", errno.EISDIR),
    "delete a directory, missing_ok": (
        lambda tx: tx.delete("d", missing_ok=True),
        IsADirectoryError,
        "d",
        errno.EISDIR,
    ),
    "delete below a file": (lambda tx: tx.delete("a/x", missing_ok=True), NotADirectoryError, "a/x", errno.ENOTDIR),
    "delete_tree of nothing": (lambda tx: tx.delete_tree("x"), FileNotFoundError, "x", errno.ENOENT),
    "delete_tree of a file": (lambda tx: tx.delete_tree("a"), NotADirectoryError, "a", errno.ENOTDIR),
    "delete_tree of a link": (lambda tx: tx.delete_tree("dirlink"), NotADirectoryError, "dirlink", errno.ENOTDIR),
    "delete_tree of the root": (lambda tx: tx.delete_tree("."), OSError, "ROOT", errno.EBUSY),
    "move nothing": (lambda tx: tx.move("x", "y"), FileNotFoundError, "x", errno.ENOENT),
    "move onto a directory": (lambda tx: tx.move("a", "empty"), IsADirectoryError, "empty", errno.EISDIR),
    "move a directory onto one": (lambda tx: tx.move("d", "empty"), IsADirectoryError, "empty", errno.EISDIR),
    "move a directory onto a file": (lambda tx: tx.move("d", "a"), NotADirectoryError, "a", errno.ENOTDIR),
    "move a directory onto a link": (lambda tx: tx.move("d", "link"), NotADirectoryError, "link", errno.ENOTDIR),
    "move a directory into itself": (lambda tx: tx.move("d", "d/e/f"), OSError, "d/e/f", errno.EINVAL),
    "move below a file": (lambda tx: tx.move("a", "b/x"), NotADirectoryError, "b/x", errno.ENOTDIR),
    "move the root": (lambda tx: tx.move(".", "x"), OSError, "ROOT", errno.EBUSY),
    "move onto the root": (lambda tx: tx.move("a", "."), OSError, "ROOT", errno.EBUSY),
    "copy nothing": (lambda tx: tx.copy("x", "y"), FileNotFoundError, "x", errno.ENOENT),
    "copy a dangling link": (lambda tx: tx.copy("dangling", "y"), FileNotFoundError, "nowhere", errno.ENOENT),
    "copy onto a directory": (lambda tx: tx.copy("a", "empty"), IsADirectoryError, "empty", errno.EISDIR),
    "copy a directory onto a file": (lambda tx: tx.copy("d", "a"), NotADirectoryError, "a", errno.ENOTDIR),
    "copy a directory into itself": (lambda tx: tx.copy("d", "d/x"), OSError, "d/x", errno.EINVAL),
    "copy the root": (lambda tx: tx.copy(".", "x"), OSError, "x", errno.EINVAL),
    "mkdir on a file": (lambda tx: tx.mkdir("a"), FileExistsError, "a", errno.EEXIST),
    "mkdir below a file": (lambda tx: tx.mkdir("a/x"), NotADirectoryError, "a/x", errno.ENOTDIR),
    "write onto a directory": (lambda tx: tx.write("d", "x"), IsADirectoryError, "d", errno.EISDIR),
    "write onto a link to one": (lambda tx: tx.write("dirlink", "x"), IsADirectoryError, "d", errno.EISDIR),
    "write below a file": (lambda tx: tx.write("a/x", "x"), NotADirectoryError, "a/x", errno.ENOTDIR),
    "read a directory": (lambda tx: tx.read("d"), IsADirectoryError, "d", errno.EISDIR),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_path_and_nothing_staged(root: Path, case: str) -> None:
    _fill(root)
    before = tree(root)
    call, error, path, number = REFUSED[case]
    with FileTransaction(root) as tx:
        with pytest.raises(error) as caught:
            call(tx)
        assert type(caught.value) is error
        assert isinstance(caught.value, OSError)
        assert (caught.value.errno, caught.value.filename) == (number, str(root) if path == "ROOT" else path)
        assert _private(root) == ["format", "lock"]
    assert tree(root) == before


FAILING: dict[str, Call] = {
    "write": lambda tx: tx.write("b", "new"),
    "open": lambda tx: tx.open("b", "w").close(),
    "move a file": lambda tx: tx.move("a", "x"),
    "move a link": lambda tx: tx.move("link", "x"),
    "copy a file": lambda tx: tx.copy("a", "x"),
    "copy a link": lambda tx: tx.copy("d", "x"),
}


@pytest.mark.parametrize("error", [OSError(errno.EDQUOT, "quota"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("case", FAILING)
def test_a_call_that_fails_on_the_way_leaves_nothing(
    root: Path, case: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its system calls; also where a token is closed at once, and synced because none may open it again."""
    monkeypatch.setattr(tokens, "_KEEP_OPEN", (0, 0))
    _fill(root)
    (root / "b").chmod(0o200)
    before = tree(root)

    def attempt(nth: int) -> int:
        """How many system calls the call makes, of which the `nth` fails."""
        begun: list[int] = []

        def plan(number: int, name: str) -> None:
            if begun and number == begun[0] + nth and (name != "close" or isinstance(error, OSError)):
                raise error

        fs: Any = FaultyFS(system.KernelFS(), plan)
        with system.use(fs):
            tx = FileTransaction(root).begin()
        begun.append(fs.calls)
        try:
            FAILING[case](tx)
        except (OSError, KeyboardInterrupt):
            assert _private(root) == ["format", "lock"], fs.trace[begun[0] + nth - 1]
        calls: int = fs.calls - begun[0]
        tx.rollback()
        return calls

    for nth in range(1, attempt(0) + 1):
        attempt(nth)
    assert tree(root) == before


# -- delete ---------------------------------------------------------------------------------------------------------


def test_delete(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.delete("a")
        tx.delete("a", missing_ok=True)
        tx.delete("never/there", missing_ok=True)
        tx.delete("link")
        tx.delete("dirlink")
        tx.delete("dangling")
    assert tree(root) == {
        "b": b"b", "d": None, "d/a": b"d/a", "d/e": None, "d/e/a": b"d/e/a", "d/up": "-> ../b", "empty": None,
    }  # fmt: skip


def test_delete_tree_takes_links_and_follows_none(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.write("d/e/staged", "x")
        tx.delete_tree("d/")
        tx.delete_tree("empty")
    assert tree(root) == {"a": b"a", "b": b"b", "link": "-> a", "dirlink": "-> d", "dangling": "-> nowhere"}


def test_delete_tree_through_a_link(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.delete_tree("dirlink/e")
    assert "d/e" not in tree(root)


@pytest.mark.parametrize("how", ["delete_tree", "move"])
def test_a_directory_in_which_somebody_puts_something_stays(root: Path, how: str) -> None:
    """Found out before the commit point, so that a crash leaves nothing to decide."""
    _fill(root)
    before = tree(root)
    tx = FileTransaction(root).begin()
    tx.delete_tree("d") if how == "delete_tree" else tx.move("d", "new")
    (root / "d/e/theirs").touch()
    with pytest.raises(CommitError) as caught:
        tx.commit()
    assert (caught.value.path, caught.value.outcome) == ("d/e", "before")
    assert tree(root) == before | {"d/e/theirs": b""}
    assert _private(root) == ["format", "lock"]


# -- move -----------------------------------------------------------------------------------------------------------


def test_a_moved_file_keeps_inode_times_and_links(root: Path) -> None:
    (root / "a").write_text("a", encoding="utf-8")
    (root / "twin").hardlink_to(root / "a")
    os.utime(root / "a", ns=(1, 2))
    before = (root / "a").stat()
    with FileTransaction(root) as tx:
        tx.move("a", "new/b")
    after = (root / "new/b").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode, after.st_nlink) == (
        before.st_ino, before.st_mtime_ns, before.st_mode, 2,
    )  # fmt: skip
    assert not (root / "a").exists()


def test_move_replaces_files_and_links_themselves(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.move("a", "b")
        tx.move("d/a", "link")
        tx.move("dangling", "d/e/a")
        tx.move("dirlink", "empty/l")
    assert tree(root) == {
        "b": b"a", "link": b"d/a",
        "d": None, "d/e": None, "d/e/a": "-> nowhere", "d/up": "-> ../b",
        "empty": None, "empty/l": "-> d",
    }  # fmt: skip


@pytest.mark.parametrize("call", ["move", "copy"])
@pytest.mark.parametrize(
    ("source", "target"),
    [("a/", "x"), ("a", "x/"), ("a", "x/."), ("a", "new/x/"), ("a", "empty/"), ("link/", "x"), ("a", "d/e/..")],
)
def test_a_slash_at_the_end_is_none_of_a_file(root: Path, call: str, source: str, target: str) -> None:
    """Whoever writes `move("a", "x/")` means a directory, so nothing is called `x` in silence."""
    _fill(root)
    before = tree(root)
    with FileTransaction(root) as tx:
        with pytest.raises(InvalidPathError) as caught:
            getattr(tx, call)(source, target)
        assert caught.value.path in (source, target)
        assert _private(root) == ["format", "lock"]
        getattr(tx, call)("empty/", "y/")
        tx.delete_tree("y/")
        if call == "move":
            tx.mkdir("empty/")
    assert tree(root) == before


def test_move_onto_itself_changes_nothing(root: Path) -> None:
    _fill(root)
    before = tree(root)
    with FileTransaction(root) as tx:
        for path in ("a", "d", "link", "d/e/../a", "dirlink/a"):
            tx.move(path, path)
        tx.move("d/a", "dirlink/a")
        assert _private(root) == ["format", "lock"]
    assert tree(root) == before


def test_moving_one_of_two_hard_links_onto_the_other_leaves_one(root: Path) -> None:
    """Unlike rename(2), which does nothing then."""
    (root / "a").write_text("x", encoding="utf-8")
    (root / "b").hardlink_to(root / "a")
    with FileTransaction(root) as tx:
        tx.move("a", "b")
    assert tree(root) == {"b": b"x"}


def test_a_moved_directory_keeps_what_is_in_it(root: Path) -> None:
    _fill(root)
    (root / "d/e").chmod(0o711)
    (root / "d/e/a").chmod(0o604)
    inode = (root / "d/e/a").stat().st_ino
    with FileTransaction(root) as tx:
        tx.write("d/new", "new")
        tx.move("d", "x/y")
        assert tx.read("x/y/new") == b"new"
        with pytest.raises(FileNotFoundError):
            tx.read("dirlink/a")
    found = tree(root)
    assert {path: content for path, content in found.items() if path.startswith("x")} == {
        "x": None, "x/y": None, "x/y/a": b"d/a", "x/y/new": b"new",
        "x/y/e": None, "x/y/e/a": b"d/e/a", "x/y/up": "-> ../b",
    }  # fmt: skip
    assert "d" not in found
    assert stat.S_IMODE((root / "x/y/e").stat().st_mode) == 0o711
    assert stat.S_IMODE((root / "x/y/e/a").stat().st_mode) == 0o604
    assert (root / "x/y/e/a").stat().st_ino == inode


# -- copy -----------------------------------------------------------------------------------------------------------


def test_a_copy_has_content_and_mode_and_is_another_file(root: Path) -> None:
    (root / "a").write_text("a", encoding="utf-8")
    (root / "a").chmod(0o751)
    os.utime(root / "a", ns=(1, 2))
    with FileTransaction(root) as tx:
        tx.copy("a", "new/b")
    one, other = (root / "a").stat(), (root / "new/b").stat()
    assert tree(root) == {"a": b"a", "new": None, "new/b": b"a"}
    assert stat.S_IMODE(other.st_mode) == 0o751
    assert one.st_ino != other.st_ino
    assert other.st_mtime_ns > one.st_mtime_ns


def test_copy_follows_links_at_both_ends_and_keeps_those_inside(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.copy("d/up", "link")
        tx.copy("dirlink", "new")
        tx.write("new/a", "changed")
    found = tree(root)
    assert (found["link"], found["a"]) == ("-> a", b"b")
    assert {path: content for path, content in found.items() if path.startswith("new")} == {
        "new": None, "new/a": b"changed", "new/e": None, "new/e/a": b"d/e/a", "new/up": "-> ../b",
    }  # fmt: skip
    assert found["d/a"] == b"d/a"


def test_copy_to_a_dangling_link_makes_its_target(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.copy("a", "dangling")
    assert (tree(root)["nowhere"], tree(root)["dangling"]) == (b"a", "-> nowhere")


def test_copy_of_a_file_onto_itself_changes_nothing(root: Path) -> None:
    _fill(root)
    inode = (root / "a").stat().st_ino
    with FileTransaction(root) as tx:
        tx.copy("a", "a")
        tx.copy("link", "a")
        assert _private(root) == ["format", "lock"]
    assert (root / "a").stat().st_ino == inode


# -- mkdir ----------------------------------------------------------------------------------------------------------


def test_mkdir(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        for path in (".", "d", "d/", "new/deep/", "new", "dirlink/made", "dangling"):
            tx.mkdir(path)
        assert tx.listdir("new") == ["deep"]
    found = tree(root)
    assert [found[path] for path in ("new", "new/deep", "d/made", "nowhere")] == [None] * 4
    assert found["dangling"] == "-> nowhere"


def test_a_file_and_a_directory_change_places(root: Path) -> None:
    _fill(root)
    with FileTransaction(root) as tx:
        tx.move("d", "t")
        tx.move("a", "d")
        tx.move("t", "a")
    found = tree(root)
    assert (found["d"], found["a"], found["a/e/a"]) == (b"a", None, b"d/e/a")


# -- what is not a regular file -------------------------------------------------------------------------------------


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(path.parent, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


ON_SPECIAL: dict[str, Call] = {
    "read": lambda tx: tx.read("d/special"),
    "open r": lambda tx: tx.open("d/special", "rb"),
    "open w": lambda tx: tx.open("d/special", "wb"),
    "open a": lambda tx: tx.open("d/special", "ab"),
    "open x": lambda tx: tx.open("d/special", "xb"),
    "write": lambda tx: tx.write("d/special", "x"),
    "write through a link": lambda tx: tx.write("link", "x"),
    "delete": lambda tx: tx.delete("d/special"),
    "delete_tree": lambda tx: tx.delete_tree("d"),
    "move": lambda tx: tx.move("d/special", "x"),
    "move over": lambda tx: tx.move("a", "d/special"),
    "move with": lambda tx: tx.move("d", "x"),
    "copy": lambda tx: tx.copy("d/special", "x"),
    "copy over": lambda tx: tx.copy("a", "d/special"),
    "copy with": lambda tx: tx.copy("d", "x"),
}


@pytest.mark.parametrize("call", ON_SPECIAL)
@pytest.mark.parametrize(
    "make", [_fifo, _socket, pytest.param(_device, marks=pytest.mark.needs("root"))], ids=["fifo", "socket", "device"]
)
def test_special_files_are_refused_and_never_opened(root: Path, make: Callable[[Path], None], call: str) -> None:
    (root / "a").write_text("a", encoding="utf-8")
    (root / "d").mkdir()
    make(root / "d/special")
    (root / "link").symlink_to("d/special")
    before = (root / "d/special").lstat()
    with FileTransaction(root) as tx:
        with pytest.raises(InvalidPathError, match="not a regular file") as caught:
            ON_SPECIAL[call](tx)
        assert (caught.value.path, caught.value.outcome) == ("d/special", "before")
        assert _private(root) == ["format", "lock"]
        assert tx.exists("d/special")
        tx.write("d/next", "works")
    assert (root / "d/special").lstat() == before
    assert (root / "d/next").read_text(encoding="utf-8") == "works"


# -- roots in roots -------------------------------------------------------------------------------------------------


@pytest.fixture
def nested(root: Path) -> Path:
    inner = root / "d/inner"
    inner.mkdir(parents=True)
    with FileTransaction(inner) as tx:
        tx.write("a", "inner")
    return inner


INTO_A_NESTED_ROOT = [
    ("delete_tree", "d/inner"),
    ("delete_tree", "d"),
    ("move", "d/inner", "x"),
    ("move", "d", "x"),
    ("write", "d/inner/.txfiles/HEAD", "x"),
    ("delete", "d/inner/.txfiles/lock"),
    ("delete_tree", "d/inner/.txfiles"),
    ("read", "d/inner/.txfiles/HEAD"),
    ("copy", "d/inner/.txfiles", "x"),
    ("listdir", "d/inner/.txfiles"),
]


@pytest.mark.parametrize("call", INTO_A_NESTED_ROOT, ids=" ".join)
def test_a_nested_root_is_not_moved_deleted_or_looked_into(root: Path, nested: Path, call: tuple[str, ...]) -> None:
    with FileTransaction(root) as tx:
        with pytest.raises(InvalidPathError) as caught:
            getattr(tx, call[0])(*call[1:])
        assert caught.value.path is not None
        assert _private(root) == ["format", "lock"]
    assert tree(nested) == {"a": b"inner"}


def test_the_files_of_a_nested_root_are_files(root: Path, nested: Path) -> None:
    with FileTransaction(root) as outer, FileTransaction(nested) as inner:
        outer.copy("d", "copied")
        outer.write("d/inner/b", "outer")
        inner.write("a", "changed")
        assert outer.glob("**") == ["copied/inner/a", "d/inner/a", "d/inner/b"]
    assert tree(nested) == {"a": b"changed", "b": b"outer"}
    assert sorted(os.listdir(root / "copied/inner")) == ["a"]


def test_the_errors_can_be_caught_as_one(root: Path) -> None:
    with FileTransaction(root) as tx:
        for path in ("", "..", "/a", "a\0b", ".txfiles/lock", "a/"):
            with pytest.raises(TxFilesError):
                tx.write(path, "x")
            with pytest.raises(ValueError, match="path"):
                tx.write(path, "x")
