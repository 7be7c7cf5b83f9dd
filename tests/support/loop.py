"""Loop images: real file systems that can be copied as they are on the device, cut off, and mounted again.

with loop_fs(tmp_path, "ext4", options=["noauto_da_alloc"]) as fs:
    ...                                   # work in fs.path
    with crash_image(fs) as after:        # what a power loss now would leave, mounted elsewhere
        ...
    fs.power_cut()                        # ext4 and xfs: nothing more reaches the device; mounted again
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.mounts import is_mounted, run, unmount

_SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, the same as EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
SIZES = {"ext4": 64 << 20, "xfs": 320 << 20, "btrfs": 128 << 20}  # images are sparse; mkfs.xfs wants 300 MiB
ALWAYS = {"ext4": [], "xfs": ["nouuid"], "btrfs": []}  # a copy has the UUID of its original


HELD: set[int] = set()  # the descriptors that keep devices: those of images for several tests outlast one


@dataclass
class LoopFS:
    """A file system in the file `image`, mounted at `path` through `device`."""

    image: Path
    path: Path
    fstype: str
    options: tuple[str, ...]
    device: Path

    def mount(self, *options: str) -> None:
        chosen = ",".join([*ALWAYS[self.fstype], *self.options, *options]) or "defaults"
        run("mount", "-t", self.fstype, "-o", chosen, self.device, self.path)

    def unmount(self) -> None:
        unmount(self.path)

    def remount(self, *options: str) -> None:
        """As `remount("ro")`."""
        run("mount", "-o", ",".join(["remount", *options]), self.path)

    def shutdown(self) -> None:
        """Cut the file system off its device at once, without a flush of its log; every later call fails with EIO."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def power_cut(self) -> None:
        """`shutdown`, and mount what had reached the device."""
        self.shutdown()
        self.unmount()
        self.mount()


@contextmanager
def loop_fs(
    workdir: Path, fstype: str = "ext4", *, size: int | None = None, options: Sequence[str] = ()
) -> Iterator[LoopFS]:
    """A new file system of `size` bytes in an image in `workdir`, mounted with `options`."""
    image = workdir / f"{fstype}.img"
    with open(image, "xb") as file:
        file.truncate(size or SIZES[fstype])
    try:
        run(*MKFS[fstype], image)
        with attached(image, fstype, options) as fs:
            yield fs
    finally:
        image.unlink()


@contextmanager
def crash_image(fs: LoopFS) -> Iterator[LoopFS]:
    """A copy of what has reached the device of `fs` by now, mounted (and so its log replayed) beside it."""
    image = _free_name(fs.image.parent, "crash", ".img")
    try:
        _copy_at_one_moment(fs, image)
        with attached(image, fs.fstype, fs.options) as copy:
            yield copy
    finally:
        image.unlink(missing_ok=True)


@contextmanager
def attached(image: Path, fstype: str, options: Sequence[str] = ()) -> Iterator[LoopFS]:
    """The file system in `image`, mounted beside it."""
    with ExitStack() as stack:
        path = _free_name(image.parent, image.stem, ".mnt")
        path.mkdir()
        stack.callback(path.rmdir)
        fs = LoopFS(image, path, fstype, tuple(options), stack.enter_context(device(image)))
        stack.callback(fs.unmount)
        fs.mount()
        assert is_mounted(path)
        yield fs


@contextmanager
def device(image: Path) -> Iterator[Path]:
    """A loop device on `image`."""
    name = Path(run("losetup", "--find", "--show", image).strip())
    held = os.open(name, os.O_RDONLY)
    HELD.add(held)
    try:
        run("losetup", "--detach", name)  # when the last who has it open or mounted is gone, also if killed
        yield name
    finally:
        HELD.discard(held)
        os.close(held)


def _copy_at_one_moment(fs: LoopFS, image: Path) -> None:
    """Copy the image; again when a write was under way, for blocks of two moments are no state that ever was."""
    for _ in range(100):
        before = _writes(fs.device)
        run("cp", "--sparse=always", fs.image, image)
        if before[1] == 0 and _writes(fs.device) == before:
            return
        time.sleep(0.01)
    raise RuntimeError(f"{fs.device} is written to without a pause")


def _writes(device: Path) -> tuple[int, int]:
    """Writes done (flushes too) and requests in flight: see the kernel's Documentation/block/stat.rst."""
    fields = Path("/sys/block", device.name, "stat").read_text(encoding="utf-8").split()
    return int(fields[4]) + int(fields[15] if len(fields) > 15 else 0), int(fields[8])


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    number = 0
    while (path := folder / f"{stem}{number or ''}{suffix}").exists():
        number += 1
    return path
