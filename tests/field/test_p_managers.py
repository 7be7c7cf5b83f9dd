"""P02: the package `transaction` tries again when another writer has the lock."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import transaction
from transaction.interfaces import IDataManagerSavepoint, TransientError
from zope.interface.verify import verifyObject

from tests.support.boundary import tree
from txfiles import FileStore, FileTransaction
from txfiles.errors import LockTimeoutError
from txfiles.integrations.transaction import TxFilesDataManager, join

Part = Callable[[FileStore, transaction.TransactionManager], FileTransaction]
PARTS: dict[str, Part] = {
    "join": join,
    "own": lambda store, manager: TxFilesDataManager(store.transaction(), manager).files,
}


@pytest.fixture
def manager() -> transaction.TransactionManager:
    return transaction.TransactionManager(explicit=False)


def _in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", ["attempts", "run"])
def test_p02_a_lock_that_is_taken_is_tried_again(
    root: Path, manager: transaction.TransactionManager, form: str, part: str
) -> None:
    holder = FileTransaction(root)
    _in_another_thread(holder.begin)
    tries: list[int] = []

    def change() -> None:
        tries.append(1)
        if len(tries) == 3:
            holder.rollback()
        PARTS[part](FileStore(root, timeout=0), manager).write("a", b"1")

    if form == "run":
        manager.run(change, 3)
    else:
        for attempt in manager.attempts(3):
            with attempt:
                change()
    assert len(tries) == 3
    assert tree(root) == {"a": b"1"}


@pytest.mark.parametrize("part", PARTS)
def test_p02_in_the_end_it_is_what_it_was(root: Path, manager: transaction.TransactionManager, part: str) -> None:
    holder = FileTransaction(root)
    _in_another_thread(holder.begin)
    tries: list[int] = []
    with pytest.raises(LockTimeoutError, match="is locked by another writer") as caught:
        for attempt in manager.attempts(3):
            with attempt:
                tries.append(1)
                PARTS[part](FileStore(root, timeout=0), manager)
    holder.rollback()
    assert len(tries) == 3
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, TransientError)
    assert (error.outcome, error.path, str(error)) == ("before", str(root / ".txfiles/lock"), str(caught.value))
    assert not manager.get()._resources


def test_p02_savepoints_keep_to_their_interface(root: Path, manager: transaction.TransactionManager) -> None:
    files = join(FileStore(root), manager)
    files.write("a", b"1")
    savepoint = TxFilesDataManager(FileStore(root / "b", create=True).transaction(), manager).savepoint()
    assert verifyObject(IDataManagerSavepoint, savepoint)
    manager.abort()
