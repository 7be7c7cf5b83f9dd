"""Exceptions of signal handlers at every line of each call that stages: it is made or not, and then they come out."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.crash.handlers import KINDS, Deadline, Raising, in_child
from tests.crash.scenarios import resting
from tests.support import DEEP
from tests.support.boundary import tree
from txfiles import FileTransaction
from txfiles._disk import system
from txfiles._format.digest import Digest
from txfiles._tree.tokens import Token
from txfiles.errors import TxFilesError
from txfiles.testing._faults import FaultyFS

STEP = 1 if DEEP else 53


def _chunks() -> Iterator[bytes]:
    yield b"new "
    yield b"in parts"


def _open(tx: FileTransaction) -> None:
    with tx.open("dir/x", "r+b") as file:
        file.seek(0, 2)
        file.write(b" and more")


def _savepoint(tx: FileTransaction) -> None:
    with tx.savepoint():
        tx.delete("a")


CALLS: dict[str, Callable[[FileTransaction], object]] = {
    "write": lambda tx: tx.write("a", "new"),
    "write chunks": lambda tx: tx.write("new/deep/a", _chunks()),
    "write again": lambda tx: tx.write("staged", "again", mode=0o600),
    "write, version": lambda tx: tx.write("a", "new", if_version=tx.version("a")),
    "append": lambda tx: tx.append("a", " and more"),
    "delete": lambda tx: tx.delete("a"),
    "delete staged": lambda tx: tx.delete("staged"),
    "delete none": lambda tx: tx.delete("none", missing_ok=True),
    "delete_tree": lambda tx: tx.delete_tree("dir"),
    "move": lambda tx: tx.move("a", "staged"),
    "move, directory": lambda tx: tx.move("dir", "new/dir"),
    "copy": lambda tx: tx.copy("a", "new/a", overwrite=False),
    "copy, directory": lambda tx: tx.copy("dir", "copied"),
    "symlink": lambda tx: tx.symlink("a", "new/link"),
    "chmod": lambda tx: tx.chmod("a", 0o600),
    "mkdir": lambda tx: tx.mkdir("new/deep/directory", exist_ok=False),
    "open": _open,
    "savepoint": _savepoint,
    "ask": lambda tx: (tx.exists("none"), tx.version("none"), tx.glob("**/x"), tx.read("dir/x"), tx.is_dir("none")),
}


def _view(tx: FileTransaction) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, directories, files in tx.walk():
        found.update({f"{path}/{name}": None for name in directories})
        for name in files:
            inner = f"{path}/{name}"
            mode = tx.stat(inner, follow_symlinks=False).st_mode
            found[inner] = (mode, tx.readlink(inner) if stat.S_ISLNK(mode) else tx.read(inner))
    return found


def _begin(root: Path) -> FileTransaction:
    (root / "dir/inner").mkdir(parents=True)
    for name in ("a", "b", "dir/x", "dir/inner/y"):
        (root / name).write_bytes(b"old " + name.encode())
    tx = FileTransaction(root, durability="process").begin()
    tx.write("staged", "1")
    tx.move("b", "c")
    return tx


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _at(root: Path, call: str, kind: str, number: int, after: dict[str, object]) -> bool:
    """Whether there was an event of that number."""
    root.mkdir()
    where = f"{call}, {kind} at event {number}"
    tx = _begin(root)
    before = _view(tx)
    raising = Raising(kind)
    tracer = raising.at(number)
    seen: BaseException | None = None
    try:
        sys.settrace(tracer)
        CALLS[call](tx)
        sys.settrace(None)
    except BaseException as error:
        sys.settrace(None)
        seen = error
    where += f" {tracer.came}: {seen!r}"
    raising.require_same(seen, where)
    assert seen is not None or raising.ignored or tracer.left > 0, where
    now: list[dict[str, object]] = []
    other = threading.Thread(target=lambda: now.append(_view(tx)), daemon=True)
    other.start()
    other.join(60)
    assert now, f"{where}: the transaction is held"
    assert now[0] in ((before, after) if seen is not None else (after,)), where
    if tx._writing:  # a file object that nobody got, before its block began: it is the traceback's
        raising.raised.clear()
        seen = None
        gc.collect()
    tx.write("last", "!")
    try:
        tx.commit()
    except TxFilesError:
        pytest.fail(where)
    with FileTransaction(root) as found:
        assert _view(found) == {**now[0], "./last": (0o100644, b"!")}, where
    assert resting(root), where
    shutil.rmtree(root)
    return tracer.left <= 0


def _at_each(root: Path, call: str, kind: str, first: int) -> bool:
    os.umask(0o022)
    root.mkdir()
    tx = _begin(root)
    CALLS[call](tx)
    after = _view(tx)
    tx.rollback()
    shutil.rmtree(root)
    open_before = _descriptors()
    number = first
    while _at(root, call, kind, number, after):
        number += STEP
    assert number > 100, number
    assert _descriptors() == open_before
    print(f"{call}, {kind}: {number}")
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_a_handler_raises_between_two_lines_of_a_call(memory: Path, call: str, kind: str) -> None:
    first = 1 + list(KINDS).index(kind) * STEP // len(KINDS)  # other lines for other kinds
    assert in_child(partial(_at_each, memory / "root", call, kind, first), f"{call}, {kind}")


# -- what does not wait ---------------------------------------------------------------------------------------------


@pytest.fixture
def raising() -> Iterator[Raising]:
    before, hook = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    yield Raising("Exception")
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = hook


def test_data_of_the_caller_is_interrupted_as_ever(root: Path, raising: Raising) -> None:
    seen: list[BaseException] = []

    def chunks(tx: FileTransaction) -> Iterator[bytes]:
        yield b"one "
        try:
            signal.raise_signal(signal.SIGALRM)
        except Deadline as error:
            seen.append(error)
        assert not tx.exists("none")  # a call inside is one by itself
        yield b"two"

    with FileTransaction(root) as tx:
        tx.write("a", chunks(tx))
    assert seen == raising.raised
    assert (root / "a").read_bytes() == b"one two"


@pytest.mark.parametrize("kind", ["iterable", "file object", "nested"])
def test_what_ends_data_of_the_caller_undoes_the_call(root: Path, raising: Raising, kind: str) -> None:
    class Data:
        def read(self, size: int) -> bytes:
            signal.raise_signal(signal.SIGALRM)
            pytest.fail("it waits")

        def __iter__(self) -> Iterator[bytes]:
            yield b"one"
            if kind == "nested":
                tx.append("b", self.more())
            self.read(1)

        def more(self) -> Iterator[bytes]:
            yield b"two"
            self.read(1)

    with FileTransaction(root) as tx:
        with pytest.raises(Deadline) as caught:
            tx.write("new/a", Data() if kind == "file object" else iter(Data()))
        assert [caught.value] == raising.raised
        assert tx.listdir() == []
        tx.write("b", "two")
    assert tree(root) == {"b": b"two"}


def test_who_waits_for_the_call_of_another_thread_is_interrupted(root: Path, raising: Raising) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        inside.set()
        assert go_on.wait(60)
        yield b"new"

    with FileTransaction(root) as tx:
        other = threading.Thread(target=tx.write, args=("a", chunks()))
        other.start()
        assert inside.wait(60)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Deadline):
            tx.write("b", "new")
        go_on.set()
        other.join()
        assert tx.listdir() == ["a"]


BIG = b"x" * (8 << 20)
LONG: dict[str, tuple[str, Callable[[FileTransaction], object]]] = {
    "write": ("write", lambda tx: tx.write("b", BIG)),
    "append": ("read", lambda tx: tx.append("big", "more")),
    "copy": ("read", lambda tx: tx.copy("big", "b")),
    "move": ("read", lambda tx: tx.move("big", "b")),
    "delete_tree": ("listdir", lambda tx: tx.delete_tree("deep")),
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_call_ends_soon(root: Path, raising: Raising, what: str) -> None:
    call, make = LONG[what]
    (root / "big").write_bytes(BIG)
    (root / "deep/1/2/3/4/5/6/7").mkdir(parents=True)
    seen = -1000

    def plan(_: int, name: str) -> None:
        nonlocal seen
        seen += name == call
        if name == call and seen == 2:
            signal.raise_signal(signal.SIGALRM)

    fs: Any = FaultyFS(system.KernelFS(), plan)
    with system.use(fs), FileTransaction(root) as tx:
        seen = 0
        with pytest.raises(Deadline):
            make(tx)
        assert seen in (2, 3), "of 8"
        assert sorted(tx.listdir()) == ["big", "deep"]


@pytest.mark.parametrize("call", ["seek", "read", "truncate"])
def test_a_file_object_knows_what_it_is_after_a_call_that_was_interrupted(root: Path, call: str) -> None:
    """The call was made, and then interrupted: the digest in the journal is that of the content all the same."""

    class Interrupted(system.KernelFS):
        armed = False

        def _made(self, name: str, answer: Any) -> Any:
            if self.armed and name == call:
                self.armed = False
                raise KeyboardInterrupt
            return answer

        def seek(self, fd: int, offset: int, whence: int) -> int:
            return int(self._made("seek", super().seek(fd, offset, whence)))

        def read(self, fd: int, size: int) -> bytes:
            return bytes(self._made("read", super().read(fd, size)))

        def truncate(self, fd: int, size: int) -> None:
            self._made("truncate", super().truncate(fd, size))

    (root / "a").write_bytes(b"0123456789")
    fs = Interrupted()
    with system.use(fs), FileTransaction(root) as tx:
        with tx.open("a", "r+b", 0) as file:
            file.seek(0, 2)
            fs.armed = True
            with pytest.raises(KeyboardInterrupt):
                {"seek": lambda: file.seek(3), "read": lambda: file.read(4), "truncate": lambda: file.truncate(5)}[
                    call
                ]()
            file.write(b"end")
        token = tx._staging.entries[b"a"]
        assert isinstance(token, Token)
        digest = Digest()
        digest.update(tx.read("a"))
        assert token.digest == digest.hexdigest()
