"""Where it is measured: a directory, or a new file system in an image, gone when the run ends however it ends."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import platform
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-N", "262144", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
KINDS = (*MKFS, "tmpfs")
SIZE = 2 << 30
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


@contextmanager
def in_directory(directory: Path) -> Iterator[Path]:
    """A new directory in `directory`, removed at the end."""
    base = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=directory))
    try:
        yield base
    finally:
        shutil.rmtree(base)


@contextmanager
def made(kind: str, images: Path, *, slow: float | None = None) -> Iterator[Path]:
    """A new file system of 2 GiB, mounted where only this process and its children see it. Needs root.

    The image is in `images`, behind a loop device with direct I/O; it has no name, so that nothing but an empty
    directory stays when the run is killed. With `slow`, a flush takes so many milliseconds (see `slow_disk`).
    """
    _own_namespace()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=images, prefix="benchmarks-")))
        where = work / "mnt"
        where.mkdir()
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", where)
        else:
            image = work / "image"
            if slow is None:
                with open(image, "xb") as file:
                    file.truncate(SIZE)
            else:
                from benchmarks import slow_disk

                stack.enter_context(slow_disk.mounted(image, mmap.mmap(-1, SIZE), slow))
            device = _run("losetup", "--find", "--show", "--direct-io=on", image).strip()
            try:
                if slow is None:
                    image.unlink()
                _run(*MKFS[kind], device)
                _run("mount", device, where)
            finally:
                _run("losetup", "--detach", device)  # now, or when it is unmounted
        stack.callback(_run, "umount", where)
        yield where


def environment(directory: Path) -> dict[str, str]:
    """The machine, the kernel, the file system and the versions that the numbers are of."""
    where = str(directory.resolve())
    mounts = [line.split(" ") for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    mount = max(
        (m for m in mounts if where == m[1] or where.startswith(m[1].rstrip("/") + "/")), key=lambda m: len(m[1])
    )
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    versions = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for package in ("txfiles", "orjson", "filelock", "lmdb", "atomicwrites"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return {
        "machine": f"{os.cpu_count()} x {cpu}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": mount[2],
        "mount options": mount[3],
        "device": _device(mount[0]),
        "versions": ", ".join(versions),
        "revision": _revision(),
    }


def _device(name: str) -> str:
    device = Path("/sys/block") / Path(name).name
    if not device.exists():
        return name
    backing = device / "loop" / "backing_file"
    cache = (device / "queue" / "write_cache").read_text(encoding="utf-8").strip()
    if not backing.exists():
        return f"{Path(name).name}, {cache}"
    direct = "with" if (device / "loop" / "dio").read_text(encoding="utf-8").strip() == "1" else "without"
    return f"loop device {direct} direct I/O, {cache}"


def _revision() -> str:
    import txfiles

    argv = ["git", "-C", str(Path(txfiles.__file__).parent), "describe", "--always", "--dirty"]
    with suppress(OSError):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, encoding="utf-8")
        if done.returncode == 0:
            return done.stdout.strip()
    return "unknown"


def _own_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise OSError(
            ctypes.get_errno(), "making a file system needs root on Linux; name a directory with --at instead"
        )


def _run(*argv: str | Path) -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    done = subprocess.run(
        [str(word) for word in argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, argv))}: {done.stderr or done.stdout}")
    return done.stdout
