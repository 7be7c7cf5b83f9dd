"""Mounts for tests: tmpfs, bind mounts, overlays, read-only remounts. All need root, all are undone at the end.

They are made in a mount namespace of the test run's own (`isolate`, called once at its start), so that nobody else sees
them and that none stays when the run is killed.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PATIENCE = 3.0  # seconds; the kernel may need a moment to let go of a mount


def run(*argv: str | os.PathLike[str], timeout: float = 60) -> str:
    """Run a command to its end and return its output; what it says on failure is in the error."""
    done = subprocess.run(
        [os.fspath(word) for word in argv],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C"},
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(os.fspath(word) for word in argv)}: exit {done.returncode}: {done.stderr or done.stdout}"
        )
    return done.stdout


@cache
def isolate() -> bool:
    """Give this process a mount namespace of its own; whether that was allowed."""
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(_CLONE_NEWNS) != 0:
        return False
    return bool(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0)


def is_mounted(where: Path) -> bool:
    """Whether something is mounted on `where` itself; also a bind mount of one file, which has no device of its own."""
    point = os.fsencode(where)
    with open("/proc/self/mountinfo", "rb") as file:
        return any(_unescape(line.split()[4]) == point for line in file)


def _unescape(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)


def unmount(where: Path) -> None:
    """Unmount all that is mounted on `where`. What is in use for longer than a moment is detached, and an error."""
    until = time.monotonic() + _PATIENCE
    while is_mounted(where):
        try:
            run("umount", where)
        except RuntimeError:
            if time.monotonic() > until:
                run("umount", "--lazy", where)
                raise
            time.sleep(0.05)


@contextmanager
def mount(where: Path, *words: str | os.PathLike[str]) -> Iterator[Path]:
    """`mount WORDS where`, until the end of the block."""
    run("mount", *words, where)
    try:
        yield where
    finally:
        unmount(where)


@contextmanager
def tmpfs(where: Path, *, size: str | None = None, nr_inodes: int | None = None, mode: str = "755") -> Iterator[Path]:
    """A tmpfs on `where`, which is made if need be; `size` and `nr_inodes` are limits as in tmpfs(5)."""
    limits = {"mode": mode, "size": size, "nr_inodes": nr_inodes}
    options = ",".join(f"{key}={value}" for key, value in limits.items() if value is not None)
    where.mkdir(parents=True, exist_ok=True)
    with mount(where, "-t", "tmpfs", "-o", options, "tmpfs"):
        yield where


@contextmanager
def bind(source: Path, where: Path) -> Iterator[Path]:
    """`source`, a directory or a file, seen also at `where`, which is made if need be."""
    if source.is_dir():
        where.mkdir(parents=True, exist_ok=True)
    else:
        where.touch()
    with mount(where, "--bind", source):
        yield where


@contextmanager
def overlay(workdir: Path, lower: Path) -> Iterator[Path]:
    """An overlay of a writable layer in `workdir` over `lower`."""
    upper, work, where = workdir / "upper", workdir / "work", workdir / "merged"
    for directory in (upper, work, where):
        directory.mkdir(parents=True)
    with mount(where, "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay"):
        yield where


@contextmanager
def read_only(where: Path) -> Iterator[Path]:
    """The mount at `where` read-only inside the block. A directory that is no mount is made one."""
    if is_mounted(where):
        run("mount", "-o", "remount,ro", where)
        try:
            yield where
        finally:
            run("mount", "-o", "remount,rw", where)
    else:
        with bind(where, where):
            run("mount", "-o", "remount,bind,ro", where)
            yield where


def unshared(*argv: str) -> list[str]:
    """The command that runs `argv` as process 1 of new pid and mount namespaces, with a /proc of its own."""
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *argv]
