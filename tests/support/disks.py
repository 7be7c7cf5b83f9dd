"""Directories on loop images, and what a power loss would leave of them after each step of some work.

def look(copy, where):                                # `copy` is the directory as the device has it
    recover(copy)
place.after_each("rename", "sync_dir", work=lambda: save(place.root), look=look)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.loop import LoopFS, crash_image
from tests.support.mounts import run
from txfiles._disk import rounds, system
from txfiles.testing._faults import FaultyFS

FILESYSTEMS = tuple(
    pytest.param(name, marks=pytest.mark.needs("loop", name.split()[0]), id=name.replace(" ", "-"))
    for name in ("ext4", "ext4 noauto_da_alloc", "xfs", "btrfs")
)
"""Without `auto_da_alloc` ext4 does nothing for who forgets to sync before a rename."""
EXT4, EXT4_STRICT, XFS, BTRFS = FILESYSTEMS


class Restarted(system.KernelFS):
    """A power loss needs a restart, and after it recovery has another kernel."""

    def boot_id(self) -> str:
        return "00000000-0000-4000-8000-000000000000"


class _OneAtATime(FaultyFS):
    def run_all(self, jobs: Iterable[rounds.Job]) -> None:
        for job in jobs:
            rounds.perform(job)


@dataclass(frozen=True)
class Place:
    """The directory `root` on a file system that others use, too."""

    fs: LoopFS
    root: Path

    def sync(self) -> None:
        """Let everything reach the device."""
        run("sync", "-f", self.root)

    @contextmanager
    def after_power_loss(self) -> Iterator[Path]:
        """The directory as a power loss now would leave it, on a copy of the file system."""
        with crash_image(self.fs) as copy:
            yield copy.path / self.root.relative_to(self.fs.path)

    def after_each(
        self,
        *calls: str,
        work: Callable[[], object],
        look: Callable[[Path, str], object],
        first: Callable[[str], object] | None = None,
        inner: system.FileSystem | None = None,
    ) -> int:
        """Do the work, and `look` at what a power loss would leave after each of its calls of these names.

        `first(name)` runs before the copy is made. Returns how many copies were looked at.
        """
        seen = 0

        def after(_: int, name: str) -> None:
            nonlocal seen
            if name not in calls:
                return
            seen += 1
            if first is not None:
                first(name)
            with system.use(Restarted()), self.after_power_loss() as copy:
                look(copy, f"after call {seen} ({name})")

        with system.use(_OneAtATime(inner or system.KernelFS(), after=after)):  # type: ignore[arg-type]
            work()
        return seen
