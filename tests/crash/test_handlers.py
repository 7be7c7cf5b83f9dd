"""Exceptions of signal handlers, of every kind, at every line: all is finished or undone, and then they are raised."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.crash.handlers import KINDS, Deadline, Raising, Tracer, in_child
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

STEP = 1 if DEEP else 97
OLD, NEW = {"a": b"old", "b": b"old"}, {"a": b"new", "b": b"new"}


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before, hook = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    yield
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = hook


def _stage(tx: FileTransaction) -> None:
    for name, content in NEW.items():
        tx.write(name, content)


def _commit(root: Path, tracer: Tracer) -> None:
    with FileTransaction(root) as tx:
        _stage(tx)
        sys.settrace(tracer)


def _commit_process(root: Path, tracer: Tracer) -> None:
    with FileTransaction(root, durability="process") as tx:
        _stage(tx)
        sys.settrace(tracer)


def _roll_back(root: Path, tracer: Tracer) -> None:
    tx = FileTransaction(root)
    with tx:
        _stage(tx)
        sys.settrace(tracer)
        tx.rollback()


def _begin(root: Path, tracer: Tracer) -> None:
    tx = FileTransaction(root)
    sys.settrace(tracer)
    with tx:
        sys.settrace(None)


def _prepare(root: Path, tracer: Tracer) -> None:
    with FileTransaction(root) as tx:
        _stage(tx)
        sys.settrace(tracer)
        tx.prepare()
        tx.rollback()


def _decide(root: Path, tracer: Tracer) -> None:
    with FileTransaction(root) as tx:
        _stage(tx)
        tx.prepare()
        sys.settrace(tracer)
        tx.commit()


def _decide_later(decide: Callable[[Path, str], None]) -> Callable[[Path, Tracer], None]:
    def work(root: Path, tracer: Tracer) -> None:
        with FileTransaction(root) as tx:
            _stage(tx)
            waiting = tx.prepare()
        sys.settrace(tracer)
        decide(root, waiting)

    return work


def _recover(root: Path, tracer: Tracer) -> None:
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


def _snapshot(root: Path, tracer: Tracer) -> None:
    snapshot = FileStore(root).snapshot()
    sys.settrace(tracer)
    with snapshot:
        assert {name: snapshot.read(name) for name in snapshot.listdir()} == OLD
        assert not snapshot.exists("none")


def _snapshot_of_none(root: Path, tracer: Tracer) -> None:
    """Whether there is a root is asked first."""
    snapshot = FileStore(root, create=True).snapshot()
    sys.settrace(tracer)
    with snapshot:
        assert snapshot.exists("a")


def _snapshot_at_rest(root: Path, tracer: Tracer) -> None:
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


def _look(root: Path, tracer: Tracer) -> None:
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


def _edit(root: Path, tracer: Tracer) -> None:
    documents = _documents(root)
    sys.settrace(tracer)
    with documents.edit() as given:
        sys.settrace(None)
        for name, content in NEW.items():
            given["*"][name] = content
        sys.settrace(tracer)


def _savepoint(root: Path, tracer: Tracer) -> None:
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


def _change_through_fsspec(root: Path, tracer: Tracer) -> None:
    fs = _fsspec(root)
    sys.settrace(tracer)
    with fs._changing() as tx:
        sys.settrace(None)
        _stage(tx)
        sys.settrace(tracer)


WORKS: dict[str, Callable[[Path, Tracer], None]] = {
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


CASES = [(work, kind) for work in WORKS for kind in KINDS]
_AT_THE_END = 150  # events, where it has happened and is not told yet: no step leaves any out


def _at(root: Path, work: str, kind: str, number: int) -> int:
    """How many events were left behind the one of that number; below zero, how many there were not."""
    root.mkdir()
    for name, content in OLD.items():
        (root / name).write_bytes(content)
    raising = Raising(kind)
    tracer = raising.at(number)
    seen: BaseException | None = None
    kept: object = None
    try:
        WORKS[work](root, tracer)
    except BaseException as error:
        sys.settrace(None)
        seen, kept = error, error.__traceback__  # held while the next begins
    sys.settrace(None)
    where = f"{work}, {kind} at event {number} {tracer.came}: {seen!r}"
    raising.require_same(seen, where)
    if work in ("recover", "commit_prepared", "rollback_prepared", "decide", "prepare"):
        for waiting in recover(root).waiting:
            rollback_prepared(root, waiting.transaction_id)
    FileTransaction(root, timeout=0).begin().rollback()
    assert tree(root) in (OLD, NEW), where
    assert resting(root), where
    del kept
    shutil.rmtree(root)
    return tracer.left


def _at_each(root: Path, work: str, kind: str, first: int) -> bool:
    many = 10**6
    events = many - _at(root, work, kind, many)
    assert events > 100
    last = _AT_THE_END if work in ("commit", "roll back") and kind in ("Exception", "Ctrl-C") else 0
    numbers = {*range(first, events + 10, STEP), *range(max(1, events - last), events + 10)}
    came = [_at(root, work, kind, number) <= 0 for number in sorted(numbers)]
    if DEEP:
        print(f"\n{work}, {kind}: {sum(came)} places")
    return any(came)


def _closing_all(root: Path, work: str, kind: str, first: int) -> bool:
    """None of them leaves a descriptor open; but Ctrl-C may, between two lines of a close."""
    before = os.listdir("/proc/self/fd")
    came = _at_each(root, work, kind, first)
    gc.collect()
    assert kind == "Ctrl-C" or os.listdir("/proc/self/fd") == before
    return came


@pytest.mark.parametrize(("work", "kind"), CASES)
def test_a_handler_raises_between_two_lines(memory: Path, work: str, kind: str) -> None:
    first = 1 + list(KINDS).index(kind) * STEP // len(KINDS)  # other lines for other kinds
    assert in_child(partial(_closing_all, memory / "root", work, kind, first), f"{work}, {kind}")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Ctrl-C"])
def test_a_handler_raises_where_the_end_of_the_block_begins(root: Path, kind: str) -> None:
    """The block is left, so the transaction is rolled back, also while the exception and the name `tx` are kept."""
    raised = Raising(kind).raised
    called: list[str] = []
    try:
        with FileTransaction(root) as tx:
            _stage(tx)
            tx.on_rollback(lambda: called.append("rolled back"))
            sys.settrace(Tracer(signal.SIGALRM, 1))
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
    raised = Raising("Exception").raised
    kept = None
    try:
        with BLOCKS[block](root):
            sys.settrace(Tracer(signal.SIGALRM, 1))
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
