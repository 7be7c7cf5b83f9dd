"""What every call of a transaction stands on: whose it is, whether it is open, and that no other runs beside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from txfiles._disk import system
from txfiles.errors import CommitError, TransactionClosedError

if TYPE_CHECKING:
    from txfiles._tree.staging import Staging
    from txfiles._tree.tokens import Tokens


class Session:
    """The state of a transaction, without a beginning or an end."""

    _state: Literal["new", "open", "prepared", "ended"] = "new"  # also where `__init__` was never entered
    _staging: Staging
    _tokens: Tokens

    def __init__(self, root: bytes) -> None:
        self._fs = system.current()
        self._root = root
        self._mutex = threading.RLock()
        self._writing: set[str] = set()
        self._pid = -1

    def _call(self) -> Call:
        return Call(self)

    def _require_mine(self) -> None:
        if self._pid not in (-1, self._fs.pid()):
            raise TransactionClosedError("the transaction belongs to the process that began it")

    def _require_open(self) -> None:
        if self._state != "open":
            what = {"new": "has not begun", "prepared": "is prepared", "ended": "has ended"}
            raise TransactionClosedError(f"the transaction {what[self._state]}")

    def _refuse_open_savepoint(self) -> None:
        if self._staging.in_step:
            raise TransactionClosedError("a savepoint is still open")

    def _refuse_open_files(self) -> None:
        if self._writing:
            path = min(self._writing)
            self._tokens.remove_all()
            raise CommitError(f"nothing was changed: {path!r} is still open for writing", path=path)


class Call:
    """One call of an open transaction, beside which no other runs."""

    __slots__ = ("_tx",)

    def __init__(self, tx: Session) -> None:
        self._tx = tx

    def __enter__(self) -> Staging:
        tx = self._tx
        tx._require_mine()
        tx._mutex.acquire()
        try:
            tx._require_open()
            return tx._staging
        except BaseException:
            tx._mutex.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._tx._mutex.release()
