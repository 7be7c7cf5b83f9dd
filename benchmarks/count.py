"""What one commit asks of the operating system: syncs, calls of the boundary, system calls, and the time of each.

The counts do not depend on the machine. System calls are counted by strace(1): in a child that commits ten times and
in one that does not, so that the difference is of the commits alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from txfiles import FileTransaction
from txfiles._disk import rounds, system

_COMMITS = 10
_NOT_CALLS = frozenset(("run_all", "random_id", "boot_id", "pid", "ids", "umask", "on_fork", "absolute"))


class Shape(NamedTuple):
    """`files` small files, spread over `directories` directories below the root."""

    files: int
    directories: int = 1

    def __str__(self) -> str:
        return f"{self.files} files in {self.directories} {'directory' if self.directories == 1 else 'directories'}"

    def names(self, prefix: str = "") -> list[str]:
        return [f"{number % self.directories}/{prefix}{number}" for number in range(self.files)]


SHAPES = [Shape(*pair) for pair in ((1, 1), (2, 1), (4, 1), (4, 4), (32, 1), (32, 8), (256, 1), (1024, 1))]


def commit(root: Path, names: Iterable[str], text: str = "x" * 100) -> None:
    with FileTransaction(root, create=True) as tx:
        for name in names:
            tx.write(name, text)


def commit_each(root: Path, *commits: Iterable[str]) -> None:
    for names in commits:
        commit(root, names)


def _delete(root: Path, names: Iterable[str]) -> None:
    with FileTransaction(root) as tx:
        for name in names:
            tx.delete(name)


class Kind(NamedTuple):
    """A kind of commit: what went before, what it does, and its syncs as a function of n files in d
    directories, and of a directories above the root."""

    before: Callable[[Path, Shape], object]
    commit: Callable[[Path, Shape], object]
    formula: str

    def syncs(self, shape: Shape, root: Path) -> int:
        terms = {"n": shape.files, "d": shape.directories, "a": len(root.resolve().parents), "": 1}
        found = re.findall(r"(\d*)\s*([nda]?)(?:\s*\+\s*|$)", self.formula)
        return sum(int(times or 1) * terms[of] for times, of in found if times or of)


KINDS = {
    "the files of the last commit": Kind(
        lambda root, shape: commit_each(root, shape.names(), shape.names()),
        lambda root, shape: commit(root, shape.names()),
        "n + d + 4",
    ),
    "new files beside them": Kind(
        lambda root, shape: commit_each(root, shape.names(), shape.names()),
        lambda root, shape: commit(root, shape.names("new")),
        "n + d + 4",
    ),
    "other files than the last commit's": Kind(
        lambda root, shape: commit_each(root, shape.names(), ["elsewhere/a"]),
        lambda root, shape: commit(root, shape.names()),
        "2n + d + 4",
    ),
    "deletes of the last commit's files": Kind(
        lambda root, shape: commit_each(root, shape.names(), shape.names()),
        lambda root, shape: _delete(root, shape.names()),
        "d + 4",
    ),
    "new files in new directories": Kind(
        lambda root, shape: commit(root, ["a"]),
        lambda root, shape: commit(root, shape.names()),
        "n + 2d + 6",
    ),
    "the first commit of a root": Kind(
        lambda root, shape: root.mkdir(),
        lambda root, shape: commit(root, [f"{number}" for number in range(shape.files)]),
        "n + a + 8",
    ),
}


class MeasuredFS:
    """The kernel's file system; counts calls and adds up their seconds, those of a round of syncs as one."""

    def __init__(self) -> None:
        self._inner = system.KernelFS()
        self._in_round = False
        self.calls: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)

    @property
    def syncs(self) -> int:
        return self.calls["sync_file"] + self.calls["sync_dir"]

    def run_all(self, jobs: Iterable[rounds.Job]) -> None:
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
        if self._in_round and name in ("sync_file", "sync_dir"):
            self.calls[name] += 1
            return call  # the kernel's own, so that it can be issued together with the others

        def measured(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                if not self._in_round:
                    self.seconds[name] += time.perf_counter() - started

        return measured


def counted(root: Path, shape: Shape, kind: Kind = KINDS["the files of the last commit"]) -> MeasuredFS:
    """The calls of one commit of this kind in `root`, which does not exist yet."""
    kind.before(root, shape)
    fs = MeasuredFS()
    with system.use(fs):
        kind.commit(root, shape)
    return fs


def system_calls(root: Path, shape: Shape) -> float | None:
    """System calls of one commit of the files of the last one; `None` where there is no strace."""
    strace = shutil.which("strace")
    if strace is None:
        return None

    def total(commits: int) -> int:
        code = (
            "import sys; from pathlib import Path; from benchmarks.count import Shape, commit\n"
            "root, shape, times = Path(sys.argv[1]), Shape(int(sys.argv[2]), int(sys.argv[3])), int(sys.argv[4])\n"
            "for _ in range(3 + times): commit(root, shape.names())"
        )
        words = [str(root), str(shape.files), str(shape.directories), str(commits)]
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as out:
            argv = [strace, "-f", "-c", "-U", "calls,name", "-o", out.name, sys.executable, "-c", code, *words]
            subprocess.run(argv, check=True, cwd=Path(__file__).resolve().parents[1])
            return int(out.read().split()[-2])

    return (total(_COMMITS) - total(0)) / _COMMITS


def counts(base: Path) -> str:
    """Tables of `KINDS` and of `SHAPES`."""
    shape = Shape(12, 3)
    lines = [f"syncs of a commit of {shape}:", ""]
    for name, kind in KINDS.items():
        fs = counted(Path(tempfile.mkdtemp(dir=base)) / "root", shape, kind)
        lines.append(f"  {name:36} {fs.syncs:6}   {kind.formula}")
    lines += ["", "the files of the last commit again:", ""]
    lines.append(f"  {'':28} {'syncs':>7} {'n + d + 4':>10} {'boundary calls':>15} {'system calls':>13}")
    for shape in SHAPES:
        root = Path(tempfile.mkdtemp(dir=base)) / "root"
        fs = counted(root, shape)
        traced = system_calls(root, shape)
        shown = "no strace" if traced is None else f"{traced:.1f}"
        formula = shape.files + shape.directories + 4
        lines.append(f"  {shape!s:28} {fs.syncs:7} {formula:10} {fs.calls.total():15} {shown:>13}")
    return "\n".join(lines)


def profile(base: Path, shape: Shape, commits: int, size: int) -> str:
    """Where the time of a commit goes: in calls of each kind, and in Python between them."""
    root, text = base / f"profile-{shape.files}-{shape.directories}", "x" * size
    for _ in range(3):
        commit(root, shape.names(), text)
    fs = MeasuredFS()
    started = time.perf_counter()
    with system.use(fs):
        for _ in range(commits):
            commit(root, shape.names(), text)
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
