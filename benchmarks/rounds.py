"""Interleaved rounds: every competitor once in each round, in turn, and a `syncfs` on both sides of what is timed."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Work = Callable[[], object]
Task = Callable[[int], Work]
"""Prepares round n, untimed, and returns what is timed. Work that returns a `float` says its seconds itself."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Result:
    """What one case of a mode gave: seconds of every sample by competitor, and other numbers by competitor and name."""

    mode: str
    case: str
    reference: str = "txfiles"
    seconds: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, dict[str, float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, ours: str, other: str, part: float = 0.5) -> float:
        return quantile(self.seconds[ours], part) / quantile(self.seconds[other], part)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quantile(seconds: list[float], part: float) -> float:
    """The value below which `part` of the samples lie; the median for a half."""
    if part == 0.5:
        return statistics.median(seconds)
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * part))]


def settle_down(directory: Path) -> None:
    """syncfs(2): nothing that others left dirty on this file system is written out in the next sample."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        if _libc.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")
    finally:
        os.close(fd)


def sample(
    task: Task, number: int, directory: Path, clock: Callable[[], float] = time.perf_counter, repeat: int = 1
) -> float:
    """Seconds of one sample: of one call of the work, where it is called `repeat` times in a row."""
    work = task(number)
    settle_down(directory)
    started = clock()
    for _ in range(repeat):
        own = work()
    seconds = (clock() - started) / repeat
    settle_down(directory)
    return own if isinstance(own, float) else seconds


def interleaved(
    tasks: Mapping[str, Task],
    directory: Path,
    rounds: int,
    *,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    repeat: int = 1,
) -> dict[str, list[float]]:
    """Seconds of every sample, by task. Every round begins with another task; `warm_up` rounds do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(-warm_up, rounds):
        for name in rotated(list(tasks), number):
            taken = sample(tasks[name], number, directory, clock, repeat)
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def rotated(names: list[str], number: int) -> Iterable[str]:
    start = number % len(names) if names else 0
    return names[start:] + names[:start]
