"""I: what is met on Windows. No claim is made for it; here is what the same faults come to on Linux."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import Refusing, killed, nth_call, tree
from txfiles import FileStore, FileTransaction, recover
from txfiles._disk import system
from txfiles.errors import CommitError, CommitOutcomeUnknownError, RecoveryError, TxFilesError

NAMES = ("a", "b", "sub/c")


def _save(root: Path, content: str, *names: str) -> None:
    with FileTransaction(root) as tx:
        for name in names or NAMES:
            tx.write(name, content)


def _leftovers(root: Path) -> list[str]:
    return sorted({path.name for path in (root / ".txfiles").iterdir()} - {"format", "lock", "HEAD", "spare"})


# -- I01: a rename that is refused for a moment ---------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3, 1000], ids=["once", "three times", "for ever"])
@pytest.mark.parametrize("name", [b"a", b"b", b"c"], ids=["first", "middle", "last"])
def test_i01_a_refused_rename_rolls_the_whole_set_back(root: Path, name: bytes, times: int) -> None:
    """Linux refuses a rename for good, never for a moment: so it is not tried again, and the caller may do that."""
    _save(root, "old")
    before = tree(root)
    fs = Refusing(name, errno.EACCES, times=times)
    with system.use(fs):
        for _ in range(min(times, 5)):
            with pytest.raises(CommitError) as caught:
                _save(root, "new")
            assert caught.value.outcome == "before"
            assert isinstance(caught.value.__cause__, PermissionError)
            assert caught.value.path == ("sub/c" if name == b"c" else name.decode())
            assert tree(root) == before
            assert _leftovers(root) == []
        if times < 5:
            _save(root, "new")
            assert set(tree(root).values()) == {b"new", None}


class _RefusesTheUndo(Refusing):
    """Refuses the last file, and then for three times whatever the undo puts back."""

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        if name.endswith(b".old") and self.refused < 4:
            self.refused += 1
            raise PermissionError(errno.EACCES, "refused")
        super().rename(at, name, to, new)


def test_i01_an_undo_that_is_refused_is_left_to_recovery(root: Path) -> None:
    _save(root, "old")
    before = tree(root)
    with system.use(_RefusesTheUndo(b"c", times=1)):
        with pytest.raises(CommitOutcomeUnknownError, match="recovery decides"):
            _save(root, "new")
        for _ in range(2):
            with pytest.raises(PermissionError):
                FileTransaction(root).begin()
        assert recover(root).rolled_back
    assert tree(root) == before
    assert _leftovers(root) == []


def test_i01_a_file_that_somebody_has_open_or_mapped_is_replaced_all_the_same(root: Path) -> None:
    import mmap

    _save(root, "old")
    with open(root / "a", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped, open(root / "b", "rb") as other:
        _save(root, "new")
        assert (mapped[:], other.read()) == (b"old", b"old")
    assert (root / "a").read_text(encoding="utf-8") == (root / "b").read_text(encoding="utf-8") == "new"


# -- I03: a directory where a file is expected ----------------------------------------------------------------------


def _to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _to_full_directory(path: Path) -> None:
    _to_directory(path)
    (path / "inside").write_text("theirs", encoding="utf-8")


def _to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SWAPS = [_to_directory, _to_full_directory, _to_fifo]
CHANGES: dict[str, Callable[[FileTransaction], object]] = {
    "write": lambda tx: tx.write("b", "new"),
    "delete": lambda tx: tx.delete("b"),
    "move onto": lambda tx: tx.move("a", "b"),
    "move away": lambda tx: tx.move("b", "moved"),
    "copy onto": lambda tx: tx.copy("a", "b"),
}


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "staged", "commit point"])
def test_i03_a_target_that_is_no_file_is_not_replaced(
    root: Path, change: str, swap: Callable[[Path], None], when: str
) -> None:
    if when == "before" and change == "move away" and swap is not _to_fifo:
        change = "write"  # a directory may be moved
    _save(root, "old")
    (root / "0").write_text("old", encoding="utf-8")

    def do_swap() -> None:
        swap(root / "b")

    fs: Any = nth_call("rename", 1, do_swap if when == "commit point" else lambda: None)
    if when == "before":
        do_swap()
    with system.use(fs), pytest.raises((TxFilesError, OSError)) as caught, FileTransaction(root) as tx:
        tx.write("0", "new")
        CHANGES[change](tx)
        if when == "staged":
            do_swap()
    assert getattr(caught.value, "outcome", "before") == "before"
    found = root / "b"
    assert stat.S_ISFIFO(found.lstat().st_mode) if swap is _to_fifo else found.is_dir()
    if swap is _to_fifo:
        found.unlink()  # no test may open it
    assert tree(root).get("b/inside", b"theirs") == b"theirs"
    assert (root / "0").read_text(encoding="utf-8") == (root / "a").read_text(encoding="utf-8") == "old"
    assert not (root / "moved").exists()
    assert _leftovers(root) == []


@pytest.mark.leaves_debris
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("exists", [False, True], ids=["a new file", "a replaced file"])
@pytest.mark.parametrize("when", ["staged", "commit point", "crashed"])
def test_i03_a_token_that_is_no_file_is_not_put_in_place(
    root: Path, swap: Callable[[Path], None], exists: bool, when: str
) -> None:
    """Somebody meddles with the private directory: nothing but a file, or a link that was moved, becomes a target."""
    _save(root, "old", "a")
    if exists:
        (root / "b").write_text("old", encoding="utf-8")
    before = tree(root)

    def do_swap() -> None:
        swap(next(path for path in (root / ".txfiles").iterdir() if path.name.endswith(".1")))

    if when == "crashed":
        killed(lambda: _save(root, "new", "a", "b"), "rename", 3)
        do_swap()
        with pytest.raises(RecoveryError, match="'b' is damaged"):
            recover(root)
        assert tree(root) == {**before, "a": b"new"}
        return
    fs: Any = nth_call("rename", 1, do_swap if when == "commit point" else lambda: None)
    with system.use(fs):
        tx = FileTransaction(root).begin()
        tx.write("a", "new")
        tx.write("b", "new")
        if when == "staged":
            do_swap()
        with pytest.raises(TxFilesError):
            tx.commit()
    assert tree(root) == before


def test_i03_calls_say_what_they_met(root: Path) -> None:
    _save(root, "old")
    with FileTransaction(root) as tx:
        files: list[Callable[[], object]] = [
            lambda: tx.write("sub", "x"),
            lambda: tx.read("sub"),
            lambda: tx.delete("sub"),
            lambda: tx.open("sub", "w"),
            lambda: tx.move("a", "sub"),
            lambda: tx.copy("a", "sub"),
        ]
        directories: list[Callable[[], object]] = [
            lambda: tx.write("a/x", "x"),
            lambda: tx.mkdir("a/x"),
            lambda: tx.listdir("a"),
            lambda: tx.move("sub", "a"),
        ]
        for call in files:
            with pytest.raises(IsADirectoryError) as caught:
                call()
            assert caught.value.filename == "sub"
        assert not tx.exists("a/x")
        assert not tx.exists("a/x/y")
        for call in directories:
            with pytest.raises(NotADirectoryError):
                call()
    assert set(tree(root).values()) == {b"old", None}
    assert FileStore(root).status().clean
