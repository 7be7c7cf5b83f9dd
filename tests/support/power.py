"""Power cuts at each write that reaches the device of a real file system.

with recorded(tmp_path, "btrfs") as disk:             # all writes and flushes of its device are in `disk.log`
    start = disk.log.now()
    work(disk.fs.path)
    done = disk.log.now()
with bench(tmp_path, "btrfs") as mounted:
    for cut in disk.log.cuts(since=start, seed=1):    # what the device may have then
        with mounted(cut) as path:                    # mounted, and so the journal of the file system replayed
            assert cut.at < done or is_there(path)

A cut after a write has all that was written before it. What came after the last flush may have arrived or not, in any
order and in part: further cuts, drawn by the seed, lack some of it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import slow_disk
from tests.support.loop import ALWAYS, MKFS, SIZES, LoopFS, attached, device
from tests.support.mounts import run, tmpfs

_BLOCK = 4096
_NOTHING = bytes(_BLOCK)
_RECORD = struct.Struct("<qI")
_BLKFLSBUF = 0x1261
_PATIENCE = 10.0  # seconds
_libc = ctypes.CDLL(None, use_errno=True)

Blocks = dict[int, bytes]
"""A disk: its blocks by number, without those that are all zeros."""


@dataclass(frozen=True)
class Cut:
    """What the device has after a power cut at the place `at` of the log; `name` tells it from the others."""

    name: str
    at: int
    blocks: Blocks


@dataclass(frozen=True)
class _Write:
    end: int
    offset: int
    data: bytes


class Log:
    """What reached a device whose blocks were `base`. The process of the disk writes it."""

    def __init__(self, base: Blocks) -> None:
        self.base = base
        self._fd = os.memfd_create("writes")
        self._content = b""

    def note(self, offset: int, data: bytes) -> None:
        """A write, or with the offset -1 a flush."""
        os.write(self._fd, _RECORD.pack(offset, len(data)) + data)

    def now(self) -> int:
        """The place in the log up to which everything has been written or flushed by now."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """That was all."""
        self._content = os.pread(self._fd, self.now(), 0)
        os.close(self._fd)

    def cuts(self, *, since: int = 0, seed: int = 0, partial: int = 1) -> Iterator[Cut]:
        """After each write, first all that was written, then `partial` times without some of what was not flushed.

        REQUIRES: the log is closed.
        """
        chance = random.Random(seed)
        flushed, waiting = dict(self.base), list[_Write]()
        for number, write in enumerate(self._records()):
            if write.offset < 0:
                _apply(flushed, waiting)
                waiting.clear()
                continue
            waiting.append(write)
            if write.end <= since:
                continue
            yield Cut(f"write {number}", write.end, _applied(flushed, waiting))
            for draw in range(partial if len(waiting) > 1 or len(write.data) > _BLOCK else 0):
                yield Cut(f"write {number}, part {draw}", write.end, _applied(flushed, _some(waiting, chance)))

    def _records(self) -> Iterator[_Write]:
        content, place = self._content, 0
        while place < len(content):
            offset, size = _RECORD.unpack_from(content, place)
            start = place + _RECORD.size
            place = start + size
            yield _Write(place, offset, content[start:place])


def _some(writes: Sequence[_Write], chance: random.Random) -> list[_Write]:
    """Some of the writes, in their order or another; the last of them may have arrived in part."""
    chosen = [write for write in writes if chance.random() < 0.5]
    if chance.random() < 0.3:
        chance.shuffle(chosen)
    if chosen and chance.random() < 0.5:
        last = chosen.pop()
        whole = chance.randrange(len(last.data) // _BLOCK + 1) * _BLOCK  # a drive tears no block
        chosen.append(last if len(last.data) <= _BLOCK else _Write(last.end, last.offset, last.data[:whole]))
    return chosen


def _applied(blocks: Blocks, writes: Sequence[_Write]) -> Blocks:
    changed = blocks.copy()
    _apply(changed, writes)
    return changed


def _apply(blocks: Blocks, writes: Sequence[_Write]) -> None:
    for write in writes:
        for start in range(write.offset - write.offset % _BLOCK, write.offset + len(write.data), _BLOCK):
            number, begin, end = start // _BLOCK, max(start, write.offset), start + _BLOCK
            part = write.data[begin - write.offset : end - write.offset]
            if len(part) < _BLOCK:
                old, skip = blocks.get(number, _NOTHING), begin - start
                part = old[:skip] + part + old[skip + len(part) :]
            if part == _NOTHING:
                blocks.pop(number, None)
            else:
                blocks[number] = part


@dataclass(frozen=True)
class Recorded:
    """A mounted file system and the log of its device."""

    fs: LoopFS
    log: Log


@contextmanager
def recorded(workdir: Path, filesystem: str, *, content: Blocks | None = None) -> Iterator[Recorded]:
    """A file system on a device that is recorded: a new one, or what was left in `content`.

    `filesystem` is its type and mount options: "ext4 noauto_da_alloc".
    """
    fstype, *options = filesystem.split()
    image = workdir / f"recorded-{fstype}.img"
    blocks = _new(image, fstype) if content is None else content
    memory = mmap.mmap(-1, SIZES[fstype])
    for number, block in blocks.items():
        memory[number * _BLOCK : (number + 1) * _BLOCK] = block
    log = Log(blocks)
    try:
        with slow_disk.mounted(image, memory, seen=log.note), attached(image, fstype, options) as fs:
            yield Recorded(fs, log)
    finally:
        log.close()
        memory.close()
        image.unlink()


def _new(image: Path, fstype: str) -> Blocks:
    with open(image, "xb") as file:
        file.truncate(SIZES[fstype])
    try:
        run(*MKFS[fstype], image)
        with open(image, "rb") as file:
            return {n: block for n, block in enumerate(iter(lambda: file.read(_BLOCK), b"")) if block != _NOTHING}
    finally:
        image.unlink()


Bench = Callable[[Cut], AbstractContextManager[Path]]


@contextmanager
def bench(workdir: Path, filesystem: str) -> Iterator[Bench]:
    """A device that takes one cut after another; each is mounted until the end of its block."""
    fstype, *options = filesystem.split()
    settings = ",".join([*ALWAYS[fstype], *options]).encode()
    with tmpfs(workdir / f"bench-{fstype}") as memory, open(memory / "image", "xb") as file:
        where = memory / "mnt"
        where.mkdir()
        file.truncate(SIZES[fstype])
        with device(memory / "image") as name:

            @contextmanager
            def mounted(cut: Cut) -> Iterator[Path]:
                file.truncate(0)
                file.truncate(SIZES[fstype])
                for number, block in cut.blocks.items():
                    os.pwrite(file.fileno(), block, number * _BLOCK)
                _forget(name)
                _call("mount", os.fsencode(name), os.fsencode(where), fstype.encode(), 0, settings)
                try:
                    yield where
                finally:
                    _unmount(where)

            yield mounted


def _forget(device: Path) -> None:
    """Let the kernel read the device again."""
    fd = os.open(device, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _BLKFLSBUF)
    finally:
        os.close(fd)


def _unmount(where: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return _call("umount2", os.fsencode(where), 0)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
