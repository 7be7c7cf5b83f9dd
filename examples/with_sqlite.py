"""Rows of a SQLite database and files beside it, changed together or not at all.

A library of documents: each is a file, and a row with its size and digest. A change prepares the files, records the id
of the prepared transaction in the database transaction that changes the rows, commits the database, and then the files.
Whoever finds a prepared transaction after a crash asks the database: if it has the id, the files are committed, or else
they are rolled back.

Run as a program, it lets children change documents and kills them: before a random one of the system calls that
txfiles makes, before a random SQL statement, or at a random time. After each kill it recovers and checks that rows
and files agree:

    python examples/with_sqlite.py [directory] [--kills 60] [--naive]

With `--naive` the files are written one after another, each with a careful temp-and-rename, before the database is
committed, to show what then goes wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from txfiles import FileTransaction, commit_prepared, recover, rollback_prepared
from txfiles.errors import TransactionClosedError
from txfiles.testing import killed_at_call

SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, size INTEGER NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS committed (transaction_id TEXT PRIMARY KEY);
"""


class Library:
    """Documents in `directory`: the files in `files`, the rows in `library.sqlite`."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self.path = directory / "library.sqlite"
        self.die_at_statement = 0
        with self.database() as database:
            database.executescript(SCHEMA)
        self.recover()

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        database.set_trace_callback(self._before_statement)
        try:
            yield database
        finally:
            database.close()

    def change(self, documents: dict[str, bytes | None]) -> None:
        """Put documents in place, or take those away for which there is `None`."""
        self.recover()  # a process that has died may have left something to decide, and begin() would wait for it
        with FileTransaction(self.files) as tx:
            for name, content in documents.items():
                if content is None:
                    tx.delete(name)
                else:
                    tx.write(name, content)
            with self.database() as database, database:
                database.execute("BEGIN IMMEDIATE")
                change_rows(database, documents)
                database.execute("DELETE FROM committed")  # under the lock nothing else can be waiting
                database.execute("INSERT INTO committed VALUES (?)", [tx.prepare()])
            tx.commit()

    def recover(self) -> list[str]:
        """Decide what a crash left undecided; how each was decided.

        `recover` waits for the lock, and a change keeps it until the database is committed or rolled back: what is
        asked of the database afterwards has its final answer.
        """
        decisions = []
        report = recover(self.files)
        for waiting in report.waiting:
            with self.database() as database:
                found = database.execute("SELECT 1 FROM committed WHERE transaction_id = ?", [waiting.transaction_id])
                decide = commit_prepared if found.fetchone() else rollback_prepared
            with suppress(TransactionClosedError):  # another process was faster, with the same answer
                decide(self.files, waiting.transaction_id)
            decisions.append("committed" if decide is commit_prepared else "rolled back")
        return decisions + ["finished"] * len(report.rolled_forward) + ["undone"] * len(report.rolled_back)

    def disagreement(self) -> str | None:
        """What is wrong between rows and files; `None` if they agree."""
        with self.database() as database:
            rows = {name: (size, digest) for name, size, digest in database.execute("SELECT * FROM documents")}
        files = {path.name: path.read_bytes() for path in self.files.iterdir() if path.is_file()}
        for name in sorted(rows.keys() | files.keys()):
            if name not in files:
                return f"{name} has a row and no file"
            if name not in rows:
                return f"{name} has a file and no row"
            if rows[name] != describe(files[name]):
                return f"{name} is not what its row says"
        return None

    def _before_statement(self, _: str) -> None:
        if self.die_at_statement:
            self.die_at_statement -= 1
            if not self.die_at_statement:
                os.kill(os.getpid(), signal.SIGKILL)


class NaiveLibrary(Library):
    """The usual way: careful about each file, and the database knows nothing of them."""

    def change(self, documents: dict[str, bytes | None]) -> None:
        with self.database() as database, database:
            database.execute("BEGIN IMMEDIATE")
            for name, content in documents.items():
                if content is None:
                    (self.files / name).unlink()
                else:
                    temp = self.files.parent / f"{name}.tmp"
                    with temp.open("wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    temp.replace(self.files / name)
            change_rows(database, documents)


def describe(content: bytes) -> tuple[int, str]:
    return len(content), hashlib.sha256(content).hexdigest()


def change_rows(database: sqlite3.Connection, documents: dict[str, bytes | None]) -> None:
    for name, content in documents.items():
        if content is None:
            database.execute("DELETE FROM documents WHERE name = ?", [name])
        else:
            database.execute("REPLACE INTO documents VALUES (?, ?, ?)", [name, *describe(content)])


def work(library: Library, changes: int) -> None:
    """Each change replaces or adds three documents and takes one away."""
    for _ in range(changes):
        there = [path.name for path in library.files.iterdir() if path.is_file()]
        documents: dict[str, bytes | None] = {}
        for name in random.sample([f"document-{n}" for n in range(20)], 3):
            documents[name] = random.randbytes(random.randint(10, 5000))
        gone = [name for name in there if name not in documents]
        if gone:
            documents[random.choice(gone)] = None
        library.change(documents)


def kill_a_child(library: Library, how: str) -> None:
    """Let a child go on with the work, and let it die or kill it."""
    child = os.fork()
    if child == 0:
        random.seed()
        if how == "at an SQL statement":
            library.die_at_statement = random.randint(1, 30)
        with killed_at_call(random.randint(1, 400)) if how == "at a system call" else nullcontext():
            work(library, 100_000)
    if how == "at a random time":
        time.sleep(random.uniform(0.01, 0.15))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child was to be killed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", help="where to work (default: a new temporary directory)")
    parser.add_argument("--kills", type=int, default=60, help="how many children to kill (default: 60)")
    parser.add_argument("--naive", action="store_true", help="write the files one after another")
    options = parser.parse_args()
    directory = Path(options.directory or tempfile.mkdtemp(prefix="library-"))
    make = NaiveLibrary if options.naive else Library
    ways = ["at an SQL statement", "at a random time"] + ["at a system call"] * (not options.naive)

    library = make(directory)
    started = time.perf_counter()
    work(library, 20)
    print(f"20 changes in {directory}, {(time.perf_counter() - started) / 20 * 1000:.1f} ms each")

    logging.getLogger("txfiles").setLevel(logging.ERROR)  # what is recovered is told below
    decisions: list[str] = []
    torn = 0
    for number in range(1, options.kills + 1):
        how = ways[number % len(ways)]
        kill_a_child(library, how)
        done = library.recover()
        decisions += done
        wrong = library.disagreement()
        torn += wrong is not None
        said = "rows and files agree" if wrong is None else f"TORN: {wrong}"
        print(f"kill {number:3} {how:20} {', '.join(done) or 'nothing to decide':18} {said}")
        if wrong is not None:
            library = make(directory / f"after-{number}")  # go on with a library that agrees
    counts = ", ".join(f"{decisions.count(what)} {what}" for what in ("committed", "rolled back", "finished", "undone"))
    print(f"{options.kills} kills: {counts}; {torn} torn")
    return 1 if torn else 0


if __name__ == "__main__":
    sys.exit(main())
