"""What is measured with several threads or tasks of one process: each reads and rewrites a file of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.modes import fresh
from benchmarks.rounds import Result, rotated, settle_down
from txfiles import AsyncFileTransaction, Durability, FileStore, FileTransaction

Add = Callable[[], None]
Open = Callable[[Path, int], AbstractContextManager[Add]]


def updates(
    base: Path, *, counts: tuple[int, ...] = (8, 64), tasks: int = 200, duration: float = 2.0, rounds: int
) -> Result:
    """Threads, and tasks of asyncio, that update together: seconds for each update of all of them together.

    The facts are updates in a second by all, and how many the fastest made for each of the slowest, over all rounds.
    """
    result = Result("updates", f"1 x 100 B, {duration:g} s", reference=f"group {counts[0]}")
    folder = fresh(base)
    ways: dict[str, Open] = {
        "alone": lambda root, number: _file(root, number, group=False),
        "group": lambda root, number: _file(root, number, group=True),
        "journal": lambda root, number: _file(root, number, group=True, durability="journal"),
        "process": lambda root, number: _file(root, number, group=True, durability="process"),
        "sqlite-wal": _row,
    }
    made: dict[str, list[list[int]]] = {}

    def note(label: str, turns: list[int]) -> None:
        made.setdefault(label, []).append(sorted(turns))
        result.seconds.setdefault(label, []).append(duration / max(1, sum(turns)))

    for number in range(rounds):
        for name in rotated([*ways, "tasks", "journal-tasks"], number):
            root = folder / name
            root.mkdir(exist_ok=True)
            settle_down(base)
            if name.endswith("tasks"):
                level: Durability = "full" if name == "tasks" else "journal"
                note(f"{name} {tasks}", asyncio.run(_tasks(root, level, tasks, duration)))
                continue
            for count in counts:
                note(f"{name} {count}", _threads(ways[name], root, count, duration))
    for label, rows in made.items():
        result.facts[label] = {
            "updates_per_second": 1 / result.median(label),
            "fastest_over_slowest": sum(row[-1] for row in rows) / max(1, sum(row[0] for row in rows)),
        }
    return result


@contextmanager
def _file(root: Path, number: int, *, group: bool, durability: Durability = "full") -> Iterator[Add]:
    store = FileStore(root, durability=durability, timeout=None)
    name = f"{number}"

    def add(tx: FileTransaction) -> None:
        tx.write(name, _next(tx.read(name) if tx.exists(name) else b"0"))

    yield lambda: store.update(add, group=group)


@contextmanager
def _row(root: Path, number: int) -> Iterator[Add]:
    db = sqlite3.connect(root / "db", isolation_level=None, timeout=600)
    try:
        with _opening:  # SQLite waits for nobody who changes the mode of a database
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=full")
            db.execute("create table if not exists files (name primary key, content blob)")

        def add() -> None:
            db.execute("begin immediate")
            found: Any = db.execute("select content from files where name = ?", (number,)).fetchone()
            db.execute("insert or replace into files values (?, ?)", (number, _next(found[0] if found else b"0")))
            db.execute("commit")

        yield add
    finally:
        db.close()


def _next(content: bytes) -> bytes:
    return b"%-100d" % (int(content) + 1)


_opening = threading.Lock()


def _threads(way: Open, root: Path, count: int, duration: float) -> list[int]:
    made = [0] * count
    begin = threading.Barrier(count)

    def work(number: int) -> None:
        try:
            with way(root, number) as add:
                begin.wait()
                until = time.monotonic() + duration
                while time.monotonic() < until:
                    add()
                    made[number] += 1
        except BaseException:
            begin.abort()  # or the others wait for ever
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


async def _tasks(root: Path, level: Durability, count: int, duration: float) -> list[int]:
    store = FileStore(root, durability=level, timeout=None)
    made = [0] * count
    until = time.monotonic() + duration

    async def work(number: int) -> None:
        async def add(tx: AsyncFileTransaction) -> None:
            name = f"{number}"
            await tx.write(name, _next(await tx.read(name) if await tx.exists(name) else b"0"))

        while time.monotonic() < until:
            await store.async_update(add, group=True)
            made[number] += 1

    await asyncio.gather(*map(work, range(count)))
    return made
