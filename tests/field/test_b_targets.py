"""B: targets that cannot be replaced."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.support.as_user import as_user, public_directory
from tests.support.boundary import killed, nth_call, tree
from tests.support.debris import problems
from tests.support.disks import EXT4, XFS, Place
from tests.support.mounts import bind, run, tmpfs
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, recover, status
from txfiles._disk import system
from txfiles.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    ConflictError,
    RecoveryConflictError,
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


def _at_rename(number: int, act: Callable[[], object]) -> system.FileSystem:
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
    with system.use(_at_rename(number, lambda: run("chattr", "+i", stuck))), pytest.raises(CommitError) as caught:
        change(root)
    assert tree(root) == FIVE
    assert caught.value.outcome == "before"
    assert caught.value.path == stuck.name
    assert isinstance(caught.value.__cause__, PermissionError)
    left = os.listdir(root / ".txfiles")
    assert len(left) == 4 or (len(left) == 5 and any(name in caught.value.__notes__[0] for name in left))
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
    (path / "theirs").write_text("theirs", encoding="utf-8")


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
    fs: object = system.KernelFS()
    if when != "staged":
        at = {"while it is linked": ("link", 3), "a moment before its rename": ("rename", 3)}.get(when, ("rename", 4))
        fs = nth_call(*at, lambda: swap(root / "c"))
    with system.use(fs), pytest.raises((TxFilesError, OSError)) as caught:  # type: ignore[arg-type]
        change(root, (lambda: swap(root / "c")) if when == "staged" else _nothing)
    assert getattr(caught.value, "outcome", "before") == "before"
    assert "'c'" in str(caught.value)
    info = (root / "c").lstat()
    assert stat.S_ISFIFO(info.st_mode) or stat.S_ISDIR(info.st_mode), "theirs stays"
    if swap is _to_a_full_directory:
        assert (root / "c/theirs").read_text(encoding="utf-8") == "theirs"
    assert {name: (root / name).read_bytes() for name in "abde"} == dict.fromkeys("abde", b"old")
    assert problems(root) == []
    subprocess.run(["rm", "-r", root / "c"], check=True)
    (root / "c").write_text("old", encoding="utf-8")
    change(root)
    assert set(tree(root).values()) <= {b"new"}


class _TwiceTheirs(system.KernelFS):
    """Somebody's directory comes before the rename of a delete, and somebody's file before that is taken back."""

    def __init__(self, root: Path) -> None:
        self._c = root / "c"
        self._renames = 0

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        self._renames += 1
        if self._renames == 4:
            _to_a_full_directory(self._c)
        super().rename(at, name, to, new)
        if self._renames == 4:
            self._c.write_text("later", encoding="utf-8")


def _is_left(root: Path) -> None:
    """The directory that lost its name: it lies in the private directory, and every recovery tells of it."""
    (name,) = recover(root).unknown
    assert (root / ".txfiles" / name / "theirs").read_text(encoding="utf-8") == "theirs"
    assert (root / "c").read_text(encoding="utf-8") == "later"


@pytest.mark.leaves_debris
def test_i03_a_delete_whose_directory_cannot_go_back_is_undone_and_told(root: Path) -> None:
    _furnish(root)
    with system.use(_TwiceTheirs(root)), pytest.raises(ConflictError, match="'c'") as caught:
        _delete(root)
    assert caught.value.outcome == "before"
    assert "left in the private directory" in caught.value.__notes__[0]
    assert {name: (root / name).read_bytes() for name in "abde"} == dict.fromkeys("abde", b"old")
    _is_left(root)


@pytest.mark.leaves_debris
@pytest.mark.parametrize("on_conflict", ["keep-theirs", "roll-back"])
def test_i03_the_same_after_a_kill(root: Path, on_conflict: Literal["keep-theirs", "roll-back"]) -> None:
    _furnish(root)
    killed(lambda: _delete(root), "rename", 5, inner=_TwiceTheirs(root))
    for undecided in ("raise", "roll-forward"):
        with pytest.raises(RecoveryConflictError, match="'c'"):
            recover(root, on_conflict=undecided)  # type: ignore[arg-type]
    recover(root, on_conflict=on_conflict)
    others = {name: (root / name).exists() for name in "abde"}
    assert others == dict.fromkeys("abde", on_conflict == "roll-back")
    _is_left(root)


@pytest.mark.parametrize("on_conflict", ["keep-theirs", "roll-back"])
def test_i03_a_directory_that_a_delete_has_moved_comes_back_after_a_kill(
    root: Path, on_conflict: Literal["keep-theirs", "roll-back"]
) -> None:
    """The swap at the rename, and a kill before the rename is taken back."""
    _furnish(root)
    killed(lambda: _delete(root), "rename", 5, inner=_at_rename(4, lambda: _to_a_full_directory(root / "c")))
    assert not (root / "c").exists()
    with pytest.raises(RecoveryConflictError, match="'c'"):
        recover(root)
    recover(root, on_conflict=on_conflict)
    assert (root / "c/theirs").read_text(encoding="utf-8") == "theirs"
    others = {name: (root / name).exists() for name in "abde"}
    assert others == dict.fromkeys("abde", on_conflict == "roll-back")
    assert problems(root) == []


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
    assert (root / folder / "file").read_text(encoding="utf-8") == "old"
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
        (root / name).write_text(f"old {name}", encoding="utf-8")
    (tmp_path / "source").write_text("mounted content", encoding="utf-8")
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
            assert (tmp_path / "source").read_text(encoding="utf-8") == "mounted content", (
                "it was not written to in place"
            )
    finally:
        mounted.__exit__(None, None, None)
    assert tree(root) == before
    assert problems(root) == []


@pytest.mark.needs("mount")
@pytest.mark.parametrize("kind", ["the same file system", "another one"])
def test_b03_a_directory_that_is_a_mount(root: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "source").mkdir()
    (root / "data").mkdir()
    (root / "a").write_text("old", encoding="utf-8")
    with bind(tmp_path / "source", root / "data") if kind == "the same file system" else tmpfs(root / "data"):
        (root / "data/file").write_text("old", encoding="utf-8")
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
        target.write_text("old", encoding="utf-8")
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
        assert (target.read_text(encoding="utf-8"), target.stat().st_ino) == ("old", inode), (
            "it was not written to in place"
        )
        assert sorted(set(os.listdir(root)) - {".txfiles"}) == sorted({"sub", *([] if folder else ["file"])})
        if used_before == "by the user" or folder:
            assert used_before == "by its owner" or problems(root) == []
