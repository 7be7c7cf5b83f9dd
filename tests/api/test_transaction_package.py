"""The data manager for the package `transaction`, in transactions of that package."""

from __future__ import annotations

import doctest
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
import transaction
from transaction.interfaces import (
    DoomedTransaction,
    InvalidSavepointRollbackError,
    IRetryDataManager,
    ISavepointDataManager,
    TransactionFailedError,
)
from zope.interface.verify import verifyObject

from tests.support.boundary import tree
from tests.support.procs import run_python
from txfiles import FileStore, FileTransaction, commit_prepared, recover, rollback_prepared, status
from txfiles._disk import system
from txfiles.errors import CommitError, ConflictError, LockTimeoutError, RecoveryConflictError, TransactionClosedError
from txfiles.integrations import transaction as module
from txfiles.integrations.transaction import TxFilesDataManager, join
from txfiles.testing import killed_at_call
from txfiles.testing._faults import FaultyFS

OLD = {"a": b"old a", "gone": b"gone"}
NEW = {"a": b"new a", "new": None, "new/c": b"new c"}


class Other:
    """Another data manager. It calls what is given for a step of its own, and keeps the order of the steps."""

    def __init__(self, key: str = "other", **at: Callable[[], object]) -> None:
        self.key = key
        self.at = at
        self.steps: list[str] = []
        self.transaction_manager = transaction.manager

    def sortKey(self) -> str:
        return self.key

    def __getattr__(self, name: str) -> Any:
        if name not in ("abort", "tpc_begin", "commit", "tpc_vote", "tpc_finish", "tpc_abort"):
            raise AttributeError(name)

        def step(_: Any) -> None:
            self.steps.append(name)
            self.at.get(name, lambda: None)()

        return step


def refuse() -> None:
    raise ArithmeticError("no")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def store(root: Path) -> FileStore:
    for name, data in OLD.items():
        (root / name).write_bytes(data)
    return FileStore(root, timeout=5)


@pytest.fixture(autouse=True)
def _none_is_left_failed() -> Iterator[None]:
    yield
    transaction.abort()


@pytest.fixture
def manager() -> transaction.TransactionManager:
    return transaction.TransactionManager()


def change(files: FileTransaction) -> None:
    files.write("a", "new a")
    files.write("new/c", "new c")
    files.delete("gone")


def resting(store: FileStore) -> bool:
    return status(store.root).clean and set(os.listdir(Path(store.root, ".txfiles"))) <= {
        "format",
        "lock",
        "HEAD",
        "spare",
    }


# -- one transaction ------------------------------------------------------------------------------------------------


def test_it_keeps_to_the_interfaces(store: FileStore) -> None:
    with transaction.manager:
        made = TxFilesDataManager(store.transaction().begin())
        for interface in (ISavepointDataManager, IRetryDataManager):
            assert verifyObject(interface, made)


def test_committed_with_the_transaction(store: FileStore) -> None:
    with transaction.manager:
        change(join(store))
        assert tree(Path(store.root)) == OLD
    assert tree(Path(store.root)) == NEW
    assert resting(store)


def test_rolled_back_with_it(store: FileStore) -> None:
    with pytest.raises(ZeroDivisionError), transaction.manager:
        change(join(store))
        raise ZeroDivisionError
    assert tree(Path(store.root)) == OLD
    assert resting(store)


def test_abort(store: FileStore, manager: transaction.TransactionManager) -> None:
    files = join(store, manager)
    change(files)
    manager.abort()
    assert tree(Path(store.root)) == OLD
    with pytest.raises(TransactionClosedError, match="has ended"):
        files.read("a")
    assert resting(store)


def test_one_file_transaction_for_each_root_and_transaction(store: FileStore, tmp_path: Path) -> None:
    other = FileStore(tmp_path / "other", create=True)
    with transaction.manager:
        first = join(store)
        assert join(FileStore(store.root)) is first
        join(other).write("x", "1")
        change(first)
    assert tree(Path(store.root)) == NEW
    assert tree(Path(other.root)) == {"x": b"1"}
    with transaction.manager:
        assert join(store) is not first


