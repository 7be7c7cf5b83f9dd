"""What reaches the device: its flushes, and the commits of the file system's own journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.rounds import settle_down

_COMMITS = 20
_FLUSHES = 15  # Documentation/block/stat.rst of the kernel, counted from 0


def per_commit(directory: Path, commit: Callable[[], object]) -> dict[str, float]:
    """Flushes and commits of the journal for each of some commits in a row; empty where the kernel does not count them.

    Of xfs it is the writes to its log, which are no fewer.
    """
    settle_down(directory)
    before = _counters(directory)
    for _ in range(_COMMITS):
        commit()
    after = _counters(directory)
    return {name: (after[name] - count) / _COMMITS for name, count in before.items()}


def _counters(directory: Path) -> dict[str, int]:
    device = os.stat(directory).st_dev
    with suppress(OSError):
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        found = {"flushes": int(_words(block / "stat")[_FLUSHES])}
        for name in (f"{block.name}-8", block.name):
            with suppress(OSError):
                found["journal_commits"] = int(_words(Path("/proc/fs/jbd2") / name / "info")[0])
        with suppress(OSError):
            words = _words(Path("/sys/fs/xfs") / block.name / "stats" / "stats")
            found["journal_commits"] = int(words[words.index("log") + 1])
        return found
    return {}


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()
