"""What is measured with one process: saves of many shapes, a streamed file, snapshots, recovery, opening, import."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import device
from benchmarks.boundary import system
from benchmarks.competitors import SAVES, Files, Save, available
from benchmarks.rounds import Result, Task, Work, interleaved
from txfiles import FileStore, FileTransaction, recover

CHUNK = 1 << 20


def contents(files: int, size: int, prefix: str = "") -> Files:
    return [(f"{prefix}{number}.json", os.urandom(size)) for number in range(files)]


def save(
    base: Path,
    *,
    files: int,
    size: int,
    rounds: int,
    create: bool = False,
    only: Iterable[str] = SAVES,
) -> Result:
    """`files` files of `size` bytes: the same ones again and again, or with `create` new ones each time."""
    case = f"{files} x {size} B, {'new' if create else 'rewritten'}"
    with ExitStack() as stack:
        folder = fresh(base)
        saves = {name: stack.enter_context(SAVES[name](folder / name)) for name in available(only)}
        tasks = {name: save_task(how, files, size, create=create) for name, how in saves.items()}
        result = Result("create" if create else "save", case, seconds=interleaved(tasks, base, rounds))
        if not create:
            given = contents(files, size)
            if "journal" in saves:
                FileStore(folder / "journal").checkpoint()
                saves["journal"](given)
            result.facts = {name: device.per_commit(base, partial(how, given)) for name, how in saves.items()}
        return result


def save_task(how: Save, files: int, size: int, *, create: bool = False) -> Task:
    def task(number: int) -> Work:
        return partial(how, contents(files, size, f"{number}-" if create else ""))

    return task


def sustained(base: Path, *, files: int, size: int, duration: float, rounds: int) -> Result:
    """Saves in a row for `duration` seconds, whatever else has to be done meanwhile: seconds for one.

    "journal, begun" are a few that follow a checkpoint and do not come to the next one.
    """
    few = max(2, min(50, (2 << 20) // (files * (size + 1000))))
    folder = fresh(base)

    def task(save: Save, root: Path, most: float, number: int) -> Work:
        given = contents(files, size)
        if (root / ".txfiles").exists():
            FileStore(root).checkpoint()
            save(given)

        def work() -> float:
            done, started = 0, time.perf_counter()
            while done < most and time.perf_counter() < started + duration:
                save(given)
                done += 1
            return (time.perf_counter() - started) / done

        return work

    with ExitStack() as stack:
        names = "journal", "sqlite-extra", "sqlite-wal"
        saves = {name: stack.enter_context(SAVES[name](folder / name)) for name in names}
        tasks = {name: partial(task, save, folder / name, math.inf) for name, save in saves.items()}
        tasks["journal, begun"] = partial(task, saves["journal"], folder / "journal", few)
        case = f"{files} x {size} B, {duration:g} s"
        return Result("sustained", case, reference="journal", seconds=interleaved(tasks, base, rounds, warm_up=1))


def stream(base: Path, *, size: int, rounds: int) -> Result:
    """One new file of `size` bytes, written in chunks of 1 MiB; and how much more memory it took at its peak."""
    chunk = os.urandom(min(size, CHUNK))
    folder = fresh(base)
    memory: dict[str, dict[str, float]] = {}

    def fill(write: Callable[[bytes], object]) -> None:
        rest = size
        while rest > 0:
            write(chunk if rest >= len(chunk) else chunk[:rest])
            rest -= len(chunk)

    def plain(path: Path) -> None:
        with open(path, "wb", buffering=0) as file:
            fill(file.write)
            os.fsync(file.fileno())

    def transaction(path: Path) -> None:
        with FileTransaction(path.parent, create=True) as tx, tx.open(path.name, "wb") as file:
            fill(file.write)

    def measured(name: str, write: Callable[[Path], None], number: int) -> Work:
        path = folder / name / f"{size}"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)

        def work() -> None:
            before = reset_peak()
            write(path)
            memory.setdefault(name, {})["peak_memory_MiB"] = (peak() - before) / (1 << 20)

        return work

    tasks: dict[str, Task] = {
        "txfiles": partial(measured, "txfiles", transaction),
        "write+fsync": partial(measured, "write+fsync", plain),
    }
    result = Result("stream", f"{size} B", seconds=interleaved(tasks, base, rounds, warm_up=1), facts=memory)
    for name in tasks:
        (folder / name / f"{size}").unlink()
    return result


def snapshot(base: Path, *, files: int = 4, size: int = 2000, rounds: int, repeat: int = 50) -> Result:
    """`files` files of one committed state, beside opening and reading them; one sample is `repeat` of them."""
    tasks = snapshot_tasks(base, files, size)
    return Result("snapshot", f"{files} x {size} B", seconds=interleaved(tasks, base, rounds, repeat=repeat))


def snapshot_tasks(base: Path, files: int, size: int) -> dict[str, Task]:
    root = fresh(base) / "root"
    names = [name for name, _ in contents(files, 0)]
    with FileTransaction(root, create=True) as tx:
        for name, content in contents(files, size):
            tx.write(name, content)
    store = FileStore(root)
    paths = [str(root / name) for name in names]

    def snapshot() -> None:
        with store.snapshot() as snap:
            for name in names:
                snap.read(name)

    def pinned() -> None:
        with store.snapshot(*names) as snap:
            for name in names:
                snap.read(name)

    def plain() -> None:
        for path in paths:
            with open(path, "rb") as file:
                file.read()

    return {"txfiles": lambda number: snapshot, "pinned": lambda number: pinned, "open+read": lambda number: plain}


def recovery(base: Path, *, files: int = 10_000, size: int = 100, rounds: int) -> Result:
    """A commit that was killed with all its replaces pending: recovering it, beside what it had left to do.

    `apply` is what the same commit takes from its commit point to its end where nothing kills it.
    """
    tasks = recovery_tasks(base, files, size)
    return Result("recovery", f"{files} x {size} B", seconds=interleaved(tasks, base, rounds, warm_up=0))


def recovery_tasks(base: Path, files: int, size: int) -> dict[str, Task]:
    root = fresh(base) / "root"
    logging.getLogger("txfiles").setLevel(logging.ERROR)  # or the names of all files are printed

    def write_all(fs: system.KernelFS) -> None:
        with system.use(fs), FileTransaction(root, create=True) as tx:
            for name, content in contents(files, size):
                tx.write(name, content)

    write_all(system.KernelFS())

    def finish(number: int) -> Work:
        def work() -> float:
            write_all(marked := _MarkedFS())
            return time.perf_counter() - marked.committed

        return work

    def recovering(number: int) -> Work:
        child = os.fork()
        if child == 0:
            try:
                write_all(_MarkedFS(die=True))
            finally:
                os._exit(1)
        os.waitpid(child, 0)

        def work() -> None:
            assert len(recover(root).rolled_forward) == 1

        return work

    return {"txfiles": recovering, "apply": finish}


class _MarkedFS(system.KernelFS):
    """Notes when the commit point was passed; with `die` the process ends right after it."""

    def __init__(self, *, die: bool = False) -> None:
        self._die = die
        self.committed = 0.0

    def rename(self, at: int, name: bytes, to: int, new: bytes) -> None:
        super().rename(at, name, to, new)
        if new.endswith(b".committed"):
            if self._die:
                os._exit(0)
            self.committed = time.perf_counter()


def opening(base: Path, *, files: int = 100_000, rounds: int, repeat: int = 50) -> Result:
    """CPU seconds of beginning and ending a transaction that does nothing, in roots of few and of many files."""
    folder = fresh(base)
    tasks: dict[str, Task] = {}
    for count in (10, files):
        root = folder / f"{count}"
        root.mkdir()
        for number in range(count):
            if number % 1000 == 0:
                (at := root / f"{number // 1000}").mkdir()
            os.close(os.open(at / f"{number}", os.O_WRONLY | os.O_CREAT, 0o644))
        with FileTransaction(root) as tx:
            tx.write("a", b"a")
        tasks[f"{count} files"] = partial(_open_and_leave, root)
    seconds = interleaved(tasks, base, rounds, clock=time.process_time, repeat=repeat)
    return Result("opening", "CPU time", reference=f"{files} files", seconds=seconds)


def _open_and_leave(root: Path, number: int) -> Work:
    def work() -> None:
        with FileTransaction(root):
            pass

    return work


def importing(base: Path, *, rounds: int) -> Result:
    """Seconds of an import in a new interpreter that finds everything compiled."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(base / "pycache")}

    def task(statement: str, number: int) -> Work:
        code = f"import time; started = time.perf_counter()\n{statement}\nprint(time.perf_counter() - started)"

        def work() -> float:
            argv = [sys.executable, "-c", code]
            done = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment, encoding="utf-8")
            return float(done.stdout)

        return work

    commit = f"with FileTransaction({str(base)!r}) as tx: tx.write('a', b'a')"
    statements = {
        "txfiles": "from txfiles import FileTransaction",
        "and a commit": f"from txfiles import FileTransaction\n{commit}",
        "json": "import json",
        "sqlite3": "import sqlite3",
        "asyncio": "import asyncio",
    }
    tasks: dict[str, Task] = {name: partial(task, statement) for name, statement in statements.items()}
    return Result("import", "new interpreter", seconds=interleaved(tasks, base, rounds, warm_up=1))


def fresh(base: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=base))


def reset_peak() -> int:
    """Forget the peak of this process's memory, and give what it has now, in bytes (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _memory("VmRSS")


def peak() -> int:
    return _memory("VmHWM")


def _memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")
