"""B: targets that are no plain files."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.inject import OPEN, traced
from txfiles import FileStore, FileTransaction
from txfiles.errors import InvalidPathError

# -- B28, B29: no plain files ---------------------------------------------------------------------------------------


def _calls(name: str) -> dict[str, Callable[[FileTransaction], object]]:
    return {
        "write": lambda tx: tx.write(name, "new"),
        "write_json": lambda tx: tx.write_json(name, {}),
        "open w": lambda tx: tx.open(name, "w"),
        "open a": lambda tx: tx.open(name, "ab"),
        "open x": lambda tx: tx.open(name, "x"),
        "move onto": lambda tx: tx.move("other", name),
        "copy onto": lambda tx: tx.copy("other", name),
    }


_DIRECTORIES = ("empty", "full", "a link to one", "new in the transaction")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (kind, call)
        for kind in _DIRECTORIES
        for call in _calls("")
        if not (kind == "a link to one" and call.endswith("onto"))  # these replace the link itself
    ],
)
def test_b28_a_directory_is_not_replaced_by_a_file(root: Path, kind: str, call: str) -> None:
    (root / "other").write_text("other", encoding="utf-8")
    if kind != "new in the transaction":
        (root / "d").mkdir(mode=0o751)
        if kind == "full":
            (root / "d/inside").write_text("inside", encoding="utf-8")
        if kind == "a link to one":
            (root / "d").rename(root / "real")
            (root / "d").symlink_to("real")
    before, mode = tree(root), (root / "d").stat().st_mode if (root / "d").exists() else 0
    with FileTransaction(root) as tx:
        if kind == "new in the transaction":
            tx.mkdir("d")
        with pytest.raises(IsADirectoryError) as caught:
            _calls("d")[call](tx)
        assert str(caught.value.filename).endswith(("d", "real"))
    assert tree(root) == (before if kind != "new in the transaction" else {**before, "d": None})
    if mode:
        assert (root / "d").stat().st_mode == mode


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def _block_device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(7, 200))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(path.parent)
        try:
            listener.bind(path.name)
        finally:
            os.chdir(before)


SPECIAL = [_fifo, _device, _block_device, _socket]


@pytest.fixture
def _no_waiting() -> Iterator[None]:
    """Whoever opens a FIFO waits for ever: here, for five seconds."""

    def late(number: int, frame: object) -> None:
        raise AssertionError("it waits for the other end of the FIFO")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.needs("root")
@pytest.mark.parametrize("through_link", [False, True], ids=["", "through a link"])
@pytest.mark.parametrize("make", SPECIAL)
def test_b29_what_is_no_plain_file_is_refused_at_the_call(
    root: Path, make: Callable[[Path], None], through_link: bool
) -> None:
    (root / "other").write_text("other", encoding="utf-8")
    make(root / "real")
    if through_link:
        (root / "special").symlink_to("real")
    else:
        (root / "real").rename(root / "special")
    info = (root / "special").lstat()
    with FileTransaction(root) as tx:
        calls = _calls("special") | {
            "read": lambda tx: tx.read("special"),
            "open r": lambda tx: tx.open("special"),
            "copy": lambda tx: tx.copy("special", "backup"),
            "delete": lambda tx: tx.delete("special"),
            "move": lambda tx: tx.move("special", "elsewhere"),
        }
        for name, call in calls.items():
            if through_link and name in ("delete", "move", "move onto", "copy onto"):
                continue  # these act on the link itself
            with pytest.raises(InvalidPathError, match=r"not a regular file") as caught:
                call(tx)
            assert caught.value.path in ("special", "real"), name
        assert tx.exists("special")
        assert "special" in tx.listdir()
        tx.write("other", "the transaction goes on")
    assert (root / "special").lstat() == info
    with FileStore(root).snapshot() as snap, pytest.raises(InvalidPathError):
        snap.read("special")


@pytest.mark.needs("strace")
@pytest.mark.parametrize("make", SPECIAL)
def test_b29_it_is_never_opened(root: Path, make: Callable[[Path], None]) -> None:
    make(root / "special")
    done = traced(
        """
        from txfiles import FileTransaction, FileStore
        with region():
            with FileTransaction(sys.argv[1]) as tx:
                for call in (tx.read, lambda p: tx.write(p, "x"), lambda p: tx.open(p, "a"), lambda p: tx.copy(p, "b")):
                    try:
                        call("special")
                    except ValueError:
                        print("refused")
        """,
        root,
        calls=OPEN,
        timeout=20,
    )
    assert done.check().stdout == "refused\n" * 4
    assert not [call for call in done.calls if any(path.endswith("special") for path in call.paths)]


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("make", SPECIAL)
def test_b29_a_tree_with_one_in_it_is_neither_deleted_nor_copied(root: Path, make: Callable[[Path], None]) -> None:
    (root / "dir").mkdir()
    (root / "dir/file").write_text("x", encoding="utf-8")
    make(root / "dir/special")
    names = set(tree_names(root))
    with FileTransaction(root) as tx:
        for call in (tx.delete_tree, lambda p: tx.copy(p, "copy"), lambda p: tx.move(p, "moved")):
            with pytest.raises(InvalidPathError, match="dir/special"):
                call("dir")  # type: ignore[operator]
    assert set(tree_names(root)) - {".txfiles"} == names


def tree_names(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if ".txfiles" not in path.parts]
