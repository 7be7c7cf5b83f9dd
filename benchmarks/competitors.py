"""Ways to save several files, each a function of names and contents; all are given the same ones."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.boundary import rounds, system
from txfiles import FileTransaction

if TYPE_CHECKING:
    from txfiles import Durability

Files = Sequence[tuple[str, bytes]]
Save = Callable[[Files], None]
_FULL_LOG = 4_200_000  # bytes, a little more than those of 1,000 pages, at which SQLite begins its log anew


class SerialFS(system.KernelFS):
    """One sync after another: each file is synced when it is written, and nothing is issued together."""

    def __init__(self) -> None:
        self._synced: set[int] = set()

    def start_writeback(self, fd: int) -> None:
        os.fsync(fd)
        self._synced.add(os.fstat(fd).st_ino)

    def sync_file(self, fd: int) -> None:
        if (ino := os.fstat(fd).st_ino) in self._synced:
            self._synced.discard(ino)
        else:
            os.fsync(fd)

    def run_all(self, jobs: Iterable[rounds.Job]) -> None:
        for job in jobs:
            rounds.perform(job)


@contextmanager
def txfiles(base: Path, durability: Durability = "full") -> Iterator[Save]:
    def save(files: Files) -> None:
        with FileTransaction(base, durability=durability, timeout=None, create=True) as tx:
            for name, content in files:
                tx.write(name, content)

    yield save


@contextmanager
def txfiles_serial(base: Path) -> Iterator[Save]:
    with txfiles(base) as one_round:

        def save(files: Files) -> None:
            with system.use(SerialFS()):
                one_round(files)

        yield save


@contextmanager
def _each(base: Path, write: Callable[[Path, bytes], None]) -> Iterator[Save]:
    base.mkdir(exist_ok=True)

    def save(files: Files) -> None:
        for name, content in files:
            write(base / name, content)

    yield save


def _put(path: Path | str, content: bytes, *, new: bool, sync: bool) -> None:
    flags = os.O_EXCL if new else os.O_TRUNC
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    if sync:
        os.fsync(fd)
    os.close(fd)


def _plain(path: Path, content: bytes) -> None:
    _put(path, content, new=False, sync=False)


def _rename(path: Path, content: bytes) -> None:
    temp = f"{path}.{os.urandom(4).hex()}"
    _put(temp, content, new=True, sync=False)
    os.rename(temp, path)


def _atomic(path: Path, content: bytes) -> None:
    temp = f"{path}.{os.urandom(4).hex()}"
    _put(temp, content, new=True, sync=True)
    os.rename(temp, path)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


@contextmanager
def atomicwrites(base: Path) -> Iterator[Save]:
    atomic_write = importlib.import_module("atomicwrites").atomic_write

    def write(path: Path, content: bytes) -> None:
        with atomic_write(path, mode="wb", overwrite=True) as file:
            file.write(content)

    with _each(base, write) as save:
        yield save


@contextmanager
def sqlite(base: Path, journal: str, synchronous: str) -> Iterator[Save]:
    """One row for each file, in one table; the connection stays open, as a program would keep it."""
    base.mkdir(exist_ok=True)
    db = sqlite3.connect(base / "db", isolation_level=None, timeout=600)
    try:
        db.execute(f"pragma journal_mode={journal}")
        db.execute(f"pragma synchronous={synchronous}")
        db.execute("create table if not exists files (name primary key, content blob)")
        if journal == "wal":
            _fill_log(db)

        def save(files: Files) -> None:
            db.execute("begin immediate")
            db.executemany("insert or replace into files values (?, ?)", files)
            db.execute("commit")

        yield save
    finally:
        db.close()


def _fill_log(db: sqlite3.Connection) -> None:
    """So that its log has its full size, and what follows is written over it: a new file has to be made longer."""
    db.execute("insert or replace into files values ('', zeroblob(?))", (_FULL_LOG,))
    db.execute("delete from files where name = ''")
    db.execute("pragma wal_checkpoint(restart)")


@contextmanager
def lmdb(base: Path) -> Iterator[Save]:
    base.mkdir(exist_ok=True)
    environment = importlib.import_module("lmdb").open(str(base), map_size=1 << 32)
    try:

        def save(files: Files) -> None:
            with environment.begin(write=True) as transaction:
                for name, content in files:
                    transaction.put(name.encode(), content)

        yield save
    finally:
        environment.close()


@contextmanager
def floor(base: Path) -> Iterator[Save]:
    """All bytes over those of one file, and one fsync: less than this no durable save can do."""
    base.mkdir(exist_ok=True)
    fd = os.open(base / "all", os.O_WRONLY | os.O_CREAT, 0o644)
    try:

        def save(files: Files) -> None:
            rest = memoryview(b"".join(content for _, content in files))
            offset = 0
            while offset < len(rest):
                offset += os.pwrite(fd, rest[offset:], offset)
            os.fsync(fd)

        yield save
    finally:
        os.close(fd)


SAVES: dict[str, Callable[[Path], AbstractContextManager[Save]]] = {
    "txfiles": txfiles,
    "journal": lambda base: txfiles(base, "journal"),
    "process": lambda base: txfiles(base, "process"),
    "serial": txfiles_serial,
    "plain": lambda base: _each(base, _plain),
    "rename": lambda base: _each(base, _rename),
    "atomic": lambda base: _each(base, _atomic),
    "atomicwrites": atomicwrites,
    "sqlite-extra": lambda base: sqlite(base, "delete", "extra"),
    "sqlite-wal": lambda base: sqlite(base, "wal", "full"),
    "lmdb": lmdb,
    "floor": floor,
}

MEANING = {
    "txfiles": "FileTransaction, durability='full'",
    "journal": "FileTransaction, durability='journal'",
    "process": "FileTransaction, durability='process'",
    "serial": "the same protocol, each file synced by itself",
    "plain": "open, write, close",
    "rename": "temporary file and rename, no sync",
    "atomic": "temporary file, fsync, rename, fsync of the directory; file by file",
    "atomicwrites": "atomicwrites.atomic_write, file by file",
    "sqlite-extra": "SQLite, rollback journal, synchronous=EXTRA",
    "sqlite-wal": "SQLite, WAL, synchronous=FULL, its log written over",
    "lmdb": "LMDB, synced",
    "floor": "all bytes into one file, one fsync",
}


def available(names: Iterable[str]) -> list[str]:
    """Those of `names` whose packages are installed; says which are left out."""
    out = []
    for name in names:
        if name in ("lmdb", "atomicwrites") and importlib.util.find_spec(name) is None:
            print(f"left out: {name} is not installed", file=sys.stderr)
        else:
            out.append(name)
    return out
