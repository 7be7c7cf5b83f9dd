"""A transaction stays in its root and in its mount, whatever links and mounts there are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.mounts import bind, tmpfs
from txfiles import FileTransaction
from txfiles.errors import CommitError, InvalidPathError, TxFilesError, UnsupportedFilesystemError


def _private(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root / ".txfiles") if name != "HEAD")


@pytest.fixture
def outside(root: Path) -> Iterator[Path]:
    """A directory beside the root, in which nothing may happen."""
    path = root.parent / "outside"
    path.mkdir()
    (path / "a").write_text("not yours", encoding="utf-8")
    (path / "d").mkdir()
    before = tree(path)
    yield path
    assert tree(path) == before


# -- links that stay inside -----------------------------------------------------------------------------------------

INSIDE = {
    "relative": ("link", "d/a", "d/a"),
    "in a directory": ("d/link", "a", "d/a"),
    "up": ("d/link", "../b", "b"),
    "up and down": ("d/e/link", "../../d/./e/../a", "d/a"),
    "absolute": ("link", "{root}/d/a", "d/a"),
    "absolute and up": ("link", "{root}/d/../b", "b"),
    "dangling": ("link", "nowhere", "nowhere"),
    "dangling deep": ("link", "new/deep/x", "new/deep/x"),
    "many slashes": ("link", "d///a", "d/a"),
}


@pytest.mark.parametrize("how", INSIDE)
def test_a_link_is_followed_and_stays(root: Path, how: str) -> None:
    (root / "d/e").mkdir(parents=True)
    for path in ("b", "d/a"):
        (root / path).write_text("old", encoding="utf-8")
    link, text, target = INSIDE[how]
    (root / link).symlink_to(text.format(root=root))
    with FileTransaction(root) as tx:
        tx.write(link, "1")
        assert tx.read(target) == tx.read(link) == b"1"
        with tx.open(link, "a") as stream:
            stream.write("2")
        assert tx.version(link) == tx.version(target)
        tx.write(target, tx.read(link) + b"3")
    found = tree(root)
    assert found[target] == b"123"
    assert found[link] == f"-> {text.format(root=root)}"
    assert (root / link).read_text(encoding="utf-8") == "123"


@pytest.mark.parametrize("text", ["d", "{root}/d", "./d/e/..", "other"])
def test_a_link_to_a_directory_is_one_on_the_way(root: Path, text: str) -> None:
    (root / "d/e").mkdir(parents=True)
    (root / "d/a").write_text("old", encoding="utf-8")
    (root / "other").symlink_to("d")
    (root / "link").symlink_to(text.format(root=root))
    with FileTransaction(root) as tx:
        tx.write("link/a", "new")
        tx.write("link/new/b", "new")
        tx.mkdir("link/e/f")
        tx.move("link/a", "link/moved")
        assert tx.listdir("link") == tx.listdir("d") == ["e", "moved", "new"]
        assert tx.glob("**") == ["d/moved", "d/new/b", "link", "other"]
        tx.delete("link/moved")
        tx.delete_tree("link/e")
    assert {path for path in tree(root) if path.startswith("d")} == {"d", "d/new", "d/new/b"}


def test_two_names_of_one_file_are_one_operation(root: Path) -> None:
    (root / "d").mkdir()
    (root / "link").symlink_to("d")
    (root / "file").symlink_to("d/a")
    with FileTransaction(root) as tx:
        tx.write("d/a", "1")
        tx.write("link/a", "2")
        tx.write("file", "3")
        assert len(_private(root)) == 3
        tx.delete("link/a")
        assert not tx.exists("file")
        tx.write("file", "4")
    assert tree(root)["d/a"] == b"4"


def test_links_are_those_of_the_transaction(root: Path) -> None:
    """One that was moved, copied, or replaced leads to where it leads then."""
    (root / "d").mkdir()
    (root / "a").write_text("a", encoding="utf-8")
    (root / "d/a").write_text("d/a", encoding="utf-8")
    (root / "link").symlink_to("a")
    with FileTransaction(root) as tx:
        tx.move("link", "d/link")
        assert tx.read("d/link") == b"d/a"
        tx.write("d/link", "new")
        tx.copy("d", "e")
        tx.write("e/link", "newer")
        tx.move("e", "f/g")
        assert tx.read("f/g/link") == b"newer"
        tx.delete("d/link")
        tx.write("d/link", "a file")
    found = tree(root)
    assert (found["a"], found["d/a"], found["d/link"]) == (b"a", b"new", b"a file")
    assert (found["f/g/a"], found["f/g/link"]) == (b"newer", "-> a")


def test_a_link_through_a_directory_that_is_moved(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d/a").write_text("old", encoding="utf-8")
    (root / "link").symlink_to("d/a")
    (root / "later").symlink_to("e/a")
    with FileTransaction(root) as tx:
        assert not tx.exists("later")
        tx.move("d", "e")
        with pytest.raises(FileNotFoundError):
            tx.read("link")
        tx.write("later", "new")
        tx.write("link", "again")
    assert {path: content for path, content in tree(root).items() if content is not None} == {
        "d/a": b"again", "e/a": b"new", "link": "-> d/a", "later": "-> e/a",
    }  # fmt: skip


def test_a_long_chain_of_links(root: Path) -> None:
    """Forty, as many as the kernel follows."""
    for number in range(1, 42):
        (root / str(number)).symlink_to(str(number - 1))
    with FileTransaction(root) as tx:
        tx.write("40", "x")
        with pytest.raises(OSError, match="too many levels") as caught:
            tx.write("41", "x")
        assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, "41")
    assert (root / "0").read_text(encoding="utf-8") == (root / "40").read_text(encoding="utf-8") == "x"


# -- links that lead out --------------------------------------------------------------------------------------------

OUTSIDE = {
    "up": "../outside/a",
    "absolute": "{outside}/a",
    "up from inside": "d/../../outside/a",
    "a new file": "../outside/new",
    "the directory above": "..",
    "the top": "/",
    "a name that begins like the root": "{root}side/a",
    "out and back in": "../root/b",
    "dangling": "/nonexistent/x",
    "through another": "way/a",
}
THROUGH: dict[str, Callable[[FileTransaction, str], object]] = {
    "read": lambda tx, path: tx.read(path),
    "open r": lambda tx, path: tx.open(path),
    "write": lambda tx, path: tx.write(path, "x"),
    "write_json": lambda tx, path: tx.write_json(path, 1),
    "open w": lambda tx, path: tx.open(path, "w"),
    "open x": lambda tx, path: tx.open(path, "x"),
    "version": lambda tx, path: tx.version(path),
    "exists": lambda tx, path: tx.exists(path),
    "listdir": lambda tx, path: tx.listdir(path),
    "mkdir": lambda tx, path: tx.mkdir(path),
    "copy": lambda tx, path: tx.copy(path, "z"),
    "copy to": lambda tx, path: tx.copy("b", path),
}
BELOW: dict[str, Callable[[FileTransaction, str], object]] = {
    "delete": lambda tx, path: tx.delete(path),
    "delete missing_ok": lambda tx, path: tx.delete(path, missing_ok=True),
    "delete_tree": lambda tx, path: tx.delete_tree(path),
    "move": lambda tx, path: tx.move(path, "z"),
    "move to": lambda tx, path: tx.move("b", path),
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_nothing_happens_through_a_link_that_leads_out(root: Path, outside: Path, how: str) -> None:
    (root / "d").mkdir()
    (root / "b").write_text("b", encoding="utf-8")
    (root / "way").symlink_to("../outside")
    (root / "link").symlink_to(OUTSIDE[how].format(root=root, outside=outside))
    before = tree(root)
    with FileTransaction(root) as tx:
        calls = [(call, "link") for call in THROUGH.values()]
        calls += [(call, "link/x") for call in (THROUGH | BELOW).values()]
        for call, path in calls:
            with pytest.raises(InvalidPathError, match="leaves the root") as caught:
                call(tx, path)
            assert (caught.value.path, caught.value.outcome) == (path, "before")
        assert _private(root) == ["format", "lock"]
        assert tx.glob("**") == ["b", "link", "way"]
        assert tx.glob("link/**") == tx.glob("way/*") == []
    assert tree(root) == before


@pytest.mark.parametrize("how", OUTSIDE)
def test_a_link_that_leads_out_is_itself_deleted_moved_and_copied(root: Path, outside: Path, how: str) -> None:
    (root / "d").mkdir()
    text = OUTSIDE[how].format(root=root, outside=outside)
    for name in ("d/deleted", "d/moved", "d/replaced"):
        (root / name).symlink_to(text)
    (root / "b").write_text("b", encoding="utf-8")
    with FileTransaction(root) as tx:
        tx.copy("d", "e")
        tx.delete("d/deleted")
        tx.move("d/moved", "m")
        tx.move("b", "d/replaced")
    assert tree(root) == {
        "d": None, "d/replaced": b"b", "m": f"-> {text}",
        "e": None, "e/deleted": f"-> {text}", "e/moved": f"-> {text}", "e/replaced": f"-> {text}",
    }  # fmt: skip


@pytest.mark.parametrize("what", ["a", "d/a"])
def test_a_link_that_is_put_at_the_place_later_is_replaced(root: Path, outside: Path, what: str) -> None:
    """Between the call and the commit; as rename(2) does it."""
    (root / "d").mkdir()
    with FileTransaction(root) as tx:
        tx.write(what, "x")
        (root / what).symlink_to(outside / "a")
    assert tree(root)[what] == b"x"


@pytest.mark.parametrize("text", ["../outside", "elsewhere", "missing"])
@pytest.mark.parametrize("what", ["d", "new"])
def test_a_link_that_is_put_on_the_way_later_is_not_followed(root: Path, outside: Path, what: str, text: str) -> None:
    (root / "d").mkdir()
    (root / "elsewhere").mkdir()
    tx = FileTransaction(root).begin()
    tx.write("b", "x")
    tx.write("d/a", "x")
    tx.write("new/x", "x")
    if what == "d":
        (root / "d").rmdir()
    (root / what).symlink_to(text)
    before = tree(root)
    with pytest.raises(TxFilesError) as caught:
        tx.commit()
    assert (caught.value.outcome, caught.value.path) == ("before", what)
    assert tree(root) == before
    assert _private(root) == ["format", "lock"]


# -- mounts ---------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[FileTransaction], object]] = {
    "write": lambda tx: tx.write("m/a", "x"),
    "write new": lambda tx: tx.write("m/new", "x"),
    "write deep": lambda tx: tx.write("m/new/x", "x"),
    "append": lambda tx: tx.open("m/a", "a").close(),
    "delete": lambda tx: tx.delete("m/a"),
    "move in": lambda tx: tx.move("b", "m/b"),
    "move out": lambda tx: tx.move("m/a", "x"),
    "move within": lambda tx: tx.move("m/a", "m/x"),
    "copy in": lambda tx: tx.copy("b", "m/b"),
    "mkdir": lambda tx: tx.mkdir("m/new"),
    "through a link": lambda tx: tx.write("link", "x"),
}


@pytest.mark.needs("mount")
@pytest.mark.parametrize("kind", ["tmpfs", "bind mount"])
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_changed_in_another_mount(root: Path, tmp_path: Path, kind: str, change: str) -> None:
    """A bind mount has the device number of the root, and still nothing can be renamed into it."""
    (tmp_path / "source").mkdir()
    (root / "b").write_text("b", encoding="utf-8")
    (root / "link").symlink_to("m/a")
    with bind(tmp_path / "source", root / "m") if kind != "tmpfs" else tmpfs(root / "m"):
        (root / "m/a").write_text("old", encoding="utf-8")
        before = tree(root)
        with pytest.raises(UnsupportedFilesystemError) as caught, FileTransaction(root) as tx:
            tx.write("c", "x")
            CHANGES[change](tx)
        assert caught.value.outcome == "before"
        assert caught.value.path is not None
        assert caught.value.path.startswith("m")
        assert tree(root) == before
        assert _private(root) == ["format", "lock"]
        with FileTransaction(root, timeout=0) as tx:
            assert tx.read("m/a") == b"old"
            assert tx.listdir("m") == ["a"]
            tx.copy("m/a", "copied out")
        assert (root / "copied out").read_text(encoding="utf-8") == "old"


@pytest.mark.needs("mount")
def test_a_file_that_is_a_mount_is_not_replaced(root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("source", encoding="utf-8")
    with bind(tmp_path / "source", root / "a"):
        for change in (lambda tx: tx.write("a", "x"), lambda tx: tx.delete("a"), lambda tx: tx.move("a", "x")):
            with pytest.raises(TxFilesError) as caught, FileTransaction(root) as tx:
                tx.write("b", "x")
                change(tx)
            assert (caught.value.outcome, caught.value.path) == ("before", "a")
            assert tree(root) == {"a": b"source"}
            assert _private(root) == ["format", "lock"]
    assert (tmp_path / "source").read_text(encoding="utf-8") == "source"


@pytest.mark.needs("mount")
def test_a_directory_with_a_mount_in_it_is_not_moved_or_deleted(root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (root / "d").mkdir()
    with bind(tmp_path / "source", root / "d/m"):
        for change in (lambda tx: tx.delete_tree("d"), lambda tx: tx.move("d", "x"), lambda tx: tx.delete_tree("d/m")):
            with pytest.raises((TxFilesError, OSError)) as caught, FileTransaction(root) as tx:
                tx.write("b", "x")
                change(tx)
            assert getattr(caught.value, "outcome", "before") == "before"
            assert tree(root) == {"d": None, "d/m": None}
            assert _private(root) == ["format", "lock"]


@pytest.mark.needs("mount")
def test_a_private_directory_that_is_a_mount_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with bind(tmp_path / "source", root / ".txfiles"):
        with pytest.raises(UnsupportedFilesystemError, match="mount of its own"):
            FileTransaction(root).begin()
        assert os.listdir(tmp_path / "source") == []
    (root / ".txfiles").rmdir()


@pytest.mark.needs("mount")
def test_a_root_that_is_a_mount_is_a_root(root: Path, tmp_path: Path) -> None:
    with tmpfs(root):
        with FileTransaction(root) as tx:
            tx.write("d/a", "x")
        assert tree(root) == {"d": None, "d/a": b"x"}
        with bind(root, tmp_path / "again"), FileTransaction(tmp_path / "again") as tx:
            tx.write("d/a", "y")
        assert tree(root)["d/a"] == b"y"


# -- the private directory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to("../outside"), lambda path: path.write_text("x", encoding="utf-8")],
    ids=["link", "file"],
)
def test_a_private_directory_that_is_none_is_refused(root: Path, outside: Path, make: Callable[[Path], object]) -> None:
    make(root / ".txfiles")
    with pytest.raises(NotADirectoryError) as caught:
        FileTransaction(root).begin()
    assert caught.value.filename == str(root / ".txfiles")
    (root / ".txfiles").unlink()


@pytest.mark.leaves_debris
@pytest.mark.parametrize("what", ["link", "directory"])
@pytest.mark.parametrize("name", ["lock", "format", "HEAD"])
def test_its_files_are_never_links_or_directories(root: Path, outside: Path, name: str, what: str) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "x")
    (root / ".txfiles" / name).unlink()
    if what == "link":
        (root / ".txfiles" / name).symlink_to("../../outside/a")
    else:
        (root / ".txfiles" / name).mkdir()
    with pytest.raises((OSError, CommitError)) as caught, FileTransaction(root, timeout=0) as tx:
        tx.write("a", "y")
    assert str(root / ".txfiles" / name) in str(caught.value)
    assert (root / "a").read_text(encoding="utf-8") == "x"
