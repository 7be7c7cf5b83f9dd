"""Exceptions of signal handlers, of every kind, at every line: all is finished or undone, and then they are raised."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.crash.scenarios import resting
from tests.support import DEEP
from tests.support.boundary import tree
from txfiles import FileStore, FileTransaction, commit_prepared, recover, rollback_prepared
from txfiles._disk import system
from txfiles._reading.lookout import Known, mark_from, rest
from txfiles.documents import Documents
from txfiles.integrations.fsspec import TxFilesFileSystem
from txfiles.recovery import verify
from txfiles.testing._faults import FaultyFS

OLD, NEW = {"a": b"old", "b": b"old"}, {"a": b"new", "b": b"new"}


class Deadline(Exception):
    """What the deadline of a job queue raises."""


class Stop(BaseException):
    """No `Exception`, and not one that the library knows."""


KINDS: dict[str, Callable[[], BaseException]] = {
    "BaseException": lambda: Stop("now"),
    "Exception": lambda: Deadline("now"),
    "TimeoutError": lambda: TimeoutError("now"),
    "FileNotFoundError": lambda: FileNotFoundError(errno.ENOENT, "a handler misses a file", "/etc/none"),
    "OSError": lambda: OSError(errno.EIO, "a handler's own disk"),
}


class Signal:
    """Sends SIGALRM at the `number`-th event in the package and contextlib from now on: a line, a call or a return."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not ("/txfiles/" in code.co_filename or code.co_filename.endswith("/contextlib.py")):
            return None
        if code.co_name == "__del__":
            return None
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)
        return self


@pytest.fixture(autouse=True)
def _handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def _raising(make: Callable[[], BaseException]) -> list[BaseException]:
    """Let SIGALRM raise; what was raised."""
    raised: list[BaseException] = []

    def handler(*_: object) -> None:
        raised.append(make())
        raise raised[-1]

    signal.signal(signal.SIGALRM, handler)
    return raised


def _stage(tx: FileTransaction) -> None:
    for name, content in NEW.items():
        tx.write(name, content)


def _commit(root: Path, tracer: Signal) -> None:
    with FileTransaction(root) as tx:
        _stage(tx)
        sys.settrace(tracer)


def _commit_process(root: Path, tracer: Signal) -> None:
    with FileTransaction(root, durability="process") as tx:
        _stage(tx)
        sys.settrace(tracer)


def _roll_back(root: Path, tracer: Signal) -> None:
    tx = FileTransaction(root)
    with tx:
        _stage(tx)
        sys.settrace(tracer)
        tx.rollback()


def _begin(root: Path, tracer: Signal) -> None:
    tx = FileTransaction(root)
    sys.settrace(tracer)
    with tx:
        sys.settrace(None)


def _prepare(root: Path, tracer: Signal) -> None:
    with FileTransaction(root) as tx:
        _stage(tx)
        sys.settrace(tracer)
        tx.prepare()
        tx.rollback()


def _decide(root: Path, tracer: Signal) -> None:
    with FileTransaction(root) as tx:
        _stage(tx)
        tx.prepare()
        sys.settrace(tracer)
        tx.commit()


def _decide_later(decide: Callable[[Path, str], None]) -> Callable[[Path, Signal], None]:
    def work(root: Path, tracer: Signal) -> None:
        with FileTransaction(root) as tx:
            _stage(tx)
            waiting = tx.prepare()
        sys.settrace(tracer)
        decide(root, waiting)

    return work


def _recover(root: Path, tracer: Signal) -> None:
    """What a writer left that was killed after its commit point."""
    child = os.fork()
    if child == 0:
        renames = []

        def plan(_: int, call: str) -> None:
            if call == "rename":
                renames.append(call)
            if len(renames) > 2:  # the first passes the commit point, the second puts one file in place
                os.kill(os.getpid(), signal.SIGKILL)

        with FileTransaction(root):
            pass
        with system.use(FaultyFS(system.KernelFS(), plan)), FileTransaction(root) as tx:  # type: ignore[arg-type]
            _stage(tx)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert [name for name in os.listdir(root / ".txfiles") if name.endswith(".committed")]
    sys.settrace(tracer)
    recover(root)


def _snapshot(root: Path, tracer: Signal) -> None:
    snapshot = FileStore(root).snapshot()
    sys.settrace(tracer)
    with snapshot:
        assert {name: snapshot.read(name) for name in snapshot.listdir()} == OLD
        assert not snapshot.exists("none")


def _snapshot_of_none(root: Path, tracer: Signal) -> None:
    """Whether there is a root is asked first."""
    snapshot = FileStore(root, create=True).snapshot()
    sys.settrace(tracer)
    with snapshot:
        assert snapshot.exists("a")


def _snapshot_at_rest(root: Path, tracer: Signal) -> None:
    """No block holds anything back while small files of a root at rest are read."""
    store = FileStore(root)
    store.transaction().begin().rollback()
    rest._last[os.fsencode(root)] = mark_from(os.stat(root / ".txfiles")), Known(store.state_version(), None)
    snapshot = store.snapshot("a", "b")
    sys.settrace(tracer)
    with snapshot:
        assert {name: snapshot.read(name) for name in OLD} == OLD
        assert snapshot._reader is None
        assert not snapshot.exists("none")


def _look(root: Path, tracer: Signal) -> None:
    store = FileStore(root, create=True)
    store.transaction().begin().rollback()
    sys.settrace(tracer)
    found = store.status(), store.state_version(), verify(root).sound
    sys.settrace(None)
    assert found[0].is_root
    assert found[0].clean
    assert found[2]


