"""A reader and a writer taken forward call by call, in an order that hypothesis chooses.

The writer is a thread that stops before each of its calls that changes something; before each of its own calls the
reader lets it make some of them. Commits that fail while they are applied, and are undone, are among them.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import scratch
from txfiles import FileStore, FileTransaction, Snapshot
from txfiles._disk import system
from txfiles._reading import reader
from txfiles.errors import CommitError, SnapshotExpiredError
from txfiles.testing._faults import FaultyFS

CHANGES = frozenset(("create", "symlink", "mkdir", "rmdir", "link", "rename", "unlink", "hold", "let_go"))
FILES = ("a", "b", "d/c")
UNDONE = 1000  # and more: generations that never were


class Writer:
    """Runs commits, one step at a time. `number` counts the generations that were committed.

    With `seen` readers can tell that it lives.
    """

    def __init__(self, root: Path, program: list[str], *, seen: bool = True) -> None:
        self._seen = seen
        self._root = root
        self._program = program
        self._may_go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._fail = False
        self._ending = False
        self.failure: BaseException | None = None
        self.ended = False
        self.number = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._stopped.acquire()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if self.ended:
                return
            self._may_go.release()
            self._stopped.acquire()

    def finish(self) -> None:
        self._ending = True
        while not self.ended:
            self.step()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _pause(self, _: int, name: str) -> None:
        if name in CHANGES and not self._ending:
            self._stopped.release()
            self._may_go.acquire()
        if name == "hold" and not self._seen:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        if self._fail and name == "rename":
            self._renames += 1
            if self._renames == self._fail_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _run(self) -> None:
        try:
            self._stopped.release()
            self._may_go.acquire()
            for kind in self._program:
                self._transaction(kind)
        except BaseException as error:
            self.failure = error
        finally:
            self.ended = True
            self._stopped.release()

    def _transaction(self, kind: str) -> None:
        fs = FaultyFS(system.KernelFS(), self._pause)
        tx = FileTransaction(self._root, durability="process")
        tx._fs = fs  # type: ignore[assignment]
        self._fail = kind.startswith("undone")
        self._renames, self._fail_at = 0, 2 + int(kind[-1]) if self._fail else 0
        generation = str(UNDONE if self._fail else self.number + 1)
        try:
            with tx:
                self.change(tx, kind, generation)
        except CommitError:
            assert self._fail
        else:
            self.number += 1

    def change(self, tx: FileTransaction, kind: str, generation: str) -> None:
        if "move" in kind:
            tx.move("a", "spare")
            tx.move("b", "a")
            tx.move("spare", "b")
        for name in FILES:
            tx.write(name, f"{name} {generation}")
        for old in tx.glob("mark/*"):
            tx.delete(old)
        if int(generation) % 2:
            tx.write(f"x/deep/{generation}", generation)
        elif tx.exists("x"):
            tx.delete_tree("x")
        tx.write(f"mark/{generation}", generation)


@contextmanager
def beside(program: list[str], schedule: Iterator[int], *, seen: bool = True) -> Iterator[tuple[FileStore, Writer]]:
    """A store whose every call lets the writer go on; waiting lets it go on, too."""
    directory = str(scratch.directory(scratch.MEMORY))
    root = Path(directory)
    with FileTransaction(root, durability="process") as tx:
        for name in FILES:
            tx.write(name, f"{name} 0")
        tx.write("mark/0", "0")
    writer = Writer(root, program, seen=seen)
    try:
        fs = FaultyFS(system.KernelFS(), lambda _, name: writer.step(next(schedule, 0)))
        with pytest.MonkeyPatch.context() as patch, system.use(fs):  # type: ignore[arg-type]
            patch.setattr(reader.Patience, "sleep", lambda self: writer.step())
            yield FileStore(root, timeout=60), writer
    finally:
        try:
            writer.finish()
        finally:
            shutil.rmtree(directory)


def generation(contents: list[bytes]) -> int:
    """The generation that all files are of."""
    found = {content.split()[1] for content in contents}
    assert len(found) == 1, f"a mix: {contents}"
    assert [content.split()[0].decode() for content in contents] == list(FILES)
    return int(found.pop())


def read_pinned(store: FileStore, held: list[tuple[Snapshot, int]]) -> int:
    snap = store.snapshot(*FILES)
    snap.__enter__()
    number = generation([snap.read(name) for name in FILES])
    held.append((snap, number))
    return number


def read_all(store: FileStore, held: list[tuple[Snapshot, int]]) -> int:
    while True:
        with store.snapshot() as snap:
            try:
                number = generation([snap.read(name) for name in FILES])
                assert snap.listdir("mark") == [str(number)]
                assert snap.exists("x") == bool(number % 2)
                odd = [f"x/deep/{number}"] * (number % 2)
                assert snap.glob("**") == sorted([*FILES, f"mark/{number}", *odd])
                assert snap.exists(f"mark/{number}")
                assert not snap.exists(f"mark/{UNDONE}")
                return number
            except SnapshotExpiredError:
                continue


KINDS = ["commit", "commit move", *(f"undone {n}" for n in range(5)), "undone move 1", "undone move 4"]


@pytest.mark.parametrize("read", [read_pinned, read_all])
@given(
    program=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    schedule=st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 5, 30]), min_size=10, max_size=200),
    seen=st.booleans(),
)
def test_any_order(
    read: Callable[[FileStore, list[tuple[Snapshot, int]]], int], program: list[str], schedule: list[int], seen: bool
) -> None:
    held: list[tuple[Snapshot, int]] = []
    with beside(program, iter(schedule), seen=seen) as (store, writer):
        last = 0
        while not writer.ended:
            began = writer.number
            number = read(store, held)
            assert began <= number <= writer.number + 1, "neither the last state nor a later one"
            assert number >= last, "a reader went back in time"
            last = number
            writer.step()
        assert read(store, held) == writer.number
        for snap, expected in held:
            assert generation([snap.read(name) for name in FILES]) == expected
            snap.close()


def test_every_place_for_a_whole_transaction() -> None:
    """A transaction that begins and ends, or fails and is undone, within one call of the reader."""
    kinds = ("commit", "undone 2", "undone move 4")
    for kind, read, seen in itertools.product(kinds, (read_pinned, read_all), (True, False)):
        place = 0
        while True:
            held: list[tuple[Snapshot, int]] = []
            schedule = iter([0] * place + [100_000])
            with beside([kind], schedule, seen=seen) as (store, writer):
                number = read(store, held)
                reached = writer.ended
                for snap, _ in held:
                    snap.close()
                assert number in ({0} if kind.startswith("undone") else {0, 1})
            if not reached:
                break
            place += 1
        assert place > 15
