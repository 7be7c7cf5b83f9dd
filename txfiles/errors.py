"""Every error that txfiles raises, and what is on disk after it::

    TxFilesError(Exception)
    ├ TransactionClosedError            not begun, ended, or begun by another process
    ├ NestedTransactionError            this thread already has a transaction on the root
    ├ InvalidPathError(ValueError)      a path that is not a name below the root
    ├ LockTimeoutError(TimeoutError)    another writer kept the lock for longer than its timeout
    ├ ConflictError                     a file is not in the version that was expected
    │  └ SnapshotExpiredError           a later commit replaced what the snapshot would have read
    ├ UnsupportedFilesystemError        the place cannot give the guarantee
    ├ CommitError                       nothing changed; __cause__ is the reason
    ├ CommitOutcomeUnknownError         the next recovery decides
    ├ SettleError                       committed; only tidying up failed
    ├ DocumentError(ValueError)         a document that cannot be read or written
    │  └ DocumentVersionError           written by a newer program, or too old for this one
    └ RecoveryError                     recovery is not finished, nothing is lost
       ├ JournalCorruptError            nothing was changed
       ├ JournalVersionError            written by a newer txfiles; nothing was changed
       └ RecoveryConflictError          somebody changed its .paths since the crash; nothing was changed

`outcome` says what is on disk: `"before"` (nothing of the transaction), `"after"` (all of it) or `"unknown"`
(recovery decides which of the two).
"""

from __future__ import annotations

from typing import Any, Literal

Outcome = Literal["before", "after", "unknown"]

__all__ = [
    "CommitError",
    "CommitOutcomeUnknownError",
    "ConflictError",
    "DocumentError",
    "DocumentVersionError",
    "InvalidPathError",
    "JournalCorruptError",
    "JournalVersionError",
    "LockTimeoutError",
    "NestedTransactionError",
    "Outcome",
    "RecoveryConflictError",
    "RecoveryError",
    "SettleError",
    "SnapshotExpiredError",
    "TransactionClosedError",
    "TxFilesError",
    "UnsupportedFilesystemError",
]


class TxFilesError(Exception):
    """The base of all errors of this package.

    `outcome` is what is on disk, `path` the path the error is about (or `None`), `paths` all of them where there
    are several. Every error can be pickled.
    """

    outcome: Outcome = "before"
    path: str | None = None
    paths: tuple[str, ...] = ()

    def __init__(self, message: str, *, path: str | None = None, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path if path is not None else (paths[0] if paths else None)
        self.paths = paths or ((path,) if path is not None else ())

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[TxFilesError], args: tuple[Any, ...], state: dict[str, Any]) -> TxFilesError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class TransactionClosedError(TxFilesError):
    """The transaction has not begun, has ended, or belongs to another process."""


class NestedTransactionError(TxFilesError):
    """This thread already has a transaction open on the same root; use `tx.savepoint()` inside it."""


class InvalidPathError(TxFilesError, ValueError):
    """The path is not a name below the root. Nothing was staged by the call."""


class LockTimeoutError(TxFilesError, TimeoutError):
    """Another writer held the lock for longer than `timeout` seconds. Nothing was begun."""


class ConflictError(TxFilesError):
    """A file is not in the version that was expected. Nothing was changed."""


class SnapshotExpiredError(ConflictError):
    """A later commit replaced what this snapshot would have had to read. Take a new snapshot."""


class UnsupportedFilesystemError(TxFilesError):
    """The place cannot give the guarantee: another mount, no file locks, no hard links. Nothing was changed."""


class CommitError(TxFilesError):
    """The commit failed and nothing has changed; `__cause__` is the reason."""


class CommitOutcomeUnknownError(TxFilesError):
    """The commit failed and it is not known on which side of the commit point; the next recovery decides.

    On object storage `recover(url, error.transaction_id)` tells which.
    """

    outcome: Outcome = "unknown"
    transaction_id: str | None = None


class SettleError(TxFilesError):
    """The commit is done and durable; tidying up failed and is left to the next recovery."""

    outcome: Outcome = "after"


class DocumentError(TxFilesError, ValueError):
    """A document cannot be read or written; `path` names it. Nothing was staged or overwritten.

    `place` is where in the document, such as `$.entries[1].data`, where that is known.
    """

    place: str | None = None

    def __init__(
        self, message: str, *, path: str | None = None, paths: tuple[str, ...] = (), place: str | None = None
    ) -> None:
        super().__init__(message, path=path, paths=paths)
        self.place = place


class DocumentVersionError(DocumentError):
    """A document is of a newer version than the program knows, or of one from which nothing leads to that.

    It is not damaged: `set_aside` leaves it where it is. Nothing was changed.
    """


class RecoveryError(TxFilesError):
    """Recovery could not finish. Nothing is lost: everything it needs is still in the private directory."""

    outcome: Outcome = "unknown"


class JournalCorruptError(RecoveryError):
    """A journal that should be whole is damaged. Recovery changed nothing."""


class JournalVersionError(RecoveryError):
    """The directory was written by a newer txfiles, or with another lock protocol. Recovery changed nothing."""


class RecoveryConflictError(RecoveryError):
    """Files in `.paths` were changed by somebody else since the crash. Recovery changed nothing.

    Look at the files and call `recover(root, on_conflict=...)` with `"keep-theirs"`, `"roll-forward"` or
    `"roll-back"`.
    """
