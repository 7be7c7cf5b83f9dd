"""One commit against its competitors, in interleaved rounds on one file system: medians, 95th percentiles, ratios.

    python benchmarks/commit.py DIRECTORY [--files 4] [--size 2000] [--rounds 60] [--create] [--json FILE] [--only A,B]

DIRECTORY decides the file system that is measured; it should be a journaled one on a quiet machine. Every sample is
preceded by a syncfs outside the timing. `txfiles` and `process` are this library at its two durabilities; `serial` is
the same protocol with each sync waited for by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from txfiles import FileTransaction, _fs

Work = Callable[[list[bytes]], None]


class SerialFS(_fs.KernelFS):
    """Every sync by itself: no write-back is started before it, no two are issued together."""

    def start_writeback(self, fd: int) -> None:
        self.sync_file(fd)

    def run_all(self, jobs: Iterable[Callable[[], None]]) -> None:
        for job in jobs:
            job()


def _txfiles(base: Path, create: bool, durability: Any = "full", fs: _fs.KernelFS | None = None) -> Work:
    fs = fs or _fs.KernelFS()
    rounds = 0

    def work(contents: list[bytes]) -> None:
        nonlocal rounds
        rounds += create
        with _fs.use(fs), FileTransaction(base, durability=durability, create=True) as tx:
            for number, content in enumerate(contents):
                tx.write(f"{rounds}-{number}.json", content)

    return work


def _each(base: Path, create: bool, write: Callable[[Path, bytes], None]) -> Work:
    base.mkdir()
    rounds = 0

    def work(contents: list[bytes]) -> None:
        nonlocal rounds
        rounds += create
        for number, content in enumerate(contents):
            write(base / f"{rounds}-{number}.json", content)

    return work


def _rename_without_sync(path: Path, content: bytes) -> None:
    temp = f"{path}.{os.urandom(4).hex()}"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, content)
    os.close(fd)
    os.rename(temp, path)


def _atomic_by_hand(path: Path, content: bytes) -> None:
    temp = f"{path}.{os.urandom(4).hex()}"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, content)
    os.fsync(fd)
    os.close(fd)
    os.rename(temp, path)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _atomicwrites(path: Path, content: bytes) -> None:
    from atomicwrites import atomic_write

    with atomic_write(path, mode="wb", overwrite=True) as file:
        file.write(content)


def _sqlite(base: Path, create: bool, journal: str, synchronous: str) -> Work:
    base.mkdir()
    db = sqlite3.connect(base / "db", isolation_level=None)
    db.execute(f"pragma journal_mode={journal}")
    db.execute(f"pragma synchronous={synchronous}")
    db.execute("create table files (name primary key, content blob)")
    rounds = 0

    def work(contents: list[bytes]) -> None:
        nonlocal rounds
        rounds += create
        db.execute("begin immediate")
        for number, content in enumerate(contents):
            db.execute("insert or replace into files values (?, ?)", (f"{rounds}-{number}", content))
        db.execute("commit")

    return work


def _lmdb(base: Path, create: bool) -> Work:
    import lmdb

    base.mkdir()
    environment = lmdb.open(str(base), map_size=1 << 32)
    rounds = 0

    def work(contents: list[bytes]) -> None:
        nonlocal rounds
        rounds += create
        with environment.begin(write=True) as transaction:
            for number, content in enumerate(contents):
                transaction.put(f"{rounds}-{number}".encode(), content)

    return work


def _floor(base: Path) -> Work:
    base.mkdir()

    def work(contents: list[bytes]) -> None:
        fd = os.open(base / "all", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, b"".join(contents))
        os.fsync(fd)
        os.close(fd)

    return work


def competitors(base: Path, create: bool) -> dict[str, Callable[[], Work]]:
    return {
        "txfiles": lambda: _txfiles(base / "txfiles", create),
        "process": lambda: _txfiles(base / "process", create, "process"),
        "serial": lambda: _txfiles(base / "serial", create, fs=SerialFS()),
        "plain": lambda: _each(base / "plain", create, lambda path, content: (path.write_bytes(content), None)[1]),
        "rename": lambda: _each(base / "rename", create, _rename_without_sync),
        "atomic": lambda: _each(base / "atomic", create, _atomic_by_hand),
        "atomicwrites": lambda: _each(base / "atomicwrites", create, _atomicwrites),
        "sqlite-extra": lambda: _sqlite(base / "sqlite", create, "delete", "extra"),
        "sqlite-wal": lambda: _sqlite(base / "wal", create, "wal", "full"),
        "lmdb": lambda: _lmdb(base / "lmdb", create),
        "floor": lambda: _floor(base / "floor"),
    }


def measure(base: Path, files: int, size: int, rounds: int, create: bool, only: set[str]) -> dict[str, list[float]]:
    """Seconds of every sample, by competitor. The first rounds, in which files are made, do not count."""
    work: dict[str, Work] = {}
    for name, make in competitors(base, create).items():
        if only and name not in only:
            continue
        try:
            work[name] = make()
        except ImportError as error:
            print(f"left out: {name} ({error})", file=sys.stderr)
    samples: dict[str, list[float]] = {name: [] for name in work}
    warm_up = 0 if create else 3
    for number in range(rounds + warm_up):
        contents = [os.urandom(size) for _ in range(files)]
        for name, run in work.items():
            os.sync()
            started = time.perf_counter()
            run(contents)
            if number >= warm_up:
                samples[name].append(time.perf_counter() - started)
    return samples


def summary(samples: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    reference = statistics.median(samples["txfiles"]) if "txfiles" in samples else None
    out = {}
    for name, seconds in samples.items():
        median = statistics.median(seconds)
        p95 = sorted(seconds)[int(len(seconds) * 0.95)]
        out[name] = {"median_ms": median * 1e3, "p95_ms": p95 * 1e3}
        if reference is not None:
            out[name]["txfiles_over_this"] = reference / median
    return out


def environment(directory: Path) -> dict[str, str]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [m for m in mounts if str(directory.resolve()).startswith(m[1])]
    mount = max(inside, key=lambda m: len(m[1]))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": f"{os.cpu_count()} x {cpu}",
        "filesystem": f"{mount[2]} ({mount[3]})",
        "sqlite": sqlite3.sqlite_version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--size", type=int, default=2000, help="bytes of each file")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--create", action="store_true", help="new files in every round")
    parser.add_argument("--only", default="", help="competitors, separated by commas")
    parser.add_argument("--json", type=Path, help="write the result to this file too")
    options = parser.parse_args()
    base = options.directory / f"bench-{os.urandom(4).hex()}"
    base.mkdir()
    try:
        only = set(filter(None, options.only.split(",")))
        samples = measure(base, options.files, options.size, options.rounds, options.create, only)
        where = environment(base)
    finally:
        shutil.rmtree(base)
    found = summary(samples)
    for key, value in where.items():
        print(f"{key:12} {value}")
    how = "new" if options.create else "rewritten"
    print(f"\n{options.files} files x {options.size} B, {options.rounds} rounds, {how}\n")
    print(f"{'':14}{'median':>10}{'p95':>10}{'txfiles / this':>17}")
    for name, row in found.items():
        ratio = f"{row['txfiles_over_this']:17.2f}" if "txfiles_over_this" in row else ""
        print(f"{name:14}{row['median_ms']:7.3f} ms{row['p95_ms']:7.3f} ms{ratio}")
    if options.json:
        options.json.write_text(json.dumps({"environment": where, "result": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
