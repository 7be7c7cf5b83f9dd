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
from txfiles import FileTransaction

Change = Callable[[FileTransaction], object]

_PLACES = [
    pytest.param("tmpfs", marks=pytest.mark.needs("mount")),
    pytest.param("ext4", marks=pytest.mark.needs("loop", "ext4")),
]


@contextmanager
def _disk(kind: str, tmp_path: Path) -> Iterator[Path]:
    if kind == "tmpfs":
        where = tmp_path / "disk"
        where.mkdir()
        with tmpfs(where, size="2m", nr_inodes=200) as place:
            yield place
    else:
        with loop_fs(tmp_path, kind) as fs:
            yield fs.path


def _fill(place: Path, *, inodes: bool) -> None:
    """Until there is no byte, or no inode, to be had."""
    with open(place / "filler", "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12, 512, 1) if not inodes else ():
            with pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(b"\0" * size)
                    os.fsync(file.fileno())
    with pytest.raises(OSError, match="No space left"):
        for number in range(100_000):
            with open(place / f"filler{number}", "wb", buffering=0) as file:
                file.write(b"x" if not inodes else b"")


def _delete(tx: FileTransaction) -> None:
    tx.delete("large")


def _delete_all(tx: FileTransaction) -> None:
    tx.delete_tree("many")
    tx.delete("large")


@pytest.mark.parametrize("change", [_delete, _delete_all], ids=["file", "tree"])
@pytest.mark.parametrize("place", _PLACES)
def test_n08_delete_on_a_disk_without_a_free_byte(place: str, change: Change, tmp_path: Path) -> None:
    _delete_on_a_full_disk(place, change, tmp_path, inodes=False)


@pytest.mark.parametrize(("place", "change"), [("tmpfs", _delete), ("ext4", _delete), ("ext4", _delete_all)])
@pytest.mark.needs("mount", "loop", "ext4")
def test_n08_delete_on_a_disk_without_a_free_inode(place: str, change: Change, tmp_path: Path) -> None:
    """In tmpfs each name counts as an inode, also the markers of directories that go."""
    _delete_on_a_full_disk(place, change, tmp_path, inodes=True)


def _delete_on_a_full_disk(place: str, change: Change, tmp_path: Path, *, inodes: bool) -> None:
    with _disk(place, tmp_path) as disk:
        root = disk / "root"
        with FileTransaction(root, create=True) as tx:
            tx.write("large", b"x" * 300_000)
            tx.write("many/one", "1")
            tx.write("many/deep/two", "2")
        with FileTransaction(root) as tx:
            tx.write("kept", "kept")
        expected = tree(root)
        _fill(disk, inodes=inodes)
        with FileTransaction(root) as tx:
            change(tx)
        gone = {"large"} if change is _delete else {"large", "many", "many/one", "many/deep", "many/deep/two"}
        assert tree(root) == {name: entry for name, entry in expected.items() if name not in gone}
        assert problems(root) == []
