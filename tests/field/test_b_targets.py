"""B: targets that cannot be replaced."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import nth_call, tree
from tests.support.debris import problems
from tests.support.disks import EXT4, XFS, Place
from tests.support.inject import OPEN, traced
from tests.support.mounts import bind, run, tmpfs
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, _fs, recover, status
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    InvalidPathError,
    TxFilesError,
    UnsupportedFilesystemError,
)

Places = Callable[[str], Place]
FIVE = dict.fromkeys("abcde", b"old")


def _furnish(root: Path) -> None:
    with FileTransaction(root) as tx:
        for name in FIVE:
            tx.write(name, "old")


def _nothing() -> None:
    pass


def _save(root: Path, staged: Callable[[], object] = _nothing) -> None:
    with FileTransaction(root) as tx:
        for name in FIVE:
            tx.write(name, "new")
        staged()


def _delete(root: Path, staged: Callable[[], object] = _nothing) -> None:
    with FileTransaction(root) as tx:
        for name in FIVE:
            tx.delete(name)
        staged()


def _at_rename(number: int, act: Callable[[], object]) -> _fs.FileSystem:
    """The first rename is that of the journal, then the files follow."""
    fs: object = nth_call("rename", number, act)
    return fs  # type: ignore[return-value]


@contextmanager
def _attribute(flag: str, path: Path) -> Iterator[None]:
    run("chattr", f"+{flag}", path)
    try:
        yield
    finally:
        run("chattr", f"-{flag}", path)


# -- B01: the third of five fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [_save, _delete])
@pytest.mark.parametrize("number", [2, 4, 6], ids=["first", "third", "last"])
@pytest.mark.parametrize("filesystem", [EXT4, XFS])
def test_b01_a_target_that_becomes_immutable_in_the_commit(
    place: Places, filesystem: str, number: int, change: Callable[[Path], None]
) -> None:
    root = place(filesystem).root
    _furnish(root)
    stuck = root / "abcde"[number - 2]
    with _fs.use(_at_rename(number, lambda: run("chattr", "+i", stuck))), pytest.raises(CommitError) as caught:
        change(root)
    assert tree(root) == FIVE
    assert caught.value.outcome == "before"
    assert caught.value.path == stuck.name
    assert isinstance(caught.value.__cause__, PermissionError)
    left = os.listdir(root / ".txfiles")
    assert len(left) == 3 or (len(left) == 4 and any(name in caught.value.__notes__[0] for name in left))
    with FileTransaction(root) as tx:
        tx.write("other", "what cannot be removed stops nobody")
    run("chattr", "-i", stuck)
    change(root)
    assert {content for name, content in tree(root).items() if name != "other"} <= {b"new"}


def _to_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_a_full_directory(path: Path) -> None:
    _to_a_directory(path)
    (path / "theirs").write_text("theirs")


def _to_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


_MOMENTS = ("staged", "while it is linked", "a moment before its rename", "at its rename")


@pytest.mark.parametrize(
    ("change", "when", "swap"),
    [
        (change, when, swap)
        for change in (_save, _delete)
        for when in _MOMENTS
        for swap in (_to_a_directory, _to_a_full_directory, _to_a_fifo)
        if not (when == "at its rename" and swap is _to_a_fifo)  # rename(2) replaces it, nobody can tell
        and not (when == "while it is linked" and change is _delete)  # which links nothing
    ],
)
def test_b01_i03_a_target_that_turns_into_something_else(
    root: Path, change: Callable[..., None], when: str, swap: Callable[[Path], None]
) -> None:
    _furnish(root)
    fs: object = _fs.KernelFS()
    if when != "staged":
        at = {"while it is linked": ("link", 3), "a moment before its rename": ("rename", 3)}.get(when, ("rename", 4))
        fs = nth_call(*at, lambda: swap(root / "c"))
    with _fs.use(fs), pytest.raises((TxFilesError, OSError)) as caught:  # type: ignore[arg-type]
        change(root, (lambda: swap(root / "c")) if when == "staged" else _nothing)
    assert getattr(caught.value, "outcome", "before") == "before"
    assert "'c'" in str(caught.value)
    info = (root / "c").lstat()
    assert stat.S_ISFIFO(info.st_mode) or stat.S_ISDIR(info.st_mode), "theirs stays"
    if swap is _to_a_full_directory:
        assert (root / "c/theirs").read_text() == "theirs"
    assert {name: (root / name).read_bytes() for name in "abde"} == dict.fromkeys("abde", b"old")
    assert problems(root) == []
    subprocess.run(["rm", "-r", root / "c"], check=True)
    (root / "c").write_text("old")
    change(root)
    assert set(tree(root).values()) <= {b"new"}


# -- B02: immutable and append-only ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("change", [_save, _delete])
@pytest.mark.parametrize("filesystem", [EXT4])
def test_b02_an_immutable_target_is_an_early_and_clear_error(
    place: Places, filesystem: str, change: Callable[[Path], None], flag: str
) -> None:
    root = place(filesystem).root
    _furnish(root)
    before = {name: (root / name).stat().st_ino for name in FIVE}
    with _attribute(flag, root / "c"), pytest.raises(CommitError, match="'c'") as caught:
        change(root)
    assert caught.value.path == "c"
    assert caught.value.outcome == "before"
    if change is _save:
        assert "immutable" in str(caught.value)
    assert {name: (root / name).stat().st_ino for name in FIVE} == before
    assert problems(root) == []
    change(root)


@pytest.mark.parametrize("folder", ["", "sub"])
@pytest.mark.parametrize("filesystem", [EXT4])
def test_b02_an_append_only_directory_with_files_to_replace(place: Places, filesystem: str, folder: str) -> None:
    root = place(filesystem).root
    (root / "sub").mkdir()
    with FileTransaction(root) as tx:
        tx.write(os.path.join(folder, "file"), "old")
    with (
        _attribute("a", root / folder),
        pytest.raises(CommitError, match="file") as caught,
        FileTransaction(root) as tx,
    ):
        tx.write(os.path.join(folder, "file"), "new")
        tx.write("zzz", "new")
    assert caught.value.outcome == "before"
    assert (root / folder / "file").read_text() == "old"
    assert problems(root) == []
    with _attribute("a", root / folder), FileTransaction(root) as tx:
        tx.write(os.path.join(folder, "new name"), "these can be added")


@pytest.mark.parametrize("filesystem", [EXT4])
def test_b02_what_an_append_only_directory_keeps_is_named(place: Places, filesystem: str) -> None:
    """A new file is there and can no longer be taken back: the error says which."""
    root = place(filesystem).root
    (root / "sub").mkdir()
    with FileTransaction(root) as tx:
        tx.write("sub/old", "old")
        tx.write("first", "old")
    before = tree(root)
    with _attribute("a", root / "sub"):
        with pytest.raises(CommitOutcomeUnknownError, match="'sub/new'"), FileTransaction(root) as tx:
            for name in ("first", "sub/new", "sub/old"):
                tx.write(name, "new")
        with pytest.raises(PermissionError, match="'sub/new'"):
            recover(root)
        assert status(root).pending[0].state == "aborting"
        with FileStore(root, timeout=0.1).snapshot() as snap:
            assert (snap.read("first"), snap.listdir("sub")) == (b"old", ["old"])
    recover(root)
    assert tree(root) == before


@pytest.mark.parametrize("filesystem", [EXT4])
def test_b02_an_append_only_private_directory(place: Places, filesystem: str) -> None:
    root = place(filesystem).root
    _furnish(root)
    with _attribute("a", root / ".txfiles"):
        with pytest.raises(TxFilesError, match=r"\.txfiles/[0-9a-f]{32}") as caught:
            _save(root)
        assert caught.value.outcome in ("before", "unknown")
        assert tree(root) == FIVE
        with pytest.raises(PermissionError, match=r"\.txfiles/[0-9a-f]{32}"):
            recover(root)
    recover(root)
    assert tree(root) == FIVE
    _save(root)


# -- B03: mount points ----------------------------------------------------------------------------------------------


@pytest.mark.needs("mount")
@pytest.mark.parametrize("when", ["before", "after staging"])
@pytest.mark.parametrize("call", ["write", "delete", "move to", "move from", "open"])
def test_b03_a_file_that_is_a_mount(root: Path, tmp_path: Path, call: str, when: str) -> None:
    for name in ("a", "cfg.json", "z", "other"):
        (root / name).write_text(f"old {name}")
    (tmp_path / "source").write_text("mounted content")
    mounted = bind(tmp_path / "source", root / "cfg.json")
    before = tree(root)
    if when == "before":
        mounted.__enter__()
    try:
        for _ in range(3):
            with pytest.raises(UnsupportedFilesystemError, match=r"cfg\.json") as caught, FileTransaction(root) as tx:
                tx.write("a", "new")
                tx.write("z", "new")
                if call == "write":
                    tx.write("cfg.json", "new")
                elif call == "delete":
                    tx.delete("cfg.json")
                elif call == "open":
                    with tx.open("cfg.json", "a") as file:
                        file.write("new")
                else:
                    tx.move(*(("other", "cfg.json") if call == "move to" else ("cfg.json", "other")))
                if when != "before":
                    mounted.__enter__()
                    when = "before"
            assert caught.value.path == "cfg.json"
            assert problems(root) == []
            assert (tmp_path / "source").read_text() == "mounted content", "it was not written to in place"
    finally:
        mounted.__exit__(None, None, None)
    assert tree(root) == before
    assert problems(root) == []


@pytest.mark.needs("mount")
@pytest.mark.parametrize("kind", ["the same file system", "another one"])
def test_b03_a_directory_that_is_a_mount(root: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "source").mkdir()
    (root / "data").mkdir()
    (root / "a").write_text("old")
    with bind(tmp_path / "source", root / "data") if kind == "the same file system" else tmpfs(root / "data"):
        (root / "data/file").write_text("old")
        for name in ("data/file", "data/new", "data/deep/new"):
            with pytest.raises(UnsupportedFilesystemError, match="data"), FileTransaction(root) as tx:
                tx.write("a", "new")
                tx.write(name, "new")
        with pytest.raises((UnsupportedFilesystemError, CommitError)), FileTransaction(root) as tx:
            tx.write("a", "new")
            tx.delete_tree("data")
        with FileTransaction(root) as tx:
            assert tx.read("data/file") == b"old"
        assert tree(root) == {"a": b"old", "data": None, "data/file": b"old"}
    assert problems(root) == []


# -- B24: no right to write the directory ---------------------------------------------------------------------------


@pytest.mark.needs("users")
@pytest.mark.parametrize("used_before", ["never", "by its owner", "by the user"])
@pytest.mark.parametrize("folder", ["", "sub"])
def test_b24_a_file_that_may_be_written_in_a_directory_that_may_not(folder: str, used_before: str) -> None:
    with public_directory() as root:
        (root / "sub").mkdir()
        if folder:
            os.chown(root, 1000, 1000)
        if used_before == "by its owner":
            FileTransaction(root).begin().rollback()
        elif used_before == "by the user":
            (root / ".txfiles").mkdir(mode=0o700)
            os.chown(root / ".txfiles", 1000, 1000)
        target = root / folder / "file"
        target.write_text("old")
        target.chmod(0o666)
        (root / folder).chmod(0o555)
        inode = target.stat().st_ino
        done = run_python(
            """
            from txfiles import FileTransaction
            from txfiles.errors import CommitError
            try:
                with FileTransaction(sys.argv[1]) as tx:
                    tx.write(sys.argv[2], "new")
            except PermissionError as error:
                print("PermissionError", error.filename)
            except CommitError as error:
                print(type(error.__cause__).__name__, error.outcome, error.path)
            """,
            root,
            os.path.join(folder, "file"),
            **as_user(1000),
        ).check()
        assert done.stdout.startswith("PermissionError ")
        assert (target.read_text(), target.stat().st_ino) == ("old", inode), "it was not written to in place"
        assert sorted(set(os.listdir(root)) - {".txfiles"}) == sorted({"sub", *([] if folder else ["file"])})
        if used_before == "by the user" or folder:
            assert used_before == "by its owner" or problems(root) == []


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
    (root / "other").write_text("other")
    if kind != "new in the transaction":
        (root / "d").mkdir(mode=0o751)
        if kind == "full":
            (root / "d/inside").write_text("inside")
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
    (root / "other").write_text("other")
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
    (root / "dir/file").write_text("x")
    make(root / "dir/special")
    names = set(tree_names(root))
    with FileTransaction(root) as tx:
        for call in (tx.delete_tree, lambda p: tx.copy(p, "copy"), lambda p: tx.move(p, "moved")):
            with pytest.raises(InvalidPathError, match="dir/special"):
                call("dir")  # type: ignore[operator]
    assert set(tree_names(root)) - {".txfiles"} == names


def tree_names(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if ".txfiles" not in path.parts]
