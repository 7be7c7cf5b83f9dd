"""What one commit asks of the operating system: syncs, calls of the boundary, system calls, and the time of each.

The counts do not depend on the machine. System calls are counted by strace(1): in a child that commits ten times and
in one that does not, so that the difference is of the commits alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from txfiles import FileTransaction, _fs

_COMMITS = 10
_NOT_CALLS = frozenset(("run_all", "random_id", "boot_id", "pid", "ids", "umask", "on_fork", "absolute"))


class Shape(NamedTuple):
    """A commit of `files` small files, spread over `directories` directories below the root."""

    files: int
    directories: int

    def __str__(self) -> str:
        return f"{self.files} files in {self.directories} directories"


SHAPES = [Shape(*pair) for pair in ((1, 1), (2, 1), (4, 1), (4, 4), (32, 1), (32, 8), (256, 1), (1024, 1))]


def commit(root: Path, shape: Shape, text: str = "x" * 100) -> None:
    with FileTransaction(root, create=True) as tx:
        for number in range(shape.files):
            tx.write(f"{number % shape.directories}/{number}", text)


class MeasuredFS:
    """The kernel's file system; counts calls and adds up their seconds, those of a round of syncs as one."""

    def __init__(self) -> None:
        self._inner = _fs.KernelFS()
        self._in_round = False
        self.calls: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)

    @property
    def syncs(self) -> int:
        return self.calls["sync_file"] + self.calls["sync_dir"]

    def run_all(self, jobs: Iterable[Callable[[], None]]) -> None:
        started = time.perf_counter()
        self._in_round = True
        try:
            self._inner.run_all(jobs)
        finally:
            self._in_round = False
            self.seconds["rounds of syncs"] += time.perf_counter() - started

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name in _NOT_CALLS or not callable(call):
            return call

        def measured(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                if not self._in_round:
                    self.seconds[name] += time.perf_counter() - started

        return measured


def counted(root: Path, shape: Shape) -> MeasuredFS:
    """One commit that rewrites the files of `shape`; an earlier commit has made them."""
    commit(root, shape)
    commit(root, shape)
    fs = MeasuredFS()
    with _fs.use(fs):
        commit(root, shape)
    return fs


def system_calls(root: Path, shape: Shape) -> float | None:
    """System calls of one such commit; `None` where there is no strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None

    def total(commits: int) -> int:
        code = (
            "import sys; from pathlib import Path; from benchmarks.count import Shape, commit\n"
            "root, shape, times = Path(sys.argv[1]), Shape(int(sys.argv[2]), int(sys.argv[3])), int(sys.argv[4])\n"
            "for _ in range(3 + times): commit(root, shape)"
        )
        words = [str(root), str(shape.files), str(shape.directories), str(commits)]
        with tempfile.NamedTemporaryFile("r") as out:
            argv = [strace, "-f", "-c", "-U", "calls,name", "-o", out.name, sys.executable, "-c", code, *words]
            subprocess.run(argv, check=True, cwd=Path(__file__).resolve().parents[1])
            return int(out.read().split()[-2])

    return (total(_COMMITS) - total(0)) / _COMMITS


def counts(base: Path) -> str:
    """A table of `SHAPES`."""
    lines = [f"  {'':28} {'syncs':>7} {'n + d + 3':>10} {'boundary calls':>15} {'system calls':>13}"]
    for number, shape in enumerate(SHAPES):
        fs = counted(base / f"{number}", shape)
        traced = system_calls(base / f"{number}", shape)
        shown = "no strace" if traced is None else f"{traced:.1f}"
        formula = shape.files + shape.directories + 3
        lines.append(f"  {shape!s:28} {fs.syncs:7} {formula:10} {fs.calls.total():15} {shown:>13}")
    return "\n".join(lines)


def profile(base: Path, shape: Shape, commits: int, size: int) -> str:
    """Where the time of a commit goes: in calls of each kind, and in Python between them."""
    root, text = base / f"profile-{shape.files}-{shape.directories}", "x" * size
    for _ in range(3):
        commit(root, shape, text)
    fs = MeasuredFS()
    started = time.perf_counter()
    with _fs.use(fs):
        for _ in range(commits):
            commit(root, shape, text)
    whole = time.perf_counter() - started
    rows = [(name, fs.calls[name], seconds) for name, seconds in fs.seconds.items()]
    rows.append(("Python", 0, whole - sum(fs.seconds.values())))
    rows.sort(key=lambda row: -row[2])
    lines = [f"{shape} of {size} B: {whole / commits * 1e3:.2f} ms, {commits} commits one after another"]
    for name, calls, seconds in rows:
        if seconds / whole >= 0.005:
            times = f"{calls / commits:8.1f} x" if calls else " " * 10
            lines.append(f"  {name:18} {times} {seconds / commits * 1e3:9.3f} ms {seconds / whole:6.1%}")
    return "\n".join(lines)