def _documents(root: Path) -> Documents:
    return Documents(root, {"*": {}}, codec="bytes")


def _edit(root: Path, tracer: Signal) -> None:
    documents = _documents(root)
    sys.settrace(tracer)
    with documents.edit() as given:
        sys.settrace(None)
        for name, content in NEW.items():
            given["*"][name] = content
        sys.settrace(tracer)


def _savepoint(root: Path, tracer: Signal) -> None:
    """The transaction goes on, while the exception is kept that has left a part of it."""
    kept: BaseException | None = None
    with FileTransaction(root) as tx:
        try:
            sys.settrace(tracer)
            with tx.savepoint():
                sys.settrace(None)
                tx.write("part", b"")
                sys.settrace(tracer)
        except BaseException as error:
            kept = error
        sys.settrace(None)
        assert tx.exists("part") or kept is not None
        tx.delete("part", missing_ok=True)
        _stage(tx)
    if kept is not None:
        raise kept


def _fsspec(root: Path) -> TxFilesFileSystem:
    return TxFilesFileSystem(root=root, skip_instance_cache=True)


def _change_through_fsspec(root: Path, tracer: Signal) -> None:
    fs = _fsspec(root)
    sys.settrace(tracer)
    with fs._changing() as tx:
        sys.settrace(None)
        _stage(tx)
        sys.settrace(tracer)


WORKS: dict[str, Callable[[Path, Signal], None]] = {
    "commit": _commit,
    "commit process": _commit_process,
    "roll back": _roll_back,
    "begin": _begin,
    "prepare": _prepare,
    "decide": _decide,
    "commit_prepared": _decide_later(commit_prepared),
    "rollback_prepared": _decide_later(rollback_prepared),
    "recover": _recover,
    "snapshot": _snapshot,
    "snapshot, create": _snapshot_of_none,
    "snapshot, at rest": _snapshot_at_rest,
    "look": _look,
    "edit": _edit,
    "savepoint": _savepoint,
    "fsspec": _change_through_fsspec,
}


def _explore(root: Path, work: str, kind: str, number: int) -> bool:
    """Whether there was an event of that number. REQUIRES: a process of its own."""
    raised = _raising(KINDS[kind])
    tracer = Signal(number)
    seen: BaseException | None = None
    ignored: list[BaseException | None] = []  # by Python, in a `__del__`
    sys.unraisablehook = lambda what: ignored.append(what.exc_value)
    kept: object = None
    try:
        WORKS[work](root, tracer)
    except BaseException as error:
        sys.settrace(None)
        seen, kept = error, error.__traceback__  # held while the next begins
    sys.settrace(None)
    where = f"{work}, {kind} at event {number}: {seen!r}"
    assert (raised == [seen] if raised else seen is None) or ignored == raised, where
    if seen is not None:
        assert seen.__class__ is KINDS[kind]().__class__, where
        assert str(seen) == str(KINDS[kind]()), where
    if work in ("recover", "commit_prepared", "rollback_prepared", "decide", "prepare"):
        for waiting in recover(root).waiting:
            rollback_prepared(root, waiting.transaction_id)
    FileTransaction(root, timeout=0).begin().rollback()
    assert tree(root) in (OLD, NEW), where
    assert resting(root), where
    del kept
    return tracer.left == 0


def _in_child(root: Path, work: str, kind: str, number: int) -> bool:
    for name, content in OLD.items():
        (root / name).write_bytes(content)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if _explore(root, work, kind, number) else 1
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), f"{work}, {kind}, event {number}"
    return code == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", WORKS)
def test_a_handler_raises_between_two_lines(memory: Path, work: str, kind: str) -> None:
    root = memory / "root"
    root.mkdir()
    number = step = 1 if DEEP else 7 if "at rest" in work else 97
    while _in_child(root, work, kind, number):
        number += step
    assert number > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_raises_where_the_end_of_the_block_begins(root: Path, kind: str) -> None:
    """The block is left, so the transaction is rolled back, also while the exception and the name `tx` are kept."""
    raised = _raising(KINDS[kind])
    called: list[str] = []
    try:
        with FileTransaction(root) as tx:
            _stage(tx)
            tx.on_rollback(lambda: called.append("rolled back"))
            sys.settrace(Signal(1))
    except BaseException as error:
        sys.settrace(None)
        assert raised == [error]  # noqa: PT017 (and held)
        assert (tx.outcome, called, tree(root)) == ("before", ["rolled back"], {})
        with FileTransaction(root, timeout=0) as again:
            _stage(again)
    assert raised
    assert tree(root) == NEW


BLOCKS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    "edit": lambda root: _documents(root).edit(),
    "fsspec": lambda root: _fsspec(root)._changing(),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_holds_a_transaction_lets_it_go_whatever_is_kept(root: Path, block: str) -> None:
    raised = _raising(KINDS["Exception"])
    kept = None
    try:
        with BLOCKS[block](root):
            sys.settrace(Signal(1))
    except Deadline as error:
        kept = error
    sys.settrace(None)
    assert raised == [kept]
    with FileTransaction(root, timeout=0) as again:
        _stage(again)
    assert tree(root) == NEW


def test_a_transaction_may_be_asked_for_its_end_before_it_has_come(root: Path) -> None:
    tx = FileTransaction(root)
    assert hasattr(tx, "__exit__")
    with ExitStack() as stack:
        stack.enter_context(tx)
        assert hasattr(tx, "__exit__")
        _stage(tx)
    assert tree(root) == NEW
    assert isinstance(tx, AbstractContextManager)
