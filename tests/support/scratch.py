"""Directories for tests outside pytest's own, that the next run removes where a run that was killed left them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
_OURS = re.compile(r"txfiles-([0-9]+)-")


def directory(where: str | None = None) -> Path:
    """A new directory, in memory with `MEMORY`. Its name tells the process that is to remove it."""
    return Path(tempfile.mkdtemp(prefix=f"txfiles-{os.getpid()}-", dir=where))


@contextmanager
def held(where: str | None = None) -> Iterator[Path]:
    """Such a directory for a block."""
    path = directory(where)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def sweep() -> None:
    """Remove what processes that are gone have left."""
    for where in filter(None, {tempfile.gettempdir(), MEMORY}):
        for path in Path(where).glob("txfiles-*"):
            match = _OURS.match(path.name)
            if match is not None and not _runs(int(match[1])):
                with suppress(FileNotFoundError, PermissionError):  # another run sweeps, too; another user's
                    shutil.rmtree(path)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
