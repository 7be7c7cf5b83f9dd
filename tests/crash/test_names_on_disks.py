"""What a power loss makes of two names: real file systems do nothing that A1 does not know.

The names are in two directories. What the source leads to was made durable with all else, the destination by its own
syncs alone; then the names change, and one thing is synced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import DEEP
from tests.support.disks import BTRFS, EXT4_STRICT, XFS
from tests.support.mounts import run
from tests.support.power import bench, recorded
from txfiles._disk import system

SOURCE, DESTINATION = b"source", b"destination"
UNCHANGED = (SOURCE, DESTINATION)
RENAMED = {UNCHANGED, (None, SOURCE), (SOURCE, SOURCE), (SOURCE, None)}
EXCHANGED = {UNCHANGED, (DESTINATION, SOURCE)}
SYNCED = ("other", "here", "there", "here/file", "there/file")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _exchange(one: Path, other: Path) -> None:
    fs = system.KernelFS()
    at, to = os.open(one.parent, os.O_RDONLY), os.open(other.parent, os.O_RDONLY)
    fs.exchange(at, os.fsencode(one.name), to, os.fsencode(other.name))
    os.close(at)
    os.close(to)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("synced", SYNCED if DEEP else ("other", "there"))
@pytest.mark.parametrize(
    ("change", "allowed"), [(os.rename, RENAMED), (_exchange, EXCHANGED)], ids=["rename", "exchange"]
)
@pytest.mark.parametrize("filesystem", [EXT4_STRICT, XFS, BTRFS])
def test_a_power_loss_does_to_two_names_what_is_assumed(
    tmp_path: Path, filesystem: str, change: Callable[[Path, Path], object], allowed: set[object], synced: str
) -> None:
    with recorded(tmp_path, filesystem) as disk:
        here, there = disk.fs.path / "here", disk.fs.path / "there"
        here.mkdir()
        there.mkdir()
        (disk.fs.path / "other").touch()
        (here / "file").write_bytes(SOURCE)
        run("sync", "-f", here)
        (there / "file").write_bytes(DESTINATION)
        _sync(there / "file")
        _sync(there)
        since = disk.log.now()
        change(here / "file", there / "file")
        (disk.fs.path / "other").write_bytes(b"changed")
        if (disk.fs.path / synced).exists():
            _sync(disk.fs.path / synced)
        _sync(there)
        _sync(here)
        done = disk.log.now()
        (disk.fs.path / "last").touch()  # so that something is written after that
    seen, after = set[object](), set[object]()
    with bench(tmp_path, filesystem) as mounted:
        for cut in disk.log.cuts(since=since, partial=2 if DEEP else 0):
            with mounted(cut) as path:
                found = (_content(path / "here/file"), _content(path / "there/file"))
            (seen if cut.at < done else after).add(found)
    print(filesystem, seen)
    assert seen <= allowed
    assert after == {(None if change is os.rename else DESTINATION, SOURCE)}
