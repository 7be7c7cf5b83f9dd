"""A cut has what was flushed, and may lack what was not; a sync that is left out shows."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.loop import HELD
from tests.support.mounts import is_mounted
from tests.support.power import Blocks, Log, Recorded, bench, recorded

BLOCK = 4096
FSTYPES = [pytest.param(name, marks=pytest.mark.needs("loop", name)) for name in ("ext4", "xfs", "btrfs")]


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _noted(*writes: tuple[int, bytes] | None) -> Log:
    """`None` is a flush."""
    log = Log({0: b"0" * BLOCK})
    for write in writes:
        log.note(*(write or (-1, b"")))
    return log


def _seen(log: Log, *, since: int = 0, partial: int = 0) -> list[Blocks]:
    log.close()
    return [cut.blocks for cut in log.cuts(since=since, seed=1, partial=partial)]


def test_there_is_a_cut_after_each_write_with_all_that_came_before() -> None:
    one, two = b"1" * BLOCK, b"2" * BLOCK
    assert _seen(_noted((BLOCK, one), None, (0, two))) == [
        {0: b"0" * BLOCK, 1: one},
        {0: two, 1: one},
    ]


def test_a_write_may_cover_parts_of_blocks_and_zeros_are_no_block() -> None:
    [first, second] = _seen(_noted((BLOCK - 2, b"abcd"), (0, bytes(BLOCK))))
    assert first[0][-2:] + first[1][:3] == b"abcd\0"
    assert first[0][:1] == b"0"
    assert list(second) == [1]


def test_only_what_was_written_since_is_cut() -> None:
    log = _noted((0, b"1"), (1, b"2"))
    half = log.now() // 2
    assert [blocks[0][:2] for blocks in _seen(log, since=half)] == [b"12"]


def test_a_cut_may_lack_what_was_not_flushed_and_nothing_else() -> None:
    writes = [(n * BLOCK, b"%d" % n * BLOCK) for n in range(1, 4)]
    found = Counter(tuple(sorted(blocks)) for blocks in _seen(_noted(writes[0], None, *writes[1:]), partial=40))
    assert set(found) == {(0, 1), (0, 1, 2), (0, 1, 3), (0, 1, 2, 3)}


def test_a_long_write_may_arrive_in_part_and_writes_may_change_places() -> None:
    found = _seen(_noted((0, b"1" * 2 * BLOCK), (0, b"2" * 2 * BLOCK)), partial=300)
    assert {blocks[0][:1] + blocks.get(1, b"-")[:1] for blocks in found} >= {b"11", b"22", b"1-", b"21", b"12", b"0-"}


@pytest.mark.parametrize("fstype", FSTYPES)
def test_what_was_synced_is_there_after_every_cut(tmp_path: Path, fstype: str) -> None:
    def work(disk: Recorded) -> None:
        for name in ("first", "second"):
            (disk.fs.path / name).write_bytes(name.encode() * 4000)
            _sync(disk.fs.path / name)
            _sync(disk.fs.path)
            done.append(disk.log.now())

    done: list[int] = []
    held = set(HELD)
    with recorded(tmp_path, fstype) as disk:
        since = disk.log.now()
        work(disk)
    seen = Counter[bool]()
    with bench(tmp_path, fstype) as mounted:
        for cut in disk.log.cuts(since=since, partial=0):
            with mounted(cut) as path:
                for name, place in zip(("first", "second"), done, strict=True):
                    there = (path / name).exists()
                    seen[there] += 1
                    assert there or cut.at < place, cut.name
                    if cut.at >= place:
                        assert (path / name).read_bytes() == name.encode() * 4000, cut.name
    assert set(seen) == {False, True}
    assert not any(is_mounted(path) for path in tmp_path.rglob("*"))
    assert held == HELD
    assert list(tmp_path.rglob("*")) == [tmp_path / f"bench-{fstype}"]


@pytest.mark.parametrize("fstype", FSTYPES)
def test_a_sync_that_is_left_out_shows(tmp_path: Path, fstype: str) -> None:
    with recorded(tmp_path, fstype) as disk:
        since = disk.log.now()
        (disk.fs.path / "new").write_bytes(b"content" * 2000)
        os.rename(disk.fs.path / "new", disk.fs.path / "file")  # without a sync of the file
        _sync(disk.fs.path)
        done = disk.log.now()
    with bench(tmp_path, fstype) as mounted:
        whole = set()
        for cut in disk.log.cuts(since=since, partial=0):
            with mounted(cut) as path:
                there = (path / "file").exists() and (path / "file").read_bytes() == b"content" * 2000
                whole.add((cut.at >= done, there))
    assert (True, False) in whole
    assert (True, True) in whole  # from the unmount


def test_what_was_left_can_be_recorded_again(tmp_path: Path) -> None:
    with recorded(tmp_path, "ext4") as disk:
        (disk.fs.path / "first").touch()
        _sync(disk.fs.path)
        done = disk.log.now()
    left = next(cut for cut in disk.log.cuts() if cut.at >= done)
    with recorded(tmp_path, "ext4", content=left.blocks) as again:
        assert (again.fs.path / "first").exists()
        (again.fs.path / "second").touch()
    with bench(tmp_path, "ext4") as mounted:
        *_, last = again.log.cuts(partial=0)
        with mounted(last) as path:
            assert (path / "first").exists()
            assert (path / "second").exists()