def test_nothing_to_change(store: FileStore) -> None:
    with transaction.manager:
        assert join(store).read("a") == b"old a"
    assert resting(store)


def test_a_data_manager_for_a_transaction_of_ones_own(
    store: FileStore, manager: transaction.TransactionManager
) -> None:
    with store.snapshot() as snap:
        snap.read("a")
    with store.transaction() as tx:
        tx.write("a", "others")
    optimistic = TxFilesDataManager(store.transaction(base=snap).begin(), manager)
    optimistic.files.write("a", "mine")
    with pytest.raises(ConflictError):
        manager.commit()
    manager.abort()
    assert Path(store.root, "a").read_bytes() == b"others"
    assert resting(store)


def test_what_cannot_begin_has_not_joined(store: FileStore, manager: transaction.TransactionManager) -> None:
    holder = store.transaction()
    thread = threading.Thread(target=holder.begin)
    thread.start()
    thread.join()
    with pytest.raises(LockTimeoutError):
        join(FileStore(store.root, timeout=0), manager)
    holder.rollback()
    other = Other()
    manager.get().join(other)
    manager.commit()
    assert other.steps == ["tpc_begin", "commit", "tpc_vote", "tpc_finish"]


def test_a_failed_transaction_cannot_be_joined(store: FileStore, manager: transaction.TransactionManager) -> None:
    manager.get().join(Other(commit=refuse))
    with pytest.raises(ArithmeticError):
        manager.commit()
    with pytest.raises(TransactionFailedError):
        join(store, manager)
    manager.abort()
    with store.transaction():  # the lock is free
        pass


def test_the_example_in_the_docstring_runs(store: FileStore) -> None:
    class Database:
        rows: ClassVar[dict[str, str]] = {}

        def insert(self, name: str, transaction_id: str) -> None:
            self.rows[name] = transaction_id

    names = {
        "transaction": transaction,
        "join": join,
        "FileStore": FileStore,
        "root": store.root,
        "data": b"...",
        "database": Database(),
    }
    (example,) = doctest.DocTestFinder(recurse=False).find(module, globs=names)
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert (runner.tries, runner.failures) == (1, 0)
    assert Path(store.root, "photo.jpg").read_bytes() == b"..."
    head = status(store.root).head
    assert head is not None
    assert Database.rows == {"photo.jpg": head.transaction_id}


# -- with other data managers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", "~~"])
def test_another_votes_no(store: FileStore, key: str) -> None:
    with pytest.raises(ArithmeticError), transaction.manager as current:
        change(join(store))
        current.join(Other(key, tpc_vote=refuse))
    assert tree(Path(store.root)) == OLD
    assert resting(store)


def test_all_is_prepared_when_the_first_votes_and_committed_last(store: FileStore) -> None:
    states: list[Any] = []

    def look() -> None:
        (pending,) = status(store.root).pending
        states.append((pending.state, pending.transaction_id, tree(Path(store.root))))

    with transaction.manager as current:
        files = join(store)
        change(files)
        current.join(Other("~sqlalchemy:1", tpc_vote=look, tpc_finish=look))
    assert states == [("prepared", files.transaction_id, OLD)] * 2
    assert tree(Path(store.root)) == NEW


def test_the_files_cannot_be_prepared(store: FileStore) -> None:
    other = Other()
    with pytest.raises(CommitError, match="still open"), transaction.manager as current:
        current.join(other)
        file = join(store).open("a", "wb")
    file.close()
    assert other.steps == ["tpc_begin", "commit", "abort", "tpc_abort"]
    assert tree(Path(store.root)) == OLD
    assert resting(store)


def test_another_fails_to_finish(store: FileStore) -> None:
    with pytest.raises(ArithmeticError), transaction.manager as current:
        change(join(store))
        current.join(Other(tpc_finish=refuse))
    assert tree(Path(store.root)) == OLD
    assert resting(store)


