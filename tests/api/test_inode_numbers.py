"""The number of an inode that is gone is given again, on ext4 at once: it alone says nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.boundary import killed
from tests.support.loop import loop_fs
from txfiles import FileTransaction, recover
from txfiles._commit.home import Home
from txfiles._commit.inventory import read_head
from txfiles._disk import system
from txfiles.errors import ConflictError, RecoveryConflictError

pytestmark = pytest.mark.needs("loop", "ext4")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with loop_fs(tmp_path) as fs:
        (fs.path / "root").mkdir()
        yield fs.path / "root"


def _again(path: Path, make: Callable[[], object]) -> None:
    """Remove a file and make it anew until it has the number that it had."""
    number = path.stat().st_ino
    for _ in range(20):
        path.unlink()
        make()
        if path.stat().st_ino == number:
            return
    raise AssertionError("the number does not come back")


def _save(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "old")
        tx.write("b", "old")


def _delete(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.delete("a")


def _theirs(root: Path) -> Callable[[], object]:
    return lambda: (root / "a").write_text("new", encoding="utf-8")


def test_a_file_with_the_number_of_the_one_before_has_another_version(disk: Path) -> None:
    _save(disk)
    tx = FileTransaction(disk).begin()
    tx.write("a", "mine", if_version=tx.version("a"))
    _again(disk / "a", _theirs(disk))
    with pytest.raises(ConflictError):
        tx.commit()
    assert (disk / "a").read_text(encoding="utf-8") == "new"


def test_recovery_does_not_delete_a_file_with_the_number_of_the_one_before(disk: Path) -> None:
    _save(disk)
    killed(lambda: _delete(disk), "rename", 2)
    _again(disk / "a", _theirs(disk))
    with pytest.raises(RecoveryConflictError):
        recover(disk)
    assert (disk / "a").read_text(encoding="utf-8") == "new"
    recover(disk, on_conflict="keep-theirs")


def test_a_head_with_its_number_again_vouches_for_nothing(disk: Path) -> None:
    """So restored from a backup: its content and its times are those of the file that was there."""
    _save(disk)
    head = disk / ".txfiles/HEAD"
    content, times = head.read_bytes(), (head.stat().st_atime_ns, head.stat().st_mtime_ns)
    _again(head, lambda: head.write_bytes(content))
    os.utime(head, ns=times)
    with Home.open(system.current(), os.fsencode(disk), create=False) as home:
        found = read_head(home)
    assert found is not None
    assert not found.vouches
