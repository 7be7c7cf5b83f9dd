"""Parts of a transaction that can be undone by themselves."""

from __future__ import annotations

import threading

from txfiles._calls.session import Session, Turn, still_open
from txfiles._disk.interrupts import AllHeldBack, Interrupted
from txfiles._disk.leaving import Exit
from txfiles._format import paths
from txfiles.errors import TransactionClosedError, TxFilesError


class Savepoint:
    """An exception inside undoes what was staged inside, and propagates. Beside it no call of another thread runs."""

    _state = "new"

    def __init__(self, tx: Session) -> None:
        self._tx = tx
        self._turn = Turn(tx)

    def __enter__(self) -> None:
        try:
            with AllHeldBack():
                staging = self._turn.__enter__()
                self._step = staging.step()
                self._step.__enter__()
                self._mark = len(self._tx._callbacks)
                self._tx._savepoints.append(self)
                self._state = "open"
        except BaseException:
            self._roll_back_late()
            raise

    def _leave(self, error: BaseException | None) -> None:
        if self._state != "open":
            return
        with AllHeldBack():
            self._state = "ended"
            self._tx._savepoints.remove(self)
            try:
                with paths.Below(self._tx._root):
                    if error is not None:
                        self._tx._undo_callbacks(self._mark)
                    self._step.__exit__(None if error is None else type(error), error, None)
            finally:
                self._turn.__exit__(None, error, None)

    def _roll_back_late(self) -> None:
        if self._state == "open":
            self._leave(Interrupted())

    __exit__: Exit = Exit()


class Part(Savepoint):
    """A savepoint for one of several callers who share the transaction: nothing of it goes beyond its end.

    Other threads may call beside it: those that help the caller.
    """

    def __enter__(self) -> None:
        tx = self._tx
        try:
            with AllHeldBack():
                super().__enter__()
                tx._in_part, tx._shared_in = True, threading.get_ident()
                tx._mutex.release()
        except BaseException:
            self._roll_back_late()
            raise

    def _leave(self, error: BaseException | None) -> None:
        if self._state != "open":
            return
        tx = self._tx
        refused: TxFilesError | None = None
        if error is None and tx._savepoints[-1] is not self:
            refused = TransactionClosedError("a savepoint is still open")
        elif error is None and tx._writing:
            refused = still_open(min(tx._writing))
        with AllHeldBack():
            tx._mutex.acquire()
            try:
                while tx._savepoints[-1] is not self:
                    tx._savepoints[-1]._leave(error or refused)
                super()._leave(error or refused)
            finally:
                tx._in_part = False
                for discard in list(tx._writing.values()):
                    discard()
        if refused is not None:
            raise refused