def test_files_that_others_changed_wait_for_a_decision(store: FileStore) -> None:
    theirs = Path(store.root, "a")
    with pytest.raises(RecoveryConflictError), transaction.manager as current:
        files = join(store)
        change(files)
        current.join(Other(tpc_vote=lambda: theirs.write_bytes(b"theirs")))
    assert [one.transaction_id for one in recover(store.root).waiting] == [files.transaction_id]
    commit_prepared(store.root, files.transaction_id, on_conflict="keep-theirs")
    assert tree(Path(store.root)) == {**NEW, "a": b"theirs"}


# -- savepoints -----------------------------------------------------------------------------------------------------


def test_rolled_back_to_savepoints(store: FileStore, manager: transaction.TransactionManager) -> None:
    files = join(store, manager)
    files.write("a", "1")
    first = manager.savepoint()
    files.write("a", "2")
    second = manager.savepoint()
    files.write("a", "3")
    files.delete("gone")
    for _ in range(2):
        second.rollback()
        assert files.read("a") == b"2"
        assert files.exists("gone")
        files.write("a", "4")
    first.rollback()
    assert files.read("a") == b"1"
    with pytest.raises(InvalidSavepointRollbackError):
        second.rollback()
    files.write("b", "5")
    third = manager.savepoint()
    files.write("b", "6")
    third.rollback()
    manager.commit()
    assert tree(Path(store.root)) == {**OLD, "a": b"1", "b": b"5"}
    assert resting(store)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_savepoints_that_are_kept(store: FileStore, manager: transaction.TransactionManager, end: str) -> None:
    files = join(store, manager)
    for number in range(3):
        files.write("a", str(number))
        manager.savepoint()
    getattr(manager, end)()
    assert Path(store.root, "a").read_bytes() == (b"2" if end == "commit" else OLD["a"])
    assert resting(store)


def test_joined_after_a_savepoint(store: FileStore, manager: transaction.TransactionManager) -> None:
    savepoint = manager.savepoint()
    first = join(store, manager)
    first.write("a", "1")
    savepoint.rollback()
    savepoint.rollback()
    again = join(store, manager)
    assert again is not first
    assert again.read("a") == OLD["a"]
    again.write("a", "2")
    manager.commit()
    assert Path(store.root, "a").read_bytes() == b"2"


def test_a_savepoint_beside_one_that_has_none(store: FileStore, manager: transaction.TransactionManager) -> None:
    files = join(store, manager)
    manager.get().join(Other())
    manager.savepoint(optimistic=True)
    files.write("a", "1")
    with pytest.raises(TypeError, match="Savepoints unsupported"):
        manager.savepoint()
    with pytest.raises(TransactionFailedError):
        manager.commit()
    manager.abort()
    assert tree(Path(store.root)) == OLD


# -- doom, threads, retries -----------------------------------------------------------------------------------------


def test_doomed(store: FileStore, manager: transaction.TransactionManager) -> None:
    manager.doom()
    change(join(store, manager))  # a doomed one can still be joined
    with pytest.raises(DoomedTransaction):
        manager.commit()
    assert tree(Path(store.root)) == OLD
    manager.abort()
    assert resting(store)


def test_each_thread_has_its_own(store: FileStore) -> None:
    """The global manager is thread-local: threads wait for each other's lock, and none sees another's files."""

    def increment() -> None:
        for _ in range(5):
            with transaction.manager:
                files = join(store)
                files.write("a", str(int(files.read("a")) + 1))

    Path(store.root, "a").write_bytes(b"0")
    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path(store.root, "a").read_bytes() == b"20"


def test_ended_in_another_thread(store: FileStore, manager: transaction.TransactionManager) -> None:
    change(join(store, manager))
    thread = threading.Thread(target=manager.commit)
    thread.start()
    thread.join()
    assert tree(Path(store.root)) == NEW


def test_a_conflict_is_tried_again(store: FileStore, manager: transaction.TransactionManager) -> None:
    tries = 0
    for attempt in manager.attempts(3):
        with attempt:
            tries += 1
            files = join(store, manager)
            version = files.version("a")
            if tries < 3:
                Path(store.root, "a").write_bytes(b"theirs, " + str(tries).encode())
            files.write("a", "mine", if_version=version)
    assert tries == 3
    assert Path(store.root, "a").read_bytes() == b"mine"


