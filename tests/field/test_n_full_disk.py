"""N: what frees space is possible when there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.debris import problems
from tests.support.loop import loop_fs
from tests.support.mounts import tmpfs
from txfiles import FileTransaction, cli
from txfiles.errors import CommitError

Change = Callable[[FileTransaction], object]

_PLACES = [
    pytest.param("tmpfs", marks=pytest.mark.needs("mount")),
    *(pytest.param(kind, marks=pytest.mark.needs("loop", kind)) for kind in ("ext4", "xfs", "btrfs")),
]
_MANY = {"many", "many/deep", *(f"many/{n}" for n in range(40)), *(f"many/deep/{n}" for n in range(40))}


@contextmanager
def _disk(kind: str, tmp_path: Path) -> Iterator[Path]:
    if kind == "tmpfs":
        where = tmp_path / "disk"
        where.mkdir()
        with tmpfs(where, size="4m", nr_inodes=400) as place:
            yield place
    else:
        with loop_fs(tmp_path, kind) as fs:
            yield fs.path


def _root(disk: Path) -> Path:
    root = disk / "root"
    with FileTransaction(root, create=True) as tx:
        tx.write("large", b"x" * 300_000)
        for name in _MANY - {"many", "many/deep"}:
            tx.write(name, name)
    with FileTransaction(root) as tx:
        tx.write("kept", "kept")
    return root


def _fill(place: Path, *, inodes: bool = False) -> None:
    """Until there is no byte, or no inode, to be had, also when all that was written has come to the disk."""
    number = 0
    while True:
        before = number
        with open(place / "filler", "ab", buffering=0) as file:
            for size in (1 << 24, 1 << 20, 1 << 16, 1 << 12, 1) if not inodes else ():
                with pytest.raises(OSError, match="No space left"):
                    while True:
                        end = os.fstat(file.fileno()).st_size
                        os.posix_fallocate(file.fileno(), end, size)
                        number += size > 1
        with pytest.raises(OSError, match="No space left"):
            while True:
                with open(place / f"filler{number}", "wb", buffering=0) as file:
                    number += 1
                    file.write(b"x" if not inodes else b"")
        os.sync()
        if number - before <= 1:
            return


def _delete(root: Path, tmp_path: Path) -> set[str]:
    with FileTransaction(root) as tx:
        tx.delete("large")
    return {"large"}


def _delete_tree(root: Path, tmp_path: Path) -> set[str]:
    with FileTransaction(root) as tx:
        tx.delete_tree("many")
        tx.delete("large")
    return {"large", *_MANY}


def _delete_one_directory(root: Path, tmp_path: Path) -> set[str]:
    with FileTransaction(root) as tx:
        tx.delete_tree("many/deep")
        tx.delete("large")
    return {"large", *(name for name in _MANY if name.startswith("many/deep"))}


def _by_command(root: Path, tmp_path: Path) -> set[str]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "kept").write_text("kept", encoding="utf-8")
    assert cli.main(["sync", "--delete", "--no-perms", str(source), str(root)]) == 0
    return {"large", *_MANY}


def _deletes(delete: Callable[[Path, Path], set[str]], root: Path, tmp_path: Path) -> None:
    expected = tree(root)
    gone = delete(root, tmp_path)
    assert tree(root) == {name: entry for name, entry in expected.items() if name not in gone}
    assert problems(root) == []


@pytest.mark.parametrize("delete", [_delete, _delete_tree, _by_command])
@pytest.mark.parametrize("place", _PLACES)
def test_n08_delete_on_a_disk_without_a_free_byte(
    place: str, delete: Callable[[Path, Path], set[str]], tmp_path: Path
) -> None:
    with _disk(place, tmp_path) as disk:
        root = _root(disk)
        _fill(disk)
        _deletes(delete, root, tmp_path)
        for filler in disk.glob("filler*"):
            filler.unlink()
        os.sync()
        with FileTransaction(root) as tx:
            tx.write("kept", "there is room again")
        assert (root / ".txfiles/spare").stat().st_blocks * 512 >= 64 << 10


@pytest.mark.needs("loop", "xfs")
def test_n08_what_does_not_fit_is_found_out_before_the_commit_point(tmp_path: Path) -> None:
    """xfs lets no directory grow without some room, so that the apply would fail, and then the undo."""
    with loop_fs(tmp_path, "xfs") as disk:
        root = _root(disk.path)
        with FileTransaction(root) as tx:
            for number in range(1000):
                tx.write(f"many/more-of-them-{number}", "x")
        expected = tree(root)
        _fill(disk.path)
        with pytest.raises(CommitError, match=r"nothing was changed.*fewer at a time"), FileTransaction(root) as tx:
            tx.delete_tree("many")
        assert tree(root) == expected
        assert problems(root) == []


@pytest.mark.parametrize(
    ("place", "delete"),
    [("tmpfs", _delete), ("tmpfs", _delete_one_directory), ("ext4", _delete), ("ext4", _delete_tree)],
)
@pytest.mark.needs("mount", "loop", "ext4")
def test_n08_delete_on_a_disk_without_a_free_inode(
    place: str, delete: Callable[[Path, Path], set[str]], tmp_path: Path
) -> None:
    """In tmpfs each name counts as an inode, also the markers of directories that go."""
    with _disk(place, tmp_path) as disk:
        root = _root(disk)
        _fill(disk, inodes=True)
        _deletes(delete, root, tmp_path)
