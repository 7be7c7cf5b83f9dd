"""Files in the transactions of the package `transaction`; needs the extra `transaction`.

>>> with transaction.manager:
...     files = join(FileStore(root))
...     files.write("photo.jpg", data)
...     database.insert("photo.jpg", files.transaction_id)
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

try:
    import transaction
    from transaction.interfaces import IDataManagerSavepoint, IRetryDataManager, ISavepointDataManager
    from zope.interface import implementer

    if TYPE_CHECKING:
        from txfiles.integrations._untyped import TransientError
    else:
        from transaction.interfaces import TransientError
except ImportError as _error:
    message = "the package `transaction` is missing: pip install 'txfiles[transaction]'"
    raise ImportError(message, name=_error.name) from _error

from txfiles.errors import ConflictError, LockTimeoutError, TransactionClosedError

if TYPE_CHECKING:
    from txfiles.store import FileStore
    from txfiles.transaction import FileTransaction

__all__ = ["TransientLockTimeoutError", "TxFilesDataManager", "join"]

_JOINED = object()  # the key of this module among the data of a transaction


class TransientLockTimeoutError(LockTimeoutError, TransientError):
    """`LockTimeoutError` as the package knows what is worth another attempt, where nobody has joined to tell it."""


def _begun(files: FileTransaction) -> FileTransaction:
    """`files`, begun if it has not."""
    if files._state != "new":
        return files
    try:
        return files.begin()
    except LockTimeoutError as error:
        raise TransientLockTimeoutError(str(error), path=error.path) from error


def join(store: FileStore, manager: Any = transaction.manager) -> FileTransaction:
    """The file transaction on `store` that is part of the current transaction of `manager`; begun at the first call.

    Write through it, and leave its end to the manager. It holds the writers' lock of the root until then. Its
    `transaction_id` is what recovery reports if a crash comes between the two phases: a database that takes part keeps
    it, and tells then whether the transaction was committed.

    Raises what `FileTransaction.begin` raises; nothing has joined then. `LockTimeoutError` is one that
    `manager.attempts()` and `manager.run()` try again.
    """
    current = manager.get()
    try:
        joined: dict[str, TxFilesDataManager] = current.data(_JOINED)
    except KeyError:
        joined = {}
        current.set_data(_JOINED, joined)
    if store.root not in joined or joined[store.root].left:
        joined[store.root] = TxFilesDataManager(store.transaction(), manager)
    return joined[store.root].files


@implementer(ISavepointDataManager, IRetryDataManager)
class TxFilesDataManager:
    """Makes `files`, a file transaction, a part of the current transaction of `manager`, and begins it if need be.

    `join` is the convenient way to one. All is prepared before anybody votes, and committed last: after a crash in
    between the files wait, and whoever voted knows the answer. In `tpc_finish` the commit fails where a program changed
    the files without txfiles since: `RecoveryConflictError`, and they wait, too.
    """

    def __init__(self, files: FileTransaction, manager: Any = transaction.manager) -> None:
        self.transaction_manager = manager
        self.files: FileTransaction = _begun(files)
        self.left: bool = False
        self._savepoints: list[_Savepoint] = []
        try:
            manager.get().join(self)
        except BaseException:
            files.rollback()
            raise

    def sortKey(self) -> str:
        """After all others, also those that commit in their vote because they have one phase only (`~...`)."""
        return f"~txfiles:{self.files.transaction_id}"

    def savepoint(self) -> _Savepoint:
        """To be rolled back any number of times; the thread that makes one ends the transaction."""
        return _Savepoint(self.files, self._savepoints)

    def abort(self, _: Any) -> None:
        """Forget what was staged, and leave the transaction."""
        self.left = True
        while self._savepoints:
            self._savepoints[-1].end()
        with suppress(TransactionClosedError):  # it has ended: by an error in `commit`, or before this abort
            self.files.rollback()

    def tpc_begin(self, _: Any) -> None:
        """Nothing: the transaction began when it joined."""

    def commit(self, _: Any) -> None:
        """Prepare: the change is durable, and not made. Raises what `FileTransaction.prepare` raises."""
        while self._savepoints:
            self._savepoints[-1].end()
        self.files.prepare()

    def tpc_vote(self, _: Any) -> None:
        """Yes: what is prepared can be committed."""

    def tpc_finish(self, _: Any) -> None:
        """Make the change."""
        self.files.commit()

    def tpc_abort(self, current: Any) -> None:
        """Forget what was prepared; what failed in `tpc_finish` waits for a decision."""
        self.abort(current)

    def should_retry(self, error: Exception) -> bool:
        """Whether another attempt may succeed: others were faster."""
        return isinstance(error, (ConflictError, LockTimeoutError))


class _RolledBack(Exception):
    pass


@implementer(IDataManagerSavepoint)
class _Savepoint:
    """What was staged since can be undone; `later` has this one and those that were made after it."""

    def __init__(self, files: FileTransaction, later: list[_Savepoint]) -> None:
        self._files = files
        self._later = later
        self._begin()

    def _begin(self) -> None:
        self._part = self._files.savepoint()
        self._part.__enter__()
        self._later.append(self)

    def end(self) -> None:
        """Keep what was staged. REQUIRES: it is the last one."""
        self._later.remove(self)
        self._part.__exit__(None, None, None)

    def rollback(self) -> None:
        """Undo what was staged since, and go on from here."""
        ended = False
        while not ended:
            last = self._later.pop()
            undo = _RolledBack()
            last._part.__exit__(_RolledBack, undo, None)
            ended = last is self
        self._begin()