def test_a_fault_is_not_tried_again(store: FileStore, manager: transaction.TransactionManager) -> None:
    tries = []
    with pytest.raises(FileNotFoundError):
        for attempt in manager.attempts(3):
            with attempt:
                tries.append(1)
                join(store, manager).read("missing")
    assert len(tries) == 1


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "step", "waits"),
    [
        ("a", "commit", False),
        ("a", "tpc_vote", True),
        ("~~", "tpc_vote", True),
        ("a", "tpc_finish", True),  # the crash between the votes and the commit of the files
        ("~~", "tpc_finish", False),
    ],
)
@pytest.mark.parametrize("decide", [commit_prepared, rollback_prepared])
def test_killed(store: FileStore, key: str, step: str, waits: bool, decide: Callable[..., None]) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with transaction.manager as current:
                files = join(store)
                os.write(write, files.transaction_id.encode())
                change(files)
                current.join(Other(key, **{step: die}))
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    tid = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert [one.transaction_id for one in recover(store.root).waiting] == [tid] * waits
    if not waits:
        assert tree(Path(store.root)) == (OLD if step == "commit" else NEW)
        return
    assert tree(Path(store.root)) == OLD
    with pytest.raises(LockTimeoutError, match="waits for a decision"):
        join(FileStore(store.root, timeout=0))
    transaction.abort()
    decide(store.root, tid)
    assert tree(Path(store.root)) == (NEW if decide is commit_prepared else OLD)


class Database:
    """Rows in SQLite that are committed in the vote, as a database with one phase does it, with the id of the files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self.connect()) as rows:
            rows.execute("CREATE TABLE IF NOT EXISTS saved (transaction_id TEXT, number INTEGER)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None)

    def save(self, store: FileStore, number: int) -> None:
        with closing(self.connect()) as rows, transaction.manager as current:
            files = join(store)
            for name in "abc":
                files.write(name, str(number))
            rows.execute("BEGIN IMMEDIATE")
            rows.execute("INSERT INTO saved VALUES (?, ?)", [files.transaction_id, number])
            current.join(Other("~sqlite", tpc_vote=rows.commit, tpc_abort=rows.rollback, abort=rows.rollback))

    def decide(self, store: FileStore) -> None:
        for waiting in recover(store.root).waiting:
            with closing(self.connect()) as rows:
                found = rows.execute("SELECT 1 FROM saved WHERE transaction_id = ?", [waiting.transaction_id])
                decide = commit_prepared if found.fetchone() else rollback_prepared
            decide(store.root, waiting.transaction_id)

    def number(self) -> int:
        with closing(self.connect()) as rows:
            return int(rows.execute("SELECT max(number) FROM saved").fetchone()[0])


def test_files_and_rows_agree_after_a_kill_at_any_call(store: FileStore, tmp_path: Path) -> None:
    database = Database(tmp_path / "rows.sqlite")
    counting = FaultyFS(system.KernelFS())
    for _ in range(2):  # what a process remembers of the root it asks no more
        database.save(store, 0)
    with system.use(counting):  # type: ignore[arg-type]
        database.save(store, 0)
    numbers = set()
    for call in range(1, counting.calls + 1, 4):
        child = os.fork()
        if child == 0:
            try:
                with killed_at_call(call):
                    database.save(store, call)
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        database.decide(store)
        found = database.number()
        assert {Path(store.root, name).read_text(encoding="utf-8") for name in "abc"} == {str(found)}
        numbers.add(found)
        assert status(store.root).clean
    assert len(numbers) > 3  # the later kills come after the vote
    assert len(numbers) < counting.calls // 4


def test_a_forked_child_ends_nothing(store: FileStore) -> None:
    with transaction.manager:
        files = join(store)
        change(files)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                transaction.abort()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert tree(Path(store.root)) == NEW


# -- without the package --------------------------------------------------------------------------------------------


def test_the_extra_is_named_where_it_is_missing() -> None:
    code = "sys.modules['transaction'] = None\nimport txfiles.integrations.transaction"
    done = run_python(code, python=sys.executable)
    assert done.returncode == 1
    assert "ImportError: the package `transaction` is missing: pip install 'txfiles[transaction]'" in done.stderr
